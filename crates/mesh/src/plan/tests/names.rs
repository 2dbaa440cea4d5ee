//! Names of their own, rules of import, and the way out.

use super::*;

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
    assert_eq!(alias.spec.value()["endpoints"].as_array().unwrap().len(), 3);
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
