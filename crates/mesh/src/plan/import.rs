//! Import: one name across meshes, and what makes it callable here.

mod agree;
mod discovery;
mod joined;
mod part;
mod proof;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};

pub(super) use self::part::{Part, part};
use super::export::Alias;
use super::memo::Specs;
use super::{About, Draft, Kind, Object, Owner, REFUSALS, Reason, RemoteView, Spec};
use crate::crd::{ImportedPort, ImportedServiceSpec, IngressType, Refusal, Remote, SaidBy};
use crate::model::{Key, Labels, Offer, OfferedPort, Service, cluster_name};
use crate::names::dashed;
use crate::select;
use crate::vet::{Reserved, vet_again};

/// The label by which Istio knows that an endpoint speaks its mutual TLS.
const TLS_MODE: (&str, &str) = ("security.istio.io/tlsMode", "istio");

/// One name that is imported.
pub(super) struct Imported<'a> {
    pub(super) host: &'a str,
    /// All that offer it, in the order of the federation's remotes.
    pub(super) said: Vec<(&'a Remote, &'a Arc<Offer>)>,
    /// Those of them that agree with the first and have somebody to answer.
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

    /// Everybody who may answer, in whichever mesh.
    pub(super) fn identities(&self) -> BTreeSet<&str> {
        self.used.iter().flat_map(|(_, offer)| offer.subject_alt_names.iter().map(String::as_str)).collect()
    }

    /// Whether clients must send server names that the router before the remote gateway can read.
    pub(super) fn is_routed(&self) -> bool {
        self.used.iter().any(|(remote, _)| remote.ingress.kind == IngressType::OpenshiftRouter)
    }
}

/// Merges what peers offer by name; of meshes that differ the first counts.
pub(super) fn merge<'a>(draft: &mut Draft<'a>) -> Vec<Imported<'a>> {
    let (world, federation, rules) = (draft.world, draft.federation, draft.rules);
    let reserved = Reserved {
        namespaces: BTreeSet::from([draft.control_plane(), world.controller_namespace.clone()]),
        hosts: BTreeSet::clone(&world.foreign_hosts),
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
        agree::agree(draft, imported);
    }
    all
}

/// The objects for all imported names; those we also export are added to the alias.
pub(super) fn objects(
    draft: &mut Draft<'_>,
    imported: &mut [Imported<'_>],
    aliases: &mut BTreeMap<String, Alias>,
) {
    let federation = draft.federation;
    for remote in super::subscribed(federation, draft.rules) {
        discovery::entry(draft, remote);
    }
    let kin = joined::Kin::of(draft.world);
    for index in 0..imported.len() {
        let (all, one) = (&*imported, &imported[index]);
        if let Some(alias) = aliases.get_mut(one.host) {
            imported[index].joined = joined::with_alias(draft, one, alias);
        } else if let Some((key, service)) = local(draft, one.host) {
            imported[index].joined = joined::with_service(draft, one, key, service, &kin, all);
        } else {
            apart(draft, one);
            imported[index].apart = true;
        }
    }
}

/// The local Service of the same name, if there is one.
fn local<'a>(draft: &mut Draft<'a>, host: &str) -> Option<(&'a Key, &'a Service)> {
    let (name, namespace) = cluster_name(host)?;
    draft.asked.note((namespace, name));
    let key = (namespace.to_owned(), name.to_owned());
    draft.world.services.get_key_value(&key).map(|(key, service)| (key, service.as_ref()))
}

/// Where the import of a name is kept: beside the Service that it is of, if that runs here too under
/// another name, else with the control plane.
fn home(draft: &mut Draft<'_>, imported: &Imported<'_>) -> String {
    let of = imported.used.first().map(|(_, offer)| offer.origin()).filter(|_| !draft.is_original());
    if let Some((name, namespace)) = of.filter(|(_, namespace)| !namespace.is_empty()) {
        draft.asked.note((namespace, name));
        if draft.world.services.contains_key(&(namespace.to_owned(), name.to_owned())) {
            return namespace.to_owned();
        }
    }
    draft.control_plane()
}

/// A name that is only elsewhere: one ServiceEntry with the gateways of all meshes that have it.
fn apart(draft: &mut Draft<'_>, imported: &Imported<'_>) {
    let namespace = home(draft, imported);
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
        draft.push(Object { kind, namespace, name, mesh: None, owner, spec });
    }
    proof::rule(draft, imported, None, owner);
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
        "location": "MESH_INTERNAL",
    });
    // Moved: there may be hundreds of them, and the macro would copy each.
    spec["endpoints"] = Value::Array(endpoints);
    let identities = imported.identities();
    if !identities.is_empty() {
        spec["subjectAltNames"] = json!(identities);
    }
    Some(spec.into())
}

/// What the ImportedService of a name says.
fn said(imported: &Imported<'_>) -> Spec {
    let (origin, origin_namespace) =
        imported.used.first().map(|(_, offer)| offer.origin()).unwrap_or_default();
    let mut labels = imported.used.first().map(|(_, offer)| offer.labels.clone()).unwrap_or_default();
    labels.insert(TLS_MODE.0.to_owned(), TLS_MODE.1.to_owned());
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
    draft.push(Object { kind, namespace, name, mesh: None, owner: owned_by, spec });
    owner
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
        || offer.ports.iter().map(|port| (port.name.as_str(), remote.ingress.port().into())).collect();
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
