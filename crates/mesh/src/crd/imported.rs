//! `ImportedService`: one name that other meshes export. Only the controller writes it.

#![expect(unreachable_pub, reason = "the derive of the schema repeats each struct inside a function")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::model::Offer;

/// A service of one or more other meshes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "federation.openshift-service-mesh.io",
    version = "v1alpha1",
    kind = "ImportedService",
    plural = "importedservices",
    shortname = "imps",
    doc = "A service that other meshes export. Written by the controller alone.",
    namespaced,
    derive = "PartialEq",
    status = "ImportedServiceStatus",
    printcolumn = r#"{"name": "Hostname", "type": "string", "jsonPath": ".spec.hostname"}"#,
    printcolumn = r#"{"name": "Meshes", "type": "string", "jsonPath": ".spec.meshes"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Conflicted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Conflicted\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImportedServiceSpec {
    /// Its name where it runs.
    pub name: String,
    /// Its namespace where it runs; empty if the peer does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name under which it is called here.
    #[schemars(length(min = 1, max = 253))]
    pub hostname: String,
    /// Its ports, as the first mesh has them.
    pub ports: Vec<ImportedPort>,
    /// Its labels, as the first mesh has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The meshes it is imported from, in the order of the federation's remotes.
    pub meshes: Vec<String>,
    /// What each mesh said, so that a restarted controller knows it before any peer answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<SaidBy>,
}

/// A port of an imported service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedPort {
    /// Its name.
    pub name: String,
    /// Its number.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub number: u32,
    /// Its protocol, as Istio writes it.
    pub protocol: String,
}

/// What one mesh said about the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct SaidBy {
    /// The mesh.
    pub mesh: String,
    /// What it said.
    pub offer: Offer,
}

/// What became of an imported service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedServiceStatus {
    /// `Accepted`, `Ready` and `Conflicted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
