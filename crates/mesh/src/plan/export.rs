//! Export: which services, under which names, and what opens them at the gateway.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{About, DISCOVERY_PORT, Draft, Kind, Object, Owner, Reason};
use crate::crd::{GatewayRef, IngressType};
use crate::model::{Key, Offer, OfferedPort, Service, Sort, cluster_name};
use crate::names::{HOST, istio_sni, router_host};
use crate::vet::is_system;

/// A service that is exported.
pub(super) struct Exported<'a> {
    key: &'a Key,
    service: &'a Service,
    pub(super) hostname: String,
    /// Whether the name is another than the service has in its own cluster.
    alias: bool,
    pub(super) ports: Vec<OfferedPort>,
}

/// A name of its own for an exported service.
pub(super) struct Alias<'a> {
    /// The service.
    pub(super) key: &'a Key,
    /// The entry of the name.
    pub(super) object: Object,
}

/// Who wants a service exported, and so under which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The rules.
    Rules,
    /// Its owner, by a ServiceExport.
    Owner,
}

/// The services that the rules name and that can be exported, by name and namespace.
pub(super) fn select<'a>(draft: &mut Draft<'a>) -> Vec<Exported<'a>> {
    let world = draft.world;
    let Some(export) = &draft.rules.export else { return Vec::new() };
    let blank = crate::model::Labels::new();
    let mut chosen = Vec::new();
    for (key, service) in &world.services {
        let (namespace, name) = key;
        let labels = world.namespaces.get(namespace).map_or(&blank, AsRef::as_ref);
        // These two are everywhere, and each cluster has its own.
        let everywhere = (namespace == "default" && name == "kubernetes")
            || (namespace == &world.controller_namespace
                && name.starts_with("federation-discovery-service-"));
        let named = export.names(namespace, name, &service.labels, labels).then_some(By::Rules);
        let owned = (export.service_exports && world.service_exports.contains(key)).then_some(By::Owner);
        for by in named.into_iter().chain(owned).filter(|_| !everywhere) {
            match exportable(draft, key, service, by) {
                Ok(exported) => chosen.push(exported),
                Err(why) => {
                    let about = if by == By::Rules { About::Rules } else { About::Export(key.clone()) };
                    let message = format!("{namespace}/{name} is not exported: {why}");
                    draft.find(about, Reason::NotExportable, message);
                }
            }
        }
        if everywhere && owned.is_some() {
            let message = format!("{namespace}/{name} is not exported: each cluster has its own");
            draft.find(About::Export(key.clone()), Reason::NotExportable, message);
        }
    }
    if export.service_exports {
        for key in world.service_exports.iter().filter(|key| !world.services.contains_key(key)) {
            let message = format!("there is no Service {}/{}", key.0, key.1);
            draft.find(About::Export(key.clone()), Reason::NoService, message);
        }
    }
    distinct(draft, chosen)
}

fn exportable<'a>(
    draft: &Draft<'a>,
    key: &'a Key,
    service: &'a Service,
    by: By,
) -> Result<Exported<'a>, String> {
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
            let at_pods =
                || draft.world.backends.get(key).and_then(|pods| pods.ports.get(&port.name).copied());
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
    let alias = by == By::Owner || domain.is_some();
    Ok(Exported { key, service, hostname, alias, ports })
}

/// Of services that want one name the oldest has it: a newcomer must not take over its callers.
fn distinct<'a>(draft: &mut Draft<'a>, mut chosen: Vec<Exported<'a>>) -> Vec<Exported<'a>> {
    chosen.sort_by(|a, b| {
        (&a.hostname, a.service.created, a.key).cmp(&(&b.hostname, b.service.created, b.key))
    });
    let mut kept: Vec<Exported<'a>> = Vec::with_capacity(chosen.len());
    for exported in chosen {
        match kept.last() {
            // The rules and its owner want the same.
            Some(holder) if holder.hostname == exported.hostname && holder.key == exported.key => {}
            Some(holder) if holder.hostname == exported.hostname => {
                let ((namespace, name), (held_in, held_by)) = (exported.key, holder.key);
                let host = &exported.hostname;
                let message = format!(
                    "{namespace}/{name} is not exported: {held_in}/{held_by} is older and has the name {host}; \
                     set dnsSettings.includeNamespace to export both"
                );
                draft.find(About::Rules, Reason::NameTaken, message);
            }
            _ => kept.push(exported),
        }
    }
    kept
}

/// What peers are told.
pub(super) fn offers(draft: &Draft<'_>, exported: &[Exported<'_>]) -> Vec<Offer> {
    let local = &draft.federation.local;
    let offer = |exported: &Exported<'_>| {
        let (namespace, name) = exported.key;
        let pods = draft.world.backends.get(exported.key);
        let identity =
            |account: &String| format!("spiffe://{}/ns/{namespace}/sa/{account}", local.trust_domain);
        Offer {
            hostname: exported.hostname.clone(),
            ports: exported.ports.clone(),
            labels: exported.service.labels.clone(),
            name: name.clone(),
            namespace: namespace.clone(),
            subject_alt_names: pods
                .map(|pods| pods.accounts.iter().map(identity).collect())
                .unwrap_or_default(),
            locality: local.locality.clone().unwrap_or_default(),
            // Behind an ingress, addresses of pods are of no use to anybody else.
            endpoints: match pods {
                Some(pods) if local.ingress.is_none() => pods.addresses.iter().cloned().collect(),
                _ => Vec::new(),
            },
        }
    };
    exported.iter().map(offer).collect()
}

/// What opens the exported services, and by host the ServiceEntries of names that differ.
pub(super) fn objects<'a>(draft: &mut Draft<'a>, exported: &[Exported<'a>]) -> BTreeMap<String, Alias<'a>> {
    let aliases = exported.iter().filter(|exported| exported.alias);
    let aliases = aliases
        .map(|exported| {
            let object = alias(draft, exported);
            (exported.hostname.clone(), Alias { key: exported.key, object })
        })
        .collect();
    let Some(ingress) = &draft.federation.local.ingress else { return aliases };
    let gateway = ingress.gateway();
    let discovery = (
        format!("federation-discovery-service-{}", draft.federation.local.id),
        draft.world.controller_namespace.clone(),
    );
    let discovery_host = format!("{}.{}.svc.cluster.local", discovery.0, discovery.1);
    let mut hosts: Vec<&str> = exported.iter().map(|exported| exported.hostname.as_str()).collect();
    hosts.push(&discovery_host);
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
    let namespace = draft.control_plane();
    draft.plan.objects.push(Object {
        kind: Kind::Gateway,
        namespace,
        name: "federation-ingress-gateway".into(),
        mesh: None,
        owner: Owner::Rules,
        spec: spec.into(),
    });
    if ingress.kind == IngressType::OpenshiftRouter {
        behind_router(draft, &gateway, &discovery.0, &discovery.1, &discovery_host, DISCOVERY_PORT.into());
        for exported in exported {
            let (namespace, name) = exported.key;
            for port in &exported.ports {
                behind_router(draft, &gateway, name, namespace, &exported.hostname, port.number);
            }
        }
    }
    aliases
}

/// A Route whose name the router can read, and a filter that lets the gateway take it.
fn behind_router(
    draft: &mut Draft<'_>,
    gateway: &GatewayRef,
    service: &str,
    service_namespace: &str,
    host: &str,
    port: u32,
) {
    let namespace = draft.control_plane();
    let server_name = router_host(host, port);
    let identity = format!("{host}/{port}");
    let push = |draft: &mut Draft<'_>, kind, wanted: String, spec: Value| {
        let name = draft.names.claim(kind, &namespace, &wanted, &identity);
        let namespace = namespace.clone();
        draft.plan.objects.push(Object {
            kind,
            namespace,
            name,
            mesh: None,
            owner: Owner::Rules,
            spec: spec.into(),
        });
    };
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
    push(draft, Kind::EnvoyFilter, format!("sni-{service}-{service_namespace}-{port}"), filter);
    let route = json!({
        "host": server_name,
        "to": { "kind": "Service", "name": "federation-ingress-gateway" },
        "port": { "targetPort": gateway.port.name },
        "tls": { "termination": "passthrough" },
    });
    let wanted = format!("{service}-{service_namespace}-{port}-to-federation-ingress-gateway");
    push(draft, Kind::Route, wanted, route);
}

/// A name of its own for a local service. Its gateway chain exists only if Istio knows the host as
/// a service; an entry in this namespace cannot select pods of another, so it points at the service.
fn alias(draft: &mut Draft<'_>, exported: &Exported<'_>) -> Object {
    let (service_namespace, service) = exported.key;
    let host = &exported.hostname;
    let namespace = draft.world.controller_namespace.clone();
    let wanted = format!("export-{}", crate::names::dashed(host));
    let name = draft.names.claim(Kind::ServiceEntry, &namespace, &wanted, &format!("export {host}"));
    let endpoint = json!({
        "address": format!("{service}.{service_namespace}.svc.cluster.local"),
        "labels": { "security.istio.io/tlsMode": "istio" },
        "network": draft.federation.local.network,
        "ports": exported.ports.iter().map(|port| (port.name.clone(), port.number)).collect::<BTreeMap<_, _>>(),
    });
    let ports: Vec<Value> = exported
        .ports
        .iter()
        .map(|port| json!({ "name": port.name, "number": port.number, "protocol": port.protocol }))
        .collect();
    let spec = json!({
        "hosts": [host],
        "location": "MESH_INTERNAL",
        "resolution": "DNS",
        "ports": ports,
        "endpoints": [endpoint],
    });
    Object { kind: Kind::ServiceEntry, namespace, name, mesh: None, owner: Owner::Rules, spec: spec.into() }
}
