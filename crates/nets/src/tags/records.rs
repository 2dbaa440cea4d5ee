//! Tags in the store: one row a tag, one a membership, one a subscription.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarbet_store::{Commit, Record, Revision, Store, Table, TableName, Watch};
use tokio::time::Instant;

use super::Sharing;
use super::leaving::Leaving;
use crate::error::Error;
use crate::plan::tags::{Graph, Write};

/// How long a process may be away and still catch up without reading everything.
const LOG_KEPT: Duration = Duration::from_hours(1);
/// Changes that stand beside the counter before they move to the log together. A row of the log for each change
/// would cost it as much as everything else, and who follows would read twice.
const RECENT_MAX: usize = 8;
/// And most bytes of them, as each change writes them again.
const RECENT_BYTES: usize = 4096;
const COUNTER: &str = "counter";

/// How far the log was read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    number: u64,
    revision: Revision,
    /// The last changes, which are not in the log yet.
    recent: Vec<Vec<Write>>,
}

impl Seen {
    /// Whether it is at least as new as what this commit wrote.
    pub(super) fn covers(&self, revision: Revision) -> bool {
        revision <= self.revision
    }
}

/// What others did meanwhile.
pub(super) enum Missed {
    Nothing,
    Writes(Vec<Write>, Seen),
    /// The log does not reach back that far.
    TooMuch,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tag {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
}

impl Record for Tag {
    const KIND: &'static str = "tag";
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {}

impl Record for Row {
    const KIND: &'static str = "row";
}

#[derive(Debug, Serialize, Deserialize)]
struct Counter {
    number: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    recent: Vec<Vec<Write>>,
}

impl Record for Counter {
    const KIND: &'static str = "counter";
}

/// Changes that follow one another; the number of the last is the key.
#[derive(Debug, Serialize, Deserialize)]
struct Logged {
    changes: Vec<Vec<Write>>,
}

impl Record for Logged {
    const KIND: &'static str = "tag-changes";
}

#[derive(Debug)]
pub(super) struct Records {
    sharing: Sharing,
    /// How long it is known who followed a tag that is deleted.
    kept: Duration,
    tags: Table<String, Tag>,
    members: Table<(String, String), Row>,
    subscribers: Table<(String, String), Row>,
    counter: Table<String, Counter>,
    log: Table<u64, Logged>,
}

impl Records {
    pub(super) fn new(store: &Store, sharing: Sharing, kept: Duration) -> Result<Self, Error> {
        Ok(Self {
            sharing,
            kept,
            tags: Table::new(store, "tags")?,
            members: Table::new(store, "tag-members")?,
            subscribers: Table::new(store, "tag-subscribers")?,
            counter: Table::new(store, "tag-counter")?,
            // Earlier programs kept a row for each change in `tag-log`. They find none of ours there, and we none of
            // theirs here, so beside one of them everything is read again.
            log: Table::new(store, "tag-changes")?,
        })
    }

    /// Everything. The counter is read first: what comes in while reading is replayed, and every
    /// write may be applied twice.
    pub(super) async fn load(&self) -> Result<(Graph, Leaving, Option<Seen>), Error> {
        let seen = self.seen().await?;
        let (mut graph, mut leaving, now) = (Graph::default(), Leaving::default(), Instant::now());
        let tags = self.tags.list().await?;
        let members = self.members.list().await?;
        let subscribers = self.subscribers.list().await?;
        for error in tags.unreadable.iter().chain(&members.unreadable).chain(&subscribers.unreadable) {
            tracing::warn!(%error, "A record of the tags is left out.");
        }
        for (tag, record) in tags.records {
            let Tag { uri, ip } = record.value;
            let leaf = uri.is_some() || ip.is_some();
            graph.apply(&if leaf { Write::Leaf { tag, uri, ip } } else { Write::Group(tag) });
        }
        for ((parent, child), _) in members.records {
            graph.apply(&Write::Join(parent, child));
        }
        for ((tag, subscriber), record) in subscribers.records {
            if let Some(left) = record.expires_in {
                leaving.note(&tag, &subscriber, now + left);
            }
            graph.apply(&Write::Subscribe(tag, subscriber));
        }
        Ok((graph, leaving, seen))
    }

    async fn seen(&self) -> Result<Option<Seen>, Error> {
        if self.sharing == Sharing::Alone {
            return Ok(None);
        }
        let counter = self.counter.get(&COUNTER.to_owned()).await?;
        Ok(counter.map(|counter| {
            let Counter { number, recent } = counter.value;
            Seen { number, revision: counter.revision, recent }
        }))
    }

    /// Makes the writes lasting. Conflict means somebody else was faster.
    pub(super) async fn commit(
        &self,
        writes: &[Write],
        seen: Option<&Seen>,
    ) -> Result<Option<Seen>, tarbet_store::Error> {
        let mut commit = Commit::new();
        let row = Row {};
        for write in writes {
            commit = commit.with(match write {
                Write::Leaf { tag, uri, ip } => {
                    self.tags.put_op(tag, &Tag { uri: uri.clone(), ip: ip.clone() })?
                }
                Write::Group(tag) => self.tags.put_op(tag, &Tag { uri: None, ip: None })?,
                Write::Remove(tag) => self.tags.delete_op(tag),
                Write::Join(parent, child) => self.members.put_op(&(parent.clone(), child.clone()), &row)?,
                Write::Leave(parent, child) => self.members.delete_op(&(parent.clone(), child.clone())),
                Write::Subscribe(tag, who) => self.subscribers.put_op(&(tag.clone(), who.clone()), &row)?,
                Write::Unsubscribe(tag, who) => self.subscribers.delete_op(&(tag.clone(), who.clone())),
                Write::Retire(tag, who) => {
                    self.subscribers.put_for_op(&(tag.clone(), who.clone()), &row, self.kept)?
                }
            });
        }
        let store = self.tags.store();
        if self.sharing == Sharing::Alone {
            store.commit(commit).await?;
            return Ok(None);
        }
        let key = COUNTER.to_owned();
        let number = seen.map_or(1, |seen| seen.number + 1);
        let condition = match seen {
            Some(seen) => self.counter.at(&key, seen.revision),
            None => self.counter.absent(&key),
        };
        let mut recent: Vec<Vec<Write>> = seen.map_or_else(Vec::new, |seen| seen.recent.clone());
        recent.push(writes.to_vec());
        let mut commit = commit.expect(condition);
        if recent.len() >= RECENT_MAX
            || recent.iter().flatten().map(Write::bytes).sum::<usize>() > RECENT_BYTES
        {
            let logged = Logged { changes: std::mem::take(&mut recent) };
            commit = commit.with(self.log.put_for_op(&number, &logged, LOG_KEPT)?);
        }
        let counter = Counter { number, recent };
        let revision = store.commit(commit.with(self.counter.put_op(&key, &counter)?)).await?;
        Ok(Some(Seen { number, revision, recent: counter.recent }))
    }

    /// What happened since `seen`.
    pub(super) async fn missed(&self, seen: Option<&Seen>) -> Result<Missed, Error> {
        let now = self.seen().await?;
        let (before, now) = match (seen, now) {
            (_, None) => return Ok(Missed::Nothing),
            (Some(seen), Some(now)) if (seen.number, seen.revision) == (now.number, now.revision) => {
                return Ok(Missed::Nothing);
            }
            (seen, Some(now)) => (seen.map_or(0, |seen| seen.number), now),
        };
        // A counter that went back is another store under the same name.
        if now.number <= before {
            return Ok(Missed::TooMuch);
        }
        // Backwards: where a row begins, the one before it ends.
        let mut newest_first: Vec<Vec<Write>> = now.recent.iter().rev().cloned().collect();
        let missing = (now.number - before) as usize;
        while newest_first.len() < missing {
            let last = now.number - newest_first.len() as u64;
            match self.log.get(&last).await? {
                Some(logged) if !logged.value.changes.is_empty() => {
                    newest_first.extend(logged.value.changes.into_iter().rev());
                }
                _ => return Ok(Missed::TooMuch),
            }
        }
        newest_first.truncate(missing);
        Ok(Missed::Writes(newest_first.into_iter().rev().flatten().collect(), now))
    }

    /// Follows the counter only: one small row, whatever the number of tags.
    pub(super) fn watch(&self) -> Option<Watch> {
        if self.sharing == Sharing::Alone {
            return None;
        }
        let table = TableName::new("tag-counter").ok()?;
        Some(self.tags.store().watch(table.prefix("")))
    }
}
