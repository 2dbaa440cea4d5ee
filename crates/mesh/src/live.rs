//! What is remembered of an object in the cluster: enough to tell whether it is as it must be.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;
use tarbet_cluster::Newer;

use crate::plan::{Kind, MANAGED_BY, MESH_LABEL, ORIGINAL_LABEL, Print};

/// The digest of conditions without their times.
pub(crate) fn print_conditions(conditions: &[Condition]) -> Print {
    let plain = |condition: &Condition| {
        serde_json::json!([
            condition.type_,
            condition.status,
            condition.reason,
            condition.message,
            condition.observed_generation,
        ])
    };
    Print::of(&Value::Array(conditions.iter().map(plain).collect()))
}

/// The digest of what a ServiceImport's status says.
pub(crate) fn print_clusters(clusters: &[String]) -> Print {
    Print::of(&serde_json::json!(clusters))
}

fn clusters(object: &DynamicObject) -> Vec<String> {
    let all = object.data["status"]["clusters"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|one| one["cluster"].as_str().map(str::to_owned)).collect()
}

/// The conditions of an object.
pub(crate) fn conditions(object: &DynamicObject) -> Vec<Condition> {
    Vec::deserialize(&object.data["status"]["conditions"]).unwrap_or_default()
}

/// An object of a kind that we make, ours or not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Live {
    uid: String,
    version: u64,
    /// Whether it carries our label.
    pub(crate) ours: bool,
    /// The mesh it is for.
    pub(crate) mesh: Option<String>,
    /// The uids of its owners.
    pub(crate) owners: Vec<String>,
    /// What it says.
    pub(crate) spec: Print,
    /// What its status says, for ImportedServices and ServiceImports.
    pub(crate) conditions: Print,
    /// Whether it has no condition at all.
    pub(crate) bare: bool,
    /// The generation of its spec.
    pub(crate) generation: i64,
    /// The hosts it declares, if it is a ServiceEntry of somebody else.
    pub(crate) hosts: Vec<String>,
    /// Whether it is on its way out.
    pub(crate) going: bool,
}

impl Newer for Live {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn is_as(&self, older: &Self) -> bool {
        *older == Self { version: older.version, ..self.clone() }
    }
}

impl Live {
    /// Whether only what it says of itself has changed since.
    pub(crate) fn differs_only_in_status(&self, older: &Self) -> bool {
        let (version, conditions, bare) = (older.version, older.conditions, older.bare);
        *older == Self { version, conditions, bare, ..self.clone() }
    }

    /// What is kept of an object.
    pub(crate) fn of(kind: Kind, object: &DynamicObject) -> Option<Self> {
        let labels = object.labels();
        let ours = labels.get(MANAGED_BY.0).is_some_and(|value| value == MANAGED_BY.1);
        // What the original made is about to be replaced by ours, so its names are not somebody else's.
        let original = labels.contains_key(ORIGINAL_LABEL);
        let hosts = |spec: &Value| Vec::deserialize(&spec["hosts"]).unwrap_or_default();
        let conditions = if kind == Kind::ImportedService { conditions(object) } else { Vec::new() };
        let status = match kind {
            Kind::ServiceImport => print_clusters(&clusters(object)),
            _ => print_conditions(&conditions),
        };
        let mut spec = Cow::Borrowed(&object.data["spec"]);
        if kind == Kind::Route {
            without_defaults(spec.to_mut());
        }
        Some(Self {
            uid: object.uid()?,
            version: object.resource_version()?.parse().ok()?,
            ours,
            mesh: labels.get(MESH_LABEL).cloned(),
            owners: object.owner_references().iter().map(|owner| owner.uid.clone()).collect(),
            spec: Print::of(&spec),
            conditions: status,
            bare: conditions.is_empty(),
            generation: object.metadata.generation.unwrap_or(0),
            hosts: if kind == Kind::ServiceEntry && !ours && !original { hosts(&spec) } else { Vec::new() },
            going: object.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// OpenShift fills these in.
fn without_defaults(route: &mut Value) {
    if let Some(spec) = route.as_object_mut()
        && spec.get("wildcardPolicy").is_some_and(|policy| policy == "None")
    {
        spec.remove("wildcardPolicy");
    }
    if let Some(to) = route["to"].as_object_mut()
        && to.get("weight").is_some_and(|weight| weight == 100)
    {
        to.remove("weight");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_told_from_everything_else() {
        let object = |labels: Value, ready: &str, version: &str| {
            let condition = json!({ "type": "Ready", "status": ready, "reason": "X", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let object = json!({ "apiVersion": "x/v1", "kind": "ImportedService",
                "metadata": { "name": "x", "uid": "u", "resourceVersion": version, "labels": labels },
                "spec": {}, "status": { "conditions": [condition] } });
            Live::of(Kind::ImportedService, &serde_json::from_value(object).unwrap()).unwrap()
        };
        let ours = json!({ MANAGED_BY.0: MANAGED_BY.1 });
        let (first, later) = (object(ours.clone(), "True", "7"), object(ours.clone(), "True", "8"));
        assert!(later.is_as(&first) && later.differs_only_in_status(&first));
        let told = object(ours, "False", "9");
        assert!(!told.is_as(&first) && told.differs_only_in_status(&first));
        let taken = object(json!({}), "False", "9");
        assert!(!taken.is_as(&first) && !taken.differs_only_in_status(&first));
    }

    #[test]
    fn what_openshift_fills_in_is_no_difference() {
        let object = |spec: Value| {
            let object = json!({ "apiVersion": "route.openshift.io/v1", "kind": "Route",
                "metadata": { "name": "x", "uid": "u", "resourceVersion": "7" }, "spec": spec });
            Live::of(Kind::Route, &serde_json::from_value(object).unwrap()).unwrap()
        };
        let plain = object(json!({ "host": "a", "to": { "kind": "Service", "name": "b" } }));
        let filled = object(
            json!({ "host": "a", "wildcardPolicy": "None", "to": { "kind": "Service", "name": "b", "weight": 100 } }),
        );
        assert_eq!(plain.spec, filled.spec);
        let edited = object(json!({ "host": "a", "to": { "kind": "Service", "name": "b", "weight": 50 } }));
        assert_ne!(plain.spec, edited.spec);
    }
}
