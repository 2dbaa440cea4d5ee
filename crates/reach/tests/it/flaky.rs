//! A store in memory whose handles can lose it, each for itself or all together.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tarbet_store::backend::{Backend, Memory};
use tarbet_store::{Clock, Commit, Entry, Error, Hints, Key, Page, Prefix, Revision};

/// One process's handle on a shared store.
#[derive(Clone)]
pub(crate) struct Flaky {
    memory: Arc<Memory>,
    all: Arc<AtomicBool>,
    own: Arc<AtomicBool>,
}

impl Default for Flaky {
    fn default() -> Self {
        let memory = Arc::new(Memory::new(clock()));
        Self { memory, all: Arc::default(), own: Arc::default() }
    }
}

impl Flaky {
    /// Another process's handle on the same store.
    pub(crate) fn another(&self) -> Self {
        Self { own: Arc::default(), ..self.clone() }
    }

    /// Takes the store away from this process and the clones of its handle, or gives it back.
    pub(crate) fn cut_off(&self, cut: bool) {
        self.own.store(cut, SeqCst);
    }

    /// Takes the store away from everybody, or gives it back.
    pub(crate) fn set_down(&self, down: bool) {
        self.all.store(down, SeqCst);
    }

    fn check(&self, operation: &'static str) -> Result<&Memory, Error> {
        if self.all.load(SeqCst) || self.own.load(SeqCst) {
            let cause = Arc::new(io::Error::other("taken away"));
            return Err(Error::Unavailable { operation, at: "memory".into(), waited: Duration::ZERO, cause });
        }
        Ok(&self.memory)
    }
}

/// A clock that follows tokio's, so that a paused test also pauses what expires.
pub(crate) fn clock() -> Clock {
    let start = (SystemTime::now(), tokio::time::Instant::now());
    Clock::from_fn(move || start.0 + start.1.elapsed())
}

#[async_trait]
impl Backend for Flaky {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        self.check("read")?.get(key).await
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        self.check("list")?.range(prefix, after, limit).await
    }

    async fn commit(&self, commit: Commit) -> Result<Revision, Error> {
        self.check("commit")?.commit(commit).await
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        self.memory.changed(prefix)
    }
}
