//! Azure: virtual networks, machines, Kubernetes clusters, network security groups, peerings and VPN gateways
//! through its Resource Manager.
//!
//! All names are made of the namespace and what they are for, so that whoever asks again after a crash
//! finds what is there already. Nothing is kept outside of Azure but tags too long for a description.
//!
//! Not offered: private endpoints, and clusters whose pods have no addresses of the network or whose API server is
//! public.

mod arm;
mod attach;
mod cloud;
mod cluster;
mod credentials;
mod describe;
mod detach;
mod drift;
mod foreign;
mod machine;
mod names;
mod network;
mod peering;
mod public;
mod rules;
mod vpn;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::arm::Arm;
use self::credentials::Credentials;
pub use self::credentials::{Environment, Identity};
use self::names::Group;
use self::public::Network;
use super::auth::Bearer;
use super::pace::Clock;
use super::rest::{self, Rest};
use super::taken;
use super::ways::Ways;
use crate::cloud::Policy;
use crate::controller::Controller;
use crate::error::Error;
use crate::model::{Deployment, Flags};
use crate::turns::Turns;

/// Reads an answer of the cloud, as fuzzing does.
pub(crate) fn read_answer(answer: &mut Value) {
    drop((vpn::inside(answer), network::spaces(answer), machine::address(answer)));
    if let Value::Array(items) = taken(answer, "value") {
        for item in &items {
            drop((rules::read(item), rules::is_as(item, item), network::namespace_of(item)));
            drop((arm::holds(item, item), names::last(network::id(item)), Group::of(network::id(item))));
            let _ = (cluster::services(item), cluster::subnet_of(item), network::range(item));
            drop(foreign::told(item, "deployment", &[]));
        }
    }
}

/// Reads what is said of a resource to be made, as fuzzing does, and asks for it.
pub(crate) fn read_description(text: &str) {
    if let Ok(described) = describe::read(text) {
        match described.kind {
            describe::Kind::Machine => drop(machine::machine_body(&described, "ns", "nic")),
            describe::Kind::Cluster => {
                drop(cluster::cluster_body(&described, "ns", "subnet", ipnet::Ipv4Net::default()));
            }
        }
    }
}

/// The smallest subnet that Azure puts a gateway into.
const GATEWAY_MIN: u8 = 29;

/// Settings of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AzureConfig {
    /// Its Resource Manager; sovereign clouds have their own.
    pub endpoint: String,
    /// Where the identity comes from.
    pub identity: Identity,
    /// Azure's command line, for those who logged in with it.
    pub az: String,
    /// Where VPN gateways are made.
    pub gateway_location: String,
    /// The space of the VPN gateway's network; one that is there keeps its own.
    #[schemars(with = "String")]
    pub gateway_space: Ipv4Net,
    /// What this cloud does for anybody.
    pub policy: Policy,
}

impl Default for AzureConfig {
    fn default() -> Self {
        Self {
            endpoint: "https://management.azure.com".into(),
            identity: Identity::default(),
            az: "az".into(),
            gateway_location: "westus2".into(),
            gateway_space: Ipv4Net::new_assert(std::net::Ipv4Addr::new(192, 168, 255, 0), 27),
            policy: Policy::default(),
        }
    }
}

/// Azure as a cloud.
pub struct Azure {
    name: String,
    config: AzureConfig,
    arm: Arm,
    controller: Arc<dyn Controller>,
    /// One at a time for each namespace's networks, gateway, and each permit list.
    turns: Turns,
    /// Peerings and NAT gateways.
    ways: Ways<Network>,
    flags: Mutex<Flags>,
    /// Where resources may be, learned from what is asked.
    places: Mutex<BTreeSet<Deployment>>,
}

impl Azure {
    /// A client of Azure. Nothing is asked of it yet.
    pub fn open(
        name: &str,
        config: &AzureConfig,
        environment: Environment,
        controller: Arc<dyn Controller>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let base = rest::endpoint("azure.endpoint", &config.endpoint)?;
        if config.gateway_space.prefix_len() > GATEWAY_MIN
            || config.gateway_space.trunc() != config.gateway_space
        {
            let message =
                format!("must be a prefix of at most {GATEWAY_MIN} bits, which Azure wants for a gateway");
            return Err(Error::setting("azure.gatewaySpace", message));
        }
        let credentials =
            Credentials::new(config.identity, environment, &config.az, &config.endpoint, clock.clone())?;
        let rest = Rest::new(name, Arc::new(Bearer::new(credentials, clock.clone())), clock)?;
        Ok(Self {
            name: name.into(),
            config: AzureConfig {
                gateway_location: names::location(&config.gateway_location),
                ..config.clone()
            },
            arm: Arm::new(rest, base),
            controller,
            turns: Turns::default(),
            ways: Ways::default(),
            flags: Mutex::default(),
            places: Mutex::default(),
        })
    }

    /// Reads where a deployment is, and remembers it.
    fn group(&self, deployment: &Deployment) -> Result<Group, Error> {
        let group = Group::parse("deployment", &deployment.id)?;
        lock(&self.places)
            .insert(Deployment { id: group.id().into(), namespace: deployment.namespace.clone() });
        Ok(group)
    }

    /// Where a resource is.
    fn group_of(namespace: &str, uri: &str) -> Result<Group, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        Group::of(uri).ok_or_else(unknown)
    }

    /// The places of a namespace, or of all.
    fn places(&self, namespace: &str) -> Vec<Deployment> {
        let places = lock(&self.places);
        places.iter().filter(|place| namespace.is_empty() || place.namespace == namespace).cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
