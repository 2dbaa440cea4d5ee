//! Makes the cluster as a plan says, with as few writes as possible: none if it is so already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tarbet_cluster::{Class, Newer, Reached};
use tokio::time::Instant;

use crate::live::Live;
use crate::metrics::{MeshMetrics, Write};
use crate::model::Key;
use crate::observe::{Lean, Mirrors};
use crate::plan::{Flavour, Kind, Object, Owners, Plan, Print};

/// The name under which fields are owned.
pub(crate) const MANAGER: &str = "tarbet-mesh";
/// Writes at once: enough to keep an API server busy, few enough to leave it room for others.
const AT_ONCE: usize = 32;
/// How long our own write counts although the watch has not told of it.
const TRUSTED: Duration = Duration::from_secs(30);

type Place = (Kind, String, String);
type Written<'a> = (&'a Object, Result<Live, String>);

/// Writes to one cluster.
pub(crate) struct Applier {
    client: Client,
    mirrors: Mirrors,
    metrics: MeshMetrics,
    reached: Reached,
    /// What was written and not yet seen by a watch: nothing for what was deleted.
    written: Mutex<BTreeMap<Place, (Instant, Option<Live>)>>,
    /// What the cluster makes of what is written, where it does not take it as it is.
    settled: Mutex<BTreeMap<Place, (Print, Print)>>,
}

/// What could not be made so.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Kind, namespace and name.
    pub(crate) place: Place,
    /// What the cluster said.
    pub(crate) cause: String,
}

impl Applier {
    pub(crate) fn new(client: Client, mirrors: Mirrors, metrics: MeshMetrics, reached: Reached) -> Self {
        Self { client, mirrors, metrics, reached, written: Mutex::default(), settled: Mutex::default() }
    }

    /// Makes it so, and returns what could not be. `owners` learns the uids of ImportedServices.
    pub(crate) async fn apply(&self, plan: &Plan, owners: &mut Owners) -> Vec<Failure> {
        self.forget_what_was_seen();
        let mut failures = Vec::new();
        // Owners first: what they own needs their uids.
        let first = plan.objects.iter().take_while(|object| object.kind == Kind::ImportedService).count();
        let (imported, others) = plan.objects.split_at(first);
        let (imported, others): (Vec<&Object>, Vec<&Object>) =
            (imported.iter().map(AsRef::as_ref).collect(), others.iter().map(AsRef::as_ref).collect());
        for object in &imported {
            if let Some(live) = self.live(object.kind, &object.namespace, &object.name) {
                owners.imported.insert(owner_key(object), live.uid().to_owned());
            }
        }
        for (object, written) in self.write_all(imported, owners).await {
            match written {
                Ok(live) => {
                    owners.imported.insert(owner_key(object), live.uid().to_owned());
                }
                Err(cause) => failures.push(self.failed(object, cause)),
            }
        }
        for (object, written) in self.write_all(others, owners).await {
            if let Err(cause) = written {
                failures.push(self.failed(object, cause));
            }
        }
        // What is new stands before what is old goes: callers always have one of them.
        failures.extend(self.sweep(plan).await);
        failures
    }

    /// What is known of an object: by the watch, or by our own newer write.
    pub(crate) fn live(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Live>> {
        let seen = self.mirrors.made(kind).get(namespace, name);
        let written = self.lock_written();
        if written.is_empty() {
            return seen;
        }
        match written.get(&(kind, namespace.to_owned(), name.to_owned())) {
            Some((_, Some(live))) if seen.as_ref().is_none_or(|seen| seen.version() < live.version()) => {
                Some(Arc::new(live.clone()))
            }
            Some((_, None)) => None,
            _ => seen,
        }
    }

    /// Writes those that are not so yet. Boxed: the compiler cannot see that borrowed objects in a
    /// stream of futures may cross threads.
    fn write_all<'a, 'o: 'a>(
        &'a self,
        objects: Vec<&'o Object>,
        owners: &'a Owners,
    ) -> BoxFuture<'a, Vec<Written<'o>>> {
        let mut writes: Vec<BoxFuture<'a, Written<'o>>> = Vec::new();
        for object in objects {
            if !self.is_so(object, owners) {
                writes.push(async move { (object, self.write(object, owners).await) }.boxed());
            }
        }
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).collect().boxed()
    }

    fn is_so(&self, object: &Object, owners: &Owners) -> bool {
        let Some(live) = self.live(object.kind, &object.namespace, &object.name) else { return false };
        let owned = |uid: &str| live.owners.iter().any(|owner| owner == uid);
        !live.going
            && live.ours
            && live.mesh == object.mesh
            && owners.uid(object).is_none_or(owned)
            && self.says(object, &live)
    }

    fn says(&self, object: &Object, live: &Live) -> bool {
        let wanted = object.spec.print();
        let place = || (object.kind, object.namespace.clone(), object.name.clone());
        live.spec == wanted || self.lock_settled().get(&place()) == Some(&(wanted, live.spec))
    }

    async fn write(&self, object: &Object, owners: &Owners) -> Result<Live, String> {
        let Object { kind, namespace, name, .. } = object;
        let words = |error: kube::Error| tarbet_cluster::describe(&error);
        let api: Api<Lean> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource());
        let owner = owners.of(object).filter(|owner| !owner.uid.is_empty());
        let manifest = object.manifest(Flavour::Resources, owner.as_ref());
        let unreadable = || "the answer of the cluster has no identity".to_owned();
        let place = (*kind, namespace.clone(), name.clone());
        let wanted = object.spec.print();
        self.count(kind.name(), "apply");
        let Lean(answer) = tarbet_cluster::apply(&api, name, MANAGER, &manifest).await.map_err(words)?;
        self.reached.at("after a write");
        let mut live = Live::of(*kind, &answer).ok_or_else(unreadable)?;
        if live.spec != wanted {
            // Somebody added fields of their own; those stay with an apply and go with this.
            let patch = json!([
                { "op": "test", "path": "/metadata/uid", "value": answer.uid() },
                { "op": "replace", "path": "/spec", "value": object.spec.value() },
            ]);
            let patch = Patch::Json::<()>(serde_json::from_value(patch).map_err(|error| error.to_string())?);
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            self.count(kind.name(), "replace");
            let Lean(answer) = api.patch(name, &params, &patch).await.map_err(words)?;
            self.reached.at("after a write");
            live = Live::of(*kind, &answer).ok_or_else(unreadable)?;
        }
        if live.spec != wanted {
            // The cluster itself changes what is written; asking again and again would not help.
            tracing::warn!(
                kind = kind.name(),
                namespace,
                name,
                "The cluster changes an object while it is written."
            );
            self.lock_settled().insert(place.clone(), (wanted, live.spec));
        }
        // Now it is as it must be, so nobody needs to be woken when the watch tells the same.
        self.mirrors.made(*kind).refresh(namespace, name, live.clone());
        self.note_written(place, &live);
        Ok(live)
    }

    /// Deletes what is ours and not in the plan.
    async fn sweep(&self, plan: &Plan) -> Vec<Failure> {
        let wanted: BTreeSet<(Kind, &str, &str)> = plan.objects.iter().map(|object| object.place()).collect();
        let mut stale = Vec::new();
        for kind in Kind::ALL {
            stale.extend(self.mirrors.made(kind).select(|namespace, name, live| {
                let held = match kind {
                    Kind::WorkloadEntry => {
                        live.mesh.as_ref().is_some_and(|mesh| plan.unresolved.contains(mesh))
                    }
                    Kind::ServiceEntry => {
                        !plan.held.is_empty() && plan.held.contains(&(namespace.to_owned(), name.to_owned()))
                    }
                    _ => false,
                };
                let stale = live.ours && !live.going && !held && !wanted.contains(&(kind, namespace, name));
                stale.then(|| ((kind, namespace.to_owned(), name.to_owned()), live.uid().to_owned()))
            }));
        }
        let mut deletes: Vec<BoxFuture<'_, Option<Failure>>> = Vec::new();
        for (place, uid) in stale {
            // Already deleted by us, and not yet seen to be gone.
            if self.live(place.0, &place.1, &place.2).is_none() {
                continue;
            }
            let delete = async move {
                let result = self.delete(&place, &uid).await;
                result.err().map(|error| Failure { place, cause: tarbet_cluster::describe(&error) })
            };
            deletes.push(delete.boxed());
        }
        futures::stream::iter(deletes)
            .buffer_unordered(AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    async fn delete(&self, place: &Place, uid: &str) -> Result<(), kube::Error> {
        let (kind, namespace, name) = place;
        let api: Api<Lean> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource());
        let exactly = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
        self.count(kind.name(), "delete");
        match api.delete(name, &params).await {
            Ok(_) => {}
            // Gone already, as when its owner went, or another one by now.
            Err(error) if matches!(tarbet_cluster::class(&error), Class::Missing | Class::Conflict) => {}
            Err(error) => return Err(error),
        }
        self.reached.at("after a write");
        self.note(place.clone(), None);
        Ok(())
    }

    fn failed(&self, object: &Object, cause: String) -> Failure {
        self.metrics.failures.inc();
        Failure { place: (object.kind, object.namespace.clone(), object.name.clone()), cause }
    }

    fn lock_written(&self) -> MutexGuard<'_, BTreeMap<Place, (Instant, Option<Live>)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_settled(&self) -> MutexGuard<'_, BTreeMap<Place, (Print, Print)>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write that is about to be made.
    pub(crate) fn count(&self, kind: &'static str, verb: &'static str) {
        self.reached.at("before a write");
        self.metrics.writes.get_or_create(&Write { kind, verb }).inc();
    }

    /// Takes note of what the cluster answered to a status that was written elsewhere.
    pub(crate) fn note_answer(&self, kind: Kind, answer: &DynamicObject) {
        let Some(live) = Live::of(kind, answer) else { return };
        let (namespace, name) = (answer.namespace().unwrap_or_default(), answer.name_any());
        let mirror = self.mirrors.made(kind);
        // What somebody else changed meanwhile must still be heard of by the watch.
        if mirror.get(&namespace, &name).is_some_and(|known| live.differs_only_in_status(&known)) {
            mirror.refresh(&namespace, &name, live.clone());
        }
        self.note_written((kind, namespace, name), &live);
    }

    /// Takes note of a write that the watch does not know yet. What it does know is not noted, so that
    /// the end of the object is noticed as soon as the watch tells it.
    fn note_written(&self, place: Place, live: &Live) {
        let seen = self.mirrors.made(place.0).get(&place.1, &place.2);
        if seen.is_some_and(|seen| seen.uid() == live.uid() && seen.version() >= live.version()) {
            self.lock_written().remove(&place);
        } else {
            self.note(place, Some(live.clone()));
        }
    }

    fn note(&self, place: Place, live: Option<Live>) {
        self.lock_written().insert(place, (Instant::now(), live));
    }

    /// When our own word counts no more, if there is any that no watch has confirmed: what it is about
    /// may have gone meanwhile, and must be looked at again then.
    pub(crate) fn trusts(&self) -> Option<Duration> {
        (!self.lock_written().is_empty()).then_some(TRUSTED)
    }

    /// Our own word counts only until the watch knows as much, and not for long.
    fn forget_what_was_seen(&self) {
        self.lock_written().retain(|(kind, namespace, name), (at, live)| {
            let seen = self.mirrors.made(*kind).get(namespace, name);
            let told = match (live, seen) {
                (Some(live), Some(seen)) => seen.version() >= live.version(),
                (None, None) => true,
                _ => false,
            };
            !told && at.elapsed() < TRUSTED
        });
    }
}

fn owner_key(object: &Object) -> Key {
    (object.namespace.clone(), object.name.clone())
}
