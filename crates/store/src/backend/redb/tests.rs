//! A disk that fails and heals.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ::redb::{Database, StorageBackend};

use super::*;
use crate::error::Retry;
use crate::key::TableName;
use crate::store::Store;

/// A file in memory that outlives its handles, as one on a disk does.
#[derive(Clone, Debug, Default)]
struct Disk {
    bytes: Arc<RwLock<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn check(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        out.copy_from_slice(&self.bytes.read().unwrap()[start..start + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.bytes.write().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let (start, mut bytes) = (offset as usize, self.bytes.write().unwrap());
        let length = bytes.len().max(start + data.len());
        bytes.resize(length, 0);
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// A store on this disk, with its journal on that one.
fn open(disk: &Disk, journal: &Disk, sync: Sync) -> Result<Redb, Error> {
    let (device, journal) = (disk.clone(), journal.clone());
    let opener = Box::new(move || Database::builder().create_with_backend(device.clone()));
    let journal = || Ok(Journal::on(Box::new(journal)));
    let (file, journal) = File::open_with(Path::new("in memory"), opener, journal)?;
    Redb::with_file(file, journal, sync, Clock::system())
}

fn key(name: &str) -> Key {
    TableName::new("t").unwrap().key(name.to_owned())
}

async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let reached = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), reached).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_was_full_is_used_again() {
    for sync in [Sync::Soon, Sync::Each] {
        let (disk, mut journal) = (Disk::default(), Disk::default());
        // One disk for both, as they are beside each other.
        journal.full = Arc::clone(&disk.full);
        let store = Store::new(open(&disk, &journal, sync).unwrap());
        let revision = store.put(key("before"), "v").await.unwrap();

        disk.full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let error = store.put(key("lost"), "v").await.unwrap_err();
            assert!(matches!(error, Error::File { operation: "write" | "open", .. }), "{error:?}");
            assert_eq!(error.class().retry, Retry::Later);
        }
        disk.full.store(false, Ordering::SeqCst);
        assert!(store.put(key("after"), "v").await.unwrap() > revision);
        assert_eq!(store.get(&key("before")).await.unwrap().unwrap().revision, revision);
        assert_eq!(store.get(&key("lost")).await.unwrap(), None);

        // Reads recover too, without waiting for somebody to write.
        disk.full.store(true, Ordering::SeqCst);
        store.put(key("lost"), "v").await.unwrap_err();
        disk.full.store(false, Ordering::SeqCst);
        until(|| async { store.get(&key("after")).await.is_ok() }).await;
    }
}

/// The journal took a write, and then the flush finds no room: the store says so until there is some,
/// and then has everything that it acknowledged.
#[tokio::test]
async fn a_flush_that_fails_is_told_and_loses_nothing() {
    let (disk, journal) = (Disk::default(), Disk::default());
    let backend = open(&disk, &journal, Sync::Soon).unwrap();
    let stats = backend.stats();
    let store = Store::new(backend);
    store.put(key("flushed"), "v").await.unwrap();
    until(|| async { stats.transactions() == 1 }).await;
    disk.full.store(true, Ordering::SeqCst);
    let revision = store.put(key("acknowledged"), "v").await.unwrap();
    // What health asks.
    until(|| async { store.ping().await.is_err() }).await;
    let error = store.put(key("refused"), "v").await.unwrap_err();
    assert!(matches!(error, Error::File { operation: "open", .. }), "{error:?}");
    disk.full.store(false, Ordering::SeqCst);
    until(|| async { store.ping().await.is_ok() }).await;
    assert_eq!(store.get(&key("acknowledged")).await.unwrap().unwrap().revision, revision);
    assert_eq!(store.get(&key("refused")).await.unwrap(), None);
    assert!(store.put(key("refused"), "w").await.unwrap() > revision);
}

/// A machine whose process died: the disk as it was, and the journal cut anywhere.
#[tokio::test]
async fn any_cut_of_the_journal_gives_the_state_of_a_moment() {
    let (disk, journal) = (Disk::default(), Disk::default());
    drop(open(&disk, &journal, Sync::Soon).unwrap());
    let before = disk.bytes.read().unwrap().clone();
    // The disk takes no flush, so that everything stays in the journal; the store is left as a killed
    // process leaves it.
    let store = Store::new(open(&disk, &journal, Sync::Soon).unwrap());
    disk.full.store(true, Ordering::SeqCst);
    let mut revisions = Vec::new();
    for number in 0..20_u8 {
        let commit = Commit::new()
            .put(key("count"), vec![number])
            .put_for(key("brief"), vec![number], Duration::from_hours(1))
            .put(key(&number.to_string()), vec![number; usize::from(number) * 11]);
        let commit = if number > 3 { commit.delete(key(&(number - 3).to_string())) } else { commit };
        match store.commit(commit).await {
            Ok(revision) => revisions.push(revision),
            // A flush was tried meanwhile. What came before it is enough.
            Err(_) => break,
        }
    }
    assert!(!revisions.is_empty());
    let written = journal.bytes.read().unwrap().clone();
    let mut seen = 0;
    for cut in (0..written.len()).step_by(29).chain([written.len()]) {
        let (disk, journal) = (Disk::default(), Disk::default());
        disk.bytes.write().unwrap().clone_from(&before);
        journal.bytes.write().unwrap().extend(&written[..cut]);
        let store = Store::new(open(&disk, &journal, Sync::Soon).unwrap());
        let Some(count) = store.get(&key("count")).await.unwrap() else {
            assert_eq!(seen, 0, "a longer journal gives more");
            continue;
        };
        let number = count.value[0];
        assert!(usize::from(number) + 1 >= seen, "a longer journal gives more");
        seen = usize::from(number) + 1;
        assert_eq!(count.revision, revisions[usize::from(number)]);
        let brief = store.get(&key("brief")).await.unwrap().unwrap();
        assert_eq!((brief.value, brief.revision), (count.value, count.revision), "half a commit");
        assert!(brief.expires_in.is_some());
        for other in 0..20_u8 {
            let there = store.get(&key(&other.to_string())).await.unwrap().is_some();
            let removed = (1..=number.saturating_sub(3)).contains(&other);
            assert_eq!(there, other <= number && !removed, "{other} after {number}");
        }
    }
    assert_eq!(seen, revisions.len(), "the whole journal gives everything");
}
