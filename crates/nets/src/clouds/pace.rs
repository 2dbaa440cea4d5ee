//! How long to wait, and for what: time comes in as a value, so that hours pass in a test at once.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::time::Instant;

/// The time of a cloud's client.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Time since some moment before.
    fn now(&self) -> Duration;
    /// Seconds since 1970, for what is signed.
    fn unix(&self) -> u64;
    /// Returns when this much time has passed.
    async fn wait(&self, pause: Duration);
}

/// The machine's own time.
pub struct System(Instant);

impl System {
    /// Begins now.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self(Instant::now()))
    }
}

#[async_trait]
impl Clock for System {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn unix(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    async fn wait(&self, pause: Duration) {
        tokio::time::sleep(pause).await;
    }
}

/// How often something is tried, and how long between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The first pause; each is twice the one before.
    pub first: Duration,
    /// No pause of our own is longer.
    pub longest: Duration,
    /// When to give up.
    pub limit: Duration,
}

impl Patience {
    /// For one call that a cloud throttles or fails: two minutes of trying.
    pub const CALL: Self = Self {
        first: Duration::from_millis(500),
        longest: Duration::from_secs(30),
        limit: Duration::from_mins(2),
    };
    /// For an operation of the cloud: gateways take up to three quarters of an hour.
    pub const OPERATION: Self = Self {
        first: Duration::from_secs(2),
        longest: Duration::from_mins(1),
        limit: Duration::from_mins(90),
    };

    /// The pause after a failed attempt, counted from 0. What the cloud asks for is kept, however long;
    /// `jitter` between 0 and 1 spreads our own between a half and the whole, so that many clients part.
    pub fn pause(&self, attempt: u32, asked: Option<Duration>, jitter: f64) -> Duration {
        if let Some(asked) = asked {
            return asked;
        }
        let doubled = self.first.saturating_mul(1_u32.checked_shl(attempt.min(30)).unwrap_or(u32::MAX));
        doubled.min(self.longest).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

/// The pauses between attempts at one call. Only they count: an attempt may itself be held for minutes.
pub struct Pauses<'a> {
    clock: &'a dyn Clock,
    attempt: u32,
    paused: Duration,
}

impl<'a> Pauses<'a> {
    /// Before the first attempt.
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, attempt: 0, paused: Duration::ZERO }
    }

    /// Waits before the next attempt, as long as the cloud asked for if it did; false at once when it is enough.
    pub async fn pause(&mut self, cloud: &str, call: &str, asked: Option<Duration>) -> bool {
        let pause = Patience::CALL.pause(self.attempt, asked, rand::random());
        self.paused += pause;
        if self.paused > Patience::CALL.limit {
            return false;
        }
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(cloud, call, attempt = self.attempt, pause_ms, "A call is made again.");
        self.attempt += 1;
        self.clock.wait(pause).await;
        true
    }
}

/// What `Retry-After` asks for: seconds, or a date of HTTP.
pub fn retry_after(value: &str, unix: u64) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value.trim()).ok()?;
    let left = date.as_second().saturating_sub(i64::try_from(unix).ok()?);
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dates_and_seconds_are_read() {
        assert_eq!(retry_after(" 7 ", 0), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 20), Some(Duration::from_secs(40)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 90), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", 0), None);
    }

    proptest! {
        #[test]
        fn pauses_grow_to_a_bound_and_the_cloud_is_obeyed(attempt in 0_u32..100, jitter in 0.0..=1.0_f64, asked in 0_u64..5000) {
            let patience = Patience::CALL;
            let pause = patience.pause(attempt, None, jitter);
            prop_assert!(pause <= patience.longest);
            prop_assert!(pause >= patience.first / 2);
            prop_assert!(patience.pause(attempt + 1, None, jitter) >= pause);
            let asked = Duration::from_secs(asked);
            prop_assert_eq!(patience.pause(attempt, Some(asked), jitter), asked);
        }
    }
}
