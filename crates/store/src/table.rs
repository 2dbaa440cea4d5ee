//! Typed tables: records of one kind under keys of one shape.
//!
//! Records are JSON in an envelope that names their kind and version, so that people can read them and
//! an older record can be brought up to date when it is read.

mod key;
mod record;

pub use key::{KeyError, TableKey};
pub use record::{Record, RecordError};

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::Commit;
use crate::commit::{Condition, Expect, Operation};
use crate::entry::{Entry, Revision};
use crate::error::Error;
use crate::key::{Invalid, Key, Prefix, TableName};
use crate::store::Store;
use crate::watch::{Change, Watch};

/// A record with the commit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<V> {
    /// The record.
    pub value: V,
    /// The commit that wrote it, for [`Table::replace`] and fencing.
    pub revision: Revision,
    /// How long it has left; nothing if it stays.
    pub expires_in: Option<Duration>,
}

/// What a listing found.
#[derive(Debug)]
pub struct Listing<K, V> {
    /// The records, in key order.
    pub records: Vec<(K, Versioned<V>)>,
    /// Those that made no sense. One bad record must not hide the others.
    pub unreadable: Vec<Error>,
}

/// A change to a table.
#[derive(Debug)]
pub enum TableChange<K, V> {
    /// This is there now, new or different.
    Put(K, Versioned<V>),
    /// This is no longer there.
    Deleted(K),
    /// Something is there that makes no sense.
    Unreadable(Error),
}

/// A table. Cheap to clone.
#[derive(Debug)]
pub struct Table<K, V> {
    store: Store,
    name: TableName,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), name: self.name.clone(), types: PhantomData }
    }
}

impl<K: TableKey, V: Record> Table<K, V> {
    /// The table of this name in a store.
    pub fn new(store: &Store, name: &str) -> Result<Self, Invalid> {
        Ok(Self { store: store.clone(), name: TableName::new(name)?, types: PhantomData })
    }

    /// The store it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The raw key of a record.
    pub fn key(&self, key: &K) -> Key {
        self.name.key(key.encode())
    }

    /// The record at a key.
    pub async fn get(&self, key: &K) -> Result<Option<Versioned<V>>, Error> {
        self.store.get(&self.key(key)).await?.map(|entry| decode(&entry)).transpose()
    }

    /// All records.
    pub async fn list(&self) -> Result<Listing<K, V>, Error> {
        self.list_prefix(&self.name.prefix("")).await
    }

    async fn list_prefix(&self, prefix: &Prefix) -> Result<Listing<K, V>, Error> {
        let mut listing = Listing { records: Vec::new(), unreadable: Vec::new() };
        for entry in self.store.list(prefix).await? {
            match decode_both(&entry) {
                Ok(record) => listing.records.push(record),
                Err(error) => listing.unreadable.push(error),
            }
        }
        Ok(listing)
    }

    /// Follows the table; see [`Watch::next`].
    pub fn watch(&self) -> TableWatch<K, V> {
        self.watch_prefix(self.name.prefix(""))
    }

    fn watch_prefix(&self, prefix: Prefix) -> TableWatch<K, V> {
        TableWatch { watch: self.store.watch(prefix), types: PhantomData }
    }

    /// Writes a record, whatever was there.
    pub async fn put(&self, key: &K, value: &V) -> Result<Revision, Error> {
        self.store.commit(Commit::new().with(self.put_op(key, value)?)).await
    }

    /// Writes a record that expires, whatever was there.
    pub async fn put_for(&self, key: &K, value: &V, ttl: Duration) -> Result<Revision, Error> {
        self.store.commit(Commit::new().with(self.put_for_op(key, value, ttl)?)).await
    }

    /// Writes a record only where nothing is.
    pub async fn create(&self, key: &K, value: &V) -> Result<Revision, Error> {
        self.store.commit(Commit::new().expect(self.absent(key)).with(self.put_op(key, value)?)).await
    }

    /// Writes a record only over what that commit wrote.
    pub async fn replace(&self, key: &K, at: Revision, value: &V) -> Result<Revision, Error> {
        self.store.commit(Commit::new().expect(self.at(key, at)).with(self.put_op(key, value)?)).await
    }

    /// Removes a record, whatever was there.
    pub async fn delete(&self, key: &K) -> Result<Revision, Error> {
        self.store.commit(Commit::new().with(self.delete_op(key))).await
    }

    /// Lets a record live on; [`Error::Conflict`] if it is gone.
    pub async fn refresh(&self, key: &K, ttl: Duration) -> Result<Revision, Error> {
        self.store.refresh(self.key(key), ttl).await
    }

    /// Reads, changes and writes back, again and again until nobody came between.
    /// `change` gets what is there and says what should be; nothing means remove or leave absent.
    /// An expiry is not kept.
    pub async fn update(
        &self,
        key: &K,
        mut change: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>, Error> {
        loop {
            let found = self.get(key).await?;
            let (condition, before) = match found {
                Some(Versioned { value, revision, .. }) => (self.at(key, revision), Some(value)),
                None => (self.absent(key), None),
            };
            let existed = before.is_some();
            let after = change(before);
            let operation = match &after {
                Some(value) => self.put_op(key, value)?,
                None if existed => self.delete_op(key),
                None => return Ok(None),
            };
            match self.store.commit(Commit::new().expect(condition).with(operation)).await {
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(after),
            }
        }
    }

    /// For commits over several tables: only if nothing is there.
    pub fn absent(&self, key: &K) -> Condition {
        Condition { key: self.key(key), expect: Expect::Absent }
    }

    /// For commits over several tables: only if something is there.
    pub fn present(&self, key: &K) -> Condition {
        Condition { key: self.key(key), expect: Expect::Present }
    }

    /// For commits over several tables: only over what that commit wrote.
    pub fn at(&self, key: &K, revision: Revision) -> Condition {
        Condition { key: self.key(key), expect: Expect::At(revision) }
    }

    /// For commits over several tables: write for good.
    pub fn put_op(&self, key: &K, value: &V) -> Result<Operation, Error> {
        self.operation(key, value, None)
    }

    /// For commits over several tables: write with an expiry.
    pub fn put_for_op(&self, key: &K, value: &V, ttl: Duration) -> Result<Operation, Error> {
        self.operation(key, value, Some(ttl))
    }

    /// For commits over several tables: remove.
    pub fn delete_op(&self, key: &K) -> Operation {
        Operation::Delete { key: self.key(key) }
    }

    fn operation(&self, key: &K, value: &V, ttl: Option<Duration>) -> Result<Operation, Error> {
        let key = self.key(key);
        match record::encode(value) {
            Ok(value) => Ok(Operation::Put { key, value: value.into(), ttl }),
            Err(error) => Err(Error::Record { key, cause: Arc::new(error) }),
        }
    }
}

impl<A: TableKey, B: TableKey, V: Record> Table<(A, B), V> {
    /// The records whose key has this first part.
    pub async fn list_under(&self, first: &A) -> Result<Listing<(A, B), V>, Error> {
        self.list_prefix(&self.name.prefix(key::first_part(first))).await
    }

    /// Follows the records whose key has this first part.
    pub fn watch_under(&self, first: &A) -> TableWatch<(A, B), V> {
        self.watch_prefix(self.name.prefix(key::first_part(first)))
    }
}

/// Follows a table.
#[derive(Debug)]
pub struct TableWatch<K, V> {
    watch: Watch,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: TableKey, V: Record> TableWatch<K, V> {
    /// The next changes; see [`Watch::next`].
    pub async fn next(&mut self) -> Result<Vec<TableChange<K, V>>, Error> {
        let typed = |change| match change {
            Change::Put(entry) => decode_both(&entry)
                .map_or_else(TableChange::Unreadable, |(key, record)| TableChange::Put(key, record)),
            Change::Deleted(key) => {
                decode_key(&key).map_or_else(TableChange::Unreadable, TableChange::Deleted)
            }
        };
        Ok(self.watch.next().await?.into_iter().map(typed).collect())
    }
}

fn decode_key<K: TableKey>(key: &Key) -> Result<K, Error> {
    K::decode(&key.bytes).map_err(|error| Error::Record { key: key.clone(), cause: Arc::new(error) })
}

fn decode<V: Record>(entry: &Entry) -> Result<Versioned<V>, Error> {
    match record::decode(&entry.value) {
        Ok(value) => Ok(Versioned { value, revision: entry.revision, expires_in: entry.expires_in }),
        Err(error) => Err(Error::Record { key: entry.key.clone(), cause: Arc::new(error) }),
    }
}

fn decode_both<K: TableKey, V: Record>(entry: &Entry) -> Result<(K, Versioned<V>), Error> {
    Ok((decode_key(&entry.key)?, decode(entry)?))
}
