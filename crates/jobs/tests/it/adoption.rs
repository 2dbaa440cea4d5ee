//! Runs that the original controller left behind go on under this one.

use std::collections::BTreeMap;

use super::rig::{Rig, Running, SOON};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::{Controller, JobMetrics, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::eventually;

/// What the original leaves: its finalizer on the request, a run of a name of the API server's
/// making, and then the run's name in the status.
pub async fn in_flight(rig: &Rig, name: &str, marked: bool, labels: &[(&str, &str)]) -> String {
    rig.submit(name, json!({ "request": "build" })).await;
    let hold = json!({ "metadata": { "finalizers": ["internal-services.appstudio.openshift.io/pipelinerun-cleanup"] } });
    rig.requests().patch(name, &PatchParams::default(), &Patch::Merge(&hold)).await.unwrap();
    let mut all: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    all.extend([
        ("internal-services.appstudio.openshift.io/name".to_owned(), name.to_owned()),
        ("internal-services.appstudio.openshift.io/namespace".to_owned(), rig.tenant.clone()),
        ("pipelines.appstudio.openshift.io/type".to_owned(), "release".to_owned()),
    ]);
    let run = json!({
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
        "metadata": {
            "generateName": "internalrequest-", "labels": all,
            "annotations": {
                "operator-sdk/primary-resource": format!("{}/{name}", rig.tenant),
                "operator-sdk/primary-resource-type": "InternalRequest.appstudio.redhat.com",
            },
        },
        "spec": { "pipelineRef": { "name": "build" } },
    });
    let run: DynamicObject = serde_json::from_value(run).unwrap();
    let run = rig.runs().create(&PostParams::default(), &run).await.unwrap().name_any();
    if marked {
        let status = json!({ "status": {
            "startTime": "2026-01-01T00:00:00Z", "pipelineRun": format!("{}/{run}", rig.namespace),
            "conditions": [{ "type": "Succeeded", "status": "False", "reason": "Running", "message": "",
                             "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } });
        rig.requests().patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }
    run
}

#[tokio::test]
async fn requests_in_flight_under_the_original_are_finished_with_their_runs() {
    let rig = Rig::new("adopt").await;
    let record = rig.record();
    let running = in_flight(&rig, "running", true, &[]).await;
    // Killed between making the run and writing so.
    let fresh = in_flight(&rig, "fresh", false, &[]).await;
    let cut = in_flight(&rig, "cut", true, &[]).await;
    // Finished while nobody looked.
    let over = in_flight(&rig, "over", true, &[]).await;
    rig.finish(&over, true, &[("digest", "old")]).await;
    let controller = rig.start();
    let done = rig.until("over", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "old");
    rig.until("fresh", Phase::Running).await;

    // Another controller of ours goes on with them as well.
    controller.crash().await;
    let controller = rig.start();
    rig.finish(&running, true, &[("digest", "one")]).await;
    rig.finish(&fresh, false, &[]).await;
    let done = rig.until("running", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.pipeline_run.unwrap(), format!("{}/{running}", rig.namespace));
    let failed = rig.until("fresh", Phase::Failed).await.status.unwrap();
    assert_eq!(failed.pipeline_run.unwrap(), format!("{}/{fresh}", rig.namespace));
    rig.requests().delete("cut", &kube::api::DeleteParams::default()).await.unwrap();
    let (api, runs) = (rig.requests(), rig.runs());
    eventually(SOON, "the deleted request and its run to go", || async {
        let (request, run) = (api.get_opt("cut").await, runs.get_opt(&cut).await);
        request.is_ok_and(|found| found.is_none()) && run.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
    rig.no_runs().await;
    for name in ["running", "fresh", "over"] {
        record.assert_once(name).await;
    }
    controller.stop().await;
}

#[tokio::test]
async fn labels_that_a_requester_chose_claim_no_run_of_another() {
    let rig = Rig::new("claim").await;
    rig.submit("victim", json!({ "request": "build" })).await;
    let uid = rig.request("victim").await.uid().unwrap();
    // The original copied every label of a request to its run, also these.
    let labels = [("tarbet.dev/remote", rig.namespace.as_str()), ("tarbet.dev/request-uid", uid.as_str())];
    let forged = in_flight(&rig, "forger", false, &labels).await;
    rig.finish(&forged, true, &[("digest", "forged")]).await;
    let controller = rig.start();
    let run = rig.run_of("victim").await;
    rig.finish(&run.name_any(), true, &[("digest", "true")]).await;
    let done = rig.until("victim", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "true");
    controller.stop().await;
}

/// As when the cluster has another URL and the remote is named after it.
#[tokio::test]
async fn runs_go_on_when_their_remote_gets_another_name() {
    let rig = Rig::new("renamed").await;
    let record = rig.record();
    let controller = rig.start();
    for name in ["running", "over", "cut"] {
        rig.submit(name, json!({ "request": "build" })).await;
        rig.until(name, Phase::Running).await;
    }
    let (running, over) = (rig.run_of("running").await.name_any(), rig.run_of("over").await.name_any());
    controller.stop().await;
    rig.finish(&over, true, &[("digest", "old")]).await;
    rig.requests().delete("cut", &kube::api::DeleteParams::default()).await.unwrap();
    let start = || {
        let remotes = vec![Remote { name: format!("{}-now", rig.namespace), client: rig.remote.clone() }];
        let metrics = JobMetrics::register(&Metrics::new("jobs", "test"));
        let (config, local) = (rig.config(), rig.local.clone());
        Running::start(Controller::new(config, local, remotes, metrics, Health::default(), "renamed"))
    };
    let controller = start();
    let done = rig.until("over", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "old");
    controller.crash().await;
    let controller = start();
    rig.finish(&running, true, &[("digest", "one")]).await;
    let done = rig.until("running", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.pipeline_run.unwrap(), format!("{}/{running}", rig.namespace));
    let api = rig.requests();
    eventually(SOON, "the deleted request to go", || async {
        api.get_opt("cut").await.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
    rig.no_runs().await;
    for name in ["running", "over"] {
        record.assert_once(name).await;
    }
    controller.stop().await;
}
