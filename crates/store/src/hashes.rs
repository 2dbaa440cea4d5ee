//! Hashes that another program keeps in a Redis, by a layout of its own, beside what we keep there.
//!
//! No transactions with the rest of a store, no hints, no leases: only what is needed to read what such a
//! program wrote and to write what it reads.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{FromRedisValue, Pipeline, RedisError};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::backend::Dialer;
use crate::config::RedisConfig;
use crate::error::{Cause, Error};

/// One field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashField {
    /// The name of the hash.
    pub key: Vec<u8>,
    /// The field.
    pub field: Vec<u8>,
    /// What it holds; nothing for one that goes.
    pub value: Vec<u8>,
}

/// The hashes of one Redis.
#[derive(Debug)]
pub struct Hashes {
    dialer: Dialer,
    at: Arc<str>,
    patience: Duration,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl Hashes {
    /// Those at this Redis. It need not answer yet; files that the settings name must be readable.
    pub fn at(config: &RedisConfig) -> Result<Self, Error> {
        let (dialer, at) = (Dialer::new(config)?, config.address().into());
        Ok(Self { dialer, at, patience: config.deadline, open: Mutex::default() })
    }

    /// All fields of a hash, with what they hold.
    pub async fn all(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let mut pipe = ::redis::pipe();
        pipe.cmd("HGETALL").arg(key);
        let (fields,): (Vec<(Vec<u8>, Vec<u8>)>,) = self.ask("read a hash", &pipe).await?;
        Ok(fields)
    }

    /// Writes these fields in one transaction; the hashes they are in live so much longer from now on.
    pub async fn put(&self, fields: &[HashField], lives: Duration) -> Result<(), Error> {
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        let lives = u64::try_from(lives.as_millis()).unwrap_or(u64::MAX);
        for HashField { key, field, value } in fields {
            pipe.cmd("HSET").arg(key).arg(field).arg(value).ignore();
            pipe.cmd("PEXPIRE").arg(key).arg(lives).ignore();
        }
        self.ask("write a hash", &pipe).await
    }

    /// Removes these fields in one transaction.
    pub async fn remove(&self, fields: &[HashField]) -> Result<(), Error> {
        let mut pipe = ::redis::pipe();
        pipe.atomic();
        for HashField { key, field, .. } in fields {
            pipe.cmd("HDEL").arg(key).arg(field).ignore();
        }
        self.ask("remove from a hash", &pipe).await
    }

    /// Says this to whoever listens to a channel now. Like everything here it may be said twice.
    pub async fn publish(&self, channel: &str, message: &[u8]) -> Result<(), Error> {
        let mut pipe = ::redis::pipe();
        pipe.cmd("PUBLISH").arg(channel).arg(message).ignore();
        self.ask("tell others", &pipe).await
    }

    async fn ask<T: FromRedisValue>(&self, operation: &'static str, pipe: &Pipeline) -> Result<T, Error> {
        let asked = async {
            let (connection, kept) = self.connection().await?;
            match run(connection, pipe).await {
                Ok(answer) => Ok(answer),
                // What was kept may have broken long ago; everything here may be done twice.
                Err(error) if kept && error.is_io_error() => {
                    *self.open.lock().await = None;
                    let (connection, _) = self.connection().await?;
                    run(connection, pipe).await.map_err(|error| self.failed(operation, error))
                }
                Err(error) => Err(self.failed(operation, error)),
            }
        };
        // On the heap: what redis makes of a call is deep and large.
        match timeout(self.patience, Box::pin(asked)).await {
            Ok(answered) => answered,
            Err(elapsed) => {
                self.open.lock().await.take();
                Err(self.unavailable(operation, Arc::new(elapsed)))
            }
        }
    }

    /// A connection, and whether it was there before.
    async fn connection(&self) -> Result<(MultiplexedConnection, bool), Error> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok((connection.clone(), true));
        }
        let connection = self.dialer.connect_plain().await?;
        *open = Some(connection.clone());
        Ok((connection, false))
    }

    fn failed(&self, operation: &'static str, error: RedisError) -> Error {
        if error.is_io_error() || error.is_timeout() {
            return self.unavailable(operation, Arc::new(error));
        }
        Error::Refused { operation, at: Arc::clone(&self.at), cause: Arc::new(error) }
    }

    fn unavailable(&self, operation: &'static str, cause: Cause) -> Error {
        Error::Unavailable { operation, at: Arc::clone(&self.at), waited: self.patience, cause }
    }
}

async fn run<T: FromRedisValue>(
    mut connection: MultiplexedConnection,
    pipe: &Pipeline,
) -> Result<T, RedisError> {
    pipe.query_async(&mut connection).await
}
