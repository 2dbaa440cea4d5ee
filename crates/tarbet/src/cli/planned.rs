//! Every command that changes something can say beforehand what it would change.

use clap::CommandFactory;

use super::Cli;

/// Processes that serve, and sessions that last, until they are told to stop.
pub const LASTING: &[&str] = &[
    "up",
    "gateway",
    "agent",
    "jobs",
    "node",
    "interlink",
    "plugin docker",
    "plugin slurm",
    "plugin process",
    "nets",
    "tags",
    "cloud local",
    "cloud azure",
    "cloud gcp",
    "cloud aws",
    "cloud ibm",
    "mesh",
    "forward",
    "kube proxy",
    "glide follow",
    "pods exec",
];
/// Commands that only look.
const READS: &[&str] = &[
    "pods list",
    "pods logs",
    "glide server get",
    "glide namespace get",
    "glide namespace list",
    "glide resource list",
    "glide rule get",
    "glide tag get",
    "glide tag resolve",
    "glide tag list",
    "glide operation list",
    "glide operation show",
    "glide version",
    "glide can",
    "glide test",
    "glide topology",
    "mesh render",
    "mesh status",
    "mesh test",
    "request list",
    "request show",
    "request logs",
    "site list",
    "site tokens",
    "caller token",
    "user generate",
    "user list",
    "status",
    "check",
    "topology",
    "why",
    "audit tail",
    "audit verify",
    "config check",
    "config show",
    "config schema",
    "explain",
    "completions",
    "version",
];
/// Commands that change something, if only when told to.
const CHANGES: &[&str] = &[
    "down",
    "edge install",
    "pods run",
    "pods delete",
    "glide server set",
    "glide namespace set",
    "glide resource create",
    "glide resource attach",
    "glide resource delete",
    "glide rule add",
    "glide rule delete",
    "glide tag set",
    "glide tag delete",
    "glide operation cancel",
    "glide drift",
    "glide import",
    "glide prune",
    "glide vpn rekey",
    "man",
    "mesh cleanup",
    "request submit",
    "request cancel",
    "site add",
    "site remove",
    "site token",
    "site revoke",
    "caller key",
    "user add",
    "user revoke",
    "kube login",
    "store backup",
    "store restore",
];

/// Every command that does something, by its words.
pub fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, bool)>) {
    let subs: Vec<_> = command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    if subs.is_empty() || !command.is_subcommand_required_set() && !path.is_empty() {
        found.push((
            path.to_owned(),
            command.get_arguments().any(|argument| argument.get_long() == Some("plan")),
        ));
    }
    for sub in subs {
        leaves(sub, format!("{path} {}", sub.get_name()).trim_start(), found);
    }
}

#[test]
fn every_command_that_changes_something_has_a_plan() {
    let mut found = Vec::new();
    let mut program = Cli::command();
    // So that flags of a group are known to each of its commands.
    program.build();
    leaves(&program, "", &mut found);
    for (command, planned) in &found {
        let kinds = [LASTING, READS, CHANGES].map(|kind| kind.contains(&command.as_str()));
        let times = kinds.iter().filter(|in_it| **in_it).count();
        assert_eq!(
            times, 1,
            "`tarbet {command}` must be in exactly one of the lists of this file: does it change anything?"
        );
        assert!(!kinds[2] || *planned, "`tarbet {command}` changes something and has no --plan");
    }
    let listed = LASTING.len() + READS.len() + CHANGES.len();
    assert_eq!(listed, found.len(), "the lists name commands that are gone");
}
