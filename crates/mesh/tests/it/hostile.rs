//! A peer that is broken or hostile is limited, takes no name that is ours, and is told on.

use serde_json::{Value, json};
use tarbet_mesh::model::Offer;
use tarbet_testbed::{Lease, eventually};
use tokio::net::TcpListener;

use super::discovery::{Server, offer};
use super::federation::{ENTRIES, IMPORTED, condition, federation, get, rules, service, until};
use super::world::{SOON, Settings, two_meshes};

const HOST: &str = "pay-shop-svc-cluster-local";

/// What nobody should say, each for another reason.
fn lies() -> Vec<Offer> {
    let foreign =
        Offer { subject_alt_names: vec!["spiffe://bank.example/ns/a/sa/b".into()], ..offer("a.shop.global") };
    let private = Offer { endpoints: vec!["127.0.0.1".into()], ..offer("b.shop.global") };
    let mut twice = offer("c.shop.global");
    twice.ports.push(twice.ports[0].clone());
    let names = [
        "kubernetes.default.svc.cluster.local",
        "kube-dns.kube-system.svc.cluster.local",
        "istiod.istio-system.svc.cluster.local",
        "federation-discovery-service-east.istio-system.svc.cluster.local",
        "*.shop.svc.cluster.local",
        "Upper.Case",
        "under_score.global",
        "taken.example.com",
        "svc.cluster.local",
    ];
    names.into_iter().map(offer).chain([foreign, private, twice]).collect()
}

#[tokio::test]
async fn a_hostile_peer_gets_only_what_is_its_own_and_the_status_says_why() {
    let (mut east, _west, _turn) = two_meshes().await.unwrap();
    let kubectl = east.kubectl();
    kubectl.apply(&federation("east", "west", "192.0.2.1")).await.unwrap();
    kubectl.apply(&rules("istio-system", json!([{ "meshID": "west" }]))).await.unwrap();
    // A service of ours that the peer claims too, with another port, and a name that somebody declared.
    kubectl.apply(&service("shop", "own", 8443, false)).await.unwrap();
    let declared = json!({ "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": { "name": "declared", "namespace": "shop" },
        "spec": { "hosts": ["taken.example.com"], "resolution": "DNS", "location": "MESH_EXTERNAL",
            "ports": [{ "number": 443, "name": "tls", "protocol": "TLS" }] } });
    kubectl.apply(&declared).await.unwrap();

    let ports = Lease::block(1).unwrap();
    let port = ports.port(0);
    let again = || async { TcpListener::bind(("127.0.0.1", port)).await };
    let server = Server::on(again().await.unwrap());
    let mut said = lies();
    let lies = said.len();
    said.extend([offer("pay.shop.svc.cluster.local"), offer("own.shop.svc.cluster.local")]);
    server.offer_as("west", &said, 2_000_000);
    east.start(Settings { peer: Some(("west", port)), ..Settings::default() }).await;
    until(&kubectl, IMPORTED, "istio-system", HOST, |_| true).await;

    // What is its own is imported; nothing else is, and the reasons are told.
    let told = |object: &Value| object["status"]["remotes"][0]["refused"] == json!(lies);
    let status = until(&kubectl, "meshfederations", "istio-system", "default", told).await;
    let remote = &status["status"]["remotes"][0];
    assert_eq!(remote["refusals"].as_array().map(Vec::len), Some(10), "the first ten are told");
    let reasons = remote["refusals"].to_string();
    for reason in ["wildcard", "belong to each cluster", "discovery of a mesh", "outside the trust domain"] {
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }
    let entries = kubectl.json(&["get", ENTRIES, "-A"]).await.unwrap();
    let hosts: Vec<&Value> =
        entries["items"].as_array().unwrap().iter().map(|entry| &entry["spec"]["hosts"][0]).collect();
    assert_eq!(hosts.len(), 3, "discovery, pay, and the one that somebody declared: {hosts:?}");
    assert!(!hosts.contains(&&json!("own.shop.svc.cluster.local")), "ours is shadowed");
    let own = until(&kubectl, IMPORTED, "shop", "own-shop-svc-cluster-local", |object| {
        condition(object, "Conflicted") == "True"
    })
    .await;
    assert!(own["status"].to_string().contains("only the local Service answers"), "{}", own["status"]);

    // It comes back with an older state that is empty: what is here stays, and the status says why.
    drop(server);
    let older = Server::on(eventually(SOON, "the port", again).await.unwrap());
    older.offer_as("west", &[], 1_000_000);
    let refused = |word: &'static str| {
        move |object: &Value| {
            object["status"]["remotes"][0]["error"].as_str().is_some_and(|error| error.contains(word))
        }
    };
    until(&kubectl, "meshfederations", "istio-system", "default", refused("older")).await;
    get(&kubectl, IMPORTED, "istio-system", HOST).await.unwrap();

    // Another mesh answers in its place.
    drop(older);
    let stranger = Server::on(eventually(SOON, "the port", again).await.unwrap());
    stranger.offer_as("central", &[], 3_000_000);
    until(&kubectl, "meshfederations", "istio-system", "default", refused("calls itself `central`")).await;
    get(&kubectl, IMPORTED, "istio-system", HOST).await.unwrap();

    // And itself again, newer: nothing is left of the rest.
    drop(stranger);
    let west = Server::on(eventually(SOON, "the port", again).await.unwrap());
    west.offer_as("west", &[offer("pay.shop.svc.cluster.local")], 4_000_000);
    let well = |object: &Value| {
        let remote = &object["status"]["remotes"][0];
        remote["error"].is_null() && remote["refused"].is_null() && remote["imported"] == 1
    };
    until(&kubectl, "meshfederations", "istio-system", "default", well).await;
    kubectl.run(&["delete", ENTRIES, "declared", "-n", "shop"]).await.unwrap();
}
