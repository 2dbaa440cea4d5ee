//! What is special to a store in a file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};
use tarbet_store::backend::Redb;
use tarbet_store::{Clock, Error, ManualClock, Prefix, RedbConfig, Store, StoreConfig, Sync};
use tarbet_telemetry::Coded;
use tarbet_testbed::eventually;

use crate::effort;
use crate::place::{key, prefix, text};

type EntryKey = (&'static str, &'static [u8]);
type EntryValue = (u64, u64, &'static [u8]);
const ENTRIES: TableDefinition<EntryKey, EntryValue> = TableDefinition::new("entries");
const EXPIRY: TableDefinition<(u64, &str, &[u8]), ()> = TableDefinition::new("expiry");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

fn open(path: &Path, clock: Clock) -> Result<Redb, Error> {
    Redb::open(&RedbConfig::at(path), clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commits_share_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let config = RedbConfig { sync: Sync::Each, ..RedbConfig::at(folder.path().join("store.redb")) };
    let backend = Redb::open(&config, Clock::system()).unwrap();
    let stats = backend.stats();
    let store = Store::new(backend);
    let (callers, each) = (64_u64, u64::from(10 * effort()));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for i in 0..each {
                    store.put(key([caller.to_be_bytes(), i.to_be_bytes()].concat()), "v").await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(stats.commits(), callers * each);
    assert_eq!(store.list(&prefix("")).await.unwrap().len() as u64, callers * each);
    let flushes = stats.transactions();
    assert!(flushes * 8 < callers * each, "{flushes} flushes for {} commits", callers * each);
    // A conflict and a store without anything to do flush nothing.
    let before = stats.transactions();
    store.create(key([0; 16].to_vec()), "").await.unwrap_err();
    assert_eq!(stats.transactions(), before);
}

/// Acknowledged at once, on the disk soon: then nothing is left for the journal to give back.
#[tokio::test]
async fn a_flush_follows_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let backend = open(&path, Clock::system()).unwrap();
    let stats = backend.stats();
    let store = Store::new(backend);
    for round in 1..=3 {
        store.put(key("k"), "v").await.unwrap();
        let flushed = || async { stats.transactions() == round };
        eventually(Duration::from_mins(1), "a flush", flushed).await.unwrap();
    }
    let mode = folder.path().join("store.redb.journal").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only for its owner: {mode:o}");
}

/// A file that was removed, or put back from a copy, is not filled from the journal of another.
#[tokio::test]
async fn a_journal_beside_another_file_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let store = Store::new(open(&path, Clock::system()).unwrap());
    store.put(key("early"), "v").await.unwrap();
    drop(store);
    let copy = std::fs::read(&path).unwrap();
    let store = Store::new(open(&path, Clock::system()).unwrap());
    store.put(key("late"), "v").await.unwrap();
    drop(store);
    std::fs::write(&path, copy).unwrap();
    let store = Store::new(open(&path, Clock::system()).unwrap());
    assert_eq!(text(&store, &key("early")).await.as_deref(), Some("v"));
    drop(store);
    std::fs::remove_file(&path).unwrap();
    let store = Store::new(open(&path, Clock::system()).unwrap());
    assert_eq!(store.list(&Prefix::everything()).await.unwrap(), []);
}

#[tokio::test]
async fn a_store_is_there_again_after_it_was_closed() {
    let folder = tempfile::tempdir().unwrap();
    let config = StoreConfig::Redb(RedbConfig::at(folder.path().join("new/folder/store.redb")));
    let store = tarbet_store::open(&config, Clock::system()).await.unwrap();
    let revision = store.put(key("k"), "v").await.unwrap();
    drop(store);
    let store = tarbet_store::open(&config, Clock::system()).await.unwrap();
    assert_eq!(store.get(&key("k")).await.unwrap().unwrap().revision, revision);
    assert!(store.put(key("k"), "w").await.unwrap() > revision);
    let mode = folder.path().join("new/folder/store.redb").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only for its owner: {mode:o}");
}

/// Revisions go on rising after the clock was set back.
#[tokio::test]
async fn revisions_survive_a_clock_that_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let late = Store::new(open(&path, Clock::system()).unwrap());
    let revision = late.put(key("k"), "v").await.unwrap();
    drop(late);
    let early = Store::new(open(&path, ManualClock::new().clock()).unwrap());
    assert!(early.put(key("k"), "w").await.unwrap() > revision);
}

/// Names the store for the process that finds it locked.
const CHILD: &str = "TARBET_STORE_LOCK_CHILD";

/// Not a test by itself: the second process.
#[test]
fn second_process() {
    if let Some(path) = std::env::var_os(CHILD) {
        let problem = open(Path::new(&path), Clock::system()).unwrap_err().problem();
        println!("{} {}", problem.code, problem.message);
    }
}

#[tokio::test]
async fn a_second_process_is_told_who_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let _owner = open(&path, Clock::system()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::second_process", "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let me = std::env::current_exe().unwrap();
    let me = me.file_name().unwrap().to_string_lossy();
    let owner = format!("is in use by process {} ({me}).", std::process::id());
    assert!(said.contains("TB-0302") && said.contains(&owner), "{said}");
    let again = open(&path, Clock::system()).unwrap_err();
    assert!(
        matches!(&again, Error::Locked { owner, .. } if owner.starts_with("this very process")),
        "{again}"
    );
}

#[tokio::test]
async fn an_older_layout_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let (hand, second) = (ManualClock::new(), 1_000_000);
    let now = 1_000_000_000 * second;
    {
        // Layout 1 had no index of what expires.
        let old = redb::Database::create(&path).unwrap();
        let transaction = old.begin_write().unwrap();
        let mut entries = transaction.open_table(ENTRIES).unwrap();
        entries.insert(("t", &b"ever"[..]), (17, 0, &b"one"[..])).unwrap();
        entries.insert(("t", &b"gone"[..]), (18, now - second, &b"two"[..])).unwrap();
        entries.insert(("t", &b"soon"[..]), (19, now + 5 * second, &b"three"[..])).unwrap();
        drop(entries);
        let mut meta = transaction.open_table(META).unwrap();
        meta.insert("schema", 1).unwrap();
        meta.insert("revision", 19).unwrap();
        drop(meta);
        transaction.commit().unwrap();
    }
    let store = Store::new(open(&path, hand.clock()).unwrap());
    assert_eq!(text(&store, &key("ever")).await.as_deref(), Some("one"));
    assert_eq!(store.get(&key("ever")).await.unwrap().unwrap().revision.number(), 17);
    assert_eq!(text(&store, &key("gone")).await, None);
    let soon = store.get(&key("soon")).await.unwrap().unwrap();
    assert_eq!(soon.expires_in, Some(Duration::from_secs(5)));
    hand.advance(Duration::from_secs(6));
    // Any commit sweeps what has expired, which takes the index.
    assert!(store.put(key("new"), "").await.unwrap().number() > 19);
    drop(store);
    let file = redb::Database::open(&path).unwrap().begin_read().unwrap();
    assert_eq!(file.open_table(ENTRIES).unwrap().len().unwrap(), 2);
    assert_eq!(file.open_table(EXPIRY).unwrap().len().unwrap(), 0);
}

#[tokio::test]
async fn a_newer_layout_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let newer = redb::Database::create(&path).unwrap();
    let transaction = newer.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("schema", 99).unwrap();
    transaction.commit().unwrap();
    drop(newer);
    let refused = open(&path, Clock::system()).unwrap_err();
    assert!(matches!(refused, Error::Schema { found: 99, .. }), "{refused}");
    assert_eq!(refused.problem().code, "TB-0304");
    let file = redb::Database::open(&path).unwrap().begin_read().unwrap();
    assert_eq!(file.open_table(META).unwrap().get("schema").unwrap().unwrap().value(), 99);
    assert!(file.open_table(ENTRIES).is_err());
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "dear diary, ".repeat(1000)).unwrap();
    let refused = open(&path, Clock::system()).unwrap_err();
    assert!(matches!(refused, Error::File { operation: "open", .. }), "{refused}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("dear diary"));
    let nowhere = open(&path.join("below/a/file"), Clock::system()).unwrap_err();
    assert!(matches!(nowhere, Error::File { .. }), "{nowhere}");
}

#[tokio::test]
async fn what_expired_is_swept_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb");
    let hand = ManualClock::new();
    let store = Store::new(open(&path, hand.clock()).unwrap());
    for i in 0..100_u8 {
        store.put_for(key([i]), "v", Duration::from_secs(1)).await.unwrap();
        store.refresh(key([i]), Duration::from_secs(u64::from(i)).max(Duration::from_secs(1))).await.unwrap();
    }
    hand.advance(Duration::from_secs(50));
    store.put(key("last"), "").await.unwrap();
    assert_eq!(store.list(&Prefix::everything()).await.unwrap().len(), 50);
    drop(store);
    let file = redb::Database::open(&path).unwrap().begin_read().unwrap();
    assert_eq!(file.open_table(ENTRIES).unwrap().len().unwrap(), 50);
    assert_eq!(file.open_table(EXPIRY).unwrap().len().unwrap(), 49);
}
