//! The thread that owns all changes to a store file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::file::File;
use super::tables::{Outcome, Tables};
use crate::clock::Clock;
use crate::commit::Commit;
use crate::entry::Revision;
use crate::error::Error;
use crate::hints::Hub;

/// A batch is closed when it has this many commits: then each pays a five-hundredth of a flush, and
/// the last does not wait long for the first.
const BATCH_MAX: usize = 512;
/// A batch is closed this long after its first commit. Far below one flush on most disks, long enough
/// for a burst to gather.
const BATCH_AGE: Duration = Duration::from_micros(500);
/// How often expired entries are removed when nothing else is to do. Readers never see them anyway.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How often a file that failed is tried again when nothing else is to do, so that reads recover too.
const REOPEN_EVERY: Duration = Duration::from_millis(500);
/// Expired entries removed with one batch: keeps pace with what expires, without delaying anybody.
const SWEEP_MAX: usize = 1024;

/// What the writer did since it started.
#[derive(Debug, Default)]
pub struct Stats {
    commits: AtomicU64,
    transactions: AtomicU64,
}

impl Stats {
    /// Commits that were acknowledged.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Durable redb transactions, each of which flushed the disk.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }
}

/// A commit that waits, and its caller.
pub(super) struct Job {
    pub(super) commit: Commit,
    pub(super) reply: oneshot::Sender<Result<Revision, Error>>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// The thread, as seen by its owner.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Stats>,
}

impl Writer {
    pub(super) fn start(file: Arc<File>, clock: Clock, hub: Arc<Hub>) -> Result<Self, Error> {
        let (jobs, queue) = channel();
        let stats = Arc::new(Stats::default());
        let work = Work { file: Arc::clone(&file), clock, hub, stats: Arc::clone(&stats), broken: false };
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || work.run(&queue));
        let thread = thread.map_err(|error| file.error("start a thread for", error))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), stats })
    }

    /// Queues a commit. If the thread is gone the job is dropped, which its caller notices.
    pub(super) fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _gone = jobs.send(job);
        }
    }

    pub(super) fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }
}

/// Waits for the thread, so that the file is closed when the last handle is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("The writer of the store file panicked.");
        }
    }
}

/// The thread, as seen by itself.
struct Work {
    file: Arc<File>,
    clock: Clock,
    hub: Arc<Hub>,
    stats: Arc<Stats>,
    /// The last transaction failed; the file must be opened again before the next.
    broken: bool,
}

impl Work {
    fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let idle = if self.broken { REOPEN_EVERY } else { SWEEP_EVERY };
            match queue.recv_timeout(idle) {
                Ok(first) => self.write(gather(first, queue)),
                Err(RecvTimeoutError::Timeout) => self.write(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Applies a batch and answers all of it.
    fn write(&mut self, batch: Vec<Job>) {
        let result = self.recover().and_then(|()| {
            self.transact(&batch).map_err(|error| {
                self.broken = true;
                tracing::error!(%error, commits = batch.len(), "A batch could not be written to the store file.");
                self.file.error("write", error)
            })
        });
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

    fn recover(&mut self) -> Result<(), Error> {
        if self.broken {
            self.file.reopen()?;
            self.broken = false;
            tracing::info!("The store file was opened again after a failed write.");
        }
        Ok(())
    }

    /// One redb transaction for the whole batch. Nothing is flushed if nothing changed.
    fn transact(&self, batch: &[Job]) -> Result<Vec<Outcome>, ::redb::Error> {
        let now = self.clock.micros();
        self.file.with(|database| {
            let transaction = database.begin_write()?;
            let mut tables = Tables::open(&transaction)?;
            let swept = tables.sweep(now, SWEEP_MAX)?;
            let outcomes: Vec<Outcome> =
                batch.iter().map(|job| tables.run(&job.commit, now)).collect::<Result<_, _>>()?;
            drop(tables);
            if swept > 0 || outcomes.iter().any(Result::is_ok) {
                transaction.commit()?;
                self.stats.transactions.fetch_add(1, Ordering::Relaxed);
            } else {
                transaction.abort()?;
            }
            Ok(outcomes)
        })
    }
}

/// The first commit and those that come soon after it.
fn gather(first: Job, queue: &Receiver<Job>) -> Vec<Job> {
    let closes = Instant::now() + BATCH_AGE;
    let mut batch = vec![first];
    while batch.len() < BATCH_MAX {
        match queue.recv_timeout(closes.saturating_duration_since(Instant::now())) {
            Ok(job) => batch.push(job),
            Err(_) => break,
        }
    }
    batch
}
