//! Requests that come and go through a controller of jobs, on two control planes.

use serde_json::{Value, json};
use tarbet_testbed::{Tekton, eventually, shared_pair, verified};

use super::{Process, Watched};
use crate::jobs::{Flow, SOON};

/// Requests of a round.
const REQUESTS: usize = 5;

/// The runs there are, by their names.
async fn runs(flow: &Flow) -> anyhow::Result<Vec<String>> {
    let list = ["get", "pipelineruns", "-n", &flow.namespace, "-o", "name"];
    Ok(flow.private.run(&list).await?.lines().map(str::to_owned).collect())
}

async fn runs_are(flow: &Flow, wanted: usize) -> Vec<String> {
    let look = || async {
        let found = runs(flow).await?;
        anyhow::ensure!(found.len() == wanted, "{found:?} and not {wanted}");
        Ok(found)
    };
    eventually(SOON, "the runs of a round", look).await.unwrap()
}

/// Requests are submitted, run, told their end, and removed.
async fn round(flow: &Flow) {
    let request = |number: usize| {
        json!({
            "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalRequest",
            "metadata": { "name": format!("r{number}"), "namespace": flow.tenant }, "spec": { "request": "greet" },
        })
    };
    let requests: Vec<Value> = (0..REQUESTS).map(request).collect();
    flow.public.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": requests })).await.unwrap();
    // Tekton's part, by hand.
    let end =
        json!({ "status": { "conditions": [{ "type": "Succeeded", "status": "True", "reason": "Done" }] } });
    let end = end.to_string();
    for run in runs_are(flow, REQUESTS).await {
        let patch =
            ["patch", &run, "-n", &flow.namespace, "--subresource=status", "--type=merge", "-p", &end];
        flow.private.run(&patch).await.unwrap();
    }
    let (tenant, all) = (["-n", flow.tenant.as_str()], ["internalrequests", "--all"]);
    let ended = [&["wait"], &all[..], &tenant, &["--for=condition=Succeeded", "--timeout=90s"]].concat();
    flow.public.run(&ended).await.unwrap();
    runs_are(flow, 0).await;
    flow.public.run(&[&["delete"], &all[..], &tenant].concat()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_and_go_leave_nothing_in_the_controller_of_jobs() {
    let pair = shared_pair().await.unwrap();
    Tekton::install_kinds(&pair.private).await.unwrap();
    let flow = Flow::new(&pair.private, &pair.public).await;
    flow.configure(json!({ "allowList": [flow.tenant], "watchScope": "allowed" })).await;
    flow.pipeline("greet", "#!/bin/sh\ntrue").await;
    let remote = flow.public.kubeconfig().display().to_string();
    let (mut jobs, url) = flow.jobs(&["--remote-cluster-config-file", &remote]).await;
    let process = Process { role: "jobs", pid: jobs.pid(), observability: url };
    let (mut watched, mut requests) = (Watched::new(vec![process]), 0);
    while watched.goes_on() {
        round(&flow).await;
        requests += REQUESTS;
        watched.look().await;
    }
    watched.judge(&format!("{requests} requests"));
    jobs.stop().await.unwrap();
    verified("requests that come and go after which the controller of jobs has not grown", requests);
}
