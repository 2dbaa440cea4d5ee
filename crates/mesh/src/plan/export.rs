//! Export: which services, under which names, and what opens them at the gateway.

mod chosen;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

pub(super) use self::chosen::Chosen;
use super::{DISCOVERY_PORT, Draft, Kind, Object, Owner, Spec};
use crate::crd::{GatewayRef, IngressType};
use crate::model::{Backends, Key, Offer, OfferedPort, Service, Sort, cluster_name};
use crate::names::{HOST, istio_sni, router_host};
use crate::still::Still;
use crate::vet::is_system;

/// A service that is exported, with what follows from it alone.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) key: Key,
    /// When the service was made.
    created: i64,
    by: By,
    pub(super) hostname: String,
    /// Whether the name is another than the service has in its own cluster.
    alias: bool,
    pub(super) ports: Vec<OfferedPort>,
    /// What peers are told.
    offer: Arc<Offer>,
    /// What the entry of its name says, if it has one.
    entry: OnceLock<Spec>,
    /// A filter and a Route for each port, if there is a router.
    routed: OnceLock<Vec<[Spec; 2]>>,
}

/// All of them.
pub(super) type Exports = Still<Vec<Arc<Exported>>>;

/// A name of its own for an exported service.
pub(super) struct Alias {
    /// The service.
    pub(super) key: Key,
    /// The entry of the name.
    pub(super) object: Object,
}

/// Who wants a service exported, and so under which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// The rules.
    Rules,
    /// Its owner, by a ServiceExport.
    Owner,
}

/// The services that the rules name and that can be exported, by name and namespace.
pub(super) fn select(draft: &mut Draft<'_>) -> Exports {
    let mut chosen = std::mem::take(&mut draft.memo.chosen);
    let exported = chosen.choose(draft);
    draft.memo.chosen = chosen;
    exported
}

fn exportable(
    draft: &Draft<'_>,
    key: &Key,
    service: &Service,
    pods: Option<&Backends>,
    by: By,
) -> Result<Exported, String> {
    let (namespace, name) = key;
    match service.sort {
        Sort::Cluster => {}
        Sort::Headless => {
            return Err("it is headless, and one name at a gateway cannot tell its pods apart".into());
        }
        Sort::External => return Err("it is a name for something outside the mesh".into()),
    }
    let ports: Vec<OfferedPort> = service
        .ports
        .iter()
        .filter(|port| port.tcp)
        .map(|port| {
            // A named target is a number only at the pods.
            let at_pods = || pods.and_then(|pods| pods.ports.get(&port.name).copied());
            OfferedPort {
                name: port.name(),
                number: port.number.into(),
                protocol: port.protocol().to_owned(),
                target_port: port.target.or_else(at_pods).unwrap_or(0).into(),
            }
        })
        .collect();
    if ports.is_empty() {
        return Err("it has no TCP port".into());
    }
    let settings = draft.rules.export.as_ref().and_then(|export| export.dns_settings.as_ref());
    let domain = settings.and_then(|settings| settings.search_domain.as_deref());
    let hostname = match (domain, settings.is_some_and(|settings| settings.include_namespace)) {
        _ if by == By::Owner => super::clusterset::host(key),
        (None, _) => format!("{name}.{namespace}.svc.cluster.local"),
        (Some(domain), true) => format!("{name}.{namespace}.{domain}"),
        (Some(domain), false) => format!("{name}.{domain}"),
    };
    if hostname.len() > HOST {
        return Err(format!("its name would have {} characters, more than {HOST}", hostname.len()));
    }
    let own = [&draft.federation.local.control_plane.namespace, &draft.world.controller_namespace];
    if let Some((name, namespace)) = cluster_name(&hostname)
        && !draft.is_original()
        && (is_system(name, namespace) || own.iter().any(|own| *own == namespace))
    {
        return Err(format!(
            "services of {namespace} belong to each cluster for itself, and other meshes refuse them"
        ));
    }
    let offer = Arc::new(offer(draft, key, service, pods, &hostname, &ports));
    Ok(Exported {
        key: key.clone(),
        created: service.created,
        by,
        hostname,
        alias: by == By::Owner || domain.is_some(),
        ports,
        offer,
        entry: OnceLock::new(),
        routed: OnceLock::new(),
    })
}

/// What peers are told of a service.
fn offer(
    draft: &Draft<'_>,
    (namespace, name): &Key,
    service: &Service,
    pods: Option<&Backends>,
    hostname: &str,
    ports: &[OfferedPort],
) -> Offer {
    let local = &draft.federation.local;
    let identity = |account: &String| format!("spiffe://{}/ns/{namespace}/sa/{account}", local.trust_domain);
    Offer {
        hostname: hostname.to_owned(),
        ports: ports.to_vec(),
        labels: service.labels.clone(),
        name: name.clone(),
        namespace: namespace.clone(),
        subject_alt_names: pods.map(|pods| pods.accounts.iter().map(identity).collect()).unwrap_or_default(),
        locality: local.locality.clone().unwrap_or_default(),
        // Behind an ingress, addresses of pods are of no use to anybody else.
        endpoints: match pods {
            Some(pods) if local.ingress.is_none() => pods.addresses.iter().cloned().collect(),
            _ => Vec::new(),
        },
    }
}

/// What peers are told.
pub(super) fn offers(exported: &[Arc<Exported>]) -> Vec<Arc<Offer>> {
    exported.iter().map(|exported| Arc::clone(&exported.offer)).collect()
}

/// What opens the exported services, and by host the ServiceEntries of names that differ.
pub(super) fn objects(draft: &mut Draft<'_>, exported: &Exports) -> BTreeMap<String, Alias> {
    let aliases = exported.iter().filter(|exported| exported.alias);
    let aliases = aliases
        .map(|exported| {
            let object = alias(draft, exported);
            (exported.hostname.clone(), Alias { key: exported.key.clone(), object })
        })
        .collect();
    let Some(ingress) = &draft.federation.local.ingress else { return aliases };
    let gateway = ingress.gateway();
    let opened = opened(draft, &gateway, exported);
    draft.plan.objects.push(opened);
    if ingress.kind == IngressType::OpenshiftRouter {
        let (discovery, host) = (discovery(draft), discovery_host(draft));
        let specs = routed(&gateway, &host, DISCOVERY_PORT.into());
        behind_router(draft, &discovery, &host, DISCOVERY_PORT.into(), specs);
        for exported in exported {
            let (host, ports) = (&exported.hostname, &exported.ports);
            let all = || ports.iter().map(|port| routed(&gateway, host, port.number)).collect();
            for (port, specs) in ports.iter().zip(exported.routed.get_or_init(all)) {
                behind_router(draft, &exported.key, host, port.number, specs.clone());
            }
        }
    }
    aliases
}

/// Namespace and name of our own discovery.
fn discovery(draft: &Draft<'_>) -> Key {
    let name = format!("federation-discovery-service-{}", draft.federation.local.id);
    (draft.world.controller_namespace.clone(), name)
}

fn discovery_host(draft: &Draft<'_>) -> String {
    let (namespace, name) = discovery(draft);
    format!("{name}.{namespace}.svc.cluster.local")
}

/// The gateway that is open for all exported names and for discovery.
fn opened(draft: &mut Draft<'_>, gateway: &GatewayRef, exported: &Exports) -> Arc<Object> {
    if let Some((before, object)) = &draft.memo.chosen.gateway
        && before.len() == exported.len()
        && before.iter().zip(exported.iter()).all(|(a, b)| Arc::ptr_eq(a, b) || a.hostname == b.hostname)
    {
        return Arc::clone(object);
    }
    let discovery = discovery_host(draft);
    let mut hosts: Vec<&str> = exported.iter().map(|exported| exported.hostname.as_str()).collect();
    hosts.push(&discovery);
    hosts.sort_unstable();
    hosts.dedup();
    let spec = json!({
        "selector": gateway.selector,
        "servers": [{
            "port": { "number": gateway.port.number, "name": gateway.port.name, "protocol": "TLS" },
            "hosts": hosts,
            "tls": { "mode": "AUTO_PASSTHROUGH" },
        }],
    });
    let object = Arc::new(Object {
        kind: Kind::Gateway,
        namespace: draft.control_plane(),
        name: "federation-ingress-gateway".into(),
        mesh: None,
        owner: Owner::Rules,
        spec: spec.into(),
    });
    draft.memo.chosen.gateway = Some((exported.clone(), Arc::clone(&object)));
    object
}

/// A filter that lets the gateway take a name that the router can read, and a Route of that name.
fn routed(gateway: &GatewayRef, host: &str, port: u32) -> [Spec; 2] {
    let server_name = router_host(host, port);
    let filter = json!({
        "workloadSelector": { "labels": gateway.selector },
        "configPatches": [{
            "applyTo": "FILTER_CHAIN",
            "match": { "listener": {
                "name": format!("0.0.0.0_{}", gateway.port.number),
                "filterChain": { "sni": istio_sni(host, port) },
            } },
            "patch": {
                "operation": "MERGE",
                "value": { "filter_chain_match": { "server_names": [server_name] } },
            },
        }],
    });
    let route = json!({
        "host": server_name,
        "to": { "kind": "Service", "name": "federation-ingress-gateway" },
        "port": { "targetPort": gateway.port.name },
        "tls": { "termination": "passthrough" },
    });
    [filter.into(), route.into()]
}

fn behind_router(
    draft: &mut Draft<'_>,
    (service_namespace, service): &Key,
    host: &str,
    port: u32,
    [filter, route]: [Spec; 2],
) {
    let namespace = draft.control_plane();
    let identity = format!("{host}/{port}");
    let filters = format!("sni-{service}-{service_namespace}-{port}");
    let routes = format!("{service}-{service_namespace}-{port}-to-federation-ingress-gateway");
    for (kind, wanted, spec) in [(Kind::EnvoyFilter, filters, filter), (Kind::Route, routes, route)] {
        let name = draft.names.claim(kind, &namespace, &wanted, &identity);
        let namespace = namespace.clone();
        draft.push(Object { kind, namespace, name, mesh: None, owner: Owner::Rules, spec });
    }
}

/// A name of its own for a local service. Its gateway chain exists only if Istio knows the host as
/// a service; an entry in this namespace cannot select pods of another, so it points at the service.
fn alias(draft: &mut Draft<'_>, exported: &Exported) -> Object {
    let host = &exported.hostname;
    let namespace = draft.world.controller_namespace.clone();
    let wanted = format!("export-{}", crate::names::dashed(host));
    let name = draft.names.claim(Kind::ServiceEntry, &namespace, &wanted, &format!("export {host}"));
    let spec = exported.entry.get_or_init(|| entry(&draft.federation.local.network, exported)).clone();
    Object { kind: Kind::ServiceEntry, namespace, name, mesh: None, owner: Owner::Rules, spec }
}

fn entry(network: &str, exported: &Exported) -> Spec {
    let (service_namespace, service) = &exported.key;
    let endpoint = json!({
        "address": format!("{service}.{service_namespace}.svc.cluster.local"),
        "labels": { "security.istio.io/tlsMode": "istio" },
        "network": network,
        "ports": exported.ports.iter().map(|port| (port.name.clone(), port.number)).collect::<BTreeMap<_, _>>(),
    });
    let ports: Vec<Value> = exported
        .ports
        .iter()
        .map(|port| json!({ "name": port.name, "number": port.number, "protocol": port.protocol }))
        .collect();
    let spec = json!({
        "hosts": [exported.hostname],
        "location": "MESH_INTERNAL",
        "resolution": "DNS",
        "ports": ports,
        "endpoints": [endpoint],
    });
    spec.into()
}
