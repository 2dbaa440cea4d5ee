//! What objects of the Multi-Cluster Services API are told: the conditions of ServiceExports and the
//! meshes behind ServiceImports.

use futures::StreamExt;
use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use serde_json::json;
use tarbet_cluster::conditions::set;

use super::reconcile::{AT_ONCE, Due, State, about, wrote};
use crate::live::print_clusters;
use crate::observe::service_exports;
use crate::plan::{Kind, World};
use crate::status;

/// A status of an object of the API that must be written.
pub(super) struct Told {
    kind: ApiResource,
    ours: Option<Kind>,
    due: Due,
}

impl State {
    /// Statuses that differ from those the objects have. ServiceExports that the rules do not ask for
    /// may be somebody else's business.
    pub(super) fn clusterset(&self, world: &World, outcome: &status::Outcome<'_>) -> Vec<Told> {
        let asked = world.rules.as_ref().and_then(|rules| rules.export.as_ref());
        let mut all = Vec::new();
        if outcome.complete && asked.is_some_and(|export| export.service_exports) {
            all = self.shared.mirrors.exports.select(|namespace, name, kept| {
                let (before, mut after) = (&kept.value, kept.value.clone());
                let key = (namespace.to_owned(), name.to_owned());
                for condition in outcome.service_export(&key, kept.generation) {
                    set(&mut after, condition, outcome.now);
                }
                (after != *before).then(|| {
                    let patch = json!({ "status": { "conditions": after } });
                    let news = status::news(before, &after);
                    Told {
                        kind: service_exports(),
                        ours: None,
                        due: Due { namespace: key.0, name: key.1, patch, news },
                    }
                })
            });
        }
        for ((namespace, name), clusters) in &outcome.plan.clusters {
            let live = self.applier.live(Kind::ServiceImport, namespace, name);
            if live.is_none_or(|live| live.conditions == print_clusters(clusters)) {
                continue;
            }
            let list: Vec<_> = clusters.iter().map(|mesh| json!({ "cluster": mesh })).collect();
            let (namespace, name) = (namespace.clone(), name.clone());
            let patch = json!({ "status": { "clusters": list } });
            let due = Due { namespace, name, patch, news: Vec::new() };
            all.push(Told { kind: Kind::ServiceImport.resource(), ours: Some(Kind::ServiceImport), due });
        }
        all
    }

    /// Writes them; false if one could not be written.
    pub(super) async fn tell_clusterset(&self, all: Vec<Told>) -> bool {
        let tell = |Told { kind, ours, due }: Told| async move {
            let Due { namespace, name, patch, news } = due;
            let api: Api<DynamicObject> = Api::namespaced_with(self.shared.client.clone(), &namespace, &kind);
            self.applier.count(ours.map_or("ServiceExport", Kind::name), "status");
            let written = tarbet_cluster::merge_status(&api, &name, &patch).await;
            if let (Some(kind), Ok(object)) = (ours, &written) {
                self.applier.note_answer(kind, object);
            }
            self.announce(about(&written, &kind), &news).await;
            wrote(written)
        };
        let written: Vec<bool> =
            futures::stream::iter(all.into_iter().map(tell)).buffer_unordered(AT_ONCE).collect().await;
        written.into_iter().all(|written| written)
    }
}
