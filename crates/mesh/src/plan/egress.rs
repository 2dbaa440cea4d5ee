//! Egress: one gateway and one VirtualService through which calls to imported services leave.
//!
//! A sidecar sends every HTTP call to an imported name to the gateway; there the name in the request
//! chooses the destination. What does not speak HTTP is passed on [`sealed`].

mod sealed;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use self::sealed::{Sealed, is_tls};
use super::import::Imported;
use super::{About, Draft, Kind, Object, Owner, Reason};
use crate::model::cluster_name;

/// The gateway's Service and the objects.
const NAME: &str = "federation-egress-gateway";
/// Protocols whose requests carry the name of the host.
const HTTP: [&str; 3] = ["HTTP", "HTTP2", "GRPC"];

pub(super) fn objects(draft: &mut Draft<'_>, imported: &[Imported<'_>]) {
    let Some(egress) = &draft.federation.local.egress else { return };
    let namespace = draft.control_plane();
    let gateway = format!("{namespace}/{NAME}");
    let (service, port) = (format!("{NAME}.{namespace}.svc.cluster.local"), &egress.gateway.port);
    let (mut hosts, mut ports, mut onward) = (Vec::<String>::new(), BTreeSet::new(), Vec::new());
    for imported in imported.iter().filter(|imported| imported.joined) {
        let message =
            format!("{} runs here too; calls to other meshes bypass the egress gateway", imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NotThroughEgress, message);
    }
    let mut sealed = Sealed::new(&service, port.number, imported);
    // A name that is here too stays with its local service.
    for imported in imported.iter().filter(|imported| imported.apart) {
        let http: Vec<u32> = imported
            .ports()
            .iter()
            .filter(|port| HTTP.contains(&port.protocol.as_str()))
            .map(|port| port.number)
            .collect();
        let passed = sealed.take(draft, imported);
        if !http.is_empty() || passed.iter().any(|port| is_tls(port)) {
            // The sidecar knows the short forms too and sends them on as they are.
            hosts.extend(callings(imported.host));
        } else if !passed.is_empty() {
            hosts.push(imported.host.to_owned());
        }
        onward.extend(by_name(imported.host, &http, &gateway));
        ports.extend(http);
    }
    if hosts.is_empty() {
        return;
    }
    let mut servers = Vec::new();
    let mut bound = vec![json!("mesh")];
    let mut calls = json!({ "hosts": hosts });
    if !ports.is_empty() {
        let inward: Vec<Value> =
            ports.iter().map(|port| json!({ "gateways": ["mesh"], "port": port })).collect();
        let mut routes = vec![json!({
            "match": inward,
            "route": [{ "destination": { "host": service, "port": { "number": port.number } } }],
        })];
        routes.extend(onward);
        calls["http"] = json!(routes);
        bound.push(json!(gateway));
        servers.push(json!({
            "port": { "number": port.number, "name": port.name, "protocol": "HTTPS" },
            // Which names pass is decided by the VirtualService: no other is bound to this gateway.
            "hosts": ["*"],
            "tls": { "mode": "ISTIO_MUTUAL" },
        }));
    }
    calls["gateways"] = json!(bound);
    let rule = sealed.finish(&port.name, &mut servers, &mut calls);
    let listener = json!({ "selector": egress.gateway.selector, "servers": servers });
    let specs = [(Kind::Gateway, listener), (Kind::VirtualService, calls)];
    for (kind, spec) in specs.into_iter().chain(rule.map(|rule| (Kind::DestinationRule, rule))) {
        let name = match kind {
            Kind::DestinationRule => draft.names.claim(kind, &namespace, NAME, &service),
            _ => NAME.to_owned(),
        };
        draft.push(Object {
            kind,
            namespace: namespace.clone(),
            name,
            mesh: None,
            owner: Owner::Rules,
            spec: spec.into(),
        });
    }
}

/// Where the gateway sends the requests that name this host.
fn by_name(host: &str, http: &[u32], gateway: &str) -> Vec<Value> {
    // A request names its port unless it is the usual one; a service with one port needs none.
    let usual = if http.contains(&80) { Some(80) } else { http.first().copied() };
    let route = |&port: &u32| {
        let matches: Vec<Value> = callings(host)
            .iter()
            .flat_map(|name| {
                let with_port = Some(format!("{name}:{port}"));
                with_port.into_iter().chain((Some(port) == usual).then(|| name.clone()))
            })
            .map(|authority| json!({ "gateways": [gateway], "authority": { "exact": authority } }))
            .collect();
        json!({
            "match": matches,
            "route": [{ "destination": { "host": host, "port": { "number": port } } }],
        })
    };
    http.iter().map(route).collect()
}

/// The ways to write a host in a request.
fn callings(host: &str) -> Vec<String> {
    match cluster_name(host) {
        None => vec![host.to_owned()],
        Some((name, namespace)) => {
            vec![host.to_owned(), format!("{name}.{namespace}.svc"), format!("{name}.{namespace}")]
        }
    }
}
