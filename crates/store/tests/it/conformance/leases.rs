//! Leases: one holder, rising tokens, fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tarbet_store::{Commit, LeaseError};

use super::everywhere;
use crate::effort;
use crate::place::{Place, key, text};

/// Longer than any of these tests.
const TTL: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(1500);

everywhere! {
    one_holder_at_a_time_with_rising_tokens
    a_lease_passes_on_when_it_expires
    a_fence_stops_an_old_holder
    a_guard_works_until_the_lease_is_lost
}

async fn one_holder_at_a_time_with_rising_tokens(place: &impl Place) {
    let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let contenders: Vec<_> = (0..6)
        .map(|i| {
            let (store, inside, last) = (place.open(), Arc::clone(&inside), Arc::clone(&last));
            tokio::spawn(async move {
                for _ in 0..3 * effort() {
                    let lease = store.lease(key("leader"), &format!("contender {i}"), TTL).await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    assert!(lease.is_held());
                    let token = lease.token().number();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens must rise");
                    let holder = store.lease_holder(&key("leader")).await.unwrap().unwrap();
                    assert_eq!(holder, (format!("contender {i}"), lease.token()));
                    assert!(store.try_lease(key("leader"), "me too", TTL).await.unwrap().is_none());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    lease.release().await.unwrap();
                }
            })
        })
        .collect();
    for contender in contenders {
        contender.await.unwrap();
    }
    assert_eq!(place.open().lease_holder(&key("leader")).await.unwrap(), None);
}

async fn a_lease_passes_on_when_it_expires(place: &impl Place) {
    let (first, second) = (place.open(), place.open());
    let mut old = first.try_lease(key("l"), "first", TTL).await.unwrap().unwrap();
    assert!(second.try_lease(key("l"), "second", SHORT).await.unwrap().is_none());
    old.renew().await.unwrap();
    first.refresh(key("l"), SHORT).await.unwrap();
    place.pass(SHORT * 2).await;
    let new = second.try_lease(key("l"), "second", TTL).await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(matches!(old.renew().await, Err(LeaseError::Lost { .. })));
    // Letting go of what is lost harms nobody.
    old.release().await.unwrap();
    assert_eq!(first.lease_holder(&key("l")).await.unwrap(), Some(("second".into(), new.token())));
}

async fn a_fence_stops_an_old_holder(place: &impl Place) {
    let store = place.open();
    let old = store.try_lease(key("l"), "first", TTL).await.unwrap().unwrap();
    let fenced = |lease: &tarbet_store::Lease, value: &str| {
        store.commit(Commit::new().expect(lease.fence()).put(key("guarded"), value.to_owned()))
    };
    fenced(&old, "by the first").await.unwrap();
    store.refresh(key("l"), SHORT).await.unwrap();
    place.pass(SHORT * 2).await;
    assert!(fenced(&old, "by nobody").await.unwrap_err().is_conflict());
    let new = store.lease(key("l"), "second", TTL).await.unwrap();
    assert!(fenced(&old, "too late").await.unwrap_err().is_conflict());
    fenced(&new, "by the second").await.unwrap();
    assert_eq!(text(&store, &key("guarded")).await.as_deref(), Some("by the second"));
}

async fn a_guard_works_until_the_lease_is_lost(place: &impl Place) {
    let store = place.open();
    let ttl = Duration::from_secs(9);
    let mut lease = store.try_lease(key("l"), "first", ttl).await.unwrap().unwrap();
    let before = lease.until();
    assert_eq!(lease.guard(async { 7 }).await.unwrap(), 7);
    // Work that goes on until the lease has been renewed at least once.
    let renewed = lease.guard(tokio::time::sleep_until(before)).await;
    renewed.unwrap();
    assert!(lease.is_held());
    // Somebody takes it away: the work is dropped, though it would never end by itself.
    store.put(key("l"), "not a lease any more").await.unwrap();
    let lost = lease.guard(std::future::pending::<()>()).await;
    assert!(matches!(lost, Err(LeaseError::Lost { .. })));
}
