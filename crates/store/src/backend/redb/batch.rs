//! Commits that are decided one after another, each seeing those before it, and not yet made.

use ::redb::{Error, ReadableDatabase};

use super::file::File;
use super::recent::{Recent, Row, Rows};
use super::tables;
use crate::clock::Expiry;
use crate::commit::{Commit, Operation};
use crate::entry::Revision;
use crate::key::Key;

/// What became of a commit: its revision, or the key that was not as expected.
pub(super) type Outcome = Result<Revision, Key>;

/// What a batch would change.
pub(super) struct Batch<'a> {
    file: &'a File,
    recent: &'a Recent,
    now: u64,
    /// The last revision that was given out.
    pub(super) revision: u64,
    pub(super) rows: Rows,
}

impl<'a> Batch<'a> {
    pub(super) fn new(file: &'a File, recent: &'a Recent, revision: u64, now: u64) -> Self {
        Self { file, recent, now, revision, rows: Rows::new() }
    }

    /// Decides a commit: all of it, or nothing.
    pub(super) fn run(&mut self, commit: &Commit) -> Result<Outcome, Error> {
        for condition in &commit.conditions {
            let found = self.live(&condition.key)?.map(|row| Revision::new(row.revision));
            if !condition.expect.holds(found) {
                return Ok(Err(condition.key.clone()));
            }
        }
        let revision = Revision::after(self.revision, self.now);
        self.revision = revision.number();
        for operation in &commit.operations {
            let (key, row) = match operation {
                Operation::Put { key, value, ttl } => {
                    let expiry = Expiry::after(self.now, *ttl).stored();
                    (key, Some(Row { revision: revision.number(), expiry, value: value.clone() }))
                }
                Operation::Delete { key } => (key, None),
                Operation::Refresh { key, ttl } => {
                    let Some(row) = self.live(key)? else { continue };
                    (key, Some(Row { expiry: Expiry::after(self.now, Some(*ttl)).stored(), ..row }))
                }
            };
            self.rows.insert(key.clone(), row);
        }
        Ok(Ok(revision))
    }

    fn live(&self, key: &Key) -> Result<Option<Row>, Error> {
        let row = match self.rows.get(key).cloned().or_else(|| self.recent.get(key)) {
            Some(row) => row,
            None => self.file.with(|database| tables::row(&database.begin_read()?, key))?,
        };
        Ok(row.filter(|row| row.is_live(self.now)))
    }
}
