//! The tables of what follows from what, row by row, and every known defect of the original.

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
        let all: Vec<_> = plan.objects.iter().map(Object::place).collect();
        panic!("no {kind:?} {namespace}/{name} among {all:#?}")
    })
}

fn count(plan: &Plan, kind: Kind) -> usize {
    plan.objects.iter().filter(|object| object.kind == kind).count()
}

fn hosts(plan: &Plan) -> Vec<String> {
    let gateway = get(plan, Kind::Gateway, "istio-system", "federation-ingress-gateway");
    serde_json::from_value(gateway.spec["servers"][0]["hosts"].clone()).unwrap()
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
    assert_eq!(strict.spec["mtls"]["mode"], "STRICT");
    let policy = get(&plan, Kind::AuthorizationPolicy, "istio-system", "fds-remotes-only");
    let principals = &policy.spec["rules"][1]["from"][0]["source"]["principals"];
    assert_eq!(*principals, json!(["mesh.west/ns/istio-system/sa/federation-discovery-service-west"]));
    let alone = planned(json!([]), json!([]), |world| world["federation"]["remote"] = json!([]));
    let policy = get(&alone, Kind::AuthorizationPolicy, "istio-system", "fds-remotes-only");
    assert_eq!(policy.spec["rules"], json!([{ "to": [{ "operation": { "notPorts": ["15080"] } }] }]));
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
}

#[test]
fn a_remote_service_becomes_one_service_entry() {
    let plan = planned(json!([]), json!([offer("r.shop.svc.cluster.local")]), |_| {});
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-cluster-local");
    let endpoint = |address: &str| {
        json!({ "address": address, "network": "west", "ports": { "http": 443 },
            "labels": { "app": "r", "security.istio.io/tlsMode": "istio" } })
    };
    assert_eq!(
        entry.spec,
        json!({
            "hosts": ["r.shop.svc.cluster.local"],
            "ports": [{ "name": "http", "number": 9080, "protocol": "HTTP", "targetPort": 8080 }],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "endpoints": [endpoint("192.0.2.1"), endpoint("192.0.2.2")],
        })
    );
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-shop-svc-cluster-local");
    assert_eq!(imported.owner, Owner::Federation);
    assert_eq!(imported.spec["meshes"], json!(["west"]));
    assert_eq!((&imported.spec["name"], &imported.spec["namespace"]), (&json!("r"), &json!("shop")));
    let owner = Owner::Imported { namespace: "istio-system".into(), name: "r-shop-svc-cluster-local".into() };
    assert_eq!(entry.owner, owner);
    let discovery = get(&plan, Kind::ServiceEntry, "istio-system", "federation-discovery-service-west");
    assert_eq!(
        discovery.spec["hosts"],
        json!(["federation-discovery-service-west.istio-system.svc.cluster.local"])
    );
    assert_eq!(discovery.spec["ports"], json!([{ "name": "grpc", "number": 15080, "protocol": "GRPC" }]));
    assert_eq!(
        discovery.spec["subjectAltNames"],
        json!(["spiffe://mesh.west/ns/istio-system/sa/federation-discovery-service-west"])
    );
    assert!(
        plan.objects.iter().position(|o| o.kind == Kind::ImportedService)
            < plan.objects.iter().position(|o| o.kind == Kind::ServiceEntry),
        "owners come first"
    );
}

#[test]
fn a_host_name_is_left_to_dns_in_entries_and_resolved_for_workloads() {
    let by_name = |world: &mut Value| {
        world["federation"]["remote"][0]["ingress"] = json!({ "addresses": ["gw.west.example"] });
    };
    let plan = planned(json!([]), json!([offer("r.shop.svc.cluster.local")]), by_name);
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-cluster-local");
    assert_eq!(
        (&entry.spec["resolution"], &entry.spec["endpoints"][0]["ports"]["http"]),
        (&json!("DNS"), &json!(15443))
    );
    let local = || json!([service("shop", "r", json!({}), http())]);
    let plan = planned(local(), json!([offer("r.shop.svc.cluster.local")]), by_name);
    assert_eq!(count(&plan, Kind::WorkloadEntry), 0);
    assert!(plan.unresolved.contains("west"), "what is there stays until the name is resolved");
    let plan = planned(local(), json!([offer("r.shop.svc.cluster.local")]), |world| {
        by_name(world);
        world["resolved"] = json!({ "gw.west.example": ["192.0.2.7", "2001:db8::7"] });
    });
    let workload = get(&plan, Kind::WorkloadEntry, "shop", "import-west-r-1");
    assert_eq!(workload.spec["address"], "2001:db8::7");
}

#[test]
fn a_local_service_of_the_same_name_gets_more_endpoints() {
    let services = json!([service("shop", "r", json!({}), http())]);
    let plan = planned(services, json!([offer("r.shop.svc.cluster.local")]), |_| {});
    let workload = get(&plan, Kind::WorkloadEntry, "shop", "import-west-r-0");
    assert_eq!(
        workload.spec,
        json!({ "address": "192.0.2.1", "network": "west", "ports": { "http": 443 },
            "labels": { "app": "r", "security.istio.io/tlsMode": "istio" } })
    );
    get(&plan, Kind::ImportedService, "shop", "r-shop-svc-cluster-local");
    assert_eq!(count(&plan, Kind::WorkloadEntry), 2);
    assert_eq!(count(&plan, Kind::ServiceEntry), 1, "only that of discovery");
}

#[test]
fn a_local_service_is_never_shadowed() {
    let offers = || json!([offer("r.shop.svc.cluster.local")]);
    for (why, ports) in [
        ("another port", json!([{ "name": "http", "port": 80 }])),
        ("one port more", json!([{ "name": "http", "port": 9080 }, { "name": "admin", "port": 1 }])),
        ("no name", json!([{ "port": 9080 }])),
    ] {
        let plan = planned(json!([service("shop", "r", json!({}), ports)]), offers(), |_| {});
        assert_eq!((count(&plan, Kind::WorkloadEntry), count(&plan, Kind::ServiceEntry)), (0, 1), "{why}");
        assert!(plan.findings.iter().any(|finding| finding.reason == Reason::NotJoined), "{why}");
    }
    let mut shared = world(json!({
        "federation": { "local": east(), "remote": [west()] },
        "rules": { "import": [{ "meshID": "west" }] },
        "peers": { "west": [offer("api.example.org"), offer("kubernetes.default.svc.cluster.local")] },
    }));
    shared.foreign_hosts.insert("api.example.org".into());
    let plan = plan(&shared);
    assert_eq!(count(&plan, Kind::ImportedService), 0);
    assert_eq!((plan.remotes["west"].refused, plan.remotes["west"].refusals.len()), (2, 2));
}

#[test]
fn the_router_of_a_remote_gets_server_names_it_can_read() {
    let plan = planned(json!([]), json!([offer("r.shop.svc.cluster.local")]), |world| {
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    let rule = get(&plan, Kind::DestinationRule, "istio-system", "mtls-sni-r-shop-svc-cluster-local");
    assert_eq!(
        rule.spec,
        json!({ "host": "r.shop.svc.cluster.local", "trafficPolicy": { "portLevelSettings": [{
            "port": { "number": 9080 },
            "tls": { "mode": "ISTIO_MUTUAL", "sni": "r-9080.shop.svc.cluster.local" },
        }] } })
    );
    let name = "mtls-sni-federation-discovery-service-west-istio-system-svc-cluster-local";
    let rule = get(&plan, Kind::DestinationRule, "istio-system", name);
    assert_eq!(
        rule.spec["trafficPolicy"]["tls"],
        json!({ "mode": "ISTIO_MUTUAL", "sni": "federation-discovery-service-west-15080.istio-system.svc.cluster.local" })
    );
}

/// An edit of an offer.
type Change = fn(&mut Value);

fn three(offers_of_central: Value, change: impl FnOnce(&mut Value)) -> Plan {
    planned(json!([]), json!([offer("r.mesh.global")]), |world| {
        let central = json!({ "id": "central", "network": "central",
            "ingress": { "addresses": ["192.0.2.9"] } });
        world["federation"]["remote"].as_array_mut().unwrap().push(central);
        world["rules"]["import"].as_array_mut().unwrap().push(json!({ "meshID": "central" }));
        world["peers"]["central"] = offers_of_central;
        change(world);
    })
}

#[test]
fn one_name_of_two_meshes_is_one_entry_and_the_first_mesh_wins() {
    let plan = three(json!([offer("r.mesh.global")]), |_| {});
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global");
    assert_eq!(entry.spec["endpoints"].as_array().unwrap().len(), 3);
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global");
    assert_eq!(imported.spec["meshes"], json!(["west", "central"]));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);

    let differing: [(&str, Change); 3] = [
        ("ports", |offer| offer["ports"][0]["number"] = json!(80)),
        ("labels", |offer| offer["labels"] = json!({})),
        ("identities", |offer| offer["subjectAltNames"] = json!(["spiffe://cluster.local/ns/a/sa/b"])),
    ];
    for (what, change) in differing {
        let mut other = offer("r.mesh.global");
        change(&mut other);
        let plan = three(json!([other]), |_| {});
        let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global");
        assert_eq!(imported.spec["meshes"], json!(["west"]), "{what}");
        assert_eq!(imported.spec["offers"].as_array().unwrap().len(), 2, "what was said is kept");
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global");
        assert_eq!(entry.spec["endpoints"].as_array().unwrap().len(), 2, "{what}");
        assert_eq!(plan.findings[0].about, About::Imported("r.mesh.global".into()), "{what}");
    }
}

#[test]
fn remotes_behind_different_ingresses_do_not_share_one_server_name() {
    let plan = three(json!([offer("r.mesh.global")]), |world| {
        world["federation"]["remote"][1]["ingress"]["type"] = json!("openshift-router");
    });
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global");
    assert_eq!(imported.spec["meshes"], json!(["west"]));
    assert!(
        !plan.objects.iter().any(|o| o.kind == Kind::DestinationRule && o.name == "mtls-sni-r-mesh-global")
    );
}

#[test]
fn identities_and_locality_travel_with_the_offer() {
    let mut told = offer("r.mesh.global");
    told["subjectAltNames"] = json!(["spiffe://mesh.west/ns/shop/sa/r"]);
    told["locality"] = json!("eu/a");
    let plan = planned(json!([]), json!([told]), |_| {});
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global");
    assert_eq!(entry.spec["subjectAltNames"], json!(["spiffe://mesh.west/ns/shop/sa/r"]));
    assert_eq!(entry.spec["endpoints"][0]["locality"], "eu/a");
    let mut world = world(json!({
        "federation": { "local": east() },
        "rules": { "export": { "serviceList": ["shop/*"] } },
        "services": [service("shop", "r", json!({}), json!([{ "name": "http", "port": 80, "targetPort": "web" }]))],
    }));
    let pods = Backends {
        addresses: ["10.0.0.1".to_owned()].into(),
        ports: [("http".to_owned(), 8080)].into(),
        accounts: ["r".to_owned()].into(),
    };
    world.backends.insert(("shop".into(), "r".into()), pods);
    let offered = &exports(&world)[0];
    assert_eq!(offered.subject_alt_names, ["spiffe://mesh.east/ns/shop/sa/r"]);
    assert_eq!(offered.ports[0].target_port, 8080, "a named target is what the pods say");
    assert!(offered.endpoints.is_empty());
    // In one network there is no ingress, and the pods are called directly.
    let federation: MeshFederationSpec =
        serde_json::from_value(json!({ "local": { "id": "east", "network": "one" } })).unwrap();
    world.federation = Some(Arc::new(federation));
    assert_eq!(exports(&world)[0].endpoints, ["10.0.0.1"]);
    assert_eq!(count(&super::plan(&world), Kind::Gateway), 0);
}

#[test]
fn in_one_network_endpoints_are_the_pods() {
    let mut told = offer("r.mesh.global");
    told["endpoints"] = json!(["10.2.0.1", "10.2.0.2"]);
    let plan = planned(json!([]), json!([told, offer("lost.mesh.global")]), |world| {
        world["federation"]["local"] = json!({ "id": "east", "network": "one" });
        world["federation"]["remote"] = json!([{ "id": "west", "network": "one" }]);
    });
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global");
    assert_eq!(entry.spec["endpoints"][1]["address"], "10.2.0.2");
    assert_eq!(entry.spec["endpoints"][0]["ports"], json!({ "http": 8080 }));
    assert_eq!(count(&plan, Kind::ServiceEntry), 1);
    assert_eq!(plan.findings[0].reason, Reason::NoAddress);
}

#[test]
fn names_of_their_own_have_an_entry_that_points_at_the_service() {
    let services = json!([service("bookinfo", "ratings", json!({ "export": "true" }), http())]);
    for (include, host) in [(false, "ratings.mesh.global"), (true, "ratings.bookinfo.mesh.global")] {
        let plan = planned(services.clone(), json!([]), |world| {
            world["rules"]["export"]["dnsSettings"] =
                json!({ "searchDomain": "mesh.global", "includeNamespace": include });
        });
        assert_eq!(hosts(&plan), [DISCOVERY, host]);
        let name = format!("export-{}", host.replace('.', "-"));
        let alias = get(&plan, Kind::ServiceEntry, "istio-system", &name);
        assert_eq!(
            alias.spec,
            json!({
                "hosts": [host], "location": "MESH_INTERNAL", "resolution": "DNS",
                "ports": [{ "name": "http", "number": 9080, "protocol": "HTTP" }],
                "endpoints": [{
                    "address": "ratings.bookinfo.svc.cluster.local", "network": "east",
                    "labels": { "security.istio.io/tlsMode": "istio" }, "ports": { "http": 9080 },
                }],
            })
        );
        assert_eq!(
            (plan.exports[0].name.as_str(), plan.exports[0].namespace.as_str()),
            ("ratings", "bookinfo")
        );
    }
}

#[test]
fn a_name_that_is_exported_here_and_there_is_one_entry() {
    let services = json!([service("bookinfo", "r", json!({ "export": "true", "app": "r" }), http())]);
    let plan = planned(services, json!([offer("r.mesh.global")]), |world| {
        world["rules"]["export"]["dnsSettings"] = json!({ "searchDomain": "mesh.global" });
    });
    let alias = get(&plan, Kind::ServiceEntry, "istio-system", "export-r-mesh-global");
    assert_eq!(alias.spec["endpoints"].as_array().unwrap().len(), 3);
    assert_eq!(count(&plan, Kind::ServiceEntry), 2, "this one and that of discovery");
}

#[test]
fn of_two_services_that_want_one_name_the_older_has_it() {
    let made = |namespace: &str, time: &str| {
        let mut made = service(namespace, "r", json!({ "export": "true" }), http());
        made["metadata"]["creationTimestamp"] = json!(time);
        made
    };
    let services = json!([made("a", "2024-05-01T00:00:00Z"), made("b", "2023-05-01T00:00:00Z")]);
    let plan = planned(services, json!([]), |world| {
        world["rules"]["export"]["dnsSettings"] = json!({ "searchDomain": "mesh.global" });
    });
    assert_eq!(plan.exports.len(), 1);
    assert_eq!(plan.exports[0].namespace, "b");
    assert_eq!(plan.findings[0].reason, Reason::NameTaken);
    assert!(plan.findings[0].message.contains("b/r is older"), "{}", plan.findings[0].message);
}

#[test]
fn import_rules_limit_what_is_seen_and_no_rule_means_no_import() {
    let mut other = offer("x.mesh.global");
    other["labels"] = json!({ "app": "x" });
    let offers = json!([offer("r.mesh.global"), other]);
    let plan = planned(json!([]), offers.clone(), |world| {
        world["rules"]["import"][0]["serviceSelectors"] =
            json!([{ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] }]);
    });
    get(&plan, Kind::ImportedService, "istio-system", "x-mesh-global");
    assert_eq!((count(&plan, Kind::ImportedService), plan.remotes["west"].imported), (1, 1));
    let none = planned(json!([]), offers, |world| world["rules"]["import"] = json!([]));
    assert_eq!((count(&none, Kind::ImportedService), count(&none, Kind::ServiceEntry)), (0, 0));
    let unknown =
        planned(json!([]), json!([]), |world| world["rules"]["import"] = json!([{ "meshID": "north" }]));
    assert_eq!(unknown.findings[0].reason, Reason::UnknownMesh);
}

#[test]
fn calls_leave_through_the_egress_gateway() {
    let mut raw = offer("db.mesh.global");
    raw["ports"][0]["protocol"] = json!("TCP");
    let plan = planned(json!([]), json!([offer("r.shop.svc.cluster.local"), raw]), |world| {
        world["federation"]["local"]["egress"] = json!({ "gateway": { "selector": { "app": "egress" }, "port": { "name": "https", "number": 443 } } });
    });
    let gateway = get(&plan, Kind::Gateway, "istio-system", "federation-egress-gateway");
    assert_eq!(gateway.spec["servers"][0]["tls"]["mode"], "ISTIO_MUTUAL");
    let routes = get(&plan, Kind::VirtualService, "istio-system", "federation-egress-gateway");
    assert_eq!(routes.spec["hosts"], json!(["r.shop.svc.cluster.local"]));
    let first = &routes.spec["http"][0]["route"][0]["destination"];
    assert_eq!(
        *first,
        json!({ "host": "federation-egress-gateway.istio-system.svc.cluster.local", "port": { "number": 443 } })
    );
    let second = &routes.spec["http"][1];
    assert_eq!(
        second["route"][0]["destination"],
        json!({ "host": "r.shop.svc.cluster.local", "port": { "number": 9080 } })
    );
    let authorities: Vec<&str> =
        second["match"].as_array().unwrap().iter().filter_map(|m| m["authority"]["exact"].as_str()).collect();
    assert!(authorities.contains(&"r.shop:9080") && authorities.contains(&"r.shop.svc.cluster.local"));
    assert_eq!(plan.findings[0].reason, Reason::NotThroughEgress);
}

mod defects {
    //! What the original does wrong and this does not; those of a running controller are tested there.
    use super::*;

    #[test]
    fn expressions_alone_do_not_export_everything() {
        let services = json!([
            service("a", "ratings", json!({ "app": "ratings" }), http()),
            service("a", "secrets", json!({ "app": "secrets" }), http()),
        ]);
        let plan = planned(services, json!([]), |world| {
            world["rules"]["export"]["serviceSelectors"] =
                json!([{ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["ratings"] }] }]);
        });
        assert_eq!(hosts(&plan), [DISCOVERY, "ratings.a.svc.cluster.local"]);
    }

    #[test]
    fn a_service_two_rules_name_is_exported_once() {
        let services = json!([service("a", "r", json!({ "export": "true" }), http())]);
        let plan = planned(services, json!([]), |world| {
            world["rules"]["export"]["serviceList"] = json!(["a/r", "a/*"]);
        });
        assert_eq!((hosts(&plan).len(), plan.exports.len()), (2, 1));
    }

    #[test]
    fn labels_of_a_peer_select_no_workload_here() {
        let mut hostile = offer("r.shop.svc.cluster.local");
        hostile["labels"] = json!({ "app": "payments", "topology.istio.io/network": "east" });
        let services =
            json!([service("shop", "r", json!({}), http()), service("shop", "payments", json!({}), http())]);
        let plan = planned(services, json!([hostile.clone()]), |_| {});
        let workload = get(&plan, Kind::WorkloadEntry, "shop", "import-west-r-0");
        assert_eq!(workload.spec["labels"], json!({ "app": "r", "security.istio.io/tlsMode": "istio" }));
        let plan = planned(json!([]), json!([hostile]), |_| {});
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-cluster-local");
        assert!(entry.spec["endpoints"][0]["labels"].get("topology.istio.io/network").is_none());
    }

    #[test]
    fn a_remote_without_addresses_and_a_gateway_without_a_port_are_no_reason_to_die() {
        let plan = planned(json!([]), json!([offer("r.mesh.global")]), |world| {
            world["federation"]["remote"][0]["ingress"] = json!({});
        });
        assert_eq!(count(&plan, Kind::ServiceEntry), 0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("legacy.json");
        let flags = json!({
            "meshPeers": {
                "local": { "name": "east", "gateways": { "ingress": { "selector": { "app": "gw" } } } },
                "remotes": [{ "name": "west", "network": "west" }],
            },
            "exportedServiceSet": null,
            "imported": { "west": [offer("r.shop.svc.cluster.local")] },
        });
        std::fs::write(&file, flags.to_string()).unwrap();
        let rendered = render_legacy(&file).unwrap();
        let gateway = rendered.manifests.iter().find(|object| object["kind"] == "Gateway").unwrap();
        assert_eq!(gateway["spec"]["servers"][0]["port"]["number"], 15443);
    }

    #[test]
    fn the_namespace_of_discovery_is_its_own() {
        let mut elsewhere = world(json!({
            "federation": {
                "local": { "id": "east", "network": "east", "ingress": { "type": "openshift-router" } },
                "remote": [{ "id": "west", "network": "west", "identity": { "namespace": "fed" },
                    "ingress": { "addresses": ["192.0.2.1"], "type": "openshift-router" } }],
            },
            "rules": { "import": [{ "meshID": "west" }] },
        }));
        elsewhere.controller_namespace = "federation".into();
        let plan = plan(&elsewhere);
        assert_eq!(hosts(&plan), ["federation-discovery-service-east.federation.svc.cluster.local"]);
        get(
            &plan,
            Kind::EnvoyFilter,
            "istio-system",
            "sni-federation-discovery-service-east-federation-15080",
        );
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "federation-discovery-service-west");
        assert_eq!(entry.spec["hosts"], json!(["federation-discovery-service-west.fed.svc.cluster.local"]));
    }

    #[test]
    fn what_a_gateway_cannot_carry_is_not_exported() {
        let mut headless = service("a", "headless", json!({}), http());
        headless["spec"]["clusterIP"] = json!("None");
        let external = json!({ "metadata": { "namespace": "a", "name": "external" },
            "spec": { "type": "ExternalName", "externalName": "x.example", "ports": [{ "name": "http", "port": 80 }] } });
        let services = json!([
            headless,
            external,
            service("a", "dns", json!({}), json!([{ "name": "dns", "port": 53, "protocol": "UDP" }])),
            service(
                "a",
                "both",
                json!({}),
                json!([{ "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "tcp", "port": 53 }])
            ),
            service("default", "kubernetes", json!({}), http()),
        ]);
        let plan = planned(services, json!([]), |world| {
            world["rules"]["export"] = json!({ "serviceSelectors": [{}] });
        });
        assert_eq!(hosts(&plan), ["both.a.svc.cluster.local", DISCOVERY]);
        assert_eq!(plan.exports[0].ports.len(), 1);
        assert_eq!(plan.findings.iter().filter(|finding| finding.reason == Reason::NotExportable).count(), 3);
    }

    #[test]
    fn names_that_join_alike_stay_apart() {
        let services = json!([
            service("c", "a-b", json!({ "export": "true" }), http()),
            service("b-c", "a", json!({ "export": "true" }), http()),
        ]);
        let offers =
            json!([offer("a-b.c.mesh.global"), offer("a.b-c.mesh.global"), offer("a.b.c.mesh.global")]);
        let plan = planned(services, offers, |world| {
            world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router" });
            world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
        });
        let mut places: Vec<_> = plan.objects.iter().map(Object::place).collect();
        let all = places.len();
        places.dedup();
        assert_eq!(places.len(), all);
        assert_eq!((count(&plan, Kind::Route), count(&plan, Kind::EnvoyFilter)), (3, 3));
        assert_eq!((count(&plan, Kind::ImportedService), count(&plan, Kind::DestinationRule)), (3, 4));
    }
}
