//! The tunnels of all agents connected to this process, and those who wait for one.
//!
//! A tunnel carries one call. Idle ones are parked by agent; a call takes the one that has waited
//! longest and offers the method, or queues until one arrives. Callers are served in their order.
//!
//! There is one pool for the process. The connection that brought a tunnel parks it and forgets it; the
//! tunnel leaves the pool by itself when its stream ends, whoever holds it then.

mod agents;
mod lane;

pub use lane::Tunnel;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use self::agents::{Agents, Found};
pub(crate) use self::lane::{Idle, Lane};
use super::call::Call;
use super::descriptor::Descriptor;
use super::locked;
use super::outbox::OutboxBody;
use super::prefix::MethodPath;

/// An agent as whoever checked its token knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The number that requests are routed by.
    pub id: i64,
    /// The site's name.
    pub name: String,
    /// The project that owns it; 0 where there is none.
    pub project_id: i64,
}

/// What the rest of the gateway may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolEvent {
    /// The first tunnel of an agent arrived.
    Connected(Arc<Agent>),
    /// The last tunnel of an agent left, and none came back.
    Gone(Arc<Agent>),
}

/// Limits of the pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// How long an agent may be without any tunnel before it counts as gone. An agent reopens a tunnel
    /// right after each call, so a short gap means nothing.
    pub gone_after: Duration,
    /// The most callers that may wait for one agent.
    pub max_waiting: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { gone_after: Duration::from_secs(5), max_waiting: 20_000 }
    }
}

/// One agent, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentView {
    /// Its number.
    pub id: i64,
    /// The agent, unless it is only waited for.
    pub agent: Option<Arc<Agent>>,
    /// Idle tunnels.
    pub parked: usize,
    /// Tunnels in use.
    pub busy: usize,
    /// Callers that wait.
    pub waiting: usize,
}

/// The pool. Clones are the same pool.
#[derive(Clone)]
pub struct TunnelPool {
    inner: Arc<Inner>,
}

struct Inner {
    config: PoolConfig,
    agents: Mutex<Agents>,
    ids: AtomicU64,
}

impl TunnelPool {
    /// An empty pool. `on_event` is called in order and under the pool's lock: it must hand the event on
    /// and return, without calling the pool.
    pub fn new(config: PoolConfig, on_event: impl Fn(PoolEvent) + Send + Sync + 'static) -> Self {
        let agents = Mutex::new(Agents::new(Box::new(on_event)));
        Self { inner: Arc::new(Inner { config, agents, ids: AtomicU64::new(1) }) }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.inner.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The descriptor that this frame announces, if the agent announced the same before.
    pub(crate) fn known_descriptor(&self, agent: i64, frame: &bytes::Bytes) -> Option<Arc<Descriptor>> {
        locked(&self.inner.agents).known_descriptor(agent, frame)
    }

    pub(crate) fn learn_descriptor(&self, agent: i64, frame: &bytes::Bytes, descriptor: &Arc<Descriptor>) {
        locked(&self.inner.agents).learn_descriptor(agent, frame, descriptor);
    }

    /// Takes a new tunnel in. The body is the one its answer is written to; it comes back with a guard
    /// that takes the tunnel out again when its stream ends.
    pub(crate) fn admit(&self, lane: Idle, body: OutboxBody) -> OutboxBody {
        let guard = Leaving { pool: self.clone(), agent: lane.agent.id, lane: lane.id };
        let accepted = locked(&self.inner.agents).enter(&lane);
        if accepted {
            self.place(lane);
        } else {
            lane.dismiss();
        }
        body.holding(guard)
    }

    /// Hands an idle tunnel to the first caller it suits, or parks it.
    pub(crate) fn place(&self, mut lane: Idle) {
        loop {
            let (waiter, returned) = match locked(&self.inner.agents).settle(lane) {
                Ok(None) => return,
                Ok(Some(found)) => found,
                Err(lane) => return lane.dismiss(),
            };
            // Outside the lock: a caller that left meanwhile makes the tunnel come straight back.
            let refused = waiter.send(Ok(Tunnel::new(self.clone(), returned))).err();
            match refused.and_then(Result::ok).and_then(Tunnel::into_lane) {
                Some(back) => lane = back,
                None => return,
            }
        }
    }

    /// An idle tunnel, if there is one now.
    pub fn try_find(&self, agent: i64, method: &MethodPath) -> Option<Tunnel> {
        loop {
            let found = locked(&self.inner.agents).take(agent, method)?;
            if let Some(lane) = found.fresh() {
                return Some(Tunnel::new(self.clone(), lane));
            }
        }
    }

    /// An idle tunnel, waiting for one until the deadline, behind those who wait already.
    pub async fn find(&self, agent: i64, method: &MethodPath, until: Instant) -> Result<Tunnel, Status> {
        loop {
            let id = self.next_id();
            let found =
                locked(&self.inner.agents).take_or_wait(agent, method, id, self.inner.config.max_waiting)?;
            let lane = match found {
                Found::Lane(lane) => Some(lane),
                Found::Wait(receiver) => {
                    let queued = Queued { pool: self.clone(), agent, id };
                    match tokio::time::timeout_at(until, receiver).await {
                        Ok(Ok(found)) => found?.into_lane(),
                        Ok(Err(_)) => return Err(shutting_down()),
                        Err(_) => {
                            drop(queued);
                            return Err(locked(&self.inner.agents).explain_absence(agent));
                        }
                    }
                }
            };
            // One that was lost on the way to us is no reason to fail.
            if let Some(lane) = lane.and_then(Lane::fresh) {
                return Ok(Tunnel::new(self.clone(), lane));
            }
        }
    }

    /// Opens a call: finds a tunnel and starts it. Messages go through the result's two halves.
    pub async fn open(
        &self,
        agent: i64,
        method: &MethodPath,
        metadata: &http::HeaderMap,
        until: Instant,
    ) -> Result<Call, Status> {
        self.find(agent, method, until).await?.start(method, metadata)
    }

    /// A whole call: sends all messages of a stream and gives the answer as it comes.
    pub async fn call<S>(
        &self,
        agent: i64,
        method: &MethodPath,
        metadata: &http::HeaderMap,
        messages: S,
        until: Instant,
    ) -> Result<super::call::CallRecv, Status>
    where
        S: futures::Stream<Item = bytes::Bytes> + Send + 'static,
    {
        let Call { mut send, recv } = self.open(agent, method, metadata, until).await?;
        tokio::spawn(async move {
            let mut messages = std::pin::pin!(messages);
            loop {
                let message = tokio::select! {
                    message = futures::StreamExt::next(&mut messages) => message,
                    () = send.over() => return,
                };
                match message {
                    None => return send.close(),
                    Some(message) if send.send(&super::frame::Raw(message.clone())).await.is_err() => return,
                    Some(_) => {}
                }
            }
        });
        Ok(recv)
    }

    /// Ends the idle tunnels that one connection brought, with OK: the agent reopens them elsewhere.
    pub(crate) fn release(&self, agent: i64, connection: u64) {
        let lanes = locked(&self.inner.agents).release(agent, connection);
        lanes.into_iter().for_each(Lane::dismiss);
    }

    /// Ends every tunnel of an agent, idle or in use, with this status; of one connection if given.
    pub fn evict(&self, agent: i64, connection: Option<u64>, status: &Status) {
        let (lanes, busy) = locked(&self.inner.agents).evict(agent, connection);
        for outbox in busy {
            outbox.answer(status);
        }
        drop(lanes);
    }

    /// Shuts down: idle tunnels end with OK, callers that wait are told, agents are reported gone.
    /// Running calls go on. Tunnels that still arrive are sent away.
    pub fn close(&self) {
        let (lanes, waiters) = locked(&self.inner.agents).close();
        lanes.into_iter().for_each(Lane::dismiss);
        for waiter in waiters {
            let _ = waiter.send(Err(shutting_down()));
        }
    }

    /// Whether an agent has a tunnel here, idle or in use.
    pub fn holds(&self, agent: i64) -> bool {
        locked(&self.inner.agents).holds(agent)
    }

    /// Every agent that is connected or waited for.
    pub fn agents(&self) -> Vec<AgentView> {
        locked(&self.inner.agents).views()
    }

    fn leave(&self, agent: i64, lane: u64) {
        let left = locked(&self.inner.agents).leave(agent, lane);
        if left.begin_watch {
            self.watch_vacancy(agent);
        }
    }

    /// Waits for an agent without tunnels to come back, and reports it gone if it does not.
    fn watch_vacancy(&self, agent: i64) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            locked(&self.inner.agents).give_up(agent, Duration::ZERO);
            return;
        };
        let (inner, grace) = (Arc::downgrade(&self.inner), self.inner.config.gone_after);
        runtime.spawn(async move {
            let mut wait = grace;
            loop {
                tokio::time::sleep(wait).await;
                let Some(inner) = inner.upgrade() else { return };
                match locked(&inner.agents).give_up(agent, grace) {
                    None => return,
                    Some(left) => wait = left,
                }
            }
        });
    }
}

impl std::fmt::Debug for TunnelPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelPool").finish_non_exhaustive()
    }
}

/// Takes a tunnel out of the pool when its stream ends.
struct Leaving {
    pool: TunnelPool,
    agent: i64,
    lane: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.pool.leave(self.agent, self.lane);
    }
}

/// Takes a caller out of the queue when it stops waiting.
struct Queued {
    pool: TunnelPool,
    agent: i64,
    id: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        locked(&self.pool.inner.agents).unqueue(self.agent, self.id);
    }
}

fn shutting_down() -> Status {
    Status::unavailable("the gateway is shutting down; repeat the request and another replica takes it")
}

#[cfg(test)]
mod tests;
