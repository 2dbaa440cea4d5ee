//! The node's Lease: the sign of life that the cluster goes by.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_cluster::{Class, Reached, class, describe, merge};
use tokio_util::sync::CancellationToken;

/// A quarter of the time after which the cluster takes a node for dead.
const RENEW: Duration = Duration::from_secs(10);
const SECONDS: u32 = 40;
const NAMESPACE: &str = "kube-node-lease";

/// Renews the lease of `name` until `stop`.
pub(super) async fn keep(client: Client, name: String, reached: Reached, stop: CancellationToken) {
    let mut failing = false;
    loop {
        match renew(&client, &name, &reached).await {
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

async fn renew(client: &Client, name: &str, reached: &Reached) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = json!({
        "holderIdentity": name,
        "leaseDurationSeconds": SECONDS,
        "renewTime": format!("{:.6}", Timestamp::now()),
    });
    match merge(&leases, name, &json!({"spec": spec})).await {
        Err(error) if class(&error) == Class::Missing => {}
        Ok(lease) if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) => {
            // The node was not there yet when the lease was made: without an owner it would stay for ever.
            let owner = owner(client, name).await?;
            if !owner.is_null() {
                merge(&leases, name, &json!({"metadata": {"ownerReferences": owner}})).await?;
            }
            return Ok(());
        }
        other => return other.map(drop),
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": owner(client, name).await?},
        "spec": spec,
    });
    let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    let answer = leases.create(&PostParams::default(), &lease).await;
    reached.at("lease made");
    match answer {
        Err(error) if class(&error) == Class::Exists => Ok(()),
        other => other.map(drop),
    }
}

/// What makes the lease go with the node; null while there is none.
async fn owner(client: &Client, name: &str) -> kube::Result<Value> {
    let node = Api::<KubeNode>::all(client.clone()).get_opt(name).await?;
    let owner = |uid| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
    Ok(node.and_then(|node| node.metadata.uid).map_or(Value::Null, owner))
}
