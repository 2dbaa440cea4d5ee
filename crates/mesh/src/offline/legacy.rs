//! The original's flags, read as it reads them: an unknown field is a mistake.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde::Deserialize;

use crate::crd::{
    ControlPlane, Export, FederationServiceRulesSpec, GatewayPort, GatewayRef, Identity, Import, Ingress,
    IngressType, Local, MeshFederationSpec, Remote, RemoteIngress, Selector,
};
use crate::model::Offer;
use crate::observe;
use crate::plan::{Flavour, World};

/// One file with everything the original takes as flags and sees in the cluster.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Legacy {
    mesh_peers: MeshPeers,
    #[serde(default)]
    exported_service_set: Option<ExportedServiceSet>,
    /// Read and not used, as by the original: it imports everything from every peer.
    #[serde(default)]
    imported_service_set: Option<serde_json::Value>,
    #[serde(default)]
    controller_namespace: Option<String>,
    #[serde(default)]
    services: Vec<Service>,
    #[serde(default)]
    imported: BTreeMap<String, Vec<Offer>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MeshPeers {
    local: LocalPeer,
    #[serde(default)]
    remotes: Vec<RemotePeer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LocalPeer {
    name: String,
    #[serde(default)]
    control_plane: Option<PlaneRef>,
    #[serde(default)]
    gateways: Option<Gateways>,
    #[serde(default)]
    ingress_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaneRef {
    #[serde(default)]
    namespace: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gateways {
    ingress: IngressGateway,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IngressGateway {
    #[serde(default)]
    selector: BTreeMap<String, String>,
    #[serde(default)]
    port: Option<PortRef>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortRef {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    number: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RemotePeer {
    name: String,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    ingress_type: Option<String>,
    #[serde(default)]
    network: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedServiceSet {
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    #[serde(default, rename = "type")]
    _sort: Option<String>,
    #[serde(default)]
    label_selectors: Vec<Selector>,
}

fn ingress_type(text: Option<&str>) -> IngressType {
    // Only this exact word has a meaning there.
    if text == Some("openshift-router") { IngressType::OpenshiftRouter } else { IngressType::Istio }
}

impl Legacy {
    /// Whether it limits imports, which the original does not do.
    pub(super) fn limits_imports(&self) -> bool {
        self.imported_service_set.as_ref().is_some_and(|set| !set.is_null())
    }

    pub(super) fn world(self) -> World {
        let local = self.mesh_peers.local;
        let gateway = local.gateways.map(|gateways| {
            let usual = GatewayPort::default();
            let port = match gateways.ingress.port {
                None => usual,
                Some(port) => GatewayPort {
                    name: port.name.unwrap_or(usual.name),
                    number: port.number.filter(|&number| number != 0).unwrap_or(usual.number),
                },
            };
            GatewayRef { selector: gateways.ingress.selector, port }
        });
        let remote = |peer: RemotePeer| Remote {
            id: peer.name,
            network: peer.network,
            identity: Identity::default(),
            ingress: RemoteIngress {
                addresses: peer.addresses,
                // The original knows one default, whatever stands before the gateway.
                port: Some(peer.port.filter(|&port| port != 0).unwrap_or(GatewayPort::default().number)),
                kind: ingress_type(peer.ingress_type.as_deref()),
            },
            discovery: None,
        };
        let control_plane = local
            .control_plane
            .and_then(|plane| plane.namespace)
            .map_or_else(ControlPlane::default, |namespace| ControlPlane { namespace });
        let federation = MeshFederationSpec {
            local: Local {
                id: local.name,
                network: String::new(),
                trust_domain: Identity::default().trust_domain,
                ingress: Some(Ingress { kind: ingress_type(local.ingress_type.as_deref()), gateway }),
                egress: None,
                control_plane,
                locality: None,
            },
            remote: self.mesh_peers.remotes.into_iter().map(remote).collect(),
        };
        let import = |remote: &Remote| Import { mesh_id: remote.id.clone(), service_selectors: Vec::new() };
        let first = self.exported_service_set.and_then(|set| set.rules.into_iter().next());
        let rules = FederationServiceRulesSpec {
            export: first.map(|rule| Export { service_selectors: rule.label_selectors, ..Export::default() }),
            import: federation.remote.iter().map(import).collect(),
            ..FederationServiceRulesSpec::default()
        };
        let key = |service: &Service| {
            let namespace = service.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
            (namespace, service.metadata.name.clone().unwrap_or_default())
        };
        let tidy = |offers: Vec<Offer>| offers.into_iter().map(|offer| Arc::new(offer.tidy())).collect();
        World {
            flavour: Flavour::Original,
            controller_namespace: self.controller_namespace.unwrap_or_else(|| "istio-system".to_owned()),
            federation: Some(Arc::new(federation)),
            rules: Some(Arc::new(rules)),
            services: self.services.iter().map(|s| (key(s), Arc::new(observe::service(s)))).collect(),
            peers: self.imported.into_iter().map(|(mesh, offers)| (mesh, tidy(offers))).collect(),
            ..World::default()
        }
    }
}
