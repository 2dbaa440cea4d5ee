//! A whole store in one file, and back.
//!
//! The file is lines of JSON: a head with the version of the format, one line for each entry, and a foot
//! with their number and a SHA-256 of all that stands above it. Entries are written as they are read, so
//! neither side holds a whole store in memory.

mod format;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem};

use self::format::{Line, Reader, Writer};
use crate::clock::{Clock, micros};
use crate::commit::{Commit, Operation};
use crate::entry::PAGE_MAX;
use crate::error::Error;
use crate::key::{Key, Prefix, TableName};
use crate::store::Store;

/// How often a backup is begun again because the store changed under it.
const ATTEMPTS: usize = 10;
/// Entries and bytes of one commit of a restore.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 2 * 1024 * 1024;

/// Why there is no backup, or no restored store.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file cannot be read or written.
    #[error("cannot {operation} the backup {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is cut off, was changed, or is something else. Nothing was restored.
    #[error("{} is not an intact backup: line {line}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong there.
        why: &'static str,
    },
    /// The file was made by a newer program. Nothing was restored.
    #[error("{} has backup format {found}; this program knows up to {}", path.display(), format::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The store already holds something. Nothing was restored.
    #[error("the store is not empty")]
    NotEmpty,
    /// Lasting entries changed each time they were read.
    #[error("the store changed during each of {ATTEMPTS} attempts to copy it")]
    Restless,
    /// The store failed.
    #[error("the store failed")]
    Store(
        #[source]
        #[from]
        Error,
    ),
}

impl Coded for BackupError {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::Store(error) => return error.problem(),
            Self::Version { .. } => &ground::STORE_SCHEMA,
            Self::Restless => &ground::STORE_CONFLICT,
            Self::File { .. } | Self::Damaged { .. } | Self::NotEmpty => &ground::BAD_REQUEST,
        };
        let problem = Problem::new(code, format!("{self}.")).at("tarbet store → backup file");
        match self {
            Self::File { source, .. } => {
                problem.because(source.to_string()).advising("check the path, its permissions and free space")
            }
            Self::Damaged { .. } => problem
                .because("the file does not match its own checksum or form")
                .advising("use another copy"),
            Self::NotEmpty => problem
                .because("restoring would mix two stores")
                .advising("restore into a new store, or pass --replace"),
            Self::Restless => {
                problem.because("other processes keep writing").advising("stop them, then try again")
            }
            _ => problem,
        }
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// Entries in the file.
    pub entries: u64,
    /// Entries left out of a restore because their time had passed.
    pub expired: u64,
}

/// What to do with what a store already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMode {
    /// Refuse unless it is empty.
    IntoEmpty,
    /// Remove it.
    Replace,
}

/// Copies a store to a file, replacing that only once the copy is complete and on disk.
///
/// The lasting entries are copied as they stood at one moment: the copy is repeated if they changed
/// while it was made. Entries that expire are copied as they are met.
pub async fn backup(store: &Store, path: &Path, clock: &Clock) -> Result<BackupSummary, BackupError> {
    for _ in 0..ATTEMPTS {
        let mut writer = Writer::create(path, clock).await?;
        let copied = walk(store, async |entry| writer.entry(&entry, clock).await).await?;
        // If nothing changed between the two walks, the first one saw what stood between them.
        if copied == walk(store, async |_| Ok(())).await? {
            let entries = writer.finish().await?;
            return Ok(BackupSummary { entries, expired: 0 });
        }
        writer.abandon().await;
    }
    Err(BackupError::Restless)
}

/// Visits all entries, and gives a fingerprint of the lasting ones.
async fn walk(
    store: &Store,
    mut visit: impl AsyncFnMut(crate::Entry) -> Result<(), BackupError>,
) -> Result<[u8; 32], BackupError> {
    let marker = marker()?;
    let mut fingerprint = Sha256::new();
    let mut after = None;
    loop {
        let page = store.range(&Prefix::everything(), after.as_ref(), PAGE_MAX).await?;
        for entry in page.entries {
            if entry.key == marker {
                return Err(Error::HalfRestored { at: "this store".into() }.into());
            }
            if entry.expires_in.is_none() {
                fingerprint.update(entry.key.to_string());
                fingerprint.update(&entry.key.bytes);
                fingerprint.update(entry.revision.number().to_be_bytes());
            }
            visit(entry).await?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(fingerprint.finalize().into()),
        }
    }
}

/// Copies a file to a store. The file is checked in full before the store is touched.
///
/// If it is interrupted the store is left marked, and [`crate::open`] refuses it until it was restored
/// again.
pub async fn restore(
    store: &Store,
    path: &Path,
    mode: RestoreMode,
    clock: &Clock,
) -> Result<BackupSummary, BackupError> {
    let mut check = Reader::open(path).await?;
    while check.next().await?.is_some() {}
    let marker = marker()?;
    let present = store.range(&Prefix::everything(), None, 1).await?;
    if mode == RestoreMode::IntoEmpty && !present.entries.is_empty() {
        return Err(BackupError::NotEmpty);
    }
    store.put(marker.clone(), "").await?;
    remove_all_but(store, &marker).await?;
    let summary = fill(store, path, clock).await?;
    store.delete(marker).await?;
    Ok(summary)
}

async fn remove_all_but(store: &Store, marker: &Key) -> Result<(), BackupError> {
    let mut after = None;
    loop {
        let page = store.range(&Prefix::everything(), after.as_ref(), BATCH).await?;
        let keys = page.entries.into_iter().map(|entry| entry.key).filter(|key| key != marker);
        let operations: Vec<Operation> = keys.map(|key| Operation::Delete { key }).collect();
        if !operations.is_empty() {
            store.commit(Commit { operations, ..Commit::new() }).await?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

async fn fill(store: &Store, path: &Path, clock: &Clock) -> Result<BackupSummary, BackupError> {
    let mut reader = Reader::open(path).await?;
    let mut summary = BackupSummary { entries: 0, expired: 0 };
    let mut batch = Commit::new();
    let mut bytes = 0;
    while let Some(Line { key, value, expires }) = reader.next().await? {
        summary.entries += 1;
        let now = clock.micros();
        let ttl = expires.map(|at| Duration::from_micros(at.saturating_sub(now)));
        if ttl.is_some_and(|left| micros(left) < 1000) {
            summary.expired += 1;
            continue;
        }
        bytes += value.len();
        batch = batch.with(Operation::Put { key, value: value.into(), ttl });
        if batch.operations.len() == BATCH || bytes > BATCH_BYTES {
            store.commit(std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
    }
    if !batch.operations.is_empty() {
        store.commit(batch).await?;
    }
    Ok(summary)
}

/// Whether a restore began here and did not finish.
pub(crate) async fn is_half_restored(store: &Store) -> Result<bool, Error> {
    Ok(store.get(&marker()?).await?.is_some())
}

fn marker() -> Result<Key, Error> {
    Ok(TableName::new("store-restore")?.key("unfinished"))
}
