//! What was found before makes a plan cheaper and never different.

use proptest::prelude::*;

use super::*;
use crate::model::{Backends, ServicePort, Sort};

/// One change of a world.
#[derive(Debug, Clone)]
enum Step {
    Service(Key, Option<Service>),
    Namespace(String, Option<bool>),
    ServiceExport(Key, bool),
    Pods(Key, Option<Backends>),
    Offer(String, String, Option<Offer>),
    Silent(String),
    Foreign(String, bool),
    Resolved(bool),
    Federation(usize),
    Rules(usize),
    /// The same again, as a watch that was renewed tells it.
    Retold,
    Nothing,
}

fn key() -> impl Strategy<Value = Key> {
    ("(shop|zoo|istio-system)", "[ab]")
}

fn service() -> impl Strategy<Value = Service> {
    let port = (any::<bool>(), 80u16..82, any::<bool>()).prop_map(|(named, number, tcp)| ServicePort {
        name: if named { format!("http-{number}") } else { String::new() },
        number,
        tcp,
        ..ServicePort::default()
    });
    let sort = prop_oneof![4 => Just(Sort::Cluster), 1 => Just(Sort::Headless), 1 => Just(Sort::External)];
    (any::<bool>(), "[xy]?", sort, prop::collection::vec(port, 0..3), 0i64..3).prop_map(
        |(exported, selector, sort, ports, created)| Service {
            labels: exported.then(|| ("export".to_owned(), "true".to_owned())).into_iter().collect(),
            selector: (!selector.is_empty())
                .then(|| ("app".to_owned(), selector.clone()))
                .into_iter()
                .collect(),
            sort,
            ports,
            created,
        },
    )
}

fn pods() -> impl Strategy<Value = Backends> {
    let set = |of: &'static str| prop::collection::btree_set(of, 0..3);
    let ports = prop::collection::btree_map("http-8[01]", 1u16..4, 0..2);
    (set("10\\.0\\.0\\.[1-4]"), ports, set("[vw]"), any::<bool>())
        .prop_map(|(addresses, ports, accounts, plain)| Backends { addresses, ports, accounts, plain })
}

fn hosts() -> impl Strategy<Value = String> {
    let domain = "(shop\\.svc\\.cluster\\.local|zoo\\.svc\\.cluster\\.local|shop\\.svc\\.clusterset\\.local|mesh\\.global)";
    ("[ab]", domain).prop_map(|(name, domain)| format!("{name}.{domain}"))
}

fn offers() -> impl Strategy<Value = Offer> {
    let protocol = prop_oneof![Just("HTTP"), Just("TCP"), Just("TLS")];
    (80u32..83, protocol, "(|v|bad_label)", "(|shop)", any::<bool>(), any::<bool>()).prop_map(
        |(number, protocol, label, namespace, known, endpoint)| Offer {
            hostname: String::new(),
            ports: vec![crate::model::OfferedPort {
                name: format!("http-{number}"),
                number,
                protocol: protocol.to_owned(),
                target_port: 0,
            }],
            labels: [("app".to_owned(), label)].into(),
            name: if namespace.is_empty() { String::new() } else { "a".to_owned() },
            namespace,
            subject_alt_names: known
                .then(|| "spiffe://mesh.west/ns/shop/sa/v".to_owned())
                .into_iter()
                .collect(),
            locality: String::new(),
            endpoints: endpoint.then(|| "10.9.0.1".to_owned()).into_iter().collect(),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let mesh = "(west|north)";
    prop_oneof![
        6 => (key(), prop::option::weighted(0.8, service())).prop_map(|(key, service)| Step::Service(key, service)),
        1 => ("(shop|zoo)", any::<Option<bool>>()).prop_map(|(name, labelled)| Step::Namespace(name, labelled)),
        2 => (key(), any::<bool>()).prop_map(|(key, there)| Step::ServiceExport(key, there)),
        3 => (key(), prop::option::weighted(0.8, pods())).prop_map(|(key, pods)| Step::Pods(key, pods)),
        6 => (mesh, hosts(), prop::option::weighted(0.8, offers()))
            .prop_map(|(mesh, host, offer)| Step::Offer(mesh, host, offer)),
        1 => mesh.prop_map(Step::Silent),
        1 => (hosts(), any::<bool>()).prop_map(|(host, there)| Step::Foreign(host, there)),
        1 => any::<bool>().prop_map(Step::Resolved),
        1 => (0usize..5).prop_map(Step::Federation),
        2 => (0usize..7).prop_map(Step::Rules),
        1 => Just(Step::Retold),
        1 => Just(Step::Nothing),
    ]
}

fn federation(which: usize) -> Value {
    let mut local = east();
    let mut north = json!({ "id": "north", "network": "north", "ingress": { "addresses": ["north.example"] },
        "identity": { "trustDomain": "mesh.west" } });
    match which {
        1 => local["egress"] = json!({ "gateway": { "selector": { "app": "egress" } } }),
        2 => local["ingress"]["type"] = json!("openshift-router"),
        3 => {
            local.as_object_mut().unwrap().remove("ingress");
            north["ingress"] = json!({});
        }
        4 => north["ingress"]["type"] = json!("openshift-router"),
        _ => {}
    }
    json!({ "local": local, "remote": [west(), north] })
}

fn rules(which: usize) -> Value {
    let by_label = json!([{ "matchLabels": { "export": "true" } }]);
    let import = json!([{ "meshID": "west" }, { "meshID": "north" }]);
    match which {
        0 => json!({ "export": { "serviceSelectors": by_label }, "import": import }),
        1 => json!({
            "export": { "serviceList": ["shop/*"], "dnsSettings": { "searchDomain": "mesh.global" } },
            "import": import,
        }),
        2 => json!({ "export": { "serviceExports": true }, "import": import, "serviceImports": true }),
        3 => {
            json!({ "export": { "namespaceSelectors": by_label, "serviceExports": true }, "import": import })
        }
        4 => {
            json!({ "import": [{ "meshID": "west", "serviceSelectors": [{ "matchLabels": { "app": "v" } }] }] })
        }
        5 => json!({
            "export": { "serviceList": ["shop/*", "zoo/*"], "dnsSettings": { "searchDomain": "mesh.global" } },
            "import": [{ "meshID": "nobody" }],
        }),
        _ => json!({ "export": { "serviceSelectors": by_label, "serviceList": ["zoo/a"] } }),
    }
}

impl Step {
    fn take(self, world: &mut World) {
        match self {
            Self::Service(key, Some(service)) => drop(world.services.insert(key, Arc::new(service))),
            Self::Service(key, None) => drop(world.services.remove(&key)),
            Self::Namespace(name, Some(labelled)) => {
                let labels = labelled.then(|| ("export".to_owned(), "true".to_owned()));
                world.namespaces.insert(name, Arc::new(labels.into_iter().collect()));
            }
            Self::Namespace(name, None) => drop(world.namespaces.remove(&name)),
            Self::ServiceExport(key, true) => drop(world.service_exports.insert(key)),
            Self::ServiceExport(key, false) => drop(world.service_exports.remove(&key)),
            Self::Pods(key, Some(pods)) => drop(world.backends.insert(key, Arc::new(pods))),
            Self::Pods(key, None) => drop(world.backends.remove(&key)),
            Self::Offer(mesh, host, offer) => {
                let told = world.peers.entry(mesh).or_default();
                told.retain(|offer| offer.hostname != host);
                told.extend(offer.map(|offer| Arc::new(Offer { hostname: host, ..offer })));
            }
            Self::Silent(mesh) => drop(world.peers.remove(&mesh)),
            Self::Foreign(host, true) => drop(world.foreign_hosts.insert(host)),
            Self::Foreign(host, false) => drop(world.foreign_hosts.remove(&host)),
            Self::Resolved(true) => {
                world.resolved.insert("north.example".to_owned(), vec!["192.0.2.9".parse().unwrap()]);
            }
            Self::Resolved(false) => world.resolved.clear(),
            Self::Federation(which) => {
                world.federation = Some(Arc::new(serde_json::from_value(federation(which)).unwrap()));
            }
            Self::Rules(which) => {
                world.rules = Some(Arc::new(serde_json::from_value(rules(which)).unwrap()));
            }
            Self::Retold => {
                world.services =
                    world.services.iter().map(|(key, one)| (key.clone(), Arc::clone(one))).collect();
                world.federation = world.federation.as_deref().cloned().map(Arc::new);
            }
            Self::Nothing => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn after_any_changes_it_is_what_planning_from_nothing_gives(
        first in prop::collection::vec(step(), 0..30), steps in prop::collection::vec(step(), 1..25)
    ) {
        let mut world = super::world(json!({ "federation": federation(0), "rules": rules(0) }));
        for step in first {
            step.take(&mut world);
        }
        let (mut memo, mut told) = (Memo::default(), Memo::default());
        for step in steps {
            let mut before = world.clone();
            step.clone().take(&mut world);
            let whole = plan(&world);
            let again = plan_again(&world, &mut memo);
            prop_assert_eq!(&again, &whole, "after {:?}", step);
            // Held from the last plan or not, it changes by copying or in place.
            before.services.clear();
            drop(before);
            prop_assert_eq!(exports_again(&world, &mut told), whole.exports, "after {:?}", step);
            prop_assert_eq!(told.chosen.pending(), 0, "what nobody asks for is not kept");
        }
    }
}

#[test]
fn what_one_change_costs_does_not_depend_on_how_much_there_is() {
    for count in [10, 300] {
        let services: Vec<Value> = (0..count).map(|n| service_named(&format!("s{n}"), 9080)).collect();
        let offers: Vec<Value> = (0..count).map(|n| offer(&format!("s{n}.mesh.global"))).collect();
        let mut world = super::world(json!({
            "federation": federation(0), "rules": rules(0), "services": services, "peers": { "west": offers },
        }));
        let mut memo = Memo::default();
        let first = plan_again(&world, &mut memo);
        assert_eq!((memo.chosen(), memo.rendered()), (count, count));
        let changed = observe::service(&serde_json::from_value(service_named("s1", 9081)).unwrap());
        world.services.insert(("shop".into(), "s1".into()), Arc::new(changed));
        let second = plan_again(&world, &mut memo);
        assert_eq!((memo.chosen(), memo.looked(), memo.rendered()), (1, 0, 0));
        let same = first.objects.iter().zip(&second.objects).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        // Those of discovery are made anew.
        assert!(same + 2 >= second.objects.len(), "{same} of {}", second.objects.len());
        let same = first.exports.iter().zip(&second.exports).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(same, count - 1);
    }
}

fn service_named(name: &str, port: u16) -> Value {
    super::service(
        "shop",
        name,
        json!({ "export": "true" }),
        json!([{ "name": "http", "port": port, "targetPort": 8080 }]),
    )
}
