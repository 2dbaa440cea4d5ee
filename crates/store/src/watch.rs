//! Following a prefix: first what is there, then what changes.
//!
//! A watch remembers the revision of every key it told of, and tells the difference whenever it looks
//! again: when a hint comes, when the timer says so, or when something it knows of is due to expire.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::entry::{Entry, Revision};
use crate::error::Error;
use crate::hints::Hints;
use crate::key::{Key, Prefix};
use crate::store::Store;

/// Looks are at least this far apart, so that a burst of hints costs one look.
const GAP: Duration = Duration::from_millis(10);
/// After a failed look.
const RETRY: Duration = Duration::from_millis(200);

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This is there now, new or different.
    Put(Entry),
    /// This is no longer there: removed or expired.
    Deleted(Key),
}

/// Follows a prefix. Intermediate states may be skipped; the last one never is.
///
/// Changes of one commit usually come together, but a prefix that needs several pages may show
/// them in two steps.
#[derive(Debug)]
pub struct Watch {
    store: Store,
    prefix: Prefix,
    hints: Hints,
    reread: Duration,
    known: BTreeMap<Key, Revision>,
    /// Nothing has been told yet, so even an empty answer is news.
    fresh: bool,
    /// A look is owed. Kept here so that dropping `next` halfway loses nothing.
    owed: bool,
    earliest: Instant,
    latest: Instant,
}

impl Watch {
    pub(crate) fn new(store: Store, prefix: Prefix, hints: Hints, reread: Duration) -> Self {
        let now = Instant::now();
        let known = BTreeMap::new();
        Self { store, prefix, hints, reread, known, fresh: true, owed: true, earliest: now, latest: now }
    }

    /// The next changes. The first call tells all that is there, even if that is nothing; later calls
    /// wait until there is something to tell.
    ///
    /// An error means one failed look: call again to go on, nothing will have been missed.
    /// Dropping the future halfway is safe.
    pub async fn next(&mut self) -> Result<Vec<Change>, Error> {
        loop {
            if !self.owed {
                tokio::select! {
                    () = self.hints.changed() => {}
                    () = tokio::time::sleep_until(self.latest) => {}
                }
                self.owed = true;
            }
            tokio::time::sleep_until(self.earliest).await;
            let looked = Instant::now();
            let entries = match self.store.list(&self.prefix).await {
                Ok(entries) => entries,
                Err(error) => {
                    self.earliest = Instant::now() + RETRY;
                    return Err(error);
                }
            };
            let soonest = entries.iter().filter_map(|entry| entry.expires_in).min();
            self.latest = looked + soonest.map_or(self.reread, |left| self.reread.min(left));
            self.earliest = looked + GAP;
            self.owed = false;
            let changes = difference(&mut self.known, entries);
            if !changes.is_empty() || std::mem::take(&mut self.fresh) {
                return Ok(changes);
            }
        }
    }
}

/// What changed between what is known and what is there; afterwards that is known.
fn difference(known: &mut BTreeMap<Key, Revision>, entries: Vec<Entry>) -> Vec<Change> {
    let present: HashSet<&Key> = entries.iter().map(|entry| &entry.key).collect();
    let gone: Vec<Key> = known.keys().filter(|key| !present.contains(key)).cloned().collect();
    let mut changes = Vec::new();
    for key in gone {
        known.remove(&key);
        changes.push(Change::Deleted(key));
    }
    for entry in entries {
        if known.insert(entry.key.clone(), entry.revision) != Some(entry.revision) {
            changes.push(Change::Put(entry));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableName;
    use proptest::prelude::*;

    fn entry((key, revision): (&u8, &u64)) -> Entry {
        let key = TableName::new("t").unwrap().key(vec![*key]);
        Entry { key, value: bytes::Bytes::new(), revision: Revision::new(*revision), expires_in: None }
    }

    proptest! {
        #[test]
        fn applying_the_differences_gives_what_is_there(
            states in prop::collection::vec(prop::collection::btree_map(0..6_u8, 0..3_u64, 0..6), 1..8)
        ) {
            let mut known = BTreeMap::new();
            let mut replica = BTreeMap::new();
            for state in states {
                let now: Vec<Entry> = state.iter().map(entry).collect();
                let changes = difference(&mut known, now.clone());
                let unchanged = now.iter().filter(|entry| replica.get(&entry.key) == Some(*entry)).count();
                let puts = changes.iter().filter(|change| matches!(change, Change::Put(_))).count();
                prop_assert_eq!(puts + unchanged, now.len());
                for change in changes {
                    match change {
                        Change::Put(entry) => { replica.insert(entry.key.clone(), entry); }
                        Change::Deleted(key) => prop_assert!(replica.remove(&key).is_some()),
                    }
                }
                prop_assert_eq!(replica.values().cloned().collect::<Vec<_>>(), now);
            }
        }
    }
}
