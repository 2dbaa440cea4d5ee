//! Who may speak with discovery: peers of known identity, over mutual TLS.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::crd::Remote;

use super::{DISCOVERY_PORT, Draft, Kind, Object, Owner};

/// The label of the controller's pods.
const CONTROLLER: (&str, &str) = ("app.kubernetes.io/name", "federation-controller");

pub(super) fn objects(draft: &mut Draft<'_>) {
    let namespace = draft.world.controller_namespace.clone();
    let selector = json!({ "matchLabels": { CONTROLLER.0: CONTROLLER.1 } });
    let object = |kind, name: &str, spec: Value| Object {
        kind,
        namespace: namespace.clone(),
        name: name.to_owned(),
        mesh: None,
        owner: Owner::Rules,
        spec: spec.into(),
    };
    let mut strict = json!({ "selector": selector, "mtls": { "mode": "STRICT" } });
    // What is carried is mutual TLS of others: whoever ended it here would break it.
    let carrying = &draft.world.carrying;
    if !carrying.is_empty() {
        let through = |port: &u16| (port.to_string(), json!({ "mode": "DISABLE" }));
        strict["portLevelMtls"] = carrying.iter().map(through).collect();
    }
    let mut made = vec![object(Kind::PeerAuthentication, "fds-strict-mtls", strict)];
    if !draft.is_original() {
        let principals: Vec<String> = draft.federation.remote.iter().flat_map(Remote::principals).collect();
        let port = DISCOVERY_PORT.to_string();
        // An ALLOW policy refuses all it does not name: metrics and probes must be named too.
        let mut rules = vec![json!({ "to": [{ "operation": { "notPorts": [port] } }] })];
        if !principals.is_empty() {
            rules.push(json!({
                "from": [{ "source": { "principals": principals } }],
                "to": [{ "operation": { "ports": [port] } }],
            }));
        }
        let spec = json!({ "selector": selector, "action": "ALLOW", "rules": rules });
        made.push(object(Kind::AuthorizationPolicy, "fds-remotes-only", spec));
    }
    draft.plan.objects.extend(made.into_iter().map(Arc::new));
}
