//! Nets with pods and mesh: a tag stands for the pods of a node or behind a service, and permit lists follow them.

use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{Kubectl, Process, Program, eventually, shared_pair};

use crate::up::Machine;

const SOON: Duration = Duration::from_mins(1);

/// A pod that runs at this address, as the kubelet of its node would report it.
async fn runs(kubectl: &Kubectl, namespace: &str, node: &str, name: &str, address: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": "pay" } },
        "spec": { "nodeName": node, "tolerations": [{ "operator": "Exists" }], "containers": [{ "name": "main", "image": "none" }] },
    });
    kubectl.apply(&pod).await.unwrap();
    let status = json!({ "status": {
        "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let patch = status.to_string();
    let words = ["patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", &patch];
    kubectl.run(&words).await.unwrap();
}

/// The addresses that the permit list of `web` is in force for.
async fn targets(machine: &Machine) -> Vec<String> {
    let said = machine.say(&["glide", "rule", "get", "local", "web", "-o", "json"]).await;
    let rules: Value = serde_json::from_str(&said).unwrap();
    let rules = rules.as_array().cloned().unwrap_or_default();
    let listed = rules.iter().flat_map(|rule| match &rule["targets"] {
        Value::Array(targets) => {
            targets.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        }
        targets => {
            let text = targets.as_str().unwrap_or_default();
            text.split([',', ' ']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        }
    });
    let mut targets: Vec<String> = listed.map(|target| target.trim_end_matches("/32").to_owned()).collect();
    targets.sort();
    targets
}

#[tokio::test(flavor = "multi_thread")]
async fn permit_lists_follow_the_pods_of_a_node_and_of_a_service() {
    // A cluster of its own: its exported service would appear in the meshes of other tests.
    let plane = &shared_pair().await.unwrap().private.beside("crossing-nets").await.unwrap();
    let (kubectl, machine) = (plane.kubectl(), Machine::new().await);
    let namespace = plane.unique_namespace("follow").await.unwrap();
    let node = format!("node-{namespace}");
    kubectl
        .apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } }))
        .await
        .unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "pay", "namespace": namespace, "labels": { "export": "true" } },
        "spec": { "selector": { "app": "pay" }, "ports": [{ "port": 443 }] },
    });
    kubectl.apply(&service).await.unwrap();
    let mut up = machine.start();
    machine.ready().await;
    // The pods run on machines that nets knows, under the machines' addresses.
    let description = machine.folder.write("web.json", "{}").unwrap().display().to_string();
    for name in ["web", "hpc-a", "hpc-b"] {
        machine.say(&["glide", "resource", "create", "local", name, &description]).await;
    }
    let listed = machine.say(&["glide", "resource", "list", "-o", "json"]).await;
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let address = |short: &str| {
        let found = listed.iter().find(|one| one["name"].as_str().is_some_and(|name| name.ends_with(short)));
        found.unwrap()["ip"].as_str().unwrap().to_owned()
    };
    let (first, second) = (address("hpc-a"), address("hpc-b"));
    runs(&kubectl, &namespace, &node, "first", &first).await;
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (on_node, behind) = (format!("hpc=node/{node}"), format!("pay=service/{namespace}/pay"));
    let follow = ["glide", "follow", &on_node, &behind, "--kubeconfig", &kubeconfig];
    let planned = machine.say(&[&follow[..], &["--plan"]].concat()).await;
    assert!(planned.contains(&format!("add {first} to the tag `hpc`")), "{planned}");
    let both = || async {
        machine.say(&[&follow[..], &["--once"]].concat()).await;
        let tags = machine.say(&["glide", "tag", "list", "-o", "json"]).await;
        let members: Vec<Value> = serde_json::from_str(&tags).unwrap();
        let named =
            |tag: &str| members.iter().any(|one| one["name"] == tag && one["child_tags"] == json!([first]));
        (named("hpc") && named("pay")).then_some(()).ok_or(tags)
    };
    eventually(SOON, "both tags to stand for the pod", both).await.unwrap();

    let rules = json!([
        { "name": "pods", "direction": "inbound", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["hpc"] },
        { "name": "callers", "direction": "inbound", "src_port": -1, "dst_port": 8443, "protocol": 6, "tags": ["pay"] },
    ]);
    let rules = machine.folder.write("rules.json", &rules.to_string()).unwrap().display().to_string();
    machine.say(&["glide", "rule", "add", "local", "web", "--rulefile", &rules]).await;
    assert_eq!(targets(&machine).await, [first.as_str(), &first]);

    // From now on by itself: one more comes, and the first one goes.
    let program = Program::new(env!("CARGO_BIN_EXE_tarbet"))
        .args(follow)
        .args(["--every", "300ms"])
        .env("TARBET_STATE", machine.state())
        .env("HOME", machine.folder.path());
    let _following = Process::start(&machine.folder, "follow", program).unwrap();
    let until = async |wanted: &[&str]| {
        let same = || async {
            let found = targets(&machine).await;
            (found == wanted).then_some(()).ok_or(found.join(" "))
        };
        eventually(SOON, "the permit list to follow", same).await.unwrap();
    };
    runs(&kubectl, &namespace, &node, "second", &second).await;
    let mut all = [first.as_str(), &first, &second, &second];
    all.sort_unstable();
    until(&all).await;
    kubectl.run(&["delete", "pod", "first", "-n", &namespace, "--force", "--grace-period=0"]).await.unwrap();
    until(&[second.as_str(), &second]).await;

    kubectl.run(&["delete", "node", &node]).await.unwrap();
    machine.say(&["down"]).await;
    up.stop().await.unwrap();
}
