//! What is asked and told about pods that were made.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::{Deserialize, Serialize};

use super::fold::{folded, lenient};

/// How the containers of one pod are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct PodStatus {
    /// The pod's name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Its UID; empty from peers of 2023.
    #[serde(rename(serialize = "UID", deserialize = "uid"), deserialize_with = "lenient")]
    pub uid: String,
    /// Its namespace.
    #[serde(deserialize_with = "lenient")]
    pub namespace: String,
    /// The plugin's own id for it.
    #[serde(rename(serialize = "JID", deserialize = "jid"), deserialize_with = "lenient")]
    pub jid: String,
    /// The containers, in the order of the spec.
    #[serde(deserialize_with = "lenient")]
    pub containers: Vec<ContainerStatus>,
    /// The init containers, in the order of the spec.
    #[serde(
        rename(serialize = "initContainers", deserialize = "initcontainers"),
        deserialize_with = "lenient"
    )]
    pub init_containers: Vec<ContainerStatus>,
    /// Ours: how old this is when the plugin cannot reach what runs the pod; 0 for fresh.
    #[serde(
        rename(serialize = "staleSeconds", deserialize = "staleseconds"),
        deserialize_with = "lenient",
        skip_serializing_if = "is_zero"
    )]
    pub stale_seconds: u64,
    /// Ours: the pod's address where it runs, if it has one.
    #[serde(
        rename(serialize = "podIP", deserialize = "podip"),
        deserialize_with = "lenient",
        skip_serializing_if = "String::is_empty"
    )]
    pub pod_ip: String,
}

folded!(PodStatus);

impl PodStatus {
    /// The same for a node of interLink, to which a running init container means that the others
    /// have not begun: one that still runs beside them is a sidecar, and is not told.
    #[must_use]
    pub fn without_sidecars(mut self) -> Self {
        let state = |status: &ContainerStatus| status.state.clone().unwrap_or_default();
        let begun = self.containers.iter().map(state).any(|s| s.running.is_some() || s.terminated.is_some());
        if begun {
            self.init_containers.retain(|init| state(init).terminated.is_some());
        }
        self
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// As much of a pod as status and delete need; the rest is skipped while reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodRef {
    /// Who it is.
    #[serde(deserialize_with = "lenient")]
    pub metadata: RefMeta,
    /// What it holds.
    #[serde(deserialize_with = "lenient")]
    pub spec: RefSpec,
    /// How far it is.
    #[serde(deserialize_with = "lenient")]
    pub status: RefStatus,
}

/// The metadata of a [`PodRef`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RefMeta {
    /// The pod's name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Its namespace.
    #[serde(deserialize_with = "lenient")]
    pub namespace: String,
    /// Its UID.
    #[serde(deserialize_with = "lenient")]
    pub uid: String,
    /// How long it may take to end, once deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
}

/// The spec of a [`PodRef`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RefSpec {
    /// Containers by name.
    #[serde(deserialize_with = "lenient")]
    pub containers: Vec<RefContainer>,
    /// Init containers by name.
    #[serde(deserialize_with = "lenient")]
    pub init_containers: Vec<RefContainer>,
    /// How long it may take to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
}

/// A container of a [`PodRef`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefContainer {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
}

/// The status of a [`PodRef`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefStatus {
    /// Its phase as the cluster knows it.
    #[serde(deserialize_with = "lenient")]
    pub phase: String,
}

impl PodRef {
    /// The seconds a delete gives the pod to end; what was asked at deletion comes first.
    pub fn grace_seconds(&self) -> Option<u64> {
        let asked = self.metadata.deletion_grace_period_seconds;
        asked.or(self.spec.termination_grace_period_seconds).and_then(|seconds| u64::try_from(seconds).ok())
    }
}

impl From<&Pod> for PodRef {
    fn from(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let named = |name: String| RefContainer { name };
        Self {
            metadata: RefMeta {
                name: pod.metadata.name.clone().unwrap_or_default(),
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                deletion_grace_period_seconds: pod.metadata.deletion_grace_period_seconds,
            },
            spec: RefSpec {
                containers: spec.containers.into_iter().map(|c| named(c.name)).collect(),
                init_containers: spec.init_containers.into_iter().flatten().map(|c| named(c.name)).collect(),
                termination_grace_period_seconds: spec.termination_grace_period_seconds,
            },
            status: RefStatus {
                phase: pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
            },
        }
    }
}
