//! `tarbet explain CODE`.

use clap::Args;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{self, Code};

use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet explain TB-1102
  tarbet explain             lists every code";

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A code such as TB-1102; without one, all are listed
    code: Option<String>,
}

pub fn run(args: &ExplainArgs, format: Format) -> Result<(), Problem> {
    let Some(wanted) = &args.code else {
        let rows: Vec<_> = codes::all().map(row).collect();
        return format.rows(&["code", "title", "try"], &["code", "title", "try"], &rows);
    };
    let Some(code) = codes::find(wanted) else {
        return Err(Problem::new(&codes::ground::BAD_REQUEST, format!("There is no code `{wanted}`."))
            .at("tarbet explain")
            .because("the code is misspelt, or belongs to a newer version")
            .advising("`tarbet explain` lists every code of this version"));
    };
    match format {
        Format::Table => format.text(&page(code)),
        _ => format.value(&row(code)),
    }
}

fn row(code: &Code) -> serde_json::Value {
    serde_json::json!({
        "code": code.id, "title": code.title, "hop": code.hop, "cause": code.cause, "try": code.remedy,
        "retry": code.retry, "httpStatus": code.http, "exitCode": code.exit, "page": code.page,
    })
}

fn page(code: &Code) -> String {
    let retry = if code.retry {
        "Repeating the request may help."
    } else {
        "Repeating the same request does not help."
    };
    format!(
        "{}: {}\n\nWhere  {}\nWhy    {}\nTry    {}\n\n{}\n\n{retry} HTTP status {}, exit code {}.",
        code.id, code.title, code.hop, code.cause, code.remedy, code.page, code.http, code.exit
    )
}
