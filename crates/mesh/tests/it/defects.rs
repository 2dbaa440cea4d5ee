//! Defects of the original that this must not have, each findable by its number in the table
//! `docs/reference/mesh-defects.md`. Those that a decision alone can show are tested beside it; here
//! are those that need running controllers, and the check that the table is true.

use std::path::Path;

use futures::StreamExt;
use serde_json::{Value, json};
use tarbet_cluster::{Source, connect};
use tarbet_mesh::fds::TYPE_URL;
use tarbet_mesh::fds::proto::discovery::DiscoveryRequest;
use tarbet_mesh::fds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tarbet_testbed::{Lease, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use super::discovery::{Server, offer};
use super::federation::{ENTRIES, IMPORTED, condition, federated, federation, get, rules, service, until};
use super::world::{SOON, Settings, two_meshes};

const ENTRY: &str = "import-pay-shop-svc-cluster-local";
const HOST: &str = "pay-shop-svc-cluster-local";

#[test]
fn every_defect_in_the_table_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/reference/mesh-defects.md")).unwrap();
    let mut numbers = Vec::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        let cells: Vec<&str> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let Ok(number) = cells[0].parse::<usize>() else { continue };
        numbers.push(number);
        let named: Vec<&str> = cells[2].split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "defect {number} names no test");
        for test in named {
            let (file, name) = test.rsplit_once("::").unwrap();
            let text = std::fs::read_to_string(root.join(file))
                .unwrap_or_else(|error| panic!("defect {number}: {file}: {error}"));
            assert!(text.contains(&format!("fn {name}(")), "defect {number}: {file} has no test {name}");
        }
    }
    assert_eq!(numbers, (1..=17).collect::<Vec<_>>(), "one row for each defect");
}

#[tokio::test]
async fn defect_02_an_edit_of_a_label_or_port_of_an_exported_service_reaches_importers() {
    let (east, west, _turn) = federated().await;
    let mut edited = service("shop", "pay", 80, true);
    edited["metadata"]["labels"]["tier"] = json!("gold");
    west.kubectl().apply(&edited).await.unwrap();
    let labelled = |object: &Value| object["spec"]["labels"]["tier"] == "gold";
    until(&east.kubectl(), IMPORTED, "istio-system", HOST, labelled).await;
    edited["spec"]["ports"][0]["targetPort"] = json!(9999);
    west.kubectl().apply(&edited).await.unwrap();
    let retargeted = |object: &Value| object["spec"]["ports"][0]["targetPort"] == 9999;
    until(&east.kubectl(), ENTRIES, "istio-system", ENTRY, retargeted).await;
}

/// A way to an API server that can be cut.
struct Relay {
    ports: Lease,
    to: u16,
    carrying: Option<JoinHandle<()>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Relay {
    fn to(port: u16) -> Self {
        Self { ports: Lease::block(1).unwrap(), to: port, carrying: None }
    }

    fn at(&self) -> u16 {
        self.ports.port(0)
    }

    async fn open(&mut self) {
        let bind = || TcpListener::bind(("127.0.0.1", self.at()));
        let (listener, to) = (eventually(SOON, "the port of the relay", bind).await.unwrap(), self.to);
        self.carrying = Some(tokio::spawn(async move {
            // Its connections end with the set.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", to)).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        }));
    }

    fn cut(&mut self) {
        if let Some(carrying) = self.carrying.take() {
            carrying.abort();
        }
    }
}

#[tokio::test]
async fn defect_03_an_exporter_that_cannot_read_its_cluster_never_empties_importers() {
    let (east, mut west, _turn) = federated().await;
    let here = east.kubectl();
    until(&here, IMPORTED, "istio-system", HOST, |object| condition(object, "Ready") == "True").await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let before = version(&get(&here, ENTRIES, "istio-system", ENTRY).await.unwrap());

    // West's controller begins anew, and can be cut off from its API server.
    let server = west.plane().server();
    let to = server.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok()).unwrap();
    let mut relay = Relay::to(to);
    relay.open().await;
    let kubeconfig = std::fs::read_to_string(west.plane().kubeconfig()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = kubeconfig.replace(&format!(":{to}"), &format!(":{}", relay.at()));
    assert_ne!(text, kubeconfig);
    std::fs::write(&file, text).unwrap();
    west.client = connect(&Source::file(file)).await.unwrap();
    let east_at = east.port();
    let peer = || Settings { peer: Some(("east", east_at)), ..Settings::default() };
    west.stop().await;
    west.start(peer()).await;
    assert_eq!(west.exported().await.unwrap(), ["pay.shop.svc.cluster.local"]);

    // It knows its services and loses sight of them: it goes on telling what it knows.
    relay.cut();
    assert_eq!(west.exported().await.unwrap(), ["pay.shop.svc.cluster.local"]);
    // It begins blind: it answers connections and says nothing until it sees.
    west.kill();
    let lost = |object: &Value| condition(object, "RemotesConnected") == "False";
    until(&here, "meshfederations", "istio-system", "default", lost).await;
    west.start(peer()).await;
    let reachable = || TcpStream::connect(("127.0.0.1", west.port()));
    eventually(SOON, "its discovery", reachable).await.unwrap();
    assert_eq!(version(&get(&here, ENTRIES, "istio-system", ENTRY).await.unwrap()), before);
    relay.open().await;
    let found = |object: &Value| condition(object, "RemotesConnected") == "True";
    until(&here, "meshfederations", "istio-system", "default", found).await;
    let after = version(&get(&here, ENTRIES, "istio-system", ENTRY).await.unwrap());
    assert_eq!(after, before, "the importer never touched what it had");
}

#[tokio::test]
async fn defect_05_an_edit_or_a_deletion_of_an_object_of_any_kind_is_repaired() {
    let (east, west, _turn) = federated().await;
    let kubectl = east.kubectl();
    // One object of each kind: routers on both sides, an egress gateway, a name that runs here too.
    let mut whole = federation("east", "west", "192.0.2.1");
    whole["spec"]["local"]["ingress"]["type"] = json!("openshift-router");
    whole["spec"]["local"]["egress"] = json!({ "gateway": { "selector": { "app": "egress" } } });
    whole["spec"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    kubectl.apply(&whole).await.unwrap();
    west.kubectl().apply(&service("shop", "both", 80, true)).await.unwrap();
    kubectl.apply(&service("shop", "both", 80, false)).await.unwrap();
    let discovery = "federation-discovery-service-east-istio-system-15080";
    let (filter, route) = (format!("sni-{discovery}"), format!("{discovery}-to-federation-ingress-gateway"));
    let (networking, security) = ("networking.istio.io", "security.istio.io");
    let elsewhere = json!({ "spec": { "host": "elsewhere.example" } });
    let egress = "federation-egress-gateway";
    for (kind, namespace, name, edit) in [
        (
            format!("workloadentries.{networking}"),
            "shop",
            "import-west-both-0",
            json!({ "spec": { "address": "198.51.100.9" } }),
        ),
        (
            format!("destinationrules.{networking}"),
            "istio-system",
            "mtls-sni-pay-shop-svc-cluster-local",
            elsewhere.clone(),
        ),
        (format!("envoyfilters.{networking}"), "istio-system", &filter, json!({ "spec": { "priority": 9 } })),
        ("routes.route.openshift.io".to_owned(), "istio-system", &route, elsewhere),
        (
            format!("virtualservices.{networking}"),
            "istio-system",
            egress,
            json!({ "spec": { "hosts": ["elsewhere.example"] } }),
        ),
        (
            format!("gateways.{networking}"),
            "istio-system",
            egress,
            json!({ "spec": { "selector": { "app": "elsewhere" } } }),
        ),
        (
            format!("peerauthentications.{security}"),
            "istio-system",
            "fds-strict-mtls",
            json!({ "spec": { "mtls": { "mode": "PERMISSIVE" } } }),
        ),
        (
            format!("authorizationpolicies.{security}"),
            "istio-system",
            "fds-remotes-only",
            json!({ "spec": { "action": "DENY" } }),
        ),
        (IMPORTED.to_owned(), "shop", "both-shop-svc-cluster-local", json!({ "spec": { "meshes": [] } })),
    ] {
        let good = until(&kubectl, &kind, namespace, name, |_| true).await;
        let patch = edit.to_string();
        let words = ["patch", &kind, name, "-n", namespace, "--type=merge", "-p", &patch];
        kubectl.run(&words).await.unwrap();
        let repaired = |object: &Value| {
            object["spec"] == good["spec"]
                && object["metadata"]["generation"] != good["metadata"]["generation"]
        };
        until(&kubectl, &kind, namespace, name, repaired).await;
        kubectl.run(&["delete", &kind, name, "-n", namespace, "--wait=false"]).await.unwrap();
        let anew = |object: &Value| {
            object["metadata"]["uid"] != good["metadata"]["uid"] && object["spec"] == good["spec"]
        };
        until(&kubectl, &kind, namespace, name, anew).await;
    }
}

#[tokio::test]
async fn defect_10_a_remote_without_addresses_is_told_on_and_harms_nobody() {
    let (mut east, mut west, _turn) = two_meshes().await.unwrap();
    let kubectl = east.kubectl();
    let mut bare = federation("east", "west", "192.0.2.1");
    let nowhere = json!({ "id": "north", "network": "north" });
    bare["spec"]["remote"].as_array_mut().unwrap().push(nowhere);
    kubectl.apply(&bare).await.unwrap();
    kubectl
        .apply(&rules("istio-system", json!([{ "meshID": "north" }, { "meshID": "west" }])))
        .await
        .unwrap();
    west.kubectl().apply(&federation("west", "east", "192.0.2.2")).await.unwrap();
    west.kubectl().apply(&rules("istio-system", json!([]))).await.unwrap();
    west.kubectl().apply(&service("shop", "pay", 80, true)).await.unwrap();
    west.start(Settings::default()).await;
    let west_at = west.port();
    east.start(Settings { peer: Some(("west", west_at)), ..Settings::default() }).await;
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |_| true).await;
    let told = |object: &Value| {
        let remotes = object["status"]["remotes"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |id: &str| remotes.iter().find(|remote| remote["id"] == id).cloned().unwrap_or_default();
        of("west")["connected"] == true
            && of("north")["error"].as_str().is_some_and(|error| error.contains("no way to its discovery"))
    };
    until(&kubectl, "meshfederations", "istio-system", "default", told).await;
}

#[tokio::test]
async fn defect_14_questions_and_changes_at_once_are_answered_one_after_another() {
    let server = Server::start().await;
    let names =
        |count: usize| -> Vec<_> { (0..count).map(|n| offer(&format!("s{n}.shop.global"))).collect() };
    server.offer_as("west", &names(1), 1000);
    let address = format!("http://127.0.0.1:{}", server.port);
    let mut client = AggregatedDiscoveryServiceClient::connect(address).await.unwrap();
    let (sender, requests) = mpsc::channel(16);
    let question = || DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() };
    sender.send(question()).await.unwrap();
    let mut answers =
        client.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap().into_inner();
    let asking = tokio::spawn(async move {
        for _ in 0..200 {
            sender.send(question()).await.unwrap();
        }
        sender
    });
    // Changes far closer together than the seconds that the original counts in.
    let changing = async {
        for count in 2..=50 {
            server.offer_as("west", &names(count), 1000);
            tokio::task::yield_now().await;
        }
    };
    let hearing = async {
        let (mut nonces, mut states) = (Vec::new(), Vec::new());
        while states.last() != Some(&50) {
            let answer = answers.message().await.unwrap().unwrap();
            nonces.push(answer.nonce.parse::<u64>().unwrap());
            states.push(answer.resources.len());
        }
        (nonces, states)
    };
    let ((nonces, states), ()) = tokio::join!(hearing, changing);
    assert!(nonces.windows(2).all(|pair| pair[1] == pair[0] + 1), "each answer once: {nonces:?}");
    assert!(states.is_sorted(), "never an older state after a newer one: {states:?}");
    asking.abort();
}

#[tokio::test]
async fn defect_14_a_subscriber_that_is_gone_keeps_no_place() {
    let server = Server::start().await;
    server.offer_as("west", &[offer("a.shop.global")], 1000);
    let mut relay = Relay::to(server.port);
    // Together more than may be there at once. Nothing changes that a failed push could show.
    for _ in 0..7 {
        relay.open().await;
        let address = format!("http://127.0.0.1:{}", relay.at());
        let subscribe = |_| async {
            let once = || async {
                let mut client = AggregatedDiscoveryServiceClient::connect(address.clone()).await?;
                let first = DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() };
                let requests = futures::stream::iter([first]).chain(futures::stream::pending());
                let mut answers = client.stream_aggregated_resources(requests).await?.into_inner();
                anyhow::ensure!(answers.message().await?.is_some_and(|answer| answer.resources.len() == 1));
                anyhow::Ok(answers)
            };
            eventually(SOON, "a place", once).await.unwrap()
        };
        let here: Vec<_> = futures::stream::iter(0..80).map(subscribe).buffer_unordered(16).collect().await;
        assert_eq!(here.len(), 80);
        relay.cut();
    }
}
