//! The gateway's side of a connection that an agent opened.
//!
//! [`KasServer::serve`] takes any byte stream that begins with the HTTP/2 preface and answers what an
//! agent calls: tunnels go to the pool, the rest is answered here. Who an agent is, and what becomes of
//! its registration, is asked of an [`AgentHost`].
//!
//! One task drives a connection; HTTP/2 gives each stream a task of its own, which ends with the stream.
//! Idle tunnels belong to the pool from then on.

mod link;
mod mended;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rand::Rng;
use tarbet_identity::Secret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use self::link::{Ending, Link};
pub use self::mended::Mended;
use super::gitlab::GitlabClient;
use super::pool::{Agent, TunnelPool};
use super::prefix::Prefix;
use super::proto::{agent_configuration, entity};

/// What the gateway decides for the protocol.
#[async_trait]
pub trait AgentHost: Send + Sync + 'static {
    /// Who holds this token. Asked for every call of an agent, so answers should come from memory, and
    /// asked again while a connection lives, so that a revoked token ends it.
    async fn admit(&self, token: &Secret) -> Result<Arc<Agent>, Status>;

    /// Whether an agent may have one more connection; it counts while what is given back lives.
    fn connect(&self, agent: &Agent) -> Result<Arc<dyn Send + Sync>, Status> {
        let _ = agent;
        Ok(Arc::new(()))
    }

    /// An agent's process says that it is there. It repeats this every few minutes.
    async fn registered(&self, agent: &Agent, pod_id: i64, meta: entity::AgentMeta) -> Result<(), Status> {
        let _ = (agent, pod_id, meta);
        Ok(())
    }

    /// It said so by a call of its own, over this connection.
    fn registered_over(&self, agent: &Agent, pod_id: i64, connection: u64) {
        let _ = (agent, pod_id, connection);
    }

    /// The first tunnel of an agent came over this connection.
    fn carried_over(&self, agent: &Agent, connection: u64) {
        let _ = (agent, connection);
    }

    /// A connection that an agent used is over; `moves` says that the agent was asked to take another.
    fn disconnected(&self, agent: &Agent, connection: u64, moves: bool) {
        let _ = (agent, connection, moves);
    }

    /// An agent's process says that it leaves.
    async fn unregistered(&self, agent: &Agent, pod_id: i64) -> Result<(), Status> {
        let _ = (agent, pod_id);
        Ok(())
    }

    /// GitLab, for the modules of agents; without one they cannot ask it anything.
    fn gitlab(&self) -> Option<Arc<GitlabClient>> {
        None
    }

    /// The configuration to send to an agent; without one it is left waiting for one.
    async fn configuration(
        &self,
        agent: &Agent,
    ) -> Result<Option<agent_configuration::ConfigurationResponse>, Status> {
        let _ = agent;
        Ok(None)
    }
}

/// How connections of agents are treated.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The package names agents use.
    pub prefix: Prefix,
    /// Streams on one connection: agents open up to 500 tunnels and a few calls more.
    pub max_streams: u32,
    /// What an agent may send on one stream before it is read.
    pub stream_window: u32,
    /// The same for all its streams together. It is far more than one stream's, so that a call nobody
    /// reads does not stop the others, and it is what a stranger can make us hold.
    pub connection_window: u32,
    /// Silence after which the agent is asked whether it still lives.
    pub ping_after: Duration,
    /// How long it may take to answer.
    pub ping_timeout: Duration,
    /// The age a connection may reach. It is asked to move at a fifth of it.
    pub max_connection_age: Duration,
    /// How often the tokens of a live connection are looked at again.
    pub recheck_every: Duration,
    /// How long a connection may take to present a valid token.
    pub admission_timeout: Duration,
    /// The pause between asking an agent to move and ending its idle tunnels.
    pub drain_pause: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            prefix: Prefix::Gitlab,
            max_streams: 1024,
            stream_window: 1 << 20,
            connection_window: 32 << 20,
            ping_after: Duration::from_secs(50),
            ping_timeout: Duration::from_secs(20),
            max_connection_age: Duration::from_hours(2),
            // Half of what revocation may take.
            recheck_every: Duration::from_secs(30),
            admission_timeout: Duration::from_secs(30),
            drain_pause: Duration::from_millis(500),
        }
    }
}

/// What lies between the agent and us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// TCP or TLS.
    Plain,
    /// A WebSocket, over which some agents send an `:authority` that is not one.
    WebSocket,
}

/// Serves connections of agents. Clones serve the same pool.
#[derive(Clone)]
pub struct KasServer {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) pool: TunnelPool,
    pub(crate) host: Arc<dyn AgentHost>,
    /// Those who keep agents registered while these hold a stream.
    pub(crate) notes: TaskTracker,
}

impl KasServer {
    /// A server for this pool.
    pub fn new(config: ServerConfig, pool: TunnelPool, host: Arc<dyn AgentHost>) -> Self {
        Self { shared: Arc::new(Shared { config, pool, host, notes: TaskTracker::new() }) }
    }

    /// Waits until the registrations of ended streams are taken back; for when all connections have ended.
    pub async fn settled(&self) {
        self.shared.notes.close();
        self.shared.notes.wait().await;
    }

    /// Serves one connection until it ends. When `stop` is cancelled the agent is asked to move: idle
    /// tunnels end with OK, running calls finish, then the connection closes.
    pub async fn serve<S>(&self, stream: S, carrier: Carrier, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match carrier {
            Carrier::Plain => self.drive(stream, stop).await,
            Carrier::WebSocket => self.drive(Mended::new(stream), stop).await,
        }
    }

    async fn drive<S>(&self, stream: S, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let config = &self.shared.config;
        let link = Arc::new(Link::new(Arc::clone(&self.shared)));
        let service = service_fn({
            let link = Arc::clone(&link);
            move |request| {
                let link = Arc::clone(&link);
                async move { Ok::<_, std::convert::Infallible>(link.answer(request).await) }
            }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.max_streams)
            .keep_alive_interval(config.ping_after)
            .keep_alive_timeout(config.ping_timeout)
            .initial_stream_window_size(config.stream_window)
            .initial_connection_window_size(config.connection_window)
            .max_frame_size(64 << 10)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);

        let age = config.max_connection_age;
        let moves_at = Instant::now() + age.mul_f64(0.2 * rand::rng().random_range(0.9..1.1));
        let ending = tokio::select! {
            result = connection.as_mut() => return link.over(result.err()),
            ending = link.until_end(moves_at, &stop) => ending,
        };
        if ending == Ending::Refused {
            return link.over(None);
        }
        connection.as_mut().graceful_shutdown();
        let finish = async {
            // Only when the request to move is on its way: the agent opens its next tunnel at once, and
            // it should not open it here.
            tokio::time::sleep(config.drain_pause).await;
            link.release();
            tokio::time::sleep(age.mul_f64(0.65)).await;
        };
        tokio::select! {
            result = connection.as_mut() => link.over(result.err()),
            () = finish => link.over(None),
            // Calls that go on meanwhile are no longer wanted if their token is not.
            () = link.until_refused() => link.over(None),
        }
    }
}

impl std::fmt::Debug for KasServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KasServer").field("config", &self.shared.config).finish_non_exhaustive()
    }
}
