//! Which gateway holds which link, shared by all gateways through the store.
//!
//! Each gateway keeps one short-lived entry that says it is alive, and one longer-lived entry a
//! link. A link counts only while its gateway is alive, so a gateway that dies takes all its links
//! along within seconds, and ten thousand links cost one write every few seconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_store::{Commit, Error, Record, Store, Table};
use tarbet_telemetry::problem::chain;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
            entry: Duration::from_secs(300),
            refresh: Duration::from_secs(120),
            cache: Duration::from_secs(1),
        }
    }
}

/// A gateway as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRecord {
    /// Where its private listener is reached.
    pub url: String,
    /// Since when it runs.
    pub started: Timestamp,
}

impl Record for GatewayRecord {
    const KIND: &'static str = "gateway";
}

/// A link as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The gateway that holds it.
    pub gateway: String,
    /// What the agent offers.
    pub services: Vec<String>,
    /// The agent's own name and version.
    pub agent: String,
    /// Since when.
    pub since: Timestamp,
}

impl Record for LinkRecord {
    const KIND: &'static str = "link";
}

/// A link that another gateway holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The link.
    pub link: LinkId,
    /// The gateway's private listener.
    pub url: String,
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
    cache: Mutex<HashMap<SiteName, (Instant, Vec<Remote>)>>,
    followed: Mutex<HashMap<SiteName, Weak<Following>>>,
    // Some link could not be written: all are written again with the next heartbeat.
    behind: AtomicBool,
}

/// A site's entries are being followed for as long as this is held.
pub struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Registry {
    /// The registry in this store, for the gateway `id` reached at `url`.
    pub fn new(
        store: &Store,
        id: &str,
        url: &str,
        local: LocalLinks,
        rhythm: Rhythm,
        now: Timestamp,
    ) -> Result<Self, tarbet_store::Invalid> {
        let own = (id.to_owned(), GatewayRecord { url: url.to_owned(), started: now });
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
        })))
    }

    /// Makes a link known, together with this gateway. If the store is away, the next heartbeat that
    /// reaches it makes up for that.
    pub async fn announce(&self, held: &Held) {
        if let Err(error) = self.write([held]).await {
            self.0.behind.store(true, Ordering::Relaxed);
            tracing::warn!(site = %held.site, link = %held.id, error = %chain(&error), "The link is not in the registry yet.");
        }
    }

    /// Makes a link unknown.
    pub async fn withdraw(&self, held: &Held) -> Result<(), Error> {
        self.0.links.delete(&key(held)).await.map(drop)
    }

    /// The links that other living gateways hold for a site.
    pub async fn elsewhere(&self, site: &SiteName) -> Result<Vec<Remote>, Error> {
        if let Some(remotes) = self.cached(site) {
            return Ok(remotes);
        }
        let links = self.0.links.list_under(&site.to_string()).await?.records;
        let mut remotes = Vec::with_capacity(links.len());
        for ((_, id), record) in links {
            let record = record.value;
            let Some(link) = LinkId::parse(&id).filter(|_| record.gateway != self.0.own.0) else { continue };
            if let Some(gateway) = self.0.gateways.get(&record.gateway).await? {
                remotes.push(Remote { link, url: gateway.value.url });
            }
        }
        if !remotes.is_empty() {
            let entry = (Instant::now(), remotes.clone());
            self.cache().insert(site.clone(), entry);
        }
        Ok(remotes)
    }

    /// Every link of every living gateway: site, link and record.
    pub async fn everywhere(&self) -> Result<Vec<(String, String, LinkRecord)>, Error> {
        let alive: Vec<String> = self.0.gateways.list().await?.records.into_iter().map(|(id, _)| id).collect();
        let links = self.0.links.list().await?.records;
        let known = links.into_iter().map(|((site, link), record)| (site, link, record.value));
        Ok(known.filter(|(_, _, record)| alive.contains(&record.gateway)).collect())
    }

    /// A looked-up answer turned out to be wrong.
    pub fn distrust(&self, site: &SiteName) {
        self.cache().remove(site);
    }

    /// Rings the bell of a site whenever the registry changes for it, for as long as somebody holds
    /// what this returns. However many wait for one site, it is followed once.
    pub fn following(&self, site: &SiteName) -> Arc<Following> {
        let mut followed = self.0.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(following) = followed.get(site).and_then(Weak::upgrade) {
            return following;
        }
        followed.retain(|_, following| following.strong_count() > 0);
        let (registry, of) = (self.clone(), site.clone());
        let task = tokio::spawn(async move { registry.follow(&of).await });
        let following = Arc::new(Following(task.abort_handle()));
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
                Err(error) => health.failing(format!("the registry of links does not answer: {}", chain(&error))),
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.0.rhythm.heartbeat) => {}
            }
        }
        if let Err(error) = self.leave().await {
            tracing::warn!(error = %chain(&error), "The registry still lists this gateway; its entries will expire.");
        }
    }

    /// One heartbeat. An entry that is gone (the store was emptied) brings all links back.
    async fn beat(&self, refresh_links: bool) -> Result<(), Error> {
        let known = self.0.gateways.get(&self.0.own.0).await?.is_some();
        let behind = self.0.behind.swap(false, Ordering::Relaxed);
        if known && !refresh_links && !behind {
            return self.write([]).await;
        }
        let links = self.0.local.all();
        let written = self.write_all(&links).await;
        if written.is_err() {
            self.0.behind.store(true, Ordering::Relaxed);
        }
        written
    }

    async fn write_all(&self, links: &[Arc<Held>]) -> Result<(), Error> {
        for batch in links.chunks(BATCH) {
            self.write(batch.iter().map(AsRef::as_ref)).await?;
        }
        if links.is_empty() { self.write([]).await } else { Ok(()) }
    }

    async fn write<'a>(&self, links: impl IntoIterator<Item = &'a Held>) -> Result<(), Error> {
        let Inner { store, gateways, links: table, own, rhythm, .. } = &*self.0;
        let mut commit = Commit::new().with(gateways.put_for_op(&own.0, &own.1, rhythm.alive)?);
        for held in links {
            let record = LinkRecord {
                gateway: own.0.clone(),
                services: held.services.clone(),
                agent: held.agent.clone(),
                since: held.since,
            };
            commit = commit.with(table.put_for_op(&key(held), &record, rhythm.entry)?);
        }
        store.commit(commit).await.map(drop)
    }

    async fn leave(&self) -> Result<(), Error> {
        let Inner { store, gateways, links: table, own, local, .. } = &*self.0;
        // First the gateway: from then on nobody is sent here, however long the rest takes.
        gateways.delete(&own.0).await?;
        for batch in local.all().chunks(BATCH) {
            let commit = batch.iter().fold(Commit::new(), |commit, held| commit.with(table.delete_op(&key(held))));
            store.commit(commit).await?;
        }
        Ok(())
    }

    fn cached(&self, site: &SiteName) -> Option<Vec<Remote>> {
        let cache = self.cache();
        let (at, remotes) = cache.get(site)?;
        (at.elapsed() < self.0.rhythm.cache).then(|| remotes.clone())
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, HashMap<SiteName, (Instant, Vec<Remote>)>> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Links in one commit: well below what a commit may hold.
const BATCH: usize = 100;

fn key(held: &Held) -> (String, String) {
    (held.site.to_string(), held.id.to_string())
}
