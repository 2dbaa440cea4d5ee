//! Pods as interLink's own node and API server send them: resolved, and perhaps without all contents.

use serde_json::json;
use tarbet_pods::plan::{Content, Policy, plan};

use super::pods::{pod, with};

#[test]
fn a_pod_without_its_projected_files_runs_all_the_same() {
    let spec = json!({
        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}}],
    });
    let made = plan(&with(spec, json!([{"name": "c"}]), json!({})), &Policy::default()).unwrap();
    let Content::Files(files) = &made.volumes[0].content else { panic!("no files") };
    let names: Vec<&str> = files.keys().map(tarbet_pods::plan::RelPath::as_str).collect();
    assert_eq!(names, ["namespace"]);
    assert_eq!(made.left_out.len(), 2, "{:?}", made.left_out);
}

#[test]
fn values_that_a_node_resolved_are_final() {
    let env = json!([{"name": "A", "value": "a"}, {"name": "B", "value": "$(A) $$(A) $$ $(NO)"}]);
    let spec = json!({"containers": [{"name": "c", "image": "i", "env": env, "command": ["echo", "$(B)"]}]});
    let made = plan(&pod(spec), &Policy::default()).unwrap();
    let value = "$(A) $$(A) $$ $(NO)";
    assert_eq!(made.containers[0].env[1].1, value);
    assert_eq!(made.containers[0].command.as_ref().unwrap()[1], value);
}

#[test]
fn values_that_nobody_resolved_are_resolved_here() {
    let env = json!([
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "value": "$(A) $$(A)"},
    ]);
    let spec = json!({"containers": [{"name": "c", "image": "i", "env": env}]});
    let made = plan(&pod(spec), &Policy::default()).unwrap();
    assert_eq!(made.containers[0].env[1].1, "pod $(A)");
}
