//! What the controller itself is told. What is federated is told by the custom resources.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The federation controller and its discovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MeshConfig {
    /// The kubeconfig of the cluster; without it, KUBECONFIG, the pod's account, then the home folder.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the controller and of the rules. Also POD_NAMESPACE; `istio-system` if nothing says.
    pub namespace: Option<String>,
    /// Where peers ask for what is exported.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// How long the services of a peer that does not answer are kept.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub hold_down: Duration,
    /// How often host names of remotes are resolved again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub resolve_every: Duration,
    /// Where the discovery of a mesh is, by its id, if not behind its ingress: `west: 10.0.0.7:15080`.
    /// Goes before `remote[].discovery.address` of the MeshFederation.
    pub discovery: BTreeMap<String, String>,
    /// The site through whose agent a mesh is reached, by the mesh's id. With a listener in `carry`,
    /// discovery goes through it as calls do; without one, or if `discovery` says where, the agent dials
    /// the mesh's discovery Service, or that place, and its policy must permit the host.
    pub via_site: BTreeMap<String, String>,
    /// Listeners here that stand for the gateway of a mesh behind a site, by the mesh's id.
    pub carry: BTreeMap<String, CarryConfig>,
    /// How many services one peer may offer.
    pub max_services: usize,
    /// One of several replicas writes; all of them answer peers.
    pub leader_election: bool,
}

/// A listener that stands for the gateway of a mesh behind a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CarryConfig {
    /// Where callers of this mesh come in.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// That place as callers know it, HOST:PORT; if absent the listening address, or that of the pod.
    pub advertise: Option<String>,
    /// The gateway as the site's agent sees it.
    #[serde(default = "gateway")]
    pub gateway: String,
}

fn gateway() -> String {
    "federation-ingress-gateway.istio-system.svc.cluster.local:15443".to_owned()
}

impl CarryConfig {
    /// With everything but the listener left to itself.
    pub fn at(listen: SocketAddr) -> Self {
        Self { listen, advertise: None, gateway: gateway() }
    }
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespace: None,
            listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), crate::plan::DISCOVERY_PORT),
            hold_down: Duration::from_mins(10),
            resolve_every: Duration::from_secs(10),
            discovery: BTreeMap::new(),
            via_site: BTreeMap::new(),
            carry: BTreeMap::new(),
            max_services: 20_000,
            leader_election: true,
        }
    }
}

impl MeshConfig {
    /// What the types alone cannot refuse, as setting and message.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (mesh, address) in &self.discovery {
            if let Err(error) = address.parse::<tarbet_link::Address>() {
                found.push((format!("discovery.{mesh}"), error.to_string()));
            }
        }
        for (mesh, carry) in &self.carry {
            for (setting, address) in
                [("advertise", carry.advertise.as_deref()), ("gateway", Some(carry.gateway.as_str()))]
            {
                if let Some(Err(error)) = address.map(str::parse::<tarbet_link::Address>) {
                    found.push((format!("carry.{mesh}.{setting}"), error.to_string()));
                }
            }
        }
        if self.resolve_every.is_zero() {
            found.push(("resolve_every".into(), "must be longer than nothing".into()));
        }
        found
    }
}
