//! `tarbet gateway`: the public side.

mod kas;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tarbet_identity::Secret;
use tarbet_reach::gateway::Gateway;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Problem, Stage};

use super::process::{Process, Threads, bind};
use super::reload;
use crate::cli::endpoint::Endpoint;
use crate::config::{Config, Sources};
use crate::wire;

pub const EXAMPLES: &str = "Examples:
  tarbet gateway -c gateway.yaml
  tarbet gateway -c gateway.yaml --console             with the web page at http://127.0.0.1:7480
  tarbet gateway --set store.kind=redis --set store.url=redis://10.0.0.9:6379 \\
                 --set gateway.private.secret_file=/etc/tarbet/secret
  tarbet gateway --kas-config /etc/kas/config.yaml

SIGHUP reads the configuration and all certificates again: limits, waits, ages, grants and
certificates change at once, and what needs a new start is named in the log. A file with a mistake
changes nothing.

Listeners (each with its own address and TLS): agents 8150, observability 8151, API 8153,
Kubernetes 8154, other gateways 8155. The web page listens on loopback only; from elsewhere use
`ssh -L 7480:127.0.0.1:7480 HOST` or `kubectl port-forward`.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8151);

#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The configuration file of a kas (YAML), to stand in its place; OWN_PRIVATE_API_* are read, too
    #[arg(long, visible_alias = "configuration-file", value_name = "FILE")]
    kas_config: Option<PathBuf>,
    /// Serve the console, at console.listen
    #[arg(long)]
    console: bool,
}

pub fn run(mut config: Config, again: Sources, args: GatewayArgs) -> Result<(), Problem> {
    let warnings = match &args.kas_config {
        Some(file) => kas::lay_over(&mut config, file)?,
        None => Vec::new(),
    };
    Process::run("gateway", &config, OBSERVE_AT, Threads::Half, |process| {
        for warning in warnings {
            tracing::warn!(warning, "The kas configuration has something to know.");
        }
        start(process, config.clone(), again, args)
    })
}

async fn start(process: Process, config: Config, again: Sources, args: GatewayArgs) -> Result<(), Problem> {
    let store = super::store::open(&process, &config.store()).await?;
    let replicated = super::store::is_shared(&config.store());
    let gateway = Gateway::bind(config.gateway.clone(), &store, replicated, &process.metrics).await?;
    if args.console {
        serve_console(&process, &config, &gateway).await?;
    }
    let (reloader, kas_config) = (gateway.reloader(), args.kas_config);
    let complete = move |config: &mut Config| match &kas_config {
        Some(file) => kas::lay_over(config, file).map(drop),
        None => Ok(()),
    };
    reload::on_hangup(&process, again, complete, move |config| {
        let outcome = reloader.reload(&config.gateway);
        let named = |settings: Vec<String>| settings.iter().map(|name| format!("gateway.{name}")).collect();
        std::future::ready(outcome.map(named))
    })?;
    gateway.start(&process.supervisor, &process.health);
    Ok(())
}

async fn serve_console(process: &Process, config: &Config, gateway: &Gateway) -> Result<(), Problem> {
    let unreadable = |cause: String| {
        Problem::new(&ground::SECRET_UNREADABLE, "The console cannot read the administrator's token.")
            .because(cause)
            .advising("set gateway.admin_token_file: the console lists sites and requests with it")
    };
    let settings = &config.gateway;
    let token_file = settings
        .admin_token_file
        .clone()
        .ok_or_else(|| unreadable("gateway.admin_token_file is not set".into()))?;
    let reader = Secret::from_file(&token_file).map_err(|error| unreadable(chain(&error)))?;
    let listener = bind(config.console.listen, "console").await?;
    let at = gateway.addresses();
    let secure =
        |plain: &str, sealed: &str, tls: bool| if tls { sealed.to_owned() } else { plain.to_owned() };
    let endpoint = Endpoint {
        api: format!("{}://{}", secure("http", "https", settings.api.tls.is_some()), at.api),
        kubernetes: at.kubernetes.map_or_else(String::new, |address| {
            format!("{}://{address}", secure("http", "https", settings.kubernetes.tls.is_some()))
        }),
        agents: format!("{}://{}", secure("grpc", "grpcs", settings.agents.tls.is_some()), at.agents),
        token_file,
        ca_file: settings
            .agents
            .tls
            .as_ref()
            .and_then(|tls| tls.authority_folder.as_ref())
            .map(|folder| folder.join("ca.crt")),
        observability: None,
        console: None,
        interlink: config.console.interlink.clone(),
        nets: config.console.nets.clone(),
        audit_file: settings.audit.file.clone(),
        parts: BTreeMap::new(),
        pid: std::process::id(),
    };
    let shown = wire::Shown {
        gateway: gateway.name().to_owned(),
        api: gateway.api(),
        reader,
        endpoint,
        observability: process.observed_at().unwrap_or_default(),
        health: process.health.clone(),
        metrics: process.metrics.clone(),
        audit: gateway.audit(),
        nets: config.console.nets.clone().map(wire::Networks::At),
        clusters: config.console.clusters.iter().cloned().map(wire::Cluster::at).collect(),
    };
    process.supervisor.spawn(Stage::Observe, "console", |stop| async move {
        wire::console(shown).serve(listener, stop).await.map_err(|error| {
            Problem::new(&ground::TASK_FAILED, "The console's listener failed.").because(error.to_string())
        })
    });
    Ok(())
}
