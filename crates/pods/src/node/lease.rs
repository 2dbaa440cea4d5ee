//! The node's Lease: the sign of life that the cluster goes by.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_cluster::{Class, class, describe, merge};
use tokio_util::sync::CancellationToken;

/// A quarter of the time after which the cluster takes a node for dead.
const RENEW: Duration = Duration::from_secs(10);
const SECONDS: u32 = 40;
const NAMESPACE: &str = "kube-node-lease";

/// Renews the lease of `name` until `stop`.
pub(super) async fn keep(client: Client, name: String, stop: CancellationToken) {
    let mut failing = false;
    loop {
        match renew(&client, &name).await {
            Ok(()) => {
                if std::mem::take(&mut failing) {
                    tracing::info!("The node's lease is renewed again.");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(cause = describe(&error), "The node's lease could not be renewed.");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(if failing { RENEW / 5 } else { RENEW }) => {}
        }
    }
}

async fn renew(client: &Client, name: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = json!({
        "holderIdentity": name,
        "leaseDurationSeconds": SECONDS,
        "renewTime": format!("{:.6}", Timestamp::now()),
    });
    match merge(&leases, name, &json!({"spec": spec})).await {
        Err(error) if class(&error) == Class::Missing => {}
        other => return other.map(drop),
    }
    // It goes with the node.
    let node = Api::<KubeNode>::all(client.clone()).get_opt(name).await?;
    let owner = node
        .and_then(|node| node.metadata.uid)
        .map(|uid| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]));
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": owner.unwrap_or(Value::Null)},
        "spec": spec,
    });
    let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    match leases.create(&PostParams::default(), &lease).await {
        Err(error) if class(&error) == Class::Exists => Ok(()),
        other => other.map(drop),
    }
}
