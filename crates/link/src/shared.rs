//! What the streams, the handle and the driver of one link share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::error::{BodyError, CloseReason, LinkError, Reached};
use crate::handshake::Refusal;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::settings::Settings;

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Gateway,
    Agent,
}

/// The life of a link. It only ever moves down this list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It takes requests.
    Open,
    /// The gateway asked the agent to open another link. It still takes requests.
    Moving,
    /// No new requests; those under way finish.
    Draining,
    /// It is being ended now, for this reason.
    Closing(CloseReason),
    /// It has ended.
    Closed(CloseReason),
}

impl Phase {
    fn rank(&self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Moving => 1,
            Self::Draining => 2,
            Self::Closing(_) => 3,
            Self::Closed(_) => 4,
        }
    }

    /// Whether new requests are taken.
    pub fn takes_requests(&self) -> bool {
        self.rank() <= 1
    }

    /// Why it ended or is ending.
    pub fn reason(&self) -> Option<&CloseReason> {
        match self {
            Self::Closing(reason) | Self::Closed(reason) => Some(reason),
            _ => None,
        }
    }
}

pub(crate) struct Shared {
    pub(crate) side: Side,
    pub(crate) settings: Settings,
    pub(crate) meter: Arc<Meter>,
    pub(crate) ledger: Ledger,
    // Tells the driver that the first stream opened on an idle link.
    pub(crate) woken: Notify,
    // What its streams may have under way, and what they should have.
    window: AtomicU32,
    wanted_window: AtomicU32,
    phase: watch::Sender<Phase>,
}

impl Shared {
    pub(crate) fn new(side: Side, settings: Settings) -> Arc<Self> {
        let window = settings.stream_window;
        Arc::new(Self {
            side,
            settings,
            window: AtomicU32::new(window),
            wanted_window: AtomicU32::new(window),
            meter: Arc::new(Meter::new(Instant::now())),
            ledger: Ledger::default(),
            woken: Notify::new(),
            phase: watch::Sender::new(Phase::Open),
        })
    }

    /// What one stream may have under way.
    pub(crate) fn window(&self) -> u32 {
        self.window.load(Relaxed)
    }

    /// Asks the driver for other windows.
    pub(crate) fn want_window(&self, window: u32) {
        self.wanted_window.store(window, Relaxed);
    }

    /// Has `set` change the windows if others are wanted. It may fail while the peer has not
    /// confirmed the last change; then it is tried again later. True if they were changed.
    pub(crate) fn change_window<E>(&self, set: impl FnOnce(u32) -> Result<(), E>) -> bool {
        let wanted = self.wanted_window.load(Relaxed);
        let changed = wanted != self.window() && set(wanted).is_ok();
        if changed {
            self.window.store(wanted, Relaxed);
        }
        changed
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Moves on; never back.
    pub(crate) fn advance(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let further = next.rank() > phase.rank();
            // What was given as the reason for closing stays the reason.
            if let (Phase::Closing(reason), Phase::Closed(_)) = (&*phase, &next) {
                *phase = Phase::Closed(reason.clone());
            } else if further {
                *phase = next;
            }
            further
        });
    }

    /// Whether new requests are taken.
    pub(crate) fn takes_requests(&self) -> bool {
        self.phase.borrow().takes_requests()
    }

    /// Whether new requests are taken; else why not.
    pub(crate) fn admit(&self) -> Result<(), LinkError> {
        match &*self.phase.borrow() {
            Phase::Open | Phase::Moving => Ok(()),
            Phase::Draining => Err(LinkError::Draining),
            Phase::Closing(reason) | Phase::Closed(reason) => {
                Err(LinkError::Closed { reason: reason.clone(), reached: Reached::No })
            }
        }
    }

    /// Why the link ended, told from how its connection did.
    pub(crate) fn end_of_connection(&self, ended: Result<(), h2::Error>) -> CloseReason {
        let draining = *self.phase.borrow() == Phase::Draining;
        match ended {
            Ok(()) if draining => CloseReason::Drained,
            Ok(()) => CloseReason::PeerClosed,
            // Once both want to part and nothing is under way, how the last packets go is all one.
            Err(_) if draining && self.meter.open() == 0 => CloseReason::Drained,
            Err(error) => close_reason(&error),
        }
    }

    /// Ready when the link has ended.
    pub(crate) async fn closed(&self) -> CloseReason {
        let mut phase = self.watch();
        match phase.wait_for(|phase| matches!(phase, Phase::Closed(_))).await {
            Ok(phase) => phase.reason().cloned().unwrap_or(CloseReason::Local),
            Err(_) => CloseReason::Local,
        }
    }

    pub(crate) fn dismiss(&self, refusal: Refusal) {
        self.advance(Phase::Closing(CloseReason::Dismissed(refusal)));
    }

    fn reason(&self, error: &h2::Error) -> CloseReason {
        self.phase.borrow().reason().cloned().unwrap_or_else(|| close_reason(error))
    }

    pub(crate) fn body_error(&self, error: &h2::Error) -> BodyError {
        match error.reason() {
            Some(reason) if error.is_reset() => BodyError::Reset { reason: reason.to_string() },
            _ => BodyError::LinkClosed { reason: self.reason(error) },
        }
    }

    /// What an error means for a request that was handed to the connection.
    pub(crate) fn call_error(&self, error: &h2::Error) -> LinkError {
        match error.reason() {
            Some(reason) if error.is_reset() => {
                // The peer promises not to have looked at a stream it refuses.
                let refused = reason == h2::Reason::REFUSED_STREAM;
                let reached = if refused { Reached::No } else { Reached::Yes };
                LinkError::Reset { reason: reason.to_string(), reached }
            }
            // Only streams above the last one the peer will serve fail with its GOAWAY.
            Some(_) if error.is_go_away() && error.is_remote() => LinkError::Draining,
            _ => LinkError::Closed { reason: self.reason(error), reached: Reached::Unknown },
        }
    }
}

fn close_reason(error: &h2::Error) -> CloseReason {
    match error.get_io() {
        Some(io) => match io.kind() {
            std::io::ErrorKind::UnexpectedEof
            | std::io::ErrorKind::BrokenPipe
            | std::io::ErrorKind::ConnectionReset => CloseReason::PeerClosed,
            _ => CloseReason::Broken(io.to_string()),
        },
        None => CloseReason::Protocol(error.to_string()),
    }
}

/// Marks the link as closed whatever way its driver ends.
pub(crate) struct Ending(pub(crate) Arc<Shared>);

impl Ending {
    /// Gives the reason that stands, which may be an earlier one.
    pub(crate) fn finish(self, reason: CloseReason) -> CloseReason {
        self.0.advance(Phase::Closed(reason.clone()));
        self.0.phase().reason().cloned().unwrap_or(reason)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.advance(Phase::Closed(CloseReason::Local));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_never_goes_back_and_keeps_its_first_reason() {
        let shared = Shared::new(Side::Gateway, Settings::default());
        assert!(shared.admit().is_ok());
        shared.advance(Phase::Moving);
        assert!(shared.admit().is_ok());
        shared.advance(Phase::Draining);
        shared.advance(Phase::Open);
        assert!(matches!(shared.admit(), Err(LinkError::Draining)));
        shared.advance(Phase::Closing(CloseReason::Local));
        shared.advance(Phase::Closed(CloseReason::PeerClosed));
        assert_eq!(shared.phase(), Phase::Closed(CloseReason::Local));
        shared.advance(Phase::Closed(CloseReason::Drained));
        assert_eq!(shared.phase(), Phase::Closed(CloseReason::Local));
    }
}
