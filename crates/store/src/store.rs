//! The handle everybody holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::Backend;
use crate::commit::Commit;
use crate::entry::{Entry, PAGE_MAX, Page, Revision};
use crate::error::Error;
use crate::hints::Hints;
use crate::key::{Key, Prefix};
use crate::watch::Watch;

/// How long a watcher waits before it looks again without having been told to.
///
/// It bounds how long a lost hint is unnoticed; each look reads the whole prefix.
const REREAD: Duration = Duration::from_secs(5);

/// A store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
    reread: Duration,
    on_disk: bool,
}

impl Store {
    /// A handle on this back end. Most callers want [`crate::open`].
    pub fn new(backend: impl Backend) -> Self {
        Self { backend: Arc::new(backend), reread: REREAD, on_disk: false }
    }

    /// The same store, whose watchers look again after this long at the latest.
    #[must_use]
    pub fn with_reread(mut self, every: Duration) -> Self {
        self.reread = every;
        self
    }

    /// The same store, whose changes are on its disk before they are acknowledged: for what is written
    /// seldom and would be missed after a power failure.
    #[must_use]
    pub fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// The entry at a key.
    pub async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        key.check()?;
        self.backend.get(key).await
    }

    /// One page of the entries under a prefix. `after` is the `next` of the page before.
    pub async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        self.backend.range(prefix, after, limit.clamp(1, PAGE_MAX)).await
    }

    /// All entries under a prefix, page by page. For tables whose size is known to be modest.
    pub async fn list(&self, prefix: &Prefix) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        let mut after = None;
        loop {
            let page = self.range(prefix, after.as_ref(), PAGE_MAX).await?;
            entries.extend(page.entries);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(entries),
            }
        }
    }

    /// Makes a change: all of it, or nothing and [`Error::Conflict`].
    pub async fn commit(&self, mut commit: Commit) -> Result<Revision, Error> {
        commit.check()?;
        commit.on_disk |= self.on_disk;
        self.backend.commit(commit).await
    }

    /// Writes a value, whatever was there.
    pub async fn put(&self, key: Key, value: impl Into<Bytes>) -> Result<Revision, Error> {
        self.commit(Commit::new().put(key, value)).await
    }

    /// Writes a value that expires, whatever was there.
    pub async fn put_for(&self, key: Key, value: impl Into<Bytes>, ttl: Duration) -> Result<Revision, Error> {
        self.commit(Commit::new().put_for(key, value, ttl)).await
    }

    /// Writes a value only where nothing is.
    pub async fn create(&self, key: Key, value: impl Into<Bytes>) -> Result<Revision, Error> {
        self.commit(Commit::new().absent(key.clone()).put(key, value)).await
    }

    /// Writes a value only over what that commit put.
    pub async fn replace(&self, key: Key, at: Revision, value: impl Into<Bytes>) -> Result<Revision, Error> {
        self.commit(Commit::new().at(key.clone(), at).put(key, value)).await
    }

    /// Removes a key, whatever was there.
    pub async fn delete(&self, key: Key) -> Result<Revision, Error> {
        self.commit(Commit::new().delete(key)).await
    }

    /// Lets a key live on; [`Error::Conflict`] if it is gone.
    pub async fn refresh(&self, key: Key, ttl: Duration) -> Result<Revision, Error> {
        self.commit(Commit::new().present(key.clone()).refresh(key, ttl)).await
    }

    /// Follows the entries under a prefix.
    pub fn watch(&self, prefix: Prefix) -> Watch {
        let hints = self.hints(&prefix);
        Watch::new(self.clone(), prefix, hints, self.reread)
    }

    /// Wake-ups for changes under a prefix; most callers want [`Store::watch`].
    pub(crate) fn hints(&self, prefix: &Prefix) -> Hints {
        self.backend.changed(prefix)
    }

    /// How long to wait for a hint before looking anyway.
    pub(crate) fn reread(&self) -> Duration {
        self.reread
    }

    /// Whether the store answers; for readiness.
    pub async fn ping(&self) -> Result<(), Error> {
        let nowhere = Prefix::everything();
        self.backend.range(&nowhere, None, 1).await.map(|_| ())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("reread", &self.reread).finish_non_exhaustive()
    }
}
