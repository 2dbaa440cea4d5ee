//! The life of a request as today's callers see it.

use super::rig::{Rig, SOON};
use kube::ResourceExt;
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::names::{REQUEST_FINALIZER, RUN_FINALIZER, run_name};
use tarbet_testbed::eventually;

#[tokio::test]
async fn a_request_runs_and_its_results_come_back() {
    let rig = Rig::new("life").await;
    rig.pipeline("sign", &["workspace"]).await;
    let controller = rig.start();
    rig.submit("first", json!({ "request": "sign", "params": { "image": "quay.io/a:b" } })).await;

    let running = rig.until("first", Phase::Running).await;
    let status = running.status.clone().unwrap();
    let run = rig.run_of("first").await;
    assert_eq!(status.pipeline_run, Some(format!("{}/{}", rig.namespace, run.name_any())));
    assert!(status.start_time.is_some() && status.completion_time.is_none());
    assert_eq!(status.conditions[0].observed_generation, Some(1));
    assert!(running.finalizers().contains(&REQUEST_FINALIZER.to_owned()));

    assert_eq!(run.data["spec"]["pipelineRef"], json!({ "name": "sign" }));
    assert_eq!(run.data["spec"]["params"], json!([{ "name": "image", "value": "quay.io/a:b" }]));
    assert_eq!(run.data["spec"]["workspaces"][0]["name"], "workspace");
    assert!(run.finalizers().contains(&RUN_FINALIZER.to_owned()));
    let labels = run.labels();
    assert_eq!(labels["internal-services.appstudio.openshift.io/name"], "first");
    assert_eq!(labels["internal-services.appstudio.openshift.io/namespace"], rig.tenant);
    assert_eq!(labels["pipelines.appstudio.openshift.io/type"], "release");

    rig.finish(&run.name_any(), true, &[("digest", "sha256:00ff"), ("url", "x")]).await;
    let done = rig.until("first", Phase::Succeeded).await.status.unwrap();
    let results: Vec<(String, String)> = done.results.unwrap().into_iter().collect();
    assert_eq!(results, [("digest".into(), "sha256:00ff".into()), ("url".into(), "x".into())]);
    assert_eq!(
        (done.conditions[0].reason.as_str(), done.conditions[0].status.as_str()),
        ("Succeeded", "True")
    );
    assert!(done.completion_time.is_some());
    rig.no_runs().await;
    assert!(rig.writes.load(std::sync::atomic::Ordering::Relaxed) <= 3);
    let page = rig.metrics.render().unwrap();
    let line = format!(
        "internal_request_attempt_total{{request=\"sign\",namespace=\"{}\",reason=\"Succeeded\",succeeded=\"true\"}} 1",
        rig.tenant
    );
    assert!(page.contains(&line), "{page}");
    eventually(SOON, "the gauge back at zero", || async {
        rig.metrics.render().unwrap().contains("internal_request_attempt_concurrent_requests 0\n")
    })
    .await
    .unwrap();
    controller.stop().await;
}

#[tokio::test]
async fn a_failed_run_fails_the_request_with_its_message() {
    let rig = Rig::new("fail").await;
    let controller = rig.start();
    rig.submit("first", json!({ "request": "build" })).await;
    let run = rig.run_of("first").await;
    rig.until("first", Phase::Running).await;
    rig.finish(&run.name_any(), false, &[("ignored", "x")]).await;
    let failed = rig.until("first", Phase::Failed).await.status.unwrap();
    assert_eq!(failed.conditions[0].message, "step-x exited with code 3");
    assert!(failed.results.is_none());
    rig.no_runs().await;
    controller.stop().await;
}

#[tokio::test]
async fn what_is_not_offered_is_rejected_and_nothing_runs() {
    let rig = Rig::new("reject").await;
    let controller = rig.start();
    rig.submit("missing", json!({ "request": "nothing" })).await;
    let rejected = rig.until("missing", Phase::Rejected).await;
    let status = rejected.status.clone().unwrap();
    assert_eq!(status.conditions[0].message, "No endpoint to handle 'nothing' requests");
    assert!(status.start_time.is_none() && status.completion_time.is_none() && status.pipeline_run.is_none());
    // A rejection costs one write, and leaves nothing that would keep the request from being deleted.
    assert!(rejected.finalizers().is_empty());
    let git = json!({ "pipeline": { "pipelineRef": { "resolver": "git", "params": [{ "name": "url", "value": "https://x" }] } } });
    rig.submit("git", git).await;
    rig.until("git", Phase::Rejected).await;
    assert_eq!(rig.run_count().await, 0);
    controller.stop().await;
}

#[tokio::test]
async fn a_run_that_the_private_cluster_refuses_fails_its_request_with_the_reason() {
    let rig = Rig::new("quota").await;
    let private = super::rig::clusters().await.private.kubectl();
    let quota = ["create", "quota", "none", "--hard=count/pipelineruns.tekton.dev=0", "-n", &rig.namespace];
    private.run(&quota).await.unwrap();
    let counted = ["get", "quota", "none", "-n", &rig.namespace, "-o", "jsonpath={.status.hard}"];
    eventually(SOON, "the quota in force", || async {
        private.run(&counted).await.is_ok_and(|hard| hard.contains("pipelineruns"))
    })
    .await
    .unwrap();
    let controller = rig.start();
    rig.submit("refused", json!({ "request": "build" })).await;
    let failed = rig.until("refused", Phase::Failed).await.status.unwrap();
    let message = &failed.conditions[0].message;
    assert!(
        message.starts_with("the private cluster refused the run: ") && message.contains("quota: none"),
        "{message}"
    );
    controller.stop().await;
}

#[tokio::test]
async fn a_pipeline_made_just_before_its_request_is_found() {
    let rig = Rig::new("fresh").await;
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    for round in 0..5 {
        let name = format!("new-{round}");
        rig.pipeline(&name, &[]).await;
        rig.submit(&name, json!({ "request": name })).await;
        assert_eq!(rig.ended(&name).await.0, Phase::Succeeded);
    }
    controller.stop().await;
}

#[tokio::test]
async fn a_configuration_made_just_before_a_request_counts_for_it() {
    let rig = Rig::new("config").await;
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    for round in 0..5 {
        let (open, name) = (round % 2 == 0, format!("r{round}"));
        let offer = if open { "build" } else { "other" };
        rig.configure(
            json!({ "allowList": [rig.tenant], "watchScope": "allowed", "offers": [{ "pipeline": offer }] }),
        )
        .await;
        rig.submit(&name, json!({ "request": "build" })).await;
        let expected = if open { Phase::Succeeded } else { Phase::Rejected };
        assert_eq!(rig.ended(&name).await.0, expected, "{name}");
    }
    controller.stop().await;
}

#[tokio::test]
async fn in_debug_mode_the_run_is_left_to_the_administrators() {
    let rig = Rig::new("debug").await;
    rig.configure(json!({ "allowList": [rig.tenant], "watchScope": "allowed", "debug": true })).await;
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    rig.submit("kept", json!({ "request": "build" })).await;
    rig.until("kept", Phase::Succeeded).await;
    let freed = || async {
        let runs = rig.runs().list(&kube::api::ListParams::default()).await.unwrap();
        runs.items.len() == 1 && runs.items[0].finalizers().is_empty()
    };
    eventually(SOON, "the run without our finalizer", freed).await.unwrap();

    // It is theirs from now on, whatever is configured, restarted or deleted later.
    rig.configure(json!({ "allowList": [rig.tenant], "watchScope": "allowed" })).await;
    controller.stop().await;
    let controller = rig.start();
    let next = rig.submit("next", json!({ "request": "build" })).await.uid().unwrap();
    let next = run_name(&rig.namespace, &next);
    rig.until("next", Phase::Succeeded).await;
    let (requests, runs) = (rig.requests(), rig.runs());
    requests.delete("kept", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(SOON, "the second run and the first request to go", || async {
        let (run, request) = (runs.get_opt(&next).await, requests.get_opt("kept").await);
        run.is_ok_and(|found| found.is_none()) && request.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
    let left = runs.list(&kube::api::ListParams::default()).await.unwrap().items;
    let owners: Vec<&String> =
        left.iter().map(|run| &run.annotations()["operator-sdk/primary-resource"]).collect();
    assert_eq!(owners, [&format!("{}/kept", rig.tenant)]);
    controller.stop().await;
}

#[tokio::test]
async fn the_printed_columns_are_those_people_know() {
    let rig = Rig::new("columns").await;
    let controller = rig.start();
    rig.submit("shown", json!({ "request": "nothing" })).await;
    rig.until("shown", Phase::Rejected).await;
    let public = &super::rig::clusters().await.public;
    let table = public.kubectl().run(&["get", "internalrequest", "-n", &rig.tenant]).await.unwrap();
    let words: Vec<&str> = table.split_whitespace().take(7).collect();
    assert_eq!(words, ["NAME", "SUCCEEDED", "REASON", "AGE", "shown", "False", "Rejected"]);
    controller.stop().await;
}
