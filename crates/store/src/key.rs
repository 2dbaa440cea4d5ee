//! Names of things: tables, keys in tables, and prefixes that select keys.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Longest key in bytes. Redis and redb take more; nobody who reads keys does.
pub const KEY_MAX: usize = 1024;

/// A request that no back end would take. Always a mistake of the code that built it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Table names are lower case and short, as they end up in key names of Redis.
    #[error("`{0}` is not a table name: 1 to 63 of a-z, 0-9, - and _, beginning with a letter")]
    TableName(String),
    /// Empty or too long.
    #[error("a key in {table} has {length} bytes; it must have 1 to {KEY_MAX}")]
    KeyLength {
        /// The table of the key.
        table: TableName,
        /// Its length.
        length: usize,
    },
    /// Values are records, not files.
    #[error("the value for {key} has {length} bytes; the most is {}", crate::VALUE_MAX)]
    ValueLength {
        /// The key.
        key: Key,
        /// The length of its value.
        length: usize,
    },
    /// An expiry of nothing, or of longer than a lifetime.
    #[error("the time to live of {0} must be between one millisecond and ten years")]
    TimeToLive(Key),
    /// A commit without operations.
    #[error("a commit must change something")]
    EmptyCommit,
    /// One commit may name a key in one operation only: there is no order inside it.
    #[error("{0} is named by two operations of one commit")]
    RepeatedKey(Key),
    /// Too many operations or conditions, or too many bytes.
    #[error("a commit of {operations} operations, {conditions} conditions and {bytes} bytes is too large")]
    CommitSize {
        /// Number of operations.
        operations: usize,
        /// Number of conditions.
        conditions: usize,
        /// Bytes of all keys and values.
        bytes: usize,
    },
}

/// The name of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(Arc<str>);

impl TableName {
    /// Checks a name: 1 to 63 of `a-z`, `0-9`, `-` and `_`, beginning with a letter.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if starts_well && name.len() <= 63 && name.bytes().all(legal) {
            Ok(Self(name.into()))
        } else {
            Err(Invalid::TableName(name.into()))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key in this table.
    pub fn key(&self, bytes: impl Into<Bytes>) -> Key {
        Key { table: self.clone(), bytes: bytes.into() }
    }

    /// All keys in this table that begin so; `b""` selects the whole table.
    pub fn prefix(&self, bytes: impl Into<Bytes>) -> Prefix {
        Prefix { table: Some(self.clone()), bytes: bytes.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One place in the store: a table and any bytes. Keys are ordered by table, then bytewise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The table.
    pub table: TableName,
    /// The key in it.
    pub bytes: Bytes,
}

impl Key {
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        match self.bytes.len() {
            1..=KEY_MAX => Ok(()),
            length => Err(Invalid::KeyLength { table: self.table.clone(), length }),
        }
    }
}

/// `table/key`, with bytes that are not printable escaped, cut where it becomes tiring.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        let shown = &self.bytes[..self.bytes.len().min(SHOWN)];
        let more = if self.bytes.len() > SHOWN { "…" } else { "" };
        write!(f, "{}/{}{more}", self.table, shown.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Selects keys: everything, a table, or the keys of a table that begin with some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub(crate) table: Option<TableName>,
    pub(crate) bytes: Bytes,
}

impl Prefix {
    /// All keys of all tables.
    pub fn everything() -> Self {
        Self { table: None, bytes: Bytes::new() }
    }

    /// Whether the key is among the selected.
    pub fn contains(&self, key: &Key) -> bool {
        self.table.as_ref().is_none_or(|table| *table == key.table) && key.bytes.starts_with(&self.bytes)
    }
}

/// The first bytes after all that begin with `prefix`, or nothing if there are none.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn table_names_are_narrow() {
        for good in ["a", "sites", "link-registry", "a_1"] {
            assert!(TableName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "-a", "A", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(TableName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_print_readably() {
        let table = TableName::new("sites").unwrap();
        assert_eq!(table.key("lab").to_string(), "sites/lab");
        assert_eq!(table.key(&b"a\0\xff"[..]).to_string(), r"sites/a\x00\xff");
        assert!(table.key(vec![b'x'; 500]).to_string().len() < 100);
    }

    proptest! {
        #[test]
        fn after_prefix_is_the_least_bound(
            prefix in prop::collection::vec(prop_oneof![Just(0xff_u8), any::<u8>()], 0..4),
            key in prop::collection::vec(prop_oneof![Just(0xff_u8), any::<u8>()], 0..6),
        ) {
            let inside = key >= prefix && after_prefix(&prefix).is_none_or(|end| key < end);
            prop_assert_eq!(inside, key.starts_with(&prefix));
        }
    }
}
