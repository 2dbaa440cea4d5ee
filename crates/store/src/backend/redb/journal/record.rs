//! A record of the journal: what one batch of commits changed, in a form that can be cut anywhere.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of what follows the digest, little endian as all numbers here |
//! | 16 | digest of generation, place in the file and what follows |
//! | 8 | the store's revision afterwards |
//! | … | changes: a kind, the lengths of table and key, for a put revision, expiry and length of the value, then the bytes |

use std::io;

use sha2::{Digest, Sha256};

use super::super::recent::Row;
use crate::key::Key;

const LENGTH: usize = 4;
const DIGEST: usize = 16;
const HEAD: usize = LENGTH + DIGEST;
const REVISION: usize = 8;

/// Memory that is kept for the next record: enough for most batches.
const KEPT: usize = 64 * 1024;

const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Changes that are being written down.
#[derive(Debug, Default)]
pub(in super::super) struct Changes(Vec<u8>);

impl Changes {
    /// Forgets what was written, and keeps the memory unless it is much.
    pub(in super::super) fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(KEPT);
        self.0.resize(HEAD + REVISION, 0);
    }

    /// Writes a change down.
    pub(in super::super) fn push(&mut self, change: &Change<'_>) {
        let (kind, table, key) = match change {
            Change::Put { table, key, .. } => (PUT, table, key),
            Change::Delete { table, key } => (DELETE, table, key),
        };
        // Names, keys and values are within limits that fit these widths many times over.
        self.0.push(kind);
        self.0.extend((table.len() as u16).to_le_bytes());
        self.0.extend((key.len() as u16).to_le_bytes());
        if let Change::Put { revision, expiry, value, .. } = change {
            self.0.extend(revision.to_le_bytes());
            self.0.extend(expiry.to_le_bytes());
            self.0.extend((value.len() as u32).to_le_bytes());
        }
        self.0.extend(table.as_bytes());
        self.0.extend(*key);
        if let Change::Put { value, .. } = change {
            self.0.extend(*value);
        }
    }

    /// The finished record for this place of the journal.
    pub(super) fn seal(&mut self, generation: u64, place: u64, revision: u64) -> io::Result<&[u8]> {
        if self.0.is_empty() {
            self.clear();
        }
        let length = u32::try_from(self.0.len() - HEAD).map_err(io::Error::other)?;
        self.0[..LENGTH].copy_from_slice(&length.to_le_bytes());
        self.0[HEAD..HEAD + REVISION].copy_from_slice(&revision.to_le_bytes());
        let digest = digest(generation, place, &self.0[HEAD..]);
        self.0[LENGTH..HEAD].copy_from_slice(&digest);
        Ok(&self.0)
    }
}

/// One change of an entry, as redb holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Change<'a> {
    Put { table: &'a str, key: &'a [u8], revision: u64, expiry: u64, value: &'a [u8] },
    Delete { table: &'a str, key: &'a [u8] },
}

impl<'a> Change<'a> {
    /// What makes a row what it is now.
    pub(in super::super) fn of(key: &'a Key, row: Option<&'a Row>) -> Self {
        let (table, key) = (key.table.as_str(), &key.bytes[..]);
        match row {
            Some(Row { revision, expiry, value }) => {
                Self::Put { table, key, revision: *revision, expiry: *expiry, value }
            }
            None => Self::Delete { table, key },
        }
    }
}

/// A record whose digest is right and whose changes make no sense: written by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal beside the store file was written by a program that this one does not understand")]
pub(in super::super) struct Garbled;

/// A whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Record<'a> {
    pub(in super::super) revision: u64,
    changes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Its changes, in order.
    pub(in super::super) fn changes(&self) -> Result<Vec<Change<'a>>, Garbled> {
        let mut rest = self.changes;
        let mut changes = Vec::new();
        while !rest.is_empty() {
            changes.push(change(&mut rest).ok_or(Garbled)?);
        }
        Ok(changes)
    }
}

/// The whole records of a generation, from the start of a journal up to the first that is not one.
pub(in super::super) fn records(generation: u64, journal: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut place = 0;
    std::iter::from_fn(move || {
        let mut rest = journal.get(place..)?;
        let length = u32::from_le_bytes(take_array(&mut rest)?);
        let found: [u8; DIGEST] = take_array(&mut rest)?;
        let content = take(&mut rest, usize::try_from(length).ok()?)?;
        if found != digest(generation, place as u64, content) {
            return None;
        }
        place += HEAD + content.len();
        let (revision, changes) = content.split_first_chunk::<REVISION>()?;
        Some(Record { revision: u64::from_le_bytes(*revision), changes })
    })
}

fn digest(generation: u64, place: u64, content: &[u8]) -> [u8; DIGEST] {
    let hash = Sha256::new()
        .chain_update(b"tarbet journal 1")
        .chain_update(generation.to_le_bytes())
        .chain_update(place.to_le_bytes())
        .chain_update(content)
        .finalize();
    let mut digest = [0; DIGEST];
    digest.copy_from_slice(&hash[..DIGEST]);
    digest
}

fn change<'a>(rest: &mut &'a [u8]) -> Option<Change<'a>> {
    let [kind] = take_array(rest)?;
    let table = usize::from(u16::from_le_bytes(take_array(rest)?));
    let key = usize::from(u16::from_le_bytes(take_array(rest)?));
    let row = match kind {
        PUT => Some((
            u64::from_le_bytes(take_array(rest)?),
            u64::from_le_bytes(take_array(rest)?),
            usize::try_from(u32::from_le_bytes(take_array(rest)?)).ok()?,
        )),
        DELETE => None,
        _ => return None,
    };
    let table = str::from_utf8(take(rest, table)?).ok()?;
    let key = take(rest, key)?;
    Some(match row {
        Some((revision, expiry, length)) => {
            Change::Put { table, key, revision, expiry, value: take(rest, length)? }
        }
        None => Change::Delete { table, key },
    })
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

/// Reads any bytes as a journal and as the changes of a record, and writes what it understood again.
pub(crate) fn read_any(data: &[u8]) {
    for record in records(0, data) {
        let _any = record.changes();
    }
    let mut rest = data;
    let mut changes = Changes::default();
    changes.clear();
    let mut read = Vec::new();
    while let Some(change) = change(&mut rest) {
        changes.push(&change);
        read.push(change);
    }
    let Ok(sealed) = changes.seal(0, 0, 7) else { return };
    let again: Vec<Record<'_>> = records(0, sealed).collect();
    assert!(matches!(again[..], [record] if record.revision == 7 && record.changes() == Ok(read)));
}

#[cfg(test)]
mod tests;
