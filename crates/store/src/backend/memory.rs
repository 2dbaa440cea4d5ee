//! A store that lives as long as its process. For tests, and for roles that only derive.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::Backend;
use crate::clock::{Clock, Expiry};
use crate::commit::{Commit, Operation};
use crate::entry::{Entry, PAGE_BYTES, Page, Revision};
use crate::error::Error;
use crate::hints::{Hints, Hub};
use crate::key::{Key, Prefix};

/// Everything in a map behind a lock that is never held across a wait.
#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    state: Mutex<State>,
    hub: Arc<Hub>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<Key, Stored>,
    expiring: BTreeSet<(u64, Key)>,
}

#[derive(Debug)]
struct Stored {
    value: Bytes,
    revision: Revision,
    expiry: Expiry,
}

impl Memory {
    /// An empty store.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default(), hub: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    fn entry(&self, key: &Key, now: u64) -> Entry {
        Entry {
            key: key.clone(),
            value: self.value.clone(),
            revision: self.revision,
            expires_in: self.expiry.remaining(now),
        }
    }
}

impl State {
    fn live(&self, key: &Key, now: u64) -> Option<&Stored> {
        self.entries.get(key).filter(|stored| !stored.expiry.passed(now))
    }

    fn remove(&mut self, key: &Key) {
        if let Some(at) = self.entries.remove(key).and_then(|stored| stored.expiry.at()) {
            self.expiring.remove(&(at, key.clone()));
        }
    }

    fn insert(&mut self, key: Key, stored: Stored) {
        self.remove(&key);
        if let Some(at) = stored.expiry.at() {
            self.expiring.insert((at, key.clone()));
        }
        self.entries.insert(key, stored);
    }

    fn sweep(&mut self, now: u64) {
        while let Some((at, key)) = self.expiring.first().cloned() {
            if at > now {
                break;
            }
            self.remove(&key);
        }
    }

    fn apply(&mut self, operation: &Operation, revision: Revision, now: u64) {
        match operation {
            Operation::Put { key, value, ttl } => {
                let expiry = Expiry::after(now, *ttl);
                self.insert(key.clone(), Stored { value: value.clone(), revision, expiry });
            }
            Operation::Delete { key } => self.remove(key),
            Operation::Refresh { key, ttl } => {
                if let Some(Stored { value, revision, .. }) = self.entries.get(key) {
                    let (value, revision) = (value.clone(), *revision);
                    let expiry = Expiry::after(now, Some(*ttl));
                    self.insert(key.clone(), Stored { value, revision, expiry });
                }
            }
        }
    }
}

#[async_trait]
impl Backend for Memory {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        let now = self.clock.micros();
        Ok(self.lock().live(key, now).map(|stored| stored.entry(key, now)))
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        let now = self.clock.micros();
        let state = self.lock();
        let start = match (after, &prefix.table) {
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(table)) => Bound::Included(table.key(prefix.bytes.clone())),
            (None, None) => Bound::Unbounded,
        };
        let mut page = Page::default();
        let mut bytes = 0;
        let selected =
            state.entries.range((start, Bound::Unbounded)).take_while(|(key, _)| prefix.contains(key));
        for (key, stored) in selected.filter(|(_, stored)| !stored.expiry.passed(now)) {
            if page.entries.len() == limit || bytes > PAGE_BYTES {
                page.next = page.entries.last().map(|entry| entry.key.clone());
                break;
            }
            bytes += stored.value.len();
            page.entries.push(stored.entry(key, now));
        }
        Ok(page)
    }

    async fn commit(&self, commit: Commit) -> Result<Revision, Error> {
        let now = self.clock.micros();
        let revision = {
            let mut state = self.lock();
            state.sweep(now);
            for condition in &commit.conditions {
                let found = state.live(&condition.key, now).map(|stored| stored.revision);
                if !condition.expect.holds(found) {
                    return Err(Error::Conflict { key: condition.key.clone() });
                }
            }
            let revision = Revision::after(state.revision, now);
            state.revision = revision.number();
            for operation in &commit.operations {
                state.apply(operation, revision, now);
            }
            revision
        };
        self.hub.touch(commit.touched());
        Ok(revision)
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        self.hub.subscribe(prefix)
    }
}
