//! The controller of private pipelines: keys of both clusters, and what requests carry.

use anyhow::{Result, ensure};
use serde_json::json;
use tarbet_testbed::{shared_pair, verified};

use super::{Canaries, LOUD, abort};
use crate::jobs::{Flow, private_with_tekton};

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_clusters_and_parameters_of_requests_are_told_nowhere() -> Result<()> {
    let (canaries, pair) = (Canaries::default(), shared_pair().await?);
    let flow = Flow::new(private_with_tekton().await, &pair.public).await;
    flow.configure(json!({ "allowList": [flow.tenant], "watchScope": "allowed", "offers": [
        { "pipeline": "sign" },
        { "pipeline": "strict", "params": [{ "name": "who", "pattern": "v[0-9]+" }] },
    ] }))
    .await;
    for name in ["sign", "strict"] {
        flow.pipeline(name, "#!/bin/sh\nprintf done > $(results.said.path)").await;
    }
    // The public cluster is reached with a token, the private one with a certificate and its key.
    let token = pair.public.client_config().token;
    canaries.watch("token of the public cluster", &token);
    let private = std::fs::read_to_string(flow.private.kubeconfig())?;
    let private: serde_json::Value = serde_json::from_str(&private)?;
    let key = private["users"][0]["user"]["client-key-data"].as_str().map(str::to_owned);
    canaries.watch("key for the private cluster", &key.expect("the administrator has a key"));
    let remote = pair.public.kubeconfig_with_token(&token)?.display().to_string();
    let args = [&["--remote-cluster-config-file", &remote][..], &LOUD].concat();
    let (mut jobs, url) = flow.jobs(&args).await;

    // One that is carried out, one whose value is not allowed, one that nobody offers, one with a name too much.
    for (pipeline, name, code) in
        [("sign", "who", 0), ("strict", "who", 4), ("none", "who", 4), ("strict", "else", 4)]
    {
        let value = format!("{name}={}", canaries.hatch("parameter of a request"));
        let (ended, out, said) =
            flow.request(&["submit", pipeline, "-p", &value, "--wait", "--timeout", "3m"]).await;
        ensure!(ended == code, "{pipeline} {ended}: {out} {said}");
        canaries.search("what the requester sees", &format!("{out} {said}"))?;
    }
    for kubectl in [&flow.private, &flow.public] {
        canaries.search("the events", &kubectl.run(&["get", "events", "-A", "-o", "json"]).await?)?;
    }
    let status = ["get", "internalrequests", "-n", &flow.tenant, "-o", "jsonpath={.items[*].status}"];
    let status = flow.public.run(&status).await?;
    ensure!(status.contains("Rejected"), "{status}");
    canaries.search("the states", &status)?;
    canaries.search("the metrics", &reqwest::get(format!("{url}/metrics")).await?.text().await?)?;
    abort(&mut jobs).await?;
    let logs = canaries.search_logs(flow.folder.path())?;
    ensure!(logs == 1, "{logs} logs");
    verified("keys of clusters and parameters of requests, none told anywhere", canaries.count());
    Ok(())
}
