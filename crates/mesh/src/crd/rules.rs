//! `FederationServiceRules`: what is exported to all meshes, and what is imported from each.

#![expect(unreachable_pub, reason = "the derive of the schema repeats each struct inside a function")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DOMAIN, LABEL};

/// Export and import rules. They limit discovery, never access.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "federation.openshift-service-mesh.io",
    version = "v1alpha1",
    kind = "FederationServiceRules",
    plural = "federationservicerules",
    shortname = "fsr",
    doc = "What is exported to other meshes, and what is imported from each. It limits discovery, never access.",
    namespaced,
    derive = "PartialEq",
    status = "FederationServiceRulesStatus",
    validation = ("self.metadata.name == 'default'", "there is one set of rules and its name is `default`"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Exported", "type": "integer", "jsonPath": ".status.exported"}"#,
    printcolumn = r#"{"name": "Conflicted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Conflicted\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct FederationServiceRulesSpec {
    /// What is exported, to all meshes alike; without it, nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<Export>,
    /// What is imported from each mesh; a mesh that is not listed is not even asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["meshID".into()]))]
    pub import: Vec<Import>,
    /// Whether imported services of the clusterset also get a ServiceImport, as the Multi-Cluster
    /// Services API has it, in their namespace if there is one here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub service_imports: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(so: &bool) -> bool {
    !so
}

/// What is exported: a service that any of these rules names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Export {
    /// Services with these labels, in any namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub service_selectors: Vec<Selector>,
    /// All services of namespaces with these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub namespace_selectors: Vec<Selector>,
    /// Services by name, as `namespace/service`, or `namespace/*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 4096),
        inner(
            regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/(\*|[a-z]([-a-z0-9]*[a-z0-9])?)$"),
            length(max = 127)
        )
    )]
    pub service_list: Vec<String>,
    /// Services with these labels in namespaces with those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub selectors: Vec<ExportSelector>,
    /// Whether services with a ServiceExport of the Multi-Cluster Services API are exported too, as
    /// `<service>.<namespace>.svc.clusterset.local`: then whoever owns a service may export it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub service_exports: bool,
    /// Services of which only these meshes are told; all others are told to every mesh. It limits
    /// discovery, not access.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub only_to: Vec<OnlyTo>,
    /// The names that exported services get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_settings: Option<DnsSettings>,
}

/// Labels of the service and of its namespace; both must match, a missing half matches anything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = (
    "has(self.serviceSelector) || has(self.namespaceSelector)",
    "serviceSelector or namespaceSelector is needed; to export everything write `serviceSelector: {}`",
))]
#[serde(rename_all = "camelCase")]
pub struct ExportSelector {
    /// Labels of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_selector: Option<Selector>,
    /// Labels of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
}

/// Services of which only some meshes are told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnlyTo {
    /// The meshes, as remotes of the MeshFederation are called.
    #[serde(rename = "meshIDs")]
    #[schemars(length(min = 1, max = 100), inner(regex(pattern = LABEL), length(min = 1, max = 34)))]
    pub mesh_ids: Vec<String>,
    /// The services: those with the labels of any of these.
    #[schemars(length(min = 1, max = 64))]
    pub service_selectors: Vec<Selector>,
}

/// The names that exported services get.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = (
    "!has(self.searchDomain) || (self.searchDomain != 'cluster.local' && !self.searchDomain.endsWith('.cluster.local') && self.searchDomain != 'svc' && !self.searchDomain.endsWith('.svc'))",
    "searchDomain must not lie within cluster.local or svc: names there belong to the cluster's own services",
))]
#[serde(rename_all = "camelCase")]
pub struct DnsSettings {
    /// The end of the name; without it services keep their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DOMAIN), length(min = 1, max = 100))]
    pub search_domain: Option<String>,
    /// Whether the namespace stands between the service and the search domain.
    #[serde(default)]
    pub include_namespace: bool,
}

/// What is imported from one mesh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Import {
    /// The mesh, as a remote of the MeshFederation is called.
    #[serde(rename = "meshID")]
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 34))]
    pub mesh_id: String,
    /// Services with these labels; without any selector, everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub service_selectors: Vec<Selector>,
}

/// A label selector as Kubernetes has it: all parts must match, and one without parts matches
/// everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub match_labels: BTreeMap<String, String>,
    /// Other requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = (
    "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0",
    "In and NotIn need values; Exists and DoesNotExist must have none",
))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// What is required of it.
    pub operator: Operator,
    /// The values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// What may be required of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// It is there with one of the values.
    In,
    /// It is not there, or with none of the values.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// What became of the rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FederationServiceRulesStatus {
    /// `Accepted`, `Ready` and `Conflicted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// How many services are exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exported: Option<i64>,
}
