//! Answers that are good for a while. Those who ask for the same at one time share one question.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::time::Instant;

use super::GitlabError;
use crate::kas::locked;

/// What is asked by: a hash, so that no credential is kept.
pub(super) type Key = [u8; 32];

type Answer<T> = Result<Arc<T>, GitlabError>;

/// A failure to get an answer at all is remembered only to keep a crowd from hammering.
const TRANSIENT: Duration = Duration::from_secs(1);
/// A question that nobody waits for any more is asked anew after this.
const ABANDONED: Duration = Duration::from_secs(30);
const MAX_ENTRIES: usize = 10_000;

pub(super) struct Cache<T> {
    entries: Mutex<HashMap<Key, Entry<T>>>,
    good: Duration,
    bad: Duration,
    /// How long after it was given a yes still counts while no answer can be had.
    last: Duration,
}

struct Entry<T> {
    asked: Instant,
    flight: Shared<BoxFuture<'static, Answer<T>>>,
    /// The yes before this question, and when it was asked for; none if there was a no since.
    before: Option<(Instant, Arc<T>)>,
}

impl<T> Entry<T> {
    /// The last yes, as the next question finds it.
    fn last_yes(&self) -> Option<(Instant, Arc<T>)> {
        match self.flight.peek() {
            Some(Ok(yes)) => Some((self.asked, Arc::clone(yes))),
            Some(Err(error)) if !error.is_transient() => None,
            Some(Err(_)) | None => self.before.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> Cache<T> {
    pub(super) fn new(good: Duration, bad: Duration) -> Self {
        Self { entries: Mutex::default(), good, bad, last: Duration::ZERO }
    }

    /// The same, and a yes counts so long while no answer can be had.
    pub(super) fn lasting(self, last: Duration) -> Self {
        Self { last, ..self }
    }

    /// The answer, asked for now if none is at hand.
    pub(super) async fn get(
        &self,
        key: Key,
        ask: impl FnOnce() -> BoxFuture<'static, Result<T, GitlabError>>,
    ) -> Answer<T> {
        let now = Instant::now();
        let (flight, before) = {
            let mut entries = locked(&self.entries);
            if let Some(entry) = entries.get(&key).filter(|entry| self.is_good(entry, now)) {
                (entry.flight.clone(), entry.before.clone())
            } else {
                let before = entries.get(&key).and_then(Entry::last_yes);
                if entries.len() >= MAX_ENTRIES {
                    entries.retain(|_, entry| self.is_good(entry, now));
                }
                if entries.len() >= MAX_ENTRIES {
                    entries.clear();
                }
                let flight = ask().map(|answer| answer.map(Arc::new)).boxed().shared();
                entries.insert(key, Entry { asked: now, flight: flight.clone(), before: before.clone() });
                (flight, before)
            }
        };
        match (flight.await, before) {
            (Err(error), Some((asked, yes))) if error.is_transient() && asked.elapsed() < self.last => {
                tracing::debug!(%error, "No answer can be had, and the last one is used.");
                Ok(yes)
            }
            (answer, _) => answer,
        }
    }

    fn is_good(&self, entry: &Entry<T>, now: Instant) -> bool {
        let limit = match entry.flight.peek() {
            None => ABANDONED,
            Some(Ok(_)) => self.good,
            Some(Err(error)) if error.is_transient() => TRANSIENT.min(self.bad),
            Some(Err(_)) => self.bad,
        };
        now.duration_since(entry.asked) < limit
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Oracle {
        cache: Cache<usize>,
        asked: Arc<AtomicUsize>,
    }

    impl Oracle {
        fn new() -> Self {
            Self { cache: Cache::new(Duration::from_mins(1), Duration::from_secs(10)), asked: Arc::default() }
        }

        async fn ask(&self, key: u8, error: Option<GitlabError>) -> Answer<usize> {
            let asked = Arc::clone(&self.asked);
            let question = async move {
                tokio::task::yield_now().await;
                let count = asked.fetch_add(1, Ordering::SeqCst);
                error.map_or(Ok(count), Err)
            };
            self.cache.get([key; 32], || question.boxed()).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_last_as_long_as_they_may() {
        let oracle = Oracle::new();
        let refused = GitlabError::Refused { status: 401, path: "/" };
        let broken = GitlabError::Unavailable { path: "/", cause: "x".into() };
        for (key, error, seconds) in [(1, None, 60), (2, Some(refused), 10), (3, Some(broken), 1)] {
            let before = oracle.asked.load(Ordering::SeqCst);
            let first = oracle.ask(key, error.clone()).await;
            tokio::time::advance(Duration::from_millis(seconds * 1000 - 1)).await;
            assert_eq!(oracle.ask(key, error.clone()).await, first);
            assert_eq!(oracle.asked.load(Ordering::SeqCst), before + 1);
            tokio::time::advance(Duration::from_millis(1)).await;
            let _ = oracle.ask(key, error).await;
            assert_eq!(oracle.asked.load(Ordering::SeqCst), before + 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_yes_lasts_while_no_answer_can_be_had_and_never_after_a_no() {
        let mut oracle = Oracle::new();
        oracle.cache = oracle.cache.lasting(Duration::from_mins(5));
        let refused = || Some(GitlabError::Refused { status: 401, path: "/" });
        let broken = || Some(GitlabError::Unavailable { path: "/", cause: "HTTP 502".into() });
        let minutes = |count| tokio::time::advance(Duration::from_mins(count));
        // Nobody ever said yes.
        assert!(oracle.ask(1, broken()).await.is_err());
        let yes = oracle.ask(2, None).await;
        assert!(yes.is_ok());
        for _ in 0..4 {
            minutes(1).await;
            assert_eq!(oracle.ask(2, broken()).await, yes);
            assert_eq!(oracle.ask(2, broken()).await, yes, "also where the failure is remembered");
        }
        minutes(1).await;
        assert!(oracle.ask(2, broken()).await.is_err(), "not for ever");
        // As soon as there is an answer, it counts.
        assert!(oracle.ask(3, None).await.is_ok());
        minutes(1).await;
        assert!(oracle.ask(3, refused()).await.is_err());
        minutes(1).await;
        assert_eq!(oracle.ask(3, broken()).await, Err(broken().unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_asks_once_and_one_who_leaves_takes_nothing_along() {
        let oracle = Oracle::new();
        let crowd = futures::future::join_all((0..50).map(|_| oracle.ask(1, None))).await;
        assert!(crowd.iter().all(|answer| **answer.as_ref().unwrap() == 0));
        // Polled once, then dropped: the next one takes the question over.
        assert!(oracle.ask(2, None).now_or_never().is_none());
        assert_eq!(*oracle.ask(2, None).await.unwrap(), 1);
    }
}
