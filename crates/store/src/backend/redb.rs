//! A store in one file, owned by one process.
//!
//! Commits that wait are made in one batch. It is visible and acknowledged once its record is in the
//! journal, which survives the death of the process, and soon after it goes to redb and the disk with those
//! before it; or, if the settings say so, once redb is flushed, which the batch shares. Reads look at what
//! is recent and at a snapshot of redb, and wait for nobody. A thread flushes; it starts with [`Redb::open`] and
//! ends, with everything on the disk, when the last handle goes.

mod batch;
mod file;
mod founding;
mod journal;
mod medium;
mod recent;
mod tables;
mod writer;

use std::sync::Arc;

use ::redb::ReadableDatabase;
use async_trait::async_trait;
use tokio::sync::{Semaphore, oneshot};

pub use writer::Stats;

use self::file::File;
use self::journal::Journal;
pub(crate) use self::journal::record::read_any as read_any_journal;
use self::recent::Recent;
use self::writer::{Job, Writer};
use super::Backend;
use crate::clock::Clock;
use crate::commit::Commit;
use crate::config::{RedbConfig, Sync};
use crate::entry::{Entry, Page, Revision};
use crate::error::Error;
use crate::hints::{Hints, Hub};
use crate::key::{Key, Prefix};

/// Commits that may wait for the writer. Beyond it callers wait for a place, so that a slow disk
/// costs them time and not this process its memory.
const WAITING_MAX: usize = 4096;

/// The redb back end.
#[derive(Debug)]
pub struct Redb {
    file: Arc<File>,
    recent: Arc<Recent>,
    clock: Clock,
    hub: Arc<Hub>,
    places: Arc<Semaphore>,
    writer: Writer,
}

impl Redb {
    /// Opens the file, creates it if it is missing, and brings an older one up to date.
    pub fn open(config: &RedbConfig, clock: Clock) -> Result<Self, Error> {
        let (file, journal) = File::open(&config.path)?;
        Self::with_file(file, journal, config.sync, clock)
    }

    fn with_file(file: File, journal: Journal, sync: Sync, clock: Clock) -> Result<Self, Error> {
        let (file, recent, hub) = (Arc::new(file), Arc::new(Recent::default()), Arc::new(Hub::default()));
        let (its, clock_of) = (Arc::clone(&file), clock.clone());
        let writer = Writer::start(its, Arc::clone(&recent), journal, sync, clock_of, Arc::clone(&hub))?;
        Ok(Self { file, recent, clock, hub, places: Arc::new(Semaphore::new(WAITING_MAX)), writer })
    }

    /// Counts of what the writer did.
    pub fn stats(&self) -> Arc<Stats> {
        self.writer.stats()
    }
}

#[async_trait]
impl Backend for Redb {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        let now = self.clock.micros();
        let row = match self.recent.get(key) {
            Some(row) => row,
            None => self.file.read(|database| tables::row(&database.begin_read()?, key))?,
        };
        let live = row.filter(|row| row.is_live(now));
        Ok(live.map(|row| row.entry(key.clone(), now)))
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        let now = self.clock.micros();
        let (file, recent) = (Arc::clone(&self.file), Arc::clone(&self.recent));
        let (prefix, after) = (prefix.clone(), after.cloned());
        // A page may be some megabytes from the disk: not on a thread that others wait for.
        let read = move || {
            file.read(|database| {
                let (newer, snapshot) = {
                    let rows = recent.rows();
                    (recent::select(&rows, &prefix, after.as_ref(), limit, now), database.begin_read()?)
                };
                tables::range(&snapshot, newer, &prefix, after.as_ref(), limit, now)
            })
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(page) => page,
            Err(stopped) => Err(self.file.error("read", stopped)),
        }
    }

    async fn commit(&self, commit: Commit) -> Result<Revision, Error> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|closed| self.file.error("write", closed))?;
        let (reply, answer) = oneshot::channel();
        self.writer.send(Job { commit, reply, _place: place });
        match answer.await {
            Ok(result) => result,
            Err(gone) => Err(self.file.error("write", gone)),
        }
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        self.hub.subscribe(prefix)
    }
}

#[cfg(test)]
mod tests;
