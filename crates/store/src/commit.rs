//! A change to the store: what must hold, and what to do if it does.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;

use crate::entry::Revision;
use crate::key::{Invalid, Key};

/// Longest value in bytes.
pub const VALUE_MAX: usize = 1024 * 1024;
/// Most operations, and most conditions, in one commit.
pub const OPERATIONS_MAX: usize = 512;
/// Most bytes of keys and values in one commit: it is one message to Redis and one script run there.
pub const COMMIT_MAX: usize = 8 * 1024 * 1024;
/// Longest time to live.
pub const TTL_MAX: Duration = Duration::from_hours(24 * 365 * 10);

/// What is expected of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is there (or what was there has expired).
    Absent,
    /// Something is there.
    Present,
    /// What this commit put is still there.
    At(Revision),
}

impl Expect {
    /// Whether it holds, given what is there.
    pub(crate) fn holds(self, found: Option<Revision>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::At(revision) => found == Some(revision),
        }
    }
}

/// A condition of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key it is about.
    pub key: Key,
    /// What must hold.
    pub expect: Expect,
}

/// An operation of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes a value, replacing value and expiry of what was there.
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Bytes,
        /// For how long; for good if nothing.
        ttl: Option<Duration>,
    },
    /// Removes a key; nothing happens if it is absent.
    Delete {
        /// Where.
        key: Key,
    },
    /// Lets a key live for this long from now; nothing happens if it is absent.
    /// Value and revision stay, and watchers do not hear of it.
    Refresh {
        /// Where.
        key: Key,
        /// For how long.
        ttl: Duration,
    },
}

impl Operation {
    /// The key it is about.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::Refresh { key, .. } => key,
        }
    }

    /// Whether watchers should look.
    pub(crate) fn is_visible(&self) -> bool {
        !matches!(self, Self::Refresh { .. })
    }
}

/// Conditions and operations that stand or fall together.
///
/// ```
/// # use tarbet_store::{Commit, TableName};
/// # fn main() -> Result<(), tarbet_store::Invalid> {
/// let sites = TableName::new("sites")?;
/// let commit = Commit::new().absent(sites.key("lab")).put(sites.key("lab"), "{}");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "nothing happens until it is given to Store::commit"]
pub struct Commit {
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What then happens.
    pub operations: Vec<Operation>,
    /// Whether it counts as made only once it is on the disk, in a store that has one of its own.
    pub on_disk: bool,
}

impl Commit {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn expect(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Adds an operation.
    pub fn with(mut self, operation: Operation) -> Self {
        self.operations.push(operation);
        self
    }

    /// Only once it is on the disk is it acknowledged.
    pub fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// Only if nothing is at this key.
    pub fn absent(self, key: Key) -> Self {
        self.expect(Condition { key, expect: Expect::Absent })
    }

    /// Only if something is at this key.
    pub fn present(self, key: Key) -> Self {
        self.expect(Condition { key, expect: Expect::Present })
    }

    /// Only if this key still holds what that commit put there.
    pub fn at(self, key: Key, revision: Revision) -> Self {
        self.expect(Condition { key, expect: Expect::At(revision) })
    }

    /// Writes a value for good.
    pub fn put(self, key: Key, value: impl Into<Bytes>) -> Self {
        self.with(Operation::Put { key, value: value.into(), ttl: None })
    }

    /// Writes a value that expires.
    pub fn put_for(self, key: Key, value: impl Into<Bytes>, ttl: Duration) -> Self {
        self.with(Operation::Put { key, value: value.into(), ttl: Some(ttl) })
    }

    /// Removes a key.
    pub fn delete(self, key: Key) -> Self {
        self.with(Operation::Delete { key })
    }

    /// Puts off the expiry of a key.
    pub fn refresh(self, key: Key, ttl: Duration) -> Self {
        self.with(Operation::Refresh { key, ttl })
    }

    /// The keys whose watchers should look after this commit.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &Key> {
        self.operations.iter().filter(|operation| operation.is_visible()).map(Operation::key)
    }

    /// Whether losing it would lose something that is not derived again by itself.
    pub(crate) fn is_lasting(&self) -> bool {
        self.operations
            .iter()
            .any(|operation| matches!(operation, Operation::Put { ttl: None, .. } | Operation::Delete { .. }))
    }

    /// Whether any back end would take it.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.operations.is_empty() {
            return Err(Invalid::EmptyCommit);
        }
        let mut bytes = 0;
        for condition in &self.conditions {
            condition.key.check()?;
            bytes += condition.key.bytes.len();
        }
        let mut seen = HashSet::with_capacity(self.operations.len());
        for operation in &self.operations {
            let key = operation.key();
            key.check()?;
            if !seen.insert(key) {
                return Err(Invalid::RepeatedKey(key.clone()));
            }
            bytes += key.bytes.len();
            if let Operation::Put { value, .. } = operation {
                if value.len() > VALUE_MAX {
                    return Err(Invalid::ValueLength { key: key.clone(), length: value.len() });
                }
                bytes += value.len();
            }
            if let Operation::Put { ttl: Some(ttl), .. } | Operation::Refresh { ttl, .. } = operation
                && !(Duration::from_millis(1)..=TTL_MAX).contains(ttl)
            {
                return Err(Invalid::TimeToLive(key.clone()));
            }
        }
        let (operations, conditions) = (self.operations.len(), self.conditions.len());
        if operations > OPERATIONS_MAX || conditions > OPERATIONS_MAX || bytes > COMMIT_MAX {
            return Err(Invalid::CommitSize { operations, conditions, bytes });
        }
        Ok(())
    }
}
