//! States of pods that the API server has heard, so that not every question reaches the plugin.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{Stream, StreamExt};

use crate::wire::lines::lines;
use crate::wire::{PodStatus, read};

/// A state that was asked for is good for this long; one that is pushed is good until the stream breaks.
const FRESH: Duration = Duration::from_secs(1);
/// A deleted pod's state that was still on its way must not come back.
const BURIED: Duration = Duration::from_mins(5);

#[derive(Default)]
pub(super) struct Cache {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    states: HashMap<String, (Instant, PodStatus)>,
    buried: HashMap<String, Instant>,
    /// While the plugin pushes: everything before this moment is not known to be current.
    pushed_since: Option<Instant>,
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, state: PodStatus) {
        let mut inner = self.lock();
        if !state.uid.is_empty() && !inner.buried.contains_key(&state.uid) {
            inner.states.insert(state.uid.clone(), (Instant::now(), state));
        }
    }

    /// A state that needs no question.
    pub(super) fn current(&self, uid: &str) -> Option<PodStatus> {
        let inner = self.lock();
        let (at, state) = inner.states.get(uid)?;
        let pushed = inner.pushed_since.is_some_and(|since| *at >= since);
        (pushed || at.elapsed() < FRESH).then(|| state.clone())
    }

    /// The last state, however old.
    pub(super) fn last(&self, uid: &str) -> Option<PodStatus> {
        self.lock().states.get(uid).map(|(_, state)| state.clone())
    }

    /// The last state with its age, for when there is no newer one.
    pub(super) fn last_aged(&self, uid: &str) -> Option<PodStatus> {
        let inner = self.lock();
        let (at, state) = inner.states.get(uid)?;
        Some(PodStatus { stale_seconds: at.elapsed().as_secs().max(1), ..state.clone() })
    }

    pub(super) fn all(&self) -> Vec<PodStatus> {
        let mut states: Vec<PodStatus> =
            self.lock().states.values().map(|(_, state)| state.clone()).collect();
        states.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        states
    }

    pub(super) fn forget(&self, uid: &str) {
        self.lock().states.remove(uid);
    }

    pub(super) fn bury(&self, uid: &str) {
        let mut inner = self.lock();
        inner.states.remove(uid);
        inner.buried.retain(|_, at| at.elapsed() < BURIED);
        inner.buried.insert(uid.to_owned(), Instant::now());
    }

    /// Takes over what the plugin pushes until that ends, breaks or falls silent.
    pub(super) async fn follow<S, E>(&self, pieces: S)
    where
        S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
        E: std::fmt::Display + Send,
    {
        self.lock().pushed_since = Some(Instant::now());
        let mut lines = std::pin::pin!(lines(pieces));
        while let Some(line) = lines.next().await {
            match line.map(|line| read::<PodStatus>(&line, "a state")) {
                Ok(Ok(state)) => self.put(state),
                Ok(Err(error)) => tracing::debug!(error = %error, "The plugin pushed something odd."),
                Err(cut) => tracing::warn!(reason = %cut, "The plugin pushes nothing any more."),
            }
        }
        self.lock().pushed_since = None;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_vanishes_does_not_hold_its_last_states_for_current() {
        let cache = Cache::default();
        let line = Bytes::from_static(b"{\"UID\":\"u\",\"name\":\"p\"}\n");
        let pieces = stream::iter([Ok::<_, Infallible>(line)]).chain(stream::pending());
        // As long ago as the plugin is silent.
        cache.follow(pieces).await;
        assert_eq!(cache.last("u").map(|state| state.name), Some("p".to_owned()));
        let mut inner = cache.lock();
        inner.states.get_mut("u").unwrap().0 -= FRESH;
        drop(inner);
        assert!(cache.current("u").is_none(), "it is asked for again");
    }
}
