//! The tag service: the whole hierarchy in memory, every change in the store first.
//!
//! One process has the store for itself (memory, redb), or several share it (Redis). When it is shared,
//! each change also moves a counter and leaves its writes in a log, so that the others replay only what
//! they missed. A change meets the counter as a condition: whoever was behind catches up and decides anew.
//! [`Tags::follow`] is the task that keeps a reader of a shared store up to date.

mod far;
mod leaving;
mod news;
mod records;
mod seed;
mod today;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tarbet_store::{Change, Store};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::plan::tags::{Graph, Mapping, TagError, WhatIf, Write};
use crate::plan::target;
use far::{Far, FarChange};
use leaving::Leaving;
use news::News;
use records::{Records, Seen};

pub use far::{RemoteTags, TagWire};
pub use news::Touched;

/// Writes in one commit: a removal of a large group is cut into several, each of which leaves sound tags.
const CHUNK: usize = 200;

/// How long it is usually known who followed a tag that is deleted.
pub const SUBSCRIPTIONS_KEPT: Duration = Duration::from_mins(1);

/// Whether other processes may change the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody else.
    Alone,
    /// Others do.
    Shared,
}

/// The tags. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Tags(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    graph: RwLock<Graph>,
    leaving: std::sync::Mutex<Leaving>,
    /// How long it is known who followed a tag that is deleted.
    subscriptions_kept: Duration,
    /// Held over deciding, committing and applying, so that each decision sees all before it.
    writer: Mutex<Option<Seen>>,
    kept: Kept,
    /// Changes that whoever follows tags has not heard of yet.
    news: News,
}

/// Where the tags are kept.
#[derive(Debug)]
enum Kept {
    /// In our store.
    Here(Records),
    /// In another process. One reads at a time, so that nobody writes older news over newer.
    There(Far, Mutex<()>),
}

/// What a change touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    /// Whether anything is different now.
    pub changed: bool,
    /// Those whose permit lists may have to follow: subscribers of the tag and of all tags above it.
    pub affected: BTreeSet<String>,
    /// The tags that stand for something else now, without those above them.
    pub touched: BTreeSet<String>,
}

impl Tags {
    /// Reads all tags from the store.
    pub async fn open(store: &Store, sharing: Sharing) -> Result<Self, Error> {
        Self::open_keeping(store, sharing, SUBSCRIPTIONS_KEPT).await
    }

    /// The same; who followed a tag that is deleted is known for so long.
    pub async fn open_keeping(store: &Store, sharing: Sharing, kept: Duration) -> Result<Self, Error> {
        let records = Records::new(store, sharing, kept)?;
        let (graph, leaving, seen) = records.load().await?;
        tracing::info!(tags = graph.len(), "Tags are loaded.");
        Ok(Self(Arc::new(Inner {
            graph: RwLock::new(graph),
            leaving: std::sync::Mutex::new(leaving),
            subscriptions_kept: kept,
            writer: Mutex::new(seen),
            kept: Kept::Here(records),
            news: News::default(),
        })))
    }

    /// The tags of a service elsewhere.
    pub fn remote(config: &RemoteTags) -> Result<Self, Error> {
        let kept = Kept::There(Far::new(config)?, Mutex::default());
        let news = News::default();
        Ok(Self(Arc::new(Inner {
            graph: RwLock::default(),
            leaving: std::sync::Mutex::default(),
            subscriptions_kept: SUBSCRIPTIONS_KEPT,
            writer: Mutex::default(),
            kept,
            news,
        })))
    }

    /// Reads these tags, all below them and who follows them, where they are kept elsewhere. What is asked of
    /// them afterwards is as true as this.
    pub async fn look<S: AsRef<str>>(&self, names: &[S]) -> Result<(), Error> {
        let Kept::There(far, looking) = &self.0.kept else { return Ok(()) };
        let _turn = looking.lock().await;
        self.read_below(far, names).await
    }

    async fn read_below<S: AsRef<str>>(&self, far: &Far, names: &[S]) -> Result<(), Error> {
        let names: Vec<&str> =
            names.iter().map(AsRef::as_ref).filter(|name| target::parse(name).is_none()).collect();
        let writes = far.below(&names, |told| far::agree(&self.graph(), told)).await?;
        self.apply(&writes);
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        self.note_followers(far, &names).await
    }

    /// The same with all tags above this one, where the service can list them.
    pub async fn look_above(&self, tag: &str) -> Result<(), Error> {
        let Kept::There(far, looking) = &self.0.kept else { return Ok(()) };
        let _turn = looking.lock().await;
        self.read_all(far).await?;
        self.read_below(far, &[tag]).await?;
        let above = self.graph().names_above(tag);
        self.note_followers(far, &above).await
    }

    /// All tags, where they are kept elsewhere and can be listed.
    pub async fn look_all(&self) -> Result<(), Error> {
        let Kept::There(far, looking) = &self.0.kept else { return Ok(()) };
        let _turn = looking.lock().await;
        self.read_all(far).await
    }

    async fn read_all(&self, far: &Far) -> Result<(), Error> {
        let Some(all) = far.list().await? else { return Ok(()) };
        let told: HashSet<&str> = all.iter().map(|tag| tag.name.as_str()).collect();
        let gone: Vec<Mapping> = {
            let graph = self.graph();
            let known = graph.list().into_iter().filter(|known| !told.contains(known.name.as_str()));
            known.map(|known| Mapping { name: known.name, ..Mapping::default() }).collect()
        };
        let writes: Vec<Write> = {
            let graph = self.graph();
            all.iter().chain(&gone).flat_map(|told| far::agree(&graph, told)).collect()
        };
        self.apply(&writes);
        Ok(())
    }

    async fn note_followers(&self, far: &Far, names: &[String]) -> Result<(), Error> {
        for (tag, now) in far.followers(names).await? {
            let before: BTreeSet<String> = self.subscribers(&tag).into_iter().collect();
            let now: BTreeSet<String> = now.into_iter().collect();
            let mut writes: Vec<Write> =
                before.difference(&now).map(|who| Write::Unsubscribe(tag.clone(), who.clone())).collect();
            writes.extend(now.difference(&before).map(|who| Write::Subscribe(tag.clone(), who.clone())));
            self.apply(&writes);
        }
        Ok(())
    }

    /// Whether the tags can be listed: the first generation's wire has no way to.
    pub fn can_list(&self) -> bool {
        !matches!(&self.0.kept, Kept::There(Far::Seed(_), _))
    }

    /// Unsubscribes those whose tag was deleted long enough ago. In the store their rows end by themselves.
    fn let_go(&self) {
        let over = self.leaving().over(Instant::now());
        if !over.is_empty() {
            let mut graph = self.0.graph.write().unwrap_or_else(PoisonError::into_inner);
            for write in &over {
                graph.apply(write);
            }
        }
    }

    fn leaving(&self) -> std::sync::MutexGuard<'_, Leaving> {
        self.0.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn graph(&self) -> RwLockReadGuard<'_, Graph> {
        // Writes are applied one field at a time; a panic between two leaves nothing that a reader could trip on.
        self.0.graph.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many tags there are.
    pub fn len(&self) -> usize {
        self.graph().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.graph().is_empty()
    }

    /// Whether the tag exists.
    pub fn exists(&self, tag: &str) -> bool {
        self.graph().exists(tag)
    }

    /// The tag, if it exists.
    pub fn get(&self, tag: &str) -> Option<Mapping> {
        self.graph().get(tag)
    }

    /// The leaves and addresses it stands for.
    pub fn resolve(&self, tag: &str) -> Vec<Mapping> {
        self.graph().resolve(tag)
    }

    /// The addresses it stands for.
    pub fn addresses(&self, tag: &str) -> Vec<String> {
        self.graph().addresses(tag)
    }

    /// All tags by name.
    pub fn list(&self) -> Vec<Mapping> {
        self.graph().list()
    }

    /// Who follows exactly this tag.
    pub fn subscribers(&self, tag: &str) -> Vec<String> {
        self.let_go();
        self.graph().subscribers(tag)
    }

    /// Whether the subscriber follows exactly this tag.
    pub fn is_subscribed(&self, tag: &str, subscriber: &str) -> bool {
        self.let_go();
        self.graph().is_subscribed(tag, subscriber)
    }

    /// Who follows it or any tag above it.
    pub fn affected(&self, tag: &str) -> BTreeSet<String> {
        self.graph().affected(tag)
    }

    /// The tag and all that contain it.
    pub fn names_above(&self, tag: &str) -> Vec<String> {
        self.graph().names_above(tag)
    }

    /// The tag of a resource, by what its cloud calls it; its name begins with `prefix`.
    pub fn leaf_of(&self, prefix: &str, uri: &str) -> Option<Mapping> {
        self.graph().leaf_of(prefix, uri)
    }

    /// Looks at what tags would stand for after a change.
    pub fn what_if<T>(
        &self,
        change: impl Fn(&Graph) -> Result<Vec<Write>, TagError>,
        look: impl FnOnce(&WhatIf<'_>) -> T,
    ) -> Result<T, Error> {
        let graph = self.graph();
        let writes = change(&graph)?;
        Ok(look(&graph.what_if(&writes)))
    }

    /// Whether setting it would change anything.
    pub fn would_set(&self, tag: &Mapping) -> Result<bool, Error> {
        Ok(!self.graph().set(tag)?.is_empty())
    }

    /// Makes or changes a tag.
    pub async fn set(&self, tag: &Mapping) -> Result<Changed, Error> {
        let decide = |graph: &Graph| {
            let mut writes = graph.set(tag)?;
            if !writes.is_empty() {
                // Deleted only just now: whoever followed it goes on.
                let again = self.leaving().of(&tag.name).into_iter();
                writes.extend(again.map(|who| Write::Subscribe(tag.name.clone(), who)));
            }
            Ok(writes)
        };
        self.change(&tag.name, &FarChange::Set(tag), decide).await
    }

    /// Takes a member out of a group.
    pub async fn delete_member(&self, parent: &str, child: &str) -> Result<Changed, Error> {
        let there = FarChange::DeleteMember(parent, child);
        self.change(parent, &there, |graph| graph.delete_member(parent, child)).await
    }

    /// Removes a tag with all that refers to it.
    pub async fn delete(&self, tag: &str) -> Result<Changed, Error> {
        self.change(tag, &FarChange::Delete(tag), |graph| graph.delete(tag)).await
    }

    /// Notes a subscriber.
    pub async fn subscribe(&self, tag: &str, subscriber: &str) -> Result<Changed, Error> {
        let there = FarChange::Subscribe(tag, subscriber);
        self.change(tag, &there, |graph| graph.subscribe(tag, subscriber)).await
    }

    /// Forgets a subscriber.
    pub async fn unsubscribe(&self, tag: &str, subscriber: &str) -> Result<Changed, Error> {
        let there = FarChange::Unsubscribe(tag, subscriber);
        self.change(tag, &there, |graph| Ok(graph.unsubscribe(tag, subscriber))).await
    }

    /// Forgets all who followed a tag that is deleted, because they were told.
    pub async fn forget_subscribers(&self, tag: &str) -> Result<Changed, Error> {
        let who = self.subscribers(tag);
        let decide = |graph: &Graph| {
            let all = if graph.exists(tag) { Vec::new() } else { graph.subscribers(tag) };
            Ok(all.into_iter().map(|who| Write::Unsubscribe(tag.to_owned(), who)).collect())
        };
        self.change(tag, &FarChange::Forget(tag, &who), decide).await
    }

    async fn change(
        &self,
        tag: &str,
        there: &FarChange<'_>,
        decide: impl Fn(&Graph) -> Result<Vec<Write>, TagError>,
    ) -> Result<Changed, Error> {
        let mut seen = self.0.writer.lock().await;
        self.let_go();
        let records = match &self.0.kept {
            Kept::Here(records) => records,
            Kept::There(far, _) => {
                self.look_above(tag).await?;
                let (writes, affected) = {
                    let graph = self.graph();
                    (decide(&graph)?, graph.affected(tag))
                };
                let changed = !writes.is_empty();
                if changed {
                    far.make(there).await?;
                    self.apply(&writes);
                }
                return Ok(Changed { changed, affected, touched: news::touched(&writes) });
            }
        };
        let mut outcome = Changed::default();
        'decide: loop {
            let (writes, affected) = {
                let graph = self.graph();
                (decide(&graph), graph.affected(tag))
            };
            let writes = match writes {
                Ok(writes) => writes,
                // A removal in several parts, of which somebody else made the last: it is done.
                Err(TagError::Unknown(_)) if outcome.changed => return Ok(outcome),
                Err(error) => return Err(error.into()),
            };
            outcome.affected.extend(affected);
            for part in writes.chunks(CHUNK) {
                match records.commit(part, seen.as_ref()).await {
                    Ok(now) => {
                        self.apply(part);
                        *seen = now;
                        outcome.changed = true;
                        outcome.touched.extend(news::touched(part));
                    }
                    Err(tarbet_store::Error::Conflict { .. }) => {
                        self.catch_up(records, &mut seen).await?;
                        continue 'decide;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(outcome);
        }
    }

    fn apply(&self, writes: &[Write]) {
        let until = Instant::now() + self.0.subscriptions_kept;
        {
            let mut leaving = self.leaving();
            for write in writes {
                leaving.learn(write, until);
            }
        }
        let mut graph = self.0.graph.write().unwrap_or_else(PoisonError::into_inner);
        for write in writes {
            graph.apply(write);
        }
    }

    async fn catch_up(&self, records: &Records, seen: &mut Option<Seen>) -> Result<(), Error> {
        match records.missed(seen.as_ref()).await? {
            records::Missed::Nothing => {}
            records::Missed::Writes(writes, now) => {
                self.apply(&writes);
                *seen = Some(now);
                self.0.news.add(Touched::Tags(news::touched(&writes)));
            }
            records::Missed::TooMuch => {
                let (graph, leaving, now) = records.load().await?;
                *self.leaving() = leaving;
                *self.0.graph.write().unwrap_or_else(PoisonError::into_inner) = graph;
                *seen = now;
                self.0.news.add(Touched::Everything);
            }
        }
        Ok(())
    }

    /// Lets whoever follows tags in this process hear of a change that it did not make itself.
    fn tell(&self, changed: Changed) {
        self.0.news.add(Touched::Tags(changed.touched));
    }

    /// Waits for changes by other hands: over the services here, or by other processes on the same store.
    pub async fn heard(&self) -> Touched {
        self.0.news.heard().await
    }

    /// Reads what others changed since the last look.
    pub async fn refresh(&self) -> Result<(), Error> {
        let Kept::Here(records) = &self.0.kept else { return Ok(()) };
        let mut seen = self.0.writer.lock().await;
        self.catch_up(records, &mut seen).await
    }

    /// Whether all that changed of the counter is known already.
    async fn made(&self, changes: &[Change]) -> bool {
        let seen = self.0.writer.lock().await;
        changes.iter().all(|change| match change {
            Change::Put(entry) => seen.as_ref().is_some_and(|seen| seen.covers(entry.revision)),
            Change::Deleted(_) => false,
        })
    }

    /// Keeps up with other processes until `stop`. Returns at once where nobody else writes.
    pub async fn follow(&self, stop: CancellationToken) {
        let watch = match &self.0.kept {
            Kept::Here(records) => records.watch(),
            Kept::There(..) => None,
        };
        let Some(mut watch) = watch else {
            return stop.cancelled().await;
        };
        loop {
            let hint = tokio::select! {
                hint = watch.next() => hint,
                () = stop.cancelled() => return,
            };
            let outcome = match hint {
                // Most often it was this process: those who write need not wait for a look then.
                Ok(changes) if self.made(&changes).await => Ok(()),
                Ok(_) => self.refresh().await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                tracing::warn!(error = %tarbet_telemetry::problem::chain(&error), "Changes of other tag services could not be read.");
            }
        }
    }

    /// Today's gRPC service.
    pub fn today(
        &self,
    ) -> crate::wire::tags::tag_service_server::TagServiceServer<
        impl crate::wire::tags::tag_service_server::TagService + use<>,
    > {
        today::service(self.clone())
    }

    /// The first generation's gRPC service. It has the same path, so it needs a port of its own.
    pub fn seed(
        &self,
    ) -> crate::wire::seed_tags::tag_service_server::TagServiceServer<
        impl crate::wire::seed_tags::tag_service_server::TagService + use<>,
    > {
        seed::service(self.clone())
    }
}
