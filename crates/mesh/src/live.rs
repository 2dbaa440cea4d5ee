//! What is remembered of an object in the cluster: enough to tell whether it is as it must be.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tarbet_cluster::Newer;

use crate::plan::{Kind, MANAGED_BY, MESH_LABEL};

/// A digest of a value, the same for the same content in whatever order its fields come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Print([u8; 16]);

impl Print {
    /// The digest of a value.
    pub(crate) fn of(value: &Value) -> Self {
        let mut hash = Sha256::new();
        feed(value, &mut hash);
        let mut short = [0; 16];
        short.copy_from_slice(&hash.finalize()[..16]);
        Self(short)
    }
}

fn feed(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            hash.update(b"{");
            for key in keys {
                hash.update((key.len() as u64).to_le_bytes());
                hash.update(key);
                feed(&map[key], hash);
            }
            hash.update(b"}");
        }
        Value::Array(list) => {
            hash.update(b"[");
            for item in list {
                feed(item, hash);
            }
            hash.update(b"]");
        }
        other => {
            let text = other.to_string();
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
}

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

/// An object of a kind that we make, ours or not.
#[derive(Debug, Clone)]
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
    /// Its conditions, for ImportedServices.
    pub(crate) conditions: Print,
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
}

impl Live {
    /// What is kept of an object.
    pub(crate) fn of(kind: Kind, object: &DynamicObject) -> Option<Self> {
        let labels = object.labels();
        let ours = labels.get(MANAGED_BY.0).is_some_and(|value| value == MANAGED_BY.1);
        let hosts = |spec: &Value| serde_json::from_value(spec["hosts"].clone()).unwrap_or_default();
        let conditions: Vec<Condition> = match kind {
            Kind::ImportedService => {
                serde_json::from_value(object.data["status"]["conditions"].clone()).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let mut spec = object.data["spec"].clone();
        if kind == Kind::Route {
            without_defaults(&mut spec);
        }
        Some(Self {
            uid: object.uid()?,
            version: object.resource_version()?.parse().ok()?,
            ours,
            mesh: labels.get(MESH_LABEL).cloned(),
            owners: object.owner_references().iter().map(|owner| owner.uid.clone()).collect(),
            spec: Print::of(&spec),
            conditions: print_conditions(&conditions),
            generation: object.metadata.generation.unwrap_or(0),
            hosts: if kind == Kind::ServiceEntry && !ours { hosts(&spec) } else { Vec::new() },
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
    fn a_print_sees_every_difference_and_no_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":{"c":[1,"2"],"d":null}}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":{"d":null,"c":[1,"2"]},"a":1}"#).unwrap();
        assert_eq!(Print::of(&one), Print::of(&other));
        for different in [
            json!({ "a": 1, "b": { "c": ["2", 1], "d": null } }),
            json!({ "a": 1, "b": { "c": [1, 2], "d": null } }),
            json!({ "a": 1, "b": { "c": [1, "2"] } }),
            json!({ "a": 1, "b": { "c": [[1, "2"]], "d": null } }),
        ] {
            assert_ne!(Print::of(&one), Print::of(&different), "{different}");
        }
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
