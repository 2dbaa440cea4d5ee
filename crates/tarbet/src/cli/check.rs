//! `tarbet check`: what is wrong on this machine, and how to mend it.
//!
//! What is, is gathered once; each check is a pure judgement over it, so that every hint is tested.

mod facts;
mod live;
mod table;

use clap::Args;
use serde_json::{Value, json};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::config::Config;
use crate::output::Format;
use facts::Facts;
use table::{CHECKS, Check, Finding};

pub const EXAMPLES: &str = "Examples:
  tarbet check --pre          what a start needs, before anything runs
  tarbet check                the same, and what runs here now
  tarbet check --all          also what is fine
  tarbet check --list         every check by name
  tarbet check -o json

The exit code is 1 if something is wrong; warnings alone leave it at 0.";

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Only what a start needs
    #[arg(long)]
    pre: bool,
    /// Show what is fine, too
    #[arg(long)]
    all: bool,
    /// Name every check and what it looks at, and look at nothing
    #[arg(long)]
    list: bool,
}

pub async fn run(args: CheckArgs, config: Result<Config, Problem>, format: Format) -> Result<(), Problem> {
    if args.list {
        let rows: Vec<Value> =
            CHECKS.iter().map(|check| json!({ "check": check.name, "looks at": check.looks_at })).collect();
        return format.rows(&["check", "looks at"], &["check", "looks at"], &rows);
    }
    let mut facts = facts::gather(config.as_ref());
    if let Ok(config) = &config {
        facts.redis = facts::redis(config).await;
    }
    if !args.pre {
        facts.live = live::gather(&facts).await;
    }
    let found = judge(&facts, args.pre);
    let count = |wanted: &str| found.iter().filter(|(_, finding)| finding.word() == wanted).count();
    let (wrong, warnings) = (count("wrong"), count("warning"));
    let rows: Vec<Value> = found
        .iter()
        .filter(|(_, finding)| {
            args.all || format != Format::Table || !matches!(finding, Finding::Fine(_) | Finding::Aside(_))
        })
        .map(|(check, finding)| row(check, finding))
        .collect();
    let keys = ["result", "check", "found", "try"];
    if !rows.is_empty() || format != Format::Table {
        format.rows(&keys, &keys, &rows)?;
    }
    if wrong > 0 {
        return Err(Problem::new(
            &ground::UNHEALTHY,
            format!("{wrong} of {} checks found something wrong.", found.len()),
        )
        .advising("do what stands in the last column, from top to bottom"));
    }
    if format == Format::Table {
        let next = if args.pre || facts.endpoint.is_none() { "tarbet up" } else { "tarbet status" };
        let warned = if warnings == 0 { String::new() } else { format!(", {warnings} with a warning") };
        format.text(&format!("{} checks, nothing wrong{warned}.\nNext: {next}", found.len()))?;
    }
    Ok(())
}

/// What every check says. Those of running things are left out before a start.
fn judge(facts: &Facts, pre: bool) -> Vec<(&'static Check, Finding)> {
    CHECKS.iter().filter(|check| !(pre && check.live)).map(|check| (check, (check.judge)(facts))).collect()
}

fn row(check: &Check, finding: &Finding) -> Value {
    let hint = match finding {
        Finding::Fine(_) | Finding::Aside(_) => "",
        Finding::Warning(_) | Finding::Wrong(_) => check.hint,
    };
    json!({ "check": check.name, "result": finding.word(), "found": finding.text(), "try": hint })
}

/// What each check advises, by its name.
#[cfg(test)]
pub fn hints() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHECKS.iter().map(|check| (check.name, check.hint))
}
