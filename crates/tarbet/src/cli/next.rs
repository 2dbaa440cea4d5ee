//! What to do next, for people at a terminal: every command that succeeds ends with one suggestion.
//!
//! A command that knows better, because of what it did or found, says it itself; this is for all others. On
//! standard error and only where a person reads the result: pipes and files stay clean.

use std::io::{IsTerminal, stdout};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use super::Cli;
use crate::output::{self, Format};

/// A command, and what most often follows it. Capitals stand for what only the person knows.
const AFTER: &[(&str, &str)] = &[
    ("audit tail", "audit verify"),
    ("audit verify", "audit tail"),
    ("caller key", "caller token --site SITE --as NAME --caller-key FILE"),
    ("caller token", "why"),
    ("completions", "check"),
    ("config schema", "config check"),
    ("config show", "config check"),
    ("explain", "check"),
    ("glide can", "topology --nets"),
    ("glide drift", "glide operation list"),
    ("glide namespace get", "glide resource list"),
    ("glide namespace list", "glide namespace set NAMESPACE"),
    ("glide operation cancel", "glide drift"),
    ("glide operation list", "glide operation show ID"),
    ("glide operation show", "glide drift"),
    ("glide resource list", "glide rule get CLOUD NAME"),
    ("glide rule get", "glide can FROM TO:PORT"),
    ("glide server get", "glide namespace list"),
    ("glide tag get", "glide tag resolve TAG"),
    ("glide tag list", "glide tag resolve TAG"),
    ("glide tag resolve", "topology --nets"),
    ("glide test", "glide drift"),
    ("glide topology", "glide can FROM TO:PORT"),
    ("glide version", "glide server get"),
    ("man", "man --dir DIR --plan"),
    ("mesh cleanup", "mesh status"),
    ("mesh render", "mesh status"),
    ("mesh status", "mesh test --to SERVICE.NAMESPACE"),
    ("mesh test", "mesh status"),
    ("pods list", "pods logs POD"),
    ("pods logs", "pods list"),
    ("pods run", "pods list"),
    ("request list", "request show NAME"),
    ("request logs", "request list"),
    ("request show", "request logs NAME"),
    ("request submit", "request list"),
    ("site list", "kube login SITE"),
    ("site token", "site tokens SITE"),
    ("site tokens", "site revoke SITE ID --plan"),
    ("topology", "why"),
    ("user add", "user list"),
    ("user generate", "config check --set gateway.admin_token_file=FILE"),
    ("user list", "user revoke NAME --plan"),
    ("version", "check --pre"),
    ("why", "why ID"),
];

/// The words of the command that was typed, and what was given with it.
pub fn typed(matches: &ArgMatches) -> (String, &ArgMatches) {
    let (mut words, mut at) = (Vec::new(), matches);
    while let Some((name, below)) = at.subcommand() {
        words.push(name);
        at = below;
    }
    (words.join(" "), at)
}

/// The suggestion after this command, which finds what this one found.
pub fn after(matches: &ArgMatches) -> Option<String> {
    let (words, given) = typed(matches);
    let &(_, next) = AFTER.iter().find(|(command, _)| *command == words)?;
    let mut program = Cli::command();
    program.build();
    let mut command = &program;
    let named = next.split(' ').map_while(|word| {
        command = command.find_subcommand(word)?;
        Some(())
    });
    named.for_each(drop);
    // Flags with which both say where to look: a gateway, a cluster, a namespace.
    let same = command.get_arguments().filter_map(|argument| {
        let (id, long) = (argument.get_id().as_str(), argument.get_long()?);
        let known = WHERE.contains(&id) && given.try_contains_id(id).is_ok_and(|given| given);
        if !known || given.value_source(id) != Some(ValueSource::CommandLine) {
            return None;
        }
        let value = given.get_raw(id)?.next()?.to_str()?.to_owned();
        Some(format!(" --{long} {value}"))
    });
    let flags: String = same.collect();
    Some(format!("tarbet {next}{flags}"))
}

/// Flags that say where to look.
const WHERE: &[&str] = &[
    "server",
    "token_file",
    "ca_file",
    "client_certificate",
    "client_key",
    "identity_file",
    "interlink",
    "interlink_token_file",
    "interlink_ca_file",
    "port",
    "site",
    "kubeconfig",
    "namespace",
    "config",
];

/// Says it, to a person who has not been told anything yet.
pub fn suggest(next: Option<&str>, format: Format) {
    let for_people = matches!(format, Format::Table | Format::Text) && stdout().is_terminal();
    if let Some(next) = next.filter(|_| for_people && !output::has_suggested()) {
        output::note(&format!("Next: {next}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::planned::{LASTING, leaves};

    /// Commands that always say by themselves what follows.
    const OWN: &[&str] = &[
        "check",
        "config check",
        "down",
        "edge install",
        "glide import",
        "glide namespace set",
        "glide prune",
        "glide resource attach",
        "glide resource create",
        "glide resource delete",
        "glide rule add",
        "glide rule delete",
        "glide server set",
        "glide tag delete",
        "glide tag set",
        "glide vpn rekey",
        "kube login",
        "pods delete",
        "request cancel",
        "site add",
        "site remove",
        "site revoke",
        "status",
        "store backup",
        "store restore",
        "user revoke",
    ];

    fn program() -> clap::Command {
        let mut program = Cli::command();
        program.build();
        program
    }

    #[test]
    fn every_command_that_ends_suggests_another() {
        let mut found = Vec::new();
        leaves(&program(), "", &mut found);
        let ending: Vec<&str> =
            found.iter().map(|(words, _)| words.as_str()).filter(|words| !LASTING.contains(words)).collect();
        for words in &ending {
            let times = AFTER.iter().filter(|(command, _)| command == words).count()
                + OWN.iter().filter(|own| *own == words).count();
            assert_eq!(times, 1, "what follows `tarbet {words}`? Say it in one of the lists of this file");
        }
        assert_eq!(ending.len(), AFTER.len() + OWN.len(), "the lists name commands that are gone");
        for (_, next) in AFTER {
            // As if the person had put in what only they know.
            let next = next.replace("ID", &"0a".repeat(16)).to_lowercase();
            let words = ["tarbet"].into_iter().chain(next.split(' '));
            if let Err(error) = program().try_get_matches_from(words) {
                panic!("`tarbet {next}`: {error}");
            }
        }
    }

    #[test]
    fn a_suggestion_looks_where_the_command_did() {
        for (typed, next) in [
            ("site list", "tarbet kube login SITE"),
            ("site list --server https://gw:8153", "tarbet kube login SITE --server https://gw:8153"),
            ("request -n team-a list -A", "tarbet request show NAME --namespace team-a"),
            ("pods list --site hpc", "tarbet pods logs POD --site hpc"),
            ("glide tag list -n default", "tarbet glide tag resolve TAG --namespace default"),
            ("site tokens lab --plan", "tarbet site revoke SITE ID --plan"),
        ] {
            let words = ["tarbet"].into_iter().chain(typed.split(' '));
            let matches = program().try_get_matches_from(words).unwrap();
            assert_eq!(after(&matches).as_deref(), Some(next), "{typed}");
        }
    }
}
