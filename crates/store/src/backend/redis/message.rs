//! What is said to the scripts, what they answer, and hints on the wire.

use std::time::Duration;

use ::redis::{FromRedisValue, RedisError, ScriptInvocation, Value};
use bytes::Bytes;
use uuid::Uuid;

use super::SCHEMA;
use crate::clock::micros;
use crate::commit::{Commit, Condition, Expect, Operation};
use crate::entry::{Entry, Page, Revision};
use crate::key::{Key, TableName};

/// An answer, or a hint, that is not of the agreed form: somebody else writes under our prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data under the prefix is not of a store; does another program use the same prefix?")]
pub(super) struct Garbled;

/// Hints longer than this are sent as "everything".
const HINT_MAX: usize = 16 * 1024;
const EVERYTHING: &[u8] = b"*";

/// What goes around a commit.
pub(super) struct Frame<'a> {
    pub(super) id: Uuid,
    pub(super) until: u64,
    pub(super) again: bool,
    pub(super) remember: Duration,
    pub(super) channel: &'a str,
    /// Whether this process hears that channel.
    pub(super) listening: bool,
    pub(super) sweep: usize,
}

/// What the commit script answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done {
        revision: Revision,
        /// Whether all who listen were told; else it is for the caller to wake its own.
        told: bool,
    },
    Conflict(usize),
    Late,
    Schema(u64),
    Unconfirmed {
        confirmed: u16,
        wanted: u16,
    },
}

/// The arguments of the commit script, in the order its head lists.
pub(super) fn commit(invocation: &mut ScriptInvocation<'_>, commit: &Commit, frame: &Frame<'_>) {
    invocation
        .arg(SCHEMA)
        .arg(frame.id.simple().to_string())
        .arg(frame.until)
        .arg(u8::from(frame.again))
        .arg(frame.remember.as_millis() as u64)
        .arg(frame.channel)
        .arg(hint(commit.touched()))
        .arg(u8::from(frame.listening))
        .arg(frame.sweep)
        .arg(commit.conditions.len())
        .arg(commit.operations.len());
    for Condition { key, expect } in &commit.conditions {
        let (kind, revision) = match expect {
            Expect::Absent => ("absent", 0),
            Expect::Present => ("present", 0),
            Expect::At(revision) => ("at", revision.number()),
        };
        invocation.arg(kind).arg(key.table.as_str()).arg(&key.bytes[..]).arg(revision);
    }
    for operation in &commit.operations {
        let (kind, value, ttl) = match operation {
            Operation::Put { value, ttl, .. } => ("put", &value[..], ttl.map_or(0, micros)),
            Operation::Delete { .. } => ("delete", &[][..], 0),
            Operation::Refresh { ttl, .. } => ("refresh", &[][..], micros(*ttl)),
        };
        let key = operation.key();
        invocation.arg(kind).arg(key.table.as_str()).arg(&key.bytes[..]).arg(value).arg(ttl);
    }
}

/// The answer of the commit script, and the server's time.
pub(super) fn reply(answer: Value) -> Result<(Reply, u64), RedisError> {
    let unknown = || (::redis::ErrorKind::UnexpectedReturnType, "an unknown answer of the commit script");
    let mut parts = <Vec<Value>>::from_redis_value(answer)?.into_iter();
    let mut next = || parts.next().ok_or_else(|| RedisError::from(unknown()));
    let kind = String::from_redis_value(next()?)?;
    let number = u64::from_redis_value(next()?)?;
    let now = u64::from_redis_value(next()?)?;
    let reply = match kind.as_str() {
        "done" => Reply::Done { revision: Revision::new(number), told: u8::from_redis_value(next()?)? == 1 },
        "conflict" => Reply::Conflict(number as usize),
        "late" => Reply::Late,
        "schema" => Reply::Schema(number),
        _ => return Err(unknown().into()),
    };
    Ok((reply, now))
}

/// An entry from its stored form: revision, a space, value.
pub(super) fn entry(key: Key, raw: Bytes, micros_left: i64) -> Result<Entry, Garbled> {
    let space = raw.iter().position(|byte| *byte == b' ').ok_or(Garbled)?;
    let digits = std::str::from_utf8(&raw[..space]).map_err(|_| Garbled)?;
    let revision = Revision::new(digits.parse().map_err(|_| Garbled)?);
    let expires_in = u64::try_from(micros_left).ok().map(Duration::from_micros);
    Ok(Entry { key, value: raw.slice(space + 1..), revision, expires_in })
}

/// A page from the answer of the range script.
pub(super) fn page(table: &TableName, answer: Vec<Value>) -> Result<Page, Garbled> {
    let mut parts = answer.into_iter();
    let bytes = |value: Option<Value>| match value {
        Some(Value::BulkString(bytes)) => Ok(Bytes::from(bytes)),
        _ => Err(Garbled),
    };
    let last = bytes(parts.next())?;
    let mut page = Page { next: (!last.is_empty()).then(|| table.key(last)), ..Page::default() };
    while let Some(key) = parts.next() {
        let key = table.key(bytes(Some(key))?);
        let raw = bytes(parts.next())?;
        let Some(Value::Int(left)) = parts.next() else { return Err(Garbled) };
        page.entries.push(entry(key, raw, left)?);
    }
    Ok(page)
}

/// The keys that changed, each as table, zero byte, length, bytes.
fn hint<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<u8> {
    let mut hint = Vec::new();
    for key in keys {
        hint.extend(key.table.as_str().as_bytes());
        hint.push(0);
        hint.extend((key.bytes.len() as u32).to_be_bytes());
        hint.extend(&key.bytes);
        if hint.len() > HINT_MAX {
            return EVERYTHING.to_vec();
        }
    }
    hint
}

/// The keys of a hint; nothing if it means everything, or cannot be read, which comes to the same.
pub(super) fn hinted(mut hint: &[u8]) -> Option<Vec<Key>> {
    let mut keys = Vec::new();
    while !hint.is_empty() {
        let end = hint.iter().position(|byte| *byte == 0)?;
        let table = TableName::new(std::str::from_utf8(&hint[..end]).ok()?).ok()?;
        let (length, rest) = hint[end + 1..].split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        keys.push(table.key(bytes.to_vec()));
        hint = rest;
    }
    Some(keys)
}

/// Reads bytes as every answer and hint that Redis gives, as fuzzing does.
pub(crate) fn read_any(data: &[u8]) {
    hinted(data);
    let Ok(value) = ::redis::parse_redis_value(data) else { return };
    drop(reply(value.clone()));
    if let (Value::Array(parts), Ok(table)) = (value, TableName::new("fuzz")) {
        drop(page(&table, parts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hints_survive(keys in prop::collection::vec(("[a-z][a-z0-9_-]{0,9}", any::<Vec<u8>>()), 0..9)) {
            let keys: Vec<Key> = keys.into_iter().map(|(t, k)| TableName::new(&t).unwrap().key(k)).collect();
            prop_assert_eq!(hinted(&hint(keys.iter())), Some(keys));
        }

        #[test]
        fn strange_hints_harm_nobody(bytes in any::<Vec<u8>>()) {
            let _read = hinted(&bytes);
        }
    }

    #[test]
    fn a_long_hint_means_everything() {
        let key = TableName::new("t").unwrap().key(vec![7; 1000]);
        let long = hint(std::iter::repeat_n(&key, 20));
        assert_eq!((long.as_slice(), hinted(&long)), (EVERYTHING, None));
    }

    #[test]
    fn stored_entries_are_read() {
        let key = TableName::new("t").unwrap().key("k");
        let read = entry(key.clone(), Bytes::from_static(b"17 a b"), 5).unwrap();
        assert_eq!((read.revision.number(), &read.value[..]), (17, &b"a b"[..]));
        assert_eq!(read.expires_in, Some(Duration::from_micros(5)));
        assert_eq!(entry(key.clone(), Bytes::from_static(b"1 "), -1).unwrap().expires_in, None);
        assert_eq!(entry(key, Bytes::from_static(b"garbage"), -1), Err(Garbled));
    }
}
