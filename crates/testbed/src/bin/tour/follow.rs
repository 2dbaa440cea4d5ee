//! Nets with pods and mesh: a tag that stands for pods, and a permit list that follows them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::{ControlPlane, eventually};

use crate::nets::{DENIED, World};
use crate::steps::Tour;

const SOON: Duration = Duration::from_mins(2);

/// On the cluster stands the virtual node `edge`.
pub(crate) async fn walk(
    tour: &mut Tour,
    world: &World<'_>,
    plane: &ControlPlane,
    (web, worker): (SocketAddr, SocketAddr),
) -> Result<()> {
    let (kubectl, kubeconfig) = (plane.kubectl(), plane.kubeconfig().display().to_string());
    let follow =
        ["follow", "workers=node/edge", "pay=service/default/pay", "--kubeconfig", &kubeconfig, "--once"];
    let followed = async || {
        world.glide(&follow).await?;
        anyhow::Ok((members(world, "workers").await?, members(world, "pay").await?))
    };
    tour.step(
        "A tag stands for the pods of a virtual node or of an exported service: one starts, and the flow is open",
        "kubectl apply -f service.yaml -f pod.yaml",
        async {
            let address = worker.ip().to_string();
            kubectl.apply(&service()).await?;
            kubectl.apply(&pod(&address)).await?;
            eventually(SOON, "both tags to stand for the pod", || async {
                let (workers, pay) = followed().await?;
                ensure!(workers == pay && workers == [address.clone()], "{workers:?}, {pay:?}");
                Ok(())
            })
            .await?;
            eventually(SOON, "the flow to pass", || async {
                let patience = Duration::from_secs(2);
                ensure!(world.reaches("west", "worker", web, patience).await?, "it does not pass yet");
                Ok(())
            })
            .await?;
            Ok(((), format!("workers = {address}, pay = {address}\nworker reaches web:8000 again")))
        },
    )
    .await?;
    tour.step(
        "The pod goes, and the flow is closed",
        "kubectl delete pod hand --wait=true --grace-period=1",
        async {
            kubectl.run(&["delete", "pod", "hand", "--wait=true", "--grace-period=1"]).await?;
            eventually(SOON, "both tags to be empty", || async {
                let (workers, pay) = followed().await?;
                ensure!(workers.is_empty() && pay.is_empty(), "{workers:?}, {pay:?}");
                Ok(())
            })
            .await?;
            eventually(SOON, "the flow to be closed", || async {
                ensure!(!world.reaches("west", "worker", web, DENIED).await?, "it still passes");
                Ok(())
            })
            .await?;
            kubectl.run(&["delete", "service", "pay"]).await?;
            Ok(((), "worker no longer reaches web".to_owned()))
        },
    )
    .await
}

async fn members(world: &World<'_>, tag: &str) -> Result<Vec<String>> {
    let listed: Vec<Value> = serde_json::from_str(&world.glide(&["tag", "list", "-o", "json"]).await?)?;
    let found = listed.iter().find(|one| one["name"] == tag);
    let members = found.and_then(|one| one["child_tags"].as_array()).into_iter().flatten();
    Ok(members.filter_map(Value::as_str).map(str::to_owned).collect())
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "pay", "namespace": "default", "labels": { "export": "true" } },
        "spec": { "selector": { "app": "pay" }, "ports": [{ "port": 443 }] },
    })
}

/// What the pod sends comes from this address.
fn pod(address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "hand", "namespace": "default", "labels": { "app": "pay" },
            "annotations": { "interlink.eu/pod-ip": address },
        },
        "spec": {
            "nodeName": "edge", "tolerations": [{ "operator": "Exists" }], "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "shell:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", "while true; do sleep 1; done"],
            }],
        },
    })
}
