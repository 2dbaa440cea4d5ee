//! `tarbet store backup|restore`.

use std::path::PathBuf;

use clap::Subcommand;
use tarbet_store::{Clock, RestoreMode};
use tarbet_telemetry::{Coded, Problem};

use crate::config::Config;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  tarbet store backup before-upgrade.tbk
  tarbet store restore before-upgrade.tbk --plan
  tarbet store restore before-upgrade.tbk

The embedded store belongs to one process: stop the role that uses it first.";

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Write everything in the store into one file
    #[command(
        after_help = "Examples:\n  tarbet store backup before-upgrade.tbk --plan\n  tarbet store backup before-upgrade.tbk"
    )]
    Backup {
        /// The file to write
        file: PathBuf,
        /// Only open the store and say what would be written
        #[arg(long)]
        plan: bool,
    },
    /// Replace what is in the store by what is in a backup
    #[command(
        after_help = "Examples:\n  tarbet store restore before-upgrade.tbk --plan\n  tarbet store restore before-upgrade.tbk"
    )]
    Restore {
        /// The file to read
        file: PathBuf,
        /// Only check the file and say what it holds
        #[arg(long)]
        plan: bool,
    },
}

pub async fn run(command: StoreCommand, config: &Config, format: Format) -> Result<(), Problem> {
    let clock = Clock::system();
    match command {
        StoreCommand::Backup { file, plan } => {
            let store =
                tarbet_store::open(&config.store(), clock.clone()).await.map_err(|error| error.problem())?;
            if plan {
                let replaced = if file.exists() { ", replacing what is there" } else { "" };
                let everything = tarbet_store::Prefix::everything();
                let entries = store.list(&everything).await.map_err(|error| error.problem())?.len();
                return format.plan(&[format!("write {entries} entries to {}{replaced}", file.display())]);
            }
            let summary =
                tarbet_store::backup(&store, &file, &clock).await.map_err(|error| error.problem())?;
            let text = format!("{} entries are in {}.", summary.entries, file.display());
            format.text(&format!("{text} Next: tarbet store restore {} --plan", file.display()))
        }
        StoreCommand::Restore { file, plan: true } => {
            // A store in memory takes the whole file without touching the real one.
            let trial = tarbet_store::open(&tarbet_store::StoreConfig::Memory {}, clock.clone());
            let trial = trial.await.map_err(|error| error.problem())?;
            let summary = tarbet_store::restore(&trial, &file, RestoreMode::IntoEmpty, &clock);
            let summary = summary.await.map_err(|error| error.problem())?;
            format.text(&format!(
                "The backup is intact: {} entries would replace what is in the store ({} more have expired).",
                summary.entries, summary.expired
            ))
        }
        StoreCommand::Restore { file, plan: false } => {
            let store = tarbet_store::open_for_restore(&config.store(), clock.clone())
                .await
                .map_err(|error| error.problem())?;
            let restored = tarbet_store::restore(&store, &file, RestoreMode::Replace, &clock).await;
            let summary = restored.map_err(|error| error.problem())?;
            format.text(&format!(
                "{} entries were restored. Next: tarbet config check, then start the role.",
                summary.entries
            ))
        }
    }
}
