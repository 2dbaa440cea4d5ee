//! Long work: who asked is answered in time, sees how far it got, and can stop it while it goes on.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::wire::paraglider as today;
use tarbet_testbed::eventually;

use super::bed::{self, rest};
use super::crash::Cut;

const PATIENCE: Duration = Duration::from_mins(1);

async fn create(url: &str, cloud: &str, name: &str) {
    let path = format!("{url}/namespaces/default/clouds/{cloud}/resources/{name}");
    let (status, answer) = rest(Method::PUT, path, json!({ "description": "{}" })).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn progress_is_seen_and_what_is_cancelled_makes_no_further_call() {
    let cut = Arc::new(Cut::default());
    let clouds = bed::clouds(Some(cut.calls())).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    create(&url, "west", "b").await;

    // What is over in time is answered as ever.
    let c = format!("{url}/namespaces/default/clouds/east/resources/c?wait=10m");
    let (status, made) = rest(Method::PUT, c.clone(), json!({ "description": "{}" })).await;
    assert_eq!((status, &made["ip"]), (200, &json!("10.0.0.5")), "{made}");
    assert_eq!(rest(Method::PUT, c, json!({ "description": "{}" })).await, (200, made), "nothing to do");

    // The second gateway does not answer for now.
    cut.set(Some(2));
    let rules = format!("{url}/namespaces/default/clouds/east/resources/a/rules?wait=10ms");
    let rule =
        json!({ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.west.b"] });
    let (status, answer) = rest(Method::POST, rules.clone(), rule.clone()).await;
    assert_eq!(status, 202, "{answer}");
    let operation = format!("{url}/operations/{}", answer["operation"]["id"].as_str().unwrap());
    cut.reached.notified().await;
    let (_, shown) = rest(Method::GET, operation.clone(), Value::Null).await;
    let left = [
        "west: CreateVpnGateway",
        "make the shared key",
        "east: CreateVpnConnections",
        "west: CreateVpnConnections",
    ];
    assert_eq!((&shown["state"], &shown["done"]), (&json!("running"), &json!(0)));
    assert_eq!(shown["steps"], json!(left), "the first gateway is made: {shown}");
    assert_eq!(rest(Method::DELETE, operation.clone(), Value::Null).await.0, 200, "it still runs");
    cut.release();
    eventually(PATIENCE, "it is cancelled", || async {
        let (_, shown) = rest(Method::GET, operation.clone(), Value::Null).await;
        if shown["state"] == "cancelled" { Ok(()) } else { Err(shown.to_string()) }
    })
    .await
    .unwrap();
    assert_eq!(cut.seen(), 4, "the call that it was at is made, and none after it");
    assert!(clouds.east.tunnels().is_empty() && clouds.west.tunnels().is_empty());

    // The same request again does what is left.
    let rules = rules.replace("10ms", "10m");
    let (status, answer) = rest(Method::POST, rules, rule).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((clouds.east.tunnels().len(), clouds.west.tunnels().len()), (1, 1));
    let given = clouds.east.permit_list("default", "memory/east/default/a").await.unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(rest(Method::DELETE, operation, Value::Null).await.0, 409, "it is over");

    // One that has ended.
    let (_, all) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    let made = |operation: &&Value| operation["state"] == "done" && operation["made"].is_object();
    let ended = all.as_array().unwrap().iter().find(made).unwrap();
    assert!(ended["made"]["uri"].is_string(), "{ended}");
    let ended = format!("{url}/operations/{}", ended["id"].as_str().unwrap());
    let (status, refused) = rest(Method::DELETE, ended, Value::Null).await;
    assert_eq!((status, &refused["code"]), (409, &json!("TB-4113")), "{refused}");
}

#[tokio::test]
async fn a_connection_that_a_plugin_asks_for_is_an_operation() {
    let cut = Arc::new(Cut::default());
    let clouds = bed::clouds(Some(cut.calls())).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    create(&url, "west", "b").await;
    let rpc = format!("http://127.0.0.1:{}", clouds.config.server.rpc_port);
    let mut controller = today::controller_client::ControllerClient::connect(rpc).await.unwrap();
    let request = today::ConnectCloudsRequest {
        cloud_a: "east".into(),
        cloud_b: "west".into(),
        cloud_a_namespace: "default".into(),
        cloud_b_namespace: "default".into(),
        address_spaces_cloud_a: vec!["10.0.0.0/16".into()],
        address_spaces_cloud_b: vec!["10.1.0.0/16".into()],
    };
    controller.connect_clouds(request.clone()).await.unwrap();
    controller.connect_clouds(request).await.expect("there is nothing to do");
    let found = eventually(PATIENCE, "the operation is told", || async {
        let (_, all) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
        let connects =
            all.as_array().unwrap().iter().filter(|operation| operation["title"] == "connect east with west");
        let states: Vec<Value> = connects.map(|operation| operation["state"].clone()).collect();
        if states == [json!("done")] { Ok(()) } else { Err(all.to_string()) }
    });
    found.await.unwrap();
}
