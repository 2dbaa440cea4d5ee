//! What is kept of a request while the controller watches it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tarbet_cluster::{Newer, finalizer};

use crate::crd::{InternalRequest, InternalRequestSpec, InternalRequestStatus};
use crate::machine::{Before, Phase};
use crate::names::REQUEST_FINALIZER;

/// A request of one remote cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The remote.
    pub remote: Arc<str>,
    /// The namespace there.
    pub namespace: String,
    /// The name there.
    pub name: String,
}

impl Key {
    /// A request by name.
    pub fn new(remote: &str, namespace: &str, name: &str) -> Self {
        Self { remote: remote.into(), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.remote, self.namespace, self.name)
    }
}

/// What is kept of a request. Of one that is over only the least stays, for there may be many.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which one.
    pub key: Key,
    /// Its identity.
    pub uid: String,
    /// Its version.
    pub version: u64,
    /// Whether somebody deleted it.
    pub deleting: bool,
    /// Whether our finalizer keeps it.
    pub held: bool,
    /// Where it stands.
    pub phase: Phase,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it asks for, or why that cannot be read.
    pub spec: Result<Box<InternalRequestSpec>, String>,
    /// What its status said.
    pub before: Before,
    /// The run that its status names.
    pub run: Option<String>,
    // Finalizers of others, to leave in place.
    others: Vec<String>,
}

impl Newer for Request {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }
}

impl Request {
    /// What is kept of a request object. Spec and status are read apart and the status field by
    /// field, so that an odd one hides neither the other nor what we wrote ourselves.
    pub fn keep(remote: &Arc<str>, object: DynamicObject) -> Self {
        let DynamicObject { metadata: meta, mut data, .. } = object;
        let mut status = data.get_mut("status").map(Value::take).unwrap_or_default();
        let run: Option<String> = field(&mut status, "pipelineRun");
        let status = InternalRequestStatus {
            conditions: field(&mut status, "conditions"),
            start_time: field(&mut status, "startTime"),
            queue: field(&mut status, "queue"),
            ..InternalRequestStatus::default()
        };
        let phase = Phase::of(&status);
        let others =
            meta.finalizers.iter().flatten().filter(|known| *known != REQUEST_FINALIZER).cloned().collect();
        let mut kept = Self {
            key: Key {
                remote: Arc::clone(remote),
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            deleting: meta.deletion_timestamp.is_some(),
            held: finalizer::present(&meta, REQUEST_FINALIZER),
            phase,
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            labels: BTreeMap::new(),
            spec: Ok(Box::default()),
            before: Before::default(),
            run: None,
            others,
        };
        if !phase.is_final() {
            kept.labels = meta.labels.unwrap_or_default();
            kept.spec = match data.get_mut("spec").map(Value::take) {
                None => Err("it has no spec".to_owned()),
                Some(spec) => serde_json::from_value(spec).map(Box::new).map_err(|error| error.to_string()),
            };
            kept.run = run;
            kept.before = Before {
                conditions: status.conditions,
                generation: meta.generation,
                start_time: status.start_time.map(|time| time.0),
            };
        }
        kept
    }

    /// The metadata that a change of finalizers needs.
    pub(crate) fn meta(&self) -> ObjectMeta {
        let ours = self.held.then(|| REQUEST_FINALIZER.to_owned());
        ObjectMeta {
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.to_string()),
            finalizers: Some(self.others.iter().cloned().chain(ours).collect()),
            ..ObjectMeta::default()
        }
    }

    /// How events refer to it.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(InternalRequest::api_version(&()).into_owned()),
            kind: Some(InternalRequest::kind(&()).into_owned()),
            name: Some(self.key.name.clone()),
            namespace: Some(self.key.namespace.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Who asks, for fairness: namespaces of two remotes are two tenants.
    pub(crate) fn tenant(&self) -> String {
        format!("{}/{}", self.key.remote, self.key.namespace)
    }
}

fn field<T: DeserializeOwned + Default>(of: &mut Value, name: &str) -> T {
    of.get_mut(name).map(Value::take).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn keep(object: Value) -> Request {
        Request::keep(&"remote".into(), serde_json::from_value(object).unwrap())
    }

    #[test]
    fn an_odd_spec_does_not_hide_that_it_was_rejected() {
        let condition = json!({ "type": "Succeeded", "status": "False", "reason": "Rejected", "message": "",
                                "lastTransitionTime": "2026-01-01T00:00:00Z" });
        for spec in [json!(null), json!(7), json!({ "params": ["x"] }), json!({ "timeouts": "soon" })] {
            let odd = json!({ "metadata": { "name": "odd" }, "spec": spec });
            assert!(keep(odd.clone()).spec.is_err(), "{odd}");
            let mut told = odd;
            told["status"] = json!({ "conditions": [condition], "results": 7, "queue": "?" });
            assert_eq!(keep(told).phase, Phase::Rejected);
        }
        assert_eq!(keep(json!({ "metadata": { "name": "bare" } })).spec.unwrap_err(), "it has no spec");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = "(request|pipeline|pipelineRef|resolver|params|timeouts|conditions|queue|[a-z]{1,3})";
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_object_is_kept_without_panic(spec in any_json(), status in any_json()) {
            let kept = keep(json!({ "metadata": { "name": "x", "namespace": "y" }, "spec": spec, "status": status }));
            prop_assert_eq!(kept.key.name.as_str(), "x");
        }
    }
}
