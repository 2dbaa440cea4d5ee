//! What a remote service becomes here.

use super::*;

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
    assert_eq!(imported.spec.value()["meshes"], json!(["west"]));
    assert_eq!(imported.spec.value()["labels"], json!({ "app": "r", "security.istio.io/tlsMode": "istio" }));
    assert_eq!(
        (&imported.spec.value()["name"], &imported.spec.value()["namespace"]),
        (&json!("r"), &json!("shop"))
    );
    let owner = Owner::Imported { namespace: "istio-system".into(), name: "r-shop-svc-cluster-local".into() };
    assert_eq!(entry.owner, owner);
    let discovery = get(&plan, Kind::ServiceEntry, "istio-system", "federation-discovery-service-west");
    assert_eq!(
        discovery.spec.value()["hosts"],
        json!(["federation-discovery-service-west.istio-system.svc.cluster.local"])
    );
    assert_eq!(
        discovery.spec.value()["ports"],
        json!([{ "name": "grpc", "number": 15080, "protocol": "GRPC" }])
    );
    assert_eq!(
        discovery.spec.value()["subjectAltNames"],
        json!([
            "spiffe://mesh.west/ns/istio-system/sa/federation-discovery-service-west",
            "spiffe://mesh.west/ns/istio-system/sa/federation-controller",
        ])
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
        (&entry.spec.value()["resolution"], &entry.spec.value()["endpoints"][0]["ports"]["http"]),
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
    assert_eq!(workload.spec.value()["address"], "2001:db8::7");
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
        rule.spec.value()["trafficPolicy"]["tls"],
        json!({ "mode": "ISTIO_MUTUAL", "sni": "federation-discovery-service-west-15080.istio-system.svc.cluster.local" })
    );
}

#[test]
fn a_router_listens_at_its_own_port_unless_told() {
    let port = |ingress: Value| {
        let plan = planned(json!([]), json!([offer("r.shop.svc.cluster.local")]), |world| {
            world["federation"]["remote"][0]["ingress"] = ingress;
        });
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-cluster-local");
        entry.spec.value()["endpoints"][0]["ports"]["http"].clone()
    };
    assert_eq!(port(json!({ "addresses": ["192.0.2.1"] })), 15443);
    assert_eq!(port(json!({ "addresses": ["192.0.2.1"], "type": "openshift-router" })), 443);
    assert_eq!(port(json!({ "addresses": ["192.0.2.1"], "type": "openshift-router", "port": 8443 })), 8443);
}

#[test]
fn what_was_rendered_before_changes_nothing() {
    let offers: Vec<Value> = (0..4).map(|n| offer(&format!("s{n}.mesh.global"))).collect();
    let mut world = super::world(json!({
        "federation": { "local": east(), "remote": [west()] },
        "rules": { "import": [{ "meshID": "west" }] },
        "peers": { "west": offers },
    }));
    let mut memo = Memo::default();
    let first = plan_again(&world, &mut memo);
    assert_eq!(first, super::plan(&world));
    assert_eq!((memo.looked(), memo.rendered()), (4, 4));
    assert_eq!(plan_again(&world, &mut memo), first);
    assert_eq!((memo.looked(), memo.rendered()), (0, 0), "nothing changed");
    // One offer changes, one goes, one comes, and then the way to all of them changes.
    let told = world.peers.get_mut("west").unwrap();
    let mut changed = Offer::clone(&told[0]);
    changed.ports[0].number = 81;
    told[0] = Arc::new(changed);
    told.remove(2);
    told.push(Arc::new(serde_json::from_value(offer("new.mesh.global")).unwrap()));
    let second = plan_again(&world, &mut memo);
    assert_eq!(second, super::plan(&world));
    assert_ne!(second, first);
    assert_eq!((memo.looked(), memo.rendered()), (2, 2), "what changed and what came");
    // What is exported here concerns none of them.
    world.rules = Some(Arc::new(
        serde_json::from_value(json!({
            "export": { "serviceList": ["shop/*"] }, "import": [{ "meshID": "west" }],
        }))
        .unwrap(),
    ));
    plan_again(&world, &mut memo);
    assert_eq!((memo.looked(), memo.rendered()), (0, 0));
    let mut moved = MeshFederationSpec::clone(world.federation.as_ref().unwrap());
    moved.remote[0].ingress.port = Some(444);
    world.federation = Some(Arc::new(moved));
    let third = plan_again(&world, &mut memo);
    assert_eq!(third, super::plan(&world));
    assert_ne!(third, second);
}
