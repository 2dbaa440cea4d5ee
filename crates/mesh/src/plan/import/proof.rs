//! What callers send and ask for when they speak with a name: the server name, and whom they believe.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Imported;
use crate::names::{dashed, router_host};
use crate::plan::{Draft, Kind, Object, Owner};

/// A rule for the clients of a name, if what Istio does by itself is not enough: a server name for a
/// router, or identities beside those of the local pods.
pub(super) fn rule(
    draft: &mut Draft<'_>,
    imported: &Imported<'_>,
    identities: Option<&BTreeSet<String>>,
    owner: Owner,
) {
    let routed = imported.is_routed();
    if !routed && identities.is_none() {
        return;
    }
    // Beside its owner: Istio looks in the namespace of the service as well as in its own.
    let namespace = match &owner {
        Owner::Imported { namespace, .. } => namespace.clone(),
        Owner::Rules | Owner::Federation => draft.control_plane(),
    };
    let wanted = format!("{}-{}", if routed { "mtls-sni" } else { "mtls-san" }, dashed(imported.host));
    let name = draft.names.claim(Kind::DestinationRule, &namespace, &wanted, imported.host);
    let taken =
        |object: &Arc<Object>| object.place() == (Kind::DestinationRule, namespace.as_str(), name.as_str());
    // With the original's one entry per mesh, the first mesh has made it already.
    if draft.is_original() && draft.plan.objects.iter().any(taken) {
        return;
    }
    let settings: Vec<Value> = imported
        .ports()
        .iter()
        .map(|port| {
            let mut tls = json!({ "mode": "ISTIO_MUTUAL" });
            if routed {
                tls["sni"] = json!(router_host(imported.host, port.number));
            }
            if let Some(identities) = identities {
                tls["subjectAltNames"] = json!(identities);
            }
            json!({ "port": { "number": port.number }, "tls": tls })
        })
        .collect();
    let spec = json!({ "host": imported.host, "trafficPolicy": { "portLevelSettings": settings } });
    draft.push(Object { kind: Kind::DestinationRule, namespace, name, mesh: None, owner, spec: spec.into() });
}
