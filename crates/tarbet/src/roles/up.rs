//! `tarbet up`: everything that needs no cluster, in one process, with its state in one folder.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use tarbet_identity::Secret;
use tarbet_reach::config::{GatewayConfig, TlsFiles};
use tarbet_reach::gateway::Gateway;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Problem, Stage, problem::chain};

use super::process::{Process, bind};
use crate::cli::endpoint::Endpoint;
use crate::cli::state_folder;
use crate::config::Config;
use crate::wire;

pub const EXAMPLES: &str = "Examples:
  tarbet up
  tarbet up --observability-listen 127.0.0.1:9000
  tarbet up --set store.path=/tmp/tarbet.redb
  tarbet up --set console.listen=127.0.0.1:9001

The console is a web page at http://127.0.0.1:7480.

State is kept in $TARBET_STATE, else $XDG_STATE_HOME/tarbet, else ~/.local/state/tarbet: the
store, a certificate authority and the administrator's token. Other commands find it there.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7481);

#[derive(Debug, Args)]
pub struct UpArgs {}

pub fn run(config: Config, _args: UpArgs) -> Result<(), Problem> {
    let folder = state_folder();
    std::fs::create_dir_all(&folder).map_err(|error| {
        Problem::new(
            &ground::CONFIG_INVALID,
            format!("The state folder {} cannot be made.", folder.display()),
        )
        .because(error.to_string())
        .advising("set TARBET_STATE to a folder you may write")
    })?;
    Process::run("up", &config, OBSERVE_AT, |process| start(process, config.clone(), folder))
}

async fn start(process: Process, config: Config, folder: PathBuf) -> Result<(), Problem> {
    let store = super::store::open(&process, &config.store()).await?;
    let settings = local_gateway(config.gateway.clone(), &folder);
    let token_file = settings.admin_token_file.clone().unwrap_or_default();
    let name = settings.name.clone().unwrap_or_default();
    let replicated = super::store::is_shared(&config.store());
    let gateway = Gateway::bind(settings, &store, replicated, &process.metrics).await?;
    let console = bind(config.console.listen, "console").await?;
    let at = gateway.addresses();
    let endpoint = Endpoint {
        api: format!("https://{}", at.api),
        kubernetes: at.kubernetes.map_or_else(String::new, |address| format!("https://{address}")),
        agents: format!("grpcs://{}", at.agents),
        token_file,
        ca_file: Some(folder.join("authority/ca.crt")),
    };
    let reader = Secret::from_file(&endpoint.token_file).map_err(|error| {
        Problem::new(&ground::SECRET_UNREADABLE, "The console cannot read the administrator's token.")
            .because(chain(&error))
    })?;
    let (health, metrics) = (process.health.clone(), process.metrics.clone());
    let shown = wire::Shown {
        gateway: name,
        api: gateway.api(),
        reader,
        endpoint: endpoint.clone(),
        observability: config.observability.listen.unwrap_or(OBSERVE_AT),
        health,
        metrics,
    };
    process.supervisor.spawn(Stage::Observe, "console", |stop| async move {
        wire::console(shown).serve(console, stop).await.map_err(|error| {
            Problem::new(&ground::TASK_FAILED, "The console's listener failed.").because(error.to_string())
        })
    });
    gateway.start(&process.supervisor, &process.health);
    endpoint.write(&folder).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The address of the gateway cannot be left for other commands.")
            .because(error.to_string())
    })?;
    process.supervisor.spawn(Stage::Upkeep, "endpoint", |stop| async move {
        stop.cancelled().await;
        Endpoint::remove(&folder);
        Ok(())
    });
    Ok(())
}

/// A gateway for this machine: certificates of its own authority wherever none are configured.
fn local_gateway(mut gateway: GatewayConfig, folder: &Path) -> GatewayConfig {
    let own = || TlsFiles { authority_folder: Some(folder.join("authority")), ..TlsFiles::default() };
    for tls in [&mut gateway.agents.tls, &mut gateway.api.tls, &mut gateway.kubernetes.tls] {
        tls.get_or_insert_with(own);
    }
    if gateway.kubernetes.listen.ip().is_unspecified() {
        gateway.kubernetes.listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    gateway.admin_token_file.get_or_insert_with(|| folder.join("admin.token"));
    gateway.name.get_or_insert_with(|| "local".into());
    gateway.audit.file.get_or_insert_with(|| folder.join("audit.log"));
    gateway
}
