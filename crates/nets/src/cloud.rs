//! What a cloud can be asked, whichever it is and wherever its plugin runs.
//!
//! A plugin implements [`Cloud`]; [`serve`] puts it on the wires of both generations, [`Remote`] and [`RemoteSeed`] are the
//! same trait over them, and [`Guarded`] holds every call against the plugin's own policy first.
//! All calls are idempotent: asking for what exists changes nothing and answers as if it had been made.

mod convert;
mod guard;
mod memory;
mod needs;
mod remote;
mod remote_seed;
mod seed;
mod today;
mod upkeep;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tonic::service::Routes;

use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule, SharedKey};
use crate::plan::connect::Gateway;

pub(crate) use convert::{addresses as addresses_from, space as space_from};
pub use guard::{Guarded, Policy};
pub use memory::{Calls, MemoryCloud};
pub use needs::{Need, needs};
pub use remote::Remote;
pub use remote_seed::RemoteSeed;

/// A resource to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewResource {
    /// Where.
    pub deployment: Deployment,
    /// Its short name.
    pub name: String,
    /// All but its network, as the cloud wants to be told.
    pub description: String,
}

/// A VPN gateway to be made, or found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewGateway {
    /// Where.
    pub deployment: Deployment,
    /// The cloud at the other end.
    pub cloud: String,
    /// Its own addresses inside the tunnels; none if routes are static.
    pub bgp_addresses: Vec<Ipv4Addr>,
    /// A space of the network it is for, where a cloud has several.
    pub space: Option<IpNet>,
}

/// The tunnels to another cloud's gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewConnections {
    /// Where.
    pub deployment: Deployment,
    /// The cloud at the other end.
    pub cloud: String,
    /// Its autonomous system number.
    pub asn: u32,
    /// Its public addresses, one for each tunnel.
    pub gateways: Vec<String>,
    /// Its addresses inside the tunnels.
    pub bgp_addresses: Vec<Ipv4Addr>,
    /// The key of both ends.
    pub key: SharedKey,
    /// The spaces behind it, where routes are static.
    pub remote_spaces: Vec<String>,
    /// Whether routes are learned.
    pub bgp: bool,
    /// A space of our own network.
    pub space: Option<IpNet>,
}

/// A resource that a cloud holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its namespace.
    pub namespace: String,
    /// Its short name.
    pub name: String,
    /// Its URI.
    pub uri: String,
    /// Its address.
    pub ip: String,
    /// The network it is in.
    pub network: String,
}

/// The tunnels to be removed, told apart by the other end's addresses inside them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldConnections {
    /// Where.
    pub deployment: Deployment,
    /// The cloud at the other end.
    pub cloud: String,
    /// The other end's addresses inside the tunnels.
    pub bgp_addresses: Vec<Ipv4Addr>,
}

/// What a cloud can do that others cannot. Who must decide by it asks each time: a plugin elsewhere may have been
/// replaced by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Whether tunnels that exist take over the key of [`Cloud::create_connections`].
    pub replaces_keys: bool,
    /// How many permit lists may be changed at once.
    pub at_once: usize,
}

/// Most clouds would only slow down if more permit lists were changed at once.
const AT_ONCE: usize = 32;

/// A cloud.
#[async_trait]
pub trait Cloud: Send + Sync + 'static {
    /// How many permit lists may be changed at once, as far as that is known without asking.
    fn at_once(&self) -> usize {
        AT_ONCE
    }
    /// What it can do, wherever its plugin runs.
    async fn abilities(&self) -> Result<Abilities, Error> {
        Ok(Abilities { replaces_keys: self.replaces_keys(), at_once: self.at_once() })
    }
    /// The same as [`Cloud::deployment_of`], wherever its plugin runs.
    async fn find_deployment(&self, uri: &str) -> Result<Option<String>, Error> {
        Ok(self.deployment_of(uri))
    }
    /// Spaces in use in these deployments.
    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error>;
    /// Autonomous system numbers in use.
    async fn used_asns(&self, deployments: &[Deployment]) -> Result<Vec<u32>, Error>;
    /// Addresses in use inside tunnels.
    async fn used_bgp_addresses(&self, deployments: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error>;
    /// Makes a resource, its network if there is none yet, and an empty permit list.
    async fn create_resource(&self, new: NewResource) -> Result<Created, Error>;
    /// Where a resource of the first generation is to be made, and its name: on that wire the id says both,
    /// as each cloud spells it, or the description does.
    fn place_of(&self, id: &str, _description: &str) -> Result<(String, String), Error> {
        match id.trim_end_matches('/').rsplit_once('/') {
            Some((deployment, name)) if !name.is_empty() => Ok((deployment.to_owned(), name.to_owned())),
            _ => Err(Error::invalid("id", format!("`{}` does not end in /NAME", id.escape_debug()))),
        }
    }
    /// The deployment in a resource's URI, or in a deployment's own id, in one spelling for all that mean the
    /// same; nothing where this cloud's names tell of none.
    fn deployment_of(&self, _uri: &str) -> Option<String> {
        None
    }
    /// Takes in a resource that others made.
    async fn attach_resource(&self, _namespace: &str, _uri: &str) -> Result<Created, Error> {
        Err(Error::Unsupported("this cloud does not take in resources that others made".into()))
    }
    /// The rules of a resource.
    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error>;
    /// Adds rules, or replaces those of the same name.
    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error>;
    /// Removes rules; those that are not there are no error.
    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error>;
    /// Makes or finds the VPN gateway.
    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error>;
    /// Whether it chooses its addresses inside tunnels itself, once it has a gateway.
    fn chooses_addresses(&self) -> bool {
        false
    }
    /// The first generation's way: the plugin chooses its addresses inside the tunnels itself.
    async fn create_bgp_sessions(
        &self,
        _deployment: &Deployment,
        _cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        Err(Error::Unsupported("this cloud takes its addresses inside tunnels from the orchestrator".into()))
    }
    /// Whether tunnels that exist take over the key of [`Cloud::create_connections`].
    fn replaces_keys(&self) -> bool {
        false
    }
    /// Makes the tunnels, or tells those that exist another key.
    async fn create_connections(&self, new: NewConnections) -> Result<(), Error>;
    /// All spaces of the network that holds this one.
    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error>;
    /// Switches kinds of resources on or off.
    async fn set_flags(&self, flags: Flags) -> Result<(), Error>;

    /// What it holds; an empty namespace means all.
    async fn list_resources(&self, _namespace: &str) -> Result<Vec<Held>, Error> {
        Err(Error::Unsupported("this cloud's plugin does not list its resources".into()))
    }
    /// Removes a resource and what was made for it alone.
    async fn delete_resource(&self, _namespace: &str, _uri: &str) -> Result<(), Error> {
        Err(Error::Unsupported("this cloud's plugin does not remove resources".into()))
    }
    /// Removes tunnels, and the gateway with the last of them.
    async fn delete_connections(&self, _old: OldConnections) -> Result<(), Error> {
        Err(Error::Unsupported("this cloud's plugin does not remove connections".into()))
    }
    /// What differs between what should be and what is; mends it if told to.
    async fn drift(&self, _namespace: &str, _repair: bool) -> Result<Vec<String>, Error> {
        Err(Error::Unsupported("this cloud's plugin does not compare itself".into()))
    }
    /// The networks in these deployments that are of none of their namespaces. It only looks.
    async fn foreign_networks(&self, _deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        Err(Error::Unsupported("this cloud's plugin does not tell which networks others made".into()))
    }
}

/// Deployments that are in one place, by a spelling that is the same for all of them: several namespaces may
/// share a place, and what one of them has is no stranger there.
pub(crate) fn by_place<'a, K: Ord>(
    deployments: &'a [Deployment],
    spelling: impl Fn(&'a Deployment) -> Result<K, Error>,
) -> Result<BTreeMap<K, Vec<&'a Deployment>>, Error> {
    let mut places: BTreeMap<K, Vec<&Deployment>> = BTreeMap::new();
    for deployment in deployments {
        places.entry(spelling(deployment)?).or_default().push(deployment);
    }
    Ok(places)
}

/// How many there are, as it is told.
pub(crate) fn count_of<T>(things: impl IntoIterator<Item = T>) -> Option<u32> {
    u32::try_from(things.into_iter().count()).ok()
}

/// Says which of the flags that are on change nothing in a cloud, which knows those of `known`.
pub(crate) fn tell_idle_flags(cloud: &str, flags: Flags, known: &[&str]) {
    for flag in flags.on().filter(|flag| !known.contains(flag)) {
        tracing::warn!(cloud, flag, "The flag has no effect: this cloud's plugin does not offer it.");
    }
}

/// The services of both generations for one cloud.
pub fn serve(cloud: Arc<dyn Cloud>, name: &str) -> Routes {
    Routes::new(today::service(Arc::clone(&cloud)))
        .add_service(seed::service(Arc::clone(&cloud), name))
        .add_service(upkeep::service(cloud))
}
