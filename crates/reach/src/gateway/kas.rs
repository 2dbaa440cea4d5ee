//! Agents and callers of the kas protocol, on the same listeners as everybody else.
//!
//! All tunnels of one agent together are one way to its site: it appears among the links of this
//! gateway with the first tunnel and leaves with the last, so that routing, waiting, the registry and
//! other gateways treat it like a native link. [`host`] says who an agent is, [`callers`] who calls.

mod attendance;
mod beside;
pub(super) mod callers;
mod calls;
pub(super) mod cors;
mod host;
mod limit;
pub(super) mod private;
mod seats;
mod services;
mod tracker;
mod way;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tarbet_identity::jwt::kas::{IssuerCheck, KasSigner, external_api};
use tarbet_identity::jwt::{SharedSecrets, Verifier};
use tarbet_link::ByteStream;
use tarbet_store::Store;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;

use self::cors::Origin;
pub(super) use self::host::Counted;
use self::host::Host;
use self::tracker::Tracker;
use self::way::KasWay;
use super::{Hub, Secrets};
use crate::config::{GatewayConfig, GitlabSection, KasSection};
use crate::dial::Trust;
use crate::kas::gitlab::{GitlabClient, GitlabSettings};
use crate::kas::server::{Carrier, KasServer, ServerConfig};
use crate::kas::{Agent, PoolConfig, PoolEvent, Prefix, TunnelPool};
use crate::known::Known;
use crate::local::{Held, LinkId};
use crate::names::SiteName;

pub(super) use attendance::settle;
pub(super) use beside::Beside;
pub(super) use calls::to_agent;
pub(super) use services::routes;

/// An agent opens its next tunnel right after each call, so a gap this short means nothing.
const GAP: Duration = Duration::from_secs(1);
/// How the gateway is called in `Via`.
const PRODUCT: &str = concat!("tarbet-gateway/", env!("CARGO_PKG_VERSION"));
/// The usual issuer of GitLab's tokens.
const GITLAB: &str = "gitlab";
/// The issuer of gateways' tokens, which are for GitLab and for each other.
const OURSELVES: &str = "gitlab-kas";

/// What a gateway keeps for this protocol.
pub(super) struct Kas {
    prefix: Prefix,
    url_path_prefix: String,
    pool: TunnelPool,
    server: KasServer,
    tracker: Tracker,
    gitlab: Option<Arc<GitlabClient>>,
    /// Where pages may come from that use a person's cookie.
    origin: Option<Origin>,
    /// Who may call the gRPC services on the API listener; nobody without a secret.
    callers: Option<ApiCallers>,
    /// Replicas of the original that serve the same agents.
    beside: Option<Beside>,
}

/// Who may call the gRPC services on the API listener.
struct ApiCallers {
    verifier: Verifier,
    /// Whether a GitLab is behind this: it calls itself by the name of its host, of which it may have
    /// several, so only the gateways' own name is left out.
    of_gitlab: bool,
}

impl ApiCallers {
    fn takes(&self, issuer: Option<&str>) -> bool {
        if self.of_gitlab { issuer != Some(OURSELVES) } else { issuer == Some(GITLAB) }
    }
}

impl Kas {
    /// Checks what is configured; the other half must be told to follow the agents.
    pub(super) fn new(
        config: &GatewayConfig,
        secrets: &Secrets,
        known: &Known,
        store: &Store,
        beside: Option<Beside>,
        counted: Counted,
        process: Option<String>,
    ) -> Result<(Self, Arrivals), Problem> {
        let section = &config.kas;
        let (send, arrivals) = mpsc::unbounded_channel();
        let pool_config = PoolConfig { gone_after: GAP, ..PoolConfig::default() };
        let pool = TunnelPool::new(pool_config, move |event| {
            // Nobody listens any more once the gateway is gone.
            let _ = send.send(event);
        });
        let gitlab = section.gitlab.as_ref().zip(secrets.gitlab.clone());
        let gitlab = gitlab.map(|(section, secret)| client(section, secret)).transpose()?.map(Arc::new);
        let shared = beside.as_ref().map(Beside::book);
        let tracker = Tracker::new(store, shared, process).map_err(super::internal)?;
        let host = Host::new(section, known.clone(), gitlab.clone(), tracker.clone(), counted);
        let server_config = ServerConfig {
            prefix: section.prefix,
            max_connection_age: section.max_connection_age,
            recheck_every: config.recheck,
            ..ServerConfig::default()
        };
        let kas = Self {
            prefix: section.prefix,
            url_path_prefix: section.path_prefix(),
            server: KasServer::new(server_config, pool.clone(), Arc::new(host)),
            pool,
            tracker,
            gitlab,
            origin: section.gitlab.as_ref().and_then(Origin::of),
            callers: callers_of_api(section, secrets.api.clone())?,
            beside,
        };
        Ok((kas, Arrivals(arrivals)))
    }

    /// Trusts what `trust` does when replicas of the original are dialled.
    pub(super) fn trust(&self, trust: &Trust) {
        self.beside.iter().for_each(|beside| beside.trust(trust));
    }

    /// Takes back what other replicas were told of this gateway, which is leaving.
    pub(super) async fn leave(&self) {
        if let Some(beside) = &self.beside {
            beside.leave().await;
        }
        // Replicas that wait here for a tunnel look elsewhere.
        self.pool.close();
    }

    /// Serves a connection of an agent until it ends or the gateway leaves.
    pub(super) async fn serve(&self, stream: ByteStream, carrier: Carrier, leaving: &CancellationToken) {
        self.server.serve(stream, carrier, leaving.clone()).await;
    }
}

/// The site of an agent that GitLab knows by this number.
fn gitlab_site(agent: i64) -> Option<SiteName> {
    format!("gitlab-{agent}").parse().ok()
}

/// How all tunnels of an agent together are called among the links.
fn described(agent: i64) -> String {
    format!("agentk {agent}")
}

/// Agents that come and go.
pub(super) struct Arrivals(UnboundedReceiver<PoolEvent>);

/// An agent that is there.
struct Present {
    held: Arc<Held>,
    gone: CancellationToken,
    announced: JoinHandle<()>,
}

impl Arrivals {
    /// Makes agents links of this gateway while it lives.
    pub(super) fn follow(self, hub: &Arc<Hub>) {
        let attendance = attendance::keep(hub);
        let (Self(mut arrivals), hub) = (self, Arc::downgrade(hub));
        tokio::spawn(async move {
            let mut present = HashMap::new();
            while let Some(event) = arrivals.recv().await {
                let Some(hub) = Weak::upgrade(&hub) else { return };
                match event {
                    PoolEvent::Connected(agent) => {
                        if let Some(arrived) = arrive(&hub, &agent) {
                            present.insert(agent.id, arrived);
                            hub.kas.beside.iter().for_each(|beside| beside.holds(agent.id));
                        }
                        attendance.came(agent.id);
                    }
                    PoolEvent::Gone(agent) => {
                        if let Some(arrived) = present.remove(&agent.id) {
                            let withdrawn = leave(&hub, arrived);
                            let told = hub.kas.beside.as_ref().map(|beside| beside.lost(agent.id));
                            attendance.went(agent, withdrawn, told);
                        }
                    }
                }
            }
        });
    }
}

fn arrive(hub: &Arc<Hub>, agent: &Agent) -> Option<Present> {
    let site = agent.name.parse().ok()?;
    let gone = CancellationToken::new();
    let way = KasWay::new(hub, agent.id, gone.clone());
    let held = Arc::new(Held {
        id: LinkId::fresh(),
        site,
        services: vec![super::kube::SERVICE.to_owned()],
        agent: described(agent.id),
        key: None,
        token_id: None,
        since: Timestamp::now(),
        way: Arc::new(way),
    });
    tracing::info!(site = %held.site, link = %held.id, agent = agent.id, "An agent of the kas protocol connected.");
    hub.local.add(Arc::clone(&held));
    hub.metrics.links_opened.inc();
    let (registry, announcing) = (hub.registry.clone(), Arc::clone(&held));
    let announced = tokio::spawn(async move {
        if let Some(registry) = registry {
            registry.announce(&announcing).await;
        }
    });
    Some(Present { held, gone, announced })
}

/// Takes the way back; what this gives is done when the registry has heard of it.
fn leave(hub: &Arc<Hub>, present: Present) -> Option<JoinHandle<()>> {
    let Present { held, gone, announced } = present;
    hub.local.remove(held.id);
    gone.cancel();
    tracing::info!(site = %held.site, link = %held.id, "An agent of the kas protocol left.");
    let registry = hub.registry.clone()?;
    Some(tokio::spawn(async move {
        // What is still being written must not come after.
        let _ = announced.await;
        registry.withdraw(&held).await;
    }))
}

fn client(section: &GitlabSection, secret: SharedSecrets) -> Result<GitlabClient, Problem> {
    let invalid = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, "GitLab cannot be asked with these settings.").because(cause)
    };
    let address = Url::parse(&section.address).map_err(|error| invalid(error.to_string()))?;
    let authorities = match &section.ca_file {
        None => Vec::new(),
        Some(file) => std::fs::read(file).map_err(|error| invalid(format!("{}: {error}", file.display())))?,
    };
    let signer = KasSigner::gitlab(secret);
    let settings = GitlabSettings {
        authorities,
        good: section.cache,
        bad: section.refusal_cache,
        ..GitlabSettings::new(address, signer)
    };
    GitlabClient::new(settings).map_err(|error| invalid(chain(&error)))
}

fn callers_of_api(
    section: &KasSection,
    secret: Option<SharedSecrets>,
) -> Result<Option<ApiCallers>, Problem> {
    let Some(secret) = secret else { return Ok(None) };
    // The issuer is looked at afterwards: there may be several.
    let verifier = external_api(secret, IssuerCheck::Any).map_err(|error| {
        Problem::new(&ground::SECRET_UNREADABLE, "The secret of the API listener cannot be used.")
            .because(chain(&error))
    })?;
    Ok(Some(ApiCallers { verifier, of_gitlab: section.gitlab.is_some() }))
}
