//! `tarbet gateway`: the public side.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;
use tarbet_reach::gateway::Gateway;
use tarbet_telemetry::Problem;

use super::process::Process;
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet gateway -c gateway.yaml
  tarbet gateway --set store.kind=redis --set store.url=redis://10.0.0.9:6379 \\
                 --set gateway.private.secret_file=/etc/tarbet/secret

Listeners (each with its own address and TLS): agents 8150, observability 8151, API 8153,
Kubernetes 8154, other gateways 8155.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8151);

#[derive(Debug, Args)]
pub struct GatewayArgs {}

pub fn run(config: Config, _args: GatewayArgs) -> Result<(), Problem> {
    Process::run("gateway", &config, OBSERVE_AT, |process| start(process, config.clone()))
}

async fn start(process: Process, config: Config) -> Result<(), Problem> {
    let store = super::store::open(&process, &config.store()).await?;
    let replicated = super::store::is_shared(&config.store());
    let gateway = Gateway::bind(config.gateway.clone(), &store, replicated, &process.metrics).await?;
    gateway.start(&process.supervisor, &process.health);
    Ok(())
}
