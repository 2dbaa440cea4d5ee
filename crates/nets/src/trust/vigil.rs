//! Staying awake for a moment after something came or went.
//!
//! A thread that sleeps takes longer to wake than most calls take to answer: on a virtual machine tens of
//! microseconds. Whoever makes one call after another is back before that. So the runtime looks whether
//! something came, again and again, for a moment after something last came or went. Whatever else is ready
//! runs first, and a look in vain is followed by a rest, which grows: callers that come now and then cost
//! next to nothing. With several threads another one may sleep on the connections, and then it neither helps
//! nor harms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
// Not the runtime's clock: where that one stands still, a look would never end, nor let it go on.
use std::time::Instant;

/// How long it is looked out for more, in microseconds: twice what a caller on the same machine takes between an
/// answer and its next call.
const LOOK: u64 = 150;
/// How long it is not looked out after it was in vain, at first and at most, in microseconds. On callers who never
/// come back at once a quarter of a percent of a core is spent at most.
const REST: std::ops::RangeInclusive<u64> = 1_000..=64_000;

/// Looks out for more on the connections of a listener.
#[derive(Debug)]
pub(crate) struct Vigil {
    started: Instant,
    /// Whether there is a core for those who are waited for, too.
    worthwhile: bool,
    looking: AtomicBool,
    /// How often something came.
    came: AtomicU64,
    /// When something came or went last. All times are in microseconds since `started`.
    last: AtomicU64,
    rest: AtomicU64,
    rests_until: AtomicU64,
}

impl Vigil {
    pub(crate) fn new() -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self {
            started: Instant::now(),
            worthwhile: std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
            looking: AtomicBool::new(false),
            came: zero(),
            last: zero(),
            rest: zero(),
            rests_until: zero(),
        })
    }

    /// Something came.
    pub(crate) fn came(self: &Arc<Self>) {
        self.came.fetch_add(1, Ordering::Relaxed);
        self.went();
    }

    /// Something went.
    pub(crate) fn went(self: &Arc<Self>) {
        if !self.worthwhile {
            return;
        }
        let now = self.now();
        self.last.store(now, Ordering::Relaxed);
        if now >= self.rests_until.load(Ordering::Relaxed) && !self.looking.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).look());
        }
    }

    async fn look(self: Arc<Self>) {
        let before = self.came.load(Ordering::Relaxed);
        let mut now = self.now();
        while now < self.last.load(Ordering::Relaxed) + LOOK {
            // Lets everything else run, and then asks the system for news without waiting for any.
            tokio::task::yield_now().await;
            now = self.now();
        }
        let in_vain = self.came.load(Ordering::Relaxed) == before;
        let rest = if in_vain {
            (self.rest.load(Ordering::Relaxed) * 2).clamp(*REST.start(), *REST.end())
        } else {
            0
        };
        self.rest.store(rest, Ordering::Relaxed);
        self.rests_until.store(now + rest, Ordering::Relaxed);
        self.looking.store(false, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_ends_also_where_the_runtimes_clock_stands() {
        let mut vigil = Vigil::new();
        Arc::get_mut(&mut vigil).unwrap().worthwhile = true;
        vigil.came();
        assert!(vigil.looking.load(Ordering::Relaxed));
        let begun = Instant::now();
        while vigil.looking.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_mins(1) {
            tokio::task::yield_now().await;
        }
        assert!(!vigil.looking.load(Ordering::Relaxed));
    }
}
