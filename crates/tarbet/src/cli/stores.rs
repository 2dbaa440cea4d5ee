//! `tarbet store backup|restore`.

use std::path::PathBuf;

use clap::Subcommand;
use tarbet_store::{Clock, RestoreMode};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem};

use crate::config::Config;
use crate::output::{Format, note};

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

/// Refuses to back up what is not there: opening an embedded store would make an empty one.
fn must_be_there(store: &tarbet_store::StoreConfig) -> Result<(), Problem> {
    match store {
        tarbet_store::StoreConfig::Redb(redb) if !redb.path.exists() => Err(Problem::new(
            &ground::CONFIG_INVALID,
            format!("There is no store at {}.", redb.path.display()),
        )
        .at("tarbet command line")
        .because("nothing has been kept there yet, or this is another user's or folder's setting")
        .advising("name it with --set store.path=FILE, or give the role's own --config")),
        _ => Ok(()),
    }
}

pub async fn run(command: StoreCommand, config: &Config, format: Format) -> Result<(), Problem> {
    let clock = Clock::system();
    match command {
        StoreCommand::Backup { file, plan } => {
            must_be_there(&config.store())?;
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
            if summary.entries == 0 {
                note("The store is empty: is it the right one? `tarbet config show` says where it is.");
            }
            let facts = serde_json::json!({ "entries": summary.entries, "file": file });
            format.done(&text, &format!("tarbet store restore {} --plan", file.display()), &facts)
        }
        StoreCommand::Restore { file, plan: true } => {
            // A store in memory takes the whole file without touching the real one.
            let trial = tarbet_store::open(&tarbet_store::StoreConfig::Memory {}, clock.clone());
            let trial = trial.await.map_err(|error| error.problem())?;
            let summary = tarbet_store::restore(&trial, &file, RestoreMode::IntoEmpty, &clock);
            let summary = summary.await.map_err(|error| error.problem())?;
            let text = format!(
                "The backup is intact: {} entries would replace what is in the store ({} more have expired).",
                summary.entries, summary.expired
            );
            let facts = serde_json::json!({ "entries": summary.entries, "expired": summary.expired });
            format.done(&text, &format!("tarbet store restore {}", file.display()), &facts)
        }
        StoreCommand::Restore { file, plan: false } => {
            let store = tarbet_store::open_for_restore(&config.store(), clock.clone())
                .await
                .map_err(|error| error.problem())?;
            let restored = tarbet_store::restore(&store, &file, RestoreMode::Replace, &clock).await;
            let summary = restored.map_err(|error| error.problem())?;
            let facts = serde_json::json!({ "entries": summary.entries });
            let text = format!("{} entries were restored. The role can be started.", summary.entries);
            format.done(&text, "tarbet config check", &facts)
        }
    }
}
