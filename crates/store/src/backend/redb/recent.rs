//! What the journal holds and redb does not yet: the newest row of every key since the last flush.
//!
//! A redb transaction costs many times what a write to the journal does, whatever it changes. So a commit
//! changes these rows only, and a flush moves all of them to redb at once. Whoever reads looks here first.
//! A flush takes rows away after redb has them, and nobody commits meanwhile: what is here and what is in
//! redb make the state of one moment for whoever holds the lock when the snapshot of redb is taken.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;

use crate::clock::Expiry;
use crate::entry::{Entry, Revision};
use crate::key::{Key, Prefix};

/// An entry as redb holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) revision: u64,
    /// In microseconds since 1970; zero for never.
    pub(super) expiry: u64,
    pub(super) value: Bytes,
}

impl Row {
    pub(super) fn is_live(&self, now: u64) -> bool {
        !Expiry::from_stored(self.expiry).passed(now)
    }

    pub(super) fn entry(self, key: Key, now: u64) -> Entry {
        let expires_in = Expiry::from_stored(self.expiry).remaining(now);
        Entry { key, value: self.value, revision: Revision::new(self.revision), expires_in }
    }
}

/// Rows by key; nothing where there is none any more.
pub(super) type Rows = BTreeMap<Key, Option<Row>>;

/// The rows since the last flush.
#[derive(Debug, Default)]
pub(super) struct Recent(RwLock<Rows>);

impl Recent {
    /// What became of a key since the last flush, if anything did.
    #[expect(clippy::option_option, reason = "to be known as gone is not to be unknown")]
    pub(super) fn get(&self, key: &Key) -> Option<Option<Row>> {
        self.rows().get(key).cloned()
    }

    /// All of them, which stay as they are while this is held.
    pub(super) fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a batch visible, all at once.
    pub(super) fn extend(&self, rows: Rows) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(rows);
    }

    /// Forgets them: redb has them now.
    pub(super) fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The rows under a prefix, strictly after a key: as many as a page of so many entries can need.
pub(super) fn select(rows: &Rows, prefix: &Prefix, after: Option<&Key>, limit: usize, now: u64) -> Rows {
    let start = match (after, &prefix.table) {
        (Some(after), _) => Bound::Excluded(after.clone()),
        (None, Some(table)) => Bound::Included(table.key(prefix.bytes.clone())),
        (None, None) => Bound::Unbounded,
    };
    let mut live = 0;
    let under = rows.range((start, Bound::Unbounded)).take_while(|(key, row)| {
        let wanted = prefix.contains(key) && live <= limit;
        live += usize::from(row.as_ref().is_some_and(|row| row.is_live(now)));
        wanted
    });
    under.map(|(key, row)| (key.clone(), row.clone())).collect()
}

/// What is known, in key order, where these rows do not tell otherwise.
pub(super) fn over<E>(
    rows: Rows,
    known: impl Iterator<Item = Result<(Key, Row), E>>,
) -> impl Iterator<Item = Result<(Key, Option<Row>), E>> {
    let (mut rows, mut known) = (rows.into_iter().peekable(), known.peekable());
    std::iter::from_fn(move || {
        let order = match (rows.peek(), known.peek()) {
            (_, Some(Err(_))) | (None, _) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some((newer, _)), Some(Ok((key, _)))) => newer.cmp(key),
        };
        if order == Ordering::Greater {
            return Some(known.next()?.map(|(key, row)| (key, Some(row))));
        }
        if order == Ordering::Equal {
            known.next();
        }
        rows.next().map(Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableName;
    use proptest::prelude::*;

    fn rows(state: &BTreeMap<u8, Option<u8>>) -> Rows {
        let table = TableName::new("t").unwrap();
        let row = |value: u8| Row { revision: 1, expiry: u64::from(value % 2), value: vec![value].into() };
        state.iter().map(|(key, value)| (table.key(vec![*key]), value.map(row))).collect()
    }

    proptest! {
        #[test]
        fn a_page_is_that_of_all_rows_in_one_place(
            known in prop::collection::btree_map(0..20_u8, any::<u8>().prop_map(Some), 0..12),
            newer in prop::collection::btree_map(0..20_u8, any::<Option<u8>>(), 0..12),
            after in prop::option::of(0..20_u8),
            limit in 1..8_usize,
        ) {
            let mut whole = known.clone();
            whole.extend(&newer);
            let table = TableName::new("t").unwrap();
            let (prefix, after) = (table.prefix(""), after.map(|after| table.key(vec![after])));
            let live = |(key, row): (Key, Option<Row>)| Some((key, row.filter(|row| row.is_live(1))?));
            let later = |key: &Key| after.as_ref().is_none_or(|after| key > after);
            let expected: Vec<_> = rows(&whole).into_iter().filter_map(live).filter(|(key, _)| later(key)).collect();

            let newer = select(&rows(&newer), &prefix, after.as_ref(), limit, 1);
            let known = rows(&known).into_iter().filter(|(key, _)| later(key));
            let known = known.filter_map(|(key, row)| Some(Ok::<_, ()>((key, row?))));
            let page = over(newer, known).filter_map(|row| live(row.unwrap())).take(limit);
            let first: Vec<_> = expected.into_iter().take(limit).collect();
            prop_assert_eq!(page.collect::<Vec<_>>(), first);
        }
    }
}
