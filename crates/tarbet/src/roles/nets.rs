//! `tarbet nets`: the orchestrator of many clouds' networks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tarbet_nets::NetsConfig;
use tarbet_nets::role::{Surroundings, nets, with_tags_where_they_are};
use tarbet_nets::tags::Sharing;
use tarbet_store::{RedbConfig, StoreConfig};
use tarbet_telemetry::{Coded, Problem};

use super::process::{Process, Threads};
use super::store;
use crate::cli::state_folder;
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  sudo tarbet nets                                  with one local cloud in this process
  tarbet nets --paraglider-config config.yaml       with Paraglider's own file
  tarbet nets --set 'nets.addressSpace=[10.0.0.0/8]'

Then: tarbet glide namespace list";

const OBSERVE_AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8093);

#[derive(Debug, Args)]
pub struct NetsArgs {
    /// Paraglider's own configuration file, instead of the section `nets`
    #[arg(long, value_name = "FILE")]
    paraglider_config: Option<PathBuf>,
}

pub fn run(config: Config, args: NetsArgs) -> Result<(), Problem> {
    let (settings, skipped) = match &args.paraglider_config {
        Some(path) => NetsConfig::from_paraglider(path).map_err(|error| error.problem())?,
        None => (config.nets.clone(), Vec::new()),
    };
    let drop_in = args.paraglider_config.is_some();
    Process::run("nets", &config, OBSERVE_AT, Threads::Cores, |process| {
        let config = config.clone();
        async move {
            for setting in &skipped {
                tracing::warn!(%setting, "A key of the configuration file means nothing here and is skipped.");
            }
            let settings = if drop_in { with_tags_where_they_are(settings).await } else { settings };
            let around = surroundings(&process, &own_store(&config, "nets")).await?;
            nets(settings, &around).await.map(drop).map_err(|error| error.problem())
        }
    })
}

/// The store of one role: a file of its own unless told otherwise, because a file belongs to one process.
pub fn own_store(config: &Config, role: &str) -> StoreConfig {
    let file = || StoreConfig::Redb(RedbConfig::at(state_folder().join(format!("{role}.redb"))));
    config.store.clone().unwrap_or_else(file)
}

/// What the roles of nets are given.
pub async fn surroundings(process: &Process, at: &StoreConfig) -> Result<Surroundings, Problem> {
    let sharing = if store::is_shared(at) { Sharing::Shared } else { Sharing::Alone };
    Ok(Surroundings {
        store: store::open(process, at).await?,
        sharing,
        metrics: process.metrics.clone(),
        health: process.health.clone(),
        supervisor: process.supervisor.clone(),
    })
}
