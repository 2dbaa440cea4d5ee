//! What `--plan` says of commands that change something, and that nothing is changed by it.

use tarbet_testbed::shared_pair;

use super::Machine;
use crate::jobs::Flow;

#[tokio::test(flavor = "multi_thread")]
async fn plans_of_sites_people_pods_and_keys_change_nothing() {
    let machine = Machine::new().await;
    let mut up = machine.start();
    machine.ready().await;
    machine.say(&["site", "add", "lab"]).await;
    machine.say(&["user", "add", "ann", "--site", "lab"]).await;
    machine.say(&["pods", "run", "--detach", "--name", "stays", "none", "--", "sleep", "600"]).await;
    let key = machine.folder.path().join("issuer.key");
    let told = async |args: &[&str]| machine.say(args).await;
    let state = async || {
        let pods: Vec<serde_json::Value> =
            serde_json::from_str(&told(&["pods", "list", "-o", "json"]).await).unwrap();
        let pods: Vec<_> = pods.iter().map(|pod| pod["uid"].clone()).collect();
        // Names and ids, and not how long ago each was heard of.
        let sites: Vec<serde_json::Value> =
            serde_json::from_str(&told(&["site", "list", "-o", "json"]).await).unwrap();
        let sites: Vec<_> =
            sites.iter().map(|site| (site["name"].clone(), site["created"].clone())).collect();
        let tokens = told(&["site", "tokens", "lab", "-o", "json"]).await;
        (sites, tokens, told(&["user", "list", "-o", "json"]).await, pods, key.exists())
    };
    let before = state().await;
    let file = key.display().to_string();
    for (change, named) in [
        (&["site", "add", "new"][..], "new"),
        (&["site", "token", "lab"], "lab"),
        (&["user", "add", "bob", "--site", "lab"], "bob"),
        (&["user", "add", "boss", "--admin"], "administrator `boss`"),
        (&["user", "revoke", "ann"], "ann"),
        (&["pods", "run", "--detach", "--name", "more", "none", "--", "true"], "the image `none`"),
        (&["pods", "delete", "stays"], "stays"),
        (&["caller", "key", &file], &*file),
    ] {
        // Before what a pod shall run.
        let planned = machine.say(&[&change[..2], &["--plan"], &change[2..]].concat()).await;
        assert!(planned.contains(named) && planned.contains("Nothing was changed"), "{change:?}: {planned}");
        assert_eq!(state().await, before, "{change:?} with --plan has changed something");
    }
    // Each of them would have been noticed.
    for change in [
        &["site", "add", "new"][..],
        &["site", "token", "lab"],
        &["user", "revoke", "ann"],
        &["pods", "delete", "stays"],
        &["caller", "key", &file],
    ] {
        let before = state().await;
        machine.say(change).await;
        assert_ne!(state().await, before, "{change:?}");
    }
    machine.say(&["down"]).await;
    up.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_of_requests_change_nothing_in_the_cluster() {
    let plane = &shared_pair().await.unwrap().public;
    let flow = Flow::new(plane, plane).await;
    let (code, _, said) = flow.request(&["submit", "greet", "--name", "first"]).await;
    assert_eq!(code, 0, "{said}");
    let state = async || {
        let all = flow.public.json(&["get", "internalrequests", "-n", &flow.tenant]).await.unwrap();
        let items = all["items"].as_array().unwrap().iter();
        items.map(|item| (item["metadata"]["uid"].clone(), item["spec"].clone())).collect::<Vec<_>>()
    };
    let before = state().await;
    assert_eq!(before.len(), 1);
    for (change, named) in
        [(&["submit", "greet", "-p", "who=all", "--wait"][..], "greet"), (&["cancel", "first"], "first")]
    {
        let (code, planned, said) = flow.request(&[change, &["--plan"]].concat()).await;
        assert_eq!(code, 0, "{change:?}: {said}");
        assert!(planned.contains(named) && planned.contains("Nothing was changed"), "{change:?}: {planned}");
        assert_eq!(state().await, before, "{change:?} with --plan has changed something");
    }
    assert_eq!(flow.request(&["cancel", "first"]).await.0, 0);
    assert_ne!(state().await, before);
}
