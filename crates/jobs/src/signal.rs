//! What the watches of one cluster tell about its health.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tarbet_cluster::Change;
use tarbet_telemetry::Health;
use tarbet_telemetry::health::Part;

/// Tells health how the watches of one cluster are doing: it is as well as the worst of them.
pub(crate) struct Signal {
    part: Part,
    name: String,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    watches: BTreeMap<String, Watched>,
    // Whether all was well once: a further watch that has yet to list is no step back.
    started: bool,
}

#[derive(Default)]
struct Watched {
    listed: bool,
    failing: Option<String>,
}

impl Heard {
    /// Why one of them fails, if one does.
    fn worst(&self) -> Option<String> {
        self.watches.values().find_map(|watch| watch.failing.clone())
    }

    fn waits(&self) -> bool {
        !self.started && self.watches.values().any(|watch| !watch.listed)
    }
}

impl Signal {
    pub(crate) fn new(health: &Health, name: &str) -> Self {
        let part = health.part(name);
        part.starting("waiting for the first list");
        Self { part, name: name.to_owned(), heard: Mutex::default() }
    }

    /// From now on these watches count and no others.
    pub(crate) fn expects(&self, watches: impl IntoIterator<Item = String>) {
        self.change(|heard| {
            let mut before = std::mem::take(&mut heard.watches);
            heard.watches = watches
                .into_iter()
                .map(|watch| {
                    let known = before.remove(&watch).unwrap_or_default();
                    (watch, known)
                })
                .collect();
        });
    }

    /// Notes what one of the watches said, and hands it on.
    pub(crate) fn heard<V>(&self, change: Change<V>, watch: &str) -> Change<V> {
        let failing = match &change {
            Change::Failing(cause) => Some(cause.clone()),
            Change::Listed | Change::Back => None,
            Change::Applied(_) | Change::Deleted(_) => return change,
        };
        self.change(|heard| {
            if let Some(known) = heard.watches.get_mut(watch) {
                known.listed |= matches!(change, Change::Listed);
                known.failing = failing;
            }
        });
        change
    }

    fn change(&self, change: impl FnOnce(&mut Heard)) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = heard.worst().is_some();
        change(&mut heard);
        match heard.worst() {
            Some(cause) => {
                if !failed {
                    tracing::warn!(cluster = %self.name, cause, "Nothing is heard of the cluster; it is asked again.");
                }
                self.part.failing(cause);
            }
            None if heard.waits() => self.part.starting("waiting for the first list"),
            None => {
                heard.started = true;
                self.part.ready();
            }
        }
        if failed && heard.worst().is_none() {
            tracing::info!(cluster = %self.name, "The cluster is heard of again.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(signal: &Signal, watch: &str, change: Change<()>) {
        signal.heard(change, watch);
    }

    #[test]
    fn a_cluster_is_as_well_as_the_worst_of_its_watches() {
        let health = Health::default();
        let signal = Signal::new(&health, "remote");
        signal.expects(["a".to_owned(), "b".to_owned()]);
        says(&signal, "a", Change::Listed);
        assert!(!health.is_ready(), "one of them has not listed yet");
        says(&signal, "b", Change::Listed);
        assert!(health.is_ready());
        says(&signal, "a", Change::Failing("refused".into()));
        for word in [Change::Listed, Change::Back] {
            says(&signal, "b", word);
            assert!(!health.is_ready(), "the word of one does not cover for the other");
        }
        says(&signal, "a", Change::Back);
        assert!(health.is_ready());
    }

    #[test]
    fn who_no_longer_counts_fails_alone_and_who_joins_later_is_no_step_back() {
        let health = Health::default();
        let signal = Signal::new(&health, "remote");
        signal.expects(["a".to_owned(), "b".to_owned()]);
        says(&signal, "a", Change::Listed);
        says(&signal, "b", Change::Failing("refused".into()));
        assert!(!health.is_ready());
        signal.expects(["a".to_owned()]);
        assert!(health.is_ready());
        says(&signal, "b", Change::Failing("refused".into()));
        assert!(health.is_ready());
        signal.expects(["a".to_owned(), "c".to_owned()]);
        assert!(health.is_ready());
        says(&signal, "c", Change::Failing("refused".into()));
        assert!(!health.is_ready());
    }

    #[test]
    fn nothing_to_watch_is_nothing_to_wait_for() {
        let health = Health::default();
        let signal = Signal::new(&health, "remote");
        assert!(!health.is_ready());
        signal.expects([]);
        assert!(health.is_ready());
    }
}
