//! One name in several meshes, or in one network.

use super::*;

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
    assert_eq!(entry.spec.value()["endpoints"].as_array().unwrap().len(), 3);
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global");
    assert_eq!(imported.spec.value()["meshes"], json!(["west", "central"]));
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
        assert_eq!(imported.spec.value()["meshes"], json!(["west"]), "{what}");
        assert_eq!(imported.spec.value()["offers"].as_array().unwrap().len(), 2, "what was said is kept");
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global");
        assert_eq!(entry.spec.value()["endpoints"].as_array().unwrap().len(), 2, "{what}");
        assert_eq!(plan.findings[0].about, About::Imported("r.mesh.global".into()), "{what}");
    }
}

#[test]
fn a_mesh_without_pods_takes_the_name_from_nobody() {
    // Ours tells where a service runs; its identities are those of the pods that are there.
    let ours = |identity: Option<&str>| {
        let mut told = offer("r.mesh.global");
        told["name"] = json!("r");
        told["namespace"] = json!("shop");
        told["subjectAltNames"] = identity.into_iter().collect();
        told
    };
    let (west, central) = ("spiffe://mesh.west/ns/shop/sa/r", "spiffe://cluster.local/ns/shop/sa/r");
    let used = |of_west: Option<&str>, of_central: Option<&str>| {
        let plan = three(json!([ours(of_central)]), |world| world["peers"]["west"] = json!([ours(of_west)]));
        assert!(plan.findings.is_empty(), "no conflict: {:?}", plan.findings);
        let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global").spec.value();
        assert_eq!(imported["offers"].as_array().unwrap().len(), 2, "what was said is kept");
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "import-r-mesh-global").spec.value();
        let ways = entry["endpoints"].as_array().unwrap().len();
        (imported["meshes"].clone(), ways, entry["subjectAltNames"].clone())
    };
    assert_eq!(used(None, Some(central)), (json!(["central"]), 1, json!([central])));
    assert_eq!(used(Some(west), None), (json!(["west"]), 2, json!([west])));
    assert_eq!(used(Some(west), Some(central)), (json!(["west", "central"]), 3, json!([central, west])));
    assert_eq!(used(None, None), (json!(["west", "central"]), 3, Value::Null));

    // Behind which ingress the mesh without pods is does not matter either; its ports and labels do.
    let plan = three(json!([ours(Some(central))]), |world| {
        world["peers"]["west"] = json!([ours(None)]);
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global").spec.value();
    assert_eq!(imported["meshes"], json!(["central"]));
    let plan = three(json!([ours(Some(central))]), |world| {
        world["peers"]["west"] = json!([ours(None)]);
        world["peers"]["west"][0]["ports"][0]["number"] = json!(80);
    });
    assert_eq!(plan.findings[0].reason, Reason::Differs);
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global").spec.value();
    assert_eq!(imported["meshes"], json!(["west"]), "the first mesh wins");
}

#[test]
fn remotes_behind_different_ingresses_do_not_share_one_server_name() {
    let plan = three(json!([offer("r.mesh.global")]), |world| {
        world["federation"]["remote"][1]["ingress"]["type"] = json!("openshift-router");
    });
    let imported = get(&plan, Kind::ImportedService, "istio-system", "r-mesh-global");
    assert_eq!(imported.spec.value()["meshes"], json!(["west"]));
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
    assert_eq!(entry.spec.value()["subjectAltNames"], json!(["spiffe://mesh.west/ns/shop/sa/r"]));
    assert_eq!(entry.spec.value()["endpoints"][0]["locality"], "eu/a");
    let mut world = world(json!({
        "federation": { "local": east() },
        "rules": { "export": { "serviceList": ["shop/*"] } },
        "services": [service("shop", "r", json!({}), json!([{ "name": "http", "port": 80, "targetPort": "web" }]))],
    }));
    let pods = Backends {
        addresses: ["10.0.0.1".to_owned()].into(),
        ports: [("http".to_owned(), 8080)].into(),
        accounts: ["r".to_owned()].into(),
        plain: false,
    };
    world.backends.insert(("shop".into(), "r".into()), Arc::new(pods));
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
    assert_eq!(entry.spec.value()["endpoints"][1]["address"], "10.2.0.2");
    assert_eq!(entry.spec.value()["endpoints"][0]["ports"], json!({ "http": 8080 }));
    assert_eq!(count(&plan, Kind::ServiceEntry), 1);
    assert_eq!(plan.findings[0].reason, Reason::NoAddress);
}

#[test]
fn in_one_network_discovery_is_asked_over_mutual_tls_too() {
    let mut one = world(json!({
        "federation": {
            "local": { "id": "east", "network": "one" },
            "remote": [{ "id": "west", "network": "one", "identity": { "trustDomain": "mesh.west" } }],
        },
        "rules": { "import": [{ "meshID": "west" }] },
    }));
    assert_eq!(count(&plan(&one), Kind::ServiceEntry), 0, "nobody says where it is");
    one.discovery.insert("west".into(), "10.2.0.9:15080".parse().unwrap());
    let plan = plan(&one);
    let entry = get(&plan, Kind::ServiceEntry, "istio-system", "federation-discovery-service-west");
    assert_eq!(
        entry.spec,
        json!({
            "hosts": ["federation-discovery-service-west.istio-system.svc.cluster.local"],
            "ports": [{ "name": "grpc", "number": 15080, "protocol": "GRPC" }],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "endpoints": [{ "address": "10.2.0.9", "network": "one", "ports": { "grpc": 15080 },
                "labels": { "security.istio.io/tlsMode": "istio" } }],
            "subjectAltNames": [
                "spiffe://mesh.west/ns/istio-system/sa/federation-discovery-service-west",
                "spiffe://mesh.west/ns/istio-system/sa/federation-controller",
            ],
        })
    );
}

#[test]
fn what_is_carried_passes_the_controllers_own_proxy_untouched() {
    let mut world = world(json!({ "federation": { "local": east() }, "rules": {} }));
    let strict = |world: &World| {
        get(&plan(world), Kind::PeerAuthentication, "istio-system", "fds-strict-mtls").spec.value()
    };
    assert!(strict(&world).get("portLevelMtls").is_none());
    world.carrying.insert(15543);
    assert_eq!(strict(&world)["portLevelMtls"], json!({ "15543": { "mode": "DISABLE" } }));
    assert_eq!(strict(&world)["mtls"]["mode"], "STRICT", "discovery as before");
}
