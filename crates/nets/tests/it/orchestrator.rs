//! The orchestrator over real sockets: requests, plans, tags that are followed, connections.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::wire::invisinets as seed;
use tarbet_nets::wire::paraglider as today;

use super::bed::{self, rest};

fn resource(rest: &str, namespace: &str, cloud: &str, name: &str) -> String {
    format!("{rest}/namespaces/{namespace}/clouds/{cloud}/resources/{name}")
}

async fn create(url: &str, namespace: &str, cloud: &str, name: &str) -> Value {
    let body = json!({ "description": "{\"size\":\"small\"}" });
    let (status, answer) = rest(Method::PUT, resource(url, namespace, cloud, name), body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn web(tags: &[&str]) -> Value {
    json!({ "name": "web", "direction": 0, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": tags })
}

#[tokio::test]
async fn resources_rules_and_tags_from_the_first_request_to_the_last() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    assert_eq!(rest(Method::GET, format!("{url}/ping"), Value::Null).await.1, json!({ "message": "pong" }));
    let (_, namespaces) = rest(Method::GET, format!("{url}/namespaces"), Value::Null).await;
    assert_eq!(namespaces["other"], json!([{ "Name": "east", "Deployment": "e2" }]));

    let one = create(&url, "default", "east", "one").await;
    assert_eq!(
        one,
        json!({ "name": "default.east.one", "uri": "memory/east/default/one", "ip": "10.0.0.4" })
    );
    assert_eq!(create(&url, "default", "east", "one").await, one, "the same request again changes nothing");
    assert_eq!(clouds.east.list_resources("").await.unwrap().len(), 1);
    let (status, answer) =
        rest(Method::PUT, resource(&url, "default", "east", "one"), json!({ "description": "other" })).await;
    assert_eq!((status, answer["code"].as_str()), (400, Some("TB-4101")), "{answer}");
    let two = create(&url, "default", "east", "two").await;
    assert_eq!(two["ip"], "10.0.0.5");
    let far = create(&url, "default", "west", "far").await;
    assert_eq!(far["ip"], "10.1.0.4", "no overlap across clouds");
    let foreign = create(&url, "other", "east", "one").await;
    assert_eq!(foreign["ip"], "10.2.0.4", "nor across namespaces");

    // A permit by tag.
    let rules = |name: &str| format!("{}/rules", resource(&url, "default", "east", name));
    assert_eq!(rest(Method::GET, rules("one"), Value::Null).await, (200, Value::Null));
    let (status, answer) = rest(Method::POST, rules("one"), web(&["clients"])).await;
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer["error"].as_str().unwrap().contains("rules[0].tags: there is no tag `clients`"),
        "{answer}"
    );
    let members = json!({ "name": "clients", "child_tags": ["default.east.two"] });
    assert_eq!(rest(Method::POST, format!("{url}/tags/clients/applyMembers"), members).await.0, 200);
    assert_eq!(rest(Method::POST, rules("one"), web(&["clients"])).await.0, 200);
    let (_, list) = rest(Method::GET, rules("one"), Value::Null).await;
    assert_eq!(list[0]["targets"], json!(["10.0.0.5"]));
    assert_eq!(list[0]["tags"], json!(["clients"]));

    // The tag changes, far below what the rule names, and the permit list follows.
    let group = json!({ "name": "more", "child_tags": ["10.0.0.9"] });
    rest(Method::POST, format!("{url}/tags/more/applyMembers"), group).await;
    let members = json!({ "name": "clients", "child_tags": ["more"] });
    rest(Method::POST, format!("{url}/tags/clients/applyMembers"), members).await;
    let members = json!({ "name": "more", "child_tags": ["10.0.0.10"] });
    rest(Method::POST, format!("{url}/tags/more/applyMembers"), members).await;
    let (_, list) = rest(Method::GET, rules("one"), Value::Null).await;
    assert_eq!(list[0]["targets"], json!(["10.0.0.10", "10.0.0.5", "10.0.0.9"]));
    assert_eq!(rest(Method::DELETE, format!("{url}/tags/more"), Value::Null).await.0, 200);
    let (_, list) = rest(Method::GET, rules("one"), Value::Null).await;
    assert_eq!(list[0]["targets"], json!(["10.0.0.5"]));

    // What may pass, and why.
    let out = json!([{ "name": "out", "direction": 1, "src_port": -1, "dst_port": -1, "protocol": -1, "tags": ["default.east.one"] }]);
    let apply = format!("{}/applyRules", resource(&url, "default", "east", "two"));
    assert_eq!(rest(Method::POST, apply, out).await.0, 200);
    let ask = |port: u16| format!("{url}/can?from=default.east.two&to=default.east.one&port={port}");
    let (_, verdict) = rest(Method::GET, ask(443), Value::Null).await;
    assert_eq!((verdict["allowed"].clone(), verdict["ends"][1]["rule"].clone()), (json!(true), json!("web")));
    assert_eq!(rest(Method::GET, ask(22), Value::Null).await.1["allowed"], json!(false));

    // Another namespace's resource is out of reach by name and by URI.
    let other = format!("{}/rules", resource(&url, "other", "east", "two"));
    assert_eq!(rest(Method::GET, other, Value::Null).await.0, 404);
    let stolen = format!("{url}/cloud/east/permit-list/memory/east/default/one?namespace=other");
    assert_eq!(rest(Method::GET, stolen, Value::Null).await.0, 403);

    // Removal unsubscribes, and deleting the resource cleans its tag.
    assert_eq!(rest(Method::DELETE, format!("{}/web", rules("one")), Value::Null).await.0, 200);
    assert!(running.orchestrator.tags().subscribers("clients").is_empty());
    assert_eq!(rest(Method::DELETE, resource(&url, "default", "east", "two"), Value::Null).await.0, 200);
    assert!(!running.orchestrator.tags().exists("default.east.two"));
    assert_eq!(running.orchestrator.tags().get("clients").unwrap().child_tags.len(), 0);
    let (_, left) = rest(Method::GET, format!("{url}/namespaces/default/resources"), Value::Null).await;
    assert_eq!(left.as_array().unwrap().len(), 2);
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    assert!(
        operations.as_array().unwrap().iter().all(|operation| operation["state"] == "done"),
        "{operations}"
    );
}

#[tokio::test]
async fn a_rule_across_clouds_connects_them_once() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "default", "east", "a").await;
    create(&url, "default", "west", "b").await;
    let rules = |cloud: &str, name: &str| format!("{}/rules", resource(&url, "default", cloud, name));
    let body = web(&["default.west.b"]);

    let (_, plan) = rest(Method::POST, format!("{}?plan=true", rules("east", "a")), body.clone()).await;
    let calls: Vec<&str> =
        plan["calls"].as_array().unwrap().iter().map(|call| call.as_str().unwrap()).collect();
    assert_eq!(
        calls,
        [
            "ConnectClouds east/default with west/default",
            "  choose addresses inside the tunnels",
            "  east: CreateVpnGateway",
            "  west: CreateVpnGateway",
            "  make the shared key",
            "  east: CreateVpnConnections",
            "  west: CreateVpnConnections",
            "tags: Subscribe default>east>memory/east/default/a to default.west.b",
            "east: AddPermitListRules web to memory/east/default/a",
        ]
    );
    assert!(clouds.east.tunnels().is_empty(), "a plan does nothing");
    let (status, answer) =
        rest(Method::POST, format!("{}?expect=0123", rules("east", "a")), body.clone()).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("TB-4108")));
    let exactly = format!("{}?expect={}", rules("east", "a"), plan["digest"].as_str().unwrap());
    assert_eq!(rest(Method::POST, exactly, body.clone()).await.0, 200);
    let (east, west) = (clouds.east.tunnels(), clouds.west.tunnels());
    assert_eq!((east.len(), west.len()), (1, 1));
    assert_eq!(east[0].1, west[0].1, "both ends have one key");
    assert!(east[0].1.len() >= 24);

    assert_eq!(rest(Method::POST, rules("west", "b"), web(&["default.east.a"])).await.0, 200);
    assert_eq!(clouds.west.tunnels(), west, "the second rule finds the connection made");
    let (_, again) = rest(Method::POST, format!("{}?plan=true", rules("east", "a")), body).await;
    assert_eq!(again["calls"], json!([]));
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    assert!(!operations.to_string().contains(&east[0].1), "keys are never told");

    // Another key: planned, made and told to both, and to nobody else.
    let link = "default.east-default.west";
    let rekey = |which: &str, how: &str| format!("{url}/links{which}/rekey{how}");
    let (status, answer) = rest(Method::POST, rekey("/a-b", ""), Value::Null).await;
    assert_eq!(status, 400, "{answer}");
    let (_, plan) = rest(Method::POST, rekey("", "?plan=true"), Value::Null).await;
    // Both plugins, which are elsewhere, tell that their tunnels take another key.
    assert_eq!(plan["calls"][0], json!(format!("ReplaceVpnKey {link}")), "{plan}");
    assert!(!plan["calls"].to_string().contains("DisconnectClouds"), "nothing is taken down: {plan}");
    assert_eq!(clouds.east.tunnels(), east, "a plan does nothing");
    let before = east[0].1.clone();
    assert_eq!(rest(Method::POST, rekey(&format!("/{link}"), ""), Value::Null).await.0, 200);
    let (east, west) = (clouds.east.tunnels(), clouds.west.tunnels());
    assert_eq!((east.len(), west.len()), (1, 1));
    assert!(east[0].1 == west[0].1 && east[0].1 != before && east[0].1.len() >= 24);
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    assert!(!operations.to_string().contains(&east[0].1), "keys are never told");

    // Nothing needs it any more: it is removed when asked, and only then.
    assert_eq!(
        rest(Method::POST, format!("{url}/links/prune?plan=true"), Value::Null).await.1["calls"],
        json!([])
    );
    for (cloud, name) in [("east", "a"), ("west", "b")] {
        assert_eq!(rest(Method::DELETE, format!("{}/web", rules(cloud, name)), Value::Null).await.0, 200);
    }
    assert_eq!(rest(Method::POST, format!("{url}/links/prune"), Value::Null).await.0, 200);
    assert!(clouds.east.tunnels().is_empty() && clouds.west.tunnels().is_empty());
}

#[tokio::test]
async fn bad_requests_reach_no_cloud() {
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = seen.clone();
    let calls: tarbet_nets::cloud::Calls = std::sync::Arc::new(move |_, _| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    });
    let clouds = bed::clouds(Some(calls)).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "default", "east", "a").await;
    let before = seen.load(std::sync::atomic::Ordering::Relaxed);
    let rules = format!("{}/rules", resource(&url, "default", "east", "a"));
    let rule = |change: Value| {
        let mut rule = web(&["10.0.0.4"]);
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        rule
    };
    let refused = [
        (rule(json!({ "dst_port": 70000 })), "rules[0].dst_port"),
        (rule(json!({ "protocol": 300 })), "rules[0].protocol"),
        (rule(json!({ "tags": [] })), "rules[0].tags"),
        (rule(json!({ "tags": ["nosuch"] })), "rules[0].tags: there is no tag `nosuch`"),
        (rule(json!({ "tags": ["10.0.0.0/40"] })), "rules[0].tags"),
        (rule(json!({ "tags": ["10.77.0.1"] })), "web.targets"),
        (rule(json!({ "name": "a b" })), "rules[0].name"),
    ];
    for (body, field) in refused {
        let (status, answer) = rest(Method::POST, rules.clone(), body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(field), "{field}: {answer}");
    }
    let circle = json!({ "name": "x", "child_tags": ["x"] });
    assert_eq!(rest(Method::POST, format!("{url}/tags/x/applyMembers"), circle).await.0, 409);
    for (place, status) in
        [(("default", "nowhere"), 404), (("nobody", "east"), 404), (("other", "west"), 404)]
    {
        let body = json!({ "description": "{}" });
        let answer = rest(Method::PUT, resource(&url, place.0, place.1, "x"), body).await;
        assert_eq!(answer.0, status, "{}", answer.1);
    }
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), before);
}

#[tokio::test]
async fn both_generations_of_plugins_are_served() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let rpc = format!("http://127.0.0.1:{}", clouds.config.server.rpc_port);
    let mut now = today::controller_client::ControllerClient::connect(rpc.clone()).await.unwrap();
    let mut then = seed::controller_client::ControllerClient::connect(rpc).await.unwrap();

    // Every answer is set aside: nobody gets the same space or number twice.
    let mut spaces = BTreeSet::new();
    for _ in 0..5 {
        let sizes = vec![0, 256];
        let answer =
            now.find_unused_address_spaces(today::FindUnusedAddressSpacesRequest { sizes }).await.unwrap();
        spaces.extend(answer.into_inner().address_spaces);
        let namespace = seed::Namespace { namespace: "default".into() };
        spaces.insert(then.find_unused_address_space(namespace).await.unwrap().into_inner().address);
    }
    assert_eq!(spaces.len(), 15, "{spaces:?}");
    let mut asns = BTreeSet::new();
    for _ in 0..3 {
        asns.insert(now.find_unused_asn(today::FindUnusedAsnRequest {}).await.unwrap().into_inner().asn);
    }
    assert_eq!(asns, BTreeSet::from([64512, 64513, 64514]));

    create(&running.rest, "default", "east", "a").await;
    let used = now.get_used_address_spaces(()).await.unwrap().into_inner().address_space_mappings;
    assert_eq!((used.len(), used[0].cloud.as_str()), (1, "east"));
    let namespace = seed::Namespace { namespace: "other".into() };
    let used = then.get_used_address_spaces(namespace).await.unwrap().into_inner().address_space_mappings;
    assert!(used.is_empty());

    let connect = seed::ConnectCloudsRequest {
        cloud_a: "east".into(),
        cloud_b: "west".into(),
        cloud_a_namespace: "default".into(),
        cloud_b_namespace: "default".into(),
        ..Default::default()
    };
    assert!(then.connect_clouds(connect.clone()).await.unwrap().into_inner().success);
    assert_eq!(clouds.west.tunnels().len(), 1);
    let same = seed::ConnectCloudsRequest { cloud_b: "east".into(), ..connect };
    assert_eq!(then.connect_clouds(same).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let value = today::SetValueRequest {
        key: "k".into(),
        value: "v".into(),
        cloud: "east".into(),
        namespace: "n".into(),
    };
    now.set_value(value).await.unwrap();
    let key = today::GetValueRequest { key: "k".into(), cloud: "east".into(), namespace: "n".into() };
    assert_eq!(now.get_value(key).await.unwrap().into_inner().value, "v");
}

#[tokio::test]
async fn drift_is_found_and_mended() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "default", "east", "a").await;
    let rules = format!("{}/rules", resource(&url, "default", "east", "a"));
    rest(Method::POST, rules.clone(), web(&["10.0.0.9"])).await;
    assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await.1, json!([]));
    let uri = "memory/east/default/a";
    clouds.east.delete_rules("default", uri, vec!["web".into()]).await.unwrap();
    let stray = tarbet_nets::model::Rule { name: "stray".into(), ..Default::default() };
    clouds.east.add_rules("default", uri, vec![stray]).await.unwrap();
    let (_, found) = rest(Method::GET, format!("{url}/drift"), Value::Null).await;
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    rest(Method::POST, format!("{url}/drift"), Value::Null).await;
    assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await.1, json!([]));
    let (_, list) = rest(Method::GET, rules, Value::Null).await;
    assert_eq!((list.as_array().unwrap().len(), &list[0]["name"]), (1, &json!("web")));
}
