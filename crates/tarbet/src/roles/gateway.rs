//! `tarbet gateway`: the public side.

mod kas;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tarbet_reach::gateway::Gateway;
use tarbet_telemetry::Problem;

use super::process::Process;
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet gateway -c gateway.yaml
  tarbet gateway --set store.kind=redis --set store.url=redis://10.0.0.9:6379 \\
                 --set gateway.private.secret_file=/etc/tarbet/secret
  tarbet gateway --kas-config /etc/kas/config.yaml

Listeners (each with its own address and TLS): agents 8150, observability 8151, API 8153,
Kubernetes 8154, other gateways 8155.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8151);

#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The configuration file of a kas (YAML), to stand in its place; OWN_PRIVATE_API_* are read, too
    #[arg(long, visible_alias = "configuration-file", value_name = "FILE")]
    kas_config: Option<PathBuf>,
}

pub fn run(mut config: Config, args: GatewayArgs) -> Result<(), Problem> {
    let warnings = match &args.kas_config {
        Some(file) => kas::lay_over(&mut config, file)?,
        None => Vec::new(),
    };
    Process::run("gateway", &config, OBSERVE_AT, |process| {
        for warning in warnings {
            tracing::warn!(warning, "The kas configuration has something to know.");
        }
        start(process, config.clone())
    })
}

async fn start(process: Process, config: Config) -> Result<(), Problem> {
    let store = super::store::open(&process, &config.store()).await?;
    let replicated = super::store::is_shared(&config.store());
    let gateway = Gateway::bind(config.gateway.clone(), &store, replicated, &process.metrics).await?;
    gateway.start(&process.supervisor, &process.health);
    Ok(())
}
