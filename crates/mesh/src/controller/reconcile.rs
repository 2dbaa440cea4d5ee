//! One look: decide from everything that is known, write what differs, tell what came of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use serde_json::json;
use tarbet_cluster::conditions::{condition, set};
use tarbet_cluster::{Newer, Outcome, Severity};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::keep::Remembered;
use super::subscriptions::Subscriptions;
use crate::apply::Applier;
use crate::carry::carried;
use crate::crd::{
    FederationServiceRules, FederationServiceRulesStatus, MeshFederation, MeshFederationStatus, Remote,
};
use crate::live::{conditions, print_conditions};
use crate::metrics::Mesh;
use crate::observe::Lean;
use crate::plan::{self, Kind, Memo, Owners, Plan, Print, World};
use crate::status;
use crate::ways;

/// Status writes at once.
pub(super) const AT_ONCE: usize = 32;

/// What a term of leadership works with.
pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) applier: Applier,
    remembered: Mutex<Remembered>,
    subscriptions: Mutex<Subscriptions>,
    memo: Arc<Mutex<Memo>>,
    ended: CancellationToken,
}

/// A status that must be written.
pub(super) struct Due {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) patch: serde_json::Value,
    /// The conditions that people should hear of.
    pub(super) news: Vec<Condition>,
}

/// What an ImportedService must say of itself.
struct Told {
    conditions: Vec<Condition>,
    /// Whether it has said nothing yet.
    bare: bool,
}

impl State {
    pub(super) fn new(shared: Arc<Shared>, remembered: Remembered, ended: CancellationToken) -> Self {
        let (mirrors, metrics, reached) =
            (shared.mirrors.clone(), shared.metrics.clone(), shared.reached.clone());
        let applier = Applier::new(shared.client.clone(), mirrors, metrics, reached);
        Self {
            shared,
            applier,
            remembered: Mutex::new(remembered),
            subscriptions: Mutex::default(),
            memo: Arc::default(),
            ended,
        }
    }

    /// Hears this peer from the beginning.
    pub(super) fn restart(&self, mesh: &str) {
        self.subscriptions().restart(mesh);
    }

    /// Hears nobody any more.
    pub(super) fn end(&self) {
        *self.subscriptions() = Subscriptions::default();
    }

    /// One look.
    pub(super) async fn once(&self) -> Outcome {
        if self.ended.is_cancelled() {
            return Outcome::Done;
        }
        let begun = Instant::now();
        let shared = &self.shared;
        let mut world = shared.mirrors.world(&shared.namespace);
        world.federation = world.federation.map(|federation| carried(federation, &shared.carried));
        if let Some(federation) = &world.federation {
            let sited = |remote: &Remote| shared.site(remote).is_some();
            world.discovery = ways::places(federation, &shared.config.discovery, sited);
        }
        world.carrying.clone_from(&shared.carrying);
        self.subscribe(&world);
        world.peers = shared
            .peers()
            .iter()
            .filter(|(_, peer)| peer.known)
            .map(|(mesh, peer)| (mesh.clone(), peer.offers.clone()))
            .collect();
        world.resolved = shared.resolved().clone();
        let Some((world, plan)) = self.plan(world).await else { return Outcome::Failed };
        let decided = begun.elapsed();
        let mut owners = self.owners();
        let failures = self.applier.apply(&plan, &mut owners).await;
        for failure in &failures {
            let (kind, namespace, name) = &failure.place;
            tracing::warn!(kind = kind.name(), namespace, name, cause = %failure.cause, "An object cannot be written.");
        }
        let told = self.tell(&world, &plan, &failures).await;
        self.measure(&plan, begun);
        super::rest(decided, &self.ended).await;
        if !failures.is_empty() || !told {
            return Outcome::Failed;
        }
        self.applier.trusts().map_or(Outcome::Done, Outcome::Again)
    }

    /// Decides beside the other tasks: peers are told and heard while a large federation is looked at.
    async fn plan(&self, world: World) -> Option<(World, Plan)> {
        let memo = Arc::clone(&self.memo);
        let decide = move || {
            let plan = plan::plan_again(&world, &mut memo.lock().unwrap_or_else(PoisonError::into_inner));
            (world, plan)
        };
        let decided = tokio::task::spawn_blocking(decide).await;
        decided.inspect_err(|error| tracing::error!(cause = %error, "A decision broke off.")).ok()
    }

    fn subscribe(&self, world: &World) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(federation), Some(rules)) = (&world.federation, &world.rules) else {
            self.subscriptions().set(&self.shared, "", &[], &mut remembered);
            return;
        };
        let remotes = plan::subscribed(federation, rules);
        let mut names: Vec<String> = remotes
            .iter()
            .flat_map(|remote| remote.ingress.addresses.iter())
            .filter(|address| address.parse::<std::net::IpAddr>().is_err())
            .cloned()
            .collect();
        names.sort_unstable();
        self.shared.hostnames.send_if_modified(|known| {
            let changed = *known != names;
            if changed {
                *known = names;
            }
            changed
        });
        self.subscriptions().set(&self.shared, &federation.local.id, &remotes, &mut remembered);
    }

    fn owners(&self) -> Owners {
        let mirrors = &self.shared.mirrors;
        let namespace = self.shared.namespace.clone();
        let rules = mirrors.rules.get(&namespace, "default");
        Owners {
            rules: rules.map(|rules| (namespace, "default".to_owned(), rules.uid().to_owned())),
            federation: mirrors.federation().map(|(name, federation)| (name, federation.uid().to_owned())),
            ..Owners::default()
        }
    }

    fn measure(&self, plan: &Plan, begun: Instant) {
        let metrics = &self.shared.metrics;
        metrics.imported.set(i64::try_from(plan.imports.len()).unwrap_or(i64::MAX));
        for (mesh, view) in &plan.remotes {
            let label = Mesh { mesh: mesh.clone() };
            metrics.refused.get_or_create(&label).set(i64::try_from(view.refused).unwrap_or(i64::MAX));
        }
        metrics.reconciles.observe(begun.elapsed().as_secs_f64());
    }

    /// Writes the statuses that changed; false if one could not be written.
    async fn tell(&self, world: &World, plan: &Plan, failures: &[crate::apply::Failure]) -> bool {
        let now = Timestamp::now();
        let (federation, rules, imported, clusterset) = {
            let peers = self.shared.peers();
            let complete = world.federation.is_some() && world.rules.is_some();
            let account = self.shared.account.as_deref();
            let outcome = status::Outcome { plan, failures, peers: &peers, complete, account, now };
            let clusterset = self.clusterset(world, &outcome);
            (self.federations(&outcome), self.rules(&outcome), self.imported(&outcome), clusterset)
        };
        let mut all = self.tell_clusterset(clusterset).await;
        for Due { name, patch, news, .. } in federation {
            let api: Api<MeshFederation> = Api::all(self.shared.client.clone());
            self.applier.count("MeshFederation", "status");
            let written = tarbet_cluster::merge_status(&api, &name, &patch).await;
            if let Ok(federation) = &written {
                self.shared.mirrors.note_federation(federation);
            }
            self.announce(about(&written, &()), &news).await;
            all &= wrote(written);
        }
        for Due { namespace, name, patch, news } in rules {
            let api: Api<FederationServiceRules> = Api::namespaced(self.shared.client.clone(), &namespace);
            self.applier.count("FederationServiceRules", "status");
            let written = tarbet_cluster::merge_status(&api, &name, &patch).await;
            if let Ok(rules) = &written {
                self.shared.mirrors.note_rules(rules);
            }
            self.announce(about(&written, &()), &news).await;
            all &= wrote(written);
        }
        let writes = imported
            .into_iter()
            .map(|((namespace, name), told)| self.tell_import(namespace, name, told, now));
        let written: Vec<bool> = futures::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        all && written.into_iter().all(|written| written)
    }

    /// Statuses of federations that must be written, by name.
    fn federations(&self, outcome: &status::Outcome<'_>) -> Vec<Due> {
        let mirrors = &self.shared.mirrors;
        let chosen = mirrors.federation().map(|(name, _)| name);
        mirrors.federations.select(|_, name, kept| {
            let before = &kept.value.status;
            let after = if Some(name) == chosen.as_deref() {
                outcome.federation(&kept.value.spec.local.id, before, kept.generation)
            } else {
                let mut status = before.clone();
                let chosen = chosen.as_deref().unwrap_or("default");
                let message = format!("the MeshFederation `{chosen}` counts; a mesh has one");
                refuse(&mut status.conditions, "Superseded", &message, kept.generation, outcome.now);
                // What it once was is no longer so.
                MeshFederationStatus { conditions: status.conditions, ..MeshFederationStatus::default() }
            };
            (after != *before).then(|| {
                // A merge keeps what is left out: what is gone must be said.
                let patch = json!({ "status": {
                    "conditions": after.conditions, "connected": after.connected,
                    "imported": after.imported, "remotes": after.remotes,
                } });
                let news = status::news(&before.conditions, &after.conditions);
                Due { namespace: String::new(), name: name.to_owned(), patch, news }
            })
        })
    }

    /// Statuses of rules that must be written, by namespace and name.
    fn rules(&self, outcome: &status::Outcome<'_>) -> Vec<Due> {
        self.shared.mirrors.rules.select(|namespace, name, kept| {
            let before = &kept.value.status;
            let after = if namespace == self.shared.namespace && name == "default" {
                outcome.rules(before, kept.generation)
            } else {
                let mut status = before.clone();
                let message =
                    format!("rules count only in the controller's namespace `{}`", self.shared.namespace);
                refuse(&mut status.conditions, "WrongNamespace", &message, kept.generation, outcome.now);
                FederationServiceRulesStatus {
                    conditions: status.conditions,
                    ..FederationServiceRulesStatus::default()
                }
            };
            (after != *before).then(|| {
                let patch =
                    json!({ "status": { "conditions": after.conditions, "exported": after.exported } });
                let news = status::news(&before.conditions, &after.conditions);
                Due { namespace: namespace.to_owned(), name: name.to_owned(), patch, news }
            })
        })
    }

    /// Conditions of ImportedServices that differ from those they have.
    fn imported(&self, outcome: &status::Outcome<'_>) -> Vec<((String, String), Told)> {
        let mut due = Vec::new();
        let mut telling = outcome.imported();
        // Of most there is nothing to tell, and what is said then differs only by the generation.
        let well = status::all_well();
        let mut prints: BTreeMap<i64, Print> = BTreeMap::new();
        for (namespace, name) in outcome.plan.imports.keys() {
            let Some(live) = self.applier.live(Kind::ImportedService, namespace, name) else { continue };
            let told = telling.remove(&(namespace.as_str(), name.as_str()));
            let dated = |conditions: &[Condition]| -> Vec<Condition> {
                let observed_generation = Some(live.generation);
                conditions.iter().map(|one| Condition { observed_generation, ..one.clone() }).collect()
            };
            let print = match &told {
                Some(told) => print_conditions(&dated(told)),
                None => *prints.entry(live.generation).or_insert_with(|| print_conditions(&dated(&well))),
            };
            if live.conditions != print {
                let conditions = dated(told.as_deref().unwrap_or(&well));
                due.push(((namespace.clone(), name.clone()), Told { conditions, bare: live.bare }));
            }
        }
        due
    }

    async fn tell_import(&self, namespace: String, name: String, told: Told, now: Timestamp) -> bool {
        let kind = Kind::ImportedService.resource();
        let api: Api<Lean> = Api::namespaced_with(self.shared.client.clone(), &namespace, &kind);
        // The times of the conditions it has are not kept in memory.
        let before = if told.bare {
            Vec::new()
        } else {
            match api.get_opt(&name).await {
                Ok(Some(Lean(object))) => conditions(&object),
                Ok(None) => return true,
                Err(error) => return wrote::<Lean>(Err(error)),
            }
        };
        let mut after = before.clone();
        for condition in told.conditions {
            set(&mut after, condition, now);
        }
        self.applier.count("ImportedService", "status");
        let patch = json!({ "status": { "conditions": after } });
        let written = tarbet_cluster::merge_status(&api, &name, &patch).await;
        if let Ok(Lean(object)) = &written {
            self.applier.note_answer(Kind::ImportedService, object);
        }
        self.announce(about(&written, &kind), &status::news(&before, &after)).await;
        wrote(written)
    }

    /// Tells events about an object whose conditions changed.
    pub(super) async fn announce(&self, about: Option<ObjectReference>, news: &[Condition]) {
        let Some(about) = about else { return };
        for condition in news {
            let severity = if status::is_well(condition) { Severity::Normal } else { Severity::Warning };
            let note = condition.message.as_str();
            self.shared.events.tell(&about, severity, "Reconcile", &condition.reason, note).await;
        }
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The conditions of a declaration that does not count: neither accepted nor ready, and nothing else that
/// may have been said of it before.
fn refuse(
    conditions: &mut Vec<Condition>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    conditions.retain(|condition| ["Accepted", "Ready"].contains(&condition.type_.as_str()));
    for name in ["Accepted", "Ready"] {
        set(conditions, condition(name, false, reason, message, generation), now);
    }
}

/// Whom an event is about, if it was written.
pub(super) fn about<K: kube::Resource>(
    written: &kube::Result<K>,
    kind: &K::DynamicType,
) -> Option<ObjectReference> {
    written.as_ref().ok().map(|object| object.object_ref(kind))
}

pub(super) fn wrote<T>(result: kube::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        // Whoever it was about is gone.
        Err(error) if tarbet_cluster::class(&error) == tarbet_cluster::Class::Missing => true,
        Err(error) => {
            tracing::warn!(cause = %tarbet_cluster::describe(&error), "A status cannot be written.");
            false
        }
    }
}
