//! A store in one file, owned by one process.
//!
//! One writer thread owns all changes: it gathers commits that wait, applies them in one redb
//! transaction and answers them once that is on disk. So a commit costs a share of one flush, and
//! nothing that was acknowledged can be lost. Reads take a snapshot and wait for nobody.
//! The thread starts with [`Redb::open`] and ends, after finishing what it has, when the last handle goes.

mod file;
mod tables;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Semaphore, oneshot};

pub use writer::Stats;

use self::file::File;
use self::writer::{Job, Writer};
use super::Backend;
use crate::clock::Clock;
use crate::commit::Commit;
use crate::config::RedbConfig;
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
    clock: Clock,
    hub: Arc<Hub>,
    places: Arc<Semaphore>,
    writer: Writer,
}

impl Redb {
    /// Opens the file, creates it if it is missing, and brings an older one up to date.
    pub fn open(config: &RedbConfig, clock: Clock) -> Result<Self, Error> {
        let file = Arc::new(File::open(&config.path)?);
        Self::with_file(file, clock)
    }

    fn with_file(file: Arc<File>, clock: Clock) -> Result<Self, Error> {
        let hub = Arc::new(Hub::default());
        let writer = Writer::start(Arc::clone(&file), clock.clone(), Arc::clone(&hub))?;
        Ok(Self { file, clock, hub, places: Arc::new(Semaphore::new(WAITING_MAX)), writer })
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
        self.file.read(|snapshot| tables::get(snapshot, key, now))
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        let now = self.clock.micros();
        let (file, prefix, after) = (Arc::clone(&self.file), prefix.clone(), after.cloned());
        // A page may be some megabytes from the disk: not on a thread that others wait for.
        let read = move || file.read(|snapshot| tables::range(snapshot, &prefix, after.as_ref(), limit, now));
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
