//! Three real control planes: one name in two of them, called from the third.

use std::time::Duration;

use serde_json::{Value, json};

use super::federation::{ENTRIES, IMPORTED, condition, federation, rules, service, until, until_gone};
use super::world::{Settings, third_mesh, two_meshes};

const ENTRY: &str = "import-pay-shop-svc-cluster-local";
const HOST: &str = "pay-shop-svc-cluster-local";

fn addresses(entry: &Value) -> Vec<&str> {
    let all = entry["spec"]["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|endpoint| endpoint["address"].as_str()).collect()
}

#[tokio::test]
async fn a_service_for_one_mesh_alone_is_not_told_to_another() {
    let (mut east, mut west, _turn) = two_meshes().await.unwrap();
    let mut central = third_mesh("central").await.unwrap();
    let (here, there, third) = (east.kubectl(), west.kubectl(), central.kubectl());
    // West exports two, one of them only to east.
    let mut two = federation("west", "east", "192.0.2.2");
    let more = json!({ "id": "central", "network": "central", "ingress": { "addresses": ["192.0.2.3"] } });
    two["spec"]["remote"].as_array_mut().unwrap().push(more);
    there.apply(&two).await.unwrap();
    let mut limited = rules("istio-system", json!([]));
    limited["spec"]["export"]["onlyTo"] =
        json!([{ "meshIDs": ["east"], "serviceSelectors": [{ "matchLabels": { "app": "pay" } }] }]);
    there.apply(&limited).await.unwrap();
    for name in ["pay", "open"] {
        there.apply(&service("shop", name, 80, true)).await.unwrap();
    }
    for (kubectl, mesh) in [(&here, "east"), (&third, "central")] {
        kubectl.apply(&federation(mesh, "west", "192.0.2.1")).await.unwrap();
        kubectl.apply(&rules("istio-system", json!([{ "meshID": "west" }]))).await.unwrap();
    }
    west.start(Settings::default()).await;
    let at = west.port();
    east.start(Settings { peer: Some(("west", at)), ..Settings::default() }).await;
    central.start(Settings { peer: Some(("west", at)), ..Settings::default() }).await;
    let open = "import-open-shop-svc-cluster-local";
    until(&here, ENTRIES, "istio-system", ENTRY, |_| true).await;
    until(&here, ENTRIES, "istio-system", open, |_| true).await;
    until(&third, ENTRIES, "istio-system", open, |_| true).await;
    let offered = |object: &Value| object["status"]["remotes"][0]["offered"] == 1;
    until(&third, "meshfederations", "istio-system", "default", offered).await;
    until_gone(&third, ENTRIES, "istio-system", ENTRY).await;
    // Whoever does not say who it is hears only what is for everybody.
    assert_eq!(west.exported().await.unwrap(), ["open.shop.svc.cluster.local"]);

    // The limit falls while all of them run.
    let patch = r#"[{"op":"remove","path":"/spec/export/onlyTo"}]"#;
    let words =
        ["patch", "federationservicerules", "default", "-n", "istio-system", "--type=json", "-p", patch];
    there.run(&words).await.unwrap();
    until(&third, ENTRIES, "istio-system", ENTRY, |_| true).await;
}

#[tokio::test]
async fn one_name_of_two_meshes_fails_over_and_conflicts_are_told() {
    let (mut east, mut west, _turn) = two_meshes().await.unwrap();
    let mut central = third_mesh("central").await.unwrap();
    let kubectl = east.kubectl();
    let mut three = federation("east", "west", "192.0.2.1");
    let more = json!({ "id": "central", "network": "central", "ingress": { "addresses": ["192.0.2.3"], "port": 15443 } });
    three["spec"]["remote"].as_array_mut().unwrap().push(more);
    kubectl.apply(&three).await.unwrap();
    kubectl
        .apply(&rules("istio-system", json!([{ "meshID": "west" }, { "meshID": "central" }])))
        .await
        .unwrap();
    for (mesh, address) in [(&west, "192.0.2.2"), (&central, "192.0.2.2")] {
        mesh.kubectl().apply(&federation(&mesh.name, "east", address)).await.unwrap();
        mesh.kubectl().apply(&rules("istio-system", json!([]))).await.unwrap();
        mesh.kubectl().apply(&service("shop", "pay", 80, true)).await.unwrap();
    }
    west.start(Settings::default()).await;
    central.start(Settings::default()).await;
    let (west_at, central_at) = (west.port(), central.port());
    let peers = Settings {
        peer: Some(("west", west_at)),
        other: Some(("central", central_at)),
        hold_down: Duration::from_secs(2),
        ..Settings::default()
    };
    east.start(peers).await;

    // One entry with both gateways.
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry) == ["192.0.2.1", "192.0.2.3"])
        .await;
    let imported =
        until(&kubectl, IMPORTED, "istio-system", HOST, |object| condition(object, "Ready") == "True").await;
    assert_eq!(imported["spec"]["meshes"], json!(["west", "central"]));

    // Only the second has a pod: it alone is called, and that is no conflict.
    central.run_pod("pay").await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry) == ["192.0.2.3"]).await;
    let calm = |object: &Value| {
        object["spec"]["meshes"] == json!(["central"]) && condition(object, "Conflicted") == "False"
    };
    until(&kubectl, IMPORTED, "istio-system", HOST, calm).await;
    west.run_pod("pay").await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry) == ["192.0.2.1", "192.0.2.3"])
        .await;

    // Ports that differ: the first mesh counts, and the condition names the other.
    central.kubectl().apply(&service("shop", "pay", 81, true)).await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry) == ["192.0.2.1"]).await;
    let told =
        until(&kubectl, IMPORTED, "istio-system", HOST, |object| condition(object, "Conflicted") == "True")
            .await;
    assert!(told["status"].to_string().contains("central is not used"), "{}", told["status"]);
    let events =
        ["get", "events", "-n", "istio-system", "--field-selector=involvedObject.kind=ImportedService"];
    let announced = || async {
        let events = kubectl.run(&events).await?;
        anyhow::ensure!(events.contains("MeshesDiffer"), "{events}");
        Ok(())
    };
    tarbet_testbed::eventually(super::world::SOON, "an event about it", announced).await.unwrap();
    central.kubectl().apply(&service("shop", "pay", 80, true)).await.unwrap();
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry).len() == 2).await;

    // One of the two dies: after its hold-down the other is left, and then nothing.
    west.kill();
    until(&kubectl, ENTRIES, "istio-system", ENTRY, |entry| addresses(entry) == ["192.0.2.3"]).await;
    let half = |object: &Value| object["status"]["connected"] == "1/2";
    until(&kubectl, "meshfederations", "istio-system", "default", half).await;
    central.kubectl().apply(&service("shop", "pay", 80, false)).await.unwrap();
    until_gone(&kubectl, ENTRIES, "istio-system", ENTRY).await;
    until_gone(&kubectl, IMPORTED, "istio-system", HOST).await;
}
