//! Starting an agent: configuration in, links up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::{KeyError, PrivateKey, PublicKey, Secret, Subject};
use tarbet_link::handshake::Credential;
use tarbet_link::{Agent, GatewayUrl, Identity, NetConnector, NetDialer, ProxySettings, SlotStatus};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::health::Part;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Problem, Stage, Supervisor};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::callers::Callers;
use super::end_to_end::EndToEnd;
use super::kas::{self, Pod};
use super::kubernetes::Kubernetes;
use super::offered::Offered;
use super::policy::Policy;
use super::tcp::Tcp;
use super::{Dispatcher, Door, Info, Service};
use crate::audit::{AuditConfig, AuditLog};
use crate::dial;
use crate::kas::Prefix;

/// How often the policy's file is looked at.
const POLICY_CHECK: Duration = Duration::from_secs(2);

/// An agent: whom it dials, as whom, and what it offers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The gateways: `grpc://`, `grpcs://`, `ws://`, `wss://` or `https://` URLs.
    pub gateways: Vec<String>,
    /// A kas to join besides, or instead.
    pub kas: AtKas,
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
    /// Further links for large transfers: forwards prefer them, so that they neither wait for requests nor
    /// make them wait, and their windows fill a long line.
    pub bulk_links: usize,
    /// The site's policy. Without one: the Kubernetes API within the agent's own RBAC.
    pub policy_file: Option<PathBuf>,
    /// The name of the site, as callers' tokens name it. Needed with `issuers`.
    pub site: Option<String>,
    /// Public keys (`ed25519:…`) of those who vouch for callers. Rules that name callers believe
    /// only tokens of these.
    pub issuers: Vec<String>,
    /// The agent's own key, by which clients know it end to end; made if it is missing. Beside the
    /// token file if absent.
    pub key_file: Option<PathBuf>,
    /// The record of what was asked of this site.
    pub audit: AuditConfig,
    /// A kubeconfig for the `kubernetes` service; in a cluster the pod's own account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Services of other programs at the site, by name: `unix:///path` or `host:port`. A policy file
    /// must name them among its services.
    pub offers: BTreeMap<String, String>,
    /// How long a TCP connection inside the site may take.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            kas: AtKas::default(),
            token_file: None,
            name: None,
            ca_file: None,
            headers: Vec::new(),
            links: 2,
            bulk_links: 0,
            policy_file: None,
            site: None,
            issuers: Vec::new(),
            key_file: None,
            audit: AuditConfig::default(),
            kubeconfig: None,
            offers: BTreeMap::new(),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// How the agent joins a kas.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AtKas {
    /// Its address: `grpc://`, `grpcs://`, `ws://` or `wss://`.
    pub address: Option<String>,
    /// The package names it uses: `gitlab` or `plural`.
    pub prefix: Prefix,
    /// The name in its certificate, if it is not the one in the address.
    pub tls_server_name: Option<String>,
    /// Takes any certificate. For a trial only.
    pub insecure_skip_tls_verify: bool,
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
    /// The pod this is, if it is one.
    pub pod: Pod,
}

/// Checks everything, then starts the links under the supervisor.
pub async fn start(
    config: &AgentConfig,
    surroundings: Surroundings,
    supervisor: &Supervisor,
    health: &Health,
) -> Result<(), Problem> {
    let invalid = |message: String| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
    if config.gateways.is_empty() && config.kas.address.is_none() {
        return Err(invalid("The agent has no gateway to dial.".into())
            .advising("give it --gateway URL, or --kas-address URL for a kas"));
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
    let first_token = token()?;
    let policy = read_policy(config)?;
    let callers = callers(config, &policy)?;
    let name = config.name.clone().unwrap_or(surroundings.host);
    let mut dispatcher = Dispatcher::new(services(config, &policy, &name).await?, policy);
    if let Some(callers) = callers {
        dispatcher = dispatcher.believing(callers);
    }
    let key = EndToEnd::new(&own_key(config)?, &name, supervisor.stopping(Stage::Work)).map_err(|error| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "The agent's own key cannot be used.")
            .because(chain(&error))
    })?;
    dispatcher = dispatcher.reached_end_to_end(key);
    if let Some(file) = &config.audit.file {
        let (log, writer) = AuditLog::open(file).map_err(|error| {
            invalid(format!("The audit log {} cannot be used.", file.display())).because(chain(&error))
        })?;
        let part = health.part("audit log");
        supervisor.spawn(Stage::Upkeep, "audit log", |stop| async move {
            writer.run(stop, part).await;
            Ok(())
        });
        dispatcher = dispatcher.recording(log, config.site.clone());
    }
    let dispatcher = Arc::new(dispatcher);
    if config.policy_file.is_some() {
        let (config, governed) = (config.clone(), Arc::clone(&dispatcher));
        supervisor.spawn(Stage::Upkeep, "policy", |stop| async move {
            follow_policy(&config, &governed, stop).await;
            Ok(())
        });
    }
    let offered = dispatcher.offered();
    tracing::info!(services = ?offered, gateways = ?config.gateways, "The agent offers its services.");

    let headers = headers(config)?;
    if let Some(address) = &config.kas.address {
        let join = kas::Join {
            address: address.clone(),
            token: first_token,
            pod: surroundings.pod,
            proxies: surroundings.proxies.clone(),
            headers: headers.clone(),
            door: Door::of_links(Arc::clone(&dispatcher)),
        };
        kas::start(config, join, supervisor, health).await?;
    }
    if gateways.is_empty() {
        return Ok(());
    }
    let connector = NetConnector {
        tls: Some(Arc::new(dial::tls(config.ca_file.as_deref())?)),
        proxies: surroundings.proxies,
        headers,
        ..NetConnector::new(Arc::new(NetDialer::default()))
    };
    let links = tarbet_link::AgentConfig {
        links: config.links,
        bulk_links: config.bulk_links,
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
    let agent = Agent::new(links, Arc::new(connector), Arc::new(Door::of_links(dispatcher)), identity);
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

/// Whom the site believes about callers; nothing if it believes nobody.
fn callers(config: &AgentConfig, policy: &Policy) -> Result<Option<Callers>, Problem> {
    let invalid = |message: &str| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
    if config.issuers.is_empty() {
        if policy.names_callers() {
            return Err(invalid(
                "The policy has rules for some callers, and the agent knows nobody who vouches for callers.",
            )
            .advising("set agent.issuers to the public keys of those who sign callers' tokens"));
        }
        return Ok(None);
    }
    let site = config.site.as_ref().ok_or_else(|| {
        invalid("The agent does not know the name of its site.")
            .because("agent.issuers is set, and callers' tokens name the site they are for")
            .advising("set agent.site to the name under which the site was added")
    })?;
    let site = Subject::site(site.as_str())
        .map_err(|error| invalid("agent.site is no name of a site.").because(chain(&error)))?;
    let keys = config.issuers.iter().map(|text| {
        text.parse::<PublicKey>().map_err(|error| {
            invalid(&format!("`{text}` in agent.issuers is no public key.")).because(chain(&error))
        })
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let callers = Callers::new(site, keys);
    callers.map(Some).map_err(|error| invalid("agent.issuers cannot be used.").because(chain(&error)))
}

/// The agent's own key: the one in its file, else one for as long as this process lives.
fn own_key(config: &AgentConfig) -> Result<PrivateKey, Problem> {
    let unusable = |cause: String| {
        Problem::new(&ground::SECRET_UNREADABLE, "The agent's own key cannot be used.").because(cause)
    };
    let beside = || {
        let mut name = config.token_file.as_ref()?.as_os_str().to_owned();
        name.push(".key");
        Some(PathBuf::from(name))
    };
    let opened = match (&config.key_file, beside()) {
        (Some(file), _) => return PrivateKey::open(file).map_err(|error| unusable(chain(&error))),
        (None, Some(file)) => PrivateKey::open(&file),
        (None, None) => PrivateKey::generate(),
    };
    match opened {
        Ok(key) => Ok(key),
        // A token may lie where nothing can be written.
        Err(error @ KeyError::Save { .. }) => {
            tracing::warn!(cause = %chain(&error), "The agent's key lasts only until it stops; set agent.key_file to keep it.");
            PrivateKey::generate().map_err(|error| unusable(chain(&error)))
        }
        Err(error) => Err(unusable(chain(&error))),
    }
}

fn read_policy(config: &AgentConfig) -> Result<Policy, Problem> {
    let Some(file) = &config.policy_file else {
        // Who names a service on the agent's own command line means it to be used.
        return Ok(Policy::without_file().offering(config.offers.keys()));
    };
    let unusable = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("The policy in {} cannot be used.", file.display()))
            .because(cause)
    };
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| unusable(error.to_string()))
}

/// Looks at the policy's file again and again. A file that cannot be used changes nothing.
async fn follow_policy(config: &AgentConfig, dispatcher: &Dispatcher, stop: CancellationToken) {
    let mut timer = tokio::time::interval(POLICY_CHECK);
    let mut refused = None;
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = stop.cancelled() => return,
        }
        let read = read_policy(config).and_then(|policy| callers(config, &policy).map(|_| policy));
        match read {
            Ok(policy) => {
                refused = None;
                if dispatcher.govern(policy) {
                    tracing::info!("The site's policy has changed.");
                }
            }
            Err(problem) if refused.as_ref() != Some(&problem.cause) => {
                tracing::error!(cause = %problem.cause, problem = %problem.message, "The site's policy stays as it was.");
                refused = Some(problem.cause);
            }
            Err(_) => {}
        }
    }
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
    for (name, place) in &config.offers {
        let offered = Offered::new(name, place, config.connect_timeout).map_err(|cause| {
            Problem::new(&ground::CONFIG_INVALID, format!("The service `{name}` cannot be offered."))
                .at("start of the agent")
                .because(cause)
        })?;
        services.push(Arc::new(offered));
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
