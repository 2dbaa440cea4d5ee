//! The Multi-Cluster Services API as another way to export and import.

use super::*;

const HOST: &str = "pay.shop.svc.clusterset.local";

/// `shop/pay` runs here and has a ServiceExport; west offers these.
fn owned(offers: Value, change: impl FnOnce(&mut Value)) -> Plan {
    let services =
        json!([service("shop", "pay", json!({}), http()), service("shop", "kept", json!({}), http()),]);
    planned(services, offers, |world| {
        world["rules"]["export"] = json!({ "serviceExports": true });
        world["rules"]["serviceImports"] = json!(true);
        world["namespaces"] = json!({ "shop": {} });
        world["serviceExports"] = json!([["shop", "pay"]]);
        change(world);
    })
}

fn import<'a>(plan: &'a Plan, name: &str) -> Option<&'a Object> {
    let found = plan.objects.iter().find(|object| object.place() == (Kind::ServiceImport, "shop", name));
    found.map(AsRef::as_ref)
}

#[test]
fn its_owner_exports_a_service_and_only_if_the_rules_let_owners_do_so() {
    let plan = owned(json!([]), |_| {});
    assert_eq!(hosts(&plan), [DISCOVERY, HOST]);
    assert_eq!((plan.exports.len(), plan.exports[0].hostname.as_str()), (1, HOST));
    let alias = get(&plan, Kind::ServiceEntry, "istio-system", "export-pay-shop-svc-clusterset-local");
    assert_eq!(alias.spec.value()["endpoints"][0]["address"], "pay.shop.svc.cluster.local");
    assert_eq!(
        import(&plan, "pay").unwrap().spec,
        json!({ "type": "ClusterSetIP", "ports": [
            { "name": "http", "port": 9080, "protocol": "TCP", "appProtocol": "http" },
        ] })
    );
    assert_eq!(plan.clusters[&("shop".to_owned(), "pay".to_owned())], ["east"]);
    let closed = owned(json!([]), |world| world["rules"]["export"]["serviceExports"] = json!(false));
    assert_eq!((hosts(&closed).len(), closed.exports.len(), count(&closed, Kind::ServiceImport)), (1, 0, 0));
}

#[test]
fn rules_and_owner_each_give_it_their_name() {
    let plan = owned(json!([]), |world| world["rules"]["export"]["serviceList"] = json!(["shop/pay"]));
    assert_eq!(hosts(&plan), [DISCOVERY, "pay.shop.svc.cluster.local", HOST]);
    let router = owned(json!([]), |world| {
        world["rules"]["export"]["serviceList"] = json!(["shop/pay"]);
        world["federation"]["local"]["ingress"] = json!({ "type": "openshift-router" });
    });
    let mut places: Vec<_> = router.objects.iter().map(|object| object.place()).collect();
    places.dedup();
    assert_eq!((places.len(), count(&router, Kind::Route)), (router.objects.len(), 3));
    // Both want the same name: it is exported once, and that is no conflict.
    let same = owned(json!([]), |world| {
        world["rules"]["export"]["serviceList"] = json!(["shop/pay"]);
        world["rules"]["export"]["dnsSettings"] =
            json!({ "searchDomain": "svc.clusterset.local", "includeNamespace": true });
    });
    assert_eq!((hosts(&same), same.findings.len()), (vec![DISCOVERY.to_owned(), HOST.to_owned()], 0));
}

#[test]
fn a_service_export_that_means_nothing_is_told_so() {
    let plan = owned(json!([]), |world| {
        world["serviceExports"] = json!([["shop", "gone"], ["shop", "external"], ["default", "kubernetes"]]);
        let external = json!({ "metadata": { "namespace": "shop", "name": "external" },
            "spec": { "type": "ExternalName", "externalName": "x.example" } });
        let services = world["services"].as_array_mut().unwrap();
        services.extend([external, service("default", "kubernetes", json!({}), http())]);
    });
    let mut told: Vec<_> =
        plan.findings.iter().map(|finding| (finding.about.clone(), finding.reason)).collect();
    told.sort();
    let about = |namespace: &str, name: &str| About::Export((namespace.into(), name.into()));
    assert_eq!(
        told,
        [
            (about("default", "kubernetes"), Reason::NotExportable),
            (about("shop", "external"), Reason::NotExportable),
            (about("shop", "gone"), Reason::NoService),
        ]
    );
    assert_eq!(plan.exports.len(), 0);
}

#[test]
fn a_name_of_the_clusterset_is_imported_where_its_namespace_is() {
    let offers = json!([offer(HOST), offer("far.elsewhere.svc.clusterset.local"), offer("r.mesh.global")]);
    let plan = owned(offers.clone(), |world| world["serviceExports"] = json!([]));
    assert_eq!(count(&plan, Kind::ServiceImport), 1, "the others' namespace is not here, or they have none");
    assert_eq!(plan.clusters[&("shop".to_owned(), "pay".to_owned())], ["west"]);
    assert_eq!(count(&plan, Kind::ImportedService), 3, "all of them can be called");
    let none = owned(offers, |world| world["rules"]["serviceImports"] = json!(false));
    assert_eq!(count(&none, Kind::ServiceImport), 0);
}

#[test]
fn one_name_of_several_meshes_is_one_import_and_a_conflict_is_told() {
    let key = ("shop".to_owned(), "pay".to_owned());
    let both = owned(json!([offer(HOST)]), |_| {});
    assert_eq!(both.clusters[&key], ["east", "west"]);
    let mut other = offer(HOST);
    other["ports"][0]["number"] = json!(1);
    let differ = owned(json!([other]), |_| {});
    assert_eq!(differ.clusters[&key], ["east"], "what runs here counts");
    assert_eq!(differ.findings[0].about, About::Imported(HOST.into()));
    assert!(differ.findings[0].reason.is_conflict());
}
