//! `tarbet agent`: the private side.

mod cluster;
mod probes;

use std::path::PathBuf;

use clap::Args;
use tarbet_identity::Secret;
use tarbet_link::ProxySettings;
use tarbet_reach::agent::{self, Pod, Surroundings};
use tarbet_reach::kas::Prefix;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;

use self::cluster::ClusterArgs;
use self::probes::ProbeArgs;
use super::pods_here::{self, PodsHereArgs};
use super::process::{Process, Threads};
use super::reload;
use crate::config::{Config, Sources};

pub const EXAMPLES: &str = "Examples:
  tarbet agent --gateway wss://gateway.example.org --token-file /etc/tarbet/token
  tarbet agent --gateway grpcs://gw1:8150 --gateway grpcs://gw2:8150 --token-file token \\
               --kubeconfig ~/.kube/config --policy policy.yaml
  tarbet agent --kas-address wss://kas.gitlab.example.org --token-file /etc/agentk/token
  tarbet agent --gateway wss://gateway.example.org --token-file ~/token --plugin slurm --data-root ~/pods
  tarbet agent --gateway wss://gateway.example.org --token-file ~/token --offer interlink=127.0.0.1:3000

SIGHUP reads the configuration and its files again: new links are up before the old ones are left,
and what runs there finishes there. What cannot be used, or reaches no gateway, changes nothing.

Nothing listens at the site but the probe port. What may be reached is decided by the policy
beside the agent; without one: the Kubernetes API, within the RBAC of the agent's own account, and
what --offer and --plugin name.";

#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// A gateway to dial: grpc://, grpcs://, ws://, wss:// or https://; may be repeated
    #[arg(long = "gateway", value_name = "URL")]
    gateways: Vec<String>,
    /// A kas to join, by its own protocol: grpc://, grpcs://, ws:// or wss://
    #[arg(long, value_name = "URL")]
    kas_address: Option<String>,
    /// The package names the kas uses: gitlab or plural
    #[arg(long, value_name = "NAME")]
    kas_prefix: Option<Prefix>,
    /// The name in the certificate of the kas, if it is not the one in its address
    #[arg(long, value_name = "NAME")]
    kas_tls_server_name: Option<String>,
    /// Take any certificate of the kas; for a trial only
    #[arg(long)]
    kas_insecure_skip_tls_verify: bool,
    /// The file with the site's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The authority of the gateways' certificates, besides those of the system
    #[arg(long, visible_alias = "ca-cert-file", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The site's policy
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The kubeconfig of the API server to offer; in a cluster the pod's own account is used
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// An extra header for WebSocket upgrades; may be repeated
    #[arg(long = "header", visible_alias = "kas-header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// A name for people; the host's name if absent
    #[arg(long)]
    name: Option<String>,
    /// The name of the site, as callers' tokens name it
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// The public key of one who vouches for callers; may be repeated
    #[arg(long = "issuer", value_name = "KEY")]
    issuers: Vec<String>,
    /// The agent's own key, made if it is missing; beside the token file if absent
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Where to keep the record of what was asked of this site
    #[arg(long, value_name = "FILE")]
    audit_file: Option<PathBuf>,
    /// A service of another program here: unix:///path or host:port; may be repeated
    #[arg(long = "offer", value_name = "NAME=PLACE", value_parser = pair)]
    offers: Vec<(String, String)>,
    #[command(flatten)]
    probes: ProbeArgs,
    #[command(flatten)]
    pods: PodsHereArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, place) =
        text.split_once('=').ok_or("it takes NAME=PLACE, such as interlink=127.0.0.1:3000")?;
    Ok((name.to_owned(), place.to_owned()))
}

pub fn run(mut config: Config, again: Sources, args: AgentArgs) -> Result<(), Problem> {
    let (settings, edge) = (config.agent.clone(), config.edge.clone());
    args.probes.lay_over(&mut config.observability)?;
    let at_kas = args.kas_address.is_some() || settings.kas.address.is_some();
    let observe_at = probes::usual(at_kas, std::env::var_os("KUBERNETES_SERVICE_HOST").is_some());
    Process::run("agent", &config, observe_at, Threads::Half, |process| async move {
        let pods = pods_here::start(edge, &args.pods, &process).await?;
        let pods = pods.map(|place| (pods_here::SERVICE.to_owned(), place));
        let probes = args.probes.clone();
        let settled = move |config: agent::AgentConfig| {
            let mut settings = merged(config, args.clone());
            settings.offers.extend(pods.clone());
            settings
        };
        let (first, around) = (settled(settings), surroundings()?);
        let lasting = (first.key_file.clone(), first.audit.clone());
        let running = agent::start(&first, around, &process.supervisor, &process.health).await?;
        let complete = move |config: &mut Config| probes.lay_over(&mut config.observability);
        reload::on_hangup(&process, again, complete, move |config| {
            let (next, running) = (settled(config.agent), running.clone());
            let fixed =
                [("agent.key_file", next.key_file != lasting.0), ("agent.audit", next.audit != lasting.1)];
            async move {
                running.reload(next).await?;
                Ok(fixed
                    .into_iter()
                    .filter(|(_, changed)| *changed)
                    .map(|(name, _)| name.to_owned())
                    .collect())
            }
        })
    })
}

fn merged(mut config: agent::AgentConfig, args: AgentArgs) -> agent::AgentConfig {
    if !args.gateways.is_empty() {
        config.gateways = args.gateways;
    }
    if !args.headers.is_empty() {
        config.headers = args.headers;
    }
    config.kas.address = args.kas_address.or(config.kas.address);
    config.kas.prefix = args.kas_prefix.unwrap_or(config.kas.prefix);
    config.kas.tls_server_name = args.kas_tls_server_name.or(config.kas.tls_server_name);
    config.kas.insecure_skip_tls_verify |= args.kas_insecure_skip_tls_verify;
    config.token_file = args.token_file.or(config.token_file);
    config.ca_file = args.ca_file.or(config.ca_file);
    config.policy_file = args.policy.or(config.policy_file);
    config.kubeconfig = args.kubeconfig.or(config.kubeconfig);
    config.cluster = args.cluster.flags();
    config.name = args.name.or(config.name);
    if !args.issuers.is_empty() {
        config.issuers = args.issuers;
    }
    config.offers.extend(args.offers);
    config.site = args.site.or(config.site);
    config.key_file = args.key_file.or(config.key_file);
    config.audit.file = args.audit_file.or(config.audit.file);
    config
}

/// What the environment says.
pub fn surroundings() -> Result<Surroundings, Problem> {
    let variable = |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok());
    let proxies = ProxySettings::new(
        variable(["HTTP_PROXY", "http_proxy"]).as_deref(),
        variable(["HTTPS_PROXY", "https_proxy"]).as_deref(),
        variable(["NO_PROXY", "no_proxy"]).as_deref(),
    )
    .map_err(|error| {
        Problem::new(&ground::CONFIG_INVALID, "A proxy variable cannot be used.").because(chain(&error))
    })?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let token = std::env::var("AGENTK_TOKEN").ok().map(Secret::new);
    let host = host.trim().to_owned();
    let pod = Pod {
        namespace: std::env::var("POD_NAMESPACE").unwrap_or_else(|_| "default".into()),
        name: std::env::var("POD_NAME").unwrap_or_else(|_| host.clone()),
    };
    Ok(Surroundings { host, proxies, token, pod })
}
