//! One tunnel: as the pool keeps it, and as a caller holds it.

use std::sync::Arc;
use std::task::{Context, Waker};

use http::HeaderMap;
use tonic::Status;

use super::{Agent, TunnelPool};
use crate::kas::call::{Call, Envelope, put_request_info};
use crate::kas::descriptor::Descriptor;
use crate::kas::inbox::Inbox;
use crate::kas::meta;
use crate::kas::order::Track;
use crate::kas::outbox::Outbox;
use crate::kas::prefix::MethodPath;

/// A tunnel in which nothing happens.
pub(crate) type Idle = Box<Lane>;

/// An idle tunnel.
pub(crate) struct Lane {
    pub(crate) id: u64,
    pub(crate) connection: u64,
    pub(crate) agent: Arc<Agent>,
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    /// Past the descriptor.
    pub(crate) track: Track,
}

impl Lane {
    /// Ends it with OK, which asks the agent for a new one.
    pub(crate) fn dismiss(self: Box<Self>) {
        self.outbox.answer(&Status::ok(""));
    }

    /// The lane itself, if nothing has happened to it while it was idle.
    ///
    /// An idle tunnel has nothing to say. One that has, or that has ended, is of no use to a caller.
    pub(crate) fn fresh(mut self: Box<Self>) -> Option<Box<Self>> {
        if self.outbox.is_gone() {
            return None;
        }
        match self.inbox.poll_message(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Pending => Some(self),
            std::task::Poll::Ready(said) => {
                let status = match said {
                    Some(Ok(_)) => Status::invalid_argument("ConnectRequest: a frame before any request"),
                    Some(Err(status)) => status,
                    None => match self.track.end() {
                        Ok(()) => Status::ok(""),
                        Err(violation) => violation.into(),
                    },
                };
                self.outbox.answer(&status);
                None
            }
        }
    }
}

/// An idle tunnel in a caller's hands. Dropped unused, it goes back to the pool.
pub struct Tunnel {
    pool: TunnelPool,
    lane: Option<Idle>,
}

impl Tunnel {
    pub(super) fn new(pool: TunnelPool, lane: Idle) -> Self {
        Self { pool, lane: Some(lane) }
    }

    pub(super) fn into_lane(mut self) -> Option<Idle> {
        self.lane.take()
    }

    /// The agent at the other end.
    pub fn agent(&self) -> Option<&Arc<Agent>> {
        self.lane.as_ref().map(|lane| &lane.agent)
    }

    /// Waits until the tunnel is lost. For holders who do not start it yet.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let outbox = self.lane.as_ref().map(|lane| lane.outbox.clone());
        async move {
            match outbox {
                Some(outbox) => outbox.gone().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Starts a call. Metadata that belongs to one hop is left out; metadata that a tunnel cannot carry
    /// is refused, and the tunnel goes back unused.
    ///
    /// Nothing is sent before the first flush of the call, so that the request may leave in one piece.
    pub fn start(mut self, method: &MethodPath, metadata: &HeaderMap) -> Result<Call, Status> {
        let entries = meta::to_wire(metadata)?;
        let Some(lane) = self.lane.take() else {
            return Err(Status::internal("the tunnel was taken twice"));
        };
        let Lane { inbox, outbox, track, .. } = *lane;
        outbox.push(|buffer| put_request_info(buffer, method.as_str(), entries));
        Ok(Call::new(inbox, outbox, track, Envelope::Tunnel))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take().and_then(Lane::fresh) {
            self.pool.place(lane);
        }
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("agent", &self.agent()).finish_non_exhaustive()
    }
}
