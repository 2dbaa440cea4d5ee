//! Networks of `tarbet up`: the orchestrator with tags and a local cloud.

use std::net::TcpListener;
use std::path::Path;

use tarbet_nets::local::LocalConfig;
use tarbet_nets::role::{Surroundings, nets};
use tarbet_nets::tags::Sharing;
use tarbet_nets::{NetsConfig, Orchestrator};
use tarbet_store::Store;
use tarbet_telemetry::{Coded, Problem};

use crate::config::Config;
use crate::roles::process::Process;
use crate::roles::store::is_shared;

/// What was started.
pub(super) struct Networks {
    /// The REST API.
    pub(super) url: String,
    /// For people.
    pub(super) told: String,
    /// The thing itself, for the console.
    pub(super) orchestrator: Orchestrator,
}

pub(super) async fn start(
    process: &Process,
    config: &Config,
    folder: &Path,
    store: &Store,
) -> Result<Networks, Problem> {
    let settings = with_free_ports(placed(&config.nets, folder));
    let url = format!("{}://{}:{}", settings.security.scheme(), settings.server.host, settings.server.port);
    let around = Surroundings {
        store: store.clone(),
        sharing: if is_shared(&config.store()) { Sharing::Shared } else { Sharing::Alone },
        metrics: process.metrics.clone(),
        health: process.health.clone(),
        supervisor: process.supervisor.clone(),
    };
    let local = settings.cloud_plugins.iter().any(|plugin| plugin.local.is_some());
    let orchestrator = nets(settings, &around).await.map_err(|error| error.problem())?;
    let told = match (local, rustix::process::geteuid().is_root()) {
        (true, true) => "a local cloud with real packets",
        (true, false) => "planning only: the local cloud needs root to make anything",
        (false, _) => "the clouds of the configuration",
    };
    Ok(Networks { told: format!("{url}  {told}"), url, orchestrator })
}

/// The settings with the files of local clouds below the state folder.
pub fn placed(settings: &NetsConfig, folder: &Path) -> NetsConfig {
    let mut settings = settings.clone().completed();
    for local in settings.cloud_plugins.iter_mut().filter_map(|plugin| plugin.local.as_mut()) {
        if local.folder == LocalConfig::default().folder {
            local.folder = folder.join("clouds");
        }
    }
    settings
}

/// Usual ports that other programs hold are exchanged for free ones: 8080 is everybody's favourite.
fn with_free_ports(mut settings: NetsConfig) -> NetsConfig {
    let usual = NetsConfig::default();
    let pick = |host: &str, port: &mut u16, usual: u16| {
        if *port != usual || TcpListener::bind((host, usual)).is_ok() {
            return;
        }
        if let Ok(free) = TcpListener::bind((host, 0)).and_then(|free| free.local_addr()) {
            tracing::warn!(usual, port = free.port(), "A usual port is taken; another one is used.");
            *port = free.port();
        }
    };
    let server = &mut settings.server;
    pick(&server.host, &mut server.port, usual.server.port);
    pick(&server.host, &mut server.rpc_port, usual.server.rpc_port);
    pick(&settings.tag_service.host, &mut settings.tag_service.port, usual.tag_service.port);
    pick(&settings.kv_store.host, &mut settings.kv_store.port, usual.kv_store.port);
    settings
}
