//! The harness behind `make bench`: each figure beside a peer in the same run, as a ratio.
//!
//! Everything runs on loopback and in bounded loops. Rows are repeated in turn and medians are
//! taken, so that a busy moment of the machine falls on all rows alike. Nothing here decides
//! whether a build is good: times are reported, never asserted.

mod cpu;
mod load;
mod peers;
mod reach;
mod report;
mod store;

use std::path::PathBuf;

use anyhow::{Context, Result};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Times each row is measured.
    pub(crate) rounds: usize,
    /// Seconds of one measurement.
    pub(crate) seconds: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    let binary = args.next().map(PathBuf::from).context("usage: bench PATH-OF-TARBET REPORT-FOLDER")?;
    let folder = args.next().map(PathBuf::from).context("usage: bench PATH-OF-TARBET REPORT-FOLDER")?;
    let quick = std::env::var_os("QUICK").is_some_and(|quick| !quick.is_empty() && quick != "0");
    let scale = if quick { Scale { rounds: 3, seconds: 2 } } else { Scale { rounds: 5, seconds: 6 } };

    let mut report = report::Report::new(scale);
    reach::measure(&mut report, &binary, scale).await?;
    store::measure(&mut report, scale).await?;
    report.write(&folder)
}
