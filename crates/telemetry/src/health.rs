//! Whether a role can do its work, told part by part.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// The state of all parts of one process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health {
    parts: Arc<Mutex<BTreeMap<String, State>>>,
}

/// How one part is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum State {
    /// Not ready yet, and why.
    Starting(String),
    /// Doing its work.
    Ready,
    /// Cannot do its work, and why.
    Failing(String),
    /// Finishing; takes nothing new.
    Draining,
}

impl State {
    /// Whether new work may be sent to it.
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

impl Health {
    /// Adds a part, starting. It stays listed until the returned handle is dropped.
    pub fn part(&self, name: impl Into<String>) -> Part {
        let part = Part { name: name.into(), health: self.clone() };
        part.set(State::Starting("not yet checked".into()));
        part
    }

    /// The state of each part.
    pub fn parts(&self) -> BTreeMap<String, State> {
        self.lock().clone()
    }

    /// Whether every part is ready. A process without parts has nothing to be ready for.
    pub fn is_ready(&self) -> bool {
        let parts = self.lock();
        !parts.is_empty() && parts.values().all(State::is_ready)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        // The map is replaced entry by entry, so a panicking holder cannot leave it half changed.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle through which a part tells its state.
pub struct Part {
    name: String,
    health: Health,
}

impl Part {
    /// Ready for work.
    pub fn ready(&self) {
        self.set(State::Ready);
    }

    /// Not able to work, for this reason.
    pub fn failing(&self, reason: impl Into<String>) {
        self.set(State::Failing(reason.into()));
    }

    /// Waiting for something before it can begin.
    pub fn starting(&self, reason: impl Into<String>) {
        self.set(State::Starting(reason.into()));
    }

    /// Finishing what it has.
    pub fn draining(&self) {
        self.set(State::Draining);
    }

    fn set(&self, state: State) {
        let mut parts = self.health.lock();
        let before = parts.insert(self.name.clone(), state.clone());
        drop(parts);
        if before.as_ref() == Some(&state) {
            return;
        }
        match state {
            State::Ready => tracing::info!(part = %self.name, "Part is ready."),
            State::Failing(reason) => tracing::warn!(part = %self.name, %reason, "Part is failing."),
            State::Starting(reason) => tracing::debug!(part = %self.name, %reason, "Part is starting."),
            State::Draining => tracing::info!(part = %self.name, "Part is draining."),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.health.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_while_every_part_is() {
        let health = Health::default();
        assert!(!health.is_ready(), "nothing is ready yet");
        let store = health.part("store");
        let link = health.part("link");
        store.ready();
        assert!(!health.is_ready());
        link.ready();
        assert!(health.is_ready());
        store.failing("connection refused");
        assert_eq!(health.parts()["store"], State::Failing("connection refused".into()));
        assert!(!health.is_ready());
        drop(store);
        assert!(health.is_ready());
    }
}
