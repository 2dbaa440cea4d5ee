//! What asks for a pod to be made, on each leg of its way.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fold::{folded, lenient};

/// Node to API server: a pod and everything of the cluster it mentions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct PodCreate {
    /// The pod.
    #[serde(deserialize_with = "lenient")]
    pub pod: Pod,
    /// ConfigMaps of its volumes.
    #[serde(rename = "configmaps", deserialize_with = "lenient")]
    pub config_maps: Vec<ConfigMap>,
    /// Secrets of its volumes.
    #[serde(deserialize_with = "lenient")]
    pub secrets: Vec<Secret>,
    /// One map of paths to contents for each projected volume, named like the volume.
    #[serde(rename = "projectedvolumesmaps", deserialize_with = "lenient")]
    pub projected: Vec<ConfigMap>,
    /// Where a job script is made, empty when unused.
    #[serde(rename(serialize = "jobscriptURL", deserialize = "jobscripturl"), deserialize_with = "lenient")]
    pub job_script_url: String,
}

/// API server to plugin: a pod with the data of each container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct RetrievedPod {
    /// The pod.
    #[serde(deserialize_with = "lenient")]
    pub pod: Pod,
    /// Init containers first, then containers, in the order of the spec.
    #[serde(rename = "container", deserialize_with = "lenient")]
    pub containers: Vec<RetrievedContainer>,
    /// Settings of job script builders; opaque here.
    #[serde(
        rename(serialize = "jobConfig", deserialize = "jobconfig"),
        deserialize_with = "lenient",
        skip_serializing_if = "Value::is_null"
    )]
    pub job_config: Value,
    /// A ready job script, empty when the plugin writes its own.
    #[serde(
        rename(serialize = "jobScript", deserialize = "jobscript"),
        deserialize_with = "lenient",
        skip_serializing_if = "String::is_empty"
    )]
    pub job_script: String,
}

/// The data of one container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct RetrievedContainer {
    /// The container's name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// ConfigMaps it mounts.
    #[serde(rename(serialize = "configMaps", deserialize = "configmaps"), deserialize_with = "lenient")]
    pub config_maps: Vec<ConfigMap>,
    /// Projected volumes it mounts.
    #[serde(rename = "projectedvolumemaps", deserialize_with = "lenient")]
    pub projected: Vec<ConfigMap>,
    /// Secrets it mounts.
    #[serde(deserialize_with = "lenient")]
    pub secrets: Vec<Secret>,
    /// Folders the API server proposes for its emptyDirs. Plugins choose their own.
    #[serde(rename(serialize = "emptyDirs", deserialize = "emptydirs"), deserialize_with = "lenient")]
    pub empty_dirs: Vec<String>,
}

/// The answer to a create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct CreateReply {
    /// The pod.
    #[serde(rename(serialize = "PodUID", deserialize = "poduid"), deserialize_with = "lenient")]
    pub pod_uid: String,
    /// The plugin's own id for it.
    #[serde(rename(serialize = "PodJID", deserialize = "podjid"), deserialize_with = "lenient")]
    pub pod_jid: String,
}

folded!(PodCreate, RetrievedPod, RetrievedContainer, CreateReply);
