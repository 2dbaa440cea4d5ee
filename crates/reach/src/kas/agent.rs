//! Our agent at a kas: it keeps tunnels open, serves the calls that come through them, and registers.
//!
//! [`KasAgent::run`] owns everything: a task for each connection, one for each tunnel, one that
//! registers and one that follows the configuration. All of them end when its `stop` is cancelled; calls
//! that run then are finished first.

mod channel;
mod dial;
mod register;
mod service;
mod sizes;
mod tunnel;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use tarbet_identity::Secret;
use tarbet_link::{Backoff, Connect, GatewayUrl};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::channel::Channel;
pub use self::dial::{SUBPROTOCOL, connector, kas_address, usual_connections};
pub use self::service::{Replies, Requests, Service, ServiceCall, Services};
use self::sizes::Counts;
pub use self::sizes::Sizes;
use super::prefix::Prefix;
use super::proto::{agentcfg, entity};

/// How our agent joins a kas.
#[derive(Clone)]
pub struct KasAgentConfig {
    /// Where the kas is; see [`kas_address`].
    pub address: GatewayUrl,
    /// The package names the kas uses.
    pub prefix: Prefix,
    /// The agent's token.
    pub token: Secret,
    /// What the agent calls itself.
    pub user_agent: String,
    /// Sent along with every call.
    pub metadata: HeaderMap,
    /// What the agent says of itself.
    pub meta: entity::AgentMeta,
    /// Random for each process, and positive.
    pub pod_id: i64,
    /// How many tunnels.
    pub sizes: Sizes,
    /// Connections to keep, for a name with several addresses behind it.
    pub connections: usize,
    /// How often to register.
    pub register_every: Duration,
    /// Pauses between tries to connect.
    pub reconnect: Backoff,
    /// Pauses between tries to open a tunnel that was refused.
    pub reopen: Backoff,
    /// Pauses between tries to register or to be configured.
    pub retry: Backoff,
    /// Silence after which the kas is asked whether it still lives. A kas allows every 20 s at most.
    pub ping_after: Duration,
    /// How long it may take to answer.
    pub ping_timeout: Duration,
}

impl KasAgentConfig {
    /// With the protocol's usual values.
    pub fn new(address: GatewayUrl, token: Secret, pod_id: i64) -> Self {
        let backoff = |first, longest| Backoff {
            first: Duration::from_secs(first),
            longest: Duration::from_secs(longest),
            stable: Duration::from_secs(25),
        };
        Self {
            address,
            prefix: Prefix::Gitlab,
            token,
            user_agent: concat!("tarbet-agent/", env!("CARGO_PKG_VERSION")).into(),
            metadata: HeaderMap::new(),
            meta: entity::AgentMeta::default(),
            pod_id,
            sizes: Sizes::default(),
            connections: 1,
            register_every: Duration::from_mins(5),
            reconnect: Backoff { first: Duration::from_millis(500), ..backoff(1, 30) },
            reopen: backoff(1, 20),
            retry: backoff(10, 300),
            ping_after: Duration::from_secs(55),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// How the agent is doing, for readiness and people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KasAgentStatus {
    /// Connections that are up.
    pub connections: usize,
    /// Tunnels that wait for a call.
    pub idle: usize,
    /// Tunnels that carry one.
    pub busy: usize,
    /// Why the last attempt failed, until the next succeeds.
    pub trouble: Option<String>,
}

/// Our agent at a kas.
pub struct KasAgent {
    core: Arc<Core>,
}

pub(crate) struct Core {
    config: KasAgentConfig,
    services: Services,
    /// What every tunnel announces.
    descriptor: Bytes,
    channel: Channel,
    counts: Mutex<Counts>,
    status: watch::Sender<KasAgentStatus>,
    configuration: watch::Sender<Option<agentcfg::AgentConfiguration>>,
    tracker: TaskTracker,
}

impl KasAgent {
    /// An agent that offers these services.
    pub fn new(config: KasAgentConfig, connector: Arc<dyn Connect>, services: Services) -> Self {
        let channel = Channel::new(&config, connector);
        let descriptor = services.descriptor().to_frame().encode_to_vec().into();
        let core = Core {
            config,
            services,
            descriptor,
            channel,
            counts: Mutex::default(),
            status: watch::Sender::default(),
            configuration: watch::Sender::default(),
            tracker: TaskTracker::new(),
        };
        Self { core: Arc::new(core) }
    }

    /// Follows how it is doing.
    pub fn status(&self) -> watch::Receiver<KasAgentStatus> {
        self.core.status.subscribe()
    }

    /// Follows the configuration that the kas sent.
    pub fn configuration(&self) -> watch::Receiver<Option<agentcfg::AgentConfiguration>> {
        self.core.configuration.subscribe()
    }

    /// Runs until told to stop; then idle tunnels end at once, and running calls are finished.
    pub async fn run(self, stop: CancellationToken) {
        let core = self.core;
        // Dropping the future must stop its tasks, too.
        let stop = stop.child_token();
        let _stopping = stop.clone().drop_guard();
        let connected = CancellationToken::new();
        let _closing = connected.clone().drop_guard();
        core.channel.keep_up(&core.tracker, &connected, &core.status);
        core.tracker.spawn(register::follow_configuration(Arc::clone(&core), stop.clone()));
        let registrar = tokio::spawn(register::stay_registered(Arc::clone(&core), stop.clone()));
        tunnel::start(&core, &stop);
        stop.cancelled().await;
        let _ = registrar.await;
        core.wait_for_calls().await;
        connected.cancel();
        core.tracker.close();
        core.tracker.wait().await;
    }
}

impl std::fmt::Debug for KasAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KasAgent").field("address", &self.core.config.address).finish_non_exhaustive()
    }
}
