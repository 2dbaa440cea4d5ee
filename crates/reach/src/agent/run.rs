//! Starting an agent: configuration in, links up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::Secret;
use tarbet_link::handshake::Credential;
use tarbet_link::{Agent, GatewayUrl, Identity, NetConnector, NetDialer, ProxySettings, SlotStatus};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::health::Part;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Problem, Stage, Supervisor};
use uuid::Uuid;

use super::kubernetes::Kubernetes;
use super::policy::Policy;
use super::tcp::Tcp;
use super::{Dispatcher, Info, Service};
use crate::dial;

/// An agent: whom it dials, as whom, and what it offers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The gateways: `grpc://`, `grpcs://`, `ws://`, `wss://` or `https://` URLs.
    pub gateways: Vec<String>,
    /// The file with the site's token.
    pub token_file: Option<PathBuf>,
    /// A name for people; the host's name if absent.
    pub name: Option<String>,
    /// The authority of the gateways' certificates, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// Extra headers for WebSocket upgrades, as `Name: value`.
    pub headers: Vec<String>,
    /// Links to keep.
    pub links: usize,
    /// The site's policy. Without one: the Kubernetes API within the agent's own RBAC.
    pub policy_file: Option<PathBuf>,
    /// A kubeconfig for the `kubernetes` service; in a cluster the pod's own account is used.
    pub kubeconfig: Option<PathBuf>,
    /// How long a TCP connection inside the site may take.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            token_file: None,
            name: None,
            ca_file: None,
            headers: Vec::new(),
            links: 2,
            policy_file: None,
            kubeconfig: None,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// What the environment says that is no setting of ours.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The host's name.
    pub host: String,
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.
    pub proxies: ProxySettings,
    /// A token that came by the environment (`AGENTK_TOKEN`).
    pub token: Option<Secret>,
}

/// Checks everything, then starts the links under the supervisor.
pub async fn start(
    config: &AgentConfig,
    surroundings: Surroundings,
    supervisor: &Supervisor,
    health: &Health,
) -> Result<(), Problem> {
    let invalid = |message: String| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
    if config.gateways.is_empty() {
        return Err(invalid("The agent has no gateway to dial.".into()).advising("give it --gateway URL"));
    }
    let gateways = config
        .gateways
        .iter()
        .map(|url| {
            url.parse::<GatewayUrl>()
                .map_err(|error| invalid(format!("`{url}` is no gateway URL.")).because(chain(&error)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let token = token_source(config, surroundings.token)?;
    token()?;
    let policy = read_policy(config)?;
    let name = config.name.clone().unwrap_or(surroundings.host);
    let dispatcher = Arc::new(Dispatcher::new(services(config, &policy, &name).await?, policy));
    let offered = dispatcher.offered();
    tracing::info!(services = ?offered, gateways = ?config.gateways, "The agent offers its services.");

    let connector = NetConnector {
        tls: Some(Arc::new(dial::tls(config.ca_file.as_deref())?)),
        proxies: surroundings.proxies,
        headers: headers(config)?,
        ..NetConnector::new(Arc::new(NetDialer::default()))
    };
    let links = tarbet_link::AgentConfig {
        links: config.links,
        ..tarbet_link::AgentConfig::new(gateways, rand::random())
    };
    let (instance, version) = (Uuid::new_v4(), env!("CARGO_PKG_VERSION").to_owned());
    let identity = move || Identity {
        // A token that cannot be read any more is refused by the gateway, which names the reason.
        credential: token().map_or_else(|_| Credential::default(), |token| Credential::new(token.expose())),
        name: name.clone(),
        version: version.clone(),
        instance,
        services: offered.clone(),
    };
    let agent = Agent::new(links, Arc::new(connector), dispatcher, identity);
    let (part, mut status) = (health.part("links"), agent.status());
    supervisor.spawn(Stage::Work, "links", |stop| async move {
        agent.run(stop).await;
        Ok(())
    });
    supervisor.spawn(Stage::Upkeep, "link health", |stop| async move {
        loop {
            tell(&part, &status.borrow_and_update());
            tokio::select! {
                changed = status.changed() => if changed.is_err() { stop.cancelled().await; return Ok(()) },
                () = stop.cancelled() => return Ok(()),
            }
        }
    });
    Ok(())
}

/// One working link is enough to be reached.
fn tell(part: &Part, slots: &[SlotStatus]) {
    if slots.iter().any(|slot| slot.link.is_some()) {
        return part.ready();
    }
    let why = slots.iter().find_map(|slot| {
        let gateway = slot.gateway.as_ref().map_or_else(|| "a gateway".to_owned(), ToString::to_string);
        slot.error.as_ref().map(|error| format!("{gateway}: {}", chain(error.as_ref())))
    });
    match why {
        Some(why) => part.failing(why),
        None => part.starting("dialling"),
    }
}

type TokenSource = Box<dyn Fn() -> Result<Secret, Problem> + Send + Sync>;

fn token_source(config: &AgentConfig, given: Option<Secret>) -> Result<TokenSource, Problem> {
    match (&config.token_file, given) {
        (Some(_), Some(_)) => Err(Problem::new(
            &ground::CONFIG_INVALID,
            "The agent has two tokens: a file and an environment variable.",
        )
        .advising("keep one of agent.token_file and AGENTK_TOKEN")),
        (None, Some(token)) => Ok(Box::new(move || Ok(token.clone()))),
        (Some(file), None) => {
            let file = file.clone();
            Ok(Box::new(move || {
                Secret::from_file(&file).map_err(|error| {
                    Problem::new(
                        &ground::SECRET_UNREADABLE,
                        format!("The token in {} cannot be read.", file.display()),
                    )
                    .because(chain(&error))
                })
            }))
        }
        (None, None) => Err(Problem::new(&ground::CONFIG_INVALID, "The agent has no token.")
            .advising("`tarbet site add NAME` prints one; give its file with --token-file")),
    }
}

fn read_policy(config: &AgentConfig) -> Result<Policy, Problem> {
    let Some(file) = &config.policy_file else { return Ok(Policy::without_file()) };
    let unusable = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("The policy in {} cannot be used.", file.display()))
            .because(cause)
    };
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| unusable(error.to_string()))
}

async fn services(
    config: &AgentConfig,
    policy: &Policy,
    name: &str,
) -> Result<Vec<Arc<dyn Service>>, Problem> {
    let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(Tcp::new(config.connect_timeout))];
    if policy.offers("kubernetes")
        && let Some(kube) = kube_config(config).await?
    {
        services.push(Arc::new(Kubernetes::new(kube)?));
    }
    let names: Vec<String> =
        services.iter().map(|service| service.name().to_owned()).filter(|name| policy.offers(name)).collect();
    services.push(Arc::new(Info::new(name, env!("CARGO_PKG_VERSION"), &names)));
    Ok(services)
}

/// The API server to offer: the named kubeconfig's, else the cluster the agent runs in, else none.
async fn kube_config(config: &AgentConfig) -> Result<Option<kube::Config>, Problem> {
    let Some(file) = &config.kubeconfig else {
        return Ok(kube::Config::incluster().ok());
    };
    let unusable = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("The kubeconfig {} cannot be used.", file.display()))
            .because(cause)
    };
    let kubeconfig = kube::config::Kubeconfig::read_from(file).map_err(|error| unusable(chain(&error)))?;
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map(Some).map_err(|error| unusable(chain(&error)))
}

fn headers(config: &AgentConfig) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for line in &config.headers {
        let parsed = line
            .split_once(':')
            .and_then(|(name, value)| Some((name.trim().parse().ok()?, value.trim().parse().ok()?)));
        let (name, value): (http::HeaderName, http::HeaderValue) = parsed.ok_or_else(|| {
            Problem::new(&ground::CONFIG_INVALID, format!("`{line}` is not a header."))
                .advising("write it as `Name: value`")
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}
