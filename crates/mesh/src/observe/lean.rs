//! An object as the API tells it, without what nobody here looks at.
//!
//! A good part of every object is the record of who wrote which of its fields, a map within maps for each
//! word; and kinds that are only known at run time are read twice, first into pieces and then into values.
//! A start with ten thousands of imports reads twice as many objects, and each write answers with one, so it
//! matters what each one costs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An object of whatever kind.
#[derive(Debug, Clone)]
pub(crate) struct Lean(pub(crate) DynamicObject);

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

impl<'de> Deserialize<'de> for Lean {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Wire { metadata, spec, status } = Wire::deserialize(from)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            labels: metadata.labels,
            owner_references: metadata.owner_references,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        };
        // Moved: the macro would copy both, word by word.
        let data = Map::from_iter([("spec".to_owned(), spec), ("status".to_owned(), status)]);
        Ok(Self(DynamicObject { types: None, metadata, data: Value::Object(data) }))
    }
}

impl Resource for Lean {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(kind)
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(kind)
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(kind)
    }

    fn api_version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::api_version(kind)
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Live;
    use crate::observe::said;
    use crate::plan::{Kind, MANAGED_BY};
    use serde_json::json;

    #[test]
    fn what_is_left_out_is_nothing_that_counts() {
        let text = json!({
            "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "ImportedService",
            "metadata": {
                "name": "pay", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "labels": { MANAGED_BY.0: MANAGED_BY.1 },
                "ownerReferences": [{ "apiVersion": "federation.openshift-service-mesh.io/v1alpha1",
                    "kind": "MeshFederation", "name": "default", "uid": "f" }],
                "managedFields": [{ "manager": "m", "fieldsV1": { "f:spec": { "f:meshes": {} } } }],
            },
            "spec": { "offers": [{ "mesh": "west", "offer": { "hostname": "pay.mesh.global" } }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "X", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        })
        .to_string();
        let mut whole: DynamicObject = serde_json::from_str(&text).unwrap();
        let Lean(mut lean) = serde_json::from_str(&text).unwrap();
        assert!(whole.metadata.managed_fields.is_some() && lean.metadata.managed_fields.is_none());
        for kind in [Kind::ImportedService, Kind::ServiceEntry, Kind::Route] {
            let (whole, lean) = (Live::of(kind, &whole), Live::of(kind, &lean));
            assert!(whole.is_some() && whole == lean, "{whole:?} {lean:?}");
        }
        let (whole, lean) = (said(&mut whole), said(&mut lean));
        assert_eq!(
            (whole.len(), serde_json::to_value(whole).unwrap()),
            (1, serde_json::to_value(lean).unwrap())
        );
    }

    #[test]
    fn an_object_that_says_nothing_is_read_too() {
        let Lean(object) = serde_json::from_str(r#"{"kind":"X","metadata":{"name":"x"}}"#).unwrap();
        assert_eq!((object.metadata.name.as_deref(), &object.data["spec"]), (Some("x"), &Value::Null));
    }
}
