//! An orchestrator whose tags are kept by a service elsewhere, on either wire.

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::tags::{RemoteTags, Sharing, TagWire, Tags};
use tarbet_nets::trust::DialTrust;
use tarbet_nets::{NetsConfig, role};
use tarbet_telemetry::Coded as _;
use tarbet_testbed::Lease;
use tonic::service::Routes;

use super::bed::{self, rest};

fn resource(url: &str, name: &str) -> String {
    format!("{url}/namespaces/default/clouds/east/resources/{name}")
}

async fn life(wire: TagWire) {
    let far = Tags::open(&bed::memory().await, Sharing::Alone).await.unwrap();
    let routes = match wire {
        TagWire::Today => Routes::new(far.today()),
        TagWire::Seed => Routes::new(far.seed()),
    };
    let service = bed::serve(routes).await;
    let clouds = bed::clouds(None).await;
    let mut config = clouds.config.clone();
    config.remote_tags = Some(RemoteTags {
        host: "127.0.0.1".into(),
        port: service.address.port(),
        wire,
        trust: DialTrust::default(),
    });
    let store = bed::memory().await;
    let running = bed::orchestrator(&config, &store).await;
    let url = &running.rest;
    for name in ["web", "one", "two"] {
        let (status, made) = rest(Method::PUT, resource(url, name), json!({ "description": "{}" })).await;
        assert_eq!(status, 200, "{made}");
        let tag = far.get(&format!("default.east.{name}")).unwrap();
        assert_eq!(tag.ip.as_deref(), made["ip"].as_str(), "the service elsewhere was told");
    }
    let set = |tag: &'static str, member: &'static str| async move {
        let body = json!({ "name": tag, "child_tags": [member] });
        rest(Method::POST, format!("{url}/tags/{tag}/applyMembers"), body).await
    };
    assert_eq!(set("inner", "default.east.one").await.0, 200);
    assert_eq!(set("clients", "inner").await.0, 200);
    assert_eq!(set("inner", "clients").await.0, 409, "a circle is refused");
    let rule =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["clients"] }]);
    let rules = format!("{}/applyRules", resource(url, "web"));
    assert_eq!(rest(Method::POST, rules.clone(), rule.clone()).await.0, 200);
    assert_eq!(far.subscribers("clients"), ["default>east>memory/east/default/web"]);
    let (_, plan) = rest(Method::POST, format!("{rules}?plan=true"), rule).await;
    assert_eq!(plan["calls"], json!([]), "a second time there is nothing to do");

    // Somebody else changes the tags there; the next change here sees it.
    far.set(&tarbet_nets::plan::tags::Mapping {
        name: "clients".into(),
        child_tags: vec!["10.0.0.77".into()],
        ..Default::default()
    })
    .await
    .unwrap();
    assert_eq!(set("clients", "default.east.two").await.0, 200);
    let (_, list) = rest(Method::GET, format!("{}/rules", resource(url, "web")), Value::Null).await;
    assert_eq!(list[0]["targets"], json!(["10.0.0.5", "10.0.0.6", "10.0.0.77"]), "{list}");
    let member = format!("{url}/tags/clients/members/inner");
    assert_eq!(rest(Method::DELETE, member, Value::Null).await.0, 200);
    let (_, list) = rest(Method::GET, format!("{}/rules", resource(url, "web")), Value::Null).await;
    assert_eq!(list[0]["targets"], json!(["10.0.0.6", "10.0.0.77"]), "{list}");
    if wire == TagWire::Today {
        // Only this wire can list, and so tell who follows from above.
        let (_, all) = rest(Method::GET, format!("{url}/namespaces/default/resources"), Value::Null).await;
        assert_eq!(all.as_array().unwrap().len(), 3, "{all}");
        assert_eq!(set("deep", "10.0.0.88").await.0, 200);
        assert_eq!(set("clients", "deep").await.0, 200);
        assert_eq!(set("deep", "10.0.0.99").await.0, 200);
        let (_, list) = rest(Method::GET, format!("{}/rules", resource(url, "web")), Value::Null).await;
        assert_eq!(list[0]["targets"], json!(["10.0.0.6", "10.0.0.77", "10.0.0.88", "10.0.0.99"]), "{list}");
    }

    // An orchestrator that has just started knows nothing of its own, and looks.
    let out = json!([{ "name": "out", "direction": 1, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.east.web"] }]);
    assert_eq!(rest(Method::POST, format!("{}/applyRules", resource(url, "two")), out).await.0, 200);
    let again = NetsConfig { remote_tags: config.remote_tags.clone(), ..clouds.second.clone() };
    let fresh = bed::orchestrator(&again, &store).await;
    let ask = format!("{}/can?from=default.east.two&to=default.east.web&port=443", fresh.rest);
    let (status, verdict) = rest(Method::GET, ask, Value::Null).await;
    assert_eq!((status, &verdict["allowed"]), (200, &json!(true)), "{verdict}");
    drop(fresh);
    let ports = Lease::block(4).unwrap();
    let fresh = bed::orchestrator(&elsewhere(&again, &ports), &store).await;
    let (_, all) =
        rest(Method::GET, format!("{}/namespaces/default/resources", fresh.rest), Value::Null).await;
    assert_eq!(all.as_array().unwrap().len(), 3, "{all}");
    let (_, all) = rest(Method::GET, format!("{}/tags", fresh.rest), Value::Null).await;
    let names: Vec<&str> = all.as_array().unwrap().iter().filter_map(|tag| tag["name"].as_str()).collect();
    for name in ["clients", "default.east.one", "default.east.two", "default.east.web"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    // It knows who follows from above, too, because rules name it.
    let body = json!({ "name": "default.east.two", "uri": "memory/east/default/two", "ip": "10.0.0.66" });
    let path = "tags/default.east.two/applyMembers";
    let (status, answer) = rest(Method::POST, format!("{}/{path}", fresh.rest), body).await;
    assert_eq!(status, 200, "{answer}");
    let (_, list) = rest(Method::GET, format!("{}/rules", resource(url, "web")), Value::Null).await;
    let targets = list[0]["targets"].as_array().unwrap();
    assert!(targets.contains(&json!("10.0.0.66")) && !targets.contains(&json!("10.0.0.6")), "{list}");

    // While it is away nothing is decided by what was true before.
    drop(service);
    let (status, refused) = set("clients", "default.east.one").await;
    assert_eq!((status, refused["code"].as_str()), (502, Some("TB-4208")), "{refused}");
}

/// The same on other ports.
fn elsewhere(config: &NetsConfig, ports: &Lease) -> NetsConfig {
    let mut config = config.clone();
    (config.server.port, config.server.rpc_port) = (ports.port(0), ports.port(1));
    (config.tag_service.port, config.kv_store.port) = (ports.port(2), ports.port(3));
    config
}

#[tokio::test]
async fn tags_elsewhere_on_todays_wire() {
    life(TagWire::Today).await;
}

#[tokio::test]
async fn tags_elsewhere_on_the_first_generations_wire() {
    life(TagWire::Seed).await;
}

#[tokio::test]
async fn a_tag_service_on_another_host_is_used_and_one_on_this_is_named_in_the_advice() {
    let clouds = bed::clouds(None).await;
    let here = role::with_tags_where_they_are(clouds.config.clone()).await;
    assert_eq!(here, clouds.config);
    let mut elsewhere = clouds.config.clone();
    elsewhere.tag_service.host = "192.0.2.1".into();
    let found = role::with_tags_where_they_are(elsewhere.clone()).await.remote_tags.unwrap();
    assert_eq!(
        (found.host.as_str(), found.port, found.wire),
        ("192.0.2.1", elsewhere.tag_service.port, TagWire::Today)
    );
    elsewhere.cloud_plugins[0].inv_deployment = Some("e".into());
    let found = role::with_tags_where_they_are(elsewhere).await.remote_tags.unwrap();
    assert_eq!(found.wire, TagWire::Seed);

    let _taken = tokio::net::TcpListener::bind(("127.0.0.1", clouds.config.tag_service.port)).await.unwrap();
    let around = role::Surroundings {
        store: bed::memory().await,
        sharing: Sharing::Alone,
        metrics: tarbet_telemetry::Metrics::new("nets", "test"),
        health: tarbet_telemetry::Health::default(),
        supervisor: tarbet_telemetry::Supervisor::default(),
    };
    let refused = role::nets(clouds.config.clone(), &around).await.err().unwrap().problem();
    assert!(refused.remedy.contains("remoteTags"), "{refused:?}");
}
