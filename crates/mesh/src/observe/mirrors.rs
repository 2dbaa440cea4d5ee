//! Copies of everything in the cluster that matters, kept by watches.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service as KubeService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::core::{ApiResource, DeserializeGuard, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tarbet_cluster::{Change, Mirror, Newer, Watch, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lean::Lean;
use super::recall::Recall;
use super::view::View;
use super::{Slice, Workload};
use crate::crd::{
    FederationServiceRules, FederationServiceRulesSpec, FederationServiceRulesStatus, MeshFederation,
    MeshFederationSpec, MeshFederationStatus, SaidBy,
};
use crate::live::{self, Live};
use crate::model::{Labels, Service};
use crate::plan::{Kind, MANAGED_BY, World};

/// How often a kind that the cluster does not serve is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How soon a server that did not answer is asked again.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A kept part of an object.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    uid: String,
    version: u64,
    /// The generation of its spec.
    pub(crate) generation: Option<i64>,
    /// When it was made, in seconds.
    pub(crate) created: i64,
    /// The part.
    pub(crate) value: T,
}

impl<T: PartialEq> Newer for Kept<T> {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn is_as(&self, older: &Self) -> bool {
        self.generation == older.generation && self.created == older.created && self.value == older.value
    }
}

impl<T> Kept<T> {
    /// The part of an object; nothing while it is on its way out.
    fn of<K: Resource>(object: &K, value: T) -> Option<Self> {
        let meta = object.meta();
        if meta.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            uid: object.uid()?,
            version: object.resource_version()?.parse().ok()?,
            generation: meta.generation,
            created: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            value,
        })
    }
}

/// A declaration and what was said about it.
#[derive(Debug, PartialEq)]
pub(crate) struct Declared<S, T> {
    /// What it declares.
    pub(crate) spec: Arc<S>,
    /// What was said.
    pub(crate) status: T,
}

pub(crate) type Federation = Kept<Declared<MeshFederationSpec, MeshFederationStatus>>;
pub(crate) type Rules = Kept<Declared<FederationServiceRulesSpec, FederationServiceRulesStatus>>;

/// Where a change comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// From what others declare and run.
    Given,
    /// From the objects that we make.
    Made,
}

/// All copies. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Mirrors {
    pub(crate) federations: Mirror<Federation>,
    pub(crate) rules: Mirror<Rules>,
    services: Mirror<Kept<Arc<Service>>>,
    namespaces: Mirror<Kept<Arc<Labels>>>,
    slices: Mirror<Kept<Arc<Slice>>>,
    pods: Mirror<Kept<Workload>>,
    /// ServiceExports with the conditions they have.
    pub(crate) exports: Mirror<Kept<Vec<Condition>>>,
    made: BTreeMap<Kind, Mirror<Live>>,
    recall: Recall,
    /// What decisions need of all this.
    view: Arc<Mutex<View>>,
}

impl Mirrors {
    /// Starts all watches; `tell` is called after each change. They end with `stop`.
    pub(crate) fn start(
        client: &Client,
        stop: &CancellationToken,
        tasks: &TaskTracker,
        tell: impl Fn(Side) + Clone + Send + Sync + 'static,
    ) -> Self {
        let made = Kind::ALL.into_iter().map(|kind| (kind, Mirror::default())).collect();
        let mirrors = Self { made, ..Self::default() };
        mirrors.services.track();
        mirrors.namespaces.track();
        mirrors.slices.track();
        mirrors.pods.track();
        mirrors.exports.track();
        mirrors.made(Kind::ServiceEntry).track();
        let task = Task { client, stop, tasks, tell };
        task.typed("federations", &mirrors.federations, |object: MeshFederation| federation(&object));
        task.typed("rules", &mirrors.rules, |object: FederationServiceRules| rules(&object));
        task.typed("services", &mirrors.services, |object: KubeService| {
            Kept::of(&object, Arc::new(super::service(&object)))
        });
        task.typed("namespaces", &mirrors.namespaces, |object: Namespace| {
            Kept::of(&object, Arc::new(object.labels().clone()))
        });
        task.typed("endpoint slices", &mirrors.slices, |object: EndpointSlice| {
            super::slice(object.clone()).and_then(|slice| Kept::of(&object, Arc::new(slice)))
        });
        task.typed("pods", &mirrors.pods, |object: Pod| Kept::of(&object, super::workload(&object)));
        let exports = service_exports();
        task.optional(
            "service exports",
            Side::Given,
            exports,
            watcher::Config::default(),
            &mirrors.exports,
            |object| Kept::of(&object, live::conditions(&object)),
        );
        for (&kind, mirror) in &mirrors.made {
            task.made(kind, mirror, &mirrors.recall);
        }
        mirrors
    }

    /// Waits until everything was listed once.
    pub(crate) async fn listed(&self) {
        self.federations.listed().await;
        self.rules.listed().await;
        self.services.listed().await;
        self.namespaces.listed().await;
        self.slices.listed().await;
        self.pods.listed().await;
        self.exports.listed().await;
        for mirror in self.made.values() {
            mirror.listed().await;
        }
    }

    /// Takes over the answer to a status that we wrote, so that nobody is woken by our own word.
    pub(crate) fn note_federation(&self, object: &MeshFederation) {
        note(&self.federations, object, federation(object));
    }

    /// The same for rules.
    pub(crate) fn note_rules(&self, object: &FederationServiceRules) {
        note(&self.rules, object, rules(object));
    }

    /// The objects of a kind that we make.
    pub(crate) fn made(&self, kind: Kind) -> &Mirror<Live> {
        // Every kind was put there at the start.
        &self.made[&kind]
    }

    /// What peers said before this process began; nothing the second time it is asked for.
    pub(crate) fn recalled(&self) -> Option<Vec<SaidBy>> {
        let imported = self.made(Kind::ImportedService);
        self.recall.take(|namespace, name| imported.get(namespace, name).is_some())
    }

    /// The federation that counts: `default`, else the oldest; by name.
    pub(crate) fn federation(&self) -> Option<(String, Arc<Federation>)> {
        let all = self.federations.select(|_, name, kept| Some((name.to_owned(), Arc::clone(kept))));
        all.into_iter().min_by_key(|(name, kept)| (name != "default", kept.created, name.clone()))
    }

    /// What the cluster itself contributes to a decision.
    pub(crate) fn world(&self, controller_namespace: &str) -> World {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        self.bring_up(&mut view);
        World {
            controller_namespace: controller_namespace.to_owned(),
            federation: self.federation().map(|(_, kept)| Arc::clone(&kept.value.spec)),
            rules: self.rules.get(controller_namespace, "default").map(|kept| Arc::clone(&kept.value.spec)),
            services: view.services.clone(),
            namespaces: view.namespaces.clone(),
            service_exports: view.service_exports.clone(),
            backends: view.backing.backends().clone(),
            foreign_hosts: view.foreign_hosts(),
            ..World::default()
        }
    }

    /// Takes over what has changed.
    fn bring_up(&self, view: &mut View) {
        for (key, kept) in self.services.changes() {
            view.service(key, kept.map(|kept| Arc::clone(&kept.value)));
        }
        for ((_, name), kept) in self.namespaces.changes() {
            view.namespace(name, kept.map(|kept| Arc::clone(&kept.value)));
        }
        for (key, kept) in self.exports.changes() {
            view.service_export(key, kept.is_some());
        }
        for (key, live) in self.made(Kind::ServiceEntry).changes() {
            view.entry(key, live.filter(|live| !live.ours).map(|live| live.hosts.clone()));
        }
        let slices = self.slices.changes().into_iter();
        let slices = slices.map(|(key, kept)| (key, kept.map(|kept| Arc::clone(&kept.value))));
        let pods = self.pods.changes().into_iter().map(|(key, _)| key);
        let pod = |namespace: &str, name: &str| self.pods.get(namespace, name).map(|kept| kept.value.clone());
        view.backing.change(slices, pods, pod);
    }
}

/// Takes over a written status, unless somebody changed the declaration meanwhile: that must still be
/// heard of by the watch.
fn note<K: Resource, T: PartialEq>(mirror: &Mirror<Kept<T>>, object: &K, kept: Option<Kept<T>>) {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    if let (Some(kept), Some(known)) = (kept, mirror.get(&namespace, &name))
        && kept.generation == known.generation
    {
        mirror.refresh(&namespace, &name, kept);
    }
}

fn federation(object: &MeshFederation) -> Option<Federation> {
    let (spec, status) = (Arc::new(object.spec.clone()), object.status.clone().unwrap_or_default());
    Kept::of(object, Declared { spec, status })
}

fn rules(object: &FederationServiceRules) -> Option<Rules> {
    let (spec, status) = (Arc::new(object.spec.clone()), object.status.clone().unwrap_or_default());
    Kept::of(object, Declared { spec, status })
}

/// Where the API server has ServiceExports.
pub(crate) fn service_exports() -> ApiResource {
    let kind = GroupVersionKind::gvk("multicluster.x-k8s.io", "v1alpha1", "ServiceExport");
    ApiResource::from_gvk_with_plural(&kind, "serviceexports")
}

/// What every watch is started with.
struct Task<'a, F> {
    client: &'a Client,
    stop: &'a CancellationToken,
    tasks: &'a TaskTracker,
    tell: F,
}

impl<F: Fn(Side) + Clone + Send + Sync + 'static> Task<'_, F> {
    fn typed<K, T>(
        &self,
        what: &'static str,
        mirror: &Mirror<Kept<T>>,
        keep: impl Fn(K) -> Option<Kept<T>> + Send + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        T: PartialEq + Send + Sync + 'static,
    {
        let watched: Watch<DeserializeGuard<K>> =
            Watch { api: Api::all(self.client.clone()), config: watcher::Config::default(), namespace: None };
        // An object that cannot be read counts as not there, and harms no other.
        let keep = move |object: DeserializeGuard<K>| object.0.ok().and_then(&keep);
        let tell = told(what, Side::Given, self.tell.clone());
        self.tasks.spawn(watch(watched, mirror.clone(), keep, tell, self.stop.clone()));
    }

    /// A kind of which we make objects, and which may not be there at all, such as OpenShift's.
    fn made(&self, kind: Kind, mirror: &Mirror<Live>, recall: &Recall) {
        // Of ServiceEntries those of others matter too: their hosts are taken.
        let config = match kind {
            Kind::ServiceEntry => watcher::Config::default(),
            _ => watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)),
        };
        let recall = recall.clone();
        let keep = move |object: DynamicObject| {
            let live = Live::of(kind, &object);
            if kind == Kind::ImportedService {
                recall.note(object);
            }
            live
        };
        // A ServiceEntry of somebody else takes a name from peers, not from what they are told.
        self.optional(kind.name(), Side::Made, kind.resource(), config, mirror, keep);
    }

    /// A kind that may not be there at all.
    fn optional<T: Newer + Send + Sync + 'static>(
        &self,
        what: &'static str,
        side: Side,
        resource: ApiResource,
        config: watcher::Config,
        mirror: &Mirror<T>,
        keep: impl Fn(DynamicObject) -> Option<T> + Send + 'static,
    ) {
        let (client, stop, mirror) = (self.client.clone(), self.stop.clone(), mirror.clone());
        let tell = told(what, side, self.tell.clone());
        self.tasks.spawn(async move {
            let api: Api<Lean> = Api::all_with(client, &resource);
            while let Err(error) = api.list_metadata(&ListParams::default().limit(1)).await {
                let missing = tarbet_cluster::class(&error) == tarbet_cluster::Class::Missing;
                if !missing {
                    tell(Change::Failing(tarbet_cluster::describe(&error)));
                } else if !mirror.is_listed() {
                    mirror.mark_listed();
                    tell(Change::Listed);
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(if missing { LOOK_AGAIN } else { TRY_AGAIN }) => {}
                }
            }
            let keep = move |Lean(object): Lean| keep(object);
            watch(Watch { api, config, namespace: None }, mirror, keep, tell, stop).await;
        });
    }
}

fn told<V>(
    what: &'static str,
    side: Side,
    tell: impl Fn(Side) + Send + Sync + 'static,
) -> impl Fn(Change<V>) + Send + Sync + 'static {
    move |change| match change {
        Change::Failing(cause) => tracing::warn!(what, cause, "A watch hears nothing and tries again."),
        Change::Back => tracing::info!(what, "A watch hears again."),
        Change::Applied(_) | Change::Deleted(_) | Change::Listed => tell(side),
    }
}
