//! What a back end must do, and the three that do it.

mod memory;
mod redb;
mod redis;

pub use memory::Memory;
pub(crate) use redb::read_any_journal;
pub use redb::{Redb, Stats};
pub(crate) use redis::Dialer;
pub use redis::Redis;
pub(crate) use redis::read_any;

use async_trait::async_trait;

use crate::commit::Commit;
use crate::entry::{Entry, Page, Revision};
use crate::error::Error;
use crate::hints::Hints;
use crate::key::{Key, Prefix};

/// The whole contract. Everything else is written once above it.
///
/// What is given to a back end through [`crate::Store`] has been checked against the limits.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The entry at this key, unless it has expired.
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error>;

    /// Up to `limit` entries in key order, strictly after `after`. Expired ones are left out.
    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error>;

    /// Checks all conditions and, if they hold, does all operations, as if nothing else happened
    /// meanwhile. The first condition that does not hold is told as [`Error::Conflict`].
    async fn commit(&self, commit: Commit) -> Result<Revision, Error>;

    /// Wake-ups for changes under this prefix, from any process that shares the store.
    /// They may be lost or merged, and expiry sends none.
    fn changed(&self, prefix: &Prefix) -> Hints;
}
