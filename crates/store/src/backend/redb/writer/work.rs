//! The work itself: a batch and its record in the journal, flushing, recovery.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Job, Stats};
use crate::backend::redb::batch::{Batch, Outcome};
use crate::backend::redb::file::File;
use crate::backend::redb::journal::Journal;
use crate::backend::redb::journal::record::{Change, Changes};
use crate::backend::redb::recent::{Recent, Rows};
use crate::backend::redb::tables::{Known, Tables};
use crate::clock::Clock;
use crate::config::Sync;
use crate::error::Error;
use crate::hints::Hub;

/// Expired entries removed with one flush, or as many as it writes: keeps pace with what expires, without delaying
/// anybody.
const SWEEP_MAX: usize = 1024;

/// What the last change left to do.
pub(super) enum Owed {
    /// To put on the disk what is in a journal of this length only.
    Flush { length: u64 },
    /// To open the file again, which failed.
    Reopen,
}

/// What a batch comes to.
struct Decided {
    outcomes: Vec<Outcome>,
    /// The revision afterwards; nothing if nothing changes, and then nothing is written.
    revision: Option<u64>,
    rows: Rows,
}

/// What is needed to change the file. Only ever in one hand.
pub(super) struct Work {
    file: Arc<File>,
    recent: Arc<Recent>,
    journal: Journal,
    sync: Sync,
    clock: Clock,
    hub: Arc<Hub>,
    stats: Arc<Stats>,
    /// What the batch at hand changes, for the journal.
    changes: Changes,
    /// What the last batch or flush knew; nothing after the file was opened.
    known: Option<Known>,
    /// The last transaction failed; the file must be opened again before the next.
    broken: bool,
    /// Something is visible that redb has not flushed.
    unflushed: bool,
}

impl Work {
    pub(super) fn new(
        file: Arc<File>,
        recent: Arc<Recent>,
        journal: Journal,
        sync: Sync,
        clock: Clock,
        hub: Arc<Hub>,
        stats: Arc<Stats>,
    ) -> Self {
        let changes = Changes::default();
        let (known, broken, unflushed) = (None, false, false);
        Self { file, recent, journal, sync, clock, hub, stats, changes, known, broken, unflushed }
    }

    /// What is left to do when nobody wants anything.
    pub(super) fn owes(&self) -> Option<Owed> {
        if self.broken {
            return self.file.failed_flush().is_none().then_some(Owed::Reopen);
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
        // What cannot be known for want of a file is due as well, and then told by the flush.
        self.unflushed |= self.known().map_or(true, |known| known.soonest <= self.clock.micros());
        self.settle();
    }

    /// Pays what is owed: puts everything on the disk, so that the journal starts anew, or opens a file that
    /// failed again. After a failure that is tried at once, so that readers and the health of this process
    /// tell of it if it fails too.
    pub(super) fn settle(&mut self) {
        if !self.broken
            && self.unflushed
            && let Err(error) = self.flush(Rows::new())
        {
            self.broken = true;
            let path = self.file.path().display();
            tracing::error!(%error, %path, "The store file could not be flushed; its journal holds what is missing.");
        }
        // The next commit tells its caller.
        let _told = self.recover();
    }

    /// Puts on the disk what is recent, and further rows with it, and removes what has expired.
    fn flush(&mut self, further: Rows) -> Result<(), ::redb::Error> {
        let (now, known) = (self.clock.micros(), self.known()?);
        let generation = (self.sync == Sync::Soon).then(rand::random);
        let recent = self.recent.rows();
        let learned = self.file.with(|database| {
            let transaction = database.begin_write()?;
            let mut tables = Tables::open(&transaction, known)?;
            for (key, row) in recent.iter().chain(&further) {
                tables.set(key, row.as_ref())?;
            }
            tables.sweep(now, SWEEP_MAX.max(recent.len() + further.len()))?;
            match generation {
                Some(generation) => tables.start_generation(generation)?,
                None => tables.keep_revision()?,
            }
            let learned = tables.known();
            drop(tables);
            transaction.commit()?;
            Ok(learned)
        })?;
        drop(recent);
        self.stats.transactions.fetch_add(1, Ordering::Relaxed);
        self.known = Some(learned);
        if let Some(generation) = generation {
            self.journal.restart(generation);
        }
        self.recent.clear();
        self.unflushed = false;
        Ok(())
    }

    fn known(&mut self) -> Result<Known, ::redb::Error> {
        let known = match self.known {
            Some(known) => known,
            None => self.file.with(Known::read)?,
        };
        Ok(*self.known.insert(known))
    }

    fn attempt(&mut self, batch: &[Job]) -> Result<Vec<Outcome>, Error> {
        self.recover()?;
        // Stays so if the attempt ends in a panic.
        self.broken = true;
        let begun = Instant::now();
        let Decided { outcomes, revision, rows } =
            self.decide(batch).map_err(|error| self.file.error("write", error))?;
        if let Some(revision) = revision {
            let on_disk = self.sync == Sync::Each || batch.iter().any(|job| job.commit.on_disk);
            let flushes = self.file.flushes();
            let made = if on_disk { self.put_on_disk(revision, rows) } else { self.put_down(revision, rows) };
            if let Err(error) = made {
                let path = self.file.path().display();
                tracing::error!(%error, %path, commits = batch.len(), "A batch could not be written to the store file.");
                self.doubt(on_disk.then_some(revision), flushes, begun, error)?;
            }
        }
        self.broken = false;
        Ok(outcomes)
    }

    /// Whether a batch that failed was made all the same: redb has things to do after its flush, which may fail as
    /// well. `revision` is what redb holds then; none if the batch was for the journal, which takes it or does not.
    fn doubt(
        &mut self,
        revision: Option<u64>,
        flushes: u64,
        begun: Instant,
        error: ::redb::Error,
    ) -> Result<(), Error> {
        let uncertain = |at: &File, cause| {
            let at = at.path().display().to_string().into();
            Error::Uncertain { at, waited: begun.elapsed(), cause }
        };
        if let Some(cause) = self.file.failed_flush() {
            // All was written before the flush, so that it may be there after a restart.
            return Err(uncertain(&self.file, cause));
        }
        if let Some(revision) = revision {
            let made = self.recover().and_then(|()| self.file.read(Known::read)).map(|known| known.revision);
            match made {
                Ok(made) if made == revision => return Ok(()),
                Err(_) if self.file.flushes() > flushes => {
                    return Err(uncertain(&self.file, Arc::new(error)));
                }
                Ok(_) | Err(_) => {}
            }
        }
        Err(self.file.error("write", error))
    }

    fn recover(&mut self) -> Result<(), Error> {
        if self.broken {
            let journal = &mut self.journal;
            self.known = None;
            self.file.reopen(|database| journal.replay(database))?;
            self.recent.clear();
            (self.broken, self.unflushed) = (false, false);
            // What their last look missed, or what nobody was told of, is seen by another.
            self.hub.touch_all();
            tracing::info!("The store file was opened again after a failed write.");
        }
        Ok(())
    }

    /// Decides what the batch asks for.
    fn decide(&mut self, batch: &[Job]) -> Result<Decided, ::redb::Error> {
        let (now, known) = (self.clock.micros(), self.known()?);
        let mut deciding = Batch::new(&self.file, &self.recent, known.revision, now);
        let outcomes: Vec<Outcome> =
            batch.iter().map(|job| deciding.run(&job.commit)).collect::<Result<_, _>>()?;
        let Batch { revision, rows, .. } = deciding;
        let changed = outcomes.iter().any(Result::is_ok);
        Ok(Decided { outcomes, revision: changed.then_some(revision), rows })
    }

    /// Makes it and has it on the disk, and with it what is in the journal.
    fn put_on_disk(&mut self, revision: u64, rows: Rows) -> Result<(), ::redb::Error> {
        // Until a flush is done, what is recent hides what redb has: of a commit that changes a recent key
        // and another one, only the other would be seen.
        let hidden = rows.keys().any(|key| self.recent.get(key).is_some());
        if hidden {
            self.flush(Rows::new())?;
        }
        // Not before: redb holds this revision only once it has the batch.
        self.known = Some(Known { revision, ..self.known()? });
        self.flush(rows)
    }

    /// Makes it in the journal and in memory.
    fn put_down(&mut self, revision: u64, rows: Rows) -> Result<(), ::redb::Error> {
        self.known = Some(Known { revision, ..self.known()? });
        self.changes.clear();
        for (key, row) in &rows {
            self.changes.push(&Change::of(key, row.as_ref()));
        }
        self.journal.append(&mut self.changes, revision).map_err(::redb::Error::Io)?;
        self.recent.extend(rows);
        self.unflushed = true;
        Ok(())
    }
}
