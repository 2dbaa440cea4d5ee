//! Permit lists that are behind their tags, and when they are looked at again.
//!
//! Only in memory: the rules as they were last given and the tags are in the store, so whoever begins to act
//! compares the two and knows the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How soon a permit list that could not be brought in line is tried again, and how slowly at last. A member
/// that was taken out stays permitted for so long after its cloud can be reached again.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Entry {
    /// The tags whose change it is about, where that is known.
    tags: BTreeSet<String>,
    /// How often it failed in a row.
    failures: u32,
    /// When it is to be done; nothing while somebody is at it.
    due: Option<Instant>,
    /// Whether its tags changed again while somebody is at it.
    again: bool,
}

#[derive(Debug, Default)]
pub(super) struct Owed {
    lists: Mutex<BTreeMap<String, Entry>>,
    /// Whether all permit lists are to be compared with their tags.
    review: Mutex<bool>,
    more: Notify,
}

/// A permit list that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) subscriber: String,
    /// Whether it failed before.
    pub(super) failed: bool,
}

impl Owed {
    fn lists(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tag of these changed.
    pub(super) fn add(&self, subscribers: impl IntoIterator<Item = String>, tag: &str, now: Instant) {
        let mut lists = self.lists();
        for subscriber in subscribers {
            let entry = lists.entry(subscriber).or_insert_with(|| Entry::new(now));
            entry.tags.insert(tag.to_owned());
            if entry.due.is_some() {
                (entry.due, entry.failures) = (Some(now), 0);
            } else {
                entry.again = true;
            }
        }
        drop(lists);
        self.more.notify_one();
    }

    /// This one could not be brought in line.
    pub(super) fn failed(&self, subscriber: &str, tag: &str, now: Instant) {
        let mut lists = self.lists();
        let entry = lists.entry(subscriber.to_owned()).or_insert_with(|| Entry::new(now));
        if !tag.is_empty() {
            entry.tags.insert(tag.to_owned());
        }
        let pause = AGAIN.saturating_mul(1 << entry.failures.min(10)).min(AGAIN_MAX);
        entry.failures += 1;
        entry.again = false;
        entry.due = Some(now + pause);
        drop(lists);
        self.more.notify_one();
    }

    /// This one is in line with what its tags were when it was begun.
    pub(super) fn settled(&self, subscriber: &str, now: Instant) {
        let mut lists = self.lists();
        let Some(entry) = lists.get_mut(subscriber) else { return };
        if entry.again {
            *entry = Entry { tags: std::mem::take(&mut entry.tags), ..Entry::new(now) };
            drop(lists);
            self.more.notify_one();
        } else if entry.due.is_none() {
            lists.remove(subscriber);
        }
        // One that waits is looked at when it is due: its tags may have changed after this was begun.
    }

    /// Nobody is at these any more, and nobody wants to be.
    pub(super) fn let_go<'a>(&self, subscribers: impl IntoIterator<Item = &'a String>, now: Instant) {
        let mut lists = self.lists();
        for subscriber in subscribers {
            match lists.get_mut(subscriber) {
                // Its tags have changed again meanwhile, and nobody else has heard it.
                Some(entry) if entry.again => {
                    *entry = Entry { tags: std::mem::take(&mut entry.tags), ..Entry::new(now) };
                }
                Some(entry) if entry.due.is_none() => {
                    lists.remove(subscriber);
                }
                _ => {}
            }
        }
        drop(lists);
        self.more.notify_one();
    }

    /// Those whose time has come. Whoever takes them says what came of each.
    pub(super) fn take_due(&self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        for (subscriber, entry) in &mut *self.lists() {
            if entry.due.is_some_and(|at| at <= now) {
                (entry.due, entry.again) = (None, false);
                due.push(Due { subscriber: subscriber.clone(), failed: entry.failures > 0 });
            }
        }
        due
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.lists().values().filter_map(|entry| entry.due).min()
    }

    /// Those that are behind because of this tag.
    pub(super) fn because_of(&self, tag: &str) -> BTreeSet<String> {
        let lists = self.lists();
        let found = lists.iter().filter(|(_, entry)| entry.tags.contains(tag));
        found.map(|(subscriber, _)| subscriber.clone()).collect()
    }

    /// Has all permit lists compared; what was noted before counts no more.
    pub(super) fn begin_anew(&self) {
        self.lists().clear();
        *self.review.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.more.notify_one();
    }

    /// Whether all are to be compared; asking takes it back.
    pub(super) fn take_review(&self) -> bool {
        std::mem::take(&mut *self.review.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something was noted.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }
}

impl Entry {
    fn new(due: Instant) -> Self {
        Self { tags: BTreeSet::new(), failures: 0, due: Some(due), again: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(owed: &Owed, now: Instant) -> Vec<(String, bool)> {
        owed.take_due(now).into_iter().map(|due| (due.subscriber, due.failed)).collect()
    }

    #[test]
    fn what_fails_comes_again_and_more_slowly_each_time() {
        let (owed, mut now) = (Owed::default(), Instant::now());
        owed.add(["s".to_owned()], "g", now);
        assert_eq!(taken(&owed, now), [("s".to_owned(), false)]);
        assert_eq!(taken(&owed, now), [], "somebody is at it");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            owed.failed("s", "", now);
            let due = owed.next().unwrap();
            assert_eq!(taken(&owed, now), []);
            pauses.push((due - now).as_secs());
            now = due;
            assert_eq!(taken(&owed, now), [("s".to_owned(), true)]);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(owed.because_of("g").len(), 1);
        owed.settled("s", now);
        assert!(owed.next().is_none() && owed.because_of("g").is_empty());
    }

    #[test]
    fn news_while_somebody_is_at_it_are_not_lost() {
        let (owed, now) = (Owed::default(), Instant::now());
        owed.add(["s".to_owned()], "g", now);
        assert_eq!(taken(&owed, now).len(), 1);
        owed.add(["s".to_owned()], "h", now);
        assert_eq!(taken(&owed, now), []);
        owed.settled("s", now);
        assert_eq!(taken(&owed, now), [("s".to_owned(), false)], "once more, with the news");
        owed.settled("s", now);
        owed.failed("s", "g", now);
        owed.settled("s", now);
        assert!(owed.next().is_some(), "another's success says nothing of what came after it");
        owed.add(["s".to_owned()], "g", now);
        assert_eq!(taken(&owed, now), [("s".to_owned(), false)], "news do not wait for a pause");
        owed.add(["s".to_owned()], "h", now);
        owed.let_go([&"s".to_owned()], now);
        assert_eq!(taken(&owed, now), [("s".to_owned(), false)], "who gave up has not heard the news");
        owed.let_go([&"s".to_owned()], now);
        assert!(owed.next().is_none());
    }
}
