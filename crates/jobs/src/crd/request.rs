//! `InternalRequest`: what a public cluster asks for, and what became of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a public cluster wants to be run on a private one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "appstudio.redhat.com",
    version = "v1alpha1",
    kind = "InternalRequest",
    plural = "internalrequests",
    namespaced,
    status = "InternalRequestStatus",
    doc = "Work that a public cluster asks of a private one.",
    printcolumn = r#"{"name":"Succeeded","type":"string","jsonPath":".status.conditions[?(@.type==\"Succeeded\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Succeeded\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct InternalRequestSpec {
    /// The Pipeline in the private controller's namespace to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub request: Option<String>,
    /// The Pipeline to run, found by a resolver; the private side decides which it accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineForm>,
    /// The parameters of the pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<BTreeMap<String, String>>,
    /// How long the run may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// The service account on the private side; it must be allowed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub service_account: Option<String>,
}

/// A pipeline found by a resolver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineForm {
    /// Which resolver, and what it is to find.
    pub pipeline_ref: PipelineRef,
    /// More parameters of the pipeline; a name may stand here or in `spec.params`, not in both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Vec<NamedValue>>,
    /// The service account, if `spec.serviceAccount` does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub service_account_name: Option<String>,
    /// How long the run may take, if `spec.timeouts` does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
}

/// A resolver and its parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineRef {
    /// A Tekton resolver: cluster, git, bundles, http or hub.
    pub resolver: String,
    /// What it is to find.
    pub params: Vec<NamedValue>,
}

/// A name and a value, never interpreted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// Durations such as `1h30m0s`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timeouts {
    /// Of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// Of its tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<String>,
    /// Of its final tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finally: Option<String>,
}

/// What became of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InternalRequestStatus {
    /// When its run was started; told with its end if it had to wait for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The run that serves it, as namespace/name on the private side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub pipeline_run: Option<String>,
    /// One condition, `Succeeded`, with the reasons Running, Succeeded, Failed and Rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The results of the run by name; those that are no strings as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<BTreeMap<String, String>>,
    /// Its place in the line, if it had to wait for its turn; it stays until the request is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePlace>,
    /// The end of each step's log, with what looks like a secret taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<StepLog>>,
}

/// A place in the line of an offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueuePlace {
    /// Its place when it joined the line; 1 is next.
    pub position: u32,
    /// When it joined.
    pub since: Time,
}

/// The end of the log of one step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepLog {
    /// The task of the pipeline.
    pub task: String,
    /// The step of the task.
    pub step: String,
    /// The last lines.
    pub tail: String,
    /// Whether lines before them are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}
