//! The definitions as files, and what a real API server says to wrong objects.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use tarbet_mesh::crd;
use tarbet_testbed::{Kubectl, shared_pair};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

#[test]
fn the_files_in_deploy_are_the_definitions_of_the_code() {
    for definition in crd::definitions() {
        let name = definition.metadata.name.clone().unwrap();
        let file = folder().join(format!("{name}.yaml"));
        let value = serde_json::to_value(&definition).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&file, serde_saphyr::to_string(&value).unwrap()).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let kept: Value = serde_saphyr::from_str(&text).unwrap_or_default();
        assert_eq!(kept, value, "{} is out of date: run this test with UPDATE_GOLDEN=1", file.display());
    }
}

/// An edit of a specification.
type Change = fn(&mut Value);

fn federation(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "MeshFederation",
        "metadata": { "name": "default" },
        "spec": {
            "local": { "id": "east", "network": "east", "ingress": { "gateway": { "selector": { "app": "gw" } } } },
            "remote": [
                { "id": "west", "network": "west", "ingress": { "addresses": ["192.168.1.1", "2001:db8::1"], "port": 443 } },
                { "id": "south", "network": "south", "ingress": { "addresses": ["gw.south.example"], "type": "openshift-router" } },
            ],
        },
    });
    change(&mut object["spec"]);
    object
}

fn rules(name: &str, namespace: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "FederationServiceRules",
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
    })
}

async fn verdict(kubectl: &Kubectl, object: &Value) -> Result<String, String> {
    let input = object.to_string();
    let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
    kubectl.run_with_input(&args, &input).await.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn a_real_api_server_takes_the_definitions_and_refuses_wrong_objects() {
    let plane = &shared_pair().await.unwrap().public;
    let (kubectl, namespace) = (plane.kubectl(), plane.unique_namespace("crds").await.unwrap());
    super::world::install_definitions(plane).await.unwrap();

    verdict(&kubectl, &federation(|_| {})).await.unwrap();
    let wrong: [(&str, &str, Change); 23] = [
        ("the remote has our id", "id of this mesh", |s| s["remote"][0]["id"] = json!("east")),
        ("two remotes with one id", "Duplicate", |s| s["remote"][1]["id"] = json!("west")),
        ("our own network behind an ingress", "another network", |s| {
            s["remote"][0]["network"] = json!("east");
        }),
        ("addresses and a host name", "exactly one host name", |s| {
            s["remote"][0]["ingress"]["addresses"] = json!(["192.168.1.1", "gw.example"]);
        }),
        ("two host names", "exactly one host name", |s| {
            s["remote"][0]["ingress"]["addresses"] = json!(["a.example", "b.example"]);
        }),
        ("not a host name", "exactly one host name", |s| {
            s["remote"][0]["ingress"]["addresses"] = json!(["a b"]);
        }),
        ("an unknown type", "Unsupported value", |s| s["local"]["ingress"]["type"] = json!("haproxy")),
        ("an unknown type there", "Unsupported value", |s| s["remote"][0]["ingress"]["type"] = json!("none")),
        ("istio without a gateway", "needs gateway.selector", |s| {
            s["local"]["ingress"] = json!({ "type": "istio" });
        }),
        ("an empty selector", "needs gateway.selector", |s| {
            s["local"]["ingress"]["gateway"]["selector"] = json!({});
        }),
        ("an egress without a selector", "needs gateway.selector", |s| {
            s["local"]["egress"] = json!({ "gateway": { "port": { "number": 8443 } } });
        }),
        ("an address that is none", "exactly one host name", |s| {
            s["remote"][0]["ingress"]["addresses"] = json!(["192.168.1.999"]);
        }),
        ("a discovery without a port", "discovery.address", |s| {
            s["remote"][0]["discovery"] = json!({ "address": "10.0.0.7" });
        }),
        ("an empty port name", "port.name", |s| {
            s["local"]["ingress"]["gateway"]["port"] = json!({ "name": "" });
        }),
        ("port 0", "port.number", |s| s["local"]["ingress"]["gateway"]["port"] = json!({ "number": 0 })),
        ("port 70000", "remote[0].ingress.port", |s| s["remote"][0]["ingress"]["port"] = json!(70_000)),
        ("no id", "Required value", |s| {
            s["local"].as_object_mut().unwrap().remove("id");
        }),
        ("no network", "Required value", |s| {
            s["remote"][0].as_object_mut().unwrap().remove("network");
        }),
        ("an id that is no label", "local.id", |s| s["local"]["id"] = json!("East_1")),
        ("an id that is too long", "local.id", |s| s["local"]["id"] = json!("e".repeat(35))),
        ("a trust domain with a scheme", "trustDomain", |s| s["local"]["trustDomain"] = json!("spiffe://x")),
        ("a field nobody knows", "unknown field", |s| s["local"]["colour"] = json!("red")),
        ("no local mesh", "Required value", |s| {
            s.as_object_mut().unwrap().remove("local");
        }),
    ];
    for (what, expected, change) in wrong {
        let said = verdict(&kubectl, &federation(change)).await.expect_err(what);
        assert!(said.contains(expected), "{what}: {said}");
    }
    // With the router the gateway may be empty, or tell no more than its port.
    let gateways = [json!(null), json!({}), json!({ "port": { "name": "tls", "number": 8443 } })];
    for gateway in gateways {
        let mut routed = federation(|s| s["local"]["ingress"] = json!({ "type": "openshift-router" }));
        if !gateway.is_null() {
            routed["spec"]["local"]["ingress"]["gateway"] = gateway;
        }
        verdict(&kubectl, &routed).await.unwrap();
    }
    for address in ["10.0.0.7:15080", "discovery.west.example:443", "[2001:db8::7]:15080"] {
        let mut told = federation(|_| {});
        told["spec"]["remote"][0]["discovery"] = json!({ "address": address });
        verdict(&kubectl, &told).await.unwrap();
    }
    verdict(&kubectl, &federation(|s| *s = json!({ "local": { "id": "a", "network": "one" }, "remote": [{ "id": "b", "network": "one" }] })))
        .await
        .unwrap();

    let both_variants = json!({
        "export": {
            "serviceSelectors": [{ "matchLabels": { "export": "true" } }, { "matchExpressions": [
                { "key": "app.kubernetes.io/name", "operator": "In", "values": ["ratings", "reviews"] },
                { "key": "x", "operator": "Exists" },
            ] }],
            "namespaceSelectors": [{ "matchLabels": { "istio-injection": "enabled" } }],
            "serviceList": ["ns-1/ratings", "ns-2/*"],
            "selectors": [{ "serviceSelector": {}, "namespaceSelector": { "matchLabels": { "a": "b" } } }],
            "dnsSettings": { "searchDomain": "mesh.global", "includeNamespace": true },
        },
        "import": [{ "meshID": "west", "serviceSelectors": [{}] }, { "meshID": "central" }],
    });
    verdict(&kubectl, &rules("default", &namespace, both_variants)).await.unwrap();
    verdict(&kubectl, &rules("default", &namespace, json!({}))).await.unwrap();
    for (what, expected, name, spec) in [
        ("another name", "name is `default`", "mine", json!({})),
        (
            "a list entry without a namespace",
            "serviceList",
            "default",
            json!({ "export": { "serviceList": ["ratings"] } }),
        ),
        (
            "a wildcard namespace",
            "serviceList",
            "default",
            json!({ "export": { "serviceList": ["*/ratings"] } }),
        ),
        (
            "an operator nobody knows",
            "Unsupported value",
            "default",
            json!({ "export": { "serviceSelectors": [
            { "matchExpressions": [{ "key": "a", "operator": "Near", "values": ["b"] }] }] } }),
        ),
        (
            "In without values",
            "need values",
            "default",
            json!({ "export": { "serviceSelectors": [
            { "matchExpressions": [{ "key": "a", "operator": "In" }] }] } }),
        ),
        (
            "Exists with values",
            "need values",
            "default",
            json!({ "export": { "serviceSelectors": [
            { "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["b"] }] }] } }),
        ),
        (
            "a selector of nothing",
            "to export everything",
            "default",
            json!({ "export": { "selectors": [{}] } }),
        ),
        (
            "a domain of the cluster",
            "cluster.local",
            "default",
            json!({ "export": { "dnsSettings": { "searchDomain": "svc.cluster.local" } } }),
        ),
        (
            "a domain that looks like the cluster's",
            "cluster.local or svc",
            "default",
            json!({ "export": { "dnsSettings": { "searchDomain": "west.svc" } } }),
        ),
        (
            "a domain that is none",
            "searchDomain",
            "default",
            json!({ "export": { "dnsSettings": { "searchDomain": "*.x" } } }),
        ),
        ("a mesh twice", "Duplicate", "default", json!({ "import": [{ "meshID": "a" }, { "meshID": "a" }] })),
        ("a mesh without an id", "Required value", "default", json!({ "import": [{}] })),
    ] {
        let said = verdict(&kubectl, &rules(name, &namespace, spec)).await.expect_err(what);
        assert!(said.contains(expected), "{what}: {said}");
    }
}

#[tokio::test]
async fn defaults_are_the_servers_and_columns_tell_the_state() {
    let plane = &shared_pair().await.unwrap().public;
    let kubectl = plane.kubectl();
    super::world::install_definitions(plane).await.unwrap();
    let input = federation(|s| {
        *s = json!({ "local": { "id": "a", "network": "x" }, "remote": [{ "id": "b", "network": "y" }] });
    });
    let args = ["apply", "--dry-run=server", "-o", "json", "-f", "-"];
    let made: Value =
        serde_json::from_str(&kubectl.run_with_input(&args, &input.to_string()).await.unwrap()).unwrap();
    let spec = &made["spec"];
    assert_eq!(
        (&spec["local"]["trustDomain"], &spec["local"]["controlPlane"]["namespace"]),
        (&json!("cluster.local"), &json!("istio-system"))
    );
    assert_eq!(
        spec["remote"][0]["identity"],
        json!({ "namespace": "istio-system", "trustDomain": "cluster.local" })
    );
    assert!(spec["remote"][0]["ingress"].get("port").is_none(), "it depends on the type");
    for kind in ["meshfederations", "federationservicerules", "importedservices"] {
        kubectl.run(&["get", kind, "--all-namespaces"]).await.unwrap();
        let explained = kubectl.run(&["explain", kind]).await.unwrap();
        assert!(!explained.contains("Auto-generated"), "{explained}");
    }
}
