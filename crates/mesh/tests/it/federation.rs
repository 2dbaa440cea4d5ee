//! Whole controllers on real control planes: what one mesh exports appears in the other, is kept
//! as it must be, and goes with its cause.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use tarbet_cluster::Timings;
use tarbet_testbed::{Kubectl, eventually};

use super::world::{Mesh, SOON, Settings, two_meshes};

pub(crate) const IMPORTED: &str = "importedservices.federation.openshift-service-mesh.io";
pub(crate) const ENTRIES: &str = "serviceentries.networking.istio.io";
const WORKLOADS: &str = "workloadentries.networking.istio.io";

pub(crate) fn service(namespace: &str, name: &str, port: u16, export: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace, "labels": { "export": export.to_string(), "app": name } },
        "spec": { "selector": { "app": name }, "ports": [{ "name": "http", "port": port, "targetPort": 8080 }] },
    })
}

pub(crate) fn federation(local: &str, remote: &str, address: &str) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "MeshFederation",
        "metadata": { "name": "default" },
        "spec": {
            "local": { "id": local, "network": local, "ingress": { "gateway": { "selector": { "app": "gw" } } } },
            "remote": [{ "id": remote, "network": remote, "ingress": { "addresses": [address], "port": 15443 } }],
        },
    })
}

pub(crate) fn rules(namespace: &str, import: Value) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": namespace },
        "spec": { "export": { "serviceSelectors": [{ "matchLabels": { "export": "true" } }] }, "import": import },
    })
}

pub(crate) async fn get(kubectl: &Kubectl, kind: &str, namespace: &str, name: &str) -> Result<Value> {
    kubectl.json(&["get", kind, name, "--namespace", namespace]).await
}

/// Waits until the object is as `good` wants it.
pub(crate) async fn until(
    kubectl: &Kubectl,
    kind: &str,
    namespace: &str,
    name: &str,
    good: impl Fn(&Value) -> bool,
) -> Value {
    let look = || async {
        let object = get(kubectl, kind, namespace, name).await?;
        if good(&object) { Ok(object) } else { Err(anyhow!("it is {object}")) }
    };
    eventually(SOON, &format!("{kind} {namespace}/{name}"), look).await.unwrap()
}

pub(crate) async fn until_gone(kubectl: &Kubectl, kind: &str, namespace: &str, name: &str) {
    let look = || async {
        match kubectl.run(&["get", kind, name, "--namespace", namespace, "--ignore-not-found"]).await {
            Ok(text) if text.is_empty() => Ok(()),
            Ok(text) => Err(anyhow!("{text}")),
            Err(error) => Err(error),
        }
    };
    eventually(SOON, &format!("the end of {kind} {namespace}/{name}"), look).await.unwrap();
}

pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|c| c["type"] == name).and_then(|c| c["status"].as_str()).unwrap_or("")
}

/// Two meshes that import from each other, with `shop/pay` exported by west.
pub(crate) async fn federated() -> (Mesh, Mesh, tokio::sync::MutexGuard<'static, ()>) {
    let (mut east, mut west, turn) = two_meshes().await.unwrap();
    for (mesh, other, address) in [(&mut east, "west", "192.0.2.1"), (&mut west, "east", "192.0.2.2")] {
        let kubectl = mesh.kubectl();
        kubectl.apply(&federation(&mesh.name, other, address)).await.unwrap();
        kubectl.apply(&rules("istio-system", json!([{ "meshID": other }]))).await.unwrap();
    }
    west.kubectl().apply(&service("shop", "pay", 80, true)).await.unwrap();
    let ports = (east.port(), west.port());
    east.start(Settings { peer: Some(("west", ports.1)), ..Settings::default() }).await;
    west.start(Settings { peer: Some(("east", ports.0)), ..Settings::default() }).await;
    let entry = "import-pay-shop-svc-cluster-local";
    until(&east.kubectl(), ENTRIES, "istio-system", entry, |_| true).await;
    let connected = |object: &Value| {
        condition(object, "RemotesConnected") == "True" && condition(object, "Ready") == "True"
    };
    until(&east.kubectl(), "meshfederations", "istio-system", "default", connected).await;
    until(&west.kubectl(), "meshfederations", "istio-system", "default", connected).await;
    (east, west, turn)
}

#[tokio::test]
async fn an_export_appears_changes_and_goes() {
    let (east, west, _turn) = federated().await;
    let (here, there) = (east.kubectl(), west.kubectl());
    let (host, entry) = ("pay-shop-svc-cluster-local", "import-pay-shop-svc-cluster-local");
    let imported =
        until(&here, IMPORTED, "istio-system", host, |object| condition(object, "Ready") == "True").await;
    assert_eq!(imported["spec"]["meshes"], json!(["west"]));
    assert_eq!(imported["metadata"]["ownerReferences"][0]["kind"], "MeshFederation");
    let owner = get(&here, ENTRIES, "istio-system", entry).await.unwrap();
    assert_eq!(owner["metadata"]["ownerReferences"][0]["uid"], imported["metadata"]["uid"]);
    let gateway = get(&there, "gateways.networking.istio.io", "istio-system", "federation-ingress-gateway")
        .await
        .unwrap();
    assert!(
        gateway["spec"]["servers"][0]["hosts"]
            .as_array()
            .unwrap()
            .contains(&json!("pay.shop.svc.cluster.local"))
    );

    // An edit of an exported Service reaches the importer.
    there.apply(&service("shop", "pay", 81, true)).await.unwrap();
    until(&here, ENTRIES, "istio-system", entry, |object| object["spec"]["ports"][0]["number"] == 81).await;
    let status = until(&here, "meshfederations", "istio-system", "default", |object| {
        object["status"]["imported"] == 1
    })
    .await;
    assert_eq!(
        (&status["status"]["connected"], &status["status"]["remotes"][0]["offered"]),
        (&json!("1/1"), &json!(1))
    );

    // A change of the rules needs no restart.
    let selected = json!([{ "meshID": "west", "serviceSelectors": [{ "matchLabels": { "app": "other" } }] }]);
    here.apply(&rules("istio-system", selected)).await.unwrap();
    until_gone(&here, ENTRIES, "istio-system", entry).await;
    here.apply(&rules("istio-system", json!([{ "meshID": "west" }]))).await.unwrap();
    until(&here, ENTRIES, "istio-system", entry, |_| true).await;

    // Un-exported, it goes there and here.
    there.apply(&service("shop", "pay", 81, false)).await.unwrap();
    until_gone(&here, ENTRIES, "istio-system", entry).await;
    until_gone(&here, IMPORTED, "istio-system", host).await;
    let closed = |object: &Value| {
        object["spec"]["servers"][0]["hosts"].as_array().is_some_and(|hosts| hosts.len() == 1)
    };
    until(&there, "gateways.networking.istio.io", "istio-system", "federation-ingress-gateway", closed).await;
}

#[tokio::test]
async fn edits_and_deletions_by_others_are_repaired() {
    let (east, _west, _turn) = federated().await;
    let kubectl = east.kubectl();
    let (host, entry) = ("pay-shop-svc-cluster-local", "import-pay-shop-svc-cluster-local");
    let good = get(&kubectl, ENTRIES, "istio-system", entry).await.unwrap()["spec"].clone();
    for patch in [
        json!({ "spec": { "hosts": ["evil.example"] } }),
        json!({ "spec": { "exportTo": ["."] } }),
        json!({ "spec": { "endpoints": [{ "address": "198.51.100.1" }] } }),
        json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": "me" } } }),
        json!({ "metadata": { "ownerReferences": [] } }),
    ] {
        let text = patch.to_string();
        kubectl
            .run(&["patch", ENTRIES, entry, "-n", "istio-system", "--type=merge", "-p", &text])
            .await
            .unwrap();
        let repaired = |object: &Value| {
            object["spec"] == good
                && object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tarbet-mesh"
                && object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| owners.len() == 1)
        };
        until(&kubectl, ENTRIES, "istio-system", entry, repaired).await;
    }
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    for (kind, name) in [
        (ENTRIES, entry),
        (IMPORTED, host),
        ("gateways.networking.istio.io", "federation-ingress-gateway"),
        ("peerauthentications.security.istio.io", "fds-strict-mtls"),
        ("authorizationpolicies.security.istio.io", "fds-remotes-only"),
    ] {
        let before = uid(&get(&kubectl, kind, "istio-system", name).await.unwrap());
        kubectl.run(&["delete", kind, name, "-n", "istio-system", "--wait=false"]).await.unwrap();
        until(&kubectl, kind, "istio-system", name, |object| uid(object) != before).await;
    }
    // The garbage of a deleted owner is gone, and its successor owns the new entry.
    let owned = |object: &Value, owner: &str| object["metadata"]["ownerReferences"][0]["uid"] == owner;
    let owner = uid(&get(&kubectl, IMPORTED, "istio-system", host).await.unwrap());
    until(&kubectl, ENTRIES, "istio-system", entry, |object| owned(object, &owner)).await;
}

#[tokio::test]
async fn a_local_service_that_comes_and_goes_switches_the_import() {
    let (east, west, _turn) = federated().await;
    let kubectl = east.kubectl();
    let (host, entry) = ("pay-shop-svc-cluster-local", "import-pay-shop-svc-cluster-local");
    kubectl.apply(&service("shop", "pay", 80, false)).await.unwrap();
    let workload = until(&kubectl, WORKLOADS, "shop", "import-west-pay-0", |_| true).await;
    assert_eq!(workload["spec"]["address"], "192.0.2.1");
    until_gone(&kubectl, ENTRIES, "istio-system", entry).await;
    until_gone(&kubectl, IMPORTED, "istio-system", host).await;
    let imported = get(&kubectl, IMPORTED, "shop", host).await.unwrap();
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], imported["metadata"]["uid"]);
    // Ports that differ: the local service alone answers, and the condition says why.
    west.kubectl().apply(&service("shop", "pay", 81, true)).await.unwrap();
    until_gone(&kubectl, WORKLOADS, "shop", "import-west-pay-0").await;
    until(&kubectl, IMPORTED, "shop", host, |object| condition(object, "Conflicted") == "True").await;
    kubectl.run(&["delete", "service", "pay", "-n", "shop"]).await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", entry, |_| true).await;
    until_gone(&kubectl, IMPORTED, "shop", host).await;
}

#[tokio::test]
async fn a_restart_writes_nothing_and_a_silent_peer_is_withdrawn_after_its_time() {
    let (mut east, mut west, _turn) = federated().await;
    let kubectl = east.kubectl();
    let (host, entry) = ("pay-shop-svc-cluster-local", "import-pay-shop-svc-cluster-local");
    until(&kubectl, IMPORTED, "istio-system", host, |object| condition(object, "Ready") == "True").await;
    let before = east.versions().await.unwrap();

    // The controller dies without a word and comes back.
    east.kill();
    let west_port = west.port();
    east.start(Settings { peer: Some(("west", west_port)), ..Settings::default() }).await;
    east.reconciled(2).await;
    assert_eq!(east.writes(), 0, "nothing changed");
    assert_eq!(east.versions().await.unwrap(), before);

    // It comes back while the peer is down: what the peer said is remembered.
    west.stop().await;
    east.kill();
    east.start(Settings { peer: Some(("west", west_port)), ..Settings::default() }).await;
    let lost = |object: &Value| condition(object, "RemotesConnected") == "False";
    until(&kubectl, "meshfederations", "istio-system", "default", lost).await;
    get(&kubectl, ENTRIES, "istio-system", entry).await.unwrap();
    // Where its time is short, it is over.
    east.kill();
    let hold_down = Duration::from_secs(3);
    east.start(Settings { peer: Some(("west", west_port)), hold_down, ..Settings::default() }).await;
    until_gone(&kubectl, ENTRIES, "istio-system", entry).await;
    let told = |object: &Value| {
        object["status"]["remotes"][0]["error"].as_str().is_some_and(|error| error.contains("withdrawn"))
    };
    until(&kubectl, "meshfederations", "istio-system", "default", told).await;
    let east_port = east.port();
    west.start(Settings { peer: Some(("east", east_port)), ..Settings::default() }).await;
    until(&kubectl, ENTRIES, "istio-system", entry, |_| true).await;
}

/// Lets a declaration say what it said when it still counted.
async fn was_well(kubectl: &Kubectl, object: &[&str], mut status: Value) {
    let condition = |name: &str| {
        json!({ "type": name, "status": "True", "reason": "Programmed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    status["conditions"] = ["Ready", "RemotesConnected"].map(condition).into_iter().collect();
    let patch = json!({ "status": status }).to_string();
    let how = ["--subresource=status", "--type=merge", "-p", &patch];
    kubectl.run(&[&["patch"], object, &how[..]].concat()).await.unwrap();
}

fn does_not_count(object: &Value) -> bool {
    condition(object, "Accepted") == "False"
        && condition(object, "Ready") == "False"
        && condition(object, "RemotesConnected").is_empty()
}

#[tokio::test]
async fn what_was_made_goes_with_its_cause() {
    let (east, _west, _turn) = federated().await;
    let kubectl = east.kubectl();
    let entry = "import-pay-shop-svc-cluster-local";
    // The router's objects come with the type and go with it, down to the last one.
    let mut behind_router = federation("east", "west", "192.0.2.1");
    behind_router["spec"]["local"]["ingress"]["type"] = json!("openshift-router");
    behind_router["spec"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    kubectl.apply(&behind_router).await.unwrap();
    let filter = "sni-federation-discovery-service-east-istio-system-15080";
    let route = "federation-discovery-service-east-istio-system-15080-to-federation-ingress-gateway";
    until(&kubectl, "envoyfilters.networking.istio.io", "istio-system", filter, |_| true).await;
    until(&kubectl, "routes.route.openshift.io", "istio-system", route, |_| true).await;
    until(
        &kubectl,
        "destinationrules.networking.istio.io",
        "istio-system",
        "mtls-sni-pay-shop-svc-cluster-local",
        |_| true,
    )
    .await;
    kubectl.apply(&federation("east", "west", "192.0.2.1")).await.unwrap();
    until_gone(&kubectl, "envoyfilters.networking.istio.io", "istio-system", filter).await;
    until_gone(&kubectl, "routes.route.openshift.io", "istio-system", route).await;
    until_gone(
        &kubectl,
        "destinationrules.networking.istio.io",
        "istio-system",
        "mtls-sni-pay-shop-svc-cluster-local",
    )
    .await;

    // Rules elsewhere and a second federation change nothing and are told so.
    kubectl.apply(&rules("shop", json!([]))).await.unwrap();
    was_well(&kubectl, &["federationservicerules", "default", "-n", "shop"], json!({ "exported": 7 })).await;
    until(&kubectl, "federationservicerules", "shop", "default", |object| {
        does_not_count(object) && object["status"].get("exported").is_none()
    })
    .await;
    kubectl.run(&["delete", "federationservicerules", "default", "-n", "shop"]).await.unwrap();
    let mut second = federation("north", "south", "192.0.2.9");
    second["metadata"]["name"] = json!("second");
    kubectl.apply(&second).await.unwrap();
    let counts = json!({ "connected": "1/1", "imported": 7 });
    was_well(&kubectl, &["meshfederations", "second"], counts).await;
    until(&kubectl, "meshfederations", "istio-system", "second", |object| {
        let status = &object["status"];
        does_not_count(object) && status.get("connected").is_none() && status.get("imported").is_none()
    })
    .await;
    kubectl.run(&["delete", "meshfederation", "second"]).await.unwrap();

    kubectl.run(&["delete", "federationservicerules", "default", "-n", "istio-system"]).await.unwrap();
    until_gone(&kubectl, "gateways.networking.istio.io", "istio-system", "federation-ingress-gateway").await;
    until_gone(&kubectl, ENTRIES, "istio-system", entry).await;
    kubectl.apply(&rules("istio-system", json!([{ "meshID": "west" }]))).await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", entry, |_| true).await;
    kubectl.run(&["delete", "meshfederation", "default"]).await.unwrap();
    until_gone(&kubectl, ENTRIES, "istio-system", entry).await;
    until_gone(&kubectl, IMPORTED, "istio-system", "pay-shop-svc-cluster-local").await;
    let incomplete = |object: &Value| condition(object, "Ready") == "False";
    until(&kubectl, "federationservicerules", "istio-system", "default", incomplete).await;
}

#[tokio::test]
async fn one_replica_writes_all_answer_and_clean_up_leaves_nothing() {
    let (mut east, west, _turn) = federated().await;
    let kubectl = east.kubectl();
    let (timings, west_port) = (Timings::default(), west.port());
    east.kill();
    let settings = |identity: &str| Settings {
        peer: Some(("west", west_port)),
        election: Some((identity.to_owned(), timings)),
        ..Settings::default()
    };
    east.start(settings("one")).await;
    east.reconciled(1).await;
    let mut other = east.replica().unwrap();
    other.start(settings("two")).await;
    // Both answer peers; only one of them wrote.
    assert_eq!(east.exported().await.unwrap(), other.exported().await.unwrap());
    assert_eq!(other.reconciles(), 0);
    east.kill();
    // Nobody waits here for the end of the dead one's lease.
    kubectl.run(&["delete", "lease", "--all", "-n", "istio-system"]).await.unwrap();
    other.reconciled(1).await;
    assert_eq!(other.writes(), 0, "the successor finds everything as it must be");
    west.kubectl().apply(&service("shop", "more", 80, true)).await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", "import-more-shop-svc-cluster-local", |_| true).await;

    let found = tarbet_mesh::cleanup_plan(&other.client, "istio-system").await.unwrap();
    assert_eq!((found.get("MeshFederation"), found.get("ServiceEntry")), (Some(&1), Some(&3)));
    get(&kubectl, "meshfederations", "istio-system", "default").await.unwrap();
    let gone = tarbet_mesh::cleanup(&other.client, "istio-system").await.unwrap();
    assert_eq!(gone.get("MeshFederation"), Some(&1));
    let left = || async {
        let text = other.everything().await?;
        if text.is_empty() { Ok(()) } else { Err(anyhow!("{text}")) }
    };
    eventually(SOON, "nothing to be left", left).await.unwrap();
    // The lease goes once nobody holds it.
    other.stop().await;
    let gone = tarbet_mesh::cleanup(&other.client, "istio-system").await.unwrap();
    assert_eq!(gone.get("Lease"), Some(&1));
    until_gone(&kubectl, "lease", "istio-system", "tarbet-mesh").await;
}
