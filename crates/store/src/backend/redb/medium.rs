//! The bytes of the store file, and what became of their flushes.
//!
//! After a flush that failed the kernel may count pages as written that never reached the disk: the next
//! flush then succeeds and tells nothing. So from then on nothing more is written here, whatever the disk says later,
//! and whoever opens the file next has the kernel forget those pages first. A write that fails is another matter: it
//! changed nothing, and may be tried again.

use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ::redb::{BackendError, StorageBackend};

/// What became of the flushes of a file. All that open the same file share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Flushes(Arc<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    done: AtomicU64,
    /// The first that failed, if one did.
    failed: OnceLock<Arc<io::Error>>,
}

impl Flushes {
    /// How many succeeded.
    pub(super) fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// The first that failed, if one did.
    pub(super) fn failed(&self) -> Option<Arc<io::Error>> {
        self.0.failed.get().cloned()
    }

    fn check(&self) -> io::Result<()> {
        match self.0.failed.get() {
            None => Ok(()),
            Some(error) => Err(io::Error::new(error.kind(), Arc::clone(error))),
        }
    }

    fn note(&self, outcome: io::Result<()>) -> io::Result<()> {
        let Err(error) = outcome else {
            self.0.done.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        tracing::error!(
            %error,
            "The disk failed to flush the store file, which is left alone until this process starts again on a disk \
             that works."
        );
        let error = self.0.failed.get_or_init(|| Arc::new(error));
        Err(io::Error::new(error.kind(), Arc::clone(error)))
    }
}

/// A medium that is left alone once a flush of it failed.
#[derive(Debug)]
pub(super) struct Medium {
    pub(super) bytes: Box<dyn StorageBackend>,
    pub(super) flushes: Flushes,
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.flushes.check()?;
        self.bytes.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.flushes.check()?;
        self.flushes.note(self.bytes.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.flushes.check()?;
        self.bytes.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.bytes.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.bytes.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.bytes.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.bytes.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.bytes.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.bytes.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.bytes.query_lock_range(start, end)
    }
}
