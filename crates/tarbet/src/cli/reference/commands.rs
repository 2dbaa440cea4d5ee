//! The page of commands, from clap's own description of them.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::cell;

/// Every command with its arguments, and the flags that all take once at the top.
pub(super) fn page(program: &Command) -> String {
    let mut program = program.clone();
    program.build();
    let mut page = String::from(
        "# Commands\n\nMade from the program by `tools/reference`; do not edit. `tarbet help COMMAND` prints the same.\n",
    );
    let global = program.get_arguments().filter(|argument| argument.is_global_set()).map(row);
    write!(page, "\nAll commands take:\n\n{}", table(global)).unwrap();
    write!(page, "\nExit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 timed out.\n").unwrap();
    for command in program.get_subcommands().filter(|sub| sub.get_name() != "help") {
        visit(command, &program, "tarbet", &mut page);
    }
    page
}

/// One command and those below it. What one takes, those below it take as well: it is told once.
fn visit(command: &Command, parent: &Command, above: &str, page: &mut String) {
    if command.is_hide_set() {
        return;
    }
    let path = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(page, "\n## {path}\n\n{about}.\n").unwrap();
    let own: Vec<String> = command
        .get_arguments()
        .filter(|argument| {
            let told = parent.get_arguments().any(|other| other.get_id() == argument.get_id());
            !(argument.is_hide_set() || argument.is_global_set() && told)
        })
        .filter(|argument| {
            !matches!(argument.get_action(), ArgAction::Help | ArgAction::HelpLong | ArgAction::Version)
        })
        .map(row)
        .collect();
    if !own.is_empty() {
        write!(page, "\n{}", table(own.into_iter())).unwrap();
    }
    let subs: Vec<&Command> = command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    if let Some(help) = command.get_after_help() {
        let text = help.to_string();
        write!(page, "\n```text\n{}\n```\n", text.trim_end()).unwrap();
    }
    for sub in subs {
        visit(sub, command, &path, page);
    }
}

fn table(rows: impl Iterator<Item = String>) -> String {
    let rows: String = rows.collect();
    format!("| argument | what | otherwise |\n|---|---|---|\n{rows}")
}

fn row(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let values = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let mut shown = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("`-{short}`, `--{long}"),
        (Some(long), None) => format!("`--{long}"),
        (None, Some(short)) => format!("`-{short}"),
        (None, None) => format!("`{values}"),
    };
    if takes && !argument.is_positional() {
        write!(shown, " {values}").unwrap();
    }
    shown.push('`');
    for alias in argument.get_visible_aliases().unwrap_or_default() {
        write!(shown, ", `--{alias}`").unwrap();
    }
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let possible = argument.get_possible_values();
    let choices: Vec<String> =
        possible.iter().filter(|_| takes).map(|value| format!("`{}`", value.get_name())).collect();
    let choices = if choices.is_empty() { String::new() } else { format!(" ({})", choices.join(", ")) };
    let mut otherwise: Vec<String> = argument
        .get_env()
        .map(|name| format!("`${}`", name.to_string_lossy()))
        .into_iter()
        .chain(
            argument
                .get_default_values()
                .iter()
                .filter(|_| takes)
                .map(|value| format!("`{}`", value.to_string_lossy())),
        )
        .collect();
    if argument.is_required_set() {
        otherwise.push("required".into());
    }
    format!("| {} | {}{} | {} |\n", cell(&shown), cell(&help), choices, cell(&otherwise.join(", ")))
}
