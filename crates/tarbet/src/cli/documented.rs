//! What documents, help and error pages tell people to type is understood by this program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Cli;

/// The simple commands of a line of shell, without redirections, assignments and comments.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '\\') if letters.peek().is_none_or(|next| next.is_whitespace()) => {}
            (None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, '#') if word.is_none() => break,
            (None, '$') if letters.peek() == Some(&'(') => {}
            (None, ';' | '|' | '&' | '(' | ')') => {
                // `2>&1` is no end of a command.
                if letter == '&' && word.as_deref().is_some_and(|text| text.ends_with('>')) {
                    word.get_or_insert_default().push('&');
                    continue;
                }
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.into_iter().map(plain).filter(|words| !words.is_empty()).collect()
}

/// The words without redirections, and without what may stand before a program's name.
fn plain(words: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let redirection = word.trim_start_matches(|c: char| c.is_ascii_digit());
        if redirection.starts_with('>') || redirection.starts_with('<') && redirection.len() < 4 {
            if matches!(redirection, ">" | ">>" | "<" | "<<" | "<<<") {
                words.next();
            }
            continue;
        }
        let before = ["sudo", "exec", "until", "while", "do", "if", "then", "time", "!", "$"];
        let assigned = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        });
        if kept.is_empty() && (before.contains(&word.as_str()) || assigned) {
            continue;
        }
        kept.push(word);
    }
    kept
}

/// Why the program would not take the words. `part` may lack what is required.
fn misunderstood(words: &[String], part: bool) -> Option<String> {
    // What follows an ellipsis is the reader's.
    let words: Vec<&str> =
        words.iter().map(String::as_str).take_while(|word| !word.starts_with('…')).collect();
    let error = Cli::try_parse_from(&words).err()?;
    let (incomplete, placeholder) = (
        matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::TooFewValues
        ),
        matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue),
    );
    // A flag named in a sentence may lack its value.
    let incomplete = incomplete || part && error.kind() == ErrorKind::InvalidValue;
    let shown_in_capitals = words.iter().any(|word| {
        word.contains('…')
            || word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase() || !b.is_ascii_alphabetic())
    });
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        _ if part && incomplete => None,
        ErrorKind::InvalidSubcommand if part && shown_in_capitals => None,
        _ if placeholder && shown_in_capitals => None,
        _ => Some(format!("`{}`: {}", words.join(" "), error.render().to_string().lines().next()?)),
    }
}

/// What is wrong with the commands of a line.
fn wrong_in(line: &str, part: bool) -> Vec<String> {
    let commands = simple_commands(line).into_iter().filter_map(|mut words| {
        // As a plugin of kubectl it is the same program.
        if words.len() > 1 && words[0] == "kubectl" && words[1] == "tarbet" {
            words.remove(0);
        }
        (Path::new(&words[0]).file_name().is_some_and(|name| name == "tarbet")).then_some(words)
    });
    commands.filter_map(|words| misunderstood(&words, part)).collect()
}

/// The spans between backquotes that begin with the program's name.
fn spans(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).filter(|span| span.starts_with("tarbet ")).map(|span| {
        // `docker|slurm` stands for either, `[--pre]` may be left out.
        let words =
            span.split(' ').map(|word| word.split('|').next().unwrap_or(word).trim_matches(['[', ']']));
        words.collect::<Vec<_>>().join(" ")
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/guides"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found
}

#[test]
fn lines_of_shell_are_taken_apart() {
    let commands = |line| simple_commands(line).iter().map(|words| words.join(" ")).collect::<Vec<_>>();
    assert_eq!(commands("A=1 sudo tarbet up > up.log 2>&1 & # why"), ["tarbet up"]);
    assert_eq!(
        commands("(umask 077; tarbet user generate > a) || test $? = 4"),
        ["umask 077", "tarbet user generate", "test $? = 4"]
    );
    assert_eq!(
        commands("until tarbet status >s 2>&1; do sleep 1; done"),
        ["tarbet status", "sleep 1", "done"]
    );
    assert_eq!(commands("x -p 'who=$(id)' | tarbet why"), ["x -p who=$(id)", "tarbet why"]);
    assert!(
        misunderstood(&["tarbet".into(), "site".into(), "add".into(), "--no-such".into()], true).is_some()
    );
    assert!(misunderstood(&["tarbet".into(), "site".into(), "add".into()], false).is_some());
}

#[test]
fn every_documented_command_is_understood() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        let (mut inside, mut text, mut typed) = (false, String::new(), String::new());
        let mut found = Vec::new();
        for line in page.lines() {
            if line.starts_with("```") {
                inside = !inside;
            } else if inside {
                typed.push_str(line.strip_prefix("$ ").unwrap_or(line));
                if typed.ends_with('\\') {
                    typed.push(' ');
                    continue;
                }
                // With a gap after it the name is a heading of a list, as in a picture of the tree.
                if !typed.trim_start().starts_with("tarbet  ") {
                    found.extend(wrong_in(&typed, false));
                }
                count += usize::from(typed.contains("tarbet "));
                typed.clear();
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        found.extend(spans(&text).flat_map(|span| wrong_in(&span, true)));
        wrong
            .extend(found.into_iter().map(|what| format!("{}: {what}", path.file_name().unwrap().display())));
    }
    assert!(count > 60, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_example_and_every_advice_is_understood() {
    fn visit(command: &clap::Command, wrong: &mut Vec<String>) {
        for help in [command.get_after_help(), command.get_long_about()].into_iter().flatten() {
            for line in help.to_string().lines().filter(|line| line.trim_start().starts_with("tarbet ")) {
                // What it is for stands some spaces after it.
                wrong.extend(wrong_in(line.trim_start().split("  ").next().unwrap_or(line), false));
            }
        }
        command.get_subcommands().for_each(|sub| visit(sub, wrong));
    }
    let mut wrong = Vec::new();
    visit(&Cli::command(), &mut wrong);
    for code in tarbet_telemetry::codes::all() {
        let told = [code.cause, code.remedy, code.page].into_iter().flat_map(spans);
        wrong.extend(told.flat_map(|span| wrong_in(&span, true)).map(|what| format!("{}: {what}", code.id)));
    }
    for (name, hint) in super::check::hints() {
        // A command stands between backquotes, or after a colon.
        let after = hint.split_once(": tarbet ").map(|(_, rest)| format!("tarbet {rest}"));
        let told = spans(hint).chain(after);
        wrong.extend(told.flat_map(|line| wrong_in(&line, true)).map(|what| format!("{name}: {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
