//! Who holds which agent, as replicas of the original write it down.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tarbet_store::{Error, HashField, Hashes};
use tarbet_telemetry::problem::chain;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::BesideSection;
use crate::kas::locked;
use crate::kas::prefix::Prefix;
use crate::kas::proto::agent_tracker::ConnectedAgentInfo;
use crate::kas::redis::{Connection, Layout, expiring, sort};

/// How soon what could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the last writing may take when the gateway leaves.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a list is used again: everybody who looks for one agent shares it.
const FRESH: Duration = Duration::from_millis(50);
/// Lists that are kept; beyond that those nobody asked for lately go.
const MOST: usize = 10_000;

/// What becomes of an agent here.
pub(super) enum Word {
    /// The first tunnel came.
    Holds(i64),
    /// The last one went. Somebody is told when the others are.
    Lost(i64, oneshot::Sender<()>),
}

/// The keys that all replicas read and write.
pub(in crate::gateway::kas) struct Book {
    hashes: Hashes,
    layout: Layout,
    prefix: Prefix,
    /// Where the others find this gateway.
    own: String,
    times: Times,
    lists: Mutex<HashMap<i64, Arc<tokio::sync::Mutex<List>>>>,
}

struct Times {
    /// How long an entry counts.
    lives: Duration,
    /// How often it is written again.
    refresh: Duration,
    /// How often what others left behind is looked for; at a refresh, in fact.
    tidy: Duration,
}

#[derive(Default)]
struct List {
    read: Option<Instant>,
    urls: Vec<String>,
}

impl Book {
    pub(super) fn new(hashes: Hashes, section: &BesideSection, prefix: Prefix, own: String) -> Self {
        let times =
            Times { lives: section.entry_ttl, refresh: section.entry_refresh, tidy: section.entry_tidy };
        let layout = Layout::new(&section.key_prefix);
        Self { hashes, layout, prefix, own, times, lists: Mutex::default() }
    }

    /// When what is written now ends, in Unix seconds.
    fn expires(&self) -> i64 {
        Timestamp::now().as_second().saturating_add_unsigned(self.times.lives.as_secs())
    }

    /// The others that hold an agent. While Redis does not answer, what it said last.
    pub(in crate::gateway::kas) async fn holders(&self, agent: i64) -> Vec<String> {
        let list = {
            let mut lists = locked(&self.lists);
            if lists.len() >= MOST {
                lists.retain(|_, list| Arc::strong_count(list) > 1);
            }
            Arc::clone(lists.entry(agent).or_default())
        };
        let mut list = list.lock().await;
        if list.read.is_some_and(|at| at.elapsed() < FRESH) {
            return list.urls.clone();
        }
        list.read = Some(Instant::now());
        match self.hashes.all(&self.layout.kas_by_agent(agent)).await {
            Ok(fields) => {
                let sorted = sort(fields, Timestamp::now().as_second());
                self.forget(&self.layout.kas_by_agent(agent), sorted.dead).await;
                let urls = sorted.live.into_iter().filter_map(|(url, _)| String::from_utf8(url).ok());
                list.urls = urls.filter(|url| *url != self.own).collect();
            }
            Err(error) => tracing::warn!(error = %chain(&error), "The list of a kas cannot be read."),
        }
        list.urls.clone()
    }

    /// Notes a process of an agent where the others look.
    pub(in crate::gateway::kas) async fn registered(&self, info: ConnectedAgentInfo) -> Result<(), Error> {
        let expires = self.expires();
        let (agent, project, pod) = (info.agent_id, info.project_id, info.connection_id.to_string());
        let connection = Connection { info, cluster_id: String::new() }.encode(self.prefix);
        let field = |key: Vec<u8>, field: String, value: &[u8]| HashField {
            key,
            field: field.into_bytes(),
            value: expiring(expires, value.to_vec()),
        };
        let mut fields = vec![
            field(self.layout.connections_by_agent(agent), pod.clone(), &connection),
            field(self.layout.connected_agents(), agent.to_string(), &[]),
        ];
        if self.prefix == Prefix::Gitlab {
            fields.push(field(self.layout.connections_by_project(project), pod, &connection));
        }
        self.hashes.put(&fields, self.times.lives).await
    }

    /// Takes the note back.
    pub(in crate::gateway::kas) async fn unregistered(
        &self,
        agent: i64,
        project: i64,
        pod: i64,
    ) -> Result<(), Error> {
        let keys = [self.layout.connections_by_agent(agent), self.layout.connections_by_project(project)];
        let field = pod.to_string().into_bytes();
        let fields = keys.map(|key| HashField { key, field: field.clone(), value: Vec::new() });
        self.hashes.remove(&fields).await?;
        if self.connections(Some(agent), project).await?.is_empty() {
            let key = self.layout.connected_agents();
            let field = agent.to_string().into_bytes();
            self.hashes.remove(&[HashField { key, field, value: Vec::new() }]).await?;
        }
        Ok(())
    }

    /// Tells the other replicas something.
    pub(in crate::gateway::kas) async fn tell(&self, channel: &str, message: &[u8]) -> Result<(), Error> {
        self.hashes.publish(channel, message).await
    }

    /// Removes what has ended: the hash as a whole lives as long as anybody writes to it.
    async fn forget(&self, key: &[u8], dead: Vec<Vec<u8>>) {
        let fields = dead.into_iter().map(|field| HashField { key: key.to_vec(), field, value: Vec::new() });
        let fields: Vec<_> = fields.collect();
        if fields.is_empty() {
            return;
        }
        if let Err(error) = self.hashes.remove(&fields).await {
            tracing::debug!(error = %chain(&error), "What has ended stays in the list of a kas.");
        }
    }

    /// Looks through what all replicas write to, for what those left behind that are gone.
    async fn tidy(&self, agents: impl IntoIterator<Item = i64>) -> Result<(), Error> {
        let lists = agents
            .into_iter()
            .flat_map(|agent| [self.layout.kas_by_agent(agent), self.layout.connections_by_agent(agent)]);
        for key in lists.chain([self.layout.connected_agents()]) {
            let fields = self.hashes.all(&key).await?;
            self.forget(&key, sort(fields, Timestamp::now().as_second()).dead).await;
        }
        Ok(())
    }

    /// The processes of an agent, or of all agents of a project, that anybody noted.
    pub(in crate::gateway::kas) async fn connections(
        &self,
        agent: Option<i64>,
        project: i64,
    ) -> Result<Vec<ConnectedAgentInfo>, Error> {
        let key = match agent {
            Some(agent) => self.layout.connections_by_agent(agent),
            None => self.layout.connections_by_project(project),
        };
        let fields = self.hashes.all(&key).await?;
        let sorted = sort(fields, Timestamp::now().as_second());
        self.forget(&key, sorted.dead).await;
        Ok(sorted
            .live
            .into_iter()
            .filter_map(|(_, value)| Connection::decode(self.prefix, &value).ok())
            .map(|found| found.info)
            .collect())
    }

    async fn hold(&self, agents: impl IntoIterator<Item = i64>) -> Result<(), Error> {
        let expires = self.expires();
        let fields: Vec<_> =
            agents.into_iter().map(|agent| self.field(agent, expiring(expires, ""))).collect();
        self.hashes.put(&fields, self.times.lives).await
    }

    async fn release(&self, agents: impl IntoIterator<Item = i64>) -> Result<(), Error> {
        let fields: Vec<_> = agents.into_iter().map(|agent| self.field(agent, Vec::new())).collect();
        self.hashes.remove(&fields).await
    }

    fn field(&self, agent: i64, value: Vec<u8>) -> HashField {
        HashField { key: self.layout.kas_by_agent(agent), field: self.own.clone().into_bytes(), value }
    }
}

/// Writes which agents are here until the gateway leaves, then takes all of it back.
pub(super) async fn keep(book: Arc<Book>, mut words: UnboundedReceiver<Word>, leaving: CancellationToken) {
    let mut held = BTreeSet::new();
    let mut due = Instant::now() + book.times.refresh;
    let mut tidied = Instant::now();
    loop {
        let wrote = tokio::select! {
            () = leaving.cancelled() => break,
            word = words.recv() => match word {
                None => break,
                Some(Word::Holds(agent)) => {
                    held.insert(agent);
                    book.hold([agent]).await
                }
                Some(Word::Lost(agent, told)) => {
                    held.remove(&agent);
                    // What cannot be removed ends by itself.
                    let released = book.release([agent]).await;
                    // Whether anybody waits for it is its own affair.
                    let _ = told.send(());
                    released
                }
            },
            () = tokio::time::sleep_until(due) => {
                due = Instant::now() + book.times.refresh;
                let held_now = if held.is_empty() { Ok(()) } else { book.hold(held.iter().copied()).await };
                if held_now.is_ok() && tidied.elapsed() + book.times.refresh > book.times.tidy {
                    tidied = Instant::now();
                    book.tidy(held.iter().copied()).await
                } else {
                    held_now
                }
            }
        };
        if let Err(error) = wrote {
            tracing::warn!(error = %chain(&error), "Other replicas cannot be told which agents are here.");
            due = due.min(Instant::now() + AGAIN);
        }
    }
    if held.is_empty() {
        return;
    }
    match tokio::time::timeout(LAST_WORDS, book.release(held)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = %chain(&error), "Entries of this gateway stay until they end.");
        }
        Err(_) => tracing::warn!("Entries of this gateway stay until they end: Redis does not answer."),
    }
}

#[cfg(test)]
mod tests {
    use tarbet_store::RedisConfig;
    use tarbet_testbed::Redis;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_has_ended_is_removed_by_whoever_reads_it() {
        let redis = Redis::start().await.unwrap();
        let section = BesideSection::at(RedisConfig::at(redis.url().parse().unwrap()));
        let hashes = || Hashes::at(&section.redis).unwrap();
        let own = "grpc://127.0.0.1:1".to_owned();
        let book = Book::new(hashes(), &section, Prefix::Gitlab, own.clone());
        let (layout, past) = (Layout::default(), Timestamp::now().as_second() - 1);
        let field = |key: Vec<u8>, field: &str, expires| HashField {
            key,
            field: field.as_bytes().to_vec(),
            value: expiring(expires, ""),
        };
        let old = [
            field(layout.kas_by_agent(7), "grpc://gone:8155", past),
            field(layout.kas_by_agent(7), "grpc://there:8155", book.expires()),
            field(layout.connections_by_agent(7), "70", past),
            field(layout.connected_agents(), "6", past),
        ];
        hashes().put(&old, section.entry_ttl).await.unwrap();
        let names = async |key: Vec<u8>| {
            let fields = hashes().all(&key).await.unwrap().into_iter();
            fields.map(|(field, _)| String::from_utf8(field).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(book.holders(7).await, ["grpc://there:8155"]);
        assert_eq!(names(layout.kas_by_agent(7)).await, ["grpc://there:8155"]);
        assert!(book.connections(Some(7), 0).await.unwrap().is_empty());
        assert!(names(layout.connections_by_agent(7)).await.is_empty());
        book.tidy([7]).await.unwrap();
        assert!(names(layout.connected_agents()).await.is_empty());

        // What is told reaches whoever listens.
        let server = redis.url().trim_start_matches("redis://").to_owned();
        let mut listener = tokio::net::TcpStream::connect(server).await.unwrap();
        listener.write_all(b"SUBSCRIBE kas_events\r\n").await.unwrap();
        let mut heard = Vec::new();
        for word in ["subscribe", "pushed"] {
            while !String::from_utf8_lossy(&heard).contains(word) {
                assert_ne!(listener.read_buf(&mut heard).await.unwrap(), 0);
            }
            book.tell("kas_events", b"pushed").await.unwrap();
        }

        // An agent is no longer counted once its last process has left.
        let info =
            |pod| ConnectedAgentInfo { agent_id: 7, connection_id: pod, project_id: 5, ..Default::default() };
        book.registered(info(1)).await.unwrap();
        book.registered(info(2)).await.unwrap();
        book.unregistered(7, 5, 1).await.unwrap();
        assert_eq!(names(layout.connected_agents()).await, ["7"]);
        book.unregistered(7, 5, 2).await.unwrap();
        assert!(names(layout.connected_agents()).await.is_empty());
        assert!(names(layout.connections_by_project(5)).await.is_empty());
    }
}
