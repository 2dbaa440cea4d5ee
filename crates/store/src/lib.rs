//! One place for what must be remembered or shared: sites, tags, plans, the registry of links.
//!
//! Start from [`Store`], a cheap handle on one of three back ends: memory, a redb file that belongs
//! to one process, or a Redis that many share. A back end does four things (get, range, commit, hints);
//! watches, leases, typed tables and backups are written once above them.
//! It refuses to be a database: no queries, no joins, no values beyond [`VALUE_MAX`], no Redis Cluster.
//! What a commit promises: all of it or nothing, and for redb that it survives the death of the process once
//! acknowledged, and that of the machine 20 ms and one flush later, or at once if the settings ask for it.
//! Threads and tasks: a redb store owns one thread that flushes, a Redis store one subscriber task; both end
//! when the last handle goes.

pub mod backend;
mod backup;
mod clock;
mod commit;
mod config;
mod durability;
mod entry;
mod error;
pub mod fuzz;
mod hashes;
mod hints;
mod key;
mod lease;
mod open;
mod store;
pub mod table;
mod watch;

pub use backend::Backend;
pub use backup::{BackupError, BackupSummary, RestoreMode, backup, restore};
pub use clock::{Clock, ManualClock};
pub use commit::{COMMIT_MAX, Commit, Condition, Expect, OPERATIONS_MAX, Operation, TTL_MAX, VALUE_MAX};
pub use config::{
    HostPort, NotAnAddress, RedbConfig, RedisConfig, RedisUrl, SentinelConfig, StoreConfig, Sync, TlsConfig,
};
pub use durability::{Durability, durability};
pub use entry::{Entry, PAGE_MAX, Page, Revision};
pub use error::{Class, Error, Retry};
pub use hashes::{HashField, Hashes};
pub use hints::Hints;
pub use key::{Invalid, KEY_MAX, Key, Prefix, TableName};
pub use lease::{Lease, LeaseError};
pub use open::{open, open_for_restore};
pub use store::Store;
pub use table::{Record, Table, TableKey, Versioned};
pub use watch::{Change, Watch};
