//! How callers here, our own controller among them, reach the discovery of a remote: over mutual TLS
//! with its identity, by whichever way.

use serde_json::{Value, json};

use super::{TLS_MODE, resolution};
use crate::crd::{IngressType, Remote};
use crate::names::{dashed, router_host};
use crate::plan::{DISCOVERY_PORT, Draft, Kind, Object, Owner};

pub(super) fn entry(draft: &mut Draft<'_>, remote: &Remote) {
    let ingress = &remote.ingress;
    // A place of its own goes before the gateway.
    let direct = draft.world.discovery.get(&remote.id);
    let places: Vec<(&str, u16)> = match direct {
        Some(place) => vec![(place.host(), place.port())],
        None => ingress.addresses.iter().map(|address| (address.as_str(), ingress.port())).collect(),
    };
    if places.is_empty() {
        return;
    }
    let host = remote.discovery_host();
    let namespace = draft.control_plane();
    let endpoints: Vec<Value> = places
        .iter()
        .map(|(address, port)| {
            json!({
                "address": address,
                "labels": { TLS_MODE.0: TLS_MODE.1 },
                "ports": { "grpc": port },
                "network": remote.network,
            })
        })
        .collect();
    let mut spec = json!({
        "hosts": [host],
        "ports": [{ "name": "grpc", "number": DISCOVERY_PORT, "protocol": "GRPC" }],
        "endpoints": endpoints,
        "location": "MESH_INTERNAL",
        "resolution": resolution(places.iter().map(|(address, _)| *address)),
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
    draft.push(entry);
    if direct.is_none() && ingress.kind == IngressType::OpenshiftRouter {
        let spec = json!({
            "host": host,
            "trafficPolicy": { "tls": {
                "mode": "ISTIO_MUTUAL", "sni": router_host(&host, DISCOVERY_PORT.into()),
            } },
        });
        let wanted = format!("mtls-sni-{}", dashed(&host));
        let name = draft.names.claim(Kind::DestinationRule, &namespace, &wanted, &host);
        draft.push(object(Kind::DestinationRule, name, spec));
    }
}
