//! The control planes are whole: API, controllers, scheduler, RBAC, and two that keep apart.

use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{ControlPlane, Kubectl, eventually, shared_pair};

/// Generous: compilers may share the cores.
const SOON: Duration = Duration::from_secs(90);

async fn private() -> &'static ControlPlane {
    &shared_pair().await.unwrap().private
}

async fn gone(kubectl: &Kubectl, args: &[&str]) {
    let look = || async {
        match kubectl.run(args).await {
            Err(error) if error.to_string().contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(SOON, &format!("the end of {}", args.join(" ")), look).await.unwrap();
}

fn pod_spec() -> Value {
    json!({ "containers": [{ "name": "main", "image": "local/never-pulled" }] })
}

#[tokio::test]
async fn the_children_of_a_custom_object_go_with_it() {
    let plane = private().await;
    let kubectl = plane.kubectl();
    let namespace = plane.unique_namespace("owner").await.unwrap();
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "boats.testbed.tarbet.dev" },
        "spec": {
            "group": "testbed.tarbet.dev",
            "scope": "Namespaced",
            "names": { "plural": "boats", "singular": "boat", "kind": "Boat" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object",
                "properties": { "spec": { "type": "object", "properties": { "oars": { "type": "integer" } } } },
            } } }],
        },
    });
    kubectl.apply(&crd).await.unwrap();
    kubectl
        .run(&["wait", "crd/boats.testbed.tarbet.dev", "--for=condition=Established", "--timeout=60s"])
        .await
        .unwrap();

    let boat = json!({
        "apiVersion": "testbed.tarbet.dev/v1", "kind": "Boat",
        "metadata": { "name": "tender", "namespace": namespace }, "spec": { "oars": 2 },
    });
    // Established, but the new path may take a moment to be served.
    eventually(SOON, "a Boat", || kubectl.apply(&boat)).await.unwrap();
    let wrong = json!({
        "apiVersion": "testbed.tarbet.dev/v1", "kind": "Boat",
        "metadata": { "name": "wrong", "namespace": namespace }, "spec": { "oars": "two" },
    });
    assert!(kubectl.apply(&wrong).await.is_err());

    let boat = kubectl.json(&["get", "boat", "tender", "-n", &namespace]).await.unwrap();
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "oars", "namespace": namespace, "ownerReferences": [{
            "apiVersion": "testbed.tarbet.dev/v1", "kind": "Boat", "name": "tender", "uid": boat["metadata"]["uid"],
        }] },
    });
    kubectl.apply(&child).await.unwrap();
    kubectl.run(&["delete", "boat", "tender", "-n", &namespace]).await.unwrap();
    gone(&kubectl, &["get", "configmap", "oars", "-n", &namespace]).await;

    let public = &shared_pair().await.unwrap().public;
    gone(&public.kubectl(), &["get", "crd", "boats.testbed.tarbet.dev"]).await;
}

#[tokio::test]
async fn a_token_request_gives_a_token_that_one_plane_accepts() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("token").await.unwrap();
    let admin = pair.private.kubectl();
    admin.run(&["create", "serviceaccount", "sailor", "-n", &namespace]).await.unwrap();
    let token = pair.private.service_account_token(&namespace, "sailor").await.unwrap();

    let sailor = pair.private.kubectl_with(pair.private.kubeconfig_with_token(&token).unwrap());
    let me = sailor.json(&["auth", "whoami"]).await.unwrap();
    let name = format!("system:serviceaccount:{namespace}:sailor");
    assert_eq!(me["status"]["userInfo"]["username"], name.as_str());

    let refused = sailor.run(&["get", "configmaps", "-n", &namespace]).await.unwrap_err().to_string();
    assert!(refused.contains("Forbidden"), "{refused}");
    let account = format!("{namespace}:sailor");
    let grant = [
        "create",
        "rolebinding",
        "sail",
        "--clusterrole=view",
        "--serviceaccount",
        &account,
        "-n",
        &namespace,
    ];
    admin.run(&grant).await.unwrap();
    let read = ["get", "configmaps", "-n", &namespace];
    eventually(SOON, "the grant to take effect", || sailor.run(&read)).await.unwrap();

    let elsewhere = pair.public.kubectl_with(pair.public.kubeconfig_with_token(&token).unwrap());
    assert!(elsewhere.run(&["auth", "whoami"]).await.is_err());
}

#[tokio::test]
async fn everybody_is_who_their_kubeconfig_says() {
    let plane = private().await;
    for groups in [&[][..], &["crew"], &["crew", "officers"]] {
        let ann = plane.kubectl_as("ann", groups).unwrap();
        let me = ann.json(&["auth", "whoami"]).await.unwrap();
        assert_eq!(me["status"]["userInfo"]["username"], "ann");
        let has: Vec<&str> =
            me["status"]["userInfo"]["groups"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(has, [groups, &["system:authenticated"]].concat());
        let refused = ann.run(&["get", "secrets", "-A"]).await.unwrap_err().to_string();
        assert!(refused.contains("Forbidden"), "{refused}");
    }
    let config = plane.client_config();
    assert!(config.authority.is_file());
    let by_token = plane.kubectl_with(plane.kubeconfig_with_token(&config.token).unwrap());
    by_token.run(&["get", "secrets", "-A"]).await.unwrap();
}

#[tokio::test]
async fn the_scheduler_binds_a_pod_to_a_ready_node() {
    let plane = private().await;
    let kubectl = plane.kubectl();
    let namespace = plane.unique_namespace("bind").await.unwrap();
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "raft", "labels": { "kubernetes.io/hostname": "raft", "kubernetes.io/os": "linux" } },
    });
    kubectl.apply(&node).await.unwrap();
    let room = json!({ "cpu": "4", "memory": "8Gi", "pods": "100" });
    let status = json!({ "status": {
        "capacity": room, "allocatable": room,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "HandMade", "message": "afloat" }],
    } });
    let patch = ["patch", "node", "raft", "--subresource=status", "--type=merge", "-p", &status.to_string()];
    kubectl.run(&patch).await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "passenger", "namespace": namespace }, "spec": pod_spec(),
    });
    kubectl.apply(&pod).await.unwrap();
    let pod = ["get", "pod", "passenger", "-n", &namespace, "-o", "jsonpath={.spec.nodeName}"];
    let bound = || async { kubectl.run(&pod).await.is_ok_and(|node| node == "raft") };
    eventually(SOON, "the pod on the raft", bound).await.unwrap();
    kubectl.run(&["delete", "node", "raft"]).await.unwrap();
}

#[tokio::test]
async fn a_deployment_makes_pods_and_its_namespace_can_go() {
    let plane = &shared_pair().await.unwrap().public;
    let kubectl = plane.kubectl();
    let namespace = plane.unique_namespace("fleet").await.unwrap();
    let labels = json!({ "app": "fleet" });
    // On no node there is, so that nothing waits for a kubelet to end it.
    let mut spec = pod_spec();
    spec["nodeSelector"] = json!({ "sea": "none" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "fleet", "namespace": namespace },
        "spec": { "replicas": 3, "selector": { "matchLabels": labels },
                  "template": { "metadata": { "labels": labels }, "spec": spec } },
    });
    kubectl.apply(&deployment).await.unwrap();
    let pods = || async {
        let pods = kubectl.json(&["get", "pods", "-n", &namespace]).await?;
        let count = pods["items"].as_array().map_or(0, Vec::len);
        anyhow::ensure!(count == 3, "{count} pods");
        anyhow::Ok(())
    };
    eventually(SOON, "three pods", pods).await.unwrap();
    kubectl.run(&["delete", "namespace", &namespace, "--wait=false"]).await.unwrap();
    gone(&kubectl, &["get", "namespace", &namespace]).await;
}

#[tokio::test]
async fn the_planes_keep_their_objects_apart() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("apart").await.unwrap();
    gone(&pair.public.kubectl(), &["get", "namespace", &namespace]).await;
    let (private, public) =
        (std::fs::read(pair.private.kubeconfig()), std::fs::read(pair.public.kubeconfig()));
    assert_ne!(private.unwrap(), public.unwrap());
    assert_ne!(pair.private.authority().pem(), pair.public.authority().pem());
}

#[tokio::test]
async fn the_api_comes_back_after_a_restart_with_what_it_had() {
    let mut plane = ControlPlane::start("lonely").await.unwrap();
    let kubectl = plane.kubectl();
    let namespace = plane.unique_namespace("kept").await.unwrap();
    plane.restart_apiserver().await.unwrap();
    kubectl.run(&["get", "namespace", &namespace]).await.unwrap();
    let version = kubectl.json(&["version"]).await.unwrap();
    assert!(version["serverVersion"]["gitVersion"].as_str().unwrap().starts_with("v1.33."), "{version}");
    // The controllers find their way back by themselves.
    plane.unique_namespace("after").await.unwrap();
    plane.stop().await.unwrap();
}
