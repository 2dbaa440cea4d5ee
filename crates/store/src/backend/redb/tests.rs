//! A disk that fails and heals.

mod steps;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use ::redb::StorageBackend;

use super::*;
use crate::error::Retry;
use crate::key::TableName;
use crate::store::Store;

/// What a disk is like after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    Well,
    Full,
}

/// A file in memory that outlives its handles, as one on a disk does.
#[derive(Clone, Debug, Default)]
struct Disk {
    bytes: Arc<RwLock<Vec<u8>>>,
    /// What it had at the last flush.
    flushed: Arc<RwLock<Vec<u8>>>,
    full: Arc<AtomicBool>,
    /// Takes writes and loses them on their way.
    failing: Arc<AtomicBool>,
    /// What was lost is still in memory, as if it had been written.
    lost: Arc<AtomicBool>,
    /// The next time the file is to be made shorter that fails, and perhaps all after it.
    shrinking: Arc<Mutex<Option<Afterwards>>>,
    /// The names of the threads that opened it.
    opened_by: Arc<Mutex<Vec<Option<String>>>>,
}

impl Disk {
    fn check(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// What a process that starts finds, which has the kernel forget what is not on the disk first.
    fn reread(&self) {
        if self.lost.swap(false, Ordering::SeqCst) {
            self.bytes.write().unwrap().clone_from(&self.flushed.read().unwrap());
        }
    }

    /// What is left of it when the power fails now.
    fn after_power_failure(&self) -> Self {
        let left = Self::default();
        left.bytes.write().unwrap().clone_from(&self.flushed.read().unwrap());
        left
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
        let mut bytes = self.bytes.write().unwrap();
        if (len as usize) < bytes.len()
            && let Some(afterwards) = self.shrinking.lock().unwrap().take()
        {
            self.full.store(afterwards == Afterwards::Full, Ordering::SeqCst);
            return Err(io::Error::other("the file keeps its length"));
        }
        bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.failing.load(Ordering::SeqCst) {
            self.lost.store(true, Ordering::SeqCst);
            return Err(io::Error::other("the device is gone"));
        }
        self.flushed.write().unwrap().clone_from(&self.bytes.read().unwrap());
        Ok(())
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
    let opener = Box::new(move || {
        device.opened_by.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
        device.reread();
        Ok(Box::new(device.clone()) as Box<dyn StorageBackend>)
    });
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
    let mut hints = store.hints(&Prefix::everything());
    disk.full.store(false, Ordering::SeqCst);
    until(|| async { store.ping().await.is_ok() }).await;
    assert_eq!(store.get(&key("acknowledged")).await.unwrap().unwrap().revision, revision);
    assert_eq!(store.get(&key("refused")).await.unwrap(), None);
    // Nobody knows what watchers missed, so they look again.
    tokio::time::timeout(Duration::from_mins(1), hints.changed()).await.unwrap();
    assert!(store.put(key("refused"), "w").await.unwrap() > revision);
}

/// A file is never opened by whoever has other things to run.
#[tokio::test]
async fn the_thread_opens_a_file_that_failed() {
    let (disk, mut journal) = (Disk::default(), Disk::default());
    journal.full = Arc::clone(&disk.full);
    let store = Store::new(open(&disk, &journal, Sync::Soon).unwrap());
    for _ in 0..5 {
        disk.full.store(true, Ordering::SeqCst);
        store.put(key("lost"), "v").await.unwrap_err();
        disk.full.store(false, Ordering::SeqCst);
        store.put(key("after"), "v").await.unwrap();
    }
    let opened = disk.opened_by.lock().unwrap();
    assert!(opened.len() > 5);
    assert!(opened[1..].iter().all(|by| by.as_deref() == Some("store-writer")), "{opened:?}");
}

/// What the next flush says is worth nothing, so that nobody is told that something is on the disk.
#[tokio::test]
async fn after_a_failed_flush_nothing_is_taken_until_a_restart() {
    for sync in [Sync::Soon, Sync::Each] {
        let (disk, journal) = (Disk::default(), Disk::default());
        let store = Store::new(open(&disk, &journal, sync).unwrap()).on_disk();
        let revision = store.put(key("before"), "v").await.unwrap();
        disk.failing.store(true, Ordering::SeqCst);
        let error = store.put(key("doubtful"), "v").await.unwrap_err();
        assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
        assert_eq!(error.class().retry, Retry::AfterReading);

        disk.failing.store(false, Ordering::SeqCst);
        assert!(matches!(store.ping().await, Err(Error::Unflushed { .. })), "health fails");
        for _ in 0..3 {
            let error = store.put(key("refused"), "v").await.unwrap_err();
            assert!(matches!(error, Error::Unflushed { .. }), "{error:?}");
            assert_eq!(error.class().retry, Retry::No);
        }
        drop(store);
        let store = Store::new(open(&disk.after_power_failure(), &journal, sync).unwrap());
        assert_eq!(store.get(&key("before")).await.unwrap().unwrap().revision, revision);
        assert_eq!(store.get(&key("refused")).await.unwrap(), None);
        assert!(store.put(key("after"), "v").await.unwrap() > revision);
    }
}

/// What was acknowledged before is in the journal, whatever became of the file.
#[tokio::test]
async fn a_failed_flush_loses_nothing_that_was_acknowledged() {
    let (disk, journal) = (Disk::default(), Disk::default());
    let store = Store::new(open(&disk, &journal, Sync::Soon).unwrap());
    disk.failing.store(true, Ordering::SeqCst);
    let revision = store.put(key("acknowledged"), "v").await.unwrap();
    until(|| async { store.ping().await.is_err() }).await;
    disk.failing.store(false, Ordering::SeqCst);
    let error = store.put(key("refused"), "v").await.unwrap_err();
    assert!(matches!(error, Error::Unflushed { .. }), "{error:?}");
    assert_eq!(store.get(&key("acknowledged")).await.unwrap().unwrap().revision, revision);
    drop(store);
    for disk in [disk.after_power_failure(), disk] {
        let left = Disk::default();
        left.bytes.write().unwrap().clone_from(&journal.bytes.read().unwrap());
        let store = Store::new(open(&disk, &left, Sync::Soon).unwrap());
        assert_eq!(store.get(&key("acknowledged")).await.unwrap().unwrap().revision, revision);
        assert_eq!(store.get(&key("refused")).await.unwrap(), None);
        // The journal has begun anew, so the disk alone has it now.
        store.clone().on_disk().put(key("next"), "v").await.unwrap();
        let store = Store::new(open(&disk.after_power_failure(), &Disk::default(), Sync::Soon).unwrap());
        assert_eq!(store.get(&key("acknowledged")).await.unwrap().unwrap().revision, revision);
    }
}

/// redb makes the file shorter after its flush. If that fails the commit is there all the same, and who is told
/// that it is not would make it twice.
#[tokio::test]
async fn a_commit_that_is_on_the_disk_is_never_called_not_made() {
    for (sync, afterwards) in [Sync::Soon, Sync::Each]
        .into_iter()
        .flat_map(|sync| [(sync, Afterwards::Well), (sync, Afterwards::Full)])
    {
        let disk = Disk::default();
        let store = Store::new(open(&disk, &Disk::default(), sync).unwrap()).on_disk();
        for number in 0..16_u8 {
            store.put(key(&number.to_string()), vec![number; 512 * 1024]).await.unwrap();
        }
        for number in 0..16_u8 {
            store.delete(key(&number.to_string())).await.unwrap();
        }
        *disk.shrinking.lock().unwrap() = Some(afterwards);
        let (mut number, mut made) = (0_u32, None);
        let told = loop {
            let told = store.put(key("firm"), number.to_string()).await;
            if disk.shrinking.lock().unwrap().is_none() {
                break told;
            }
            made = Some(told.unwrap());
            number += 1;
            assert!(number < 1000, "the file is never made shorter");
        };
        match afterwards {
            Afterwards::Well => assert!(told.is_ok_and(|told| Some(told) > made)),
            Afterwards::Full => {
                let error = told.unwrap_err();
                assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
                assert_eq!(error.class().retry, Retry::AfterReading);
            }
        }
        disk.full.store(false, Ordering::SeqCst);
        until(|| async { store.ping().await.is_ok() }).await;
        let firm = store.get(&key("firm")).await.unwrap().unwrap();
        assert_eq!(firm.value, number.to_string().as_bytes(), "{sync:?} {afterwards:?}");
        assert!(Some(firm.revision) > made);
    }
}

/// What is recent hides what is in redb until a flush has taken it away.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_the_disk_is_never_seen_in_part() {
    let backend = Arc::new(open(&Disk::default(), &Disk::default(), Sync::Soon).unwrap());
    let old = Commit::new().put(key("recent"), "old");
    backend.commit(old.clone()).await.unwrap();
    let (its, runtime) = (Arc::clone(&backend), tokio::runtime::Handle::current());
    let look = move || {
        // While this is held no flush can take it away.
        let recent = loop {
            runtime.block_on(its.commit(old.clone())).unwrap();
            let recent = its.recent.rows();
            if recent.contains_key(&key("recent")) {
                break recent;
            }
        };
        let before = its.stats().transactions();
        let mut new = Commit::new().put(key("recent"), "new").put(key("other"), "new");
        new.on_disk = true;
        let writer = Arc::clone(&its);
        let written = runtime.spawn(async move { writer.commit(new).await });
        runtime.block_on(until(|| async { its.stats().transactions() > before }));
        let other = its.file.read(|database| tables::row(&database.begin_read()?, &key("other")));
        assert_eq!(other.unwrap(), None, "half of a commit");
        drop(recent);
        runtime.block_on(written).unwrap().unwrap();
    };
    tokio::task::spawn_blocking(look).await.unwrap();
    for name in ["recent", "other"] {
        assert_eq!(backend.get(&key(name)).await.unwrap().unwrap().value[..], *b"new");
    }
}

/// Whoever asked for the disk has it there, with all that was acknowledged before, whatever the journal lost.
#[tokio::test]
async fn what_waits_for_the_disk_survives_a_power_failure() {
    let (disk, journal) = (Disk::default(), Disk::default());
    let store = Store::new(open(&disk, &journal, Sync::Soon).unwrap());
    let firm = store.clone().on_disk();
    for number in 0..40 {
        store.put(key("swift"), vec![number]).await.unwrap();
        let revision = firm.put(key("firm"), vec![number]).await.unwrap();
        // Nothing of the journal was ever flushed.
        let left = Store::new(open(&disk.after_power_failure(), &Disk::default(), Sync::Soon).unwrap());
        assert_eq!(left.get(&key("firm")).await.unwrap().unwrap().revision, revision);
        assert_eq!(left.get(&key("swift")).await.unwrap().unwrap().value[..], [number]);
        assert!(left.put(key("firm"), "next").await.unwrap() > revision);
        // The death of the process alone takes nothing, and brings nothing back from an older journal.
        let swift = store.put(key("swift"), vec![number + 100]).await.unwrap();
        let process = Disk::default();
        process.bytes.write().unwrap().clone_from(&journal.bytes.read().unwrap());
        let left = Store::new(open(&disk.after_power_failure(), &process, Sync::Soon).unwrap());
        assert_eq!(left.get(&key("swift")).await.unwrap().unwrap().revision, swift);
        assert_eq!(left.get(&key("firm")).await.unwrap().unwrap().revision, revision);
    }
    disk.full.store(true, Ordering::SeqCst);
    firm.put(key("refused"), "v").await.unwrap_err();
    let left = Store::new(open(&disk.after_power_failure(), &journal, Sync::Soon).unwrap());
    assert_eq!(left.get(&key("refused")).await.unwrap(), None);
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
