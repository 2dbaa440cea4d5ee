//! The links that this gateway itself holds, and those who wait for one.

mod turns;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tarbet_identity::Pin;
use tarbet_link::handshake::{Purpose, Refusal};
use tarbet_link::{Caller, Dialer, Link, LinkStats};
use tokio::sync::Notify;
use uuid::Uuid;

use self::turns::Turns;
use crate::names::SiteName;
use crate::peers::SAYS_WHEN_TAKEN;

/// A way to a site: both shapes, and the means to end it.
pub trait Way: Dialer + Caller {
    /// Asks the agent to open another link first and then to leave this one.
    fn drain(&self);

    /// Ends it now and tells the agent why.
    fn dismiss(&self, refusal: Refusal);

    /// What the agent opened it for.
    fn purpose(&self) -> Purpose {
        Purpose::General
    }

    /// Its counters now, where they are kept.
    fn stats(&self) -> Option<LinkStats> {
        None
    }

    /// Whether it takes requests at this moment. One that does not never will again, and is taken out of the tables
    /// soon.
    fn takes_requests(&self) -> bool {
        true
    }

    /// Whether its other end says when it begins with a request, see [`OnTaken`](tarbet_link::OnTaken).
    fn says_when_taken(&self) -> bool {
        false
    }

    /// Whether it is one connection. What stands for several does not count against a limit of links: each of
    /// them has a place of its own.
    fn is_one_link(&self) -> bool {
        true
    }
}

impl Way for Link {
    fn drain(&self) {
        Self::drain(self);
    }

    fn dismiss(&self, refusal: Refusal) {
        Self::dismiss(self, refusal);
    }

    fn purpose(&self) -> Purpose {
        self.info().agent.purpose
    }

    fn stats(&self) -> Option<LinkStats> {
        Some(Self::stats(self))
    }

    fn takes_requests(&self) -> bool {
        Self::takes_requests(self)
    }

    fn says_when_taken(&self) -> bool {
        self.info().agent.services.iter().any(|service| service == SAYS_WHEN_TAKEN)
    }
}

/// The name of one link, unique among all gateways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(Uuid);

impl LinkId {
    /// A new name; later ones sort after earlier ones.
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The bare id, as the link's own handshake carries it.
    pub fn uuid(self) -> Uuid {
        self.0
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.simple(), f)
    }
}

impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A link this gateway holds.
pub struct Held {
    /// Its name.
    pub id: LinkId,
    /// The site at its other end.
    pub site: SiteName,
    /// What the agent offers.
    pub services: Vec<String>,
    /// The agent's own name and version, as it told them.
    pub agent: String,
    /// The key under which the agent is reached end to end, if it has one.
    pub key: Option<Pin>,
    /// The token it was admitted with, to be checked again; absent where its own server does that.
    pub token_id: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// The way itself.
    pub way: Arc<dyn Way>,
}

#[derive(Default)]
struct Tables {
    by_site: HashMap<SiteName, OfSite>,
    by_id: HashMap<LinkId, Arc<Held>>,
    // One bell a site for as long as somebody waits for it.
    bells: HashMap<SiteName, Bell>,
    // Links that are about to be taken in.
    reserved: HashMap<SiteName, usize>,
}

/// The links of one site.
#[derive(Default)]
struct OfSite {
    links: BTreeMap<LinkId, Arc<Held>>,
    turns: Turns<Arc<Held>>,
    /// How many of them count against a limit.
    counted: usize,
}

struct Bell {
    notify: Arc<Notify>,
    waiting: usize,
}

/// The links of this gateway. Cheap to clone.
#[derive(Clone, Default)]
pub struct LocalLinks(Arc<Mutex<Tables>>);

/// A place for a link that is about to be taken in, or for a connection that is one of several in one way;
/// given up when dropped.
#[must_use = "the place is kept only while this is held"]
pub struct Place {
    site: SiteName,
    links: LocalLinks,
}

impl LocalLinks {
    /// Keeps a place for one more link of a site, if its links and places are fewer than `most`; else says how many.
    pub fn reserve(&self, site: &SiteName, most: usize) -> Result<Place, usize> {
        let mut tables = self.lock();
        let held = tables.by_site.get(site).map_or(0, |of| of.counted);
        let reserved = tables.reserved.entry(site.clone()).or_default();
        if held + *reserved >= most {
            return Err(held + *reserved);
        }
        *reserved += 1;
        Ok(Place { site: site.clone(), links: self.clone() })
    }

    /// Takes a link in and wakes those who wait for its site.
    pub fn add(&self, held: Arc<Held>) {
        let mut tables = self.lock();
        tables.by_id.insert(held.id, Arc::clone(&held));
        let site = held.site.clone();
        let of = tables.by_site.entry(site.clone()).or_default();
        of.turns.add(held.id, held.way.purpose(), Arc::clone(&held));
        of.counted += usize::from(held.way.is_one_link());
        of.links.insert(held.id, held);
        drop(tables);
        self.ring(&site);
    }

    /// Forgets a link.
    pub fn remove(&self, id: LinkId) -> Option<Arc<Held>> {
        let mut tables = self.lock();
        let held = tables.by_id.remove(&id)?;
        if let Some(of) = tables.by_site.get_mut(&held.site) {
            of.turns.remove(id);
            of.counted -= usize::from(held.way.is_one_link());
            of.links.remove(&id);
            if of.links.is_empty() {
                tables.by_site.remove(&held.site);
            }
        }
        Some(held)
    }

    /// The link of this name.
    pub fn get(&self, id: LinkId) -> Option<Arc<Held>> {
        self.lock().by_id.get(&id).cloned()
    }

    /// A link to the site that was not tried yet, each in turn; one for this purpose, if there is one.
    pub fn pick(&self, site: &SiteName, purpose: Purpose, tried: &[LinkId]) -> Option<Arc<Held>> {
        let mut tables = self.lock();
        let turns = &mut tables.by_site.get_mut(site)?.turns;
        // When very many break in one moment, those that ended stand here for a while.
        turns.pick(purpose, tried, |held| !held.way.takes_requests())
    }

    /// How many links there are to a site.
    pub fn count_of(&self, site: &SiteName) -> usize {
        self.lock().by_site.get(site).map_or(0, |of| of.links.len())
    }

    /// The links to a site, the oldest first.
    pub fn of_site(&self, site: &SiteName) -> Vec<Arc<Held>> {
        self.lock().by_site.get(site).map_or_else(Vec::new, |of| of.links.values().cloned().collect())
    }

    /// All links.
    pub fn all(&self) -> Vec<Arc<Held>> {
        self.lock().by_id.values().cloned().collect()
    }

    /// Wakes everybody who waits for the site.
    pub fn ring(&self, site: &SiteName) {
        if let Some(bell) = self.lock().bells.get(site) {
            // Wakes in the order in which they began to wait.
            bell.notify.notify_waiters();
        }
    }

    /// Begins to wait for a site. What happens after this call is not missed.
    pub fn wait_for(&self, site: &SiteName) -> Waiting {
        let mut tables = self.lock();
        let bell =
            tables.bells.entry(site.clone()).or_insert_with(|| Bell { notify: Arc::default(), waiting: 0 });
        bell.waiting += 1;
        let notify = Arc::clone(&bell.notify);
        Waiting { site: site.clone(), links: self.clone(), notify }
    }

    /// The sites somebody waits for, and how many do.
    pub fn awaited(&self) -> Vec<(SiteName, usize)> {
        self.lock().bells.iter().map(|(site, bell)| (site.clone(), bell.waiting)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut tables = self.links.lock();
        if let Some(reserved) = tables.reserved.get_mut(&self.site) {
            *reserved -= 1;
            if *reserved == 0 {
                tables.reserved.remove(&self.site);
            }
        }
    }
}

/// One who waits for a site.
pub struct Waiting {
    site: SiteName,
    links: LocalLinks,
    notify: Arc<Notify>,
}

impl Waiting {
    /// A future that is done at the next ring after this call.
    pub fn ring(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut tables = self.links.lock();
        if let Some(bell) = tables.bells.get_mut(&self.site) {
            bell.waiting -= 1;
            if bell.waiting == 0 {
                tables.bells.remove(&self.site);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
