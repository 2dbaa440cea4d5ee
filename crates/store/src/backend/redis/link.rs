//! One connection that comes back: calls with a deadline, retried over reconnects.

use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::RedisError;
use ::redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::connect::{DialError, Dialer};
use super::verdict::{self, Verdict};
use crate::clock::micros;
use crate::error::{Cause, Error};

/// The first pause after a failed connect; it doubles from there.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// The longest pause: a server that came back is found within this.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Between attempts while the server says it is busy.
const PAUSE_BUSY: Duration = Duration::from_millis(50);

/// A connection that is made when needed and made again when it breaks.
#[derive(Debug)]
pub(super) struct Link {
    dialer: Arc<Dialer>,
    patience: Duration,
    /// The connection in use and its number, so that a late failure does not throw away a newer one.
    live: Mutex<(u64, Option<MultiplexedConnection>)>,
    /// Held while connecting, so that all callers wait for one attempt instead of making many.
    dialling: tokio::sync::Mutex<Dialling>,
    started: Instant,
    /// Server time minus time since `started`, in microseconds, as last heard. Never ahead of the
    /// truth by more than the clocks drift, as it was true when it was sent.
    offset: AtomicI64,
}

#[derive(Debug)]
struct Dialling {
    failures: u32,
    not_before: Instant,
}

/// What one attempt of a call has to work with.
#[derive(Clone)]
pub(super) struct Try {
    pub(super) connection: MultiplexedConnection,
    /// When the whole call ends.
    pub(super) deadline: Instant,
    /// How long this attempt may take.
    pub(super) budget: Duration,
    /// Whether an earlier attempt may still be on its way.
    pub(super) again: bool,
}

/// A call that came to nothing.
pub(super) struct Failure {
    at: Arc<str>,
    waited: Duration,
    /// Some attempt may have been carried out.
    maybe_done: bool,
    cause: Option<Cause>,
    /// What to tell the caller instead, if it is clear.
    clear: Option<Error>,
}

#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("no answer within {0:?}")]
    Answer(Duration),
    #[error("no connection within {0:?}")]
    Connection(Duration),
    #[error("the deadline passed while waiting for a connection")]
    Deadline,
    #[error("only {confirmed} of {wanted} replicas confirmed it")]
    Replicas { confirmed: u16, wanted: u16 },
    #[error("the clock of the server moved")]
    Clock,
}

enum Ended {
    /// Before anything was sent.
    Dial(DialError),
    DialSilence(Duration),
    Sent(RedisError),
    SentSilence(Duration),
}

impl Link {
    pub(super) fn new(dialer: Arc<Dialer>, patience: Duration) -> Self {
        let started = Instant::now();
        let dialling = tokio::sync::Mutex::new(Dialling { failures: 0, not_before: started });
        Self { dialer, patience, live: Mutex::default(), dialling, started, offset: AtomicI64::new(0) }
    }

    /// How long a call may take.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// When a call that begins now must end.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// What the server's clock will show at this moment, in microseconds.
    pub(super) fn server_time(&self, at: Instant) -> u64 {
        let here = micros(at.saturating_duration_since(self.started)).cast_signed();
        here.saturating_add(self.offset.load(Ordering::Relaxed)).cast_unsigned()
    }

    /// Notes the server's clock, as an answer just told it.
    pub(super) fn saw_server_time(&self, now: u64) {
        let here = micros(self.started.elapsed()).cast_signed();
        self.offset.store(now.cast_signed() - here, Ordering::Relaxed);
    }

    /// Tries until it works, the server refuses, or the deadline passes.
    pub(super) async fn call<T, F>(
        &self,
        operation: &'static str,
        deadline: Instant,
        attempt: impl Fn(Try) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let begun = Instant::now();
        let mut failure = Failure {
            at: Arc::clone(self.dialer.at()),
            waited: Duration::ZERO,
            maybe_done: false,
            cause: None,
            clear: None,
        };
        // Shared with the attempt, which may be cut off at the deadline after it sent something.
        let sent_on = AtomicU64::new(0);
        loop {
            sent_on.store(0, Ordering::Relaxed);
            let Ok(tried) =
                timeout_at(deadline, self.once(&attempt, deadline, failure.maybe_done, &sent_on)).await
            else {
                failure.maybe_done |= sent_on.load(Ordering::Relaxed) != 0;
                failure.cause.get_or_insert_with(|| Arc::new(Silence::Deadline));
                break;
            };
            let pause = match tried {
                Ok(value) => return Ok(value),
                Err(Ended::Dial(DialError::Ours(error))) => {
                    failure.clear = Some(error);
                    break;
                }
                Err(Ended::Dial(DialError::Redis(error))) if verdict::of(&error) == Verdict::Refused => {
                    failure.clear = Some(self.refused("connect", error));
                    break;
                }
                Err(Ended::Dial(DialError::Redis(error))) => {
                    failure.cause = Some(Arc::new(error));
                    Duration::ZERO
                }
                Err(Ended::DialSilence(after)) => {
                    failure.cause = Some(Arc::new(Silence::Connection(after)));
                    Duration::ZERO
                }
                Err(Ended::SentSilence(after)) => {
                    self.discard(sent_on.load(Ordering::Relaxed));
                    failure.maybe_done = true;
                    failure.cause = Some(Arc::new(Silence::Answer(after)));
                    Duration::ZERO
                }
                Err(Ended::Sent(error)) => {
                    let verdict = verdict::of(&error);
                    if verdict == Verdict::Refused {
                        failure.clear = Some(self.refused(operation, error));
                        break;
                    }
                    if verdict != Verdict::Busy {
                        self.discard(sent_on.load(Ordering::Relaxed));
                    }
                    failure.maybe_done |= verdict == Verdict::Broken;
                    failure.cause = Some(Arc::new(error));
                    if verdict == Verdict::Broken { Duration::ZERO } else { PAUSE_BUSY }
                }
            };
            sleep_until((Instant::now() + pause).min(deadline)).await;
            if Instant::now() >= deadline {
                break;
            }
        }
        failure.waited = begun.elapsed();
        Err(failure)
    }

    async fn once<T, F>(
        &self,
        attempt: &impl Fn(Try) -> F,
        deadline: Instant,
        again: bool,
        sent_on: &AtomicU64,
    ) -> Result<T, Ended>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let (connection, number) = self.live().await?;
        sent_on.store(number, Ordering::Relaxed);
        // Less than the whole, so that a dead connection leaves time for a new one.
        let budget = self.patience / 3;
        match timeout(budget, attempt(Try { connection, deadline, budget, again })).await {
            Ok(done) => done.map_err(Ended::Sent),
            Err(_) => Err(Ended::SentSilence(budget)),
        }
    }

    async fn live(&self) -> Result<(MultiplexedConnection, u64), Ended> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let mut dialling = self.dialling.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        sleep_until(dialling.not_before).await;
        let patience = self.patience / 3;
        let ended = match timeout(patience, self.dialer.connect(patience)).await {
            Ok(Ok((connection, now))) => {
                self.saw_server_time(now);
                if std::mem::take(&mut dialling.failures) > 0 {
                    tracing::info!(at = %self.dialer.at(), "The store answers again.");
                }
                let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
                *live = (live.0 + 1, Some(connection.clone()));
                return Ok((connection, live.0));
            }
            Ok(Err(error)) => Ended::Dial(error),
            Err(_) => Ended::DialSilence(patience),
        };
        if dialling.failures == 0 {
            tracing::warn!(at = %self.dialer.at(), "The store cannot be reached.");
        }
        dialling.failures = dialling.failures.saturating_add(1);
        dialling.not_before = Instant::now() + pause(dialling.failures, rand::random());
        Err(ended)
    }

    fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.1.clone().map(|connection| (connection, live.0))
    }

    fn discard(&self, number: u64) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.0 == number {
            live.1 = None;
        }
    }

    pub(super) fn refused(
        &self,
        operation: &'static str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::Refused { operation, at: Arc::clone(self.dialer.at()), cause: Arc::new(cause) }
    }

    pub(super) fn schema(&self, found: u64) -> Error {
        self.dialer.schema(found)
    }

    pub(super) fn unconfirmed(&self, confirmed: u16, wanted: u16) -> Error {
        let cause = Arc::new(Silence::Replicas { confirmed, wanted });
        Error::Uncertain { at: Arc::clone(self.dialer.at()), waited: self.patience, cause }
    }

    pub(super) fn late(&self) -> Error {
        let (at, waited) = (Arc::clone(self.dialer.at()), self.patience);
        Error::Uncertain { at, waited, cause: Arc::new(Silence::Clock) }
    }
}

impl Failure {
    /// For calls that change nothing.
    pub(super) fn unavailable(self, operation: &'static str) -> Error {
        let Self { at, waited, cause, clear, .. } = self;
        let cause = cause.unwrap_or_else(|| Arc::new(Silence::Deadline));
        clear.unwrap_or(Error::Unavailable { operation, at, waited, cause })
    }

    /// For calls that may have changed something.
    pub(super) fn uncertain(self, operation: &'static str) -> Error {
        if self.maybe_done {
            let cause = self.cause.or_else(|| self.clear.map(|error| Arc::new(error) as Cause));
            let cause = cause.unwrap_or_else(|| Arc::new(Silence::Deadline));
            return Error::Uncertain { at: self.at, waited: self.waited, cause };
        }
        self.unavailable(operation)
    }
}

/// Doubling, capped, and shaken by a quarter so that many processes do not come at once.
fn pause(failures: u32, random: f64) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(8));
    doubled.min(PAUSE_MAX).mul_f64(0.75 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        assert_eq!(pause(1, 0.5), PAUSE_MIN);
        assert_eq!(pause(2, 0.5), PAUSE_MIN * 2);
        assert_eq!(pause(u32::MAX, 0.5), PAUSE_MAX);
        assert!(pause(9, 1.0) <= PAUSE_MAX.mul_f64(1.25) && pause(9, 0.0) >= PAUSE_MAX.mul_f64(0.75));
    }
}
