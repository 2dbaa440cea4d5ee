//! `tarbet glide import`: networks that others made are recorded, and never changed.

use std::fmt::Write as _;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_telemetry::Problem;

use super::client::{Glide, escape, lines};
use crate::output::{Format, counted};

pub const EXAMPLES: &str = "Examples:
  tarbet glide import azure --plan
  tarbet glide import azure
  tarbet glide import azure --forget legacy

The cloud is only looked at: nothing is ever changed there. What is recorded is read-only: its addresses are
given to no network that is made later, and pictures show it. A second import records what changed since.";

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The cloud
    cloud: String,
    /// Take this network out of the record instead, by its name or id; may be repeated
    #[arg(long, value_name = "NAME")]
    forget: Vec<String>,
    /// Take all networks of the cloud out of the record instead
    #[arg(long, conflicts_with = "forget")]
    forget_all: bool,
}

const COLUMNS: &[&str] = &["name", "region", "spaces", "subnets", "machines", "change"];

pub async fn run(glide: &Glide, args: ImportArgs) -> Result<(), Problem> {
    let path = format!("/imports/{}", escape(&args.cloud));
    if args.forget_all || !args.forget.is_empty() {
        return forget(glide, &path, &args).await;
    }
    let told = glide.record(Method::POST, &path, &[]).await?;
    if glide.format != Format::Table {
        return glide.format.value(&told);
    }
    let cloud = &args.cloud;
    glide.rows(&told["networks"], COLUMNS, &format!("There are no networks of others in {cloud}."))?;
    glide.format.text(&summary(&told, cloud, glide.plan, &glide.picture()))
}

/// What is or would be recorded, in words.
fn summary(told: &Value, cloud: &str, plan: bool, next: &str) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    for gone in told["gone"].as_array().into_iter().flatten() {
        let dropped = if plan { "would be dropped" } else { "is dropped" };
        let _ = writeln!(page, "{} is gone from {cloud}, and {dropped} from the record.", described(gone));
    }
    for overlap in lines(&told["overlaps"]) {
        let _ = writeln!(page, "Warning: {overlap}: neither can reach the other there.");
    }
    let digest = told["digest"].as_str();
    let news = |change: &str| {
        let networks = told["networks"].as_array().into_iter().flatten();
        networks.filter(|network| network["change"] == change).count()
    };
    let _ = match (digest, plan) {
        (None, _) => write!(page, "Nothing to do: the record is as the cloud is."),
        (Some(digest), true) => {
            write!(page, "Nothing was recorded. To record exactly this, repeat with --expect {digest}")
        }
        (Some(_), false) => {
            let (new, changed) = (counted(news("new"), "new network"), news("changed"));
            write!(page, "Recorded as read-only: {new}, {changed} changed; nothing was changed in {cloud}.")
        }
    };
    if !plan {
        let _ = write!(page, " Next: {next}");
    }
    page
}

fn described(network: &Value) -> String {
    let spaces = lines(&network["spaces"]).join(", ");
    format!("{} ({spaces})", network["name"].as_str().unwrap_or_default())
}

async fn forget(glide: &Glide, path: &str, args: &ImportArgs) -> Result<(), Problem> {
    let names: Vec<(&'static str, String)> =
        args.forget.iter().map(|name| ("network", name.clone())).collect();
    let told = glide.record(Method::DELETE, path, &names).await?;
    let forgotten = told["forgotten"].as_array().cloned().unwrap_or_default();
    if glide.plan && !forgotten.is_empty() {
        let calls: Vec<String> = forgotten
            .iter()
            .map(|network| format!("forget {}, whose addresses may then be given out", described(network)))
            .collect();
        return glide.format.plan(&calls);
    }
    let list = forgotten.iter().map(described).collect::<Vec<_>>().join(", ");
    let text = match forgotten.len() {
        0 => format!("Nothing was imported from {}.", args.cloud),
        _ => format!("Forgotten: {list}."),
    };
    glide.format.done(&text, &glide.picture(), &json!({ "forgotten": forgotten }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_to_the_record_is_told() {
        let network = json!({ "name": "old", "spaces": ["10.1.0.0/16", "10.2.0.0/16"], "change": "new" });
        let mut told = json!({
            "digest": "abc", "networks": [network], "gone": [network],
            "overlaps": ["10.1.0.0/16 of old in azure overlaps 10.1.0.0/16 of the namespace default in gcp"],
        });
        let made = summary(&told, "azure", false, "tarbet topology --nets");
        for part in [
            "old (10.1.0.0/16, 10.2.0.0/16) is gone from azure, and is dropped",
            "Warning: 10.1.0.0/16 of old in azure overlaps 10.1.0.0/16 of the namespace default in gcp",
            "Recorded as read-only: 1 new network, 0 changed; nothing was changed in azure. Next: tarbet topology",
        ] {
            assert!(made.contains(part), "{made}");
        }
        let planned = summary(&told, "azure", true, "x");
        assert!(planned.contains("would be dropped") && planned.ends_with("--expect abc"), "{planned}");
        told["digest"] = Value::Null;
        assert!(summary(&told, "azure", true, "x").ends_with("the record is as the cloud is."));
    }
}
