//! A node with very many pods: what it costs to do nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use tarbet_testbed::product::Product;
use tarbet_testbed::{ControlPlane, Lease, Slurm, eventually};

use super::calls::Edge;
use crate::Bench;
use crate::cpu::{resident_mib, seconds};
use crate::figure::{Figure, Mark, Section};

/// As many as a node should hold, and fewer for somebody who waits.
const PODS: usize = 1_000;
const QUICK: usize = 200;

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let (slurm, plane) = tokio::try_join!(Slurm::start(), ControlPlane::start("pods-bench"))?;
    let product = Product::new(&bench.binary)?;
    let count = if bench.scale.is_quick() { QUICK } else { PODS };
    let edge = Edge::slurm(&product, &slurm, &[]).await?;
    let ports = Lease::block(1)?;
    let (url, listen) = (format!("http://{}", edge.address), format!("127.0.0.1:{}", ports.port(0)));
    let kubeconfig = plane.kubeconfig().display().to_string();
    let node = [
        "node",
        "--nodename",
        "many",
        "--interlink-url",
        &url,
        "--kubeconfig",
        &kubeconfig,
        "--kubelet-listen",
        &listen,
        "--set",
        "node.DisableCSR=true",
    ];
    let node = product.role("node", &node, &[]).await?;
    let kubectl = plane.kubectl();
    let pods: Vec<_> = (0..count)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{number}"), "namespace": "default"},
                "spec": {
                    "nodeName": "many", "tolerations": [{"operator": "Exists"}], "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "main", "image": "none", "command": ["sleep", "600"]}],
                },
            })
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string();
    kubectl.run_with_input(&["create", "-f", "-"], &list).await?;
    eventually(Duration::from_mins(10), "all pods to be sent", || async {
        let noted =
            kubectl.run(&["get", "pods", "-o", "jsonpath={.items[*].metadata.annotations.JobID}"]).await?;
        let sent = noted.split_whitespace().count();
        ensure!(sent == count, "{sent} are sent");
        Ok(())
    })
    .await?;
    let (mut share, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let (before, begun) = (seconds(node.process.pid())?, Instant::now());
        tokio::time::sleep(Duration::from_secs(bench.scale.seconds.max(3) * 3)).await;
        share.push((seconds(node.process.pid())? - before) / begun.elapsed().as_secs_f64() * 100.0);
        memory.push(resident_mib(node.process.pid())?);
    }
    let mut section = Section::new(
        &format!("A node with {count} pods"),
        "On a real control plane, all pods sent to Slurm, 64 of them running and the rest in its queue.",
    );
    section.push(Figure::new("memory", "MiB", memory).mark(Mark::AtMost(40.0)));
    section
        .push(Figure::new("processor while nothing happens", "% of a core", share).mark(Mark::AtMost(2.0)));
    drop(node);
    drop(edge);
    slurm.run("scancel", &["--user=root"]).await?;
    Ok(section)
}
