//! `tarbet why ID`: the story of one request, hop by hop.

use std::fmt::Write;

use clap::Args;
use reqwest::Method;
use tarbet_reach::story::StoryView;
use tarbet_telemetry::{Problem, RequestId};

use super::endpoint::ServerArgs;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet why 0198c1f27b0a7c3e8d3c5a7be2b0a111
  tarbet why                                   the newest requests

Every answer carries the id of its request in the header tarbet-request-id, every error prints it.";

#[derive(Debug, Args)]
pub struct WhyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The request; the newest ones if absent
    id: Option<RequestId>,
}

pub async fn run(args: WhyArgs, format: Format) -> Result<(), Problem> {
    let server = args.server.connect()?;
    let path = args.id.map_or_else(|| "/v1/requests".to_owned(), |id| format!("/v1/requests/{id}"));
    let stories: Vec<StoryView> = server.ask(Method::GET, &path, None).await?;
    match (format, args.id) {
        (Format::Table, Some(_)) => format.text(&stories.iter().map(tell).collect::<Vec<_>>().join("\n\n")),
        (Format::Table, None) if stories.is_empty() => {
            format.text("Nobody has asked this gateway for anything yet. Next: tarbet topology")
        }
        (Format::Table, None) => {
            let rows: Vec<_> = stories.iter().map(row).collect();
            let columns = ["id", "began", "site", "principal", "wants", "last"];
            format.rows(&columns, &columns, &rows)
        }
        _ => format.value(&stories),
    }
}

fn tell(story: &StoryView) -> String {
    let StoryView { id, gateway, began, principal, site, wants, steps } = story;
    let mut text =
        format!("Request {id} at gateway `{gateway}`, {began}\n  `{principal}` asked `{site}` for {wants}");
    for step in steps {
        let after = std::time::Duration::from_micros(step.after_us).as_secs_f64() * 1e3;
        let _ = write!(text, "\n  {after:>10.3} ms  {}", step.what);
    }
    if steps.is_empty() {
        text.push_str("\n  nothing has happened yet");
    }
    text
}

fn row(story: &StoryView) -> serde_json::Value {
    let last = story.steps.last().map_or("", |step| step.what.as_str());
    serde_json::json!({
        "id": story.id, "began": story.began, "site": story.site, "principal": story.principal,
        "wants": story.wants, "last": last,
    })
}
