//! Rules for all of a tag: a cloud that fails keeps no other from them, and every failure is told.

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;

use super::bed::{self, rest};

async fn create(url: &str, cloud: &str, name: &str) {
    let at = format!("{url}/namespaces/default/clouds/{cloud}/resources/{name}");
    let (status, answer) = rest(Method::PUT, at, json!({ "description": "{}" })).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn rules_of_a_tag_reach_the_clouds_that_answer() {
    let mut clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    for (cloud, name) in [("east", "a"), ("east", "b"), ("west", "c")] {
        create(&url, cloud, name).await;
    }
    let members = ["default.east.a", "default.east.b", "default.west.c"];
    let group = json!({ "name": "group", "child_tags": members });
    assert_eq!(rest(Method::POST, format!("{url}/tags/group/applyMembers"), group).await.0, 200);
    let rules =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["1.1.1.1"] }]);
    let at = format!("{url}/tags/group/rules");

    clouds.east_leaves().await;
    let (status, answer) = rest(Method::POST, at.clone(), rules.clone()).await;
    assert_eq!(status, 502, "{answer}");
    let said = answer["error"].as_str().unwrap();
    for part in ["2 of 3", "memory/east/default/a in east", "memory/east/default/b in east"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("memory/west"), "{said}");
    let given = clouds.west.permit_list("default", "memory/west/default/c").await.unwrap();
    assert_eq!(given.len(), 1, "the other cloud has it");
    let operations = running.orchestrator.operations().await.unwrap();
    let failed: Vec<&str> = operations[0].failures.iter().map(|failure| failure.uri.as_str()).collect();
    assert_eq!(failed, ["memory/east/default/a", "memory/east/default/b"]);

    // The same again does what is left.
    clouds.east_returns().await;
    let (_, plan) = rest(Method::POST, format!("{at}?plan=true"), rules.clone()).await;
    let way_out = "  east: a way from 10.0.0.0/16 to public addresses, where there is none";
    let (a, b) = ("memory/east/default/a", "memory/east/default/b");
    let give = |uri: &str| format!("east: AddPermitListRules web to {uri}");
    assert_eq!(plan["calls"], json!([give(a), way_out, give(b)]), "a way is told once");
    let (status, answer) = rest(Method::POST, at, rules).await;
    assert_eq!(status, 200, "{answer}");
    for name in ["a", "b"] {
        let uri = format!("memory/east/default/{name}");
        assert_eq!(clouds.east.permit_list("default", &uri).await.unwrap().len(), 1, "{name}");
    }
}

/// A cluster's address is the range of its pods: what its rules need is planned all the same.
#[tokio::test]
async fn a_resource_of_many_addresses_is_connected_by_plan() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    for (cloud, name) in [("east", "a"), ("west", "c")] {
        create(&url, cloud, name).await;
    }
    let pods = json!({ "name": "default.east.pods", "uri": "memory/east/default/a", "ip": "10.0.0.0/24" });
    let (status, answer) =
        rest(Method::POST, format!("{url}/tags/default.east.pods/applyMembers"), pods).await;
    assert_eq!(status, 200, "{answer}");
    let rules = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.west.c"] }]);
    let at = format!("{url}/namespaces/default/clouds/east/resources/pods/applyRules?plan=true");
    let (_, plan) = rest(Method::POST, at, rules).await;
    let connects = |plan: &Value| plan["calls"].to_string().contains("ConnectClouds");
    assert!(connects(&plan), "{plan}");
}

#[tokio::test]
async fn a_connection_that_several_resources_need_is_planned_and_made_once() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    for (cloud, name) in [("east", "a"), ("east", "b"), ("west", "c")] {
        create(&url, cloud, name).await;
    }
    let group = json!({ "name": "group", "child_tags": ["default.east.a", "default.east.b"] });
    assert_eq!(rest(Method::POST, format!("{url}/tags/group/applyMembers"), group).await.0, 200);
    let rules = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.west.c"] }]);
    let at = format!("{url}/tags/group/rules");
    let (_, plan) = rest(Method::POST, format!("{at}?plan=true"), rules.clone()).await;
    let count = |word: &str| plan["calls"].to_string().matches(word).count();
    assert_eq!((count("ConnectClouds"), count("AddPermitListRules")), (1, 2), "{plan}");
    let exactly = format!("{at}?expect={}", plan["digest"].as_str().unwrap());
    let (status, answer) = rest(Method::POST, exactly, rules).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((clouds.east.tunnels().len(), clouds.west.tunnels().len()), (1, 1));
}
