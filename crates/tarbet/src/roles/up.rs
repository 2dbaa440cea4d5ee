//! `tarbet up`: everything that needs no cluster, in one process, with its state in one folder.

mod clusters;
mod here;
pub mod networks;
pub mod pods;
pub mod served;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tarbet_identity::{Secret, files};
use tarbet_reach::config::{GatewayConfig, TlsFiles};
use tarbet_reach::gateway::Gateway;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Problem, Stage, problem::chain};

use super::process::{Process, Threads, bind};
use crate::cli::endpoint::{self, Endpoint};
use crate::cli::state_folder;
use crate::config::Config;
use crate::output::Format;
use crate::wire;

pub const EXAMPLES: &str = "Examples:
  tarbet up
  tarbet up --kubeconfig ~/.kube/config          a virtual node, jobs and mesh for that cluster too
  tarbet up --without nets,pods                  only what reaches sites
  tarbet up --set console.listen=127.0.0.1:9001

The console is a web page at http://127.0.0.1:7480. This machine is the site `here`. Pods run on
Docker if there is one, else as plain processes. Networks are real if you are root, else only planned.

State is kept in $TARBET_STATE, else $XDG_STATE_HOME/tarbet, else ~/.local/state/tarbet: the
store, a certificate authority and the administrator's token. Other commands find it there, and
`tarbet down` removes all of it.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7481);

/// What can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Optional {
    /// The agent that makes this machine the site `here`
    Agent,
    /// interLink's API and a plugin
    Pods,
    /// The orchestrator, tags and the local cloud
    Nets,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The kubeconfig of a cluster to serve: it gets a virtual node, and jobs and mesh where their
    /// kinds are installed
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Parts to leave out
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    without: Vec<Optional>,
}

pub fn run(config: Config, args: UpArgs) -> Result<(), Problem> {
    let folder = state_folder();
    if let Some(running) = Endpoint::read(&folder).filter(|endpoint| endpoint::is_running(endpoint.pid)) {
        return Err(Problem::new(&ground::ADDRESS_IN_USE, "`tarbet up` runs already.")
            .at("tarbet up")
            .because(format!("it is process {}, with its state in {}", running.pid, folder.display()))
            .advising("`tarbet status` shows it, `tarbet down` ends it"));
    }
    files::private_folder(&folder).and_then(|()| endpoint::mark_as_ups(&folder)).map_err(|error| {
        Problem::new(
            &ground::CONFIG_INVALID,
            format!("The state folder {} cannot be made.", folder.display()),
        )
        .because(error.to_string())
        .advising("set TARBET_STATE to a folder you may write")
    })?;
    Process::run("up", &config, OBSERVE_AT, Threads::Cores, |process| {
        start(process, config.clone(), args, folder)
    })
}

async fn start(process: Process, config: Config, args: UpArgs, folder: PathBuf) -> Result<(), Problem> {
    let wanted = |part: Optional| !args.without.contains(&part);
    let store = super::store::open(&process, &config.store()).await?;
    let settings = local_gateway(config.gateway.clone(), &folder);
    let token_file = settings.admin_token_file.clone().unwrap_or_default();
    let audit_file = settings.audit.file.clone();
    let name = settings.name.clone().unwrap_or_default();
    let replicated = super::store::is_shared(&config.store());
    let gateway = Gateway::bind(settings, &store, replicated, &process.metrics).await?;
    let console = bind(config.console.listen, "console").await?;
    let console_at = console.local_addr().unwrap_or(config.console.listen);
    let at = gateway.addresses();
    let mut endpoint = Endpoint {
        api: format!("https://{}", at.api),
        kubernetes: at.kubernetes.map_or_else(String::new, |address| format!("https://{address}")),
        agents: format!("grpcs://{}", at.agents),
        token_file,
        ca_file: Some(folder.join("authority/ca.crt")),
        observability: process.observed_at(),
        console: Some(format!("http://{console_at}")),
        interlink: None,
        nets: None,
        audit_file: audit_file.clone(),
        parts: BTreeMap::new(),
        pid: std::process::id(),
    };
    let admin = Secret::from_file(&endpoint.token_file).map_err(|error| {
        Problem::new(&ground::SECRET_UNREADABLE, "The console cannot read the administrator's token.")
            .because(chain(&error))
    })?;
    let (api, audit) = (gateway.api(), gateway.audit());
    gateway.start(&process.supervisor, &process.health);

    let pods =
        if wanted(Optional::Pods) { Some(pods::start(&process, &config, &folder).await?) } else { None };
    let nets = if wanted(Optional::Nets) {
        Some(networks::start(&process, &config, &folder, &store).await?)
    } else {
        None
    };
    if let Some(pods) = &pods {
        endpoint.interlink = Some(pods.url.clone());
        endpoint.parts.insert("pods".into(), pods.told.clone());
    }
    if let Some(nets) = &nets {
        endpoint.nets = Some(nets.url.clone());
        endpoint.parts.insert("nets".into(), nets.told.clone());
    }
    if wanted(Optional::Agent) {
        let told =
            here::start(&process, &config, &folder, &api, &admin, &endpoint, args.kubeconfig.as_deref())
                .await?;
        endpoint.parts.insert("agent".into(), told);
    }
    let mut clusters: Vec<_> = config.console.clusters.iter().cloned().map(wire::Cluster::at).collect();
    if let Some(kubeconfig) = &args.kubeconfig {
        let joined =
            clusters::start(&process, &config, kubeconfig, &folder, endpoint.interlink.as_deref()).await?;
        endpoint.parts.extend(joined.told);
        clusters.push(wire::Cluster::served(joined.client));
    }

    let interlink = endpoint.interlink.clone().or_else(|| config.console.interlink.clone());
    let shown = wire::Shown {
        gateway: name,
        api,
        reader: admin,
        endpoint: Endpoint { interlink, ..endpoint.clone() },
        observability: process.observed_at().unwrap_or_default(),
        health: process.health.clone(),
        metrics: process.metrics.clone(),
        audit,
        nets: nets
            .map(|nets| wire::Networks::Here(nets.orchestrator))
            .or_else(|| config.console.nets.clone().map(wire::Networks::At)),
        clusters,
    };
    process.supervisor.spawn(Stage::Observe, "console", |stop| async move {
        wire::console(shown).serve(console, stop).await.map_err(|error| {
            Problem::new(&ground::TASK_FAILED, "The console's listener failed.").because(error.to_string())
        })
    });
    endpoint.write(&folder).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The address of the gateway cannot be left for other commands.")
            .because(error.to_string())
    })?;
    tell(&endpoint, &folder)?;
    process.supervisor.spawn(Stage::Upkeep, "endpoint", |stop| async move {
        stop.cancelled().await;
        Endpoint::remove(&folder);
        Ok(())
    });
    Ok(())
}

/// What a person wants to know first.
fn tell(endpoint: &Endpoint, folder: &Path) -> Result<(), Problem> {
    let mut lines = vec!["Tarbet is up.".to_owned()];
    let mut line = |name: &str, value: &str| lines.push(format!("  {name:<8} {value}"));
    line("console", endpoint.console.as_deref().unwrap_or_default());
    line("gateway", &format!("agents dial {}", endpoint.agents));
    for (part, told) in &endpoint.parts {
        line(part, told);
    }
    line("state", &folder.display().to_string());
    lines.push("Next: tarbet status".into());
    Format::Table.text(&lines.join("\n"))
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
