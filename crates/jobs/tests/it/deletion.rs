//! Deleting a request cancels its run and leaves nothing behind; deleting a run ends its request.

use super::rig::{Rig, SOON};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::eventually;

async fn gone(rig: &Rig, name: &str) {
    let api = rig.requests();
    eventually(SOON, "the request to go", || async {
        api.get_opt(name).await.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_deleted_request_takes_its_run_with_it() {
    let rig = Rig::new("delete").await;
    let controller = rig.start();
    rig.submit("running", json!({ "request": "build" })).await;
    rig.until("running", Phase::Running).await;
    rig.requests().delete("running", &DeleteParams::default()).await.unwrap();
    gone(&rig, "running").await;
    assert_eq!(rig.run_count().await, 0, "the run goes before the request does");
    let maps: Api<ConfigMap> = Api::namespaced(rig.local.clone(), &rig.namespace);
    assert!(
        maps.list(&ListParams::default().labels("tarbet.dev/request-log")).await.unwrap().items.is_empty()
    );
    controller.stop().await;
}

#[tokio::test]
async fn a_request_deleted_while_nobody_looks_is_cleaned_up_later() {
    let rig = Rig::new("later").await;
    let controller = rig.start();
    rig.submit("a", json!({ "request": "build" })).await;
    rig.until("a", Phase::Running).await;
    controller.crash().await;
    rig.requests().delete("a", &DeleteParams::default()).await.unwrap();
    let controller = rig.start();
    gone(&rig, "a").await;
    rig.no_runs().await;
    controller.stop().await;
}

#[tokio::test]
async fn a_request_removed_by_force_does_not_leave_its_run() {
    let rig = Rig::new("force").await;
    let controller = rig.start();
    for name in ["one", "two", "three"] {
        rig.submit(name, json!({ "request": "build" })).await;
        rig.until(name, Phase::Running).await;
        let none = json!({ "metadata": { "finalizers": [] } });
        rig.requests().delete(name, &DeleteParams::default()).await.unwrap();
        // Either of us may come first.
        let _ = rig.requests().patch(name, &PatchParams::default(), &Patch::Merge(&none)).await;
        gone(&rig, name).await;
        rig.no_runs().await;
    }
    // The same while no controller runs: the run is found without any event about the request.
    rig.submit("offline", json!({ "request": "build" })).await;
    rig.until("offline", Phase::Running).await;
    controller.crash().await;
    let none = json!({ "metadata": { "finalizers": [] } });
    rig.requests().patch("offline", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    rig.requests().delete("offline", &DeleteParams::default()).await.unwrap();
    gone(&rig, "offline").await;
    // A successor of the same name is another request and gets its own run.
    rig.submit("offline", json!({ "request": "build" })).await;
    let controller = rig.start();
    rig.until("offline", Phase::Running).await;
    eventually(SOON, "only the successor's run", || async { rig.run_count().await == 1 }).await.unwrap();
    rig.run_of("offline").await;
    controller.stop().await;
}

#[tokio::test]
async fn a_run_deleted_by_hand_fails_its_request_and_is_not_repeated() {
    let rig = Rig::new("hand").await;
    let record = rig.record();
    let controller = rig.start();
    rig.submit("watched", json!({ "request": "build" })).await;
    let run = rig.run_of("watched").await;
    rig.until("watched", Phase::Running).await;
    rig.runs().delete(&run.name_any(), &DeleteParams::default()).await.unwrap();
    let failed = rig.until("watched", Phase::Failed).await.status.unwrap();
    assert_eq!(failed.conditions[0].message, "the PipelineRun was deleted before it finished");
    rig.no_runs().await;

    // While nobody looks.
    rig.submit("unwatched", json!({ "request": "build" })).await;
    let run = rig.run_of("unwatched").await;
    rig.until("unwatched", Phase::Running).await;
    controller.crash().await;
    rig.runs().delete(&run.name_any(), &DeleteParams::default()).await.unwrap();
    let controller = rig.start();
    rig.until("unwatched", Phase::Failed).await;
    rig.no_runs().await;

    // A finished run that is deleted before we could report it is reported all the same.
    rig.submit("reported", json!({ "request": "build" })).await;
    let run = rig.run_of("reported").await;
    rig.until("reported", Phase::Running).await;
    controller.crash().await;
    rig.finish(&run.name_any(), true, &[("digest", "kept")]).await;
    rig.runs().delete(&run.name_any(), &DeleteParams::default()).await.unwrap();
    let controller = rig.start();
    let done = rig.until("reported", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "kept");
    rig.no_runs().await;
    for name in ["watched", "unwatched", "reported"] {
        record.assert_once(name).await;
    }
    controller.stop().await;
}
