//! The Multi-Cluster Services API on real API servers: its owner exports a service, and it appears
//! elsewhere as a ServiceImport.

use serde_json::{Value, json};

use super::federation::{ENTRIES, IMPORTED, condition, federation, service, until, until_gone};
use super::world::{Settings, two_meshes};

const EXPORTS: &str = "serviceexports.multicluster.x-k8s.io";
const IMPORTS: &str = "serviceimports.multicluster.x-k8s.io";
const ENTRY: &str = "import-pay-shop-svc-clusterset-local";

fn rules(import: Value) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" },
        "spec": { "export": { "serviceExports": true }, "import": import, "serviceImports": true },
    })
}

fn service_export(name: &str) -> Value {
    json!({ "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport",
        "metadata": { "name": name, "namespace": "shop" } })
}

fn clusters(object: &Value) -> Vec<&str> {
    let all = object["status"]["clusters"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|one| one["cluster"].as_str()).collect()
}

#[tokio::test]
async fn a_service_that_its_owner_exports_is_imported_elsewhere_and_conflicts_are_told() {
    let (mut east, mut west, _turn) = two_meshes().await.unwrap();
    let (here, there) = (east.kubectl(), west.kubectl());
    here.apply(&federation("east", "west", "192.0.2.1")).await.unwrap();
    there.apply(&federation("west", "east", "192.0.2.2")).await.unwrap();
    here.apply(&rules(json!([{ "meshID": "west" }]))).await.unwrap();
    there.apply(&rules(json!([{ "meshID": "east" }]))).await.unwrap();
    there.apply(&service("shop", "pay", 80, false)).await.unwrap();
    let at = (east.port(), west.port());
    east.start(Settings { peer: Some(("west", at.1)), ..Settings::default() }).await;
    west.start(Settings { peer: Some(("east", at.0)), ..Settings::default() }).await;

    // Its owner exports it, and one that is not there.
    there.apply(&service_export("pay")).await.unwrap();
    there.apply(&service_export("gone")).await.unwrap();
    let entry = until(&here, ENTRIES, "istio-system", ENTRY, |_| true).await;
    assert_eq!(entry["spec"]["hosts"], json!(["pay.shop.svc.clusterset.local"]));
    let import = until(&here, IMPORTS, "shop", "pay", |object| clusters(object) == ["west"]).await;
    assert_eq!(import["spec"]["type"], "ClusterSetIP");
    assert_eq!(
        (&import["spec"]["ports"][0]["port"], &import["spec"]["ports"][0]["name"]),
        (&json!(80), &json!("http"))
    );
    until(&there, EXPORTS, "shop", "pay", |object| {
        condition(object, "Valid") == "True" && condition(object, "Conflict") == "False"
    })
    .await;
    until(&there, EXPORTS, "shop", "gone", |object| condition(object, "Valid") == "False").await;
    // Where it runs it is imported too, as everywhere in the clusterset.
    until(&there, IMPORTS, "shop", "pay", |object| clusters(object) == ["west"]).await;

    // What somebody does to an import is undone.
    here.run(&["delete", IMPORTS, "pay", "-n", "shop", "--wait=false"]).await.unwrap();
    let anew = |object: &Value| {
        object["metadata"]["uid"] != import["metadata"]["uid"] && clusters(object) == ["west"]
    };
    until(&here, IMPORTS, "shop", "pay", anew).await;

    // The same name in both: one import of two meshes; with other ports, a conflict at whoever differs.
    here.apply(&service("shop", "pay", 80, false)).await.unwrap();
    here.apply(&service_export("pay")).await.unwrap();
    // Labels must agree as well: both are made alike.
    until(&here, IMPORTS, "shop", "pay", |object| clusters(object) == ["east", "west"]).await;
    here.apply(&service("shop", "pay", 81, false)).await.unwrap();
    until(&here, EXPORTS, "shop", "pay", |object| condition(object, "Conflict") == "True").await;
    until(&here, IMPORTS, "shop", "pay", |object| clusters(object) == ["east"]).await;

    // No longer exported: gone, everywhere.
    here.run(&["delete", EXPORTS, "pay", "-n", "shop"]).await.unwrap();
    here.run(&["delete", "service", "pay", "-n", "shop"]).await.unwrap();
    until(&here, IMPORTS, "shop", "pay", |object| clusters(object) == ["west"]).await;
    there.run(&["delete", EXPORTS, "--all", "-n", "shop"]).await.unwrap();
    until_gone(&here, IMPORTS, "shop", "pay").await;
    until_gone(&here, ENTRIES, "istio-system", ENTRY).await;
    until_gone(&here, IMPORTED, "istio-system", "pay-shop-svc-clusterset-local").await;
    until_gone(&there, IMPORTS, "shop", "pay").await;
}
