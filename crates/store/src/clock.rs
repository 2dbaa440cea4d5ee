//! Time as a value, so that tests decide when something expires.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time to the memory and redb back ends. Redis uses the clock of its server.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// The clock of the machine.
    pub fn system() -> Self {
        Self::from_fn(SystemTime::now)
    }

    /// Any other clock.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Microseconds since 1970; zero for a clock set before that.
    pub(crate) fn micros(&self) -> u64 {
        (self.0)().duration_since(UNIX_EPOCH).map_or(0, micros)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A clock that stands still until it is moved.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Stands at some second of 2001.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_000_000_000_000_000)))
    }

    /// Moves forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// The clock to hand to a store.
    pub fn clock(&self) -> Clock {
        let hand = Arc::clone(&self.0);
        Clock::from_fn(move || UNIX_EPOCH + Duration::from_micros(hand.load(Ordering::SeqCst)))
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// When something is due, kept by back ends that count expiry themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry(Option<u64>);

impl Expiry {
    pub(crate) fn after(now: u64, ttl: Option<Duration>) -> Self {
        Self(ttl.map(|ttl| now.saturating_add(micros(ttl))))
    }

    /// Back from its stored form, in which zero means never.
    pub(crate) fn from_stored(at: u64) -> Self {
        Self((at != 0).then_some(at))
    }

    pub(crate) fn stored(self) -> u64 {
        self.0.unwrap_or(0)
    }

    pub(crate) fn at(self) -> Option<u64> {
        self.0
    }

    pub(crate) fn passed(self, now: u64) -> bool {
        self.0.is_some_and(|at| at <= now)
    }

    pub(crate) fn remaining(self, now: u64) -> Option<Duration> {
        self.0.map(|at| Duration::from_micros(at.saturating_sub(now)))
    }
}
