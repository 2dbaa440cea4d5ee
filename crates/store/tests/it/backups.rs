//! A store to a file and back, between all kinds.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tarbet_store::backend::{Memory, Redb, Redis};
use tarbet_store::{
    BackupError, Clock, Commit, Entry, Error, ManualClock, Prefix, RedbConfig, RestoreMode, Store,
    StoreConfig, backup, restore,
};

use crate::effort;
use crate::place::{config, key, table};

/// Some of everything, more than one page.
async fn fill(store: &Store) {
    for i in 0..1200_u32 {
        store.put(table("many").key(i.to_be_bytes().to_vec()), i.to_string()).await.unwrap();
    }
    let every: Vec<u8> = (0..=255).collect();
    store.put(table("bytes").key(every.clone()), every).await.unwrap();
    store.put(key("large"), vec![7; 1024 * 1024]).await.unwrap();
    store.put_for(key("brief"), "", Duration::from_mins(10)).await.unwrap();
    store.put_for(key("long"), "", Duration::from_hours(100)).await.unwrap();
}

async fn contents(store: &Store) -> Vec<(tarbet_store::Key, bytes::Bytes, bool)> {
    let entries = store.list(&Prefix::everything()).await.unwrap();
    entries
        .into_iter()
        .map(|Entry { key, value, expires_in, .. }| (key, value, expires_in.is_some()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_any_kind_fills_any_kind() {
    let folder = tempfile::tempdir().unwrap();
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let clock = Clock::system();
    let file = RedbConfig::at(folder.path().join("store.redb"));
    let kinds = [
        ("memory", Store::new(Memory::new(clock.clone()))),
        ("redb", Store::new(Redb::open(&file, clock.clone()).unwrap())),
        ("redis", Store::new(Redis::open(&config(&server)).unwrap())),
    ];
    let original = Store::new(Memory::new(clock.clone()));
    fill(&original).await;
    let expected = contents(&original).await;
    let mut last = folder.path().join("original.backup");
    let made = backup(&original, &last, &clock).await.unwrap();
    assert_eq!(made.entries, expected.len() as u64);
    for (kind, store) in &kinds {
        let restored = restore(store, &last, RestoreMode::IntoEmpty, &clock).await.unwrap();
        assert_eq!((restored.entries, restored.expired), (made.entries, 0), "{kind}");
        assert_eq!(contents(store).await, expected, "{kind}");
        last = folder.path().join(format!("{kind}.backup"));
        backup(store, &last, &clock).await.unwrap();
        assert!(!folder.path().join(format!("{kind}.backup.part")).exists());
    }
    let mode = last.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only for its owner: {mode:o}");
}

#[tokio::test]
async fn restoring_refuses_to_mix_and_replaces_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b");
    let clock = Clock::system();
    let (source, target) = (Store::new(Memory::new(clock.clone())), Store::new(Memory::new(clock.clone())));
    source.put(key("new"), "new").await.unwrap();
    backup(&source, &path, &clock).await.unwrap();
    let last = target.put(key("old"), "old").await.unwrap();
    let refused = restore(&target, &path, RestoreMode::IntoEmpty, &clock).await.unwrap_err();
    assert!(matches!(refused, BackupError::NotEmpty), "{refused}");
    restore(&target, &path, RestoreMode::Replace, &clock).await.unwrap();
    assert_eq!(contents(&target).await, contents(&source).await);
    let restored = target.get(&key("new")).await.unwrap().unwrap();
    assert!(restored.revision > last, "revisions go on rising");
}

#[tokio::test]
async fn what_expired_meanwhile_stays_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b");
    let hand = ManualClock::new();
    let store = || Store::new(Memory::new(hand.clock()));
    let source = store();
    fill(&source).await;
    backup(&source, &path, &hand.clock()).await.unwrap();
    hand.advance(Duration::from_hours(1));
    let target = store();
    let summary = restore(&target, &path, RestoreMode::IntoEmpty, &hand.clock()).await.unwrap();
    assert_eq!(summary.expired, 1);
    assert_eq!(target.get(&key("brief")).await.unwrap(), None);
    let left = target.get(&key("long")).await.unwrap().unwrap().expires_in.unwrap();
    assert_eq!(left, Duration::from_hours(99));
}

#[tokio::test]
async fn a_damaged_file_is_refused_before_anything_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b");
    let clock = Clock::system();
    let source = Store::new(Memory::new(clock.clone()));
    for i in 0..5_u8 {
        source.put(key([i]), vec![i; 100]).await.unwrap();
    }
    backup(&source, &path, &clock).await.unwrap();
    let good = std::fs::read(&path).unwrap();
    let target = Store::new(Memory::new(clock.clone()));
    target.put(key("mine"), "precious").await.unwrap();
    let before = contents(&target).await;
    let try_with = async |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        let refused = restore(&target, &path, RestoreMode::Replace, &clock).await;
        assert!(matches!(refused, Err(BackupError::Damaged { .. })), "{what}: {refused:?}");
        assert_eq!(contents(&target).await, before, "{what}");
    };
    for end in (0..good.len()).step_by(37) {
        try_with(&good[..end], &format!("cut at {end}")).await;
    }
    for at in (0..good.len()).step_by(29) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        try_with(&bad, &format!("changed at {at}")).await;
    }
    try_with(&[&good[..], b"more\n"].concat(), "something after the end").await;
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    try_with(&[&lines[..2], &lines[3..]].concat().concat(), "a line removed").await;
    try_with(&[&lines[..1], &[lines[2], lines[1]], &lines[3..]].concat().concat(), "two lines swapped").await;
    std::fs::write(&path, String::from_utf8(good).unwrap().replacen("backup\":1", "backup\":2", 1)).unwrap();
    let newer = restore(&target, &path, RestoreMode::Replace, &clock).await.unwrap_err();
    assert!(matches!(newer, BackupError::Version { found: 2, .. }), "{newer}");
    let missing = restore(&target, Path::new("/nowhere/b"), RestoreMode::Replace, &clock).await.unwrap_err();
    assert!(matches!(missing, BackupError::File { operation: "read", .. }), "{missing}");
}

#[tokio::test]
async fn a_half_finished_restore_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("b"), Clock::system());
    let source = Store::new(Memory::new(clock.clone()));
    source.put(key("k"), "v").await.unwrap();
    backup(&source, &path, &clock).await.unwrap();
    let config = StoreConfig::Redb(RedbConfig::at(folder.path().join("store.redb")));
    let store = tarbet_store::open(&config, clock.clone()).await.unwrap();
    // What a restore writes first and removes last.
    store.put(table("store-restore").key("unfinished"), "").await.unwrap();
    assert!(backup(&store, &folder.path().join("c"), &clock).await.is_err());
    drop(store);
    let refused = tarbet_store::open(&config, clock.clone()).await.unwrap_err();
    assert!(matches!(refused, Error::HalfRestored { .. }), "{refused}");
    let store = tarbet_store::open_for_restore(&config, clock.clone()).await.unwrap();
    restore(&store, &path, RestoreMode::Replace, &clock).await.unwrap();
    drop(store);
    let store = tarbet_store::open(&config, clock).await.unwrap();
    assert_eq!(contents(&store).await, contents(&source).await);
}

/// While pairs are being changed together, a backup holds equal halves or there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_busy_store_is_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("b"), Clock::system());
    let store = Store::new(Memory::new(clock.clone()));
    // So many between the two halves that they are never on one page.
    for i in 0..1500_u32 {
        store.put(table("m").key(i.to_be_bytes().to_vec()), "").await.unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, done) = (store.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let mut pause = tokio::time::interval(Duration::from_millis(20));
            for i in 0.. {
                let value = i.to_string();
                let pair = Commit::new()
                    .put(table("a").key("half"), value.clone())
                    .put(table("z").key("half"), value);
                store.commit(pair).await.unwrap();
                if done.load(Ordering::SeqCst) {
                    break;
                }
                pause.tick().await;
            }
        })
    };
    let mut made = 0;
    while made < 3 * effort() {
        match backup(&store, &path, &clock).await {
            Ok(_) => made += 1,
            Err(BackupError::Restless) => continue,
            Err(error) => panic!("{error}"),
        }
        let copy = Store::new(Memory::new(clock.clone()));
        restore(&copy, &path, RestoreMode::IntoEmpty, &clock).await.unwrap();
        let (a, z) = (
            copy.get(&table("a").key("half")).await.unwrap(),
            copy.get(&table("z").key("half")).await.unwrap(),
        );
        assert_eq!(a.map(|entry| entry.value), z.map(|entry| entry.value));
    }
    done.store(true, Ordering::SeqCst);
    writer.await.unwrap();
}
