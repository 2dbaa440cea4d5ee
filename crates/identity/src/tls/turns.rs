//! Handshakes in turn.
//!
//! Thousands who dial in one moment would all be served a little at a time, and all be late: those who give up
//! come again, and what was computed for them is lost. So only so many are under way, and the rest wait in the
//! order in which they came, before anything was computed for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// How long a turn lasts at most. A peer at the other end of the world has answered by then; one that dawdles goes on
/// beside the others, and whoever waits need not wait for it.
const TURN: Duration = Duration::from_secs(1);

/// So many handshakes at once. Clones share their turns.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    free: Semaphore,
    waiting: AtomicUsize,
    longest: Duration,
}

impl Turns {
    /// Room for this many; at least one.
    pub fn new(count: usize) -> Self {
        Self::lasting(count, TURN)
    }

    /// The same, with turns that last at most this long.
    pub fn lasting(count: usize, longest: Duration) -> Self {
        let free = Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS));
        Self(Arc::new(Inner { free, waiting: AtomicUsize::new(0), longest }))
    }

    pub(super) fn longest(&self) -> Duration {
        self.0.longest
    }

    /// How many wait for their turn.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Relaxed)
    }

    /// A turn, after those who asked before. Given back when dropped.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(turn) = self.0.free.try_acquire() {
            return Some(turn);
        }
        let _waiting = Waiting::begin(&self.0.waiting);
        // It fails only if it was closed, which nobody does.
        self.0.free.acquire().await.ok()
    }
}

/// Counted for as long as it lives: whoever waits may give up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
