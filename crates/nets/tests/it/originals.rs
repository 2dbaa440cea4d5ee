//! What programs of the originals send and expect, as they do it: no media types, every pointer read unasked,
//! one status for all failures, and no patience with pings.

mod plugin;
mod seed;
mod seed_plugin;
mod vpn;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud as _, MemoryCloud, Remote};
use tarbet_nets::controller::{Controller as _, RemoteController};
use tarbet_nets::trust::DialTrust;
use tarbet_nets::wire::paraglider as today;
use tarbet_testbed::eventually;
use tonic::Status;
use tonic::service::Routes;

use super::bed::{self, rest};
use plugin::Plugin;

/// A request as the original's client makes it: a body, and not a word about what it is.
async fn bare(method: Method, url: String, body: &Value) -> (u16, Value) {
    let response = reqwest::Client::new().request(method, url).body(body.to_string()).send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn bodies_without_a_media_type_are_read_and_every_failure_is_json() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = &running.rest;
    let place = format!("{url}/namespaces/default/clouds/east/resources");
    let (status, made) =
        bare(Method::PUT, format!("{place}/a"), &json!({ "description": "{}", "new": 1 })).await;
    assert_eq!((status, &made["name"]), (200, &json!("default.east.a")), "{made}");
    let (status, made) =
        bare(Method::POST, place.clone(), &json!({ "name": "b", "description": "{}" })).await;
    assert_eq!((status, &made["name"]), (200, &json!("default.east.b")), "{made}");
    let members = json!({ "name": "clients", "child_tags": ["default.east.b"] });
    let (status, answer) = bare(Method::POST, format!("{url}/tags/clients/applyMembers"), &members).await;
    assert_eq!((status, answer), (200, json!({})));
    let rule = |name: &str| {
        json!({ "name": name, "src_port": -1, "dst_port": 22, "protocol": 6, "tags": ["clients"], "targets": null,
            "note": "of a later version" })
    };
    let (status, answer) = bare(Method::POST, format!("{place}/a/rules"), &rule("one")).await;
    assert_eq!((status, answer), (200, json!("")), "an empty body");
    assert_eq!(bare(Method::POST, format!("{place}/a/applyRules"), &json!([rule("two")])).await.0, 200);
    assert_eq!(bare(Method::PUT, format!("{place}/a/rules/three"), &rule("other")).await.0, 200);
    assert_eq!(bare(Method::POST, format!("{url}/tags/clients/rules"), &json!([rule("four")])).await.0, 200);
    assert_eq!(bare(Method::DELETE, format!("{url}/tags/clients/rules"), &json!(["four"])).await.0, 200);
    assert_eq!(bare(Method::POST, format!("{place}/a/deleteRules"), &json!(["two"])).await.0, 200);
    let (_, list) = rest(Method::GET, format!("{place}/a/rules"), Value::Null).await;
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "three"]);

    let failures = [
        (bare(Method::POST, format!("{place}/a/rules"), &json!([])).await, 400),
        (bare(Method::POST, format!("{place}/a/applyRules"), &json!("{")).await, 400),
        (rest(Method::POST, format!("{url}/links/prune?plan=perhaps"), Value::Null).await, 400),
        (rest(Method::GET, format!("{url}/nowhere"), Value::Null).await, 404),
        (rest(Method::PATCH, format!("{url}/tags"), Value::Null).await, 405),
        (rest(Method::GET, format!("{place}/nobody/rules"), Value::Null).await, 404),
    ];
    for ((status, answer), wanted) in failures {
        assert_eq!(status, wanted, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{answer}");
    }
}

#[tokio::test]
async fn a_member_that_is_none_is_taken_out_with_success() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let tags = format!("{}/tags", running.rest);
    let group = json!({ "name": "g", "child_tags": ["10.0.0.1", "10.0.0.2"] });
    assert_eq!(bare(Method::POST, format!("{tags}/g/applyMembers"), &group).await.0, 200);
    for _ in 0..2 {
        let answer = rest(Method::DELETE, format!("{tags}/g/members/10.0.0.1"), Value::Null).await;
        assert_eq!(answer, (200, json!({})));
    }
    assert_eq!(running.orchestrator.tags().addresses("g"), ["10.0.0.2"]);
}

#[tokio::test]
async fn used_spaces_name_their_deployment_even_if_a_plugin_does_not() {
    let original = Plugin::new("gcp", &[&["10.3.0.0/16"]]);
    let world = plugin::World::with(&[&original]).await;
    let _running = bed::orchestrator(&world.config, &bed::memory().await).await;
    let used = world.controller().await.get_used_address_spaces(()).await.unwrap().into_inner();
    let told: Vec<Option<String>> =
        used.address_space_mappings.into_iter().map(|mapping| mapping.deployment).collect();
    assert_eq!(told, [Some("deployment of gcp".to_owned())]);
}

#[tokio::test]
async fn a_resource_is_called_what_was_asked_for_whatever_its_cloud_calls_it() {
    let original = Plugin::new("ibm", &[&["10.3.0.0/16"]]);
    let world = plugin::World::with(&[&original]).await;
    let running = bed::orchestrator(&world.config, &bed::memory().await).await;
    let vm = format!("{}/namespaces/default/clouds/ibm/resources/vm1", running.rest);
    let (status, made) = bare(Method::PUT, vm.clone(), &json!({ "description": "{}" })).await;
    assert_eq!((status, &made["name"]), (200, &json!("default.ibm.vm1")), "{made}");
    assert_eq!(made["uri"], plugin::URI);
    let tag = running.orchestrator.tags().get("default.ibm.vm1").unwrap();
    assert_eq!(tag.uri.as_deref(), Some(plugin::URI));
    let (status, again) = bare(Method::PUT, vm, &json!({ "description": "{}" })).await;
    assert_eq!((status, &again["name"]), (200, &json!("default.ibm.vm1")), "{again}");
}

#[tokio::test]
async fn rules_that_the_original_gave_are_followed_and_can_be_deleted() {
    let original = Plugin::new("gcp", &[&["10.3.0.0/16"]]);
    let world = plugin::World::with(&[&original]).await;
    let running = bed::orchestrator(&world.config, &bed::memory().await).await;
    let url = &running.rest;
    let vm = format!("{url}/namespaces/default/clouds/gcp/resources/vm1");
    assert_eq!(bare(Method::PUT, vm.clone(), &json!({ "description": "{}" })).await.0, 200);
    let members = |ip: &str| json!({ "name": "clients", "child_tags": [ip] });
    let clients = format!("{url}/tags/clients/applyMembers");
    assert_eq!(bare(Method::POST, clients.clone(), &members("10.3.0.9")).await.0, 200);
    // Before we came, the other orchestrator gave two rules: one by tag, one whose tags its cloud did not keep.
    let rule = |name: &str, tags: &[&str]| today::PermitListRule {
        name: name.into(),
        targets: vec!["10.3.0.9".into()],
        src_port: -1,
        dst_port: 443,
        protocol: 6,
        tags: tags.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    original.give(rule("before", &["clients"]));
    original.give(rule("untagged", &[]));
    running.orchestrator.tags().subscribe("clients", &format!("default>gcp>{}", plugin::URI)).await.unwrap();
    let ours = json!({ "name": "ours", "src_port": -1, "dst_port": 80, "protocol": 6, "tags": ["10.3.0.7"] });
    assert_eq!(bare(Method::POST, format!("{vm}/rules"), &ours).await.0, 200);
    assert_eq!(bare(Method::POST, clients, &members("10.3.0.10")).await.0, 200);
    assert_eq!(original.rule("before").unwrap().targets, ["10.3.0.10", "10.3.0.9"], "it follows its tag");
    assert_eq!(original.rule("untagged").unwrap().targets, ["10.3.0.9"], "what is not known is not touched");
    // One that came after ours, behind our back.
    original.give(rule("later", &["10.3.0.9"]));
    let gone = json!(["before", "later"]);
    assert_eq!(bare(Method::POST, format!("{vm}/deleteRules"), &gone).await.0, 200);
    assert!(original.rule("before").is_none() && original.rule("later").is_none());
    assert!(original.rule("ours").is_some() && original.rule("untagged").is_some());
    assert!(running.orchestrator.tags().subscribers("clients").is_empty(), "no rule names it any more");
}

#[tokio::test]
async fn flags_are_sent_until_they_are_taken_and_to_every_cloud() {
    let late = Plugin::new("azure", &[]).refusing_flags(2);
    let silent = Plugin::new("gcp", &[]);
    let mut world = plugin::World::with(&[&late, &silent]).await;
    let flags = json!({ "azure": { "attachResourceEnabled": true } });
    world.config.feature_flags = serde_json::from_value(flags).unwrap();
    let _running = bed::orchestrator(&world.config, &bed::memory().await).await;
    eventually(Duration::from_mins(1), "both plugins have their flags", || async {
        let told = [late.flags(), silent.flags()];
        let attach = told.map(|flags| flags.map(|flags| flags.attach_resource_enabled));
        if attach == [Some(true), Some(false)] { Ok(()) } else { Err(format!("{attach:?}")) }
    })
    .await
    .unwrap();

    // The other way round: a message of zeros is not sent at all by some encoders.
    let nobody = Arc::new(RemoteController::new("127.0.0.1", 1).unwrap());
    let ours = Arc::new(MemoryCloud::new("east", nobody));
    let listening = bed::serve(tarbet_nets::cloud::serve(ours, "east")).await;
    let mut client = today::cloud_plugin_client::CloudPluginClient::connect(listening.url()).await.unwrap();
    client.set_flags(today::SetFlagsRequest { flags: None }).await.unwrap();
}

#[tokio::test]
async fn a_missing_value_is_known_by_its_words() {
    let clouds = bed::clouds(None).await;
    let _running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let rpc = format!("http://127.0.0.1:{}", clouds.config.server.rpc_port);
    let mut client = today::controller_client::ControllerClient::connect(rpc).await.unwrap();
    let key = today::GetValueRequest { key: "k".into(), cloud: "ibm".into(), namespace: "default".into() };
    let missing = client.get_value(key).await.unwrap_err();
    assert!(missing.message().contains("redis: nil"), "{missing}");

    // The original's own answer: unknown, and a text.
    let answer = || async { Status::unknown("redis: nil").into_http::<axum::body::Body>() };
    let router = axum::Router::new().route("/paragliderpb.Controller/GetValue", axum::routing::post(answer));
    let listening = bed::serve(Routes::from(router)).await;
    let original = RemoteController::new("127.0.0.1", listening.address.port()).unwrap();
    let missing = original.get_value("default", "ibm", "k").await.unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
}

/// Passes connections on, and counts the pings that callers send of their own accord.
fn counting_pings(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pings = Arc::new(AtomicUsize::new(0));
    let counter = pings.clone();
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(to).unwrap();
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), caller.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            let counter = counter.clone();
            std::thread::spawn(move || pass_frames(caller, server, &counter));
        }
    });
    (address, pings)
}

fn pass_frames(mut from: TcpStream, mut to: TcpStream, pings: &AtomicUsize) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    const PING: u8 = 6;
    const ACK: u8 = 1;
    let mut bytes = vec![0; PREFACE];
    from.read_exact(&mut bytes)?;
    to.write_all(&bytes)?;
    loop {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        from.read_exact(&mut body)?;
        if head[3] == PING && head[4] & ACK == 0 {
            pings.fetch_add(1, Ordering::Relaxed);
        }
        to.write_all(&head)?;
        to.write_all(&body)?;
    }
}

#[tokio::test]
async fn no_pings_are_sent_however_long_a_line_is_kept() {
    let nobody = Arc::new(RemoteController::new("127.0.0.1", 1).unwrap());
    let listening =
        bed::serve(tarbet_nets::cloud::serve(Arc::new(MemoryCloud::new("east", nobody)), "east")).await;
    let (address, pings) = counting_pings(listening.address);
    let remote = Remote::trusting("east", "127.0.0.1", address.port(), &DialTrust::default()).unwrap();
    remote.used_asns(&[]).await.unwrap();
    for _ in 0..3 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(25)).await;
        tokio::time::resume();
        remote.used_asns(&[]).await.unwrap();
    }
    assert_eq!(pings.load(Ordering::Relaxed), 0, "a server in Go would have closed the line");
}

#[tokio::test]
async fn a_plugin_that_has_no_words_for_networks_of_others_is_said_to_have_none() {
    let plugin = Plugin::new("ibm", &[&["10.200.0.0/16"]]);
    let world = plugin::World::with(&[&plugin]).await;
    let running = bed::orchestrator(&world.config, &bed::memory().await).await;
    for query in ["?plan=true", ""] {
        let (status, refused) =
            rest(Method::POST, format!("{}/imports/ibm{query}", running.rest), Value::Null).await;
        assert_eq!((status, &refused["code"]), (501, &json!("TB-4205")), "{refused}");
        assert!(
            refused.to_string().contains("plugin of ibm cannot tell which networks others made"),
            "{refused}"
        );
    }
    let (_, recorded) = rest(Method::GET, format!("{}/imports", running.rest), Value::Null).await;
    assert_eq!(recorded, json!([]));
}
