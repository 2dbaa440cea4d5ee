//! The layout of the file, and reading and changing it inside a redb transaction.
//!
//! | layout | what it added |
//! |---|---|
//! | 1 | `entries` and `meta` |
//! | 2 | `expiry`, the index by which expired entries are found without reading all |

use std::ops::Bound;

use ::redb::{
    Database, Error, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};
use bytes::Bytes;

use super::journal::record::{Change, Record};
use super::recent::{self, Row, Rows};
use crate::entry::{PAGE_BYTES, Page};
use crate::key::{Key, Prefix, TableName};

/// The layout this program writes.
pub(super) const SCHEMA: u64 = 2;

type EntryKey = (&'static str, &'static [u8]);
/// Revision, expiry in microseconds since 1970 (zero for never), value.
type EntryValue = (u64, u64, &'static [u8]);
/// Expiry first, so that what is due comes first.
type ExpiryKey = (u64, &'static str, &'static [u8]);

const ENTRIES: TableDefinition<EntryKey, EntryValue> = TableDefinition::new("entries");
const EXPIRY: TableDefinition<ExpiryKey, ()> = TableDefinition::new("expiry");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const META_SCHEMA: &str = "schema";
const META_REVISION: &str = "revision";
/// Which records of the journal are newer than what is here.
const META_GENERATION: &str = "journal";

/// Makes the tables, or brings older ones up to date, in one transaction. Tells the schema if it is
/// newer than this program; then nothing was touched.
pub(super) fn prepare(database: &Database) -> Result<Option<u64>, Error> {
    let found = match database.begin_read()?.open_table(META) {
        Ok(meta) => meta.get(META_SCHEMA)?.map(|schema| schema.value()),
        Err(::redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    match found {
        Some(SCHEMA) => return Ok(None),
        Some(newer) if newer > SCHEMA => return Ok(Some(newer)),
        _ => {}
    }
    let transaction = database.begin_write()?;
    if found == Some(1) {
        index_expiry(&transaction)?;
    }
    transaction.open_table(ENTRIES)?;
    transaction.open_table(EXPIRY)?;
    transaction.open_table(META)?.insert(META_SCHEMA, SCHEMA)?;
    transaction.commit()?;
    Ok(None)
}

/// From layout 1 to 2.
fn index_expiry(transaction: &WriteTransaction) -> Result<(), Error> {
    let entries = transaction.open_table(ENTRIES)?;
    let mut expiry = transaction.open_table(EXPIRY)?;
    for row in entries.iter()? {
        let (key, value) = row?;
        let ((table, key), (_, at, _)) = (key.value(), value.value());
        if at != 0 {
            expiry.insert((at, table, key), ())?;
        }
    }
    Ok(())
}

/// The generation of the journal that continues this database, if it ever had one.
pub(super) fn generation(database: &Database) -> Result<Option<u64>, Error> {
    let meta = database.begin_read()?.open_table(META)?;
    Ok(meta.get(META_GENERATION)?.map(|generation| generation.value()))
}

/// The row at a key, expired or not.
pub(super) fn row(snapshot: &ReadTransaction, key: &Key) -> Result<Option<Row>, Error> {
    let entries = snapshot.open_table(ENTRIES)?;
    let found = entries.get((key.table.as_str(), &key.bytes[..]))?;
    Ok(found.map(|found| found.value().into()))
}

impl From<(u64, u64, &[u8])> for Row {
    fn from((revision, expiry, value): (u64, u64, &[u8])) -> Self {
        Self { revision, expiry, value: Bytes::copy_from_slice(value) }
    }
}

/// A page of what is in redb, where `recent` tells otherwise of that.
pub(super) fn range(
    snapshot: &ReadTransaction,
    recent: Rows,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
    now: u64,
) -> Result<Page, Error> {
    let entries = snapshot.open_table(ENTRIES)?;
    let start = match (after, &prefix.table) {
        (Some(after), _) => Bound::Excluded((after.table.as_str(), &after.bytes[..])),
        (None, Some(table)) => Bound::Included((table.as_str(), &prefix.bytes[..])),
        (None, None) => Bound::Unbounded,
    };
    let mut table: Option<TableName> = None;
    let known = entries.range::<(&str, &[u8])>((start, Bound::Unbounded))?.filter_map(move |row| {
        let (key, value) = match row {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        // Names are checked on the way in; one that fails here would be damage, which redb's own
        // checksums find, so it is passed over.
        let (name, bytes) = key.value();
        if table.as_ref().is_none_or(|table| table.as_str() != name) {
            table = TableName::new(name).ok();
        }
        let key = table.as_ref()?.key(Bytes::copy_from_slice(bytes));
        Some(Ok((key, value.value().into())))
    });
    let mut page = Page::default();
    let mut bytes = 0;
    for row in recent::over(recent, known) {
        let (key, row) = row?;
        if !prefix.contains(&key) {
            break;
        }
        let Some(row) = row.filter(|row| row.is_live(now)) else { continue };
        if page.entries.len() == limit || bytes > PAGE_BYTES {
            page.next = page.entries.last().map(|entry| entry.key.clone());
            break;
        }
        bytes += row.value.len();
        page.entries.push(row.entry(key, now));
    }
    Ok(page)
}

/// What the last transaction knew, so that the next need not read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The last revision that was given out. With a journal it is ahead of the one in `meta`.
    pub(super) revision: u64,
    /// Nothing in redb expires before this.
    pub(super) soonest: u64,
}

impl Known {
    /// After the file was opened.
    pub(super) fn read(database: &Database) -> Result<Self, Error> {
        let meta = database.begin_read()?.open_table(META)?;
        let revision = meta.get(META_REVISION)?.map_or(0, |revision| revision.value());
        Ok(Self { revision, soonest: 0 })
    }
}

/// The tables for writing. Opening one and changing one costs every flush, so those that it seldom needs are opened
/// when it does.
pub(super) struct Tables<'t> {
    transaction: &'t WriteTransaction,
    entries: Table<'t, EntryKey, EntryValue>,
    expiry: Option<Table<'t, ExpiryKey, ()>>,
    known: Known,
}

impl<'t> Tables<'t> {
    /// Opens them, with what is known already.
    pub(super) fn open(transaction: &'t WriteTransaction, known: Known) -> Result<Self, Error> {
        let entries = transaction.open_table(ENTRIES)?;
        Ok(Self { transaction, entries, expiry: None, known })
    }

    /// What the next flush need not read, once this one is committed.
    pub(super) fn known(&self) -> Known {
        self.known
    }

    /// Writes down which revision was given out last. A record of the journal tells it as well.
    pub(super) fn keep_revision(&mut self) -> Result<(), Error> {
        self.transaction.open_table(META)?.insert(META_REVISION, self.known.revision)?;
        Ok(())
    }

    /// From now on this generation of the journal continues what is here.
    pub(super) fn start_generation(&mut self, generation: u64) -> Result<(), Error> {
        self.keep_revision()?;
        self.transaction.open_table(META)?.insert(META_GENERATION, generation)?;
        Ok(())
    }

    fn expiry(&mut self) -> Result<&mut Table<'t, ExpiryKey, ()>, Error> {
        let opened = match self.expiry.take() {
            Some(opened) => opened,
            None => self.transaction.open_table(EXPIRY)?,
        };
        Ok(self.expiry.insert(opened))
    }

    /// Does what a record of the journal says, unless it was done already; tells whether it did.
    pub(super) fn replay(&mut self, record: &Record<'_>) -> Result<bool, Error> {
        if record.revision <= self.known.revision {
            return Ok(false);
        }
        let changes = record.changes().map_err(|garbled| Error::Io(std::io::Error::other(garbled)))?;
        for change in changes {
            match change {
                Change::Put { table, key, revision, expiry, value } => {
                    self.write(table, key, (revision, expiry, value))?;
                }
                Change::Delete { table, key } => self.remove(table, key)?,
            }
        }
        self.known.revision = record.revision;
        Ok(true)
    }

    /// Removes up to `most` expired entries.
    pub(super) fn sweep(&mut self, now: u64, most: usize) -> Result<(), Error> {
        if now < self.known.soonest {
            return Ok(());
        }
        let (mut due, mut soonest) = (Vec::new(), u64::MAX);
        for row in self.expiry()?.iter()? {
            let (row, _) = row?;
            let (at, table, key) = row.value();
            if at > now || due.len() == most {
                soonest = at;
                break;
            }
            due.push((table.to_owned(), key.to_vec()));
        }
        self.known.soonest = soonest;
        for (table, key) in &due {
            self.remove(table, key)?;
        }
        Ok(())
    }

    /// Makes a row what it is now.
    pub(super) fn set(&mut self, key: &Key, row: Option<&Row>) -> Result<(), Error> {
        let (table, key) = (key.table.as_str(), &key.bytes[..]);
        match row {
            Some(row) => self.write(table, key, (row.revision, row.expiry, &row.value)),
            None => self.remove(table, key),
        }
    }

    fn write(&mut self, table: &str, key: &[u8], row: (u64, u64, &[u8])) -> Result<(), Error> {
        let before = self.entries.insert((table, key), row)?.map_or(0, |before| before.value().1);
        if before != row.1 {
            if before != 0 {
                self.expiry()?.remove((before, table, key))?;
            }
            if row.1 != 0 {
                self.known.soonest = self.known.soonest.min(row.1);
                self.expiry()?.insert((row.1, table, key), ())?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, table: &str, key: &[u8]) -> Result<(), Error> {
        let before = self.entries.remove((table, key))?.map_or(0, |before| before.value().1);
        if before != 0 {
            self.expiry()?.remove((before, table, key))?;
        }
        Ok(())
    }
}
