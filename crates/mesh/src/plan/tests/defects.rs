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
    assert_eq!(workload.spec.value()["labels"], json!({ "app": "r", "security.istio.io/tlsMode": "istio" }));
    let plan = planned(json!([]), json!([hostile]), |_| {});
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-cluster-local");
    assert!(entry.spec.value()["endpoints"][0]["labels"].get("topology.istio.io/network").is_none());
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
    get(&plan, Kind::EnvoyFilter, "istio-system", "sni-federation-discovery-service-east-federation-15080");
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "federation-discovery-service-west");
    assert_eq!(
        entry.spec.value()["hosts"],
        json!(["federation-discovery-service-west.fed.svc.cluster.local"])
    );
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
        service("istio-system", "istiod", json!({}), http()),
        service("kube-system", "kube-dns", json!({}), http()),
    ]);
    let plan = planned(services, json!([]), |world| {
        world["rules"]["export"] = json!({ "serviceSelectors": [{}] });
    });
    assert_eq!(hosts(&plan), ["both.a.svc.cluster.local", DISCOVERY]);
    assert_eq!(plan.exports[0].ports.len(), 1);
    assert_eq!(plan.findings.iter().filter(|finding| finding.reason == Reason::NotExportable).count(), 5);
}

#[test]
fn names_that_join_alike_stay_apart() {
    let services = json!([
        service("c", "a-b", json!({ "export": "true" }), http()),
        service("b-c", "a", json!({ "export": "true" }), http()),
    ]);
    let offers = json!([offer("a-b.c.mesh.global"), offer("a.b-c.mesh.global"), offer("a.b.c.mesh.global")]);
    let plan = planned(services, offers, |world| {
        world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router" });
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    let mut places: Vec<_> = plan.objects.iter().map(|object| object.place()).collect();
    let all = places.len();
    places.dedup();
    assert_eq!(places.len(), all);
    assert_eq!((count(&plan, Kind::Route), count(&plan, Kind::EnvoyFilter)), (3, 3));
    assert_eq!((count(&plan, Kind::ImportedService), count(&plan, Kind::DestinationRule)), (3, 4));
}

#[test]
fn a_named_target_port_is_the_number_at_the_pods() {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": "web" }]);
    let mut world = world(json!({
        "federation": { "local": east() },
        "rules": { "export": { "serviceList": ["shop/*"] } },
        "services": [service("shop", "r", json!({}), ports)],
    }));
    assert_eq!(exports(&world)[0].ports[0].target_port, 0, "no pod says it yet");
    let pods = Backends { ports: [("http".to_owned(), 8080)].into(), ..Backends::default() };
    world.backends.insert(("shop".into(), "r".into()), Arc::new(pods));
    assert_eq!(exports(&world)[0].ports[0].target_port, 8080);
}

#[test]
fn names_that_are_too_long_stay_legal_and_apart() {
    let long = |last: char| format!("{}{last}", "x".repeat(62));
    let services: Vec<Value> = ['a', 'b']
        .map(|last| service(&"n".repeat(63), &long(last), json!({ "export": "true" }), http()))
        .into();
    let tail = format!("{}.{}.{}", "y".repeat(63), "z".repeat(63), "mesh.global");
    let offers: Vec<Value> = ['a', 'b'].map(|last| offer(&format!("{}.{tail}", long(last)))).into();
    let plan = planned(json!(services), json!(offers), |world| {
        world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router" });
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    let mut names: Vec<_> = plan.objects.iter().map(|object| object.place()).collect();
    assert!(names.iter().all(|(_, _, name)| name.len() <= 253));
    names.dedup();
    assert_eq!((names.len(), count(&plan, Kind::ImportedService)), (plan.objects.len(), 2));
    let hosts: std::collections::BTreeSet<String> = plan
        .objects
        .iter()
        .filter(|object| object.kind == Kind::Route)
        .filter_map(|object| object.spec.value()["host"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(hosts.len(), 3, "the two services and discovery");
    assert!(hosts.iter().flat_map(|host| host.split('.')).all(|label| label.len() <= 63), "{hosts:?}");
}
