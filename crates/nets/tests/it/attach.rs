//! Taking in what others made: by a name of its own, once, and from the namespace's own deployment.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud as _, NewResource};
use tarbet_nets::model::{Deployment, Flags};

use super::azure;
use super::bed::{self, rest};

async fn theirs(clouds: &bed::Clouds, name: &str) -> String {
    let deployment = Deployment { id: "e1".into(), namespace: "default".into() };
    let new = NewResource { deployment, name: name.into(), description: "{}".into() };
    clouds.east.create_resource(new).await.unwrap().uri
}

#[tokio::test]
async fn a_tag_stands_for_one_resource_only() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    let resources = format!("{url}/namespaces/default/clouds/east/resources");
    let attach = async |uri: &str, how: &str| {
        rest(Method::POST, format!("{resources}{how}"), json!({ "id": uri })).await
    };
    let (first, second) = (theirs(&clouds, "vm1").await, theirs(&clouds, "group/vm1").await);
    let (status, made) = attach(&first, "").await;
    assert_eq!((status, &made["name"]), (200, &json!("default.east.vm1")), "{made}");

    // The same again has nothing to do, and says what there is.
    let (_, plan) = attach(&first, "?plan=true").await;
    assert_eq!(plan["calls"], json!([]));
    assert_eq!(attach(&first, "").await, (200, made));

    // Another resource of the same name does not take its place, nor is its cloud asked.
    let (status, refused) = attach(&second, "").await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"].as_str().unwrap().contains(&format!("already stands for {first}")), "{refused}");
    let tag = running.orchestrator.tags().get("default.east.vm1").unwrap();
    assert_eq!(tag.uri.as_deref(), Some(first.as_str()));

    // A name that only the cloud knows is held to the same.
    let odd = theirs(&clouds, "group/vm2").await;
    let taken = json!({ "name": "default.east.group/vm2", "uri": "elsewhere" });
    assert_eq!(rest(Method::POST, format!("{url}/tags/x/applyMembers"), taken).await.0, 200);
    assert_eq!(attach(&odd, "").await.0, 400);
    let tag = running.orchestrator.tags().get("default.east.group/vm2").unwrap();
    assert_eq!(tag.uri.as_deref(), Some("elsewhere"));

    // A dot would make a tag of four parts, by which no rule could be given.
    let dotted = theirs(&clouds, "vm.1").await;
    let (status, refused) = attach(&dotted, "").await;
    assert!(status == 400 && refused["error"].as_str().unwrap().contains("a dot"), "{refused}");
}

#[tokio::test]
async fn a_tag_that_somebody_only_set_keeps_nothing_from_being_taken_in() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noting = calls.clone();
    let clouds = bed::clouds(Some(Arc::new(move |call, done| {
        if !done {
            noting.lock().unwrap().push(call);
        }
        Box::pin(async { Ok(()) })
    })))
    .await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    let uri = theirs(&clouds, "vm1").await;
    calls.lock().unwrap().clear();
    let attach = async |how: &str| {
        let resources = format!("{url}/namespaces/default/clouds/east/resources{how}");
        rest(Method::POST, resources, json!({ "id": uri })).await
    };
    for name in ["default.east.a-name-of-mine", "default.east.vm1"] {
        let tag = json!({ "name": name, "uri": uri, "ip": "10.0.0.4" });
        assert_eq!(rest(Method::POST, format!("{url}/tags/{name}/applyMembers"), tag).await.0, 200);
        let (_, plan) = attach("?plan=true").await;
        assert_eq!(plan["calls"][0], json!(format!("east: AttachResource {uri}")), "{plan}");
    }
    assert_eq!(attach("").await.0, 200);
    assert_eq!(*calls.lock().unwrap(), ["AttachResource"], "its cloud was asked");
    let (_, plan) = attach("?plan=true").await;
    assert_eq!(plan["calls"], json!([]), "it is taken in");
}

#[tokio::test]
async fn only_the_deployment_of_the_namespace_is_looked_at() {
    let bed = azure::Bed::start().await;
    let url = &bed.running.rest;
    let resources = format!("{url}/namespaces/default/clouds/azure/resources?plan=true");
    let machine = |group: &str| {
        format!("/subscriptions/S1/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/vm1")
    };
    let (status, refused) =
        rest(Method::POST, resources.clone(), json!({ "id": machine("elsewhere") })).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("resourcegroups/elsewhere"), "{refused}");
    let (status, plan) = rest(Method::POST, resources, json!({ "id": machine("RG") })).await;
    assert_eq!((status, plan["calls"].as_array().map(Vec::len)), (200, Some(2)), "another spelling: {plan}");
}

#[tokio::test]
async fn a_plugin_that_lost_its_flags_is_told_them_before_it_needs_them() {
    let mut clouds = bed::clouds(None).await;
    let flags = Flags { attach_resource_enabled: true, ..Flags::default() };
    clouds.config.feature_flags.insert("east".into(), flags);
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let uri = theirs(&clouds, "vm1").await;
    let patience = std::time::Duration::from_mins(1);
    tarbet_testbed::eventually(patience, "the flags are told", || async {
        if clouds.east.flags() == flags { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
    // As a plugin is that was started again.
    clouds.east.set_flags(Flags::default()).await.unwrap();
    let resources = format!("{}/namespaces/default/clouds/east/resources", running.rest);
    assert_eq!(rest(Method::POST, resources, json!({ "id": uri })).await.0, 200);
    assert_eq!(clouds.east.flags(), flags);
    clouds.east.set_flags(Flags::default()).await.unwrap();
    let made = format!("{}/namespaces/default/clouds/east/resources/own", running.rest);
    let (status, answer) = rest(Method::PUT, made, Value::Object(serde_json::Map::new())).await;
    assert_eq!(status, 200, "a description that is empty is left out by the original's client: {answer}");
    assert_eq!(clouds.east.flags(), flags);
}
