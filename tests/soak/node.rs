//! Pods that come and go on a virtual node, through all that stands behind it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Behind, Edge, Kubectl, eventually, shared_pair, verified};

use super::{Process, Watched};
use crate::jobs::SOON;

/// Pods of a round.
const PODS: usize = 5;

fn pods(namespace: &str, node: &str) -> Value {
    let pod = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("p{number}"), "namespace": namespace },
            "spec": {
                "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [
                    { "name": "main", "image": "none", "command": ["/bin/sh", "-c", "cat /words/word"],
                      "volumeMounts": [{ "name": "words", "mountPath": "/words" }] },
                ],
                "volumes": [{ "name": "words", "configMap": { "name": "words" } }],
            },
        })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": (0..PODS).map(pod).collect::<Vec<_>>() })
}

/// Pods are made, run, tell what they said, and are removed.
async fn round(kubectl: &Kubectl, namespace: &str, all: &Value) -> Result<()> {
    kubectl.apply(all).await?;
    let here = ["-n", namespace];
    let ended = ["wait", "pods", "--all", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"];
    kubectl.run(&[&ended[..], &here].concat()).await?;
    let said = kubectl.run(&[&["logs", "p0"], &here[..]].concat()).await?;
    ensure!(said.trim() == "across", "{said:?}");
    kubectl.run(&[&["delete", "pods", "--all", "--timeout=90s"], &here[..]].concat()).await?;
    Ok(())
}

fn process(role: &'static str, part: &Agent) -> Process {
    let observability = format!("http://127.0.0.1:{}", part.probes());
    Process { role, pid: part.process.pid(), observability }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_come_and_go_leave_nothing_in_the_node_or_behind_it() -> Result<()> {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let plane = &shared_pair().await?.public;
    let (kubectl, namespace) = (plane.kubectl(), plane.unique_namespace("soak").await?);
    let words = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "words", "namespace": namespace }, "data": { "word": "across" },
    });
    kubectl.apply(&words).await?;
    let node = format!("soak-{}", std::process::id());
    let mut edge = Edge::start(&product, plane, &node, Behind::Processes).await?;
    let processes =
        vec![process("node", &edge.node), process("interlink", &edge.api), process("plugin", &edge.plugin)];
    let kept = product.folder().path().join(format!("edge-{node}/plugin"));
    let (mut watched, all, mut ran) = (Watched::briefly(processes), pods(&namespace, &node), 0);
    while watched.goes_on() {
        round(&kubectl, &namespace, &all).await?;
        ran += PODS;
        // A finished pod leaves the cluster at once, and what is behind the node a moment later.
        eventually(SOON, "the pods to be gone from the plugin", || async {
            for entry in std::fs::read_dir(&kept)? {
                let name = entry?.file_name();
                ensure!(!name.to_string_lossy().contains(&namespace), "{}", name.display());
            }
            anyhow::Ok(())
        })
        .await?;
        watched.look().await;
    }
    watched.judge(&format!("{ran} pods"));
    for part in [&mut edge.node, &mut edge.api, &mut edge.plugin] {
        part.process.stop().await?;
    }
    kubectl.run(&["delete", "node", &node, "--wait=false"]).await?;
    verified("pods that come and go after which a node and what is behind it have not grown", ran);
    Ok(())
}
