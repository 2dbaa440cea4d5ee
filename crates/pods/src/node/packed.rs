//! Objects as they are kept: as the text they were read from. Kubernetes' types have room for all that an
//! object may say, and most say little of it.

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::book::Key;
use crate::wire;

/// A pod without the record of who wrote which of its fields, which is the bulk of an object and of no use
/// here.
#[derive(Debug, PartialEq, Eq)]
pub struct PackedPod {
    namespace: Box<str>,
    name: Box<str>,
    uid: Box<str>,
    text: Box<[u8]>,
}

impl PackedPod {
    /// Packs a pod.
    pub fn new(mut pod: Pod) -> Self {
        pod.metadata.managed_fields = None;
        let text = pack(&pod);
        let part = |part: Option<String>| part.unwrap_or_default().into_boxed_str();
        let meta = pod.metadata;
        Self { namespace: part(meta.namespace), name: part(meta.name), uid: part(meta.uid), text }
    }

    /// The pod.
    pub fn open(&self) -> Pod {
        open(&self.text)
    }

    /// As much of it as questions name.
    pub(super) fn reference(&self) -> wire::PodRef {
        open(&self.text)
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Namespace and name.
    pub fn key(&self) -> Key {
        (self.namespace.to_string(), self.name.to_string())
    }

    /// Whether it is of this namespace and name.
    pub(super) fn is(&self, (namespace, name): &Key) -> bool {
        *self.name == **name && *self.namespace == **namespace
    }
}

/// What the other side said of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedStatus(Box<[u8]>);

impl PackedStatus {
    /// Packs a state.
    pub fn new(status: &wire::PodStatus) -> Self {
        Self(pack(status))
    }

    /// The state.
    pub fn open(&self) -> wire::PodStatus {
        open(&self.0)
    }
}

/// Writing to memory fails for types with keys that are no text only, and there are none in these.
fn pack(value: &impl Serialize) -> Box<[u8]> {
    serde_json::to_vec(value).unwrap_or_default().into_boxed_slice()
}

/// Text that was written here can be read here.
fn open<T: DeserializeOwned + Default>(text: &[u8]) -> T {
    serde_json::from_slice(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use serde_json::json;

    use super::*;

    fn busy() -> Pod {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "finalizers": ["x"], "resourceVersion": "7",
                "creationTimestamp": "2026-11-15T12:00:00Z", "annotations": {"note": "\u{e4}\u{2028}\n"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "u"}]},
            "spec": {
                "terminationGracePeriodSeconds": 7,
                "containers": [{"name": "main", "command": ["a"], "args": [], "env": [{"name": "E", "value": ""}],
                                "ports": [{"containerPort": 80}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                                "livenessProbe": {"httpGet": {"port": "http"}}}],
                "initContainers": [{"name": "first"}], "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "v", "emptyDir": {}}], "imagePullSecrets": [{"name": "s"}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-11-15T12:00:01Z"}}, "lastState": {}}],
                "podIPs": [{"ip": "10.0.0.1"}]},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn nothing_but_the_record_of_writers_is_lost() {
        let read = busy();
        let mut noted = read.clone();
        noted.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        let kept = PackedPod::new(noted);
        assert_eq!(kept.open(), read);
        assert_eq!((kept.uid(), kept.key()), ("u", ("n".to_owned(), "a".to_owned())));
        assert!(kept.is(&("n".into(), "a".into())) && !kept.is(&("a".into(), "n".into())));
        assert_eq!(kept.reference(), wire::PodRef::from(&read));
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let containers = busy().status.unwrap().container_statuses.unwrap();
        let told = wire::PodStatus {
            name: "a".into(),
            uid: "u".into(),
            namespace: "n".into(),
            jid: "17".into(),
            containers,
            stale_seconds: 3,
            pod_ip: "10.0.0.1".into(),
            ..Default::default()
        };
        let kept = PackedStatus::new(&told);
        assert_eq!(kept.open(), told);
        assert_eq!(kept, PackedStatus::new(&kept.open()), "news is told apart by the text");
    }
}
