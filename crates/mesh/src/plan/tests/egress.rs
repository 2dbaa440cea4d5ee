//! What leaves through the egress gateway, and what cannot.

use super::*;

const NAME: &str = "federation-egress-gateway";
const SERVICE: &str = "federation-egress-gateway.istio-system.svc.cluster.local";
const WHO: &str = "spiffe://mesh.west/ns/shop/sa/db";

fn leaving(offers: Value) -> Plan {
    planned(json!([]), offers, |world| {
        world["federation"]["local"]["egress"] = json!({ "gateway": { "selector": { "app": "egress" }, "port": { "name": "https", "number": 443 } } });
    })
}

/// An offer whose one port speaks something, by pods that are known.
fn speaking(host: &str, number: u32, protocol: &str) -> Value {
    let mut offer = offer(host);
    offer["ports"] = json!([{ "name": "it", "number": number, "protocol": protocol }]);
    offer["subjectAltNames"] = json!([WHO]);
    offer
}

#[test]
fn requests_are_sent_on_by_the_name_they_carry() {
    let plan = leaving(json!([offer("r.shop.svc.cluster.local")]));
    let gateway = get(&plan, Kind::Gateway, "istio-system", NAME).spec.value();
    assert_eq!(gateway["servers"].as_array().unwrap().len(), 1);
    assert_eq!(gateway["servers"][0]["tls"]["mode"], "ISTIO_MUTUAL");
    let routes = get(&plan, Kind::VirtualService, "istio-system", NAME).spec.value();
    assert_eq!(
        routes["hosts"],
        json!(["r.shop.svc.cluster.local", "r.shop.svc", "r.shop"]),
        "the gateway is called by whatever the caller wrote"
    );
    let first = &routes["http"][0]["route"][0]["destination"];
    assert_eq!(*first, json!({ "host": SERVICE, "port": { "number": 443 } }));
    let second = &routes["http"][1];
    assert_eq!(
        second["route"][0]["destination"],
        json!({ "host": "r.shop.svc.cluster.local", "port": { "number": 9080 } })
    );
    let authorities: Vec<&str> =
        second["match"].as_array().unwrap().iter().filter_map(|m| m["authority"]["exact"].as_str()).collect();
    assert!(authorities.contains(&"r.shop:9080") && authorities.contains(&"r.shop.svc.cluster.local"));
    assert!(plan.findings.is_empty() && count(&plan, Kind::DestinationRule) == 0);
}

#[test]
fn what_is_no_http_passes_sealed_for_the_service_itself() {
    let plan = leaving(json!([
        speaking("db.mesh.global", 5432, "TCP"),
        speaking("a.mesh.global", 443, "TLS"),
        speaking("b.mesh.global", 443, "HTTPS"),
    ]));
    assert_eq!(plan.findings, []);
    let gateway = get(&plan, Kind::Gateway, "istio-system", NAME).spec.value();
    assert_eq!(
        gateway["servers"],
        json!([{
            "port": { "number": 443, "name": "https-sealed", "protocol": "TLS" },
            "hosts": ["a.mesh.global", "b.mesh.global", "db.mesh.global"],
            "tls": { "mode": "AUTO_PASSTHROUGH" },
        }])
    );
    let rule = get(&plan, Kind::DestinationRule, "istio-system", NAME);
    assert_eq!((rule.owner.clone(), rule.spec.value()["host"].as_str()), (Owner::Rules, Some(SERVICE)));
    let calls = get(&plan, Kind::VirtualService, "istio-system", NAME).spec.value();
    assert_eq!((calls["gateways"].clone(), calls.get("http")), (json!(["mesh"]), None));
    assert_eq!(calls["tcp"][0]["match"], json!([{ "gateways": ["mesh"], "port": 5432 }]));
    let wanted = json!([{ "gateways": ["mesh"], "port": 443, "sniHosts": ["b.mesh.global"] }]);
    assert_eq!(calls["tls"][1]["match"], wanted);
    // Each route has a subset with the server name and the identities of exactly its service.
    let routes = [
        (&calls["tcp"][0], "outbound_.5432_._.db.mesh.global"),
        (&calls["tls"][0], "outbound_.443_._.a.mesh.global"),
        (&calls["tls"][1], "outbound_.443_._.b.mesh.global"),
    ];
    let subsets = rule.spec.value()["subsets"].clone();
    for (route, sni) in routes {
        let destination = &route["route"][0]["destination"];
        assert_eq!(
            (destination["host"].as_str(), &destination["port"]["number"]),
            (Some(SERVICE), &json!(443))
        );
        let mine = |subset: &&Value| subset["name"] == destination["subset"];
        let found: Vec<&Value> = subsets.as_array().unwrap().iter().filter(mine).collect();
        let tls = json!({ "mode": "ISTIO_MUTUAL", "sni": sni, "subjectAltNames": [WHO] });
        assert_eq!(found.len(), 1, "{subsets}");
        assert_eq!(found[0]["trafficPolicy"]["tls"], tls);
    }
}

#[test]
fn names_of_subsets_are_short_and_differ() {
    let long = "x".repeat(60);
    let plan = leaving(json!([
        speaking("a-b.c.global", 1, "TCP"),
        speaking("a.b-c.global", 2, "TCP"),
        speaking("a.b.c.global", 3, "TCP"),
        speaking(&format!("{long}.{long}.global"), 4, "TCP"),
    ]));
    let rule = get(&plan, Kind::DestinationRule, "istio-system", NAME).spec.value();
    let names: std::collections::BTreeSet<&str> =
        rule["subsets"].as_array().unwrap().iter().filter_map(|subset| subset["name"].as_str()).collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().all(|name| crate::names::is_label(name)), "{names:?}");
}

#[test]
fn what_cannot_be_told_apart_or_believed_goes_by_itself_and_is_told() {
    // Two names with one port: by that alone a sidecar would mistake one for the other.
    let mut both = speaking("both.mesh.global", 5432, "TCP");
    let web = json!({ "name": "http", "number": 80, "protocol": "HTTP" });
    both["ports"].as_array_mut().unwrap().push(web);
    let other = speaking("other.mesh.global", 5432, "MONGO");
    let mut unknown = speaking("unknown.mesh.global", 6379, "TCP");
    unknown["subjectAltNames"] = json!([]);
    let plan = leaving(json!([both, other, unknown]));
    let told = |host: &str| -> String {
        let about = About::Imported(host.to_owned());
        let finding = plan.findings.iter().find(|finding| finding.about == about).unwrap();
        assert_eq!(finding.reason, Reason::NotThroughEgress);
        finding.message.clone()
    };
    assert!(told("both.mesh.global").contains("other.mesh.global has the same port"));
    assert!(told("other.mesh.global").contains("both.mesh.global has the same port"));
    assert!(told("unknown.mesh.global").contains("who may answer is not known"));
    let calls = get(&plan, Kind::VirtualService, "istio-system", NAME).spec.value();
    assert_eq!((calls["hosts"].clone(), calls.get("tcp")), (json!(["both.mesh.global"]), None));

    // One of them speaks TLS and is known by its name; the other one's route would take its callers' other bytes.
    let plan =
        leaving(json!([speaking("db.mesh.global", 5432, "TCP"), speaking("pg.mesh.global", 5432, "TLS")]));
    let found: Vec<&About> = plan.findings.iter().map(|finding| &finding.about).collect();
    assert_eq!(found, [&About::Imported("db.mesh.global".to_owned())]);
    assert!(plan.findings[0].message.contains("pg.mesh.global has the same port"), "{:?}", plan.findings);
    let calls = get(&plan, Kind::VirtualService, "istio-system", NAME).spec.value();
    assert_eq!((calls["hosts"].clone(), calls.get("tcp")), (json!(["pg.mesh.global"]), None));
    assert_eq!(calls["tls"].as_array().unwrap().len(), 1);

    let routed = planned(json!([]), json!([speaking("db.mesh.global", 5432, "TCP")]), |world| {
        world["federation"]["local"]["egress"] = json!({ "gateway": { "selector": { "app": "egress" } } });
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    assert!(routed.findings[0].message.ends_with("a router stands before the other mesh"));
    assert!(routed.objects.iter().all(|object| object.name != NAME));
}
