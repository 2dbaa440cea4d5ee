//! What does not speak HTTP leaves through the egress gateway without being opened there.
//!
//! The caller's sidecar speaks mutual TLS with the service itself, as it does without a gateway: it
//! sends the service's own server name and believes the service's own identities, only the connection
//! goes to the gateway, which passes it on by that server name. A sidecar tells names that speak TLS
//! apart by what the caller asks for, and others by their port alone: a route for such a port would also
//! take whatever a caller of another name there sends without saying whom it wants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{HTTP, callings};
use crate::model::OfferedPort;
use crate::names::{LABEL, dashed, fit, istio_sni, short_hash};
use crate::plan::import::Imported;
use crate::plan::{About, Draft, Reason};

/// Protocols in which the caller says whom it wants before anything else.
const TLS: [&str; 2] = ["TLS", "HTTPS"];

/// Whether a sidecar can read in the first bytes which name is called.
pub(super) fn is_tls(port: &OfferedPort) -> bool {
    TLS.contains(&port.protocol.as_str())
}

fn is_http(port: &OfferedPort) -> bool {
    HTTP.contains(&port.protocol.as_str())
}

/// The parts of the objects that are for such ports.
pub(super) struct Sealed<'a> {
    /// The gateway's Service and port.
    destination: (&'a str, u16),
    /// Who has a port that does not speak HTTP, by which a sidecar may have to tell them apart.
    rivals: BTreeMap<u32, Vec<&'a str>>,
    hosts: Vec<&'a str>,
    tcp: Vec<Value>,
    tls: Vec<Value>,
    subsets: Vec<Value>,
}

impl<'a> Sealed<'a> {
    pub(super) fn new(service: &'a str, port: u16, imported: &'a [Imported<'_>]) -> Self {
        let mut rivals = BTreeMap::<u32, Vec<&str>>::new();
        for imported in imported.iter().filter(|imported| imported.apart) {
            for port in imported.ports().iter().filter(|port| !is_http(port)) {
                rivals.entry(port.number).or_default().push(imported.host);
            }
        }
        let (destination, hosts) = ((service, port), Vec::new());
        Self { destination, rivals, hosts, tcp: Vec::new(), tls: Vec::new(), subsets: Vec::new() }
    }

    /// The ports of a name that leave this way; why others do not, is found.
    pub(super) fn take<'b>(
        &mut self,
        draft: &mut Draft<'_>,
        imported: &'a Imported<'b>,
    ) -> Vec<&'a OfferedPort> {
        let mut passed = Vec::new();
        let identities = imported.identities();
        for port in imported.ports().iter().filter(|port| !is_http(port)) {
            let other = self.rivals.get(&port.number).filter(|_| !is_tls(port));
            let other = other.and_then(|hosts| hosts.iter().find(|&&host| host != imported.host));
            let obstacle = if imported.is_routed() {
                Some("a router stands before the other mesh".to_owned())
            } else if identities.is_empty() {
                Some("who may answer is not known".to_owned())
            } else {
                other.map(|other| format!("{other} has the same port, and a sidecar knows them by no more"))
            };
            if let Some(obstacle) = obstacle {
                let message = format!(
                    "port {} of {} does not speak HTTP and bypasses the egress gateway: {obstacle}",
                    port.number, imported.host
                );
                draft.find(About::Imported(imported.host.to_owned()), Reason::NotThroughEgress, message);
                continue;
            }
            let subset = subset(imported.host, port.number);
            let (service, number) = self.destination;
            let destination = json!({ "host": service, "subset": subset, "port": { "number": number } });
            let mut calls = json!({ "gateways": ["mesh"], "port": port.number });
            let routes = if is_tls(port) {
                calls["sniHosts"] = json!(callings(imported.host));
                &mut self.tls
            } else {
                &mut self.tcp
            };
            routes.push(json!({ "match": [calls], "route": [{ "destination": destination }] }));
            self.subsets.push(json!({
                "name": subset,
                "trafficPolicy": { "tls": {
                    "mode": "ISTIO_MUTUAL",
                    "sni": istio_sni(imported.host, port.number),
                    "subjectAltNames": identities,
                } },
            }));
            passed.push(port);
        }
        if !passed.is_empty() {
            self.hosts.push(imported.host);
        }
        passed
    }

    /// Adds the gateway's server and the routes of sidecars, and gives the rule of how they speak.
    pub(super) fn finish(self, name: &str, servers: &mut Vec<Value>, calls: &mut Value) -> Option<Value> {
        if self.subsets.is_empty() {
            return None;
        }
        let (service, port) = self.destination;
        servers.push(json!({
            "port": { "number": port, "name": format!("{name}-sealed"), "protocol": "TLS" },
            "hosts": self.hosts,
            "tls": { "mode": "AUTO_PASSTHROUGH" },
        }));
        for (kind, routes) in [("tcp", self.tcp), ("tls", self.tls)] {
            if !routes.is_empty() {
                calls[kind] = json!(routes);
            }
        }
        Some(json!({ "host": service, "subsets": self.subsets }))
    }
}

/// A label that stands for one port of one name.
fn subset(host: &str, port: u32) -> String {
    let readable = fit(&format!("{}-{port}", dashed(host)), LABEL - 9);
    format!("{readable}-{}", short_hash(&format!("{host}:{port}")))
}
