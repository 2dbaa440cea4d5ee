//! `MeshFederation`: this mesh, and the others it knows.

#![expect(unreachable_pub, reason = "the derive of the schema repeats each struct inside a function")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DOMAIN, LABEL};

/// The port of a gateway whose federation names none.
const GATEWAY_PORT: u16 = 15443;
/// The port of a router.
const ROUTER_PORT: u16 = 443;

/// This mesh and its remotes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "federation.openshift-service-mesh.io",
    version = "v1alpha1",
    kind = "MeshFederation",
    plural = "meshfederations",
    shortname = "mfed",
    doc = "This mesh, and the other meshes that it federates with.",
    derive = "PartialEq",
    status = "MeshFederationStatus",
    printcolumn = r#"{"name": "Mesh", "type": "string", "jsonPath": ".spec.local.id"}"#,
    printcolumn = r#"{"name": "Network", "type": "string", "jsonPath": ".spec.local.network"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Connected", "type": "string", "jsonPath": ".status.connected"}"#,
    printcolumn = r#"{"name": "Imported", "type": "integer", "jsonPath": ".status.imported"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[x_kube(
    validation = ("!has(self.remote) || self.remote.all(r, r.id != self.local.id)", "a remote must not have the id of this mesh"),
    validation = (
        "!has(self.remote) || self.remote.all(r, !has(r.ingress) || !has(r.ingress.addresses) || r.ingress.addresses.size() == 0 || r.network != self.local.network)",
        "a remote behind an ingress must be on another network than this mesh: traffic would return to where it came from",
    ),
)]
#[serde(rename_all = "camelCase")]
pub struct MeshFederationSpec {
    /// This mesh.
    pub local: Local,
    /// The other meshes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub remote: Vec<Remote>,
}

/// This mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Local {
    /// Unique among all meshes; the end of the names of its discovery Service and service account.
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 34))]
    pub id: String,
    /// The network of this mesh, as Istio knows it.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// The trust domain of this mesh's identities.
    #[serde(default = "trust_domain")]
    #[schemars(regex(pattern = DOMAIN), length(max = 253))]
    pub trust_domain: String,
    /// How exported services are reached from other networks; without it, all meshes must share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Ingress>,
    /// A gateway that calls to imported services leave through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// The control plane of this mesh.
    #[serde(default)]
    pub control_plane: ControlPlane,
    /// Where this mesh is, told to importers: region, or region/zone, or region/zone/subzone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[-A-Za-z0-9_.]+(/[-A-Za-z0-9_.]+){0,2}$"), length(max = 190))]
    pub locality: Option<String>,
}

/// What stands between the networks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IngressType {
    /// An Istio gateway that is reached directly.
    #[default]
    Istio,
    /// The OpenShift router before the gateway: Routes, and server names that it can read.
    OpenshiftRouter,
}

/// How exported services are reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = (
    "self.type == 'openshift-router' || (has(self.gateway) && has(self.gateway.selector) && self.gateway.selector.size() > 0)",
    "an ingress of type istio needs gateway.selector, the labels of the gateway's pods",
))]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// What stands between the networks.
    #[serde(rename = "type", default)]
    pub kind: IngressType,
    /// The gateway; with `openshift-router` it or its selector may be left out, and its pods then have
    /// the label `app: federation-ingress-gateway`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayRef>,
}

/// The gateway that calls to imported services leave through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = (
    "has(self.gateway.selector) && self.gateway.selector.size() > 0",
    "egress needs gateway.selector, the labels of the gateway's pods",
))]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// Its pods and port; its Service is called `federation-egress-gateway`.
    pub gateway: GatewayRef,
}

/// The pods of a gateway, and the port of its Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRef {
    /// The labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub selector: BTreeMap<String, String>,
    /// The port.
    #[serde(default)]
    pub port: GatewayPort,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayPort {
    /// Its name; Routes point at it.
    #[serde(default = "gateway_port_name")]
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 63))]
    pub name: String,
    /// Its number.
    #[serde(default = "gateway_port_number")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub number: u16,
}

/// The control plane of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Where objects for the whole mesh are made.
    #[serde(default = "control_plane_namespace")]
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 63))]
    pub namespace: String,
}

/// Another mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remote {
    /// Its id; the end of the name of its discovery Service.
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 34))]
    pub id: String,
    /// Its network, as Istio knows it.
    #[schemars(length(min = 1, max = 63))]
    pub network: String,
    /// Who its discovery says it is; only that identity may ask us and answer us.
    #[serde(default)]
    pub identity: Identity,
    /// How its services are reached; without addresses it must share our network.
    #[serde(default)]
    pub ingress: RemoteIngress,
    /// Where its discovery is, if not behind its ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<RemoteDiscovery>,
}

/// Where the discovery of another mesh is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteDiscovery {
    /// `HOST:PORT`, as this mesh reaches it: in one network the pods of its discovery Service, or a load
    /// balancer before them.
    #[schemars(
        regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?|\[[0-9a-f:.]+\]):[0-9]{1,5}$"),
        length(max = 260)
    )]
    pub address: String,
}

/// The identity of a mesh's discovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Its service account; `federation-discovery-service-<id>` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = DOMAIN), length(min = 1, max = 253))]
    pub service_account: Option<String>,
    /// The namespace it runs in.
    #[serde(default = "control_plane_namespace")]
    #[schemars(regex(pattern = LABEL), length(min = 1, max = 63))]
    pub namespace: String,
    /// The trust domain of that mesh.
    #[serde(default = "trust_domain")]
    #[schemars(regex(pattern = DOMAIN), length(max = 253))]
    pub trust_domain: String,
}

/// How services of another mesh are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteIngress {
    /// IP addresses, or one host name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(validation = (
        "self.all(a, isIP(a)) || (self.size() == 1 && self[0].matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$') && !self[0].matches('^(.*[.])?[0-9]+$'))",
        "either IP addresses, or exactly one host name",
    ))]
    pub addresses: Vec<String>,
    /// The port of its gateway; 15443 if absent, and 443 behind the OpenShift router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// What stands before its gateway.
    #[serde(rename = "type", default)]
    pub kind: IngressType,
}

/// What became of a federation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshFederationStatus {
    /// `Accepted`, `Ready` and `RemotesConnected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Connected and subscribed remotes, as `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<String>,
    /// How many services are imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<i64>,
    /// Each remote that is subscribed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub remotes: Vec<RemoteStatus>,
}

/// How it stands with one remote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteStatus {
    /// Its id.
    pub id: String,
    /// Whether its discovery answers now.
    pub connected: bool,
    /// Since when this has been so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The last version it told that was taken over; an older one is refused, also after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How many services it exports to us.
    pub offered: i64,
    /// How many of them are imported.
    pub imported: i64,
    /// Why it is not connected, or what it last said that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many of its services were refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<i64>,
    /// The first of them, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
}

/// A service of a peer that is not imported, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Its name as the peer wrote it, cut if it is long.
    pub hostname: String,
    /// Why.
    pub reason: String,
}

impl Ingress {
    /// The gateway that is meant.
    pub fn gateway(&self) -> GatewayRef {
        let mut meant = self.gateway.clone().unwrap_or_default();
        if meant.selector.is_empty() {
            meant.selector.insert("app".to_owned(), "federation-ingress-gateway".to_owned());
        }
        meant
    }
}

impl RemoteIngress {
    /// The port of the gateway, or of the router before it.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.kind {
            IngressType::Istio => GATEWAY_PORT,
            IngressType::OpenshiftRouter => ROUTER_PORT,
        })
    }
}

impl Remote {
    /// The principals its discovery may have, as Istio writes them. Unless one is named, that is the account after
    /// the mesh, as we install it, or that of the original's chart.
    pub fn principals(&self) -> Vec<String> {
        let Identity { service_account, namespace, trust_domain } = &self.identity;
        let accounts = match service_account {
            Some(account) => vec![account.clone()],
            None => {
                vec![format!("federation-discovery-service-{}", self.id), "federation-controller".to_owned()]
            }
        };
        accounts.iter().map(|account| format!("{trust_domain}/ns/{namespace}/sa/{account}")).collect()
    }

    /// The name of its discovery Service.
    pub fn discovery_host(&self) -> String {
        format!("federation-discovery-service-{}.{}.svc.cluster.local", self.id, self.identity.namespace)
    }
}

impl Default for GatewayPort {
    fn default() -> Self {
        Self { name: gateway_port_name(), number: GATEWAY_PORT }
    }
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self { namespace: control_plane_namespace() }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self { service_account: None, namespace: control_plane_namespace(), trust_domain: trust_domain() }
    }
}

fn trust_domain() -> String {
    "cluster.local".to_owned()
}

fn control_plane_namespace() -> String {
    "istio-system".to_owned()
}

fn gateway_port_name() -> String {
    "tls-passthrough".to_owned()
}

fn gateway_port_number() -> u16 {
    GATEWAY_PORT
}
