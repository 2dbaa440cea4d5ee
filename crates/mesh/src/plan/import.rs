//! Import: one name across meshes, and what makes it callable here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::memo::Specs;
use super::{About, DISCOVERY_PORT, Draft, Kind, Object, Owner, REFUSALS, Reason, RemoteView, Spec};
use crate::crd::{ImportedPort, ImportedServiceSpec, IngressType, Refusal, Remote, SaidBy};
use crate::model::{Key, Labels, Offer, OfferedPort, Service, Sort, cluster_name};
use crate::names::{dashed, router_host};
use crate::select;
use crate::vet::{Reserved, vet_again};

/// The label by which Istio knows that an endpoint speaks its mutual TLS.
const TLS_MODE: (&str, &str) = ("security.istio.io/tlsMode", "istio");

/// One name that is imported.
pub(super) struct Imported<'a> {
    pub(super) host: &'a str,
    /// All that offer it, in the order of the federation's remotes.
    pub(super) said: Vec<(&'a Remote, &'a Arc<Offer>)>,
    /// Those of them that agree with the first.
    pub(super) used: Vec<(&'a Remote, &'a Arc<Offer>)>,
    /// Whether nothing here has the name too.
    pub(super) apart: bool,
    /// Whether something here has it too, and callers reach that and the others alike.
    pub(super) joined: bool,
}

impl Imported<'_> {
    pub(super) fn ports(&self) -> &[OfferedPort] {
        self.used.first().map_or(&[], |(_, offer)| &offer.ports)
    }
}

/// Merges what peers offer by name; of meshes that differ the first counts.
pub(super) fn merge<'a>(draft: &mut Draft<'a>) -> Vec<Imported<'a>> {
    let (world, federation, rules) = (draft.world, draft.federation, draft.rules);
    let reserved = Reserved {
        namespaces: BTreeSet::from([draft.control_plane(), world.controller_namespace.clone()]),
        hosts: world.foreign_hosts.clone(),
    };
    for import in &rules.import {
        if !federation.remote.iter().any(|remote| remote.id == import.mesh_id) {
            let message =
                format!("the rules import from `{}`, which is no remote of the federation", import.mesh_id);
            draft.find(About::Rules, Reason::UnknownMesh, message);
        }
    }
    let mut by_host: BTreeMap<(&str, usize), Imported<'a>> = BTreeMap::new();
    for (index, remote) in super::subscribed(federation, rules).into_iter().enumerate() {
        let Some(offers) = world.peers.get(&remote.id) else { continue };
        let seen = draft.memo.seen.entry(remote.id.clone()).or_default();
        let (good, refused) = vet_again(remote, offers, &reserved, seen);
        let told = refused.iter().take(REFUSALS).map(|(offer, reason)| Refusal {
            hostname: offer.hostname.chars().take(100).collect(),
            reason: reason.clone(),
        });
        let view = RemoteView {
            offered: offers.len(),
            imported: 0,
            refused: refused.len(),
            refusals: told.collect(),
        };
        draft.plan.remotes.insert(remote.id.clone(), view);
        let import = rules.import.iter().find(|import| import.mesh_id == remote.id);
        let selectors = import.map_or(&[][..], |import| &import.service_selectors);
        for offer in good {
            if !selectors.is_empty() && !select::any(selectors, &offer.labels) {
                continue;
            }
            // The original keeps meshes apart, in their order.
            let mesh = if draft.is_original() { index } else { 0 };
            let fresh = || Imported {
                host: &offer.hostname,
                said: Vec::new(),
                used: Vec::new(),
                apart: false,
                joined: false,
            };
            by_host.entry((&offer.hostname, mesh)).or_insert_with(fresh).said.push((remote, offer));
        }
    }
    let views = &draft.plan.remotes;
    draft.memo.seen.retain(|mesh, _| views.contains_key(mesh));
    let mut all: Vec<Imported<'a>> = by_host.into_values().collect();
    for imported in &mut all {
        agree(draft, imported);
    }
    all
}

/// Keeps the meshes that agree with the first one.
fn agree<'a>(draft: &mut Draft<'a>, imported: &mut Imported<'a>) {
    let host = imported.host;
    let Some(&(first, model)) = imported.said.first() else { return };
    for &(remote, offer) in &imported.said {
        let why = if Arc::ptr_eq(offer, model) {
            None
        } else if !same_ports(offer, model) {
            Some("has other ports")
        } else if offer.labels != model.labels {
            Some("has other labels")
        } else if offer.subject_alt_names.is_empty() != model.subject_alt_names.is_empty() {
            Some("tells no identities, or alone tells them")
        } else if remote.ingress.kind != first.ingress.kind {
            // One client setting decides the server name for all of a host's endpoints.
            Some("is behind another type of ingress")
        } else {
            None
        };
        match why {
            None => {
                imported.used.push((remote, offer));
                if let Some(view) = draft.plan.remotes.get_mut(&remote.id) {
                    view.imported += 1;
                }
            }
            Some(why) => {
                let message = format!("{} is not used for {host}: it {why} than {}", remote.id, first.id);
                draft.find(About::Imported(host.to_owned()), Reason::Differs, message);
            }
        }
    }
}

/// Whether the ports of two meshes are equal, in whatever order: the port of the pods is a mesh's own
/// business.
fn same_ports(one: &Offer, other: &Offer) -> bool {
    fn told(port: &OfferedPort) -> (u32, &str, &str) {
        (port.number, &port.name, &port.protocol)
    }
    // Nearly always they are told in the same order.
    one.ports.iter().map(told).eq(other.ports.iter().map(told))
        || one.ports.iter().map(told).collect::<BTreeSet<_>>() == other.ports.iter().map(told).collect()
}

/// The objects for all imported names; those we also export are added to the alias.
pub(super) fn objects(
    draft: &mut Draft<'_>,
    imported: &mut [Imported<'_>],
    aliases: &mut BTreeMap<String, Object>,
) {
    let federation = draft.federation;
    for remote in super::subscribed(federation, draft.rules) {
        discovery(draft, remote);
    }
    for imported in imported {
        if let Some(alias) = aliases.get_mut(imported.host) {
            imported.joined = join_alias(draft, imported, alias);
        } else if let Some((key, service)) = local(draft, imported.host) {
            join_service(draft, imported, key, service);
        } else {
            imported.apart = true;
            apart(draft, imported);
        }
    }
}

/// How the discovery of a remote is reached through its gateway.
fn discovery(draft: &mut Draft<'_>, remote: &Remote) {
    let addresses = &remote.ingress.addresses;
    if addresses.is_empty() {
        return;
    }
    let host = remote.discovery_host();
    let namespace = draft.control_plane();
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| {
            json!({
                "address": address,
                "labels": { TLS_MODE.0: TLS_MODE.1 },
                "ports": { "grpc": remote.ingress.port },
                "network": remote.network,
            })
        })
        .collect();
    let mut spec = json!({
        "hosts": [host],
        "ports": [{ "name": "grpc", "number": DISCOVERY_PORT, "protocol": "GRPC" }],
        "endpoints": endpoints,
        "location": "MESH_INTERNAL",
        "resolution": resolution(addresses.iter().map(String::as_str)),
    });
    if !draft.is_original() {
        let names = remote.principals().into_iter().map(|principal| format!("spiffe://{principal}"));
        spec["subjectAltNames"] = json!(names.collect::<Vec<_>>());
    }
    let object = |kind, name, spec: Value| Object {
        kind,
        namespace: namespace.clone(),
        name,
        mesh: Some(remote.id.clone()),
        owner: Owner::Federation,
        spec: spec.into(),
    };
    let entry = object(Kind::ServiceEntry, format!("federation-discovery-service-{}", remote.id), spec);
    draft.plan.objects.push(entry);
    if remote.ingress.kind == IngressType::OpenshiftRouter {
        let spec = json!({
            "host": host,
            "trafficPolicy": { "tls": {
                "mode": "ISTIO_MUTUAL", "sni": router_host(&host, DISCOVERY_PORT.into()),
            } },
        });
        let wanted = format!("mtls-sni-{}", dashed(&host));
        let name = draft.names.claim(Kind::DestinationRule, &namespace, &wanted, &host);
        draft.plan.objects.push(object(Kind::DestinationRule, name, spec));
    }
}

/// The local Service of the same name, if there is one.
fn local<'a>(draft: &Draft<'a>, host: &str) -> Option<(&'a Key, &'a Service)> {
    let (name, namespace) = cluster_name(host)?;
    let key = (namespace.to_owned(), name.to_owned());
    draft.world.services.get_key_value(&key).map(|(key, service)| (key, service.as_ref()))
}

/// A name that is only elsewhere: one ServiceEntry with the gateways of all meshes that have it.
fn apart(draft: &mut Draft<'_>, imported: &Imported<'_>) {
    let namespace = draft.control_plane();
    let specs = draft.memo.take(imported).unwrap_or_else(|| {
        let found = draft.plan.findings.len();
        let specs = Specs { record: said(imported), entry: entry(draft, imported) };
        // What people must be told is found while it is made.
        if draft.plan.findings.len() == found {
            draft.memo.keep(imported, specs.clone());
        }
        specs
    });
    let owner = record(draft, imported, namespace.clone(), specs.record);
    if let Some(spec) = specs.entry {
        let original = draft.is_original();
        let only = imported.used.first().filter(|_| original).map(|(remote, _)| remote.id.as_str());
        let suffix = only.map(|mesh| format!("-{mesh}")).unwrap_or_default();
        let wanted = format!("import-{}{suffix}", dashed(imported.host));
        let identity = format!("import {}{suffix}", imported.host);
        let name = draft.names.claim(Kind::ServiceEntry, &namespace, &wanted, &identity);
        let (kind, owner) = (Kind::ServiceEntry, owner.clone());
        draft.plan.objects.push(Object { kind, namespace, name, mesh: None, owner, spec });
    }
    server_names(draft, imported, owner);
}

/// What the entry of a name says; nothing if it has no endpoint.
fn entry(draft: &mut Draft<'_>, imported: &Imported<'_>) -> Option<Spec> {
    let mut endpoints = Vec::new();
    for &(remote, offer) in &imported.used {
        endpoints.extend(gateways(draft, imported.host, remote, offer));
    }
    if endpoints.is_empty() {
        return None;
    }
    let mut spec = json!({
        "hosts": [imported.host],
        "ports": imported.ports().iter().map(entry_port).collect::<Vec<_>>(),
        "resolution": resolution(endpoints.iter().filter_map(|endpoint| endpoint["address"].as_str())),
        "endpoints": endpoints,
        "location": "MESH_INTERNAL",
    });
    let identities = identities(imported);
    if !identities.is_empty() {
        spec["subjectAltNames"] = json!(identities);
    }
    Some(spec.into())
}

/// A name that we export too: the entry that points at our own service gets the others' gateways.
/// False if they cannot be joined.
fn join_alias(draft: &mut Draft<'_>, imported: &Imported<'_>, alias: &mut Object) -> bool {
    let namespace = draft.control_plane();
    let mut spec = alias.spec.value();
    let ours: BTreeSet<(Option<u64>, Option<&str>)> = spec["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| (port["number"].as_u64(), port["name"].as_str()))
        .collect();
    let theirs =
        imported.ports().iter().map(|port| (Some(port.number.into()), Some(port.name.as_str()))).collect();
    let agree = ours == theirs;
    let owner = record(draft, imported, namespace, said(imported));
    if !agree {
        let message =
            format!("{} is exported here with other ports; the local service alone answers", imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NotJoined, message);
        return false;
    }
    for &(remote, offer) in &imported.used {
        let more = gateways(draft, imported.host, remote, offer);
        if let Some(endpoints) = spec["endpoints"].as_array_mut() {
            endpoints.extend(more);
        }
    }
    alias.spec = spec.into();
    server_names(draft, imported, owner);
    true
}

/// A Service of the same name runs here: other meshes become more endpoints of it.
fn join_service(draft: &mut Draft<'_>, imported: &Imported<'_>, key: &Key, service: &Service) {
    let owner = record(draft, imported, key.0.clone(), said(imported));
    let offered: BTreeSet<u32> = imported.ports().iter().map(|port| port.number).collect();
    let tcp = || service.ports.iter().filter(|port| port.tcp);
    let why = if service.sort != Sort::Cluster || service.selector.is_empty() {
        Some("the local Service selects no pods, so nothing can be added to them")
    } else if tcp().any(|port| port.name.is_empty()) {
        Some("a port of the local Service has no name")
    } else if !tcp().all(|port| offered.contains(&port.number.into())) {
        Some("the local Service has ports that other meshes do not offer")
    } else {
        None
    };
    if let Some(why) = why {
        let message = format!("only the local Service answers for {}: {why}", imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NotJoined, message);
        return;
    }
    for &(remote, offer) in &imported.used {
        let mut addresses: Vec<(String, Option<&Offer>)> = Vec::new();
        for address in &remote.ingress.addresses {
            match (address.parse::<IpAddr>(), draft.world.resolved.get(address)) {
                (Ok(_), _) => addresses.push((address.clone(), None)),
                (Err(_), Some(found)) => addresses.extend(found.iter().map(|ip| (ip.to_string(), None))),
                (Err(_), None) => {
                    draft.plan.unresolved.insert(remote.id.clone());
                }
            }
        }
        if remote.ingress.addresses.is_empty() {
            addresses.extend(offer.endpoints.iter().map(|address| (address.clone(), Some(offer.as_ref()))));
        }
        // Whoever carries these labels is chosen by the Service: its own selector, never a peer's labels.
        let mut labels = service.selector.clone();
        labels.insert(TLS_MODE.0.into(), TLS_MODE.1.into());
        for (index, (address, direct)) in addresses.into_iter().enumerate() {
            let port_of = |number: u16| match direct {
                None => u32::from(remote.ingress.port),
                Some(offer) => target(offer, number.into()),
            };
            let ports: BTreeMap<&str, u32> =
                tcp().map(|port| (port.name.as_str(), port_of(port.number))).collect();
            let mut spec = json!({
                "address": address, "labels": labels, "ports": ports, "network": remote.network,
            });
            if !offer.locality.is_empty() {
                spec["locality"] = json!(offer.locality);
            }
            let wanted = format!("import-{}-{}-{index}", remote.id, key.1);
            let identity = format!("{}/{}/{index}", remote.id, key.1);
            let name = draft.names.claim(Kind::WorkloadEntry, &key.0, &wanted, &identity);
            draft.plan.objects.push(Object {
                kind: Kind::WorkloadEntry,
                namespace: key.0.clone(),
                name,
                mesh: Some(remote.id.clone()),
                owner: owner.clone(),
                spec: spec.into(),
            });
        }
    }
    server_names(draft, imported, owner);
}

/// What the ImportedService of a name says.
fn said(imported: &Imported<'_>) -> Spec {
    let (origin, origin_namespace) =
        imported.used.first().map(|(_, offer)| offer.origin()).unwrap_or_default();
    let labels = imported.used.first().map(|(_, offer)| offer.labels.clone()).unwrap_or_default();
    let port = |port: &OfferedPort| ImportedPort {
        name: port.name.clone(),
        number: port.number,
        protocol: port.protocol.clone(),
    };
    let said = |&(remote, offer): &(&Remote, &Arc<Offer>)| SaidBy {
        mesh: remote.id.clone(),
        offer: Offer::clone(offer),
    };
    let spec = ImportedServiceSpec {
        name: origin.to_owned(),
        namespace: origin_namespace.to_owned(),
        hostname: imported.host.to_owned(),
        ports: imported.ports().iter().map(port).collect(),
        labels,
        meshes: imported.used.iter().map(|(remote, _)| remote.id.clone()).collect(),
        offers: imported.said.iter().map(said).collect(),
    };
    serde_json::to_value(spec).unwrap_or_default().into()
}

/// The ImportedService: what people look at, and whose end is the end of the rest.
fn record(draft: &mut Draft<'_>, imported: &Imported<'_>, namespace: String, spec: Spec) -> Owner {
    if draft.is_original() {
        return Owner::Federation;
    }
    let name = draft.names.claim(Kind::ImportedService, &namespace, &dashed(imported.host), imported.host);
    let owner = Owner::Imported { namespace: namespace.clone(), name: name.clone() };
    draft.plan.imports.insert((namespace.clone(), name.clone()), imported.host.to_owned());
    let (kind, owned_by) = (Kind::ImportedService, Owner::Federation);
    draft.plan.objects.push(Object { kind, namespace, name, mesh: None, owner: owned_by, spec });
    owner
}

/// Clients send server names that the router before the remote gateway can read.
fn server_names(draft: &mut Draft<'_>, imported: &Imported<'_>, owner: Owner) {
    if !imported.used.iter().any(|(remote, _)| remote.ingress.kind == IngressType::OpenshiftRouter) {
        return;
    }
    let namespace = draft.control_plane();
    let wanted = format!("mtls-sni-{}", dashed(imported.host));
    let name = draft.names.claim(Kind::DestinationRule, &namespace, &wanted, imported.host);
    let taken =
        |object: &Object| object.place() == (Kind::DestinationRule, namespace.as_str(), name.as_str());
    // With the original's one entry per mesh, the first mesh has made it already.
    if draft.is_original() && draft.plan.objects.iter().any(taken) {
        return;
    }
    let settings: Vec<Value> = imported
        .ports()
        .iter()
        .map(|port| {
            json!({
                "port": { "number": port.number },
                "tls": { "mode": "ISTIO_MUTUAL", "sni": router_host(imported.host, port.number) },
            })
        })
        .collect();
    let spec = json!({ "host": imported.host, "trafficPolicy": { "portLevelSettings": settings } });
    draft.plan.objects.push(Object {
        kind: Kind::DestinationRule,
        namespace,
        name,
        mesh: None,
        owner,
        spec: spec.into(),
    });
}

/// The endpoints of a service in one mesh: its gateway, or its pods where the network is shared.
fn gateways(draft: &mut Draft<'_>, host: &str, remote: &Remote, offer: &Offer) -> Vec<Value> {
    let labels = endpoint_labels(&offer.labels);
    let endpoint = |address: &String, ports: BTreeMap<&str, u32>| {
        let mut endpoint =
            json!({ "address": address, "labels": labels, "ports": ports, "network": remote.network });
        if !offer.locality.is_empty() {
            endpoint["locality"] = json!(offer.locality);
        }
        endpoint
    };
    let through =
        || offer.ports.iter().map(|port| (port.name.as_str(), remote.ingress.port.into())).collect();
    let direct = || offer.ports.iter().map(|port| (port.name.as_str(), target(offer, port.number))).collect();
    if !remote.ingress.addresses.is_empty() {
        return remote.ingress.addresses.iter().map(|address| endpoint(address, through())).collect();
    }
    if offer.endpoints.is_empty() && !draft.is_original() {
        let message = format!(
            "{} has no ingress address and tells no endpoints of {host}; set remote.ingress.addresses, \
             or remove local.ingress there if both meshes share a network",
            remote.id
        );
        draft.find(About::Imported(host.to_owned()), Reason::NoAddress, message);
    }
    offer.endpoints.iter().map(|address| endpoint(address, direct())).collect()
}

/// The port of the pods for a port of the service.
fn target(offer: &Offer, number: u32) -> u32 {
    let port = offer.ports.iter().find(|port| port.number == number);
    port.map(|port| port.target_port).filter(|&target| target != 0).unwrap_or(number)
}

/// A peer's labels, without those by which Istio would take over network, locality or mode.
fn endpoint_labels(labels: &Labels) -> Labels {
    let ours = |key: &str| {
        key == "istio-locality"
            || ["topology.istio.io/", "security.istio.io/", "topology.kubernetes.io/", "networking.istio.io/"]
                .iter()
                .any(|prefix| key.starts_with(prefix))
    };
    let kept = labels.iter().filter(|(key, _)| !ours(key)).map(|(key, value)| (key.clone(), value.clone()));
    kept.chain([(TLS_MODE.0.to_owned(), TLS_MODE.1.to_owned())]).collect()
}

/// Everybody who may answer, in whichever mesh.
fn identities<'a>(imported: &Imported<'a>) -> BTreeSet<&'a str> {
    imported.used.iter().flat_map(|(_, offer)| offer.subject_alt_names.iter().map(String::as_str)).collect()
}

fn entry_port(port: &OfferedPort) -> Value {
    let mut value = json!({ "name": port.name, "number": port.number, "protocol": port.protocol });
    if port.target_port != 0 {
        value["targetPort"] = json!(port.target_port);
    }
    value
}

fn resolution<'a>(mut addresses: impl Iterator<Item = &'a str>) -> &'static str {
    if addresses.all(|address| address.parse::<IpAddr>().is_ok()) { "STATIC" } else { "DNS" }
}
