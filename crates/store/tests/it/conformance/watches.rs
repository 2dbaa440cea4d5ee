//! Following changes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use tarbet_store::{Change, Commit, Key, Revision, Store, Watch};

use super::everywhere;
use crate::effort;
use crate::place::{Place, key, prefix, table};

/// So long that only hints can wake a watcher in time.
const NEVER: Duration = Duration::from_hours(10);
const PATIENCE: Duration = Duration::from_mins(1);

everywhere! {
    a_watch_tells_what_is_there_and_then_what_changes
    a_watch_sees_expiry
    a_watch_hears_nothing_of_refreshes_and_of_others
    a_watch_that_was_interrupted_misses_nothing
    a_watcher_ends_with_the_truth
}

async fn next(watch: &mut Watch) -> Vec<Change> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a change in time").unwrap()
}

/// Applies changes to what a watcher knows.
fn apply(known: &mut BTreeMap<Key, Revision>, changes: Vec<Change>) {
    for change in changes {
        match change {
            Change::Put(entry) => known.insert(entry.key, entry.revision),
            Change::Deleted(key) => known.remove(&key),
        };
    }
}

async fn a_watch_tells_what_is_there_and_then_what_changes(place: &impl Place) {
    let (writer, reader) = (place.open(), place.open().with_reread(NEVER));
    let mut empty = reader.watch(prefix("nothing/"));
    assert_eq!(next(&mut empty).await, []);
    let first = writer.put(key("a/1"), "one").await.unwrap();
    let mut watch = reader.watch(prefix("a/"));
    let there = next(&mut watch).await;
    let [Change::Put(entry)] = &there[..] else { panic!("{there:?}") };
    assert_eq!((&entry.key, entry.revision, &entry.value[..]), (&key("a/1"), first, &b"one"[..]));

    let second = writer.put(key("a/1"), "two").await.unwrap();
    let changes = next(&mut watch).await;
    assert!(matches!(&changes[..], [Change::Put(entry)] if entry.revision == second), "{changes:?}");
    let both = Commit::new().delete(key("a/1")).put(key("a/2"), "");
    writer.commit(both).await.unwrap();
    let changes = next(&mut watch).await;
    assert!(
        matches!(&changes[..], [Change::Deleted(gone), Change::Put(new)]
        if *gone == key("a/1") && new.key == key("a/2")),
        "{changes:?}"
    );
}

async fn a_watch_sees_expiry(place: &impl Place) {
    let store = place.open().with_reread(Duration::from_millis(50));
    let ttl = Duration::from_secs(1);
    store.put_for(key("k"), "", NEVER).await.unwrap();
    let mut watch = store.watch(prefix(""));
    assert_eq!(next(&mut watch).await.len(), 1);
    // Its end comes near only now that it was seen.
    store.refresh(key("k"), ttl).await.unwrap();
    place.pass(ttl * 2).await;
    assert_eq!(next(&mut watch).await, [Change::Deleted(key("k"))]);
}

async fn a_watch_hears_nothing_of_refreshes_and_of_others(place: &impl Place) {
    let store = place.open();
    store.put_for(key("a"), "", NEVER).await.unwrap();
    let mut watch = store.watch(prefix("a"));
    next(&mut watch).await;
    store.refresh(key("a"), NEVER * 2).await.unwrap();
    store.put(key("b"), "").await.unwrap();
    store.put(table("u").key("a"), "").await.unwrap();
    store.put(key("ab"), "the one it hears of").await.unwrap();
    let changes = next(&mut watch).await;
    assert!(matches!(&changes[..], [Change::Put(entry)] if entry.key == key("ab")), "{changes:?}");
    assert!(watch.next().now_or_never().is_none());
}

async fn a_watch_that_was_interrupted_misses_nothing(place: &impl Place) {
    let (writer, reader) = (place.open(), place.open().with_reread(NEVER));
    let mut watch = reader.watch(prefix(""));
    next(&mut watch).await;
    for i in 0..10_u8 {
        writer.put(key([i]), "").await.unwrap();
        // Dropped at once, possibly after it took the hint.
        let mut changes = watch.next().now_or_never().transpose().unwrap().unwrap_or_default();
        while changes.is_empty() {
            changes = tokio::select! {
                changes = next(&mut watch) => changes,
                () = tokio::task::yield_now() => Vec::new(),
            };
        }
        assert!(matches!(&changes[..], [Change::Put(entry)] if entry.key == key([i])), "{changes:?}");
    }
}

async fn churn(store: Store, seed: u8) {
    for i in 0..30 * effort() {
        let name = key([(i * 7 + u32::from(seed)) as u8 % 16]);
        let commit =
            if i % 3 == 2 { Commit::new().delete(name) } else { Commit::new().put(name, i.to_string()) };
        store.commit(commit).await.unwrap();
    }
}

async fn a_watcher_ends_with_the_truth(place: &impl Place) {
    let mut watch = place.open().with_reread(NEVER).watch(prefix(""));
    let mut known = BTreeMap::new();
    apply(&mut known, next(&mut watch).await);
    let writers = [tokio::spawn(churn(place.open(), 0)), tokio::spawn(churn(place.open(), 5))];
    for writer in writers {
        writer.await.unwrap();
    }
    let last = place.open().put(key("z"), "the end").await.unwrap();
    while known.get(&key("z")) != Some(&last) {
        apply(&mut known, next(&mut watch).await);
    }
    let truth = place.open().list(&prefix("")).await.unwrap();
    assert_eq!(known, truth.into_iter().map(|entry| (entry.key, entry.revision)).collect());
}
