//! The file itself: who may open it, which layout it has, and what happens after the disk failed: after a write it is
//! opened again, after a flush it stays shut until the process starts anew.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ::redb::backends::FileBackend;
use ::redb::{Database, DatabaseError, StorageBackend};
use rustix::fs::{Advice, fadvise};

use super::founding;
use super::journal::Journal;
use super::medium::{Flushes, Medium};
use super::tables;
use crate::error::Error;

/// Enough for the working set of a large gateway; redb's own default is a gibibyte.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// The end of the name of the file that tells whose a store is.
const OWNER: &str = ".owner";

type Opener = Box<dyn Fn() -> Result<Box<dyn StorageBackend>, DatabaseError> + Send + Sync>;

/// An open store file. Empty in between only while it is opened again.
pub(super) struct File {
    path: PathBuf,
    opener: Opener,
    flushes: Flushes,
    database: RwLock<Option<Database>>,
}

impl File {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn open(path: &Path) -> Result<(Self, Journal), Error> {
        founding::found(path).map_err(|error| match error {
            ::redb::Error::DatabaseAlreadyOpen => locked(path),
            error => Error::File { operation: "open", path: path.to_owned(), cause: Arc::new(error) },
        })?;
        let at = path.to_owned();
        let (file, journal) = Self::open_with(path, Box::new(move || create(&at)), || Journal::open(path))?;
        // Only ever read by a process that finds the file locked, so an old one misleads nobody.
        if let Err(error) = std::fs::write(beside(path, OWNER), whoami()) {
            tracing::debug!(path = %path.display(), %error, "The owner of the store file could not be noted.");
        }
        Ok((file, journal))
    }

    /// Opens the database first, so that only its owner touches the journal.
    pub(super) fn open_with(
        path: &Path,
        opener: Opener,
        journal: impl FnOnce() -> io::Result<Journal>,
    ) -> Result<(Self, Journal), Error> {
        let file =
            Self { path: path.to_owned(), opener, flushes: Flushes::default(), database: RwLock::new(None) };
        let mut opened = None;
        file.reopen(|database| opened.insert(journal()?).replay(database))?;
        let journal = opened.ok_or_else(|| file.error("open", ::redb::Error::DatabaseClosed))?;
        Ok((file, journal))
    }

    /// Runs a read.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, ::redb::Error>,
    ) -> Result<T, Error> {
        self.with(read).map_err(|error| self.error("read", error))
    }

    /// Runs something on the database. Shared: redb sorts readers and its one writer out itself.
    pub(super) fn with<T>(
        &self,
        run: impl FnOnce(&Database) -> Result<T, ::redb::Error>,
    ) -> Result<T, ::redb::Error> {
        // What is read may be in memory only, and somebody would rely on it.
        if self.failed_flush().is_some() {
            return Err(::redb::Error::DatabaseClosed);
        }
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        database.as_ref().map_or(Err(::redb::Error::DatabaseClosed), run)
    }

    /// Why nobody knows what of the file is on the disk, if that is so.
    pub(super) fn failed_flush(&self) -> Option<Arc<io::Error>> {
        self.flushes.failed()
    }

    /// How many flushes reached the disk.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.done()
    }

    /// Closes and opens. After a failed write redb refuses all others until that is done.
    /// Nobody reads before `catch_up` is done with it. After a failed flush it is left as it is, and locked.
    pub(super) fn reopen(
        &self,
        catch_up: impl FnOnce(&Database) -> Result<(), ::redb::Error>,
    ) -> Result<(), Error> {
        if self.failed_flush().is_some() {
            return Err(self.error("open", ::redb::Error::DatabaseClosed));
        }
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The lock on the file goes with the old handle, so it must go first.
        *database = None;
        let open = || {
            let medium = Medium { bytes: (self.opener)()?, flushes: self.flushes.clone() };
            Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(medium)
        };
        let opened = open().map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => locked(&self.path),
            error => self.error("open", error),
        })?;
        if let Some(found) = tables::prepare(&opened).map_err(|error| self.error("open", error))? {
            let at = self.path.display().to_string().into();
            return Err(Error::Schema { at, found, known: tables::SCHEMA });
        }
        catch_up(&opened).map_err(|error| self.error("open", error))?;
        *database = Some(opened);
        Ok(())
    }

    /// What went wrong; that is the failed flush, if there was one, as all else follows from it.
    pub(super) fn error(
        &self,
        operation: &'static str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        match self.failed_flush() {
            Some(cause) => Error::Unflushed { path: self.path.clone(), cause },
            None => Error::File { operation, path: self.path.clone(), cause: Arc::new(cause) },
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(&self.path).finish()
    }
}

fn locked(path: &Path) -> Error {
    Error::Locked { path: path.to_owned(), owner: owner(path) }
}

/// Opens or creates a file and its folder, for this user's eyes only: it holds hashes of tokens.
pub(super) fn open_or_make(path: &Path) -> io::Result<std::fs::File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Opens what redb reads and writes.
fn create(path: &Path) -> Result<Box<dyn StorageBackend>, DatabaseError> {
    let file = open_or_make(path)?;
    // After a failed flush the kernel may keep what never reached the disk, as if it had. It would be found sound, the
    // journal that has it too would start anew, and it would be gone with the power. What is read anew is what is there.
    if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
        tracing::debug!(path = %path.display(), %error, "The store file is read as the kernel remembers it.");
    }
    Ok(Box::new(FileBackend::new(file)?))
}

/// A file beside it whose name ends with this.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn whoami() -> String {
    let program = std::env::current_exe().ok();
    let program =
        program.as_deref().and_then(Path::file_name).map_or("?".into(), |name| name.to_string_lossy());
    format!("process {} ({program})", std::process::id())
}

fn owner(path: &Path) -> String {
    match std::fs::read_to_string(beside(path, OWNER)) {
        Ok(owner) if owner == whoami() => format!("this very process, {owner}"),
        Ok(owner) if !owner.is_empty() => owner,
        _ => "another process".into(),
    }
}
