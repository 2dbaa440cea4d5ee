//! The work itself: one redb transaction for a batch, its record in the journal, flushing, recovery.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::redb::Durability;

use super::{Job, Stats};
use crate::backend::redb::file::File;
use crate::backend::redb::journal::Journal;
use crate::backend::redb::journal::record::Changes;
use crate::backend::redb::tables::{Known, Outcome, Tables};
use crate::clock::Clock;
use crate::config::Sync;
use crate::error::Error;
use crate::hints::Hub;

/// Expired entries removed with one batch: keeps pace with what expires, without delaying anybody.
const SWEEP_MAX: usize = 1024;

/// What the last change left to do.
pub(super) enum Owed {
    /// To put on the disk what is in a journal of this length only.
    Flush { length: u64 },
    /// To open the file again, which failed.
    Reopen,
}

/// What is needed to change the file. Only ever in one hand.
pub(super) struct Work {
    file: Arc<File>,
    journal: Journal,
    sync: Sync,
    clock: Clock,
    hub: Arc<Hub>,
    stats: Arc<Stats>,
    /// What the transaction at hand changes, for the journal.
    changes: Changes,
    /// What the last transaction knew; nothing after the file was opened.
    known: Option<Known>,
    /// The last transaction failed; the file must be opened again before the next.
    broken: bool,
    /// Something is visible that redb has not flushed.
    unflushed: bool,
}

impl Work {
    pub(super) fn new(
        file: Arc<File>,
        journal: Journal,
        sync: Sync,
        clock: Clock,
        hub: Arc<Hub>,
        stats: Arc<Stats>,
    ) -> Self {
        let changes = Changes::default();
        Self { file, journal, sync, clock, hub, stats, changes, known: None, broken: false, unflushed: false }
    }

    /// What is left to do when nobody wants anything.
    pub(super) fn owes(&self) -> Option<Owed> {
        if self.broken {
            return Some(Owed::Reopen);
        }
        self.unflushed.then(|| Owed::Flush { length: self.journal.end() })
    }

    /// Applies a batch and answers all of it.
    pub(super) fn write(&mut self, batch: Vec<Job>) {
        let result = self.attempt(&batch);
        match result {
            Ok(outcomes) => {
                for (job, outcome) in batch.into_iter().zip(outcomes) {
                    if outcome.is_ok() {
                        self.stats.commits.fetch_add(1, Ordering::Relaxed);
                        self.hub.touch(job.commit.touched());
                    }
                    // A caller that has gone away no longer cares.
                    let _gone = job.reply.send(outcome.map_err(|key| Error::Conflict { key }));
                }
            }
            Err(error) => {
                for job in batch {
                    let _gone = job.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Nobody wants anything: removes what has expired.
    pub(super) fn tidy(&mut self) {
        // What went wrong was logged, and the next commit tells its caller.
        let _logged = self.attempt(&[]);
    }

    /// Pays what is owed: puts everything on the disk, so that the journal starts anew, or opens a file that
    /// failed again. After a failure that is tried at once, so that readers and the health of this process
    /// tell of it if it fails too.
    pub(super) fn settle(&mut self) {
        if !self.broken
            && self.unflushed
            && let Err(error) = self.flush()
        {
            self.broken = true;
            let path = self.file.path().display();
            tracing::error!(%error, %path, "The store file could not be flushed; its journal holds what is missing.");
        }
        // The next commit tells its caller.
        let _told = self.recover();
    }

    fn flush(&mut self) -> Result<(), ::redb::Error> {
        let (generation, known) = (rand::random(), self.known);
        self.file.with(|database| {
            let transaction = database.begin_write()?;
            Tables::open(&transaction, known, None)?.start_generation(generation)?;
            Ok(transaction.commit()?)
        })?;
        self.stats.transactions.fetch_add(1, Ordering::Relaxed);
        self.journal.restart(generation);
        self.unflushed = false;
        Ok(())
    }

    fn attempt(&mut self, batch: &[Job]) -> Result<Vec<Outcome>, Error> {
        self.recover()?;
        // Stays so if the attempt ends in a panic.
        self.broken = true;
        let start = self.journal.end();
        let outcomes = self.transact(batch).map_err(|error| {
            let path = self.file.path().display();
            tracing::error!(%error, %path, commits = batch.len(), "A batch could not be written to the store file.");
            // Its callers are told that it was not made, so it must not come back with the journal.
            if self.journal.end() != start
                && let Err(error) = self.journal.cut(start)
            {
                tracing::error!(%error, "The record of a failed batch is still in the journal of the store.");
            }
            self.file.error("write", error)
        })?;
        self.broken = false;
        Ok(outcomes)
    }

    fn recover(&mut self) -> Result<(), Error> {
        if self.broken {
            let journal = &mut self.journal;
            self.known = None;
            self.file.reopen(|database| journal.replay(database))?;
            (self.broken, self.unflushed) = (false, false);
            tracing::info!("The store file was opened again after a failed write.");
        }
        Ok(())
    }

    /// One redb transaction for the whole batch. Nothing is written if nothing changed.
    fn transact(&mut self, batch: &[Job]) -> Result<Vec<Outcome>, ::redb::Error> {
        let now = self.clock.micros();
        let soon = self.sync == Sync::Soon;
        let Self { file, journal, changes, known, stats, unflushed, .. } = self;
        file.with(|database| {
            let mut transaction = database.begin_write()?;
            if soon {
                transaction.set_durability(Durability::None)?;
            }
            changes.clear();
            let mut tables = Tables::open(&transaction, *known, soon.then_some(&mut *changes))?;
            let swept = tables.sweep(now, SWEEP_MAX)?;
            let outcomes: Vec<Outcome> =
                batch.iter().map(|job| tables.run(&job.commit, now)).collect::<Result<_, _>>()?;
            let (revision, learned) = (tables.revision(), tables.known());
            let changed = outcomes.iter().any(Result::is_ok);
            if !soon && changed {
                tables.keep_revision()?;
            }
            drop(tables);
            if !changed && swept == 0 {
                transaction.abort()?;
                *known = Some(learned);
                return Ok(outcomes);
            }
            // What expired is gone with or without a record.
            if soon && changed {
                journal.append(changes, revision).map_err(::redb::Error::Io)?;
            }
            transaction.commit()?;
            *known = Some(learned);
            if soon {
                *unflushed = true;
            } else {
                stats.transactions.fetch_add(1, Ordering::Relaxed);
            }
            Ok(outcomes)
        })
    }
}
