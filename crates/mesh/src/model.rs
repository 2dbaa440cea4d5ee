//! What the decisions are made from: services as a mesh knows and offers them.

#![expect(unreachable_pub, reason = "the derive of the schema repeats each struct inside a function")]

use std::collections::{BTreeMap, BTreeSet};

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Namespace and name.
pub type Key = (String, String);
/// Labels.
pub type Labels = BTreeMap<String, String>;

/// A service as a mesh offers it to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offer {
    /// The name under which it is called.
    pub hostname: String,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<OfferedPort>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Its name where it runs; empty if the peer does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace where it runs; empty if the peer does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The identities that may answer for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subject_alt_names: Vec<String>,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub locality: String,
    /// Addresses of its pods, where meshes share a network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
}

/// A port of an offered service.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OfferedPort {
    /// Its name.
    pub name: String,
    /// Its number; not checked yet, since a peer may say anything.
    #[schemars(with = "i64")]
    pub number: u32,
    /// Its protocol, as Istio writes it.
    pub protocol: String,
    /// The port of the pods; 0 if it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(with = "i64")]
    pub target_port: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Offer {
    /// Gives ports without a name the one that Istio needs: a peer may export an unnamed port.
    #[must_use]
    pub fn tidy(mut self) -> Self {
        for port in self.ports.iter_mut().filter(|port| port.name.is_empty()) {
            port.name = format!("port-{}", port.number);
        }
        self
    }

    /// Whether nobody answers for it now: a mesh that tells where a service runs tells the identities of
    /// its pods too, if there are any.
    pub fn is_idle(&self) -> bool {
        !self.name.is_empty() && self.subject_alt_names.is_empty()
    }

    /// Its name and namespace where it runs: as told, or as a name within the cluster says.
    pub fn origin(&self) -> (&str, &str) {
        if !self.name.is_empty() {
            return (&self.name, &self.namespace);
        }
        match cluster_name(&self.hostname) {
            Some((name, namespace)) => (name, namespace),
            None => (self.hostname.split('.').next().unwrap_or_default(), ""),
        }
    }
}

/// Service and namespace of a name within the cluster.
pub fn cluster_name(hostname: &str) -> Option<(&str, &str)> {
    let (name, namespace) = hostname.strip_suffix(".svc.cluster.local")?.split_once('.')?;
    (!namespace.contains('.')).then_some((name, namespace))
}

/// A Service of this cluster, with what the decisions need of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Its labels.
    pub labels: Labels,
    /// The labels of its pods.
    pub selector: Labels,
    /// What sort of Service it is.
    pub sort: Sort,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// When it was made, in seconds; of two that want one name the older has it.
    pub created: i64,
}

/// What sort of Service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// With an address in the cluster.
    #[default]
    Cluster,
    /// Without one: its pods are addressed one by one.
    Headless,
    /// A name for something outside.
    External,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its number.
    pub number: u16,
    /// Whether it carries TCP; everything else cannot cross a gateway.
    pub tcp: bool,
    /// What the application says it speaks.
    pub app_protocol: Option<String>,
    /// The port of the pods, if it is a number.
    pub target: Option<u16>,
}

impl ServicePort {
    /// Its name, or the one Istio sees where there is none.
    pub fn name(&self) -> String {
        if self.name.is_empty() { format!("port-{}", self.number) } else { self.name.clone() }
    }

    /// What it speaks, as Istio writes it: by what the application says, else by the port's name.
    pub fn protocol(&self) -> &'static str {
        let known = |word: &str| {
            Some(match word {
                "http" => "HTTP",
                "https" => "HTTPS",
                "http2" | "kubernetes.io/h2c" => "HTTP2",
                "grpc" => "GRPC",
                "tls" => "TLS",
                "mongo" => "MONGO",
                _ => return None,
            })
        };
        let told = self.app_protocol.as_deref().map(str::to_ascii_lowercase);
        let named = self.name.split('-').next().unwrap_or_default();
        told.as_deref().and_then(known).or_else(|| known(named)).unwrap_or("TCP")
    }
}

/// The pods behind a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backends {
    /// Addresses of those that are ready.
    pub addresses: BTreeSet<String>,
    /// Their ports by the name of the Service's port.
    pub ports: BTreeMap<String, u16>,
    /// Their service accounts.
    pub accounts: BTreeSet<String>,
    /// Whether one of them has no proxy, and so no mutual TLS.
    pub plain: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_speaks() {
        let port = |name: &str, told: Option<&str>| {
            let app_protocol = told.map(str::to_owned);
            ServicePort { name: name.to_owned(), app_protocol, ..ServicePort::default() }.protocol()
        };
        for (name, expected) in [
            ("http", "HTTP"),
            ("http-web", "HTTP"),
            ("https", "HTTPS"),
            ("http2-x", "HTTP2"),
            ("grpc-api", "GRPC"),
            ("tls", "TLS"),
            ("mongo", "MONGO"),
            ("httpx", "TCP"),
            ("db", "TCP"),
            ("", "TCP"),
        ] {
            assert_eq!(port(name, None), expected, "{name}");
        }
        assert_eq!(port("db", Some("HTTP")), "HTTP");
        assert_eq!(port("http", Some("grpc")), "GRPC", "what the application says counts more");
        assert_eq!(port("http", Some("unheard-of")), "HTTP");
    }

    #[test]
    fn names_within_the_cluster() {
        assert_eq!(cluster_name("a.b.svc.cluster.local"), Some(("a", "b")));
        for other in ["a.svc.cluster.local", "x.a.b.svc.cluster.local", "a.b.svc.mesh.global", "a"] {
            assert_eq!(cluster_name(other), None, "{other}");
        }
        let told = Offer { hostname: "r.mesh.global".into(), ..Offer::default() };
        assert_eq!(told.origin(), ("r", ""));
    }
}
