//! What was acknowledged and is not yet on the disk in redb, in a file beside it.
//!
//! A write to a file is in the kernel's hands at once, so it survives the death of this process, and it
//! costs microseconds where a flush of the disk costs a millisecond. Each batch of commits is
//! written here before it becomes visible; every few milliseconds all of it goes to redb and the disk, and the
//! journal starts anew.
//!
//! It is written from its beginning again and again, without being emptied. What tells the valid records
//! from older ones is a random number, the *generation*, which redb holds and every record's digest
//! covers: a flush changes it in the same transaction that makes the records superfluous. So there is no
//! moment at which a crash leaves the two at odds, and a journal beside a file that it does not belong
//! to is ignored.

pub(super) mod record;

use std::io;
use std::path::Path;

use ::redb::backends::FileBackend;
use ::redb::{Database, StorageBackend};

use self::record::Changes;
use super::file::{beside, open_or_make};
use super::tables::{self, Known, Tables};

/// A file longer than this is emptied when it starts anew; a shorter one keeps its place on the disk.
const KEPT_BYTES: u64 = 1024 * 1024;

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    medium: Box<dyn StorageBackend>,
    generation: u64,
    end: u64,
}

impl Journal {
    /// Opens or creates the journal of the store file at this path.
    pub(super) fn open(store: &Path) -> io::Result<Self> {
        let file = open_or_make(&beside(store, ".journal"))?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Self::on(Box::new(file)))
    }

    pub(super) fn on(medium: Box<dyn StorageBackend>) -> Self {
        Self { medium, generation: 0, end: 0 }
    }

    /// Brings a database that was just opened up to date with what is here, and starts anew.
    pub(super) fn replay(&mut self, database: &Database) -> Result<(), ::redb::Error> {
        let known = tables::generation(database)?;
        let bytes = self.read()?;
        let mut records = record::records(known.unwrap_or_default(), &bytes).peekable();
        if let (Some(generation), None) = (known, records.peek()) {
            self.restart(generation);
            return Ok(());
        }
        let transaction = database.begin_write()?;
        let mut tables = Tables::open(&transaction, Known::read(database)?)?;
        let mut replayed = 0_usize;
        if known.is_some() {
            for record in records {
                replayed += usize::from(tables.replay(&record)?);
            }
        }
        let generation = rand::random();
        tables.start_generation(generation)?;
        drop(tables);
        transaction.commit()?;
        self.restart(generation);
        if replayed > 0 {
            tracing::info!(
                records = replayed,
                "Acknowledged writes were taken from the journal of the store."
            );
        }
        Ok(())
    }

    /// Writes a record, so that it outlives this process. If that fails, it is as if it were never tried.
    pub(super) fn append(&mut self, changes: &mut Changes, revision: u64) -> io::Result<()> {
        let record = changes.seal(self.generation, self.end, revision)?;
        self.medium.write(self.end, record)?;
        self.end += record.len() as u64;
        Ok(())
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Begins again at the start: all that is here is in redb, and redb holds this generation.
    pub(super) fn restart(&mut self, generation: u64) {
        self.generation = generation;
        if self.end > KEPT_BYTES
            && let Err(error) = self.medium.set_len(0)
        {
            tracing::debug!(%error, "The journal of the store keeps its size.");
        }
        self.end = 0;
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.medium.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.medium.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
