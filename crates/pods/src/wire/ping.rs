//! The answer to a ping: how the plugin is and what it can take.

use serde::{Deserialize, Serialize};

use super::fold::{folded, lenient};

/// What a plugin says when it is asked for nothing in particular.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct PingReply {
    /// `ok`, or what is wrong.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub status: String,
    /// What it can take, where it knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Taints for the node; `None` leaves them, an empty list clears them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
}

/// Quantities in Kubernetes' notation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct Resources {
    /// Cores.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub cpu: String,
    /// Memory.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub memory: String,
    /// Number of pods.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub pods: String,
    /// GPUs and FPGAs.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub accelerators: Vec<Accelerator>,
}

/// A kind of accelerator and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct Accelerator {
    /// The resource's name, such as `nvidia.com/gpu`.
    #[serde(rename(serialize = "resourceType", deserialize = "resourcetype"), deserialize_with = "lenient")]
    pub resource_type: String,
    /// How many, as a quantity.
    #[serde(deserialize_with = "text_or_number")]
    pub available: String,
}

/// A taint for the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct Taint {
    /// Its key.
    #[serde(deserialize_with = "lenient")]
    pub key: String,
    /// Its value.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "lenient")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[serde(deserialize_with = "lenient")]
    pub effect: String,
}

folded!(PingReply, Resources, Accelerator, Taint);

// A number before interLink 0.6.1, a quantity in a string since.
fn text_or_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Option::<serde_json::Value>::deserialize(deserializer)? {
        None | Some(serde_json::Value::Null) => Ok(String::new()),
        Some(serde_json::Value::String(text)) => Ok(text),
        Some(other) => Ok(other.to_string()),
    }
}

/// How a scheduler is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SystemInfo {
    /// `ok` or `warning`.
    pub status: String,
    /// When it was asked, as RFC 3339.
    pub timestamp: String,
    /// Whether it answers.
    pub slurm_connected: bool,
    /// The summary that `sinfo -s` prints.
    pub sinfo_output: String,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
