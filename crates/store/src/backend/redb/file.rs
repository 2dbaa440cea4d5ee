//! The file itself: who may open it, which layout it has, and what happens after the disk failed.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ::redb::{Database, DatabaseError, ReadTransaction, ReadableDatabase};

use super::journal::Journal;
use super::tables;
use crate::error::Error;

/// Enough for the working set of a large gateway; redb's own default is a gibibyte.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

/// An open store file. Empty in between only while it is opened again.
pub(super) struct File {
    path: PathBuf,
    opener: Opener,
    database: RwLock<Option<Database>>,
}

impl File {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn open(path: &Path) -> Result<(Self, Journal), Error> {
        let at = path.to_owned();
        let (file, journal) = Self::open_with(path, Box::new(move || create(&at)), || Journal::open(path))?;
        // Only ever read by a process that finds the file locked, so an old one misleads nobody.
        if let Err(error) = std::fs::write(owner_path(path), whoami()) {
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
        let file = Self { path: path.to_owned(), opener, database: RwLock::new(None) };
        let mut opened = None;
        file.reopen(|database| opened.insert(journal()?).replay(database))?;
        let journal = opened.ok_or_else(|| file.error("open", ::redb::Error::DatabaseClosed))?;
        Ok((file, journal))
    }

    /// Runs a read on a snapshot.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, ::redb::Error>,
    ) -> Result<T, Error> {
        self.with(|database| read(&database.begin_read()?)).map_err(|error| self.error("read", error))
    }

    /// Runs something on the database. Shared: redb sorts readers and its one writer out itself.
    pub(super) fn with<T>(
        &self,
        run: impl FnOnce(&Database) -> Result<T, ::redb::Error>,
    ) -> Result<T, ::redb::Error> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        database.as_ref().map_or(Err(::redb::Error::DatabaseClosed), run)
    }

    /// Closes and opens. After a failed write redb refuses all others until that is done.
    /// Nobody reads before `catch_up` is done with it.
    pub(super) fn reopen(
        &self,
        catch_up: impl FnOnce(&Database) -> Result<(), ::redb::Error>,
    ) -> Result<(), Error> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The lock on the file goes with the old handle, so it must go first.
        *database = None;
        let opened = (self.opener)().map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                Error::Locked { path: self.path.clone(), owner: owner(&self.path) }
            }
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

    pub(super) fn error(
        &self,
        operation: &'static str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::File { operation, path: self.path.clone(), cause: Arc::new(cause) }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("File").field(&self.path).finish()
    }
}

/// Opens or creates, for this user's eyes only: it holds hashes of tokens.
fn create(path: &Path) -> Result<Database, DatabaseError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Database::builder().set_cache_size(CACHE_BYTES).create_file(file)
}

fn owner_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".owner");
    name.into()
}

fn whoami() -> String {
    let program = std::env::current_exe().ok();
    let program =
        program.as_deref().and_then(Path::file_name).map_or("?".into(), |name| name.to_string_lossy());
    format!("process {} ({program})", std::process::id())
}

fn owner(path: &Path) -> String {
    match std::fs::read_to_string(owner_path(path)) {
        Ok(owner) if owner == whoami() => format!("this very process, {owner}"),
        Ok(owner) if !owner.is_empty() => owner,
        _ => "another process".into(),
    }
}
