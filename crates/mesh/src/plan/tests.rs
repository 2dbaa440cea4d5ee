//! The tables of what follows from what, row by row, and every known defect of the original.

mod again;
mod clusterset;
mod defects;
mod egress;
mod imports;
mod joined;
mod names;
mod several;

use serde_json::{Value, json};

use super::*;
use crate::observe;
use crate::offline::render_legacy;

/// A world from JSON: `federation`, `rules`, `services`, `namespaces`, `peers`, `resolved`.
fn world(value: Value) -> World {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut world = World { controller_namespace: "istio-system".into(), ..World::default() };
    world.federation = Some(Arc::new(serde_json::from_value(value["federation"].clone()).unwrap()));
    world.rules = Some(Arc::new(serde_json::from_value(value["rules"].clone()).unwrap()));
    for service in value["services"].as_array().into_iter().flatten() {
        let key = (text(&service["metadata"]["namespace"]), text(&service["metadata"]["name"]));
        let service = observe::service(&serde_json::from_value(service.clone()).unwrap());
        world.services.insert(key, Arc::new(service));
    }
    for (name, labels) in value["namespaces"].as_object().into_iter().flatten() {
        world.namespaces.insert(name.clone(), Arc::new(serde_json::from_value(labels.clone()).unwrap()));
    }
    for (mesh, offers) in value["peers"].as_object().into_iter().flatten() {
        let offers: Vec<Offer> = serde_json::from_value(offers.clone()).unwrap();
        world.peers.insert(mesh.clone(), offers.into_iter().map(Arc::new).collect());
    }
    for key in value["serviceExports"].as_array().into_iter().flatten() {
        world.service_exports.insert((text(&key[0]), text(&key[1])));
    }
    for (name, addresses) in value["resolved"].as_object().into_iter().flatten() {
        world.resolved.insert(name.clone(), serde_json::from_value(addresses.clone()).unwrap());
    }
    world
}

fn service(namespace: &str, name: &str, labels: Value, ports: Value) -> Value {
    json!({
        "metadata": { "namespace": namespace, "name": name, "labels": labels },
        "spec": { "selector": { "app": name }, "ports": ports },
    })
}

fn http() -> Value {
    json!([{ "name": "http", "port": 9080, "targetPort": 8080 }])
}

fn offer(host: &str) -> Value {
    json!({ "hostname": host, "labels": { "app": "r" }, "ports": [
        { "name": "http", "number": 9080, "protocol": "HTTP", "targetPort": 8080 },
    ] })
}

fn east() -> Value {
    json!({ "id": "east", "network": "east", "trustDomain": "mesh.east",
        "ingress": { "gateway": { "selector": { "app": "federation-ingress-gateway" } } } })
}

fn west() -> Value {
    json!({ "id": "west", "network": "west", "identity": { "trustDomain": "mesh.west" },
        "ingress": { "addresses": ["192.0.2.1", "192.0.2.2"], "port": 443 } })
}

/// Two meshes; `change` edits the world before the plan is made.
fn planned(services: Value, offers: Value, change: impl FnOnce(&mut Value)) -> Plan {
    let mut value = json!({
        "federation": { "local": east(), "remote": [west()] },
        "rules": {
            "export": { "serviceSelectors": [{ "matchLabels": { "export": "true" } }] },
            "import": [{ "meshID": "west" }],
        },
        "services": services,
        "peers": { "west": offers },
    });
    change(&mut value);
    plan(&world(value))
}

fn get<'a>(plan: &'a Plan, kind: Kind, namespace: &str, name: &str) -> &'a Object {
    let found = plan.objects.iter().find(|object| object.place() == (kind, namespace, name));
    found.unwrap_or_else(|| {
        let all: Vec<_> = plan.objects.iter().map(|object| object.place()).collect();
        panic!("no {kind:?} {namespace}/{name} among {all:#?}")
    })
}

fn count(plan: &Plan, kind: Kind) -> usize {
    plan.objects.iter().filter(|object| object.kind == kind).count()
}

fn hosts(plan: &Plan) -> Vec<String> {
    let gateway = get(plan, Kind::Gateway, "istio-system", "federation-ingress-gateway");
    serde_json::from_value(gateway.spec.value()["servers"][0]["hosts"].clone()).unwrap()
}

const DISCOVERY: &str = "federation-discovery-service-east.istio-system.svc.cluster.local";

#[test]
fn the_gateway_opens_exactly_what_is_named() {
    let services = json!([
        service("bookinfo", "ratings", json!({ "export": "true" }), http()),
        service("bookinfo", "secrets", json!({}), http()),
        service("zoo", "ant", json!({ "export": "true" }), http()),
    ]);
    let plan = planned(services, json!([]), |_| {});
    let gateway = get(&plan, Kind::Gateway, "istio-system", "federation-ingress-gateway");
    assert_eq!(
        gateway.spec,
        json!({
            "selector": { "app": "federation-ingress-gateway" },
            "servers": [{
                "port": { "number": 15443, "name": "tls-passthrough", "protocol": "TLS" },
                "hosts": ["ant.zoo.svc.cluster.local", DISCOVERY, "ratings.bookinfo.svc.cluster.local"],
                "tls": { "mode": "AUTO_PASSTHROUGH" },
            }],
        })
    );
    assert_eq!(gateway.owner, Owner::Rules);
    assert_eq!(plan.exports.len(), 2);
    let ratings = &plan.exports[1];
    assert_eq!(ratings.hostname, "ratings.bookinfo.svc.cluster.local");
    assert_eq!((ratings.ports[0].number, ratings.ports[0].target_port), (9080, 8080));
    assert!(ratings.endpoints.is_empty(), "addresses of pods stay here");
}

#[test]
fn only_known_identities_may_ask_discovery() {
    let plan = planned(json!([]), json!([]), |_| {});
    let strict = get(&plan, Kind::PeerAuthentication, "istio-system", "fds-strict-mtls");
    assert_eq!(strict.spec.value()["mtls"]["mode"], "STRICT");
    let policy = get(&plan, Kind::AuthorizationPolicy, "istio-system", "fds-remotes-only");
    let principals = &policy.spec.value()["rules"][1]["from"][0]["source"]["principals"];
    // The account we install, and the one of the original's chart.
    let accounts = ["federation-discovery-service-west", "federation-controller"];
    assert_eq!(*principals, json!(accounts.map(|account| format!("mesh.west/ns/istio-system/sa/{account}"))));
    let alone = planned(json!([]), json!([]), |world| world["federation"]["remote"] = json!([]));
    let policy = get(&alone, Kind::AuthorizationPolicy, "istio-system", "fds-remotes-only");
    assert_eq!(policy.spec.value()["rules"], json!([{ "to": [{ "operation": { "notPorts": ["15080"] } }] }]));
}

#[test]
fn behind_the_openshift_router_each_port_has_a_route_and_a_filter() {
    let services = json!([service("bookinfo", "ratings", json!({ "export": "true" }), http())]);
    let plan = planned(services, json!([]), |world| {
        world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router" });
    });
    let filter = get(&plan, Kind::EnvoyFilter, "istio-system", "sni-ratings-bookinfo-9080");
    assert_eq!(
        filter.spec,
        json!({
            "workloadSelector": { "labels": { "app": "federation-ingress-gateway" } },
            "configPatches": [{
                "applyTo": "FILTER_CHAIN",
                "match": { "listener": {
                    "name": "0.0.0.0_15443",
                    "filterChain": { "sni": "outbound_.9080_._.ratings.bookinfo.svc.cluster.local" },
                } },
                "patch": { "operation": "MERGE", "value": { "filter_chain_match": {
                    "server_names": ["ratings-9080.bookinfo.svc.cluster.local"],
                } } },
            }],
        })
    );
    let route =
        get(&plan, Kind::Route, "istio-system", "ratings-bookinfo-9080-to-federation-ingress-gateway");
    assert_eq!(
        route.spec,
        json!({
            "host": "ratings-9080.bookinfo.svc.cluster.local",
            "to": { "kind": "Service", "name": "federation-ingress-gateway" },
            "port": { "targetPort": "tls-passthrough" },
            "tls": { "termination": "passthrough" },
        })
    );
    get(&plan, Kind::EnvoyFilter, "istio-system", "sni-federation-discovery-service-east-istio-system-15080");
    assert_eq!((count(&plan, Kind::Route), count(&plan, Kind::EnvoyFilter)), (2, 2));
    // Only the port is told: the pods are the usual ones.
    let plan = planned(json!([]), json!([]), |world| {
        let gateway = json!({ "port": { "name": "tls", "number": 8443 } });
        world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router", "gateway": gateway });
    });
    let gateway = get(&plan, Kind::Gateway, "istio-system", "federation-ingress-gateway").spec.value();
    assert_eq!(gateway["selector"], json!({ "app": "federation-ingress-gateway" }));
    assert_eq!(gateway["servers"][0]["port"], json!({ "number": 8443, "name": "tls", "protocol": "TLS" }));
}
