//! A name that is here too: other meshes become more endpoints of what runs here, and whoever answers
//! there is believed beside whoever answers here.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Imported, TLS_MODE, gateways, proof, record, said, target};
use crate::crd::Remote;
use crate::model::{Key, Labels, Offer, Service, ServicePort, Sort};
use crate::names::dashed;
use crate::plan::export::Alias;
use crate::plan::{About, Draft, Kind, Object, Owner, Reason, World};

/// A name that we export too: the entry that points at our own service gets the others' gateways.
/// False if they cannot be joined.
pub(super) fn with_alias(draft: &mut Draft<'_>, imported: &Imported<'_>, alias: &mut Alias) -> bool {
    let namespace = draft.control_plane();
    let mut spec = alias.object.spec.value();
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
    // The entry checks nobody unless it is told whom to believe, and then everybody.
    let told = imported.identities();
    match own_identities(draft, &alias.key) {
        Some(own) if !told.is_empty() => {
            spec["subjectAltNames"] = json!(union(&own, &told));
        }
        None if !told.is_empty() => {
            let message = format!(
                "who answers for {} is not checked: the pods of {}/{} are not known",
                imported.host, alias.key.0, alias.key.1
            );
            draft.find(About::Imported(imported.host.to_owned()), Reason::NoIdentities, message);
        }
        _ => untold(draft, imported, "who answers is not checked"),
    }
    alias.object.spec = spec.into();
    proof::rule(draft, imported, None, owner);
    true
}

/// A Service of the same name runs here: other meshes become more endpoints of it. False if they cannot
/// be joined.
pub(super) fn with_service(
    draft: &mut Draft<'_>,
    imported: &Imported<'_>,
    key: &Key,
    service: &Service,
    kin: &Kin<'_>,
    all: &[Imported<'_>],
) -> bool {
    let owner = record(draft, imported, key.0.clone(), said(imported));
    let told = imported.identities();
    let own = own_identities(draft, key).unwrap_or_default();
    // Unless told otherwise, Istio believes for a Service only the accounts of its local pods.
    let strangers = told.iter().any(|identity| !own.contains(*identity));
    let ruled = strangers || imported.is_routed();
    let plain = draft.world.backends.get(key).is_some_and(|pods| pods.plain);
    let why = refusal(imported, service).or_else(|| {
        (ruled && plain && !draft.is_original()).then_some(
            "a pod of the local Service has no proxy, and a rule for other meshes' identities \
             or server names would ask it for mutual TLS",
        )
    });
    if let Some(why) = why {
        let message = format!("only the local Service answers for {}: {why}", imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NotJoined, message);
        return false;
    }
    if kin.stranger(imported, key, service, all).is_some() && !draft.is_original() {
        entry(draft, imported, key, service, &owner);
    } else {
        workloads(draft, imported, key, service, &owner);
    }
    if told.is_empty() && !own.is_empty() {
        untold(
            draft,
            imported,
            "its pods are believed only with the accounts and the trust domain of the local ones",
        );
    }
    let believed = strangers.then(|| union(&own, &told));
    proof::rule(draft, imported, believed.as_ref(), owner);
    true
}

/// Why nothing can be added to a local Service, if so.
fn refusal(imported: &Imported<'_>, service: &Service) -> Option<&'static str> {
    if service.sort != Sort::Cluster || service.selector.is_empty() {
        Some("the local Service selects no pods, so nothing can be added to them")
    } else if tcp(service).any(|port| port.name.is_empty()) {
        Some("a port of the local Service has no name")
    } else if !offers_all(imported, service) {
        Some("the local Service has ports that other meshes do not offer")
    } else {
        None
    }
}

fn offers_all(imported: &Imported<'_>, service: &Service) -> bool {
    let offered: BTreeSet<u32> = imported.ports().iter().map(|port| port.number).collect();
    tcp(service).all(|port| offered.contains(&port.number.into()))
}

fn tcp(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.ports.iter().filter(|port| port.tcp)
}

/// The endpoints in other meshes, as workloads that the Service selects.
fn workloads(draft: &mut Draft<'_>, imported: &Imported<'_>, key: &Key, service: &Service, owner: &Owner) {
    for (remote, index, spec) in elsewhere(draft, imported, service) {
        let wanted = format!("import-{}-{}-{index}", remote.id, key.1);
        let identity = format!("{}/{}/{index}", remote.id, key.1);
        let name = draft.names.claim(Kind::WorkloadEntry, &key.0, &wanted, &identity);
        draft.push(Object {
            kind: Kind::WorkloadEntry,
            namespace: key.0.clone(),
            name,
            mesh: Some(remote.id.clone()),
            owner: owner.clone(),
            spec: spec.into(),
        });
    }
}

/// The same where another Service selects the same pods, and would select those workloads too: an entry of the
/// Service's own name and namespace, whose endpoints Istio adds to those of the Service and of no other.
fn entry(draft: &mut Draft<'_>, imported: &Imported<'_>, key: &Key, service: &Service, owner: &Owner) {
    let endpoints: Vec<Value> =
        elsewhere(draft, imported, service).into_iter().map(|(_, _, spec)| spec).collect();
    let (wanted, identity) =
        (format!("import-{}", dashed(imported.host)), format!("import {}", imported.host));
    let name = draft.names.claim(Kind::ServiceEntry, &key.0, &wanted, &identity);
    if imported.used.iter().any(|(remote, _)| draft.plan.unresolved.contains(&remote.id)) {
        draft.plan.held.insert((key.0.clone(), name));
        return;
    }
    if endpoints.is_empty() {
        return;
    }
    let port =
        |port: &ServicePort| json!({ "name": port.name, "number": port.number, "protocol": port.protocol() });
    let mut spec = json!({
        "hosts": [imported.host],
        "ports": tcp(service).map(port).collect::<Vec<_>>(),
        "resolution": "STATIC",
        "location": "MESH_INTERNAL",
    });
    spec["endpoints"] = Value::Array(endpoints);
    draft.push(Object {
        kind: Kind::ServiceEntry,
        namespace: key.0.clone(),
        name,
        mesh: None,
        owner: owner.clone(),
        spec: spec.into(),
    });
}

/// Each endpoint in another mesh, with the mesh it is in and its number there.
fn elsewhere<'a>(
    draft: &mut Draft<'_>,
    imported: &Imported<'a>,
    service: &Service,
) -> Vec<(&'a Remote, usize, Value)> {
    let mut all = Vec::new();
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
        let labels = worn(service);
        for (index, (address, direct)) in addresses.into_iter().enumerate() {
            let port_of = |number: u16| match direct {
                None => u32::from(remote.ingress.port()),
                Some(offer) => target(offer, number.into()),
            };
            let ports: BTreeMap<&str, u32> =
                tcp(service).map(|port| (port.name.as_str(), port_of(port.number))).collect();
            let mut spec = json!({
                "address": address, "labels": labels, "ports": ports, "network": remote.network,
            });
            if !offer.locality.is_empty() {
                spec["locality"] = json!(offer.locality);
            }
            all.push((remote, index, spec));
        }
    }
    all
}

/// The labels of workloads that a Service selects.
fn worn(service: &Service) -> Labels {
    let mut labels = service.selector.clone();
    labels.insert(TLS_MODE.0.into(), TLS_MODE.1.into());
    labels
}

/// Who answers for a Service here; nothing if it has endpoints and their pods are not known.
fn own_identities(draft: &Draft<'_>, key: &Key) -> Option<BTreeSet<String>> {
    let Some(pods) = draft.world.backends.get(key) else { return Some(BTreeSet::new()) };
    if pods.accounts.is_empty() && !pods.addresses.is_empty() {
        return None;
    }
    let domain = &draft.federation.local.trust_domain;
    Some(pods.accounts.iter().map(|account| format!("spiffe://{domain}/ns/{}/sa/{account}", key.0)).collect())
}

fn union(own: &BTreeSet<String>, told: &BTreeSet<&str>) -> BTreeSet<String> {
    own.iter().cloned().chain(told.iter().map(|&identity| identity.to_owned())).collect()
}

/// Tells that a mesh with pods does not say who they are.
fn untold(draft: &mut Draft<'_>, imported: &Imported<'_>, so: &str) {
    let silent =
        imported.used.iter().find(|(_, offer)| offer.subject_alt_names.is_empty() && !offer.is_idle());
    if let Some((remote, _)) = silent
        && !draft.is_original()
    {
        let message = format!("{} tells no identities for {}: {so}", remote.id, imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NoIdentities, message);
    }
}

/// Services by namespace and the first label of their selector.
type ByLabel<'a> = HashMap<(&'a str, &'a str, &'a str), Vec<(&'a Key, &'a Service)>>;

/// Services that select one another's pods, looked up by a label they ask for.
pub(super) struct Kin<'a> {
    world: &'a World,
    /// Made when first asked for.
    found: OnceCell<ByLabel<'a>>,
}

impl<'a> Kin<'a> {
    pub(super) fn of(world: &'a World) -> Self {
        Self { world, found: OnceCell::new() }
    }

    /// Another Service that would select the workloads added to this one, and that must not: calls to it
    /// would go to gateways which have not opened its name.
    fn stranger(
        &self,
        imported: &Imported<'_>,
        key: &Key,
        service: &Service,
        all: &[Imported<'_>],
    ) -> Option<&'a Key> {
        let labels = worn(service);
        let found = self.found.get_or_init(|| self.by_first_label());
        let sharing = labels
            .iter()
            .filter_map(|(label, value)| found.get(&(key.0.as_str(), label.as_str(), value.as_str())))
            .flatten()
            .filter(|(other, service)| {
                *other != key
                    && service.selector.iter().all(|(label, value)| labels.get(label) == Some(value))
            });
        sharing
            .filter(|(other, twin)| !is_joined_alike(imported, service, other, twin, all))
            .map(|(key, _)| *key)
            .min()
    }

    fn by_first_label(&self) -> ByLabel<'a> {
        let mut found = ByLabel::new();
        for (key, service) in &self.world.services {
            if service.sort != Sort::External
                && let Some((label, value)) = service.selector.first_key_value()
            {
                let place = (key.0.as_str(), label.as_str(), value.as_str());
                found.entry(place).or_default().push((key, service.as_ref()));
            }
        }
        found
    }
}

/// Whether another Service of the same pods is imported from the same meshes with the same ports: then
/// the same gateways answer for both.
fn is_joined_alike(
    imported: &Imported<'_>,
    service: &Service,
    other: &Key,
    twin: &Service,
    all: &[Imported<'_>],
) -> bool {
    let host = format!("{}.{}.svc.cluster.local", other.1, other.0);
    let Ok(at) = all.binary_search_by(|one| one.host.cmp(host.as_str())) else { return false };
    let theirs = &all[at];
    let meshes = |one: &Imported<'_>| -> BTreeSet<String> {
        one.used.iter().map(|(remote, _)| remote.id.clone()).collect()
    };
    let ports = |one: &Service| -> BTreeSet<(String, u16)> {
        tcp(one).map(|port| (port.name.clone(), port.number)).collect()
    };
    refusal(theirs, twin).is_none()
        && meshes(imported).is_subset(&meshes(theirs))
        && ports(service) == ports(twin)
}
