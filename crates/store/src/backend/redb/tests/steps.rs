//! The process dies, or the power fails, between any two operations on the files of a store.

use tarbet_testbed::verified;

use super::*;

/// Commits of a run.
const COMMITS: u32 = 40;
/// How many of the last commits have a key of their own.
const KEPT: u32 = 3;

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Store,
    Journal,
}

/// What happened, in order.
#[derive(Clone, Debug)]
enum Step {
    Wrote {
        on: On,
        offset: u64,
        data: Vec<u8>,
    },
    Resized {
        on: On,
        length: u64,
    },
    Flushed {
        on: On,
    },
    /// Whoever made this commit knows that it is made.
    Acknowledged {
        number: u32,
        on_disk: bool,
    },
}

type Tape = Arc<Mutex<Vec<Step>>>;

/// A disk whose operations are noted.
#[derive(Clone, Debug)]
struct Taped {
    disk: Disk,
    on: On,
    tape: Tape,
}

impl Taped {
    fn note(&self, step: Step) {
        self.tape.lock().unwrap().push(step);
    }
}

impl StorageBackend for Taped {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.note(Step::Resized { on: self.on, length });
        self.disk.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(Step::Flushed { on: self.on });
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Step::Wrote { on: self.on, offset, data: data.to_owned() });
        self.disk.write(offset, data)
    }
}

fn numbered(number: u32) -> Key {
    key(&number.to_string())
}

/// Makes the commits one after another, some on the disk and some with a flush after them.
async fn tape(disk: &Disk, sync: Sync) -> Vec<Step> {
    let tape = Tape::default();
    let taped = |disk: &Disk, on| Taped { disk: disk.clone(), on, tape: Arc::clone(&tape) };
    let (store, journal) = (taped(disk, On::Store), taped(&Disk::default(), On::Journal));
    let opener = Box::new(move || Ok(Box::new(store.clone()) as Box<dyn StorageBackend>));
    let journal = || Ok(Journal::on(Box::new(journal)));
    let (file, journal) = File::open_with(Path::new("in memory"), opener, journal).unwrap();
    let backend = Redb::with_file(file, journal, sync, Clock::system()).unwrap();
    let (stats, store) = (backend.stats(), Store::new(backend));
    for number in 1..=COMMITS {
        let mut commit = Commit::new()
            .put(key("count"), number.to_be_bytes().to_vec())
            .put(numbered(number), vec![7; number as usize * 101]);
        if number > KEPT {
            commit = commit.delete(numbered(number - KEPT));
        }
        let on_disk = sync == Sync::Each || number % 7 == 0;
        let before = stats.transactions();
        store.commit(if on_disk { commit.on_disk() } else { commit }).await.unwrap();
        tape.lock().unwrap().push(Step::Acknowledged { number, on_disk });
        if number % 5 == 0 && !on_disk {
            until(|| async { stats.transactions() > before }).await;
        }
    }
    drop(store);
    tape.lock().unwrap().clone()
}

/// What a process that starts finds: at least so many commits, and the last of them whole.
async fn check(disk: &[u8], journal: &[u8], least: u32, when: &str) {
    let file = |bytes: &[u8]| {
        let disk = Disk::default();
        disk.bytes.write().unwrap().extend(bytes);
        disk
    };
    let store = Store::new(open(&file(disk), &file(journal), Sync::Soon).unwrap());
    let count = store.get(&key("count")).await.unwrap();
    let found = count.as_ref().map_or(0, |count| u32::from_be_bytes(count.value[..].try_into().unwrap()));
    assert!(found >= least, "{when}: {least} were made, {found} are there");
    for number in 1..=COMMITS {
        let row = store.get(&numbered(number)).await.unwrap();
        let is_kept = number <= found && number + KEPT > found;
        assert_eq!(
            row.as_ref().map(|row| row.value.len()),
            is_kept.then_some(number as usize * 101),
            "{when}"
        );
        if number == found {
            assert_eq!(row.map(|row| row.revision), count.as_ref().map(|count| count.revision), "{when}");
        }
    }
}

/// The files as the steps so far left them.
#[derive(Default)]
struct Files {
    store: Vec<u8>,
    journal: Vec<u8>,
    /// What of the store outlives a power failure. Of the journal nothing is ever flushed.
    flushed: Vec<u8>,
    made: u32,
    made_on_disk: u32,
}

impl Files {
    fn take(&mut self, step: Step) {
        match step {
            Step::Wrote { on, offset, data } => {
                let (bytes, start) = (self.of(on), offset as usize);
                bytes.resize(bytes.len().max(start + data.len()), 0);
                bytes[start..start + data.len()].copy_from_slice(&data);
            }
            Step::Resized { on, length } => self.of(on).resize(length as usize, 0),
            Step::Flushed { on: On::Store } => self.flushed.clone_from(&self.store),
            Step::Flushed { on: On::Journal } => {}
            Step::Acknowledged { number, on_disk } => {
                self.made = number;
                self.made_on_disk = if on_disk { number } else { self.made_on_disk };
            }
        }
    }

    fn of(&mut self, on: On) -> &mut Vec<u8> {
        match on {
            On::Store => &mut self.store,
            On::Journal => &mut self.journal,
        }
    }
}

#[tokio::test]
async fn between_any_two_operations_on_its_files_a_store_may_die() {
    let mut tried = 0;
    for sync in [Sync::Soon, Sync::Each] {
        // It has its name once it is whole.
        let disk = Disk::default();
        drop(open(&disk, &Disk::default(), sync).unwrap());
        let whole = disk.bytes.read().unwrap().clone();
        let mut files = Files { store: whole.clone(), flushed: whole, ..Files::default() };
        for (place, step) in tape(&disk, sync).await.into_iter().enumerate() {
            files.take(step);
            let Files { store, journal, flushed, made, made_on_disk } = &files;
            check(store, journal, *made, &format!("{sync:?}, killed after {place}")).await;
            // Of the journal all or nothing may be there.
            for journal in [&[][..], journal] {
                check(flushed, journal, *made_on_disk, &format!("{sync:?}, no power after {place}")).await;
            }
            tried += 3;
        }
    }
    verified("a store dies between two operations on its files: all is there, nothing by half", tried);
}
