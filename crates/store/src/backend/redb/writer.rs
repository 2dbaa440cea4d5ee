//! Everything that changes a store file: who may, in which order, and when the disk is flushed.
//!
//! Commits wait in a queue. Whoever gets hold of the [`Work`] makes all that wait in one batch: usually the
//! caller itself, which then need not wake anybody, else the thread. Callers never wait for the [`Work`],
//! as its holder looks at the queue again before it is done. Whatever waits for the disk, a flush or a
//! large commit, is the thread's.

mod work;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use self::work::{Owed, Work};
use super::file::File;
use super::journal::Journal;
use super::recent::Recent;
use crate::clock::Clock;
use crate::commit::{Commit, Operation};
use crate::config::Sync;
use crate::entry::Revision;
use crate::error::Error;
use crate::hints::Hub;

/// A batch is closed when it has this many commits: then each pays a five-hundredth of a flush, and
/// the last does not wait long for the first.
const BATCH_MAX: usize = 512;
/// A batch is closed when its values have this many bytes, so that memory stays bounded.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// When each commit is flushed, a batch is closed this long after its first commit. Far below one flush
/// on most disks, long enough for a burst to gather.
const BATCH_AGE: Duration = Duration::from_micros(500);
/// How long an acknowledged commit may be in the journal only before a flush begins. With the time of the flush it is
/// what a power failure may cost.
const FLUSH_AGE: Duration = Duration::from_millis(20);
/// A journal of this size is not left to grow for the rest of that time.
const FLUSH_BYTES: u64 = 4 * 1024 * 1024;
/// A larger commit is left to the thread: it would hold up whatever else the caller's thread runs.
const INLINE_BYTES: usize = 64 * 1024;
/// How often expired entries are removed when nothing else is to do. Readers never see them anyway.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How often a file that failed is tried again when nothing else is to do, so that reads recover too.
const REOPEN_EVERY: Duration = Duration::from_millis(500);

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

impl Job {
    /// Whether it would hold up whatever else its caller's thread runs.
    fn takes_long(&self) -> bool {
        self.commit.on_disk || self.bytes() > INLINE_BYTES
    }

    fn bytes(&self) -> usize {
        let value = |operation: &Operation| match operation {
            Operation::Put { value, .. } => value.len(),
            Operation::Delete { .. } | Operation::Refresh { .. } => 0,
        };
        self.commit.operations.iter().map(value).sum()
    }
}

/// What waits.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// When the thread is to put right what the last holder of the work left.
    due: Option<Instant>,
    closing: bool,
}

/// What callers and the thread share. The queue may be locked by the holder of the work, never the
/// other way round.
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    work: Mutex<Work>,
    sync: Sync,
}

/// The writer, as seen by its owner.
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Stats>,
}

impl Writer {
    pub(super) fn start(
        file: Arc<File>,
        recent: Arc<Recent>,
        journal: Journal,
        sync: Sync,
        clock: Clock,
        hub: Arc<Hub>,
    ) -> Result<Self, Error> {
        let stats = Arc::new(Stats::default());
        let work = Work::new(Arc::clone(&file), recent, journal, sync, clock, hub, Arc::clone(&stats));
        let shared =
            Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new(), work: Mutex::new(work), sync });
        let thread = std::thread::Builder::new().name("store-writer".into());
        let its = Arc::clone(&shared);
        let thread =
            thread.spawn(move || its.run()).map_err(|error| file.error("start a thread for", error))?;
        Ok(Self { shared, thread: Some(thread), stats })
    }

    /// Queues a commit, and makes it at once if that takes no waiting.
    pub(super) fn send(&self, job: Job) {
        let here = self.shared.sync == Sync::Soon && !job.takes_long();
        self.shared.queue().jobs.push_back(job);
        if !here || self.shared.help() {
            self.shared.wake.notify_one();
        }
    }

    pub(super) fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// Waits for the thread, so that everything is on the disk when the last handle is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue().closing = true;
        self.shared.wake.notify_one();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("The writer of the store file panicked.");
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what waits, unless somebody else is at it, who then sees to it.
    /// Tells whether the thread is wanted: for what came meanwhile, or for what is left to put right.
    fn help(&self) -> bool {
        let mut work = match self.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if matches!(work.owes(), Some(Owed::Reopen)) {
            return true;
        }
        let batch = {
            let mut queue = self.queue();
            let flushes = queue.due.is_some_and(|due| due <= Instant::now());
            // What comes after this look is not in the batch.
            if flushes || queue.jobs.iter().any(Job::takes_long) {
                return true;
            }
            queue.take()
        };
        let timed = self.serve(&mut work, batch);
        drop(work);
        // Whoever came too late for this batch found the work taken, and relies on this look.
        timed || !self.queue().jobs.is_empty()
    }

    /// Makes one batch. Tells whether it left something that the thread does not know of.
    fn serve(&self, work: &mut Work, batch: Vec<Job>) -> bool {
        if batch.is_empty() {
            return false;
        }
        work.write(batch);
        self.schedule(work)
    }

    /// Sees to it that the thread flushes in time, or opens a file that failed again. Tells whether that
    /// is news to it.
    fn schedule(&self, work: &Work) -> bool {
        let after = match work.owes() {
            None => return false,
            Some(Owed::Reopen) => REOPEN_EVERY,
            Some(Owed::Flush { length }) if length < FLUSH_BYTES => FLUSH_AGE,
            Some(Owed::Flush { .. }) => Duration::ZERO,
        };
        let (due, mut queue) = (Instant::now() + after, self.queue());
        let sooner = queue.due.is_none_or(|known| due < known);
        if sooner {
            queue.due = Some(due);
        }
        sooner
    }

    /// The thread.
    fn run(&self) {
        loop {
            let closing = self.wait();
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            let batch = self.queue().take();
            let nothing = batch.is_empty();
            self.serve(&mut work, batch);
            let due = self.queue().due.take_if(|due| closing || *due <= Instant::now()).is_some();
            if due {
                work.settle();
            } else if nothing && !closing && work.owes().is_none() {
                // Somebody else may have made what it was woken for, and its flush waits for more to share it.
                work.tidy();
            }
            // A file that still fails is left to whoever opens it next, with its journal.
            if closing && self.queue().jobs.is_empty() {
                return;
            }
            self.schedule(&work);
        }
    }

    /// Waits until there is something to do; tells whether the store is being closed.
    fn wait(&self) -> bool {
        let mut queue = self.queue();
        let until = Instant::now() + SWEEP_EVERY;
        while queue.jobs.is_empty() && !queue.closing {
            let until = queue.due.map_or(until, |due| due.min(until));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if self.sync == Sync::Each { self.gather(queue) } else { queue.closing }
    }

    /// Waits a moment for commits to share a flush with.
    fn gather(&self, mut queue: MutexGuard<'_, Queue>) -> bool {
        let closes = Instant::now() + BATCH_AGE;
        while queue.jobs.len() < BATCH_MAX && !queue.closing {
            let left = closes.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.closing
    }
}

impl Queue {
    /// The commits of the next batch.
    fn take(&mut self) -> Vec<Job> {
        let mut bytes = 0;
        let full = |job: &Job| {
            let before = bytes;
            bytes += job.bytes();
            before > BATCH_BYTES
        };
        let most = self.jobs.len().min(BATCH_MAX);
        let count = self.jobs.iter().take(most).position(full).unwrap_or(most);
        self.jobs.drain(..count).collect()
    }
}
