//! Which gateway holds which link, shared by all gateways through the store.
//!
//! Each gateway keeps one short-lived entry that says it is alive, and one longer-lived entry a
//! link. A link counts only while its gateway is alive, so a gateway that dies takes all its links
//! along within seconds, and ten thousand links cost one write every few seconds. A gateway's entry
//! belongs to one process: one that starts again under its old name does not inherit its links.

mod remotes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_identity::Pin;
use tarbet_link::handshake::Purpose;
use tarbet_store::{Commit, Error, Record, Store, Table};
use tarbet_telemetry::problem::chain;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::remotes::{Remote, Remotes};
use crate::local::{Held, LinkId, LocalLinks};
use crate::names::SiteName;

/// How the registry keeps time.
#[derive(Debug, Clone)]
pub struct Rhythm {
    /// How long a gateway counts as alive after its last word.
    pub alive: Duration,
    /// How often it says that it is.
    pub heartbeat: Duration,
    /// How long a link's entry lives without being refreshed.
    pub entry: Duration,
    /// How often it is refreshed.
    pub refresh: Duration,
    /// How long a looked-up answer is used again.
    pub cache: Duration,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            alive: Duration::from_secs(12),
            heartbeat: Duration::from_secs(4),
            entry: Duration::from_mins(5),
            refresh: Duration::from_mins(2),
            cache: Duration::from_secs(1),
        }
    }
}

/// A gateway as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRecord {
    /// Its name.
    pub name: String,
    /// Where its private listener is reached.
    pub url: String,
    /// Where agents reach it, if it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<String>,
    /// Since when it runs.
    pub started: Timestamp,
}

impl Record for GatewayRecord {
    const KIND: &'static str = "gateway";
}

/// A link as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The process that holds it, as it calls itself in the table of gateways.
    pub gateway: String,
    /// What the agent offers.
    pub services: Vec<String>,
    /// The agent's own name and version.
    pub agent: String,
    /// The key under which the agent is reached end to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Pin>,
    /// Since when.
    pub since: Timestamp,
    /// Whether the agent opened it for large transfers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bulk: bool,
}

impl Record for LinkRecord {
    const KIND: &'static str = "link";
}

/// A link somewhere, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its site.
    pub site: String,
    /// Its name.
    pub link: String,
    /// The name of the gateway that holds it.
    pub gateway: String,
    /// What is known of it.
    pub record: LinkRecord,
}

/// The shared registry, seen from one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    store: Store,
    gateways: Table<String, GatewayRecord>,
    links: Table<(String, String), LinkRecord>,
    own: (String, GatewayRecord),
    rhythm: Rhythm,
    local: LocalLinks,
    cache: Mutex<Cache>,
    followed: Mutex<HashMap<SiteName, Weak<Following>>>,
    // The registry may differ from what is held: all is written again with the next heartbeat.
    behind: AtomicBool,
    // Whether this gateway has left; read while anything of it is written, so that nothing comes after.
    left: tokio::sync::RwLock<bool>,
}

/// Answers that were looked up lately.
#[derive(Default)]
struct Cache {
    answers: HashMap<SiteName, (Instant, Arc<Remotes>)>,
    looking: HashMap<SiteName, Weak<Looking>>,
    // The last failure of each site, by its number: whoever asked before it happened has it, too. A store
    // that does not answer would let them try one after the other.
    failures: HashMap<SiteName, (u64, Error)>,
    failed: u64,
}

/// Who looks a site up right now.
#[derive(Default)]
struct Looking {
    // However many ask, one looks and the others use the answer, or share the failure.
    turn: tokio::sync::Mutex<()>,
    // Counts what made answers for this site doubtful: one that was looked up before is not kept after. A site of
    // which nobody looks up anything has no answer to doubt.
    doubts: AtomicU64,
}

impl Cache {
    fn note(&mut self, site: &SiteName, error: &Error) {
        self.failed += 1;
        self.failures.insert(site.clone(), (self.failed, error.clone()));
    }

    fn failed_since(&self, before: u64, site: &SiteName) -> Option<Error> {
        let (number, error) = self.failures.get(site)?;
        (*number > before).then(|| error.clone())
    }
}

/// A site's entries are being followed for as long as this is held.
pub struct Following {
    task: AbortHandle,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Registry {
    /// The registry in this store, for the gateway `name` reached at `url`.
    pub fn new(
        store: &Store,
        name: &str,
        url: &str,
        local: LocalLinks,
        rhythm: Rhythm,
        now: Timestamp,
    ) -> Result<Self, tarbet_store::Invalid> {
        let record = GatewayRecord { name: name.to_owned(), url: url.to_owned(), agents: None, started: now };
        let own = (Uuid::new_v4().simple().to_string(), record);
        Ok(Self(Arc::new(Inner {
            store: store.clone(),
            gateways: Table::new(store, "gateways")?,
            links: Table::new(store, "links")?,
            own,
            rhythm,
            local,
            cache: Mutex::default(),
            followed: Mutex::default(),
            behind: AtomicBool::new(false),
            left: tokio::sync::RwLock::new(false),
        })))
    }

    /// The same, and others are told where agents reach this gateway.
    #[must_use]
    pub fn dialled_at(mut self, agents: Option<String>) -> Self {
        // Right after it was made nobody shares it yet.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.own.1.agents = agents;
        }
        self
    }

    /// Makes a link known, together with this gateway. If the store is away, the next heartbeat that
    /// reaches it makes up for that.
    pub async fn announce(&self, held: &Held) {
        if let Err(error) = self.write([held]).await {
            self.0.behind.store(true, Ordering::Relaxed);
            tracing::warn!(
                site = %held.site, link = %held.id, error = %chain(&error),
                "The link is not in the registry yet."
            );
        }
    }

    /// Makes a link unknown; later, if the store is away.
    pub async fn withdraw(&self, held: &Held) {
        if let Err(error) = self.0.links.delete(&key(held)).await {
            self.0.behind.store(true, Ordering::Relaxed);
            tracing::debug!(link = %held.id, error = %chain(&error), "The registry still lists a link that is gone.");
        }
    }

    /// The links that other living gateways hold for a site.
    pub async fn elsewhere(&self, site: &SiteName) -> Result<Arc<Remotes>, Error> {
        if let Some(remotes) = self.cached(site) {
            return Ok(remotes);
        }
        let looking = self.looking(site);
        let before = self.cache().failed;
        let _turn = looking.turn.lock().await;
        if let Some(remotes) = self.cached(site) {
            return Ok(remotes);
        }
        if let Some(error) = self.cache().failed_since(before, site) {
            return Err(error);
        }
        let is_followed = self.followed().get(site).is_some_and(|following| following.strong_count() > 0);
        let doubts = looking.doubts.load(Ordering::Relaxed);
        let found = self.look_up(site).await;
        let mut cache = self.cache();
        let remotes = Arc::new(found.inspect_err(|error| cache.note(site, error))?);
        // That nobody is there is worth remembering only while it is heard when somebody comes.
        if looking.doubts.load(Ordering::Relaxed) == doubts && (is_followed || !remotes.is_empty()) {
            cache.answers.insert(site.clone(), (Instant::now(), Arc::clone(&remotes)));
        }
        Ok(remotes)
    }

    async fn look_up(&self, site: &SiteName) -> Result<Remotes, Error> {
        let links = self.0.links.list_under(&site.to_string()).await?.records;
        let mut urls: HashMap<String, Option<Arc<str>>> = HashMap::new();
        let mut remotes = Vec::with_capacity(links.len());
        for ((_, id), record) in links {
            let LinkRecord { gateway, bulk, .. } = record.value;
            let purpose = if bulk { Purpose::Bulk } else { Purpose::General };
            let Some(link) = LinkId::parse(&id).filter(|_| gateway != self.0.own.0) else { continue };
            let url = if let Some(url) = urls.get(&gateway) {
                url.clone()
            } else {
                let found = self.0.gateways.get(&gateway).await?.map(|found| found.value.url.into());
                urls.insert(gateway, found.clone());
                found
            };
            remotes.extend(url.map(|url| Remote { link, url, purpose }));
        }
        Ok(Remotes::new(remotes, rand::random()))
    }

    /// Every link of every living gateway.
    pub async fn everywhere(&self) -> Result<Vec<Listed>, Error> {
        let alive: HashMap<String, String> = self
            .0
            .gateways
            .list()
            .await?
            .records
            .into_iter()
            .map(|(id, found)| (id, found.value.name))
            .collect();
        let links = self.0.links.list().await?.records;
        let known = links.into_iter().filter_map(|((site, link), record)| {
            let gateway = alive.get(&record.value.gateway)?.clone();
            Some(Listed { site, link, gateway, record: record.value })
        });
        Ok(known.collect())
    }

    /// The links of one site at living gateways, this one's among them.
    pub async fn of_site(&self, site: &SiteName) -> Result<Vec<Listed>, Error> {
        let mut names: HashMap<String, Option<String>> = HashMap::new();
        let mut listed = Vec::new();
        for ((site, link), record) in self.0.links.list_under(&site.to_string()).await?.records {
            let record = record.value;
            if !names.contains_key(&record.gateway) {
                let found = self.0.gateways.get(&record.gateway).await?;
                names.insert(record.gateway.clone(), found.map(|found| found.value.name));
            }
            let name = names.get(&record.gateway).cloned().flatten();
            listed.extend(name.map(|gateway| Listed { site, link, gateway, record }));
        }
        Ok(listed)
    }

    /// What this process calls itself in the table of gateways.
    pub fn own_id(&self) -> &str {
        &self.0.own.0
    }

    /// Whether a process of this id is alive, as far as the registry knows.
    pub async fn is_alive(&self, id: &str) -> Result<bool, Error> {
        Ok(id == self.0.own.0 || self.0.gateways.get(&id.to_owned()).await?.is_some())
    }

    /// The other living gateways.
    pub async fn colleagues(&self) -> Result<Vec<GatewayRecord>, Error> {
        let gateways = self.0.gateways.list().await?.records.into_iter();
        Ok(gateways.filter(|(id, _)| *id != self.0.own.0).map(|(_, found)| found.value).collect())
    }

    /// A looked-up answer turned out to be wrong.
    pub fn distrust(&self, site: &SiteName) {
        let mut cache = self.cache();
        cache.answers.remove(site);
        // Under the lock of the answers: whoever keeps one sees either this or has it taken away.
        if let Some(looking) = cache.looking.get(site).and_then(Weak::upgrade) {
            looking.doubts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Rings the bell of a site whenever the registry changes for it, for as long as somebody holds
    /// what this returns. However many wait for one site, it is followed once.
    pub fn following(&self, site: &SiteName) -> Arc<Following> {
        let mut followed = self.followed();
        if let Some(following) = followed.get(site).and_then(Weak::upgrade) {
            return following;
        }
        followed.retain(|_, following| following.strong_count() > 0);
        let (registry, of) = (self.clone(), site.clone());
        let task = tokio::spawn(async move { registry.follow(&of).await });
        let following = Arc::new(Following { task: task.abort_handle() });
        followed.insert(site.clone(), Arc::downgrade(&following));
        following
    }

    async fn follow(&self, site: &SiteName) {
        let mut watch = self.0.links.watch_under(&site.to_string());
        loop {
            match watch.next().await {
                Ok(_) => {
                    self.distrust(site);
                    self.0.local.ring(site);
                }
                Err(error) => {
                    tracing::debug!(%site, error = %chain(&error), "The registry cannot be followed.");
                    tokio::time::sleep(self.0.rhythm.heartbeat).await;
                }
            }
        }
    }

    /// Keeps this gateway's entries true until `stop`, then removes them.
    pub async fn keep(&self, stop: CancellationToken, health: tarbet_telemetry::health::Part) {
        let mut refreshed = Instant::now();
        loop {
            let due = refreshed.elapsed() >= self.0.rhythm.refresh;
            match self.beat(due).await {
                Ok(()) => {
                    health.ready();
                    if due {
                        refreshed = Instant::now();
                    }
                }
                Err(error) => {
                    health.failing(format!("the registry of links does not answer: {}", chain(&error)));
                }
            }
            self.tidy();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.0.rhythm.heartbeat) => {}
            }
        }
        self.leave().await;
    }

    /// Forgets what is of no more use.
    fn tidy(&self) {
        let mut cache = self.cache();
        cache.answers.retain(|_, (at, _)| at.elapsed() < self.0.rhythm.cache);
        let Cache { looking, failures, .. } = &mut *cache;
        looking.retain(|_, looking| looking.strong_count() > 0);
        failures.retain(|site, _| looking.contains_key(site));
    }

    /// One heartbeat. An entry that is gone (the store was emptied) brings all links back.
    async fn beat(&self, refresh_links: bool) -> Result<(), Error> {
        let left = self.0.left.read().await;
        if *left {
            return Ok(());
        }
        let known = self.0.gateways.get(&self.0.own.0).await?.is_some();
        let behind = self.0.behind.swap(false, Ordering::Relaxed);
        if known && !refresh_links && !behind {
            return self.put([]).await;
        }
        let written = self.reconcile(behind).await;
        if written.is_err() {
            self.0.behind.store(true, Ordering::Relaxed);
        }
        written
    }

    /// Writes every link that is held, and removes those that no longer are.
    async fn reconcile(&self, prune: bool) -> Result<(), Error> {
        let held = self.0.local.all();
        for batch in held.chunks(BATCH) {
            self.put(batch.iter().map(AsRef::as_ref)).await?;
        }
        if held.is_empty() {
            self.put([]).await?;
        }
        if !prune {
            return Ok(());
        }
        let listed = self.0.links.list().await?.records.into_iter();
        let own = listed.filter(|(_, record)| record.value.gateway == self.0.own.0).map(|(key, _)| key);
        let gone = own.filter(|(_, id)| LinkId::parse(id).is_none_or(|id| self.0.local.get(id).is_none()));
        self.remove(&gone.collect::<Vec<_>>()).await
    }

    async fn write<'a>(&self, links: impl IntoIterator<Item = &'a Held>) -> Result<(), Error> {
        let left = self.0.left.read().await;
        if *left { Ok(()) } else { self.put(links).await }
    }

    async fn put<'a>(&self, links: impl IntoIterator<Item = &'a Held>) -> Result<(), Error> {
        let Inner { store, gateways, links: table, own, rhythm, .. } = &*self.0;
        let mut commit = Commit::new().with(gateways.put_for_op(&own.0, &own.1, rhythm.alive)?);
        for held in links {
            let record = LinkRecord {
                gateway: own.0.clone(),
                services: held.services.clone(),
                agent: held.agent.clone(),
                key: held.key,
                since: held.since,
                bulk: held.way.purpose() == Purpose::Bulk,
            };
            commit = commit.with(table.put_for_op(&key(held), &record, rhythm.entry)?);
        }
        store.commit(commit).await.map(drop)
    }

    /// Removes this gateway and its links, for good. What cannot be removed now expires.
    pub async fn leave(&self) {
        let mut left = self.0.left.write().await;
        if std::mem::replace(&mut *left, true) {
            return;
        }
        let leaving = async {
            // First the gateway: from then on nobody is sent here, however long the rest takes.
            self.0.gateways.delete(&self.0.own.0).await?;
            self.remove(&self.0.local.all().iter().map(|held| key(held)).collect::<Vec<_>>()).await
        };
        if let Err(error) = leaving.await {
            tracing::warn!(error = %chain(&error), "The registry still lists this gateway; its entries will expire.");
        }
    }

    async fn remove(&self, keys: &[(String, String)]) -> Result<(), Error> {
        for batch in keys.chunks(BATCH) {
            let commit =
                batch.iter().fold(Commit::new(), |commit, key| commit.with(self.0.links.delete_op(key)));
            self.0.store.commit(commit).await?;
        }
        Ok(())
    }

    fn cached(&self, site: &SiteName) -> Option<Arc<Remotes>> {
        let cache = self.cache();
        let (at, remotes) = cache.answers.get(site)?;
        (at.elapsed() < self.0.rhythm.cache).then(|| Arc::clone(remotes))
    }

    /// Whoever has the turn looks the site up.
    fn looking(&self, site: &SiteName) -> Arc<Looking> {
        let mut cache = self.cache();
        if let Some(looking) = cache.looking.get(site).and_then(Weak::upgrade) {
            return looking;
        }
        let looking = Arc::default();
        cache.looking.insert(site.clone(), Arc::downgrade(&looking));
        looking
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<SiteName, Weak<Following>>> {
        self.0.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Links in one commit: well below what a commit may hold.
const BATCH: usize = 100;

fn key(held: &Held) -> (String, String) {
    (held.site.to_string(), held.id.to_string())
}

#[cfg(test)]
mod tests;
