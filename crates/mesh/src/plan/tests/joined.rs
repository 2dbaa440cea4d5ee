//! A name that runs here too: who is added to it, and who is believed.

use super::*;

const HOST: &str = "r.shop.svc.cluster.local";
const THERE: &str = "spiffe://mesh.west/ns/shop/sa/r";

fn told(host: &str, identity: Option<&str>) -> Value {
    let mut told = offer(host);
    told["name"] = json!(host.split('.').next());
    told["namespace"] = json!("shop");
    told["subjectAltNames"] = identity.into_iter().collect();
    told
}

fn pods(account: &str, plain: bool) -> Backends {
    let (addresses, accounts) = (["10.0.0.1".to_owned()].into(), [account.to_owned()].into());
    Backends { addresses, accounts, plain, ..Backends::default() }
}

/// `shop/r` runs here with these pods and is offered by west.
fn joined(offers: Value, pods: Option<Backends>, change: impl FnOnce(&mut Value)) -> Plan {
    let mut value = json!({
        "federation": { "local": east(), "remote": [west()] },
        "rules": { "import": [{ "meshID": "west" }] },
        "services": [service("shop", "r", json!({}), http())],
        "peers": { "west": offers },
    });
    change(&mut value);
    let mut world = world(value);
    world.backends.extend(pods.map(|pods| (("shop".to_owned(), "r".to_owned()), Arc::new(pods))));
    plan(&world)
}

fn reasons(plan: &Plan) -> Vec<Reason> {
    plan.findings.iter().map(|finding| finding.reason).collect()
}

#[test]
fn whoever_answers_elsewhere_is_believed_beside_the_local_pods() {
    let plan = joined(json!([told(HOST, Some(THERE))]), Some(pods("till", false)), |_| {});
    let rule = get(&plan, Kind::DestinationRule, "shop", "mtls-san-r-shop-svc-cluster-local");
    assert_eq!(
        rule.spec,
        json!({ "host": HOST, "trafficPolicy": { "portLevelSettings": [{
            "port": { "number": 9080 },
            "tls": { "mode": "ISTIO_MUTUAL",
                "subjectAltNames": ["spiffe://mesh.east/ns/shop/sa/till", THERE] },
        }] } })
    );
    // Beside the import that owns it, so that its end is the end of the rule.
    let owner = Owner::Imported { namespace: "shop".into(), name: "r-shop-svc-cluster-local".into() };
    assert_eq!((&rule.owner, count(&plan, Kind::WorkloadEntry)), (&owner, 2));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn a_router_there_adds_its_server_names_to_the_same_rule() {
    let plan = joined(json!([told(HOST, Some(THERE))]), Some(pods("r", false)), |world| {
        world["federation"]["remote"][0]["ingress"]["type"] = json!("openshift-router");
    });
    let rule = get(&plan, Kind::DestinationRule, "shop", "mtls-sni-r-shop-svc-cluster-local");
    let tls = &rule.spec.value()["trafficPolicy"]["portLevelSettings"][0]["tls"];
    assert_eq!(
        *tls,
        json!({ "mode": "ISTIO_MUTUAL", "sni": "r-9080.shop.svc.cluster.local",
            "subjectAltNames": ["spiffe://mesh.east/ns/shop/sa/r", THERE] })
    );
}

#[test]
fn what_istio_believes_by_itself_needs_no_rule() {
    let same = "spiffe://mesh.east/ns/shop/sa/r";
    let one_domain = |world: &mut Value| {
        world["federation"]["remote"][0]["identity"]["trustDomain"] = json!("mesh.east");
    };
    let plan = joined(json!([told(HOST, Some(same))]), Some(pods("r", true)), one_domain);
    assert_eq!((count(&plan, Kind::DestinationRule), count(&plan, Kind::WorkloadEntry)), (0, 2));
    // No pods here: only those there are believed.
    let plan = joined(json!([told(HOST, Some(THERE))]), None, |_| {});
    let rule = get(&plan, Kind::DestinationRule, "shop", "mtls-san-r-shop-svc-cluster-local").spec.value();
    let tls = &rule["trafficPolicy"]["portLevelSettings"][0]["tls"];
    assert_eq!(tls["subjectAltNames"], json!([THERE]));
}

#[test]
fn a_local_pod_without_a_proxy_is_never_asked_for_mutual_tls() {
    let plan = joined(json!([told(HOST, Some(THERE))]), Some(pods("r", true)), |_| {});
    assert_eq!((count(&plan, Kind::DestinationRule), count(&plan, Kind::WorkloadEntry)), (0, 0));
    assert_eq!(reasons(&plan), [Reason::NotJoined]);
}

#[test]
fn a_peer_that_tells_no_identities_is_told_of() {
    let plan = joined(json!([offer(HOST)]), Some(pods("r", false)), |_| {});
    assert_eq!((count(&plan, Kind::WorkloadEntry), reasons(&plan)), (2, vec![Reason::NoIdentities]));
    // One of ours without pods has nobody to tell of.
    let plan = joined(json!([told(HOST, None)]), Some(pods("r", false)), |_| {});
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn a_service_of_the_same_pods_gets_no_foreign_endpoints() {
    let twin = |change: &dyn Fn(&mut Value)| {
        let mut twin = service("shop", "r-headless", json!({}), http());
        twin["spec"]["selector"] = json!({ "app": "r" });
        twin["spec"]["clusterIP"] = json!("None");
        change(&mut twin);
        twin
    };
    let with = |twin: Value, offers: Value| {
        joined(offers, None, |world| world["services"].as_array_mut().unwrap().push(twin))
    };
    let alone = || json!([told(HOST, None)]);
    // Not as workloads, which both would select: as endpoints of the one name.
    let apart = |plan: &Plan| {
        assert_eq!((count(plan, Kind::WorkloadEntry), reasons(plan)), (0, vec![]));
        let entry = get(plan, Kind::ServiceEntry, "shop", "import-r-shop-svc-cluster-local");
        let owner = Owner::Imported { namespace: "shop".into(), name: "r-shop-svc-cluster-local".into() };
        assert_eq!(entry.owner, owner);
        entry.spec.value()
    };
    let entry = apart(&with(twin(&|_| {}), alone()));
    assert_eq!((&entry["hosts"], &entry["resolution"]), (&json!([HOST]), &json!("STATIC")));
    assert_eq!(entry["ports"], json!([{ "name": "http", "number": 9080, "protocol": "HTTP" }]));
    let reached: Vec<&Value> =
        entry["endpoints"].as_array().unwrap().iter().map(|endpoint| &endpoint["ports"]["http"]).collect();
    assert_eq!(reached, [&json!(443), &json!(443)]);
    // A gateway whose name is not resolved yet: what is there stays as it is.
    let mut value = json!({
        "federation": { "local": east(), "remote": [west()] },
        "rules": { "import": [{ "meshID": "west" }] },
        "services": [service("shop", "r", json!({}), http()), twin(&|_| {})],
        "peers": { "west": alone() },
    });
    value["federation"]["remote"][0]["ingress"]["addresses"] = json!(["gate.west.example"]);
    let plan = plan(&world(value));
    assert_eq!(plan.held, [("shop".to_owned(), "import-r-shop-svc-cluster-local".to_owned())].into());
    assert!(plan.objects.iter().all(|object| object.name != "import-r-shop-svc-cluster-local"));
    // Another namespace, other pods, more labels than ours, no pods at all: no concern of theirs.
    let others: [&dyn Fn(&mut Value); 4] = [
        &|twin| twin["metadata"]["namespace"] = json!("zoo"),
        &|twin| twin["spec"]["selector"] = json!({ "app": "s" }),
        &|twin| twin["spec"]["selector"] = json!({ "app": "r", "tier": "admin" }),
        &|twin| twin["spec"]["selector"] = json!({}),
    ];
    for change in others {
        let plan = with(twin(change), alone());
        assert_eq!((count(&plan, Kind::WorkloadEntry), reasons(&plan)), (2, vec![]));
    }
    // Imported from the same mesh with the same ports: the gateway there answers for both.
    let canary = twin(&|twin| {
        twin["metadata"]["name"] = json!("r-canary");
        twin["spec"]["clusterIP"] = json!("10.96.0.7");
    });
    let both = json!([told(HOST, None), told("r-canary.shop.svc.cluster.local", None)]);
    let plan = with(canary.clone(), both);
    assert_eq!((count(&plan, Kind::WorkloadEntry), reasons(&plan)), (4, vec![]));
    // The other one is not offered.
    apart(&with(canary, alone()));
}

#[test]
fn what_leaves_beside_the_egress_gateway_is_told() {
    let plan = joined(json!([told(HOST, None)]), None, |world| {
        world["federation"]["local"]["egress"] = json!({ "gateway": { "selector": { "app": "egress" } } });
    });
    assert_eq!(reasons(&plan), [Reason::NotThroughEgress]);
}

#[test]
fn an_import_under_another_name_is_kept_beside_its_service() {
    let host = "r.shop.svc.mesh.global";
    let plan = joined(json!([told(host, Some(THERE))]), None, |_| {});
    let imported = get(&plan, Kind::ImportedService, "shop", "r-shop-svc-mesh-global");
    assert_eq!(imported.spec.value()["namespace"], "shop");
    let entry = get(&plan, Kind::ServiceEntry, "shop", "import-r-shop-svc-mesh-global");
    let owner = Owner::Imported { namespace: "shop".into(), name: "r-shop-svc-mesh-global".into() };
    assert_eq!(entry.owner, owner);
    // Without the Service here: with the control plane.
    let plan = joined(json!([told(host, Some(THERE))]), None, |world| world["services"] = json!([]));
    get(&plan, Kind::ImportedService, "istio-system", "r-shop-svc-mesh-global");
    get(&plan, Kind::ServiceEntry, "istio-system", "import-r-shop-svc-mesh-global");
}

#[test]
fn a_name_of_its_own_believes_both_sides_and_nobody_else() {
    let alias = |offers: Value, pods: Option<Backends>| {
        let plan = joined(offers, pods, |world| {
            let dns = json!({ "searchDomain": "mesh.global" });
            world["rules"]["export"] = json!({ "serviceList": ["shop/r"], "dnsSettings": dns });
        });
        let entry = get(&plan, Kind::ServiceEntry, "istio-system", "export-r-mesh-global").spec.value();
        assert_eq!(entry["endpoints"].as_array().unwrap().len(), 3);
        (entry["subjectAltNames"].clone(), reasons(&plan))
    };
    let here = "spiffe://mesh.east/ns/shop/sa/till";
    let offered = |identity| json!([told("r.mesh.global", identity)]);
    assert_eq!(alias(offered(Some(THERE)), Some(pods("till", false))), (json!([here, THERE]), vec![]));
    assert_eq!(alias(offered(Some(THERE)), None), (json!([THERE]), vec![]));
    let unknown = Backends { addresses: ["10.0.0.1".to_owned()].into(), ..Backends::default() };
    assert_eq!(alias(offered(Some(THERE)), Some(unknown)), (Value::Null, vec![Reason::NoIdentities]));
    let original = json!([offer("r.mesh.global")]);
    assert_eq!(alias(original, Some(pods("till", false))), (Value::Null, vec![Reason::NoIdentities]));
}
