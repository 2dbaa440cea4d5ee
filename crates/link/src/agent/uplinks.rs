//! Keeps an agent's links up: dials, redials, spreads over gateways, moves when asked.
//!
//! [`Agent::run`] has one task for each link it is to keep. Such a task dials whenever it has no
//! link, its link was asked to move, or its link crowds a gateway while another has none. A new
//! link is up before the old one is left.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::slots::{choose, doubled};
use super::{AgentLink, Handler, connect};
use crate::backoff::Backoff;
use crate::carrier::{Connect, ConnectError, GatewayUrl};
use crate::error::CloseReason;
use crate::handshake::{AgentInfo, Credential, HandshakeError, Hello, Purpose, Refusal, VERSIONS};
use crate::lane::lock;
use crate::settings::Settings;
use crate::shared::Phase;

/// Which links an agent keeps.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The gateways to dial.
    pub gateways: Vec<GatewayUrl>,
    /// Links for requests.
    pub links: usize,
    /// Links for large transfers.
    pub bulk_links: usize,
    /// Pauses between tries.
    pub backoff: Backoff,
    /// How often a link that crowds a gateway looks for a free one.
    pub spread_every: Duration,
    /// How long requests may go on when a link is left.
    pub drain_timeout: Duration,
    /// How links for requests behave.
    pub general: Settings,
    /// How links for large transfers behave.
    pub bulk: Settings,
    /// Where jitter and connection ids come from; different in every process.
    pub seed: u64,
}

impl AgentConfig {
    /// Two links to these gateways.
    pub fn new(gateways: Vec<GatewayUrl>, seed: u64) -> Self {
        Self {
            gateways,
            links: 2,
            bulk_links: 0,
            backoff: Backoff::default(),
            spread_every: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            general: Settings::default(),
            bulk: Settings::bulk(),
            seed,
        }
    }
}

/// Who the agent says it is; asked for anew at each dial, so that a changed token is used.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What proves the site.
    pub credential: Credential,
    /// A name for people.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// This process.
    pub instance: Uuid,
    /// The services offered.
    pub services: Vec<String>,
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No link on it.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl DialError {
    /// The gateway's own word, if it said no.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Handshake(HandshakeError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

/// One of the links an agent is to keep, as it is now.
#[derive(Clone)]
pub struct SlotStatus {
    /// What it is for.
    pub purpose: Purpose,
    /// The gateway it has or tries.
    pub gateway: Option<GatewayUrl>,
    /// The link, while it has one.
    pub link: Option<AgentLink>,
    /// Failures in a row.
    pub failures: u32,
    /// The last failure, until the next success.
    pub error: Option<Arc<DialError>>,
}

impl fmt::Debug for SlotStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotStatus")
            .field("gateway", &self.gateway)
            .field("up", &self.link.is_some())
            .field("failures", &self.failures)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// An agent's side of all its links.
pub struct Agent {
    config: AgentConfig,
    connector: Arc<dyn Connect>,
    handler: Arc<dyn Handler>,
    identity: Box<dyn Fn() -> Identity + Send + Sync>,
    status: watch::Sender<Vec<SlotStatus>>,
    // The gateway each slot has or tries, by index.
    places: Mutex<Vec<Option<usize>>>,
    tasks: TaskTracker,
}

impl Agent {
    /// An agent that dials with `connector` and serves with `handler`.
    pub fn new(
        config: AgentConfig,
        connector: Arc<dyn Connect>,
        handler: Arc<dyn Handler>,
        identity: impl Fn() -> Identity + Send + Sync + 'static,
    ) -> Arc<Self> {
        let purposes =
            [vec![Purpose::General; config.links], vec![Purpose::Bulk; config.bulk_links]].concat();
        let empty = |purpose| SlotStatus { purpose, gateway: None, link: None, failures: 0, error: None };
        Arc::new(Self {
            connector,
            handler,
            identity: Box::new(identity),
            status: watch::Sender::new(purposes.iter().copied().map(empty).collect()),
            places: Mutex::new(vec![None; purposes.len()]),
            tasks: TaskTracker::new(),
            config,
        })
    }

    /// The links as they are, and their changes.
    pub fn status(&self) -> watch::Receiver<Vec<SlotStatus>> {
        self.status.subscribe()
    }

    /// Keeps the links up until `stop`, then leaves them: requests under way finish, or are cut
    /// at the drain timeout.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let slots = self.status.borrow().len();
        let running = (0..slots).map(|index| Slot::new(&self, index).run(&stop));
        futures::future::join_all(running).await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn retire(&self, link: AgentLink) {
        link.drain();
        if tokio::time::timeout(self.config.drain_timeout, link.closed()).await.is_err() {
            tracing::warn!(link = %link.welcome().link, "Requests were cut off at the drain timeout.");
            link.close();
        }
    }

    // Slots of one purpose keep out of each other's way; the other purpose does not matter.
    fn neighbours(&self, purpose: Purpose) -> std::ops::Range<usize> {
        let all = self.config.links + self.config.bulk_links;
        if purpose == Purpose::General { 0..self.config.links } else { self.config.links..all }
    }
}

struct Held {
    link: AgentLink,
    place: usize,
    since: Instant,
}

/// Why to dial.
enum Want {
    /// There is no link.
    Link,
    /// The link was asked to move.
    Move,
    /// The link crowds its gateway.
    Spread,
}

struct Slot<'a> {
    agent: &'a Arc<Agent>,
    index: usize,
    purpose: Purpose,
    random: SmallRng,
    held: Option<Held>,
    start: usize,
    failures: u32,
}

impl<'a> Slot<'a> {
    fn new(agent: &'a Arc<Agent>, index: usize) -> Self {
        let seed = agent.config.seed.wrapping_add(index as u64);
        let purpose = if index < agent.config.links { Purpose::General } else { Purpose::Bulk };
        let start = index - agent.neighbours(purpose).start;
        Self { agent, index, purpose, random: SmallRng::seed_from_u64(seed), held: None, start, failures: 0 }
    }

    async fn run(mut self, stop: &CancellationToken) {
        // Dropping `keep` where it stands loses nothing: what it holds is in `self`.
        stop.run_until_cancelled(self.keep()).await;
        if let Some(held) = self.held.take() {
            self.agent.retire(held.link).await;
        }
        self.note(|status| status.link = None);
    }

    async fn keep(&mut self) {
        if self.agent.config.gateways.is_empty() {
            tracing::warn!("No gateway is configured, so no link is opened.");
            std::future::pending::<()>().await;
        }
        loop {
            let want = self.wanted().await;
            let place = self.claim(&want);
            match self.dial(place).await {
                Ok(link) => self.take(link, place),
                Err(error) => self.failed(error, place, &want).await,
            }
        }
    }

    // Waits until there is a reason to dial, and for the pause that goes before it.
    async fn wanted(&mut self) -> Want {
        let Some(held) = &self.held else { return Want::Link };
        let mut phase = held.link.watch();
        let spread =
            tokio::time::sleep(self.agent.config.spread_every.mul_f64(0.5 + self.random.random::<f64>()));
        tokio::select! {
            _ = phase.wait_for(|phase| *phase != Phase::Open) => {}
            () = spread => return Want::Spread,
        }
        if held.link.phase().takes_requests() {
            tracing::info!(link = %held.link.welcome().link, "The gateway asked for another link to be opened.");
            if held.since.elapsed() >= self.agent.config.backoff.stable {
                // What went wrong before this link is over.
                self.failures = 0;
            }
            // Many agents are asked at once.
            let pause = self.pause();
            tokio::select! {
                () = tokio::time::sleep(pause) => return Want::Move,
                _ = phase.wait_for(|phase| !phase.takes_requests()) => {}
            }
        }
        self.lost().await;
        Want::Link
    }

    async fn lost(&mut self) {
        let Some(held) = self.held.take() else { return };
        let reason = held.link.closed().await;
        let lived = held.since.elapsed();
        self.failures = if lived >= self.agent.config.backoff.stable { 0 } else { self.failures + 1 };
        let gateway = &self.agent.config.gateways[held.place];
        tracing::warn!(
            %gateway, link = %held.link.welcome().link, reason = %reason, lived_s = lived.as_secs(),
            "A link was lost."
        );
        self.release();
        let failures = self.failures;
        self.note(|status| (status.link, status.failures) = (None, failures));
        let least = match reason {
            CloseReason::Dismissed(refusal) => refusal.retry_after,
            _ => None,
        };
        let pause = self.pause().max(least.unwrap_or_default());
        tokio::time::sleep(pause).await;
    }

    fn pause(&mut self) -> Duration {
        self.agent.config.backoff.delay(self.failures, self.random.random())
    }

    fn claim(&mut self, want: &Want) -> Option<usize> {
        let count = self.agent.config.gateways.len();
        let mine = self.held.as_ref().map(|held| held.place);
        let range = self.agent.neighbours(self.purpose);
        let mut places = lock(&self.agent.places);
        if matches!(want, Want::Spread) && !doubled(count, &places[range.clone()], self.index - range.start) {
            return None;
        }
        let others: Vec<usize> =
            range.filter(|index| *index != self.index).filter_map(|index| places[index]).collect();
        let avoid = if matches!(want, Want::Link) { None } else { mine };
        let place = choose(count, &others, self.start, avoid);
        places[self.index] = place;
        drop(places);
        self.note_gateway(place);
        place
    }

    // Back to the gateway of the link that is held, if one is.
    fn release(&self) {
        let place = self.held.as_ref().map(|held| held.place);
        lock(&self.agent.places)[self.index] = place;
        if place.is_some() {
            self.note_gateway(place);
        }
    }

    fn note_gateway(&self, place: Option<usize>) {
        let gateway = place.map(|place| self.agent.config.gateways[place].clone());
        self.note(|status| status.gateway = gateway);
    }

    async fn dial(&mut self, place: Option<usize>) -> Result<Option<AgentLink>, DialError> {
        let Some(place) = place else { return Ok(None) };
        let agent = self.agent;
        let url = &agent.config.gateways[place];
        let stream = agent.connector.connect(url).await?;
        let Identity { credential, name, version, instance, services } = (agent.identity)();
        let connection = uuid::Builder::from_random_bytes(self.random.random()).into_uuid();
        let purpose = self.purpose;
        let info = AgentInfo { name, version, instance, connection, services, purpose };
        let hello = Hello { versions: VERSIONS, credential, agent: info };
        let settings = if purpose == Purpose::Bulk { &agent.config.bulk } else { &agent.config.general };
        let (link, driver) = connect(stream, hello, settings.clone(), Arc::clone(&agent.handler)).await?;
        agent.tasks.spawn(driver);
        tracing::info!(gateway = %url, link = %link.welcome().link, "A link is up.");
        Ok(Some(link))
    }

    fn take(&mut self, link: Option<AgentLink>, place: Option<usize>) {
        let (Some(link), Some(place)) = (link, place) else { return self.release() };
        let held = Held { link: link.clone(), place, since: Instant::now() };
        if let Some(old) = self.held.replace(held) {
            let agent = Arc::clone(self.agent);
            self.agent.tasks.spawn(async move { agent.retire(old.link).await });
        }
        self.start = place;
        self.note(|status| {
            status.link = Some(link);
            (status.failures, status.error) = (0, None);
        });
    }

    async fn failed(&mut self, error: DialError, place: Option<usize>, want: &Want) {
        self.release();
        if matches!(want, Want::Spread) {
            return;
        }
        self.start = place.map_or(self.start, |place| place + 1);
        let least = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
        let pause = self.pause().max(least);
        self.failures = self.failures.saturating_add(1);
        let failures = self.failures;
        let gateway = place.map(|place| self.agent.config.gateways[place].to_string());
        tracing::warn!(
            gateway,
            failures,
            error = tarbet_telemetry::problem::chain(&error),
            pause_ms = pause.as_millis() as u64,
            "A gateway could not be reached."
        );
        self.note(|status| (status.failures, status.error) = (failures, Some(Arc::new(error))));
        tokio::time::sleep(pause).await;
    }

    fn note(&self, change: impl FnOnce(&mut SlotStatus)) {
        self.agent.status.send_modify(|slots| change(&mut slots[self.index]));
    }
}
