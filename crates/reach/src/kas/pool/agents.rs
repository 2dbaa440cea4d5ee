//! The pool's books: who is idle, who is busy, who waits. No waiting happens here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;

use super::{Agent, AgentView, Idle, Lane, PoolEvent, Tunnel, shutting_down};
use crate::kas::descriptor::{Descriptor, Memo};
use crate::kas::outbox::Outbox;
use crate::kas::prefix::MethodPath;

type Reply = oneshot::Sender<Result<Tunnel, Status>>;

pub(super) enum Found {
    Lane(Idle),
    Wait(oneshot::Receiver<Result<Tunnel, Status>>),
}

pub(super) struct Agents {
    by_id: HashMap<i64, Entry>,
    closed: bool,
    on_event: Box<dyn Fn(PoolEvent) + Send + Sync>,
}

/// One agent. The keys of all three maps grow with time, so that the first is the oldest.
#[derive(Default)]
struct Entry {
    /// Set while it is reported as connected.
    agent: Option<Arc<Agent>>,
    memo: Memo,
    parked: BTreeMap<u64, Idle>,
    live: HashMap<u64, Live>,
    waiting: BTreeMap<u64, Waiter>,
    vacant_since: Option<Instant>,
    /// Whether somebody watches over the vacancy already.
    watched: bool,
}

/// A tunnel whose stream is open, idle or in use.
struct Live {
    connection: u64,
    descriptor: Arc<Descriptor>,
    outbox: Outbox,
}

/// What is left of a tunnel whose stream ended, to be dropped outside the lock.
#[derive(Default)]
pub(super) struct Left {
    _lane: Option<Idle>,
    _live: Option<Live>,
    /// Whether somebody must begin to watch over the vacancy.
    pub(super) begin_watch: bool,
}

struct Waiter {
    method: MethodPath,
    reply: Reply,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.agent.is_none() && self.live.is_empty() && self.waiting.is_empty() && !self.watched
    }

    fn oldest_lane(&mut self, method: &MethodPath) -> Option<Idle> {
        let id = *self.parked.iter().find(|(_, lane)| lane.descriptor.has(method))?.0;
        self.parked.remove(&id)
    }

    fn oldest_waiter(&mut self, descriptor: &Descriptor) -> Option<Reply> {
        let id = *self.waiting.iter().find(|(_, waiter)| descriptor.has(&waiter.method))?.0;
        self.waiting.remove(&id).map(|waiter| waiter.reply)
    }
}

impl Agents {
    pub(super) fn new(on_event: Box<dyn Fn(PoolEvent) + Send + Sync>) -> Self {
        Self { by_id: HashMap::new(), closed: false, on_event }
    }

    pub(super) fn known_descriptor(&self, agent: i64, frame: &Bytes) -> Option<Arc<Descriptor>> {
        self.by_id.get(&agent)?.memo.get(frame)
    }

    pub(super) fn learn_descriptor(&mut self, agent: i64, frame: &Bytes, descriptor: &Arc<Descriptor>) {
        if let Some(entry) = self.by_id.get_mut(&agent) {
            entry.memo.set(frame, descriptor);
        }
    }

    /// Counts a new tunnel. `false` when none are taken any more.
    pub(super) fn enter(&mut self, lane: &Lane) -> bool {
        if self.closed {
            return false;
        }
        let entry = self.by_id.entry(lane.agent.id).or_default();
        let live = Live {
            connection: lane.connection,
            descriptor: Arc::clone(&lane.descriptor),
            outbox: lane.outbox.clone(),
        };
        entry.live.insert(lane.id, live);
        entry.vacant_since = None;
        if entry.agent.is_none() {
            entry.agent = Some(Arc::clone(&lane.agent));
            (self.on_event)(PoolEvent::Connected(Arc::clone(&lane.agent)));
        }
        true
    }

    /// Finds the caller an idle tunnel is for, or parks it. `Err` gives it back for good.
    pub(super) fn settle(&mut self, lane: Idle) -> Result<Option<(Reply, Idle)>, Idle> {
        if self.closed {
            return Err(lane);
        }
        let Some(entry) = self.by_id.get_mut(&lane.agent.id) else { return Err(lane) };
        // A stream that ended meanwhile has already left, and must not come back.
        if !entry.live.contains_key(&lane.id) {
            return Err(lane);
        }
        if let Some(reply) = entry.oldest_waiter(&lane.descriptor) {
            return Ok(Some((reply, lane)));
        }
        entry.parked.insert(lane.id, lane);
        Ok(None)
    }

    pub(super) fn take(&mut self, agent: i64, method: &MethodPath) -> Option<Idle> {
        self.by_id.get_mut(&agent)?.oldest_lane(method)
    }

    pub(super) fn take_or_wait(
        &mut self,
        agent: i64,
        method: &MethodPath,
        id: u64,
        max_waiting: usize,
    ) -> Result<Found, Status> {
        if self.closed {
            return Err(shutting_down());
        }
        if let Some(lane) = self.take(agent, method) {
            return Ok(Found::Lane(lane));
        }
        let known = self.by_id.get(&agent);
        if known.is_some_and(|entry| entry.waiting.len() >= max_waiting) {
            return Err(Status::resource_exhausted(format!(
                "gateway → agent {agent}: {max_waiting} requests wait already; repeat later"
            )));
        }
        if known.is_some_and(|entry| {
            !entry.live.is_empty() && !entry.live.values().any(|live| live.descriptor.has(method))
        }) {
            return Err(Status::unimplemented(format!(
                "gateway → agent {agent}: the agent does not offer {method}; it may be too old for it"
            )));
        }
        let (reply, receiver) = oneshot::channel();
        let entry = self.by_id.entry(agent).or_default();
        entry.waiting.insert(id, Waiter { method: method.clone(), reply });
        Ok(Found::Wait(receiver))
    }

    pub(super) fn unqueue(&mut self, agent: i64, id: u64) {
        if let Some(entry) = self.by_id.get_mut(&agent) {
            entry.waiting.remove(&id);
            if entry.is_empty() {
                self.by_id.remove(&agent);
            }
        }
    }

    /// Why nobody came in time.
    pub(super) fn explain_absence(&self, agent: i64) -> Status {
        let text = match self.by_id.get(&agent).map_or(0, |entry| entry.live.len()) {
            0 => format!(
                "gateway → agent {agent}: the agent did not connect in time; check that it runs and can dial out"
            ),
            busy => format!(
                "gateway → agent {agent}: all {busy} tunnels of the agent stayed busy; repeat later or run more agents"
            ),
        };
        Status::deadline_exceeded(text)
    }

    /// The stream of a tunnel ended.
    pub(super) fn leave(&mut self, agent: i64, lane: u64) -> Left {
        let Some(entry) = self.by_id.get_mut(&agent) else { return Left::default() };
        let mut left =
            Left { _lane: entry.parked.remove(&lane), _live: entry.live.remove(&lane), begin_watch: false };
        if !entry.live.is_empty() || entry.agent.is_none() {
            if entry.is_empty() {
                self.by_id.remove(&agent);
            }
            return left;
        }
        entry.vacant_since = Some(Instant::now());
        left.begin_watch = !std::mem::replace(&mut entry.watched, true);
        left
    }

    /// Reports a vacant agent as gone if its time is over; else says how long to wait on.
    pub(super) fn give_up(&mut self, agent: i64, grace: Duration) -> Option<Duration> {
        let entry = self.by_id.get_mut(&agent)?;
        if let Some(since) = entry.vacant_since {
            let left = grace.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Some(left);
            }
            entry.vacant_since = None;
            if let Some(known) = entry.agent.take() {
                (self.on_event)(PoolEvent::Gone(known));
            }
        }
        entry.watched = false;
        if entry.is_empty() {
            self.by_id.remove(&agent);
        }
        None
    }

    pub(super) fn release(&mut self, agent: i64, connection: u64) -> Vec<Idle> {
        let Some(entry) = self.by_id.get_mut(&agent) else { return Vec::new() };
        entry.parked.extract_if(.., |_, lane| lane.connection == connection).map(|(_, lane)| lane).collect()
    }

    pub(super) fn evict(&mut self, agent: i64, connection: Option<u64>) -> (Vec<Idle>, Vec<Outbox>) {
        let Some(entry) = self.by_id.get_mut(&agent) else { return Default::default() };
        let meant = |other: u64| connection.is_none_or(|connection| connection == other);
        let lanes =
            entry.parked.extract_if(.., |_, lane| meant(lane.connection)).map(|(_, lane)| lane).collect();
        let streams = entry.live.values().filter(|live| meant(live.connection));
        (lanes, streams.map(|live| live.outbox.clone()).collect())
    }

    pub(super) fn close(&mut self) -> (Vec<Idle>, Vec<Reply>) {
        self.closed = true;
        let (mut lanes, mut waiters) = (Vec::new(), Vec::new());
        for entry in self.by_id.values_mut() {
            lanes.extend(std::mem::take(&mut entry.parked).into_values());
            waiters.extend(std::mem::take(&mut entry.waiting).into_values().map(|waiter| waiter.reply));
            if let Some(agent) = entry.agent.take() {
                (self.on_event)(PoolEvent::Gone(agent));
            }
        }
        (lanes, waiters)
    }

    pub(super) fn holds(&self, agent: i64) -> bool {
        self.by_id.get(&agent).is_some_and(|entry| !entry.live.is_empty())
    }

    pub(super) fn views(&self) -> Vec<AgentView> {
        let view = |(id, entry): (&i64, &Entry)| AgentView {
            id: *id,
            agent: entry.agent.clone(),
            parked: entry.parked.len(),
            busy: entry.live.len() - entry.parked.len(),
            waiting: entry.waiting.len(),
        };
        self.by_id.iter().map(view).collect()
    }
}
