//! What peers said before this process began, from the ImportedServices as they are first listed.
//!
//! It is kept up to date until a term of leadership begins, and then no more: from there on peers speak
//! for themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::core::DynamicObject;

use crate::crd::{GROUP, SaidBy};
use crate::model::Key;
use crate::plan::MANAGED_BY;

/// What was said, by the ImportedService that keeps it.
type Said = BTreeMap<Key, Vec<SaidBy>>;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Recall(Arc<Mutex<Option<Said>>>);

impl Default for Recall {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(BTreeMap::new()))))
    }
}

impl Recall {
    /// Notes what an ImportedService says; what it said is taken out of it.
    pub(super) fn note(&self, mut object: DynamicObject) {
        if let Some(known) = &mut *self.known() {
            let key = (object.namespace().unwrap_or_default(), object.name_any());
            known.insert(key, said(&mut object));
        }
    }

    /// All that was said by those that are still there, and no more is noted. Nothing the second time.
    pub(super) fn take(&self, is_there: impl Fn(&str, &str) -> bool) -> Option<Vec<SaidBy>> {
        let known = self.known().take()?;
        Some(
            known
                .into_iter()
                .filter(|((ns, name), _)| is_there(ns, name))
                .flat_map(|(_, said)| said)
                .collect(),
        )
    }

    fn known(&self) -> MutexGuard<'_, Option<Said>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What meshes said, as an ImportedService keeps it; nothing unless a controller made it for a federation.
pub(crate) fn said(object: &mut DynamicObject) -> Vec<SaidBy> {
    let ours = object.labels().get(MANAGED_BY.0).is_some_and(|value| value == MANAGED_BY.1)
        && object.owner_references().iter().any(|owner| {
            owner.kind == "MeshFederation" && owner.api_version.split('/').next() == Some(GROUP)
        });
    if !ours {
        return Vec::new();
    }
    let offers = object.data.pointer_mut("/spec/offers").map(serde_json::Value::take).unwrap_or_default();
    serde_json::from_value(offers).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn imported(name: &str, labels: Value, owners: Value) -> DynamicObject {
        let offer = json!({ "mesh": "west", "offer": { "hostname": format!("{name}.mesh.global") } });
        serde_json::from_value(json!({
            "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "ImportedService",
            "metadata": { "name": name, "namespace": "istio-system", "labels": labels, "ownerReferences": owners },
            "spec": { "offers": [offer] },
        }))
        .unwrap()
    }

    #[test]
    fn only_what_a_controller_wrote_is_believed_and_only_once() {
        let ours = || json!({ MANAGED_BY.0: MANAGED_BY.1 });
        let owner = |kind: &str| json!([{ "apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "name": "default", "uid": "u" }]);
        let recall = Recall::default();
        recall.note(imported("good", ours(), owner("MeshFederation")));
        recall.note(imported("gone", ours(), owner("MeshFederation")));
        recall.note(imported("unlabelled", json!({}), owner("MeshFederation")));
        recall.note(imported("unowned", ours(), json!([])));
        recall.note(imported("of-another", ours(), owner("ImportedService")));
        let all = recall.take(|namespace, name| namespace == "istio-system" && name != "gone").unwrap();
        let hosts: Vec<&str> = all.iter().map(|said| said.offer.hostname.as_str()).collect();
        assert_eq!(hosts, ["good.mesh.global"]);
        assert_eq!(all[0].mesh, "west");
        recall.note(imported("late", ours(), owner("MeshFederation")));
        assert!(recall.take(|_, _| true).is_none(), "what peers say themselves is newer");
    }
}
