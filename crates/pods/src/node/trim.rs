//! What is kept of objects without the room that reading them left: a list grows by doubling while it is
//! read, and a place for four states where there is one is megabytes for a thousand pods.

use k8s_openapi::api::core::v1::Pod;

use crate::wire::PodStatus;

/// A pod as it is kept.
pub(super) fn pod(mut pod: Pod) -> Pod {
    // The bulk of an object, and of no use here.
    pod.metadata.managed_fields = None;
    fit(&mut pod.metadata.owner_references);
    fit(&mut pod.metadata.finalizers);
    if let Some(spec) = &mut pod.spec {
        fit(&mut spec.tolerations);
        fit(&mut spec.volumes);
        fit(&mut spec.image_pull_secrets);
        fit(&mut spec.init_containers);
        spec.containers.shrink_to_fit();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            fit(&mut container.env);
            fit(&mut container.volume_mounts);
            fit(&mut container.command);
            fit(&mut container.args);
        }
    }
    if let Some(status) = &mut pod.status {
        fit(&mut status.conditions);
        fit(&mut status.container_statuses);
        fit(&mut status.init_container_statuses);
        fit(&mut status.host_ips);
        fit(&mut status.pod_ips);
    }
    pod
}

/// A state as it is kept.
pub(super) fn told(mut told: PodStatus) -> PodStatus {
    told.containers.shrink_to_fit();
    told.init_containers.shrink_to_fit();
    told
}

fn fit<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_but_the_record_of_writers_is_lost() {
        let object = json!({
            "metadata": {"name": "a", "finalizers": ["x"], "ownerReferences":
                [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "u"}]},
            "spec": {
                "containers": [{"name": "main", "command": ["a"], "args": ["b"], "env": [{"name": "E", "value": "1"}],
                                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "initContainers": [{"name": "first"}], "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "v", "emptyDir": {}}], "imagePullSecrets": [{"name": "s"}],
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "10.0.0.1"}]},
        });
        let read: Pod = serde_json::from_value(object).unwrap();
        let mut noted = read.clone();
        noted.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        let kept = pod(noted);
        assert_eq!(kept, read);
        assert_eq!(kept.status.unwrap().conditions.unwrap().capacity(), 1);
    }
}
