//! What of the cluster's own objects the decisions need: read from the typed objects of Kubernetes.

mod backing;
mod lean;
mod mirrors;
mod recall;
mod view;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service as KubeService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::model::{Backends, Service, ServicePort, Sort};

pub(crate) use lean::Lean;
pub(crate) use mirrors::{Mirrors, Side, service_exports};
pub(crate) use recall::said;

/// A Service, trimmed.
pub(crate) fn service(service: &KubeService) -> Service {
    let spec = service.spec.clone().unwrap_or_default();
    let sort = match (spec.type_.as_deref(), spec.cluster_ip.as_deref()) {
        (Some("ExternalName"), _) => Sort::External,
        (_, Some("None")) => Sort::Headless,
        _ => Sort::Cluster,
    };
    let ports = spec.ports.unwrap_or_default().into_iter().filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        Some(ServicePort {
            name: port.name.unwrap_or_default(),
            number,
            tcp: port.protocol.is_none_or(|protocol| protocol == "TCP"),
            app_protocol: port.app_protocol,
            target: match port.target_port {
                None => Some(number),
                Some(IntOrString::Int(target)) => u16::try_from(target).ok().filter(|&target| target != 0),
                Some(IntOrString::String(_)) => None,
            },
        })
    });
    Service {
        labels: service.metadata.labels.clone().unwrap_or_default(),
        selector: spec.selector.unwrap_or_default(),
        sort,
        ports: ports.collect(),
        created: service.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
    }
}

/// A pod, trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Its service account.
    pub(crate) account: String,
    /// Whether it has a proxy, by the label of Istio's injection.
    pub(crate) meshed: bool,
}

/// A pod, trimmed.
pub(crate) fn workload(pod: &Pod) -> Workload {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("security.istio.io/tlsMode"));
    Workload {
        account: account.unwrap_or_else(|| "default".to_owned()),
        meshed: label.is_some_and(|mode| mode == "istio"),
    }
}

/// What one EndpointSlice adds to the backends of its Service; the pods are named, not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The Service.
    pub(crate) service: String,
    /// Addresses of pods that are ready.
    pub(crate) addresses: Vec<String>,
    /// Ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
    /// The pods, ready or not: an identity does not change by that.
    pub(crate) pods: Vec<String>,
}

/// An EndpointSlice, trimmed; nothing if it belongs to no Service or tells nothing about it, as the
/// one that Kubernetes makes for a Service without pods.
pub(crate) fn slice(slice: EndpointSlice) -> Option<Slice> {
    let labels = slice.metadata.labels.unwrap_or_default();
    let service = labels.get("kubernetes.io/service-name")?.clone();
    let mut kept = Slice { service, ..Slice::default() };
    for endpoint in slice.endpoints {
        if endpoint.conditions.and_then(|conditions| conditions.ready) != Some(false) {
            kept.addresses.extend(endpoint.addresses);
        }
        let pod = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
        kept.pods.extend(pod.and_then(|pod| pod.name));
    }
    for port in slice.ports.unwrap_or_default() {
        if let Some(number) = port.port.and_then(|port| u16::try_from(port).ok()) {
            kept.ports.insert(port.name.unwrap_or_default(), number);
        }
    }
    let empty = kept.addresses.is_empty() && kept.ports.is_empty() && kept.pods.is_empty();
    (!empty).then_some(kept)
}

impl Slice {
    /// Adds it to the backends of its Service.
    pub(crate) fn add_to(&self, backends: &mut Backends, pod: impl Fn(&str) -> Option<Workload>) {
        backends.addresses.extend(self.addresses.iter().cloned());
        backends.ports.extend(self.ports.iter().map(|(name, port)| (name.clone(), *port)));
        for Workload { account, meshed } in self.pods.iter().filter_map(|name| pod(name)) {
            backends.accounts.insert(account);
            backends.plain |= !meshed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read_with_its_oddities() {
        let read = |spec: serde_json::Value| {
            service(
                &serde_json::from_value(serde_json::json!({ "metadata": { "name": "x" }, "spec": spec }))
                    .unwrap(),
            )
        };
        let plain = read(serde_json::json!({ "ports": [
            { "port": 80 }, { "port": 81, "targetPort": 8081 }, { "port": 82, "targetPort": "web" },
            { "port": 53, "protocol": "UDP" },
        ] }));
        let targets: Vec<_> = plain.ports.iter().map(|port| (port.number, port.target, port.tcp)).collect();
        assert_eq!(
            targets,
            [(80, Some(80), true), (81, Some(8081), true), (82, None, true), (53, Some(53), false)]
        );
        assert_eq!(read(serde_json::json!({ "clusterIP": "None" })).sort, Sort::Headless);
        assert_eq!(
            read(serde_json::json!({ "type": "ExternalName", "externalName": "x" })).sort,
            Sort::External
        );
    }

    #[test]
    fn a_slice_tells_addresses_ports_and_pods() {
        let read = slice(
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": "x", "labels": { "kubernetes.io/service-name": "ratings" } },
                "addressType": "IPv4",
                "endpoints": [
                    { "addresses": ["10.0.0.1"], "conditions": { "ready": true }, "targetRef": { "kind": "Pod", "name": "a" } },
                    { "addresses": ["10.0.0.2"], "conditions": { "ready": false }, "targetRef": { "kind": "Pod", "name": "b" } },
                ],
                "ports": [{ "name": "http", "port": 8080 }],
            }))
            .unwrap(),
        )
        .unwrap();
        let mut backends = Backends::default();
        let pod = |name: &str| Some(Workload { account: format!("account-{name}"), meshed: name == "a" });
        read.add_to(&mut backends, pod);
        assert_eq!(backends.addresses.into_iter().collect::<Vec<_>>(), ["10.0.0.1"]);
        assert_eq!(backends.ports["http"], 8080);
        assert_eq!((backends.accounts.len(), backends.plain), (2, true), "b has no proxy");
    }

    #[test]
    fn the_slice_of_a_service_without_pods_tells_nothing() {
        let read = |ports: serde_json::Value| {
            let object = serde_json::json!({
                "metadata": { "name": "x", "labels": { "kubernetes.io/service-name": "ratings" } },
                "addressType": "IPv4", "endpoints": [], "ports": ports,
            });
            slice(serde_json::from_value(object).unwrap())
        };
        assert_eq!(read(serde_json::json!(null)), None);
        assert!(read(serde_json::json!([{ "name": "http", "port": 8080 }])).is_some());
    }
}
