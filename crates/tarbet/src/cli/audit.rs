//! `tarbet audit tail|verify FILE`: the record of who asked for what.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use tarbet_reach::audit::{self, Head};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};

use super::endpoint::{Endpoint, state_folder};
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet audit tail
  tarbet audit tail /var/lib/tarbet/audit.log
  tarbet audit verify /var/lib/tarbet/audit.log

Each record seals the ones before it, so that a changed, added or removed record is noticed. The
process that writes the log prints its head when it stops; keep it elsewhere and give it to verify.";

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Print the last records
    #[command(
        after_help = "Examples:\n  tarbet audit tail audit.log\n  tarbet audit tail audit.log -n 100 -o json"
    )]
    Tail {
        /// The log; that of the local `tarbet up` if absent
        file: Option<PathBuf>,
        /// How many records
        #[arg(long, short = 'n', default_value_t = 20)]
        lines: usize,
    },
    /// Check that nothing was changed, added, removed or cut off
    #[command(
        after_help = "Examples:\n  tarbet audit verify audit.log\n  tarbet audit verify audit.log --head 1042:9f86d081…"
    )]
    Verify {
        /// The log; that of the local `tarbet up` if absent
        file: Option<PathBuf>,
        /// A head that the log once had; the one beside the file if absent
        #[arg(long, value_name = "NUMBER:HASH")]
        head: Option<Head>,
    },
}

pub fn run(command: AuditCommand, format: Format) -> Result<(), Problem> {
    match command {
        AuditCommand::Tail { file, lines } => {
            let file = file.unwrap_or_else(own);
            let entries = audit::tail(&file, lines).map_err(|error| unreadable(&file, &error.to_string()))?;
            let rows: Vec<_> = entries.iter().map(|entry| serde_json::json!(entry)).collect();
            let columns = ["seq", "time", "site", "principal", "outcome", "code", "wants"];
            format.rows_or("Nothing is on record yet. Next: tarbet status", &columns, &rows)
        }
        AuditCommand::Verify { file, head } => verify(&file.unwrap_or_else(own), head, format),
    }
}

/// The log of the local `tarbet up`.
fn own() -> PathBuf {
    let folder = state_folder();
    Endpoint::read(&folder).and_then(|up| up.audit_file).unwrap_or_else(|| folder.join("audit.log"))
}

fn verify(file: &Path, head: Option<Head>, format: Format) -> Result<(), Problem> {
    let failed = |error: std::io::Error| unreadable(file, &error.to_string());
    let beside = audit::read_head(file).map_err(failed)?;
    let log = std::fs::File::open(file).map_err(failed)?;
    let verified = audit::verify(std::io::BufReader::new(log), head.or(beside)).map_err(|broken| {
        Problem::new(
            &reach::AUDIT_BROKEN,
            format!("The audit log {} is not what was written.", file.display()),
        )
        .at(file.display().to_string())
        .because(broken.to_string())
    })?;
    let records = verified.records.to_string();
    let against = if head.is_some() {
        "the given head"
    } else if beside.is_some() {
        "the head beside it"
    } else {
        "no head"
    };
    let facts =
        [("records", records.as_str()), ("head", &verified.head.to_string()), ("compared with", against)];
    format.record("Whole", &facts)
}

fn unreadable(file: &Path, cause: &str) -> Problem {
    Problem::new(&ground::CONFIG_UNREADABLE, format!("The audit log {} cannot be read.", file.display()))
        .at("tarbet command line")
        .because(cause)
        .advising("check the path and that you may read it")
}
