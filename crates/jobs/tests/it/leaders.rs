//! Two replicas: one works, the other takes over.

use std::time::Duration;

use super::rig::{Rig, Running, SOON};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::{Config, LeaderElection};
use tarbet_testbed::eventually;

#[tokio::test]
async fn the_second_replica_takes_over_and_nothing_is_doubled() {
    let rig = Rig::new("leaders").await;
    let (record, _tekton) = (rig.record(), rig.play_tekton());
    let leader_election =
        LeaderElection { enabled: true, retry: Duration::from_millis(200), ..LeaderElection::default() };
    let config = Config { leader_election, ..rig.config() };
    let replica = |name: &str| Running::start(rig.controller(config.clone()).with_identity(name));
    let (first, second) = (replica("first"), replica("second"));
    let leases: Api<Lease> = Api::namespaced(rig.local.clone(), &rig.namespace);
    let holder = || async { leases.get("b548bb9d.redhat.com").await.ok()?.spec?.holder_identity };
    let leader = eventually(SOON, "a leader", holder).await.unwrap();
    for n in 0..5 {
        rig.submit(&format!("a{n}"), json!({ "request": "build" })).await;
    }
    let (leading, standing_by) = if leader == "first" { (first, second) } else { (second, first) };
    leading.crash().await;
    for n in 0..5 {
        rig.submit(&format!("b{n}"), json!({ "request": "build" })).await;
    }
    for n in 0..5 {
        for name in [format!("a{n}"), format!("b{n}")] {
            rig.until(&name, Phase::Succeeded).await;
            record.assert_once(&name).await;
        }
    }
    eventually(SOON, "the other to hold it", || async { holder().await.is_some_and(|now| now != leader) })
        .await
        .unwrap();
    standing_by.stop().await;
    assert_eq!(holder().await, None, "given back at a good end");
}
