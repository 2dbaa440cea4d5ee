//! A trimmed copy of the objects of one kind, kept by a watch.
//!
//! Only what the owner keeps of an object stays in memory. Our own writes are taken over from the
//! answer of the API ([`Mirror::refresh`]), and an older state that the watch delivers later does
//! not undo them: a reader always sees its own writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::StreamExt;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

/// Objects of a list that are read at once. A page is held whole and in full, so memory that is used once
/// for a large one stays with the process, while the parts of objects that are kept are small.
const PAGE: u32 = 100;

/// A watch that failed and then neither fails nor tells anything for this long may stand again.
const QUIET: Duration = Duration::from_secs(2);

/// Namespace and name.
type Key = (String, String);

/// What a kept object must tell of itself.
pub trait Newer {
    /// Which object of this name it is.
    fn uid(&self) -> &str;
    /// Its `resourceVersion` as a number; 0 if it is none.
    fn version(&self) -> u64;
    /// Whether all that is kept of it is as it was in `older`: then nobody is told of the change. Most
    /// writes in a cluster touch what nobody keeps, such as the status of a pod.
    fn is_as(&self, _older: &Self) -> bool {
        false
    }
}

/// What a watch noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<V> {
    /// An object appeared or changed, and is now this.
    Applied(Arc<V>),
    /// An object went; it was last seen as this.
    Deleted(Arc<V>),
    /// The list is complete; sent after the first and any later list.
    Listed,
    /// It hears nothing, for this reason, and tries again.
    Failing(String),
    /// It hears of changes again.
    Back,
}

/// The copy. Cheap to clone.
pub struct Mirror<V> {
    held: Arc<RwLock<Held<V>>>,
    listed: channel::Sender<bool>,
}

struct Held<V> {
    objects: BTreeMap<Key, Arc<V>>,
    /// What changed since somebody asked; nothing while nobody wants to know.
    changed: Option<BTreeSet<Key>>,
}

impl<V> Default for Held<V> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), changed: None }
    }
}

impl<V> Held<V> {
    fn note(&mut self, key: &Key) {
        if let Some(changed) = &mut self.changed {
            changed.insert(key.clone());
        }
    }
}

impl<V> Clone for Mirror<V> {
    fn clone(&self) -> Self {
        Self { held: Arc::clone(&self.held), listed: self.listed.clone() }
    }
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Self { held: Arc::default(), listed: channel::Sender::new(false) }
    }
}

impl<V: Newer> Mirror<V> {
    /// What is known of an object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.read().objects.get(&key).cloned()
    }

    /// The objects that `choose` wants something of.
    pub fn select<T>(&self, mut choose: impl FnMut(&str, &str, &Arc<V>) -> Option<T>) -> Vec<T> {
        let held = self.read();
        held.objects.iter().filter_map(|((namespace, name), value)| choose(namespace, name, value)).collect()
    }

    /// Keeps in mind from now on what changes, for [`changes`](Self::changes).
    pub fn track(&self) {
        let mut held = self.write();
        let known = held.objects.keys().cloned().collect();
        held.changed.get_or_insert(known);
    }

    /// What came, changed or went since this was asked last, with what is known of each now. There is one who asks.
    pub fn changes(&self) -> Vec<(Key, Option<Arc<V>>)> {
        // Nearly always there is nothing, and those who read are not kept from it.
        if self.read().changed.as_ref().is_none_or(BTreeSet::is_empty) {
            return Vec::new();
        }
        let mut held = self.write();
        let changed = held.changed.as_mut().map(std::mem::take).unwrap_or_default();
        let known = |key: Key| {
            let value = held.objects.get(&key).cloned();
            (key, value)
        };
        changed.into_iter().map(known).collect()
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes over the answer to a write of our own, unless the watch knows better by now.
    pub fn refresh(&self, namespace: &str, name: &str, value: V) {
        let (mut held, key) = (self.write(), (namespace.to_owned(), name.to_owned()));
        // Never inserts: an object whose end was noticed meanwhile must not come back.
        if let Some(known) = held.objects.get_mut(&key)
            && known.uid() == value.uid()
            && known.version() < value.version()
        {
            *known = Arc::new(value);
            held.note(&key);
        }
    }

    /// Forgets the objects of one namespace, as when it is no longer watched.
    pub fn forget(&self, namespace: &str) {
        for key in self.keys_within(Some(namespace)) {
            self.remove(&key, None);
        }
    }

    /// Whether a whole list was seen.
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Waits until a whole list was seen.
    pub async fn listed(&self) {
        // The sender lives as long as we do, so waiting cannot fail.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Marks the list as complete when there is nothing to watch.
    pub fn mark_listed(&self) {
        self.listed.send_replace(true);
    }

    fn read(&self) -> RwLockReadGuard<'_, Held<V>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held<V>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, key: Key, value: V) -> Option<Change<V>> {
        let mut held = self.write();
        match held.objects.get(&key) {
            Some(known) if known.uid() == value.uid() && known.version() >= value.version() => None,
            known => {
                let news = known.is_none_or(|known| known.uid() != value.uid() || !value.is_as(known));
                let value = Arc::new(value);
                if news {
                    held.note(&key);
                }
                held.objects.insert(key, Arc::clone(&value));
                news.then_some(Change::Applied(value))
            }
        }
    }

    fn remove(&self, key: &Key, uid: Option<&str>) -> Option<Change<V>> {
        let mut held = self.write();
        match held.objects.get(key) {
            // A successor of the same name may have been listed before its predecessor's end was told.
            Some(known) if uid.is_none_or(|uid| known.uid() == uid) => {
                held.note(key);
                held.objects.remove(key).map(Change::Deleted)
            }
            _ => None,
        }
    }

    fn keys_within(&self, namespace: Option<&str>) -> BTreeSet<Key> {
        let inside = |key: &&Key| namespace.is_none_or(|namespace| key.0 == namespace);
        self.read().objects.keys().filter(inside).cloned().collect()
    }
}

/// What to watch.
pub struct Watch<K> {
    /// The kind, and the cluster it is on.
    pub api: Api<K>,
    /// Which objects of it.
    pub config: watcher::Config,
    /// The part of the mirror that this watch answers for; `None` is all of it.
    pub namespace: Option<String>,
}

/// Watches until `stop`, keeping `mirror` and telling each change. An object that `keep` gives
/// nothing for counts as not there.
pub async fn watch<K, V>(
    Watch { api, config, namespace }: Watch<K>,
    mirror: Mirror<V>,
    keep: impl Fn(K) -> Option<V>,
    tell: impl Fn(Change<V>),
    stop: CancellationToken,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Newer,
{
    // A watch is renewed every minute: silence longer than that means a dead peer.
    let config = config.timeout(60).page_size(PAGE);
    let mut events = std::pin::pin!(watcher(api.clone(), config));
    let mut unseen = BTreeSet::new();
    let mut pauses = Pauses::default();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
            // A watch that stands again says nothing before something changes.
            answers = answers_after(QUIET, &api), if pauses.failing() => {
                if answers && pauses.reset() {
                    tell(Change::Back);
                }
                continue;
            }
        };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                tell(Change::Failing(tarbet_telemetry::problem::chain(&error)));
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pauses.next()) => continue,
                }
            }
            None => return,
        };
        // `Init` only says that a list is about to be tried.
        if !matches!(event, watcher::Event::Init) && pauses.reset() {
            tell(Change::Back);
        }
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => unseen = mirror.keys_within(namespace.as_deref()),
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                let key = key(&object);
                let change = match keep(object) {
                    Some(value) => {
                        unseen.remove(&key);
                        mirror.apply(key, value)
                    }
                    None => mirror.remove(&key, None),
                };
                change.into_iter().for_each(&tell);
            }
            watcher::Event::Delete(object) => {
                mirror.remove(&key(&object), object.meta().uid.as_deref()).into_iter().for_each(&tell);
            }
            watcher::Event::InitDone => {
                std::mem::take(&mut unseen).iter().filter_map(|key| mirror.remove(key, None)).for_each(&tell);
                mirror.mark_listed();
                tell(Change::Listed);
            }
        }
    }
}

/// Whether the API tells of this kind, asked after a while.
async fn answers_after<K>(quiet: Duration, api: &Api<K>) -> bool
where
    K: Clone + DeserializeOwned + Debug,
{
    tokio::time::sleep(quiet).await;
    api.list_metadata(&ListParams::default().limit(1)).await.is_ok()
}

/// Pauses after failures: short at first, since most are a restart of the server.
#[derive(Debug, Default)]
struct Pauses(u32);

impl Pauses {
    fn next(&mut self) -> Duration {
        let base = Duration::from_millis(100 << self.0.min(6)).min(Duration::from_secs(5));
        self.0 += 1;
        base.mul_f64(rand::random_range(0.5..1.0))
    }

    fn failing(&self) -> bool {
        self.0 > 0
    }

    /// Starts over; true if there had been a failure.
    fn reset(&mut self) -> bool {
        std::mem::take(&mut self.0) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Thing(&'static str, u64);

    /// Something of which only a word is kept.
    struct Word(&'static str, u64, &'static str);

    impl Newer for Word {
        fn uid(&self) -> &str {
            self.0
        }
        fn version(&self) -> u64 {
            self.1
        }
        fn is_as(&self, older: &Self) -> bool {
            self.2 == older.2
        }
    }

    impl Newer for Thing {
        fn uid(&self) -> &str {
            self.0
        }
        fn version(&self) -> u64 {
            self.1
        }
    }

    fn key() -> Key {
        ("ns".to_owned(), "name".to_owned())
    }

    #[test]
    fn our_own_write_is_not_undone_by_an_older_event() {
        let mirror = Mirror::default();
        assert!(mirror.apply(key(), Thing("a", 1)).is_some());
        mirror.refresh("ns", "name", Thing("a", 5));
        assert!(mirror.apply(key(), Thing("a", 3)).is_none());
        assert_eq!(*mirror.get("ns", "name").unwrap(), Thing("a", 5));
        assert!(mirror.apply(key(), Thing("a", 6)).is_some());
    }

    #[test]
    fn a_gone_object_stays_gone_and_a_successor_is_another_one() {
        let mirror = Mirror::default();
        mirror.apply(key(), Thing("a", 9)).unwrap();
        assert!(mirror.apply(key(), Thing("b", 2)).is_some(), "another object may have a lower version");
        assert!(
            mirror.remove(&key(), Some("a")).is_none(),
            "the late end of the first does not end the second"
        );
        mirror.refresh("ns", "name", Thing("a", 12));
        assert_eq!(*mirror.get("ns", "name").unwrap(), Thing("b", 2));
        assert_eq!(mirror.remove(&key(), Some("b")), Some(Change::Deleted(Arc::new(Thing("b", 2)))));
        mirror.refresh("ns", "name", Thing("b", 20));
        assert!(mirror.is_empty());
    }

    #[test]
    fn a_change_of_what_is_not_kept_is_not_told_and_still_counts() {
        let mirror = Mirror::default();
        assert!(mirror.apply(key(), Word("a", 1, "x")).is_some());
        assert!(mirror.apply(key(), Word("a", 5, "x")).is_none(), "nothing that is kept changed");
        assert_eq!(mirror.get("ns", "name").unwrap().version(), 5);
        assert!(mirror.apply(key(), Word("a", 3, "y")).is_none(), "an older state");
        assert!(mirror.apply(key(), Word("a", 6, "y")).is_some());
        assert!(mirror.apply(key(), Word("b", 7, "y")).is_some(), "another object that says the same");
    }

    #[test]
    fn what_changed_is_told_once_as_it_is_now() {
        let mirror = Mirror::<Word>::default();
        let name = |name: &str| ("ns".to_owned(), name.to_owned());
        let changes = || -> Vec<(String, Option<u64>)> {
            let changes = mirror.changes().into_iter();
            changes.map(|((_, name), known)| (name, known.map(|known| known.version()))).collect()
        };
        mirror.apply(name("before"), Word("a", 1, "x"));
        assert!(changes().is_empty(), "nobody wanted to know");
        mirror.track();
        mirror.apply(name("b"), Word("b", 1, "x"));
        mirror.apply(name("c"), Word("c", 1, "x"));
        mirror.remove(&name("c"), None);
        assert_eq!(changes(), [("b".into(), Some(1)), ("before".into(), Some(1)), ("c".into(), None)]);
        mirror.apply(name("b"), Word("b", 2, "x"));
        assert!(changes().is_empty(), "nothing that is kept changed");
        mirror.apply(name("b"), Word("b", 3, "y"));
        mirror.apply(name("b"), Word("b", 4, "z"));
        mirror.refresh("ns", "before", Word("a", 9, "x"));
        assert_eq!(changes(), [("b".into(), Some(4)), ("before".into(), Some(9))]);
        mirror.forget("ns");
        assert_eq!(changes(), [("b".into(), None), ("before".into(), None)]);
    }
}
