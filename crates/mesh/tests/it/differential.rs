//! Generated inputs in the original's own form, rendered by us and, independently, by the tables that
//! say what the original makes of them. What the original does wrong is left out of the inputs: the
//! table of defects has it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use tarbet_mesh::offline::render_legacy;

/// Objects by kind, namespace and name: version and spec.
type Objects = BTreeMap<(String, String, String), (String, Value)>;

#[derive(Debug, Clone)]
struct Service {
    namespace: &'static str,
    name: &'static str,
    labels: BTreeMap<&'static str, &'static str>,
    ports: BTreeMap<u16, &'static str>,
}

#[derive(Debug, Clone)]
struct Remote {
    addresses: Vec<&'static str>,
    port: Option<u16>,
    router: bool,
    offers: Vec<Service>,
}

#[derive(Debug, Clone)]
struct Input {
    plane: &'static str,
    router: bool,
    gateway: Option<(u16, &'static str)>,
    selectors: Vec<BTreeMap<&'static str, &'static str>>,
    services: Vec<Service>,
    remotes: Vec<Remote>,
}

const MESHES: [&str; 2] = ["west", "central"];

fn labels(most: usize) -> impl Strategy<Value = BTreeMap<&'static str, &'static str>> {
    let (keys, values) = (vec!["app", "tier", "export"], vec!["a", "b", "true"]);
    prop::collection::btree_map(prop::sample::select(keys), prop::sample::select(values), 0..=most)
}

fn services(most: usize) -> impl Strategy<Value = Vec<Service>> {
    let (names, namespaces) = (vec!["pay", "ratings", "reviews"], vec!["shop", "bookinfo"]);
    let ports = prop::collection::btree_map(
        prop::sample::select(vec![80, 9080, 9443]),
        prop::sample::select(vec!["http", "grpc", "tcp"]),
        1..=2,
    );
    let place = (prop::sample::select(namespaces), prop::sample::select(names));
    let rest = (labels(3), ports);
    prop::collection::btree_map(place, rest, 0..=most).prop_map(|all| {
        let service = |((namespace, name), (labels, ports)): ((_, _), (_, BTreeMap<u16, &'static str>))| {
            // Names of ports are unique within a service.
            let mut seen = BTreeSet::new();
            let ports = ports.into_iter().filter(|(_, name)| seen.insert(*name)).collect();
            Service { namespace, name, labels, ports }
        };
        all.into_iter().map(service).collect()
    })
}

fn input() -> impl Strategy<Value = Input> {
    let addresses = prop::sample::select(vec![
        vec![],
        vec!["192.0.2.1"],
        vec!["192.0.2.1", "192.0.2.2"],
        vec!["2001:db8::1"],
        vec!["router.example.com"],
    ]);
    let remote = (addresses, prop::option::of(1..=65_535u16), any::<bool>(), services(3))
        .prop_map(|(addresses, port, router, offers)| Remote { addresses, port, router, offers });
    (
        prop::sample::select(vec!["istio-system", "mesh"]),
        any::<bool>(),
        prop::option::of((1..=65_535u16, prop::sample::select(vec!["tls", "tls-passthrough"]))),
        // The original takes an empty selector for everything, and so do we.
        prop::collection::vec(labels(2), 0..=2),
        services(4),
        prop::collection::vec(remote, 0..=2),
    )
        .prop_map(|(plane, router, gateway, selectors, services, remotes)| Input {
            plane,
            router,
            gateway,
            selectors,
            services,
            remotes,
        })
}

fn kind(router: bool) -> &'static str {
    if router { "openshift-router" } else { "istio" }
}

fn protocol(name: &str) -> String {
    name.to_uppercase()
}

fn offered(service: &Service) -> Value {
    let ports: Vec<Value> = service
        .ports
        .iter()
        .map(|(number, name)| {
            json!({ "name": name, "number": number, "protocol": protocol(name), "targetPort": 8080 })
        })
        .collect();
    json!({ "hostname": host(service), "ports": ports, "labels": service.labels })
}

fn host(service: &Service) -> String {
    format!("{}.{}.svc.cluster.local", service.name, service.namespace)
}

/// The original's flags.
fn flags(input: &Input) -> Value {
    let service = |service: &Service| {
        let ports: Vec<Value> = service
            .ports
            .iter()
            .map(|(port, name)| json!({ "name": name, "port": port, "targetPort": 8080 }))
            .collect();
        json!({
            "metadata": { "name": service.name, "namespace": service.namespace, "labels": service.labels },
            "spec": { "selector": { "app": service.name }, "ports": ports },
        })
    };
    let mut ingress = json!({ "selector": { "app": "gw" } });
    if let Some((number, name)) = input.gateway {
        ingress["port"] = json!({ "number": number, "name": name });
    }
    let remote = |(name, remote): (&&str, &Remote)| {
        let mut value = json!({ "name": name, "network": name, "addresses": remote.addresses,
            "ingressType": kind(remote.router) });
        if let Some(port) = remote.port {
            value["port"] = json!(port);
        }
        value
    };
    let remotes: Vec<Value> = MESHES.iter().zip(&input.remotes).map(remote).collect();
    let imported: BTreeMap<&str, Vec<Value>> = MESHES
        .into_iter()
        .zip(&input.remotes)
        .map(|(name, remote)| (name, remote.offers.iter().map(offered).collect()))
        .collect();
    let selectors: Vec<Value> =
        input.selectors.iter().map(|labels| json!({ "matchLabels": labels })).collect();
    json!({
        "meshPeers": {
            "local": { "name": "east", "controlPlane": { "namespace": input.plane },
                "ingressType": kind(input.router), "gateways": { "ingress": ingress } },
            "remotes": remotes,
        },
        "exportedServiceSet": { "rules": [{ "type": "LabelSelector", "labelSelectors": selectors }] },
        "controllerNamespace": "istio-system",
        "services": input.services.iter().map(service).collect::<Vec<_>>(),
        "imported": imported,
    })
}

/// What the tables say.
fn expected(input: &Input) -> Objects {
    let mut all = Objects::new();
    let plane = input.plane;
    let mut put = |version: &str, kind: &str, namespace: &str, name: String, spec: Value| {
        let key = (kind.to_owned(), namespace.to_owned(), name);
        // Where two remotes lead to one object the first counts.
        all.entry(key).or_insert_with(|| (version.to_owned(), spec));
    };
    let istio = "networking.istio.io/v1alpha3";
    let (number, port_name) = input.gateway.unwrap_or((15443, "tls-passthrough"));
    let matches = |service: &&Service| {
        let holds = |labels: &BTreeMap<_, _>| labels.iter().all(|(k, v)| service.labels.get(k) == Some(v));
        input.selectors.iter().any(holds)
    };
    let exported: Vec<&Service> = input.services.iter().filter(matches).collect();

    // Always: what is open at the gateway, and mutual TLS for discovery.
    let discovery = "federation-discovery-service-east";
    let mut hosts: Vec<String> = exported.iter().map(|service| host(service)).collect();
    hosts.push(format!("{discovery}.istio-system.svc.cluster.local"));
    hosts.sort();
    put(
        istio,
        "Gateway",
        plane,
        "federation-ingress-gateway".into(),
        json!({
            "selector": { "app": "gw" },
            "servers": [{ "port": { "number": number, "name": port_name, "protocol": "TLS" }, "hosts": hosts,
                "tls": { "mode": "AUTO_PASSTHROUGH" } }],
        }),
    );
    put(
        "security.istio.io/v1beta1",
        "PeerAuthentication",
        "istio-system",
        "fds-strict-mtls".into(),
        json!({
            "selector": { "matchLabels": { "app.kubernetes.io/name": "federation-controller" } },
            "mtls": { "mode": "STRICT" },
        }),
    );
    if input.router {
        let mut doors = vec![(discovery, "istio-system", 15080)];
        doors.extend(
            exported.iter().flat_map(|service| {
                service.ports.keys().map(|port| (service.name, service.namespace, *port))
            }),
        );
        for (service, namespace, port) in doors {
            let readable = format!("{service}-{port}.{namespace}.svc.cluster.local");
            let sni = format!("outbound_.{port}_._.{service}.{namespace}.svc.cluster.local");
            put(
                istio,
                "EnvoyFilter",
                plane,
                format!("sni-{service}-{namespace}-{port}"),
                json!({
                    "workloadSelector": { "labels": { "app": "gw" } },
                    "configPatches": [{
                        "applyTo": "FILTER_CHAIN",
                        "match": { "listener": { "name": format!("0.0.0.0_{number}"), "filterChain": { "sni": sni } } },
                        "patch": { "operation": "MERGE", "value": { "filter_chain_match": { "server_names": [readable] } } },
                    }],
                }),
            );
            let name = format!("{service}-{namespace}-{port}-to-federation-ingress-gateway");
            put(
                "route.openshift.io/v1",
                "Route",
                plane,
                name,
                json!({
                    "host": readable, "to": { "kind": "Service", "name": "federation-ingress-gateway" },
                    "port": { "targetPort": port_name }, "tls": { "termination": "passthrough" },
                }),
            );
        }
    }
    for (mesh, remote) in MESHES.into_iter().zip(&input.remotes) {
        imports(input, mesh, remote, &mut put);
    }
    all
}

fn imports(
    input: &Input,
    mesh: &str,
    remote: &Remote,
    put: &mut impl FnMut(&str, &str, &str, String, Value),
) {
    let (istio, plane) = ("networking.istio.io/v1alpha3", input.plane);
    let gateway = remote.port.unwrap_or(15443);
    let is_ip = remote.addresses.first().is_some_and(|first| first.parse::<std::net::IpAddr>().is_ok());
    let resolution = if is_ip { "STATIC" } else { "DNS" };
    let endpoint = |address: &str, labels: &Value, ports: &Value| json!({ "address": address, "labels": labels, "ports": ports, "network": mesh });
    let with_mode = |labels: &BTreeMap<&str, &str>| {
        let mut labels = json!(labels);
        labels["security.istio.io/tlsMode"] = json!("istio");
        labels
    };
    let fds = format!("federation-discovery-service-{mesh}.istio-system.svc.cluster.local");
    let endpoints = |labels: &Value, ports: &Value| -> Vec<Value> {
        remote.addresses.iter().map(|address| endpoint(address, labels, ports)).collect()
    };
    if !remote.addresses.is_empty() {
        put(
            istio,
            "ServiceEntry",
            plane,
            format!("federation-discovery-service-{mesh}"),
            json!({
                "hosts": [fds], "ports": [{ "name": "grpc", "number": 15080, "protocol": "GRPC" }],
                "endpoints": endpoints(&with_mode(&BTreeMap::new()), &json!({ "grpc": gateway })),
                "location": "MESH_INTERNAL", "resolution": resolution,
            }),
        );
        if remote.router {
            put(
                istio,
                "DestinationRule",
                plane,
                format!("mtls-sni-{}", fds.replace('.', "-")),
                json!({
                    "host": fds,
                    "trafficPolicy": { "tls": { "mode": "ISTIO_MUTUAL",
                        "sni": format!("federation-discovery-service-{mesh}-15080.istio-system.svc.cluster.local") } },
                }),
            );
        }
    }
    for service in &remote.offers {
        let host = host(service);
        let through: BTreeMap<&str, u16> = service.ports.values().map(|name| (*name, gateway)).collect();
        let local = input
            .services
            .iter()
            .find(|local| (local.namespace, local.name) == (service.namespace, service.name));
        match local {
            None if remote.addresses.is_empty() => {}
            None => {
                let ports: Vec<Value> = offered(service)["ports"].as_array().cloned().unwrap_or_default();
                put(
                    istio,
                    "ServiceEntry",
                    plane,
                    format!("import-{}-{mesh}", host.replace('.', "-")),
                    json!({
                        "hosts": [host], "ports": ports,
                        "endpoints": endpoints(&with_mode(&service.labels), &json!(through)),
                        "location": "MESH_INTERNAL", "resolution": resolution,
                    }),
                );
            }
            // A local Service whose ports are not all offered answers alone; the original breaks it.
            Some(local) if !local.ports.keys().all(|port| service.ports.contains_key(port)) => continue,
            // Names are resolved by a running controller only.
            Some(_) if !is_ip => {}
            Some(local) => {
                // Labels that the local Service selects by, where the original copies those of the peer.
                let labels = with_mode(&BTreeMap::from([("app", local.name)]));
                let ports: BTreeMap<&str, u16> = local.ports.values().map(|name| (*name, gateway)).collect();
                for (index, address) in remote.addresses.iter().enumerate() {
                    let name = format!("import-{mesh}-{}-{index}", service.name);
                    put(
                        istio,
                        "WorkloadEntry",
                        service.namespace,
                        name,
                        endpoint(address, &labels, &json!(ports)),
                    );
                }
            }
        }
        if remote.router {
            let settings: Vec<Value> = service
                .ports
                .keys()
                .map(|port| {
                    let sni = format!("{}-{port}.{}.svc.cluster.local", service.name, service.namespace);
                    json!({ "port": { "number": port }, "tls": { "mode": "ISTIO_MUTUAL", "sni": sni } })
                })
                .collect();
            put(
                istio,
                "DestinationRule",
                plane,
                format!("mtls-sni-{}", host.replace('.', "-")),
                json!({
                    "host": host, "trafficPolicy": { "portLevelSettings": settings },
                }),
            );
        }
    }
}

fn rendered(input: &Input) -> Objects {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flags.json");
    std::fs::write(&file, flags(input).to_string()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = |object: Value| {
        let meta = &object["metadata"];
        assert_eq!(meta["labels"], json!({ "federation.openshift-service-mesh.io/peer": "todo" }));
        let key = (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]));
        (key, (text(&object["apiVersion"]), object["spec"].clone()))
    };
    let rendered = render_legacy(&file).unwrap();
    let (count, all) = (rendered.manifests.len(), rendered.manifests.into_iter().map(object).collect());
    let all: Objects = all;
    assert_eq!(all.len(), count, "each object once");
    all
}

fn cases() -> u32 {
    300 * u32::try_from(tarbet_testbed::effort()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_we_make_of_the_originals_flags_is_what_the_tables_say(input in input()) {
        let (ours, theirs) = (rendered(&input), expected(&input));
        for (place, object) in &theirs {
            prop_assert_eq!(ours.get(place), Some(object), "{:?}", place);
        }
        let more: Vec<_> = ours.keys().filter(|place| !theirs.contains_key(*place)).collect();
        prop_assert!(more.is_empty(), "too much: {:?}", more);
    }
}
