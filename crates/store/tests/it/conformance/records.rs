//! Reading, writing, ranges, expiry and limits.

use std::time::Duration;

use tarbet_store::{COMMIT_MAX, Commit, Error, Invalid, KEY_MAX, OPERATIONS_MAX, Prefix, VALUE_MAX};

use super::everywhere;
use crate::place::{Place, key, prefix, table, text};

/// Long enough that a slow machine does not lose the race, short enough to wait for.
const SHORT: Duration = Duration::from_millis(1500);
/// Long enough to do something about it, on a busy machine too.
const SOON: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_hours(1);

everywhere! {
    what_is_put_is_read
    prefixes_are_apart
    pages_are_complete_and_in_order
    a_page_is_bounded_in_bytes
    everything_spans_tables
    entries_expire
    a_refresh_puts_expiry_off
    writing_again_forgets_the_expiry
    any_bytes_will_do
    limits_are_kept
}

async fn what_is_put_is_read(place: &impl Place) {
    let (here, there) = (place.open(), place.open());
    assert_eq!(here.get(&key("k")).await.unwrap(), None);
    let first = here.put(key("k"), "one").await.unwrap();
    let entry = there.get(&key("k")).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.revision, entry.expires_in), (&b"one"[..], first, None));
    let second = there.put(key("k"), "two").await.unwrap();
    assert!(second > first);
    assert_eq!(here.get(&key("k")).await.unwrap().unwrap().revision, second);
    let third = here.delete(key("k")).await.unwrap();
    assert!(third > second);
    assert_eq!(there.get(&key("k")).await.unwrap(), None);
    here.delete(key("k")).await.unwrap();
    here.ping().await.unwrap();
}

async fn prefixes_are_apart(place: &impl Place) {
    let store = place.open();
    let names: [&[u8]; 8] = [b"a", b"a/", b"a/1", b"a/2", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x00"];
    for name in names {
        store.put(key(name), name).await.unwrap();
        store.put(table("t2").key(name), "other table").await.unwrap();
    }
    for start in [&b""[..], b"a", b"a/", b"a/1", b"b", b"c", b"\xff", b"\xff\xff"] {
        let found = store.list(&prefix(start)).await.unwrap();
        let found: Vec<Vec<u8>> = found.iter().map(|entry| entry.value.to_vec()).collect();
        let expected: Vec<Vec<u8>> =
            names.iter().filter(|name| name.starts_with(start)).map(|name| name.to_vec()).collect();
        assert_eq!(found, expected, "{}", start.escape_ascii());
    }
}

async fn pages_are_complete_and_in_order(place: &impl Place) {
    let store = place.open();
    let total = 1100_u32;
    let all: Vec<u32> = (0..total).collect();
    for chunk in all.chunks(OPERATIONS_MAX) {
        let fill =
            chunk.iter().fold(Commit::new(), |commit, i| commit.put(key(i.to_be_bytes()), i.to_string()));
        store.commit(fill).await.unwrap();
    }
    store.put(table("u").key("k"), "not this").await.unwrap();
    for limit in [1, 7, 550, 1000, usize::MAX] {
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        // One by one is only tried for a part of the way.
        while limit > 1 || pages < 20 {
            let page = store.range(&prefix(""), after.as_ref(), limit).await.unwrap();
            assert!(page.entries.len() <= limit.min(1000));
            seen.extend(page.entries.iter().map(|entry| entry.key.clone()));
            pages += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let count = if limit > 1 { total } else { 20 };
        assert_eq!(seen, (0..count).map(|i| key(i.to_be_bytes())).collect::<Vec<_>>(), "limit {limit}");
    }
    assert_eq!(store.list(&prefix("")).await.unwrap().len(), total as usize);
}

async fn a_page_is_bounded_in_bytes(place: &impl Place) {
    let store = place.open();
    for name in 0..7_u8 {
        store.put(key([name]), vec![name; VALUE_MAX]).await.unwrap();
    }
    let page = store.range(&prefix(""), None, 1000).await.unwrap();
    assert!(page.entries.len() < 7 && page.next.is_some());
    let all = store.list(&prefix("")).await.unwrap();
    assert_eq!(all.len(), 7);
    assert!(all.iter().all(|entry| entry.value.len() == VALUE_MAX && entry.value[9] == entry.key.bytes[0]));
}

async fn everything_spans_tables(place: &impl Place) {
    let store = place.open();
    assert_eq!(store.list(&Prefix::everything()).await.unwrap(), []);
    let mut expected = Vec::new();
    for name in ["a", "b", "b-c", "z"] {
        for i in 0..5_u8 {
            expected.push(table(name).key(vec![i]));
        }
    }
    for key in expected.iter().rev() {
        store.put(key.clone(), "").await.unwrap();
    }
    // A table that became empty is passed over.
    store.put(table("m").key("x"), "").await.unwrap();
    store.delete(table("m").key("x")).await.unwrap();
    for limit in [1, 3, 5, 100] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.range(&Prefix::everything(), after.as_ref(), limit).await.unwrap();
            seen.extend(page.entries.into_iter().map(|entry| entry.key));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, expected, "limit {limit}");
    }
}

async fn entries_expire(place: &impl Place) {
    let store = place.open();
    store.put_for(key("brief"), "0", SHORT).await.unwrap();
    store.put_for(key("short"), "1", LONG).await.unwrap();
    let revision = store.put_for(key("long"), "2", LONG).await.unwrap();
    store.put(key("ever"), "3").await.unwrap();
    let left = store.get(&key("short")).await.unwrap().unwrap().expires_in.unwrap();
    assert!(left <= LONG && !left.is_zero(), "{left:?}");
    store.refresh(key("short"), SHORT).await.unwrap();
    place.pass(SHORT * 2).await;
    assert_eq!(store.get(&key("brief")).await.unwrap(), None);
    assert_eq!(store.get(&key("short")).await.unwrap(), None);
    let names: Vec<_> = store.list(&prefix("")).await.unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(names, [key("ever"), key("long")]);
    assert_eq!(store.get(&key("long")).await.unwrap().unwrap().revision, revision);
    // What has expired is absent for conditions too.
    let gone = store.commit(Commit::new().present(key("short")).put(key("x"), "")).await;
    assert!(gone.unwrap_err().is_conflict());
    let refreshed = store.refresh(key("short"), LONG).await;
    assert!(refreshed.unwrap_err().is_conflict());
    store.create(key("short"), "again").await.unwrap();
    assert_eq!(text(&store, &key("short")).await.as_deref(), Some("again"));
}

async fn a_refresh_puts_expiry_off(place: &impl Place) {
    let store = place.open();
    let revision = store.put_for(key("k"), "v", SOON).await.unwrap();
    assert!(store.refresh(key("k"), LONG).await.unwrap() > revision);
    place.pass(SOON * 2).await;
    let entry = store.get(&key("k")).await.unwrap().unwrap();
    assert_eq!((entry.revision, &entry.value[..]), (revision, &b"v"[..]));
    assert!(entry.expires_in.unwrap() > SHORT);
    // It can also be brought forward, and given to what had none.
    store.refresh(key("k"), SHORT).await.unwrap();
    store.put(key("ever"), "v").await.unwrap();
    store.refresh(key("ever"), SHORT).await.unwrap();
    place.pass(SHORT * 2).await;
    assert_eq!(store.list(&prefix("")).await.unwrap(), []);
}

async fn writing_again_forgets_the_expiry(place: &impl Place) {
    let store = place.open();
    store.put_for(key("k"), "v", SHORT).await.unwrap();
    store.put(key("k"), "w").await.unwrap();
    store.put_for(key("d"), "v", SHORT).await.unwrap();
    store.delete(key("d")).await.unwrap();
    store.put(key("d"), "w").await.unwrap();
    place.pass(SHORT * 2).await;
    // Something that makes the store sweep what has expired.
    store.put(key("x"), "").await.unwrap();
    assert_eq!(store.get(&key("k")).await.unwrap().unwrap().expires_in, None);
    assert_eq!(text(&store, &key("d")).await.as_deref(), Some("w"));
}

async fn any_bytes_will_do(place: &impl Place) {
    let store = place.open();
    let every: Vec<u8> = (0..=255).collect();
    let mut names: Vec<Vec<u8>> = every.iter().map(|byte| vec![*byte]).collect();
    names.extend([
        b"\0\0".to_vec(),
        b"\r\n $1".to_vec(),
        every.clone(),
        vec![0xff; KEY_MAX],
        b"k \0 v".to_vec(),
    ]);
    for name in &names {
        let value = [&name[..], &every].concat();
        store.put_for(key(name.clone()), value, LONG).await.unwrap();
    }
    for name in &names {
        let entry = store.get(&key(name.clone())).await.unwrap().unwrap();
        assert_eq!(entry.value, [&name[..], &every].concat());
    }
    names.sort();
    let listed = store.list(&prefix("")).await.unwrap();
    assert_eq!(listed.iter().map(|entry| entry.key.bytes.to_vec()).collect::<Vec<_>>(), names);
    store.put(key("empty"), "").await.unwrap();
    assert_eq!(text(&store, &key("empty")).await.as_deref(), Some(""));
}

async fn limits_are_kept(place: &impl Place) {
    let store = place.open();
    let refused = async |commit: Commit| match store.commit(commit).await {
        Err(Error::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Commit::new().present(key("a"))).await, Invalid::EmptyCommit);
    assert!(matches!(refused(Commit::new().put(key(""), "")).await, Invalid::KeyLength { length: 0, .. }));
    let long = vec![7; KEY_MAX + 1];
    assert!(matches!(refused(Commit::new().put(key(long), "")).await, Invalid::KeyLength { .. }));
    let big = vec![7; VALUE_MAX + 1];
    assert!(matches!(refused(Commit::new().put(key("a"), big)).await, Invalid::ValueLength { .. }));
    let twice = Commit::new().put(key("a"), "").delete(key("a"));
    assert_eq!(refused(twice).await, Invalid::RepeatedKey(key("a")));
    let instant = Commit::new().put_for(key("a"), "", Duration::ZERO);
    assert_eq!(refused(instant).await, Invalid::TimeToLive(key("a")));
    let many =
        |count: usize| (0..count).fold(Commit::new(), |commit, i| commit.put(key(i.to_be_bytes()), ""));
    assert!(matches!(refused(many(OPERATIONS_MAX + 1)).await, Invalid::CommitSize { .. }));
    let heavy =
        |count: u8| (0..count).fold(Commit::new(), |commit, i| commit.put(key([i]), vec![i; VALUE_MAX]));
    assert!(matches!(refused(heavy(9)).await, Invalid::CommitSize { .. }));
    assert_eq!(store.list(&Prefix::everything()).await.unwrap(), []);

    store.commit(many(OPERATIONS_MAX)).await.unwrap();
    let most = (COMMIT_MAX / VALUE_MAX) as u8 - 1;
    store.commit(heavy(most)).await.unwrap();
    assert_eq!(store.list(&Prefix::everything()).await.unwrap().len(), OPERATIONS_MAX + most as usize);
}
