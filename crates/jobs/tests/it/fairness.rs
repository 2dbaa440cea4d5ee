//! Limits, turns, places in line, and changes of the configuration under those who wait.

use super::rig::{Rig, SOON, clusters};
use kube::ResourceExt;
use serde_json::{Value, json};
use tarbet_jobs::machine::Phase;
use tarbet_testbed::eventually;

fn limited(rig: &Rig, more: &[&str], limit: u32) -> Value {
    let mut allowed = vec![rig.tenant.clone()];
    allowed.extend(more.iter().map(|name| (*name).to_owned()));
    json!({ "allowList": allowed, "watchScope": "allowed", "offers": [{ "pipeline": "build", "concurrency": limit }] })
}

#[tokio::test]
async fn an_offer_runs_so_many_at_once_and_the_line_says_the_place() {
    let rig = Rig::new("limit").await;
    rig.configure(limited(&rig, &[], 2)).await;
    let controller = rig.start();
    for n in 0..4 {
        rig.submit(&format!("r{n}"), json!({ "request": "build" })).await;
        // One after another, so that the order is known.
        let phase = if n < 2 { Phase::Running } else { Phase::Queued };
        rig.until(&format!("r{n}"), phase).await;
    }
    for (name, place) in [("r2", 1), ("r3", 2)] {
        let status = rig.request(name).await.status.unwrap();
        assert_eq!(status.queue.unwrap().position, place);
        assert_eq!(status.conditions[0].reason, "Running", "callers wait on");
        assert!(status.pipeline_run.is_some() && status.start_time.is_none());
    }
    assert_eq!(rig.run_count().await, 2);
    let page = rig.metrics.render().unwrap();
    assert!(page.contains("internal_request_attempt_concurrent_requests 2\n"), "{page}");
    assert!(page.contains("tarbet_jobs_waiting_requests 2\n"), "{page}");

    // After a restart the limit still holds.
    controller.crash().await;
    let controller = rig.start();
    let run = rig.run_of("r0").await;
    rig.finish(&run.name_any(), true, &[]).await;
    rig.until("r0", Phase::Succeeded).await;
    let next = eventually(SOON, "the next run", || async {
        let runs = rig.runs().list(&kube::api::ListParams::default()).await.unwrap().items;
        let names: Vec<String> =
            runs.iter().map(|run| run.annotations()["operator-sdk/primary-resource"].clone()).collect();
        (runs.len() == 2 && !names.iter().any(|name| name.ends_with("/r0"))).then_some(names)
    })
    .await
    .unwrap();
    assert!(next.iter().any(|name| name.ends_with("/r2")), "{next:?}");

    let _tekton = rig.play_tekton();
    for name in ["r1", "r2", "r3"] {
        let done = rig.until(name, Phase::Succeeded).await.status.unwrap();
        assert!(done.queue.is_none() && done.start_time.is_some());
    }
    assert!(rig.writes.load(std::sync::atomic::Ordering::Relaxed) <= 12, "three writes each");
    controller.stop().await;
}

#[tokio::test]
async fn a_run_that_is_removed_by_force_is_not_repeated_for_a_request_that_waited() {
    let rig = Rig::new("limit-force").await;
    rig.configure(limited(&rig, &[], 1)).await;
    let (controller, record) = (rig.start(), rig.record());
    rig.submit("first", json!({ "request": "build" })).await;
    rig.until("first", Phase::Running).await;
    rig.submit("second", json!({ "request": "build" })).await;
    rig.until("second", Phase::Queued).await;
    let first = rig.run_of("first").await;
    rig.finish(&first.name_any(), true, &[]).await;
    let run = rig.run_of("second").await.name_any();
    // Its status is as it was when it joined the line, and true all the same.
    let status = rig.request("second").await.status.unwrap();
    assert_eq!(status.conditions[0].message, "accepted at place 1 of the line; it runs when its turn comes");
    let none = json!({ "metadata": { "finalizers": [] } });
    let params = kube::api::PatchParams::default();
    rig.runs().patch(&run, &params, &kube::api::Patch::Merge(&none)).await.unwrap();
    rig.runs().delete(&run, &kube::api::DeleteParams::default()).await.unwrap();
    let failed = rig.until("second", Phase::Failed).await.status.unwrap();
    assert_eq!(failed.conditions[0].message, "the PipelineRun was deleted before it finished");
    record.assert_once("second").await;
    controller.stop().await;
}

#[tokio::test]
async fn a_crowd_of_one_tenant_does_not_block_another() {
    let rig = Rig::new("crowd-fair").await;
    let quiet = clusters().await.public.unique_namespace("quiet").await.unwrap();
    rig.configure(limited(&rig, &[&quiet], 1)).await;
    let controller = rig.start();
    for n in 0..6 {
        rig.submit(&format!("loud-{n}"), json!({ "request": "build" })).await;
    }
    rig.until("loud-5", Phase::Queued).await;
    rig.submit_in(&quiet, "single", json!({ "request": "build" })).await.unwrap();
    // It has joined the line before anybody's turn is over.
    rig.until_in(&quiet, "single", Phase::Queued).await;
    let mut order = Vec::new();
    while order.len() < 3 {
        let run = eventually(SOON, "a run", || async {
            let runs = rig.runs().list(&kube::api::ListParams::default()).await.unwrap().items;
            runs.into_iter()
                .find(|run| run.data.get("status").is_none() && run.metadata.deletion_timestamp.is_none())
        })
        .await
        .unwrap();
        order.push(run.annotations()["operator-sdk/primary-resource"].clone());
        rig.finish(&run.name_any(), true, &[]).await;
        rig.run_gone(&run.name_any()).await;
    }
    assert!(order[1..].contains(&format!("{quiet}/single")), "{order:?}");
    controller.stop().await;
}

#[tokio::test]
async fn those_who_wait_are_judged_again_when_the_configuration_changes() {
    let rig = Rig::new("again").await;
    rig.pipeline("other", &[]).await;
    rig.configure(limited(&rig, &[], 1)).await;
    let controller = rig.start();
    rig.submit("first", json!({ "request": "build" })).await;
    rig.until("first", Phase::Running).await;
    rig.submit("second", json!({ "request": "build" })).await;
    rig.submit("third", json!({ "request": "build" })).await;
    rig.until("second", Phase::Queued).await;
    rig.until("third", Phase::Queued).await;

    rig.configure(limited(&rig, &[], 2)).await;
    eventually(SOON, "a second run", || async { rig.run_count().await == 2 }).await.unwrap();
    rig.configure(
        json!({ "allowList": [rig.tenant], "watchScope": "allowed", "offers": [{ "pipeline": "other" }] }),
    )
    .await;
    let phases = || async {
        let (second, third) = (rig.request("second").await, rig.request("third").await);
        [second, third].map(|request| Phase::of(&request.status.unwrap_or_default()))
    };
    eventually(SOON, "the one who waits to be refused", || async {
        phases().await.contains(&Phase::Rejected)
    })
    .await
    .unwrap();
    // What runs already goes on.
    assert_eq!(rig.run_count().await, 2);
    let _tekton = rig.play_tekton();
    rig.until("first", Phase::Succeeded).await;
    rig.no_runs().await;
    controller.stop().await;
}

/// The definition of the original knows neither `queue` nor `logs` and drops them.
#[tokio::test]
async fn the_line_works_with_an_older_definition_of_the_kind() {
    let pair = clusters().await;
    let public = pair.public.beside("older").await.unwrap();
    let mut definition = serde_json::to_value(&tarbet_jobs::crd::definitions()[0]).unwrap();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let status = schema["properties"]["status"]["properties"].as_object_mut().unwrap();
    assert!(status.remove("queue").is_some() && status.remove("logs").is_some());
    public.kubectl().apply(&definition).await.unwrap();
    let (kubectl, list) = (public.kubectl(), ["get", "internalrequests", "-A"]);
    eventually(SOON, "the kind", || kubectl.run(&list)).await.unwrap();
    let rig = Rig::on("older", &pair.private, &public).await;
    rig.configure(
        json!({ "allowList": [rig.tenant], "offers": [{ "pipeline": "build", "concurrency": 1 }] }),
    )
    .await;
    rig.pipeline("build", &[]).await;
    let record = rig.record();
    let controller = rig.start();
    rig.submit("one", json!({ "request": "build" })).await;
    rig.until("one", Phase::Running).await;
    rig.submit("two", json!({ "request": "build" })).await;
    let waiting = rig.until("two", Phase::Queued).await.status.unwrap();
    assert!(waiting.queue.is_none() && waiting.conditions[0].message.contains("at place 1"));
    controller.crash().await;
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    for name in ["one", "two"] {
        rig.until(name, Phase::Succeeded).await;
        record.assert_once(name).await;
    }
    controller.stop().await;
}

impl Rig {
    async fn run_gone(&self, name: &str) {
        let api = self.runs();
        eventually(SOON, "the run to go", || async {
            api.get_opt(name).await.is_ok_and(|run| run.is_none())
        })
        .await
        .unwrap();
    }
}
