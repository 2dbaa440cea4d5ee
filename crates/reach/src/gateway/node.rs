//! A gateway without its listeners: everything that happens to a connection once it is there.
//!
//! [`Gateway`](super::Gateway) puts listeners in front of it; a simulation hands it streams.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::{ArcSwap, Guard};
use jiff::Timestamp;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_identity::jwt::{self, Verifier};
use tarbet_link::ByteStream;
use tarbet_link::handshake::{Credential, Refusal, RefusalCode};
use tarbet_store::Store;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Metrics, Problem};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::api::doors;
use super::kas::{Beside, Counted, Kas};
use super::module::Module;
use super::ports::Port;
use super::{Secrets, age, agents, api, internal, kas, kube, ports, private};
use crate::audit::AuditLog;
use crate::config::GatewayConfig;
use crate::dial::Trust;
use crate::directory::Directory;
use crate::known::Known;
use crate::listen::Origin;
use crate::local::LocalLinks;
use crate::metrics::GatewayMetrics;
use crate::peers::{Connect, Peers};
use crate::quota::Quotas;
use crate::registry::{Registry, Rhythm};
use crate::route::{self, Router};
use crate::story::Stories;
use crate::vouch::Oidc;

/// What all connections of a gateway share.
pub(super) struct Hub {
    pub(super) name: String,
    /// As it is now: parts of it may change while the gateway runs.
    config: ArcSwap<GatewayConfig>,
    pub(super) known: Known,
    pub(super) local: LocalLinks,
    pub(super) registry: Option<Registry>,
    pub(super) peers: Peers,
    pub(super) router: Router,
    pub(super) modules: RwLock<Vec<Arc<dyn Module>>>,
    /// Identity providers, whose keys somebody has to keep.
    pub(super) issuers: Vec<Arc<Oidc>>,
    pub(super) quotas: Quotas,
    pub(super) stories: Stories,
    pub(super) audit: AuditLog,
    /// Judges other gateways; without a shared secret there are none.
    pub(super) colleagues: Option<Verifier>,
    pub(super) metrics: GatewayMetrics,
    /// Agents and callers of the kas protocol.
    pub(super) kas: Kas,
    /// Callers' connections and what they left running.
    pub(super) requests: TaskTracker,
    /// No new requests or links: the gateway is leaving.
    pub(super) leaving: CancellationToken,
}

impl Hub {
    /// The configuration of the moment.
    pub(super) fn config(&self) -> Guard<Arc<GatewayConfig>> {
        self.config.load()
    }
}

/// How a gateway is known to the others it shares a store with.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Where they reach its private listener.
    pub url: String,
    /// How the registry keeps time.
    pub rhythm: Rhythm,
}

/// A gateway without its listeners. Cheap to clone.
#[derive(Clone)]
pub struct Node(Arc<Hub>);

impl Node {
    /// A gateway over this store. It reaches others with `connect` and proves itself to them with
    /// `secrets`.
    pub fn new(
        config: GatewayConfig,
        store: &Store,
        sharing: Option<Sharing>,
        secrets: &Secrets,
        connect: Connect,
        audit: AuditLog,
        metrics: &Metrics,
    ) -> Result<Self, Problem> {
        let made_up = || format!("gateway-{}", &Uuid::new_v4().simple().to_string()[..8]);
        let name = config.name.clone().unwrap_or_else(made_up);
        let secret = secrets.gateways.clone();
        let colleagues = secret.clone().map(jwt::kas::private_api).transpose().map_err(|error| {
            Problem::new(&ground::SECRET_UNREADABLE, "The secret that gateways share cannot be used.")
                .because(chain(&error))
        })?;
        let local = LocalLinks::default();
        let register = |sharing: Sharing| {
            // Without a host it is of no use to others.
            let agents = config.agents_url.clone().filter(|url| !doors::is_everywhere(url));
            Registry::new(store, &name, &sharing.url, local.clone(), sharing.rhythm, Timestamp::now())
                .map(|registry| registry.dialled_at(agents))
        };
        let registry = sharing.map(register).transpose().map_err(internal)?;
        let leaving = CancellationToken::new();
        let quotas = Quotas::new(config.quotas.clone());
        let issuers: Vec<_> = config.oidc.iter().cloned().map(Oidc::new).map(Arc::new).collect();
        let directory = Directory::new(store).map_err(internal)?;
        let known = Known::new(directory, config.store_grace, issuers.clone());
        let beside = Beside::new(&config, secret.as_ref(), &known, &local, &leaving)?;
        let peers = peers(connect, &name, secret.map(KasSigner::private_api));
        let others = beside.clone().map(|beside| Arc::new(beside) as Arc<dyn route::Beside>);
        let router =
            Router::new(local.clone(), registry.clone(), peers.clone(), leaving.clone()).beside(others);
        let metrics = GatewayMetrics::register(metrics, &local, &quotas);
        let counted = Counted { local: local.clone(), quotas: quotas.clone(), metrics: metrics.clone() };
        let process = registry.as_ref().map(|registry| registry.own_id().to_owned());
        let (kas, agents) = Kas::new(&config, secrets, &known, store, beside, counted, process)?;
        let hub = Arc::new(Hub {
            known,
            kas,
            metrics,
            stories: Stories::new(config.remembered_requests),
            requests: TaskTracker::new(),
            name,
            config: ArcSwap::from_pointee(config),
            local,
            registry,
            peers,
            router,
            issuers,
            modules: RwLock::default(),
            quotas,
            audit,
            colleagues,
            leaving,
        });
        agents.follow(&hub);
        Ok(Self(hub))
    }

    /// Serves a connection to the agents' listener.
    pub async fn agent(self, stream: ByteStream, peer: SocketAddr) {
        agents::serve(self.0, stream, peer).await;
    }

    /// Serves a connection to the API listener.
    pub async fn caller(self, stream: ByteStream, peer: impl Into<Origin>) {
        api::serve(self.0, stream, peer.into()).await;
    }

    /// The API as a service of this process.
    pub fn api(&self) -> axum::Router {
        api::router(Arc::clone(&self.0))
    }

    /// Its name among gateways.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The record of who asked for what.
    pub fn audit(&self) -> AuditLog {
        self.0.audit.clone()
    }

    /// Serves a connection to the Kubernetes listener.
    pub async fn kubernetes(self, stream: ByteStream, peer: impl Into<Origin>) {
        kube::serve(self.0, stream, peer.into()).await;
    }

    /// Serves a connection to the private listener.
    pub async fn gateway(self, stream: ByteStream, peer: SocketAddr) {
        private::serve(self.0, stream, peer).await;
    }

    /// Serves a connection to a port that leads to a host behind a site.
    pub(super) async fn port(self, port: Arc<Port>, stream: ByteStream, peer: SocketAddr) {
        ports::serve(self.0, port, stream, peer).await;
    }

    /// Asks links that have grown old to move, until `stop`.
    pub async fn retire(&self, stop: CancellationToken) {
        age::retire(&self.0, stop).await;
    }

    /// Takes over what may change while a gateway runs, besides its certificates.
    pub fn reload(&self, config: &GatewayConfig) {
        if *self.0.quotas.config() != config.quotas {
            tracing::info!(quotas = ?config.quotas, "The limits have changed.");
            self.0.quotas.replace(config.quotas.clone());
        }
        let next = GatewayConfig {
            quotas: config.quotas.clone(),
            max_wait: config.max_wait,
            max_connection_age: config.max_connection_age,
            certificates: config.certificates.clone(),
            ..(**self.0.config()).clone()
        };
        self.0.config.store(Arc::new(next));
    }

    /// Dials replicas of a kas with this trust from now on.
    pub(super) fn trust(&self, trust: &Trust) {
        self.0.kas.trust(trust);
    }

    /// The configuration in use.
    pub(super) fn config(&self) -> Arc<GatewayConfig> {
        self.0.config.load_full()
    }

    /// Keeps the keys of identity providers as these have them, until `stop`.
    pub async fn keep_keys(&self, stop: CancellationToken) {
        futures::future::join_all(self.0.issuers.iter().map(|issuer| issuer.keep(stop.clone()))).await;
        stop.cancelled().await;
    }

    /// Adds an API of its own to the API listener.
    pub fn mount(&self, module: Arc<dyn Module>) {
        self.0.modules.write().unwrap_or_else(PoisonError::into_inner).push(module);
    }

    /// Ends the links whose tokens are no longer good, until `stop`.
    pub async fn recheck(&self, stop: CancellationToken) {
        agents::recheck(&self.0, stop).await;
    }

    /// The registry, if it has one.
    pub fn registry(&self) -> Option<Registry> {
        self.0.registry.clone()
    }

    /// The links it holds.
    pub fn links(&self) -> &LocalLinks {
        &self.0.local
    }

    /// The connections of callers and of other gateways: spawn them here, so that leaving waits for
    /// them.
    pub fn requests(&self) -> &TaskTracker {
        &self.0.requests
    }

    /// Leaves in good order; `links` are the tasks that serve agents. First nobody is sent here any
    /// more and agents are asked to go elsewhere, then what runs may finish, then the links end.
    pub async fn leave(&self, links: TaskTracker) {
        let Hub { leaving, registry, local, requests, kas, .. } = &*self.0;
        leaving.cancel();
        if let Some(registry) = registry {
            registry.leave().await;
        }
        kas.leave().await;
        local.all().iter().for_each(|held| held.way.drain());
        requests.close();
        requests.wait().await;
        // Agents that know no other gateway are still here.
        let refusal = || Refusal::new(RefusalCode::Draining, "This gateway is shutting down.");
        local.all().iter().for_each(|held| held.way.dismiss(refusal()));
        links.close();
        links.wait().await;
    }

    /// The last words of a gateway that has left: agents of the kas protocol that are at no other one are no
    /// longer listed as connected.
    pub async fn settle(&self) {
        kas::settle(&self.0).await;
    }
}

fn peers(connect: Connect, name: &str, signer: Option<KasSigner>) -> Peers {
    let name = name.to_owned();
    let introduce = Arc::new(move || {
        let token = signer.as_ref().map(|signer| signer.token(Timestamp::now()));
        let credential =
            token.as_ref().map_or_else(Credential::default, |token| Credential::new(token.expose()));
        (name.clone(), credential)
    });
    Peers::new(connect, introduce)
}
