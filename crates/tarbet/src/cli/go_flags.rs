//! Flags as Go programs take them, for manifests that started an original and now start us: one dash before a long
//! name is as good as two.

use std::ffi::OsString;

use clap::Command;

/// The roles whose originals read their flags that way.
const ROLES: [&str; 2] = ["jobs", "mesh"];

/// The same arguments as clap wants them.
pub fn understood(command: &Command, args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut role = None;
    let mut read = Vec::new();
    for (index, arg) in args.enumerate() {
        let Some(text) = arg.to_str().filter(|_| index > 0) else {
            read.push(arg);
            continue;
        };
        if role.is_none() && ROLES.contains(&text) {
            role = command.find_subcommand(text);
        }
        let name =
            text.strip_prefix('-').filter(|rest| !rest.starts_with('-')).map(|rest| rest.split('=').next());
        let name = name.flatten().filter(|name| name.len() > 1);
        let known = role.zip(name).is_some_and(|(role, name)| {
            role.get_arguments()
                .any(|one| one.get_long_and_visible_aliases().is_some_and(|all| all.contains(&name)))
        });
        read.push(if known { OsString::from(format!("-{text}")) } else { arg });
    }
    read
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn one_dash_is_as_good_as_two_where_the_original_says_so() {
        let read = |line: &str| {
            let args = understood(&crate::cli::Cli::command(), line.split(' ').map(OsString::from));
            args.iter().map(|arg| arg.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        let line = "tarbet jobs -leader-elect -remote-cluster-config-file=/f --zap-devel -zap-log-level 2";
        let wanted =
            "tarbet jobs --leader-elect --remote-cluster-config-file=/f --zap-devel --zap-log-level 2";
        assert_eq!(read(line), wanted);
        assert_eq!(read("tarbet site list -o json"), "tarbet site list -o json");
        assert_eq!(read("tarbet jobs -o json -unknown"), "tarbet jobs -o json -unknown");
    }
}
