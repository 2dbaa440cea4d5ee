//! What a read gives back.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::key::Key;

/// Most entries in one page.
pub const PAGE_MAX: usize = 1000;

/// A page also ends once its values exceed this, so that memory stays bounded on both sides.
pub(crate) const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// The number of a commit. Later commits have greater numbers; there are gaps.
///
/// It is the larger of the last one plus one and the store's clock in microseconds, so it keeps
/// rising even when a Redis is emptied or an old backup is restored: a fencing token never returns.
/// It stays below 2⁵³, and so passes through Lua and JSON unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u64);

impl Revision {
    /// Takes a number that a store gave out earlier.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number.
    pub fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn after(last: u64, now_micros: u64) -> Self {
        Self((last + 1).max(now_micros))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub key: Key,
    /// What is there.
    pub value: Bytes,
    /// The commit that put it. Refreshing an expiry does not change it.
    pub revision: Revision,
    /// How long it has left, as of the read; nothing if it stays.
    pub expires_in: Option<Duration>,
}

/// Some entries in key order. Pages are read one by one: each is consistent, all together need not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries; possibly none although more follow.
    pub entries: Vec<Entry>,
    /// Where to go on, if there is more.
    pub next: Option<Key>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_rise_whatever_the_clock_does() {
        assert_eq!(Revision::after(0, 50).number(), 50);
        assert_eq!(Revision::after(50, 50).number(), 51);
        assert_eq!(Revision::after(50, 7).number(), 51);
        assert_eq!(Revision::after(0, 0).number(), 1);
    }
}
