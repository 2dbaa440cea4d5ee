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
    assert_eq!(entry.spec.value()["endpoints"][1]["address"], "10.2.0.2");
    assert_eq!(entry.spec.value()["endpoints"][0]["ports"], json!({ "http": 8080 }));
    assert_eq!(count(&plan, Kind::ServiceEntry), 1);
    assert_eq!(plan.findings[0].reason, Reason::NoAddress);
}
