//! What people and scripts see: results on standard output, problems on standard error.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use serde::Serialize;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For scripts
    Json,
    /// For scripts and files
    Yaml,
    /// A picture for slides (`tarbet topology`)
    Svg,
    /// A picture for terminals (`tarbet topology`)
    Text,
}

/// `1 link`, `2 links`.
pub fn counted(count: impl TryInto<u64>, one: &str) -> String {
    // What does not fit is more than one in any case.
    let count = count.try_into().unwrap_or(u64::MAX);
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

impl Format {
    /// A list: a table with these columns (headings, then keys of each row), or the rows whole.
    pub fn rows(self, headings: &[&str], keys: &[&str], rows: &[serde_json::Value]) -> Result<(), Problem> {
        if self != Self::Table {
            return self.value(&rows);
        }
        let lines = std::iter::once(headings.iter().map(|heading| heading.to_uppercase()).collect())
            .chain(rows.iter().map(|row| keys.iter().map(|key| cell(&row[*key])).collect()))
            .collect::<Vec<Vec<String>>>();
        self.text(&columns(&lines))
    }

    /// A list that may be empty: people are told so in a sentence, with what to do next.
    pub fn rows_or(self, nothing: &str, keys: &[&str], rows: &[serde_json::Value]) -> Result<(), Problem> {
        if rows.is_empty() && self == Self::Table {
            return self.text(nothing);
        }
        self.rows(keys, keys, rows)
    }

    /// One thing with a few facts.
    pub fn record(self, title: &str, facts: &[(&str, &str)]) -> Result<(), Problem> {
        if self != Self::Table {
            let map: serde_json::Map<_, _> = facts.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect();
            return self.value(&map);
        }
        let facts: Vec<String> = facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        self.text(&format!("{title}: {}", facts.join(", ")))
    }

    /// A change that was made: a sentence and one next command for people, facts for scripts.
    pub fn done(self, text: &str, next: &str, facts: &impl Serialize) -> Result<(), Problem> {
        if self != Self::Table {
            return self.value(facts);
        }
        self.text(&format!("{text} Next: {next}"))
    }

    /// What a change would do, for `--plan`: nothing was done.
    pub fn plan(self, calls: &[String]) -> Result<(), Problem> {
        if self != Self::Table {
            return self.value(&serde_json::json!({ "plan": calls }));
        }
        self.text(&format!(
            "Would do:\n  {}\nNothing was changed. Next: the same without --plan",
            calls.join("\n  ")
        ))
    }

    /// Any data.
    pub fn value(self, value: &impl Serialize) -> Result<(), Problem> {
        let text = match self {
            Self::Yaml => serde_saphyr::to_string(value).map_err(|error| error.to_string()),
            Self::Json | Self::Table | Self::Svg | Self::Text => {
                serde_json::to_string_pretty(value).map_err(|error| error.to_string())
            }
        };
        let text = text.map_err(|cause| {
            Problem::new(&ground::INTERNAL, "The result cannot be printed.").because(cause)
        })?;
        self.text(text.trim_end())
    }

    /// A sentence or a page.
    #[expect(clippy::unused_self, reason = "reads the same at every call")]
    pub fn text(self, text: &str) -> Result<(), Problem> {
        note_suggestion(text);
        match writeln!(stdout().lock(), "{text}") {
            // A reader that left, as `head` does, is no failure of ours.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Problem::new(&ground::INTERNAL, "Standard output cannot be written.")
                    .because(error.to_string()))
            }
            _ => Ok(()),
        }
    }
}

/// What shells make of a process that Ctrl-C ended.
pub const INTERRUPTED: i32 = 130;

/// Ends with a code that is not one of ours, as `ssh` and `docker run` do with that of what ran.
#[expect(clippy::exit, reason = "the exit code is the result")]
pub fn end_with(code: i32) -> ! {
    // Nothing is left to do if even standard output is gone.
    let _ = stdout().flush();
    std::process::exit(code)
}

/// Whether a command was suggested already; a person wants one.
static SUGGESTED: AtomicBool = AtomicBool::new(false);

fn note_suggestion(text: &str) {
    if text.contains("Next: ") {
        SUGGESTED.store(true, Ordering::Relaxed);
    }
}

/// Whether something that was printed names a next command.
pub fn has_suggested() -> bool {
    SUGGESTED.load(Ordering::Relaxed)
}

/// A remark beside the result.
pub fn note(text: &str) {
    note_suggestion(text);
    // Nothing is left to do if even standard error is gone.
    let _ = writeln!(stderr().lock(), "{text}");
}

/// Prints a problem as people need it: what, where, why, what to try.
pub fn problem(problem: &Problem) {
    let (bold, red, plain) = if stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        ("\u{1b}[1m", "\u{1b}[31m", "\u{1b}[0m")
    } else {
        ("", "", "")
    };
    let mut text = format!(
        "{bold}{red}error {}{plain}: {}\n  where: {}\n  why:   {}\n  try:   {}\n",
        problem.code, problem.message, problem.hop, problem.cause, problem.remedy
    );
    if let Some(id) = problem.request_id {
        text = format!("{text}  more:  tarbet why {id}\n");
    }
    // Nothing is left to do if even standard error is gone.
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// Aligns columns with two spaces between; the last one is not padded.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or_default()).collect();
    let aligned = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).map(|(text, &width)| format!("{text:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    aligned.collect::<Vec<_>>().join("\n")
}

fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) if text.is_empty() => "-".into(),
        serde_json::Value::String(text) => moment(text).unwrap_or_else(|| text.clone()),
        serde_json::Value::Null => "-".into(),
        serde_json::Value::Array(items) if items.is_empty() => "-".into(),
        serde_json::Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        serde_json::Value::Object(pairs) if pairs.is_empty() => "-".into(),
        serde_json::Value::Object(pairs) => {
            pairs.iter().map(|(key, value)| format!("{key}: {}", cell(value))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// A time of day to the millisecond, all of the same length; scripts are given all that is known of it.
fn moment(text: &str) -> Option<String> {
    let time: jiff::Timestamp =
        text.strip_suffix('Z').filter(|rest| rest.contains('T')).and(text.parse().ok())?;
    Some(format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_and_counts_are_written_for_people() {
        for (told, shown) in [("2026-11-18T02:19:54.01138781Z", "2026-11-18T02:19:54.011Z"), ("TbZ", "TbZ")] {
            assert_eq!(cell(&json!(told)), shown);
        }
        assert_eq!(cell(&json!(["10.0.0.4", "web"])), "10.0.0.4, web");
        assert_eq!([cell(&json!([])), cell(&json!(null)), cell(&json!(3))], ["-", "-", "3"]);
        assert_eq!([cell(&json!({})), cell(&json!({"lab": "user"}))], ["-", "lab: user"]);
        assert_eq!(
            [counted(1, "rule"), counted(0, "rule"), counted(2_usize, "VPN")],
            ["1 rule", "0 rules", "2 VPNs"]
        );
    }
}
