//! A gateway: agents dial in, callers come in, and requests find their way between them.
//!
//! Five listeners, each with its own file below: agents, the API, Kubernetes clients, other
//! gateways, and (in the process around it) observability. Replicas are equal; what they share is
//! the store. Start from [`Gateway::bind`].

mod agents;
mod api;
mod callers;
mod kube;
mod private;

pub use api::{LinkView, NewSite, NewToken, SiteView, TokenView};

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_identity::jwt::{Verifier, hmac_secret_from_file, kas};
use tarbet_identity::{Secret, Token, TokenKind};
use tarbet_link::handshake::Credential;
use tarbet_store::Store;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Health, Metrics, Problem, Stage, Supervisor};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::GatewayConfig;
use crate::dial;
use crate::directory::{Directory, Principal};
use crate::listen::Listener;
use crate::local::LocalLinks;
use crate::metrics::GatewayMetrics;
use crate::peers::Peers;
use crate::registry::{Registry, Rhythm};
use crate::route::Router;

/// What all listeners of a gateway share.
struct Hub {
    name: String,
    config: GatewayConfig,
    directory: Directory,
    local: LocalLinks,
    registry: Option<Registry>,
    router: Router,
    /// Judges other gateways; without a shared secret there are none.
    colleagues: Option<Verifier>,
    metrics: GatewayMetrics,
    /// No new requests or links: the gateway is leaving.
    leaving: CancellationToken,
}

/// A gateway whose listeners are bound and whose tasks are not started yet.
pub struct Gateway {
    hub: Arc<Hub>,
    agents: Listener,
    api: Listener,
    kubernetes: Listener,
    private: Listener,
}

/// Where the listeners ended up, for ports that were chosen by the system.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Agents.
    pub agents: SocketAddr,
    /// API.
    pub api: SocketAddr,
    /// Kubernetes clients.
    pub kubernetes: SocketAddr,
    /// Other gateways.
    pub private: SocketAddr,
}

impl Gateway {
    /// Checks secrets and certificates, binds every listener, and prepares the store.
    ///
    /// `replicated` says that other gateways share the store.
    pub async fn bind(
        config: GatewayConfig,
        store: &Store,
        replicated: bool,
        metrics: &Metrics,
    ) -> Result<Self, Problem> {
        let name = config.name.clone().unwrap_or_else(|| format!("gateway-{}", &Uuid::new_v4().simple().to_string()[..8]));
        let secret = config.private.secret_file.as_ref().map(hmac_secret_from_file).transpose().map_err(|error| {
            Problem::new(&ground::SECRET_UNREADABLE, "The secret that gateways share cannot be used.").because(chain(&error))
        })?;
        if replicated && secret.is_none() {
            return Err(Problem::new(&ground::CONFIG_INVALID, "Gateways that share a store need gateway.private.secret_file.")
                .because("without it they cannot prove to each other who they are")
                .advising("head -c 32 /dev/urandom | base64 > FILE, and give the same file to every gateway"));
        }
        let colleagues = secret.clone().map(kas::private_api).transpose().map_err(|error| {
            Problem::new(&ground::SECRET_UNREADABLE, "The secret that gateways share cannot be used.").because(chain(&error))
        })?;

        let agents = Listener::bind("agents", config.agents.listen, config.agents.tls.as_ref(), &["h2", "http/1.1"]).await?;
        let api = Listener::bind("api", config.api.listen, config.api.tls.as_ref(), &["h2", "http/1.1"]).await?;
        let kube = &config.kubernetes;
        let kubernetes = Listener::bind("kubernetes", kube.listen, kube.tls.as_ref(), &["h2", "http/1.1"]).await?;
        let private = Listener::bind("private", config.private.listen, config.private.tls.as_ref(), &["h2"]).await?;

        let directory = Directory::new(store).map_err(internal)?;
        if let Some(file) = &config.admin_token_file {
            first_admin(&directory, file).await?;
        }
        let local = LocalLinks::default();
        let registry = if replicated {
            let url = advertised(&config, &private)?;
            let registry = Registry::new(store, &name, &url, local.clone(), Rhythm::default(), Timestamp::now());
            Some(registry.map_err(internal)?)
        } else {
            None
        };
        let peers = peers(&config, &name, secret.map(KasSigner::private_api))?;
        let router = Router::new(local.clone(), registry.clone(), peers);
        let metrics = GatewayMetrics::register(metrics, &local);
        let leaving = CancellationToken::new();
        let hub = Arc::new(Hub { name, config, directory, local, registry, router, colleagues, metrics, leaving });
        Ok(Self { hub, agents, api, kubernetes, private })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            agents: self.agents.address(),
            api: self.api.address(),
            kubernetes: self.kubernetes.address(),
            private: self.private.address(),
        }
    }

    /// The API as a service of this process, with the same callers' tokens as on its listener.
    pub fn api(&self) -> axum::Router {
        api::router(Arc::clone(&self.hub))
    }

    /// Starts everything under the supervisor.
    pub fn start(self, supervisor: &Supervisor, health: &Health) {
        let Self { hub, agents, api, kubernetes, private } = self;
        let part = health.part("gateway");
        part.ready();
        let requests = TaskTracker::new();
        let links = TaskTracker::new();

        let serving = Arc::clone(&hub);
        intake(supervisor, "agent listener", agents, &links, move |stream, peer| {
            agents::serve(Arc::clone(&serving), stream, peer)
        });
        let serving = Arc::clone(&hub);
        intake(supervisor, "api listener", api, &requests, move |stream, peer| api::serve(Arc::clone(&serving), stream, peer));
        let serving = Arc::clone(&hub);
        intake(supervisor, "kubernetes listener", kubernetes, &requests, move |stream, peer| {
            kube::serve(Arc::clone(&serving), stream, peer)
        });
        let serving = Arc::clone(&hub);
        intake(supervisor, "private listener", private, &requests, move |stream, peer| {
            private::serve(Arc::clone(&serving), stream, peer)
        });

        let leaving = Arc::clone(&hub);
        supervisor.spawn(Stage::Intake, "readiness", |stop| async move {
            stop.cancelled().await;
            part.draining();
            leaving.leaving.cancel();
            Ok(())
        });
        let draining = Arc::clone(&hub);
        supervisor.spawn(Stage::Work, "links", |stop| async move {
            agents::recheck(&draining, stop).await;
            // Callers first: what runs may finish. Then the links, which nobody needs any more.
            requests.close();
            requests.wait().await;
            draining.local.all().iter().for_each(|held| held.way.drain());
            links.close();
            links.wait().await;
            Ok(())
        });
        if let Some(registry) = hub.registry.clone() {
            let part = health.part("registry");
            supervisor.spawn(Stage::Upkeep, "registry", |stop| async move {
                registry.keep(stop, part).await;
                Ok(())
            });
        }
    }
}

fn intake<S, F>(supervisor: &Supervisor, name: &'static str, listener: Listener, tasks: &TaskTracker, serve: S)
where
    S: Fn(tarbet_link::ByteStream, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = tasks.clone();
    supervisor.spawn(Stage::Intake, name, |stop| async move {
        listener.run(stop, tasks, serve).await;
        Ok(())
    });
}

fn peers(config: &GatewayConfig, name: &str, signer: Option<KasSigner>) -> Result<Peers, Problem> {
    let connect = dial::to_gateways(config.private.ca_file.as_deref())?;
    let name = name.to_owned();
    let introduce = Arc::new(move || {
        let token = signer.as_ref().map(|signer| signer.token(Timestamp::now()));
        let credential = token.as_ref().map_or_else(Credential::default, |token| Credential::new(token.expose()));
        (name.clone(), credential)
    });
    Ok(Peers::new(connect, introduce))
}

/// The URL that other gateways are told.
fn advertised(config: &GatewayConfig, private: &Listener) -> Result<String, Problem> {
    if let Some(url) = &config.private.advertise {
        return Ok(url.clone());
    }
    let address = private.address();
    if address.ip().is_unspecified() {
        return Err(Problem::new(&ground::CONFIG_INVALID, "gateway.private.advertise is missing.")
            .because(format!("the private listener is bound to {address}, which no other gateway can dial"))
            .advising("set it to the URL under which the other gateways reach this one, such as grpc://10.0.0.5:8155"));
    }
    let scheme = if private.is_tls() { "grpcs" } else { "grpc" };
    Ok(format!("{scheme}://{address}"))
}

/// Makes sure that somebody can administer a new installation: the bearer of the token in `file`.
async fn first_admin(directory: &Directory, file: &std::path::Path) -> Result<(), Problem> {
    let unusable = |cause: String| {
        Problem::new(&ground::SECRET_UNREADABLE, format!("The administrator's token in {} cannot be used.", file.display()))
            .because(cause)
    };
    let token = if file.exists() {
        let secret = Secret::from_file(file).map_err(|error| unusable(chain(&error)))?;
        Token::parse(secret.expose()).map_err(|error| unusable(chain(&error)))?
    } else {
        let token = Token::generate(TokenKind::User).map_err(|error| unusable(chain(&error)))?;
        token.text().create_file(file).map_err(|error| unusable(error.to_string()))?;
        tracing::info!(file = %file.display(), "Made a token for the first administrator.");
        token
    };
    let admin = Principal { name: "admin".into(), admin: true, roles: std::collections::BTreeMap::new() };
    directory.ensure_principal(&admin, &token, Timestamp::now()).await.map_err(|error| error.problem())
}

fn internal(error: impl std::error::Error) -> Problem {
    Problem::new(&ground::INTERNAL, "The gateway cannot use its store.").because(chain(&error))
}
