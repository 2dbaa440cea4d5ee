//! A remote cluster: the requests that are watched there, and those that are only seen off.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client};
use tarbet_cluster::{Change, Class, Mirror, Watch, class, describe, watch};
use tokio::sync::{Notify, watch as channel};
use tokio_util::sync::CancellationToken;

use crate::crd::InternalRequest;
use crate::error::JobError;
use crate::request::Request;
use crate::scope::{Ledger, Past, Scope, Scopes};
use crate::signal::Signal;

/// How often a namespace that is no longer allowed is asked for again where we have no rights any more.
const REFUSED: Duration = Duration::from_mins(1);
/// Between two tries to find out where requests of ours are.
const AGAIN: Duration = Duration::from_secs(1);
/// Requests that are read at once when all of them are looked through.
const PAGE: u32 = 100;

/// Who is told what is seen of a remote.
pub(crate) trait Owner: Sync {
    fn told(&self, remote: &RemoteSide, change: Change<Request>);
    /// Whether a request in a namespace that is no longer allowed waits for something only we can do.
    fn needs_us(&self, request: &Request) -> bool;
}

/// What is known of a remote before it is watched.
pub(crate) struct Before {
    pub(crate) ledger: Ledger,
    /// The namespaces whose requests have a run.
    pub(crate) runs: BTreeSet<String>,
}

/// A remote cluster and what is seen of it.
pub(crate) struct RemoteSide {
    pub(crate) name: Arc<str>,
    pub(crate) client: Client,
    pub(crate) requests: Mirror<Request>,
    scope: RwLock<Scope>,
    // Counts whatever may have been the last that a namespace held.
    moves: channel::Sender<u64>,
}

impl RemoteSide {
    pub(crate) fn new(name: &str, client: Client) -> Self {
        let (scope, moves) = (RwLock::new(Scope::All), channel::Sender::new(0));
        Self { name: name.into(), client, requests: Mirror::default(), scope, moves }
    }

    /// The requests of a namespace, or of all. Dynamic, so that none is too odd to be read.
    pub(crate) fn api(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<InternalRequest>(&());
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }

    /// The request as it is now; by a list, since that is all the rights we have there.
    pub(crate) async fn read(&self, namespace: &str, name: &str) -> Result<Option<Request>, JobError> {
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = self.api(Some(namespace)).list(&only).await;
        let found = found.map_err(|error| JobError::Remote("list the request", error))?;
        Ok(found.items.into_iter().next().map(|object| Request::keep(&self.name, object)))
    }

    /// Whether a namespace is no longer watched but for what is left in it.
    pub(crate) fn leaves(&self, namespace: &str) -> bool {
        !self.scope.read().unwrap_or_else(PoisonError::into_inner).holds(namespace)
    }

    /// Takes over what a write of our own made of a request.
    pub(crate) fn wrote(&self, namespace: &str, name: &str, now: Request) {
        self.requests.refresh(namespace, name, now);
        self.moved();
    }

    fn moved(&self) {
        self.moves.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Watches what `scopes` says until `stop`, and sees off what it no longer says.
    pub(crate) async fn watch(
        &self,
        mut scopes: channel::Receiver<Scopes>,
        Before { mut ledger, runs }: Before,
        signal: &Signal,
        owner: &impl Owner,
        stop: CancellationToken,
    ) {
        let tell = |change| owner.told(self, change);
        let remembered = tokio::select! {
            () = stop.cancelled() => return,
            remembered = self.remembered(&mut ledger) => remembered,
        };
        let mut everywhere = remembered == Some(Past::Everywhere);
        let mut known = runs;
        if let Some(Past::In(names)) = remembered {
            known.extend(names);
        }
        while !stop.is_cancelled() {
            let scope = scopes.borrow_and_update().at(&self.name);
            if let Scope::Only(allowed) = &scope {
                if std::mem::take(&mut everywhere) {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        left = self.left_anywhere(owner) => known.extend(left),
                    }
                }
                known.extend(allowed.iter().cloned());
                ledger.write(Past::In(known.clone())).await;
            } else {
                everywhere = true;
                ledger.write(Past::Everywhere).await;
            }
            let leaving = self.take_up(&scope, &known, owner);
            let counted: Vec<Option<String>> = match &scope {
                Scope::All => vec![None],
                Scope::Only(allowed) => allowed.iter().cloned().map(Some).collect(),
            };
            signal.expects(counted.iter().map(|namespace| namespace.clone().unwrap_or_default()));
            if counted.is_empty() {
                self.requests.mark_listed();
                tell(Change::Listed);
            }
            let watches = join_all(counted.into_iter().map(|namespace| {
                let heard = namespace.clone().unwrap_or_default();
                self.watch_in(namespace, move |change| tell(signal.heard(change, &heard)), stop.clone())
            }));
            let mut off: FuturesUnordered<_> =
                leaving.into_iter().map(|namespace| self.see_off(namespace, owner, &stop)).collect();
            let all = async {
                watches.await;
                stop.cancelled().await;
            };
            let changed = async {
                loop {
                    if scopes.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                    if scopes.borrow_and_update().at(&self.name) != scope {
                        return;
                    }
                }
            };
            let (mut all, mut changed) = (std::pin::pin!(all), std::pin::pin!(changed));
            loop {
                tokio::select! {
                    () = &mut all => break,
                    () = &mut changed => {
                        tracing::info!(remote = %self.name, "The watched namespaces changed.");
                        break;
                    }
                    Some(namespace) = off.next() => {
                        tracing::info!(remote = %self.name, namespace, "Nothing of ours is left in a namespace that is no longer allowed.");
                        self.requests.forget(&namespace);
                        known.remove(&namespace);
                        ledger.write(Past::In(known.clone())).await;
                    }
                }
            }
        }
    }

    /// What an earlier controller left word of.
    async fn remembered(&self, ledger: &mut Ledger) -> Option<Past> {
        loop {
            match ledger.read().await {
                Ok(past) => return past,
                Err(error) => {
                    tracing::warn!(remote = %self.name, cause = %describe(&error), "The namespaces watched before cannot be read.");
                    if class(&error) == Class::Refused {
                        return None;
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The namespaces with requests that need us, after all of them were watched.
    async fn left_anywhere(&self, owner: &impl Owner) -> BTreeSet<String> {
        loop {
            match self.look_through(owner).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::warn!(remote = %self.name, cause = %describe(&error), "Requests in namespaces that are no longer watched cannot be looked for.");
                    if class(&error) == Class::Refused {
                        let needs = |namespace: &str, request: &Request| {
                            owner.needs_us(request).then(|| namespace.to_owned())
                        };
                        return self
                            .requests
                            .select(|namespace, _, request| needs(namespace, request))
                            .into_iter()
                            .collect();
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn look_through(&self, owner: &impl Owner) -> kube::Result<BTreeSet<String>> {
        let mut left = BTreeSet::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.api(None).list(&params).await?;
            let requests = page.items.into_iter().map(|object| Request::keep(&self.name, object));
            left.extend(
                requests.filter(|request| owner.needs_us(request)).map(|request| request.key.namespace),
            );
            match page.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => params.continue_token = Some(more),
                None => return Ok(left),
            }
        }
    }

    /// Makes this the scope. Returns the namespaces to see off, and tells again of what they hold.
    fn take_up(&self, scope: &Scope, known: &BTreeSet<String>, owner: &impl Owner) -> BTreeSet<String> {
        *self.scope.write().unwrap_or_else(PoisonError::into_inner) = scope.clone();
        let Scope::Only(allowed) = scope else { return BTreeSet::new() };
        let seen: BTreeSet<String> =
            self.requests.select(|namespace, _, _| Some(namespace.to_owned())).into_iter().collect();
        for gone in seen.difference(known) {
            self.requests.forget(gone);
        }
        let leaving: BTreeSet<String> = known.difference(allowed).cloned().collect();
        let left = self.requests.select(|namespace, _, request| {
            (leaving.contains(namespace) && owner.needs_us(request)).then(|| Arc::clone(request))
        });
        for request in left {
            owner.told(self, Change::Applied(request));
        }
        leaving
    }

    async fn watch_in(
        &self,
        namespace: Option<String>,
        tell: impl Fn(Change<Request>),
        stop: CancellationToken,
    ) {
        let api = self.api(namespace.as_deref());
        let what = Watch { api, config: watcher::Config::default(), namespace };
        watch(what, self.requests.clone(), |object| Some(Request::keep(&self.name, object)), tell, stop)
            .await;
    }

    /// Watches a namespace that is no longer allowed until nothing of ours is left there. Its
    /// troubles are its own: they say nothing about the cluster.
    async fn see_off(&self, namespace: String, owner: &impl Owner, stop: &CancellationToken) -> String {
        loop {
            let (listed, failing) = (AtomicBool::new(false), Notify::new());
            let hear = |change: Change<Request>| {
                match &change {
                    Change::Listed => listed.store(true, Ordering::Relaxed),
                    Change::Failing(_) => failing.notify_one(),
                    _ => {}
                }
                owner.told(self, change);
                self.moved();
            };
            tokio::select! {
                () = self.watch_in(Some(namespace.clone()), hear, stop.clone()) => std::future::pending().await,
                () = self.emptied(&namespace, &listed, owner) => return namespace,
                () = self.refused(&namespace, &failing) => {
                    tracing::warn!(remote = %self.name, namespace, "Requests in a namespace that is no longer allowed cannot be let go for want of rights; it is asked again.");
                }
            }
            // Once we are let in again everything is listed anew.
            self.requests.forget(&namespace);
            tokio::time::sleep(REFUSED).await;
        }
    }

    /// Returns when a namespace holds nothing of ours.
    async fn emptied(&self, namespace: &str, listed: &AtomicBool, owner: &impl Owner) {
        let mut moves = self.moves.subscribe();
        loop {
            let ours = |of: &str, request: &Request| of == namespace && owner.needs_us(request);
            let left = || self.requests.select(|of, _, request| ours(of, request).then_some(()));
            if listed.load(Ordering::Relaxed) && left().is_empty() {
                return;
            }
            if moves.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns when a watch fails because we may not see the namespace.
    async fn refused(&self, namespace: &str, failing: &Notify) {
        loop {
            failing.notified().await;
            let asked = self.api(Some(namespace)).list_metadata(&ListParams::default().limit(1)).await;
            if asked.is_err_and(|error| class(&error) == Class::Refused) {
                return;
            }
        }
    }
}
