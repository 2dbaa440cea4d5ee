//! `tarbet node`: a virtual node whose pods run behind an interLink endpoint.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tarbet_cluster::Connect;
use tarbet_link::{Dialer, Target};
use tarbet_pods::node::{self, NodeConfig, Parts};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem};

use super::jobs::{connect, source};
use super::pods_here;
use super::process::{Process, Threads};
use crate::cli::endpoint::ServerArgs;
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet node --nodename edge --interlink-url http://edge.example.org --kubeconfig admin.kubeconfig
  tarbet node --configpath /etc/interlink/InterLinkConfig.yaml
  tarbet node --site hpc --server https://gateway:8153 --token-file token

It takes interLink's own configuration file and variables: NODENAME, CONFIGPATH,
INTERLINKCONFIGPATH, VK_CONFIG_PATH, INTERLINKURL, INTERLINKPORT, VKTOKENFILE, CUSTOMKUBECONF,
KUBECONFIG, POD_IP, KUBELET_URL and KUBELET_PORT. With --site the endpoint is reached through the
site's agent and listens nowhere.";

const OBSERVE_AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The node's name in the cluster
    #[arg(long, value_name = "NAME")]
    nodename: Option<String>,
    /// interLink's configuration file
    #[arg(long, value_name = "FILE")]
    configpath: Option<PathBuf>,
    /// Where interLink is: http://host:port, https://host:port or unix:///path
    #[arg(long, value_name = "URL")]
    interlink_url: Option<String>,
    /// Instead: the site whose agent offers it, reached through a gateway
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// The kubeconfig of the cluster; without it KUBECONFIG, the pod's account, ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The address that the cluster reaches this node by; without it POD_IP, or what is found out
    #[arg(long, value_name = "IP")]
    pod_ip: Option<IpAddr>,
    /// Where the kubelet API listens
    #[arg(long, value_name = "ADDR")]
    kubelet_listen: Option<SocketAddr>,
}

pub fn run(mut config: Config, args: NodeArgs) -> Result<(), Problem> {
    let settings = merged(config.node.clone(), &args)?;
    if config.log.filter == "info" && settings.verbose_logging {
        config.log.filter = "debug,hyper=info,h2=info,rustls=info,tower=info,kube_client=info".into();
    } else if config.log.filter == "info" && settings.errors_only_logging {
        config.log.filter = "error".into();
    }
    Process::run("node", &config, OBSERVE_AT, Threads::One, |process| async move {
        let source = source(args.kubeconfig.as_deref())?;
        let parts = Parts {
            client: connect(&source).await?,
            source,
            carrier: carrier(&args).await?,
            metrics: process.metrics.clone(),
            health: process.health.clone(),
            supervisor: process.supervisor.clone(),
        };
        node::start(settings, parts).await.map(drop).map_err(|error| error.problem())
    })
}

fn merged(base: NodeConfig, args: &NodeArgs) -> Result<NodeConfig, Problem> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .chain(args.nodename.clone().map(|name| ("NODENAME".to_owned(), name)))
        .collect();
    let loaded = node::config::load(base, args.configpath.as_deref(), &environment);
    let mut config = loaded.map_err(|error| error.problem())?;
    if let Some(url) = &args.interlink_url {
        config.interlink_url.clone_from(url);
    }
    if args.site.is_some() {
        // The agent decides what it leads to; the name only stands in requests.
        "http://interlink".clone_into(&mut config.interlink_url);
    }
    if let Some(address) = args.pod_ip {
        config.pod_ip = address.to_string();
    }
    if let Some(address) = args.kubelet_listen {
        config.kubelet_listen = address;
    }
    match config.mistakes().first() {
        Some((key, what)) => Err(Problem::new(&ground::CONFIG_INVALID, format!("{key}: {what}."))),
        None => Ok(config),
    }
}

/// Connections to interLink: over the network, or through the agent of a site.
async fn carrier(args: &NodeArgs) -> Result<Connect, Problem> {
    match &args.site {
        Some(site) => through(site, &args.server).await,
        None => Ok(Connect::network()),
    }
}

/// Connections to the interLink endpoint that the agent of a site offers.
pub async fn through(site: &str, server: &ServerArgs) -> Result<Connect, Problem> {
    let target = Target::service(pods_here::SERVICE).map_err(|error| {
        Problem::new(&ground::INTERNAL, "The service cannot be named.").because(error.to_string())
    })?;
    let way = super::site::open_way(server, site).await?;
    Ok(Connect::new(move |_| {
        let (way, target) = (way.clone(), target.clone());
        async move { way.open(target).await.map_err(std::io::Error::other) }
    }))
}
