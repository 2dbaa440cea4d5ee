//! Namespaces that are taken off the list of those that are watched: what was begun there comes to
//! its end, and nothing of it is left to keep anybody from deleting it.

use super::rig::{Rig, SOON, clusters, install_kinds};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tarbet_cluster::Source;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::names::REQUEST_FINALIZER;
use tarbet_jobs::{Controller, JobMetrics, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::eventually;

fn one_at_a_time(scope: &str, allowed: &[&str]) -> Value {
    json!({ "allowList": allowed, "watchScope": scope, "offers": [{ "pipeline": "build", "concurrency": 1 }] })
}

/// A request that is over, one that runs and one in line.
async fn three(rig: &Rig) {
    rig.submit("over", json!({ "request": "build" })).await;
    let run = rig.run_of("over").await;
    rig.finish(&run.name_any(), true, &[]).await;
    let over = rig.until("over", Phase::Succeeded).await;
    assert!(over.finalizers().contains(&REQUEST_FINALIZER.to_owned()));
    rig.submit("running", json!({ "request": "build" })).await;
    rig.until("running", Phase::Running).await;
    rig.submit("waiting", json!({ "request": "build" })).await;
    rig.until("waiting", Phase::Queued).await;
}

/// Each of them comes to its end and can be deleted, and another namespace is served.
async fn come_to_their_end(rig: &Rig, other: &str) {
    let refused = rig.until("waiting", Phase::Rejected).await.status.unwrap();
    let message = format!("the internal request namespace ({}) is not in the allow list", rig.tenant);
    assert_eq!(refused.conditions[0].message, message);
    let run = rig.run_of("running").await;
    rig.finish(&run.name_any(), true, &[("digest", "told")]).await;
    let done = rig.until("running", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "told");
    rig.no_runs().await;
    let api = rig.requests();
    eventually(SOON, "all of them to be let go", || async {
        let all = api.list(&ListParams::default()).await.unwrap().items;
        all.iter().all(|request| request.finalizers().is_empty())
    })
    .await
    .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(rig.local.clone(), &rig.namespace);
    eventually(SOON, "the namespace to be forgotten", || async {
        let kept = maps.list(&ListParams::default().labels("tarbet.dev/remote")).await.unwrap().items;
        let names: Vec<String> = kept
            .into_iter()
            .filter_map(|map| map.data)
            .filter_map(|mut data| data.remove("namespaces"))
            .collect();
        if names == [other.to_owned()] { Ok(()) } else { Err(names.join(", ")) }
    })
    .await
    .unwrap();
    // Nobody is there any more who would let go of anything.
    for name in ["over", "running", "waiting"] {
        api.delete(name, &DeleteParams::default()).await.unwrap();
        assert!(api.get_opt(name).await.unwrap().is_none(), "{name}");
    }
    rig.submit("unanswered", json!({ "request": "build" })).await;
    rig.submit_in(other, "served", json!({ "request": "build" })).await.unwrap();
    let run = eventually(SOON, "the run of the other", || async {
        rig.runs().list(&ListParams::default()).await.unwrap().items.pop()
    })
    .await
    .unwrap();
    assert_eq!(run.annotations()["operator-sdk/primary-resource"], format!("{other}/served"));
    assert!(rig.request("unanswered").await.status.is_none());
}

#[tokio::test]
async fn what_was_begun_in_a_namespace_that_is_dropped_comes_to_its_end() {
    let rig = Rig::new("drop").await;
    let other = clusters().await.public.unique_namespace("drop-other").await.unwrap();
    rig.configure(one_at_a_time("allowed", &[&rig.tenant, &other])).await;
    let controller = rig.start();
    three(&rig).await;
    rig.configure(one_at_a_time("allowed", &[&other])).await;
    come_to_their_end(&rig, &other).await;
    controller.stop().await;
}

#[tokio::test]
async fn what_was_begun_comes_to_its_end_also_where_the_namespace_was_dropped_while_nobody_looked() {
    let rig = Rig::new("drop-late").await;
    let other = clusters().await.public.unique_namespace("drop-late-other").await.unwrap();
    rig.configure(one_at_a_time("allowed", &[&rig.tenant, &other])).await;
    let controller = rig.start();
    three(&rig).await;
    controller.crash().await;
    rig.configure(one_at_a_time("allowed", &[&other])).await;
    let controller = rig.start();
    // It dies once more before all is done.
    rig.until("waiting", Phase::Rejected).await;
    controller.crash().await;
    let controller = rig.start();
    come_to_their_end(&rig, &other).await;
    controller.stop().await;
}

#[tokio::test]
async fn what_was_begun_while_all_were_watched_comes_to_its_end_when_only_some_are() {
    let pair = clusters().await;
    let public = pair.public.beside("narrowed").await.unwrap();
    install_kinds(&public).await;
    let rig = Rig::on("narrow", &pair.private, &public).await;
    let other = public.unique_namespace("narrow-other").await.unwrap();
    rig.configure(one_at_a_time("all", &[&rig.tenant, &other])).await;
    rig.pipeline("build", &[]).await;
    let controller = rig.start();
    three(&rig).await;
    controller.crash().await;
    rig.configure(one_at_a_time("allowed", &[&other])).await;
    let controller = rig.start();
    come_to_their_end(&rig, &other).await;
    controller.stop().await;
}

/// The rights are withdrawn together with the permission: nothing can be told there any more.
#[tokio::test]
async fn a_run_whose_end_cannot_be_told_for_want_of_rights_does_not_stay() {
    let pair = clusters().await;
    let rig = Rig::new("drop-rights").await;
    let kubectl = pair.public.kubectl();
    let verbs = ["--verb=list,watch,patch", "--resource=internalrequests,internalrequests/status"];
    let role = ["create", "role", "requests", "-n", &rig.tenant];
    kubectl.run(&[&role[..], &verbs].concat()).await.unwrap();
    kubectl.run(&["create", "serviceaccount", "far", "-n", &rig.tenant]).await.unwrap();
    let account = format!("--serviceaccount={}:far", rig.tenant);
    kubectl
        .run(&["create", "rolebinding", "far", "-n", &rig.tenant, "--role=requests", &account])
        .await
        .unwrap();
    let token = pair.public.service_account_token(&rig.tenant, "far").await.unwrap();
    let file = pair.public.kubeconfig_with_token(&token).unwrap();
    let remote = tarbet_cluster::connect(&Source::file(file)).await.unwrap();
    let metrics = JobMetrics::register(&Metrics::new("jobs", "test"));
    let remotes = vec![Remote { name: rig.namespace.clone(), client: remote }];
    let health = Health::default();
    let controller =
        Controller::new(rig.config(), rig.local.clone(), remotes, metrics, health.clone(), "dropped");
    let controller = super::rig::Running::start(controller);
    rig.submit("running", json!({ "request": "build" })).await;
    rig.until("running", Phase::Running).await;
    kubectl.run(&["delete", "rolebinding", "far", "-n", &rig.tenant]).await.unwrap();
    rig.configure(json!({ "allowList": [], "watchScope": "allowed" })).await;
    let run = rig.run_of("running").await;
    rig.finish(&run.name_any(), true, &[]).await;
    rig.no_runs().await;
    eventually(SOON, "it to be ready all the same", || async { health.is_ready() }).await.unwrap();
    assert_eq!(
        Phase::of(&rig.request("running").await.status.unwrap()),
        Phase::Running,
        "nobody could say more"
    );
    controller.stop().await;
}
