//! What this process remembers of its pods. Everything in it can be found out again.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::time::Instant;

use super::machine::is_final;
use super::packed::{PackedPod, PackedStatus};
use super::plan::{Memory, Remote};
use crate::wire;

/// Namespace and name of a pod.
pub type Key = (String, String);

/// A pod that ended here rather than there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Kubernetes' word for it.
    pub reason: String,
    /// The sentence.
    pub message: String,
    /// What its containers are said to have ended with.
    pub code: i32,
}

/// What is remembered of one pod.
#[derive(Debug, Clone)]
pub struct Record {
    /// The pod as the cluster last showed it.
    pub kept: Arc<PackedPod>,
    /// What decisions need.
    pub memory: Memory,
    /// What the other side last said.
    pub told: Option<PackedStatus>,
    /// Since when the other side has said nothing of it although it was asked. Not by the clock on the wall,
    /// which may jump: a pod that is silent for a moment would be lost.
    pub unheard: Option<Instant>,
    /// Since when a peer of other origin, asked for this pod, says nothing of it.
    pub missed: Option<Instant>,
    /// How often such a peer could not remove it.
    pub removals: u32,
    /// The other side's own id.
    pub jid: String,
    /// Why it has not been sent.
    pub waiting: Option<(String, String)>,
    /// Why it ended here.
    pub end: Option<End>,
    /// What its contents were when they were last sent.
    pub contents: Option<u64>,
    /// The [`print`] of the last status that was written, where the cluster made something else of it.
    pub written: Option<u64>,
}

impl Record {
    fn new(kept: Arc<PackedPod>) -> Self {
        Self {
            kept,
            memory: Memory::default(),
            told: None,
            unheard: None,
            missed: None,
            removals: 0,
            jid: String::new(),
            waiting: None,
            end: None,
            contents: None,
            written: None,
        }
    }

    /// Ends it here.
    pub fn end(&mut self, reason: &str, message: impl Into<String>, code: i32) {
        self.memory.ended = true;
        self.end.get_or_insert(End { reason: reason.to_owned(), message: message.into(), code });
    }

    fn open(&self) -> Entry {
        Entry { pod: Box::new(self.kept.open()), record: self.clone() }
    }
}

/// One pod as it is looked at: what is remembered of it, and the pod itself.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The pod as the cluster last showed it.
    pub pod: Box<Pod>,
    /// What is remembered.
    pub record: Record,
}

impl Entry {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        self.record.kept.key()
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.record.kept.uid()
    }
}

/// What tells two statuses apart.
pub fn print(status: &PodStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// All pods by UID. Cheap to clone.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<HashMap<String, Record>>>);

impl Book {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a pod as the cluster shows it.
    pub fn see(&self, pod: &Arc<PackedPod>) -> Entry {
        let mut book = self.lock();
        let record = book.entry(pod.uid().to_owned()).or_insert_with(|| Record::new(Arc::clone(pod)));
        record.kept = Arc::clone(pod);
        record.open()
    }

    /// Changes a record, if it is still there.
    pub fn change<T>(&self, uid: &str, change: impl FnOnce(&mut Record) -> T) -> Option<T> {
        self.lock().get_mut(uid).map(change)
    }

    /// A pod by UID.
    pub fn get(&self, uid: &str) -> Option<Entry> {
        self.lock().get(uid).map(Record::open)
    }

    /// A pod by namespace and name; the youngest if there were several.
    pub fn find(&self, wanted: &Key) -> Option<Entry> {
        let book = self.lock();
        let found = book.values().filter(|record| record.kept.is(wanted)).map(Record::open);
        found.max_by_key(|entry| entry.pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
    }

    /// Entries of this name that are of another pod than `current`.
    pub fn others(&self, wanted: &Key, current: Option<&str>) -> Vec<Entry> {
        let book = self.lock();
        let other = |record: &&Record| record.kept.is(wanted) && Some(record.kept.uid()) != current;
        book.values().filter(other).map(Record::open).collect()
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// The pods the other side is asked about: those it has and that have not ended.
    pub fn asked(&self) -> Vec<wire::PodRef> {
        let book = self.lock();
        let mut asked: Vec<wire::PodRef> = book
            .values()
            .filter(|record| record.memory.remote == Remote::Present && !record.memory.ended)
            .map(|record| record.kept.reference())
            .filter(|pod| !is_final(&pod.status.phase))
            .collect();
        // Some cache by what was asked: the same question in the same order.
        asked.sort_by(|a, b| a.metadata.uid.cmp(&b.metadata.uid));
        asked
    }

    /// Takes what was told; `asked` are those an answer was due for. Returns whose state is news.
    pub fn tell(&self, told: Vec<wire::PodStatus>, asked: &[wire::PodRef], now: Instant) -> Vec<Key> {
        let mut book = self.lock();
        let mut news = Vec::new();
        let mut heard = Vec::new();
        for status in told {
            let uid = if status.uid.is_empty() {
                // Peers of 2023 tell names only.
                let named = (status.namespace.clone(), status.name.clone());
                book.values().find(|record| record.kept.is(&named)).map(|record| record.kept.uid().to_owned())
            } else {
                Some(status.uid.clone())
            };
            let Some(record) = uid.as_ref().and_then(|uid| book.get_mut(uid)) else { continue };
            heard.extend(uid);
            let silent = status.containers.is_empty() && status.init_containers.is_empty();
            let told = Some(PackedStatus::new(&status));
            if silent || (record.told == told && record.unheard.is_none()) {
                continue;
            }
            record.told = told;
            record.unheard = None;
            news.push(record.kept.key());
        }
        let heard: HashSet<String> = heard.into_iter().collect();
        for silent in asked.iter().filter(|asked| !heard.contains(&asked.metadata.uid)) {
            if let Some(record) = book.get_mut(&silent.metadata.uid)
                && record.memory.remote == Remote::Present
            {
                record.unheard.get_or_insert(now);
                news.push(record.kept.key());
            }
        }
        news
    }

    /// All pods.
    pub fn all(&self) -> Vec<Entry> {
        self.lock().values().map(Record::open).collect()
    }

    /// Namespace and name of all pods.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().values().map(|record| record.kept.key()).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerStatus;

    use super::*;

    fn pod(name: &str, uid: &str) -> Arc<PackedPod> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        Arc::new(PackedPod::new(pod))
    }

    #[test]
    fn news_are_told_once_and_silence_is_noticed() {
        let (book, now) = (Book::default(), Instant::now());
        book.see(&pod("a", "1"));
        book.see(&pod("b", "2"));
        for uid in ["1", "2"] {
            book.change(uid, |entry| entry.memory.remote = Remote::Present);
        }
        let asked = book.asked();
        assert_eq!(asked.len(), 2);
        let said = |uid: &str, name: &str| wire::PodStatus {
            uid: uid.into(),
            name: name.into(),
            namespace: "ns".into(),
            containers: vec![ContainerStatus::default()],
            ..Default::default()
        };
        let key = |name: &str| ("ns".to_owned(), name.to_owned());
        assert_eq!(book.tell(vec![said("1", "a"), said("", "b")], &asked, now), [key("a"), key("b")]);
        assert_eq!(book.tell(vec![said("1", "a"), said("", "b")], &asked, now), []);
        assert_eq!(book.tell(vec![said("1", "a")], &asked, now), [key("b")]);
        assert_eq!(book.get("2").unwrap().record.unheard, Some(now));
        assert_eq!(book.tell(vec![said("", "b")], &[], now), [key("b")]);
        assert_eq!(book.get("2").unwrap().record.unheard, None);
    }

    #[test]
    fn a_successor_of_the_same_name_is_another_pod() {
        let book = Book::default();
        book.see(&pod("a", "1"));
        book.see(&pod("a", "2"));
        let key = ("ns".to_owned(), "a".to_owned());
        let others: Vec<String> = book.others(&key, Some("2")).iter().map(|e| e.uid().to_owned()).collect();
        assert_eq!(others, ["1"]);
        assert_eq!(book.others(&key, None).len(), 2);
    }
}
