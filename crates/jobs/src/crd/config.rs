//! `InternalServicesConfig`: what the private side allows.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What may be asked for, by whom. The object is called `config` and lives in the controller's namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "appstudio.redhat.com",
    version = "v1alpha1",
    kind = "InternalServicesConfig",
    plural = "internalservicesconfigs",
    namespaced,
    status = "InternalServicesConfigStatus",
    doc = "What the private side allows to be run, and for whom."
)]
#[serde(rename_all = "camelCase", default)]
pub struct InternalServicesConfigSpec {
    /// The remote namespaces that may ask at all; with none, nobody may. `remote/namespace` means that
    /// of one remote only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_list: Vec<String>,
    /// Git repositories that every allowed namespace may take pipelines from.
    #[serde(rename = "allowedGitResolverURLs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_git_resolver_urls: Vec<String>,
    /// Service accounts that a request may name where no offer pins one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_service_accounts: Vec<String>,
    /// Keeps the runs of requests that finish while it is set; they are the administrators' from then on.
    pub debug: bool,
    /// The workspace given to pipelines that declare it.
    pub volume_claim: VolumeClaim,
    /// What may run. Without any offer, every Pipeline of the controller's namespace may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<Offer>,
    /// Whether all remote namespaces are watched, or only the allowed ones.
    pub watch_scope: WatchScope,
    /// Label keys, prefixes that end in `/`, or `*` for all, that runs take over from their requests besides those of
    /// Konflux. Any label may make a run's pods match a selector of this cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copy_labels: Vec<String>,
}

/// Nothing is told here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InternalServicesConfigStatus {}

/// A volume for each run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VolumeClaim {
    /// The name of the workspace.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its size.
    #[schemars(regex(pattern = r"^[1-9][0-9]*(K|M|G)i$"))]
    pub size: String,
}

impl Default for VolumeClaim {
    fn default() -> Self {
        Self { name: "workspace".to_owned(), size: "1Gi".to_owned() }
    }
}

/// Which remote namespaces are watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WatchScope {
    /// All of them; requests of those not allowed are told so.
    #[default]
    All,
    /// The allowed ones, with rights in these alone; requests elsewhere stay without an answer. One that
    /// is taken off the list is watched until what was begun there is over.
    Allowed,
}

/// One pipeline that may run, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// The Pipeline of the controller's namespace; with a resolver, only the name of this offer.
    pub pipeline: String,
    /// Where else the pipeline comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolver: Option<OfferedResolver>,
    /// Who may ask for it, of the allowed namespaces, each as in `allowList`; with none, all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The parameters it takes and no others; without this, any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Vec<OfferedParam>>,
    /// The service account it runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// How many runs there may be at once; without this, any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrency: Option<u32>,
    /// The longest a run may take, such as `1h30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What the pods of its runs get, as Tekton's `podTemplate` has it: a node selector and
    /// tolerations, say, that lead them to a virtual node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub pod_template: Option<serde_json::Value>,
    /// Whether a pipeline that a resolver finds gets the workspace; it cannot be looked at beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<bool>,
}

/// Tekton knows what belongs there, and refuses what does not.
fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A parameter that may be given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedParam {
    /// Its name.
    pub name: String,
    /// A regular expression that the whole value must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Whether it must be given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// A resolver with its parameters pinned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedResolver {
    /// The Tekton resolver.
    pub name: String,
    /// The parameters it may get and no others.
    pub params: Vec<ResolverParam>,
}

/// A parameter of a resolver: fixed, or free within a pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResolverParam {
    /// Its name.
    pub name: String,
    /// Its value, whatever the request says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// A regular expression that the whole value in the request must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}
