//! A gateway: agents dial in, callers come in, and requests find their way between them.
//!
//! Five listeners, each with its own file below: agents, the API, Kubernetes clients, other
//! gateways, and (in the process around it) observability. Replicas are equal; what they share is
//! the store. Start from [`Gateway::bind`].

mod age;
mod agents;
mod api;
mod callers;
mod kas;
pub(crate) mod kube;
mod leaving;
mod module;
mod node;
mod ports;
mod private;
mod reload;
mod secrets;
mod ticket;

pub(crate) use leaving::until_leaving;

pub use api::{LinkView, LinkVitals, NewSite, NewToken, SiteView, TokenView};
pub use module::{Asker, Module};
pub use node::{Node, Sharing};
pub use ports::PortConfig;
pub use reload::Reloader;
pub use secrets::Secrets;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tarbet_identity::tls::Turns;
use tarbet_identity::{Secret, Token, TokenKind};
use tarbet_store::Store;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Health, Metrics, Problem, Stage, Supervisor};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use node::Hub;
use ports::Port;

use crate::audit::{AuditLog, Writer};
use crate::config::GatewayConfig;
use crate::dial::Trust;
use crate::directory::{Directory, Principal};
use crate::listen::{Listener, Origin};
use crate::metrics::register_handshakes;
use crate::registry::Rhythm;

/// Agents and callers come with HTTP/2, or with HTTP/1.1 and perhaps a WebSocket.
const BOTH: &[&str] = &["h2", "http/1.1"];

/// A gateway whose listeners are bound and whose tasks are not started yet.
pub struct Gateway {
    node: Node,
    agents: Listener,
    api: Listener,
    /// Absent if Kubernetes clients are not let in.
    kubernetes: Option<Listener>,
    private: Listener,
    ports: Vec<(Listener, Arc<Port>)>,
    audit: Option<Writer>,
    trust: Trust,
    secrets: Secrets,
}

/// Where the listeners ended up, for ports that were chosen by the system.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Agents.
    pub agents: SocketAddr,
    /// API.
    pub api: SocketAddr,
    /// Kubernetes clients, if they are let in.
    pub kubernetes: Option<SocketAddr>,
    /// Other gateways.
    pub private: SocketAddr,
}

impl Gateway {
    /// Checks secrets and certificates, binds every listener, and prepares the store.
    ///
    /// `replicated` says that other gateways share the store.
    pub async fn bind(
        mut config: GatewayConfig,
        store: &Store,
        replicated: bool,
        metrics: &Metrics,
    ) -> Result<Self, Problem> {
        let secrets = Secrets::read(&config)?;
        if replicated && secrets.gateways.is_none() {
            return Err(Problem::new(
                &ground::CONFIG_INVALID,
                "Gateways that share a store need gateway.private.secret_file.",
            )
            .because("without it they cannot prove to each other who they are")
            .advising("head -c 32 /dev/urandom | base64 > FILE, and give the same file to every gateway"));
        }
        let (audit, writer) = match &config.audit.file {
            None => (AuditLog::none(), None),
            Some(file) => {
                let (log, writer) = AuditLog::open(file).map_err(|error| {
                    Problem::new(
                        &ground::CONFIG_INVALID,
                        format!("The audit log {} cannot be used.", file.display()),
                    )
                    .because(chain(&error))
                })?;
                (log, Some(writer))
            }
        };

        let turns = Turns::new(config.handshakes);
        register_handshakes(metrics, &turns);
        warn_of_gaps(&config);
        let agents =
            Listener::bind("agents", config.agents.place(), config.agents.tls.as_ref(), BOTH).await?;
        let agents = agents.in_turn(turns).at_most(config.agents.max_connections);
        let scheme = if agents.is_tls() { "grpcs" } else { "grpc" };
        if !agents.is_socket() {
            config.agents_url.get_or_insert_with(|| format!("{scheme}://{}", agents.address()));
        }
        let api = Listener::bind("api", config.api.place(), config.api.tls.as_ref(), BOTH).await?;
        let api = api.at_most(config.api.max_connections);
        let kube = &config.kubernetes;
        let kubernetes = if config.serve_kubernetes {
            let listener = Listener::bind("kubernetes", kube.place(), kube.tls.as_ref(), BOTH).await?;
            Some(listener.at_most(kube.max_connections))
        } else {
            None
        };
        // Our own gateways dial as agents do, replicas of a kas with HTTP/2.
        let private =
            Listener::bind("private", config.private.place(), config.private.tls.as_ref(), BOTH).await?;
        let private = private.at_most(config.private.max_connections);

        let mut ports = Vec::new();
        for port in &config.ports {
            let leads = Port::new(port).map_err(|cause| {
                Problem::new(&ground::CONFIG_INVALID, "A port leads nowhere.").because(cause)
            })?;
            ports.push((Listener::bind("port", port.listen, None, &[]).await?, Arc::new(leads)));
        }

        let directory = Directory::new(store).map_err(internal)?;
        if let Some(file) = &config.admin_token_file {
            first_admin(&directory, file).await?;
        }
        if replicated || config.kas.beside.is_some() {
            config.private.advertise = Some(advertised(&config, &private)?);
        }
        let own = config.private.advertise.clone().filter(|_| replicated);
        let sharing = own.map(|url| Sharing { url, rhythm: Rhythm::default() });
        let trust = Trust::new(config.private.ca_file.as_deref(), config.private.tls_server_name.as_deref())?;
        let node = Node::new(config, store, sharing, &secrets, trust.dial(), audit, metrics)?;
        Ok(Self { node, agents, api, kubernetes, private, ports, audit: writer, trust, secrets })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            agents: self.agents.address(),
            api: self.api.address(),
            kubernetes: self.kubernetes.as_ref().map(Listener::address),
            private: self.private.address(),
        }
    }

    /// Where the ports that lead to sites listen, in the order of the configuration.
    pub fn ports(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|(listener, _)| listener.address()).collect()
    }

    /// The gateway itself, without its listeners.
    pub fn node(&self) -> Node {
        self.node.clone()
    }

    /// Takes over a configuration that is read again while the gateway runs.
    pub fn reloader(&self) -> Reloader {
        let listeners = [Some(&self.agents), Some(&self.api), self.kubernetes.as_ref(), Some(&self.private)];
        let certificates = listeners.into_iter().flatten().filter_map(Listener::certificates);
        Reloader::new(self.node.clone(), certificates.collect(), self.trust.clone(), self.secrets.clone())
    }

    /// The API as a service of this process, with the same callers' tokens as on its listener.
    pub fn api(&self) -> axum::Router {
        self.node.api()
    }

    /// Its name among gateways.
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// The record of who asked for what, for those beside the gateway who let people change things.
    pub fn audit(&self) -> AuditLog {
        self.node.audit()
    }

    /// Starts everything under the supervisor.
    pub fn start(self, supervisor: &Supervisor, health: &Health) {
        let Self { node, agents, api, kubernetes, private, ports, audit, trust: _, secrets } = self;
        let part = health.part("gateway");
        part.ready();
        let requests = node.requests().clone();
        let links = TaskTracker::new();
        let grace = node.config().listen_grace;

        let serving = node.clone();
        intake(supervisor, "agent listener", agents, grace, &links, move |stream, peer| {
            serving.clone().agent(stream, peer.address)
        });
        let serving = node.clone();
        intake(supervisor, "api listener", api, grace, &requests, move |stream, peer| {
            serving.clone().caller(stream, peer)
        });
        if let Some(kubernetes) = kubernetes {
            let serving = node.clone();
            intake(supervisor, "kubernetes listener", kubernetes, grace, &requests, move |stream, peer| {
                serving.clone().kubernetes(stream, peer)
            });
        }
        let serving = node.clone();
        intake(supervisor, "private listener", private, grace, &requests, move |stream, peer| {
            serving.clone().gateway(stream, peer.address)
        });
        for (listener, port) in ports {
            let serving = node.clone();
            intake(supervisor, "port listener", listener, grace, &requests, move |stream, peer| {
                serving.clone().port(Arc::clone(&port), stream, peer.address)
            });
        }

        // Held to the very end: a part that is dropped is no longer missed by the readiness probe.
        let leaving = supervisor.stopping(Stage::Intake);
        supervisor.spawn(Stage::Observe, "readiness", |stop| async move {
            leaving.cancelled().await;
            part.draining();
            stop.cancelled().await;
            Ok(())
        });
        let working = node.clone();
        supervisor.spawn(Stage::Work, "links", |stop| async move {
            working.recheck(stop).await;
            working.leave(links).await;
            Ok(())
        });
        let ageing = node.clone();
        supervisor.spawn(Stage::Work, "age of links", |stop| async move {
            ageing.retire(stop).await;
            Ok(())
        });
        let keeping = node.clone();
        supervisor.spawn(Stage::Upkeep, "keys of issuers", |stop| async move {
            keeping.keep_keys(stop).await;
            Ok(())
        });
        let files = (*node.config()).clone();
        supervisor.spawn(Stage::Upkeep, "shared secrets", |stop| async move {
            stop.run_until_cancelled(secrets.follow(files)).await;
            Ok(())
        });
        let settling = node.clone();
        supervisor.spawn(Stage::Upkeep, "connected agents", |stop| async move {
            stop.cancelled().await;
            settling.settle().await;
            Ok(())
        });
        if let Some(registry) = node.registry() {
            let part = health.part("registry");
            supervisor.spawn(Stage::Upkeep, "registry", |stop| async move {
                registry.keep(stop, part).await;
                Ok(())
            });
        }
        if let Some(writer) = audit {
            let part = health.part("audit log");
            supervisor.spawn(Stage::Upkeep, "audit log", |stop| async move {
                writer.run(stop, part).await;
                Ok(())
            });
        }
    }
}

fn intake<S, F>(
    supervisor: &Supervisor,
    name: &'static str,
    listener: Listener,
    grace: Duration,
    tasks: &TaskTracker,
    serve: S,
) where
    S: Fn(tarbet_link::ByteStream, Origin) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = tasks.clone();
    supervisor.spawn(Stage::Intake, name, move |stop| async move {
        let closing = CancellationToken::new();
        let told = async {
            stop.cancelled().await;
            tokio::time::sleep(grace).await;
            closing.cancel();
        };
        tokio::join!(listener.run(closing.clone(), tasks, serve), told);
        Ok(())
    });
}

/// The URL that other gateways are told.
fn advertised(config: &GatewayConfig, private: &Listener) -> Result<String, Problem> {
    if let Some(url) = &config.private.advertise {
        return Ok(url.clone());
    }
    let address = private.address();
    if address.ip().is_unspecified() || private.is_socket() {
        let at = config.private.place();
        return Err(Problem::new(&ground::CONFIG_INVALID, "gateway.private.advertise is missing.")
            .because(format!("the private listener is bound to {at}, which no other gateway can dial"))
            .advising("set it to the URL under which the other gateways reach this one, such as grpc://10.0.0.5:8155"));
    }
    let scheme = if private.is_tls() { "grpcs" } else { "grpc" };
    Ok(format!("{scheme}://{address}"))
}

/// Makes sure that somebody can administer a new installation: the bearer of the token in `file`.
async fn first_admin(directory: &Directory, file: &std::path::Path) -> Result<(), Problem> {
    let unusable = |cause: String| {
        Problem::new(
            &ground::SECRET_UNREADABLE,
            format!("The administrator's token in {} cannot be used.", file.display()),
        )
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

/// Says what works and is hardly meant.
fn warn_of_gaps(config: &GatewayConfig) {
    for listener in config.plain_listeners() {
        tracing::warn!(
            setting = listener,
            "Tokens travel in the clear to this listener: it has no certificate, and others reach it."
        );
    }
    let vouched = !config.oidc.is_empty() || !config.certificates.grants.is_empty();
    if config.admin_token_file.is_none() && !vouched {
        tracing::warn!(
            setting = "gateway.admin_token_file",
            "Nobody can administer this gateway unless its store knows an administrator already."
        );
    }
}
