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

use super::journal::record::{Change, Changes, Record};
use crate::clock::Expiry;
use crate::commit::{Commit, Operation};
use crate::entry::{Entry, PAGE_BYTES, Page, Revision};
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

fn entry(key: Key, (revision, at, value): (u64, u64, &[u8]), now: u64) -> Entry {
    let expires_in = Expiry::from_stored(at).remaining(now);
    Entry { key, value: Bytes::copy_from_slice(value), revision: Revision::new(revision), expires_in }
}

pub(super) fn get(snapshot: &ReadTransaction, key: &Key, now: u64) -> Result<Option<Entry>, Error> {
    let entries = snapshot.open_table(ENTRIES)?;
    let found = entries.get((key.table.as_str(), &key.bytes[..]))?;
    let live = found.filter(|found| !Expiry::from_stored(found.value().1).passed(now));
    Ok(live.map(|found| entry(key.clone(), found.value(), now)))
}

pub(super) fn range(
    snapshot: &ReadTransaction,
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
    let mut page = Page::default();
    let mut bytes = 0;
    let mut table: Option<TableName> = None;
    for row in entries.range::<(&str, &[u8])>((start, Bound::Unbounded))? {
        let (row_key, row_value) = row?;
        let ((row_table, row_bytes), value) = (row_key.value(), row_value.value());
        // Names are checked on the way in; one that fails here would be damage, which redb's own
        // checksums find, so it is passed over.
        if table.as_ref().is_none_or(|table| table.as_str() != row_table) {
            table = TableName::new(row_table).ok();
        }
        let Some(table) = &table else { continue };
        let key = table.key(Bytes::copy_from_slice(row_bytes));
        if !prefix.contains(&key) {
            break;
        }
        if Expiry::from_stored(value.1).passed(now) {
            continue;
        }
        if page.entries.len() == limit || bytes > PAGE_BYTES {
            page.next = page.entries.last().map(|entry| entry.key.clone());
            break;
        }
        bytes += value.2.len();
        page.entries.push(entry(key, value, now));
    }
    Ok(page)
}

/// What the last transaction knew, so that the next need not read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The last revision that was given out. With a journal it is ahead of the one in `meta`.
    revision: u64,
    /// Nothing expires before this.
    soonest: u64,
}

/// The tables for writing. Opening one and changing one costs every commit, so those that a commit seldom needs are
/// opened when it does.
pub(super) struct Tables<'t> {
    transaction: &'t WriteTransaction,
    entries: Table<'t, EntryKey, EntryValue>,
    expiry: Option<Table<'t, ExpiryKey, ()>>,
    known: Known,
    changes: Option<&'t mut Changes>,
}

/// What became of a commit: its revision, or the key that was not as expected.
pub(super) type Outcome = Result<Revision, Key>;

impl<'t> Tables<'t> {
    /// Opens them, with what is known already; what commits change is written down as well, if asked.
    pub(super) fn open(
        transaction: &'t WriteTransaction,
        known: Option<Known>,
        changes: Option<&'t mut Changes>,
    ) -> Result<Self, Error> {
        let known = if let Some(known) = known {
            known
        } else {
            let meta = transaction.open_table(META)?;
            let revision = meta.get(META_REVISION)?.map_or(0, |revision| revision.value());
            Known { revision, soonest: 0 }
        };
        let entries = transaction.open_table(ENTRIES)?;
        Ok(Self { transaction, entries, expiry: None, known, changes })
    }

    /// What the next transaction need not read, once this one is committed.
    pub(super) fn known(&self) -> Known {
        self.known
    }

    /// The last revision that was given out.
    pub(super) fn revision(&self) -> u64 {
        self.known.revision
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

    /// Removes up to `most` expired entries and tells how many it were.
    pub(super) fn sweep(&mut self, now: u64, most: usize) -> Result<usize, Error> {
        if now < self.known.soonest {
            return Ok(0);
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
        Ok(due.len())
    }

    /// Does all of a commit, or nothing.
    pub(super) fn run(&mut self, commit: &Commit, now: u64) -> Result<Outcome, Error> {
        for condition in &commit.conditions {
            let found = self.live(&condition.key, now)?.map(|(revision, _)| revision);
            if !condition.expect.holds(found) {
                return Ok(Err(condition.key.clone()));
            }
        }
        let revision = Revision::after(self.known.revision, now);
        self.known.revision = revision.number();
        for operation in &commit.operations {
            match operation {
                Operation::Put { key, value, ttl } => {
                    self.put(key, revision, Expiry::after(now, *ttl), value)?;
                }
                Operation::Delete { key } => {
                    let (table, key) = (key.table.as_str(), &key.bytes[..]);
                    self.remove(table, key)?;
                    self.note(&Change::Delete { table, key });
                }
                Operation::Refresh { key, ttl } => {
                    if let Some((revision, value)) = self.live(key, now)? {
                        self.put(key, revision, Expiry::after(now, Some(*ttl)), &value)?;
                    }
                }
            }
        }
        Ok(Ok(revision))
    }

    fn live(&self, key: &Key, now: u64) -> Result<Option<(Revision, Vec<u8>)>, Error> {
        let found = self.entries.get((key.table.as_str(), &key.bytes[..]))?;
        Ok(found.and_then(|found| {
            let (revision, at, value) = found.value();
            let live = !Expiry::from_stored(at).passed(now);
            live.then(|| (Revision::new(revision), value.to_vec()))
        }))
    }

    fn put(&mut self, key: &Key, revision: Revision, expiry: Expiry, value: &[u8]) -> Result<(), Error> {
        let (table, key, revision, expiry) =
            (key.table.as_str(), &key.bytes[..], revision.number(), expiry.stored());
        self.write(table, key, (revision, expiry, value))?;
        self.note(&Change::Put { table, key, revision, expiry, value });
        Ok(())
    }

    fn note(&mut self, change: &Change<'_>) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
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
