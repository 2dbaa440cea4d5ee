//! The few fields of Tekton's kinds that we read. Everything is optional: a newer Tekton may
//! change the rest as it likes, and an object we cannot read harms only itself.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The spec of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "tekton.dev",
    version = "v1",
    kind = "PipelineRun",
    plural = "pipelineruns",
    namespaced,
    schema = "disabled",
    status = "PipelineRunStatus"
)]
#[serde(default)]
pub struct PipelineRunSpec {
    /// Set to `Cancelled` to end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

/// The status of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PipelineRunStatus {
    /// Its conditions; `Succeeded` is the one that counts.
    pub conditions: Vec<RunCondition>,
    /// What it produced.
    pub results: Vec<RunResult>,
    /// Its TaskRuns.
    pub child_references: Vec<Value>,
}

/// A condition of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// A result: a string, or a list or map of strings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// The spec of a Pipeline.
#[derive(Debug, Clone, Default, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "tekton.dev",
    version = "v1",
    kind = "Pipeline",
    plural = "pipelines",
    namespaced,
    schema = "disabled"
)]
#[serde(default)]
pub struct PipelineSpec {
    /// The workspaces it declares.
    pub workspaces: Vec<DeclaredWorkspace>,
}

/// A workspace that a Pipeline declares.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclaredWorkspace {
    /// Its name.
    pub name: String,
}
