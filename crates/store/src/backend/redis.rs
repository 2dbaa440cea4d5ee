//! A store that many processes share: one Redis, or a master that Sentinels choose.
//!
//! Every commit is one Lua script, so it is atomic. It carries a random id, which Redis remembers for a
//! short while, and the server time until which it is valid. So an attempt whose answer was lost can be
//! repeated without being made twice, and one that its caller gave up on is never made later.
//! Time for expiry is the server's. Layout, all keys under one prefix:
//!
//! | key | type | what |
//! |---|---|---|
//! | `:schema`, `:revision` | string | the layout's version; the last revision |
//! | `:tables` | set | names of tables |
//! | `:listed` | string | those of them that commits need not add any more, each between two spaces |
//! | `:values:TABLE` | hash | key → revision, a space, value |
//! | `:index:TABLE` | sorted set | the keys, all with score 0, for ranges in byte order |
//! | `:expiry` | sorted set | table, a zero byte, key → when it expires in microseconds |
//! | `:done:ID` | string | what became of a commit, for a short while |

mod connect;
mod link;
mod message;
mod subscribe;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::{FromRedisValue, RedisError, Script, Value};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

pub(crate) use self::connect::Dialer;
use self::link::{Link, Try};
pub(crate) use self::message::read_any;
use self::message::{Frame, Reply};
use super::Backend;
use crate::commit::Commit;
use crate::config::RedisConfig;
use crate::entry::{Entry, PAGE_BYTES, Page, Revision};
use crate::error::Error;
use crate::hints::{Hints, Hub};
use crate::key::{Key, Prefix, TableName, after_prefix};

/// The layout this program writes.
pub(super) const SCHEMA: u64 = 1;
/// Expired entries removed with one commit: more than one commit can make, so it keeps pace.
const SWEEP_MAX: usize = 600;

/// The Redis back end. Opening it connects to nothing yet.
#[derive(Debug)]
pub struct Redis {
    prefix: String,
    channel: String,
    link: Link,
    /// A connection of its own for changes that wait for replicas: waiting would hold up the others.
    lasting: Option<Link>,
    replicas: u16,
    hub: Arc<Hub>,
    commit: Script,
    get: Script,
    range: Script,
    /// Whether hints from others, and our own, are heard just now.
    listening: Arc<AtomicBool>,
    subscriber: tokio::task::JoinHandle<()>,
}

impl Redis {
    /// A store with these settings. Must be called inside a tokio runtime, as it starts the subscriber.
    pub fn open(config: &RedisConfig) -> Result<Self, Error> {
        let dialer = Arc::new(Dialer::new(config)?);
        let hub = Arc::new(Hub::default());
        // Channels know no databases, so the number is part of the name.
        let channel = format!("{}:{}:changed", config.prefix, config.database);
        let listening = Arc::<AtomicBool>::default();
        let subscriber =
            subscribe::run(Arc::clone(&dialer), channel.clone(), Arc::clone(&hub), Arc::clone(&listening));
        let link = || Link::new(Arc::clone(&dialer), config.deadline);
        Ok(Self {
            prefix: config.prefix.clone(),
            channel,
            link: link(),
            lasting: (config.replicas > 0).then(link),
            replicas: config.replicas,
            hub,
            commit: Script::new(include_str!("redis/commit.lua")),
            get: Script::new(include_str!("redis/get.lua")),
            range: Script::new(include_str!("redis/range.lua")),
            listening,
            subscriber: tokio::spawn(subscriber),
        })
    }

    async fn read<T: FromRedisValue>(&self, script: &Script, arguments: &[&[u8]]) -> Result<T, Error> {
        let mut invocation = script.key(&self.prefix);
        for argument in arguments {
            invocation.arg(*argument);
        }
        let invocation = &invocation;
        let read =
            |Try { mut connection, .. }: Try| async move { invocation.invoke_async(&mut connection).await };
        self.link
            .call("read", self.link.deadline(), read)
            .await
            .map_err(|failure| failure.unavailable("read"))
    }

    async fn tables(&self) -> Result<Vec<TableName>, Error> {
        let key = format!("{}:tables", self.prefix);
        let key = &key;
        let read = |Try { mut connection, .. }: Try| async move {
            ::redis::cmd("SMEMBERS").arg(key).query_async(&mut connection).await
        };
        let read = self.link.call("read", self.link.deadline(), read).await;
        let names: Vec<String> = read.map_err(|failure| failure.unavailable("read"))?;
        let mut tables: Vec<TableName> = names.iter().filter_map(|name| TableName::new(name).ok()).collect();
        tables.sort();
        Ok(tables)
    }

    async fn page(
        &self,
        table: &TableName,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, Error> {
        let bound = |mark: u8, bytes: &[u8]| [&[mark], bytes].concat();
        let low = after.map_or_else(|| bound(b'[', prefix), |after| bound(b'(', after));
        let high = after_prefix(prefix).map_or_else(|| b"+".to_vec(), |end| bound(b'(', &end));
        let (limit, bytes) = (limit.to_string(), PAGE_BYTES.to_string());
        let arguments = [table.as_str().as_bytes(), &low, &high, limit.as_bytes(), bytes.as_bytes()];
        let answer: Vec<Value> = self.read(&self.range, &arguments).await?;
        message::page(table, answer).map_err(|error| self.link.refused("read", error))
    }

    /// Makes one attempt at a commit, and if asked waits for replicas.
    async fn attempt(
        &self,
        attempt: Try,
        commit: &Commit,
        id: Uuid,
        link: &Link,
    ) -> Result<Reply, RedisError> {
        let Try { mut connection, deadline, budget, again } = attempt;
        let until = link.server_time(deadline);
        // Longer than any attempt of this commit can still be on its way.
        let remember = link.patience() + Duration::from_secs(5);
        let mut invocation = self.commit.key(&self.prefix);
        let listening = self.listening.load(Ordering::Relaxed);
        let frame = Frame { id, until, again, remember, channel: &self.channel, listening, sweep: SWEEP_MAX };
        message::commit(&mut invocation, commit, &frame);
        let answer: Value = invocation.invoke_async(&mut connection).await?;
        let (reply, now) = message::reply(answer)?;
        link.saw_server_time(now);
        if let Reply::Done { told: false, .. } = reply {
            self.hub.touch(commit.touched());
        }
        if let (Reply::Done { .. }, true, Some(_)) = (&reply, commit.is_lasting(), &self.lasting) {
            let patience = (budget / 2).as_millis() as u64;
            let confirmed: u16 =
                ::redis::cmd("WAIT").arg(self.replicas).arg(patience).query_async(&mut connection).await?;
            if confirmed < self.replicas {
                return Ok(Reply::Unconfirmed { confirmed, wanted: self.replicas });
            }
        }
        Ok(reply)
    }
}

#[async_trait]
impl Backend for Redis {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        let answer: Option<(Vec<u8>, i64)> =
            self.read(&self.get, &[key.table.as_str().as_bytes(), &key.bytes]).await?;
        let entry = answer.map(|(raw, left)| message::entry(key.clone(), Bytes::from(raw), left));
        entry.transpose().map_err(|error| self.link.refused("read", error))
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        if let Some(table) = &prefix.table {
            return self.page(table, &prefix.bytes, after.map(|key| &key.bytes[..]), limit).await;
        }
        let tables = self.tables().await?;
        let first = after.map_or(0, |after| tables.partition_point(|table| *table < after.table));
        for (index, table) in tables.iter().enumerate().skip(first) {
            let after = after.filter(|after| after.table == *table).map(|after| &after.bytes[..]);
            let mut page = self.page(table, b"", after, limit).await?;
            if page.next.is_none() && index + 1 < tables.len() {
                page.next = page.entries.last().map(|entry| entry.key.clone());
            }
            if page.next.is_some() || !page.entries.is_empty() {
                return Ok(page);
            }
        }
        Ok(Page::default())
    }

    async fn commit(&self, commit: Commit) -> Result<Revision, Error> {
        let link = self.lasting.as_ref().filter(|_| commit.is_lasting()).unwrap_or(&self.link);
        let (id, deadline, commit) = (Uuid::new_v4(), link.deadline(), &commit);
        loop {
            let called =
                link.call("commit", deadline, |attempt| self.attempt(attempt, commit, id, link)).await;
            match called.map_err(|failure| failure.uncertain("commit"))? {
                Reply::Done { revision, .. } => return Ok(revision),
                Reply::Conflict(index) => {
                    let condition = commit.conditions.get(index).ok_or(message::Garbled);
                    let condition = condition.map_err(|error| link.refused("commit", error))?;
                    return Err(Error::Conflict { key: condition.key.clone() });
                }
                Reply::Schema(found) => return Err(link.schema(found)),
                Reply::Unconfirmed { confirmed, wanted } => {
                    return Err(link.unconfirmed(confirmed, wanted));
                }
                // Its clock runs ahead of what we believed. Now we know better, so try again while there is time.
                Reply::Late if Instant::now() < deadline => {}
                Reply::Late => return Err(link.late()),
            }
        }
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        self.hub.subscribe(prefix)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.subscriber.abort();
    }
}
