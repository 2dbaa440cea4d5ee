//! Egress: one gateway and one VirtualService through which calls to imported services leave.
//!
//! A sidecar sends every call to an imported name to the gateway; there the name in the request
//! chooses the destination. That needs HTTP: other protocols go to the remote gateway directly.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::import::Imported;
use super::{About, Draft, Kind, Object, Owner, Reason};
use crate::model::cluster_name;

/// The gateway's Service and the two objects.
const NAME: &str = "federation-egress-gateway";
/// Protocols whose requests carry the name of the host.
const HTTP: [&str; 3] = ["HTTP", "HTTP2", "GRPC"];

pub(super) fn objects(draft: &mut Draft<'_>, imported: &[Imported<'_>]) {
    let Some(egress) = &draft.federation.local.egress else { return };
    let namespace = draft.control_plane();
    let gateway = format!("{namespace}/{NAME}");
    let (mut hosts, mut ports, mut onward) = (Vec::<String>::new(), BTreeSet::new(), Vec::new());
    for imported in imported.iter().filter(|imported| imported.joined) {
        let message =
            format!("{} runs here too; calls to other meshes bypass the egress gateway", imported.host);
        draft.find(About::Imported(imported.host.to_owned()), Reason::NotThroughEgress, message);
    }
    // A name that is here too stays with its local service.
    for imported in imported.iter().filter(|imported| imported.apart) {
        let http: Vec<u32> = imported
            .ports()
            .iter()
            .filter(|port| HTTP.contains(&port.protocol.as_str()))
            .map(|port| port.number)
            .collect();
        if http.len() < imported.ports().len() {
            let message =
                format!("ports of {} that do not speak HTTP bypass the egress gateway", imported.host);
            draft.find(About::Imported(imported.host.to_owned()), Reason::NotThroughEgress, message);
        }
        if http.is_empty() {
            continue;
        }
        // The sidecar knows the short forms too and sends them on as they are.
        hosts.extend(callings(imported.host));
        // A request names its port unless it is the usual one; a service with one port needs none.
        let usual = if http.contains(&80) { 80 } else { http[0] };
        for &port in &http {
            let matches: Vec<Value> = callings(imported.host)
                .iter()
                .flat_map(|name| {
                    let with_port = Some(format!("{name}:{port}"));
                    with_port.into_iter().chain((port == usual).then(|| name.clone()))
                })
                .map(|authority| json!({ "gateways": [gateway], "authority": { "exact": authority } }))
                .collect();
            onward.push(json!({
                "match": matches,
                "route": [{ "destination": { "host": imported.host, "port": { "number": port } } }],
            }));
        }
        ports.extend(http);
    }
    if hosts.is_empty() {
        return;
    }
    let inward: Vec<Value> = ports.iter().map(|port| json!({ "gateways": ["mesh"], "port": port })).collect();
    let mut routes = vec![json!({
        "match": inward,
        "route": [{ "destination": {
            "host": format!("{NAME}.{namespace}.svc.cluster.local"),
            "port": { "number": egress.gateway.port.number },
        } }],
    })];
    routes.extend(onward);
    let listener = json!({
        "selector": egress.gateway.selector,
        "servers": [{
            "port": { "number": egress.gateway.port.number, "name": egress.gateway.port.name, "protocol": "HTTPS" },
            // Which names pass is decided by the VirtualService: no other is bound to this gateway.
            "hosts": ["*"],
            "tls": { "mode": "ISTIO_MUTUAL" },
        }],
    });
    let service = json!({ "hosts": hosts, "gateways": ["mesh", gateway], "http": routes });
    for (kind, spec) in [(Kind::Gateway, listener), (Kind::VirtualService, service)] {
        draft.plan.objects.push(Object {
            kind,
            namespace: namespace.clone(),
            name: NAME.to_owned(),
            mesh: None,
            owner: Owner::Rules,
            spec: spec.into(),
        });
    }
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
