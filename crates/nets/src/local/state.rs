//! What a local cloud should be: networks, machines, peerings, tunnels. Written down before it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use tarbet_store::{Record, Store, Table};

use crate::error::Error;
use crate::model::{Rule, SharedKey};

/// A network: one for each namespace and region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Network {
    pub(super) space: Ipv4Net,
    /// Its IPv6 prefix, where it has one.
    #[serde(default)]
    pub(super) space6: Option<Ipv6Net>,
    /// Networks it is peered with.
    #[serde(default)]
    pub(super) peers: BTreeSet<NetworkName>,
    /// The number of the next port of its bridge.
    pub(super) next_port: u32,
}

impl Network {
    /// All its spaces.
    pub(super) fn spaces(&self) -> impl Iterator<Item = IpNet> {
        std::iter::once(IpNet::from(self.space)).chain(self.space6.map(IpNet::from))
    }
}

/// A machine on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) ip: Ipv4Addr,
    #[serde(default)]
    pub(super) ip6: Option<Ipv6Addr>,
    /// Names its port on the bridge and its chains in the filter.
    pub(super) port: u32,
    #[serde(default)]
    pub(super) rules: BTreeMap<String, Rule>,
}

/// The way out of a namespace: tunnels to other clouds, and to public addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hub {
    pub(super) asn: u32,
    /// By the network of four inside the tunnel.
    #[serde(default)]
    pub(super) tunnels: BTreeMap<String, Tunnel>,
    /// Whether machines may reach public addresses through it.
    #[serde(default)]
    pub(super) public: bool,
    pub(super) next_tunnel: u32,
}

/// One tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tunnel {
    pub(super) index: u32,
    /// The cloud at the other end.
    pub(super) cloud: String,
    /// Our address inside.
    pub(super) inside: Option<Ipv4Addr>,
    /// Our address outside.
    pub(super) outside: Ipv4Addr,
    /// The other end, once known.
    #[serde(default)]
    pub(super) peer: Option<Peer>,
}

/// The other end of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) inside: Ipv4Addr,
    pub(super) outside: Ipv4Addr,
    pub(super) asn: u32,
    pub(super) key: SharedKey,
}

/// Namespace and region.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct NetworkName {
    pub(super) namespace: String,
    pub(super) region: String,
}

/// Namespace, region and the machine's own name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MachineName {
    pub(super) network: NetworkName,
    pub(super) name: String,
}

impl MachineName {
    pub(super) fn uri(&self, cloud: &str) -> String {
        format!("local/{cloud}/{}/{}/{}", self.network.namespace, self.network.region, self.name)
    }

    /// Reads a URI of this cloud.
    pub(super) fn parse(uri: &str, cloud: &str) -> Option<Self> {
        let parts: Vec<&str> = uri.split('/').collect();
        match parts.as_slice() {
            ["local", of, namespace, region, name] if *of == cloud => Some(Self {
                network: NetworkName { namespace: (*namespace).into(), region: (*region).into() },
                name: (*name).into(),
            }),
            _ => None,
        }
    }
}

impl Record for Network {
    const KIND: &'static str = "local-network";
}

impl Record for Machine {
    const KIND: &'static str = "local-machine";
}

impl Record for Hub {
    const KIND: &'static str = "local-hub";
}

/// Everything, as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) networks: BTreeMap<NetworkName, Network>,
    pub(super) machines: BTreeMap<MachineName, Machine>,
    pub(super) hubs: BTreeMap<String, Hub>,
}

impl State {
    pub(super) fn machines_of<'a>(
        &'a self,
        network: &'a NetworkName,
    ) -> impl Iterator<Item = (&'a MachineName, &'a Machine)> {
        self.machines.iter().filter(move |(name, _)| name.network == *network)
    }

    pub(super) fn networks_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a NetworkName, &'a Network)> {
        self.networks.iter().filter(move |(name, _)| name.namespace == namespace)
    }

    /// Only one network with its machines: enough to plan it, without copying everything.
    pub(super) fn clone_for(&self, name: &NetworkName) -> Self {
        Self {
            networks: self
                .networks
                .get(name)
                .map(|network| (name.clone(), network.clone()))
                .into_iter()
                .collect(),
            machines: self.machines_of(name).map(|(name, machine)| (name.clone(), machine.clone())).collect(),
            hubs: BTreeMap::new(),
        }
    }

    /// The lowest address that no machine of the network has. The first few belong to the network.
    pub(super) fn free_address(&self, network: &NetworkName) -> Option<Ipv4Addr> {
        let space = self.networks.get(network)?.space;
        let used: BTreeSet<Ipv4Addr> = self.machines_of(network).map(|(_, machine)| machine.ip).collect();
        let (first, last) = (u32::from(space.network()) + 4, u32::from(space.broadcast()));
        (first..last).map(Ipv4Addr::from).find(|address| !used.contains(address))
    }

    /// Whether a rule on either side needs the two networks peered.
    pub(super) fn needs_peering(&self, a: &NetworkName, b: &NetworkName) -> bool {
        let (Some(network_a), Some(network_b)) = (self.networks.get(a), self.networks.get(b)) else {
            return false;
        };
        let reaches = |from: &NetworkName, to: &Network| {
            let meets = |target: &IpNet| to.spaces().any(|to| to.contains(target) || target.contains(&to));
            self.machines_of(from).flat_map(|(_, machine)| machine.rules.values()).any(|rule| {
                let targets = crate::plan::rule::targets(rule).unwrap_or_default();
                targets.iter().any(meets)
            })
        };
        reaches(a, network_b) || reaches(b, network_a)
    }
}

type Place = (String, (String, String));
type MachinePlace = (String, (String, (String, String)));

/// The same in the store.
#[derive(Debug)]
pub(super) struct Records {
    cloud: String,
    networks: Table<Place, Network>,
    machines: Table<MachinePlace, Machine>,
    hubs: Table<(String, String), Hub>,
}

impl Records {
    pub(super) fn new(store: &Store, cloud: &str) -> Result<Self, Error> {
        Ok(Self {
            cloud: cloud.into(),
            networks: Table::new(store, "local-networks")?,
            machines: Table::new(store, "local-machines")?,
            hubs: Table::new(store, "local-hubs")?,
        })
    }

    pub(super) async fn load(&self) -> Result<State, Error> {
        let mut state = State::default();
        for ((_, (namespace, region)), record) in self.networks.list_under(&self.cloud).await?.records {
            state.networks.insert(NetworkName { namespace, region }, record.value);
        }
        for ((_, (namespace, (region, name))), record) in self.machines.list_under(&self.cloud).await?.records
        {
            let network = NetworkName { namespace, region };
            state.machines.insert(MachineName { network, name }, record.value);
        }
        for ((_, namespace), record) in self.hubs.list_under(&self.cloud).await?.records {
            state.hubs.insert(namespace, record.value);
        }
        Ok(state)
    }

    fn network_key(&self, name: &NetworkName) -> Place {
        (self.cloud.clone(), (name.namespace.clone(), name.region.clone()))
    }

    fn machine_key(&self, name: &MachineName) -> MachinePlace {
        let NetworkName { namespace, region } = name.network.clone();
        (self.cloud.clone(), (namespace, (region, name.name.clone())))
    }

    pub(super) async fn put_network(
        &self,
        name: &NetworkName,
        network: Option<&Network>,
    ) -> Result<(), Error> {
        let key = self.network_key(name);
        match network {
            Some(network) => self.networks.put(&key, network).await?,
            None => self.networks.delete(&key).await?,
        };
        Ok(())
    }

    pub(super) async fn put_machine(
        &self,
        name: &MachineName,
        machine: Option<&Machine>,
    ) -> Result<(), Error> {
        let key = self.machine_key(name);
        match machine {
            Some(machine) => self.machines.put(&key, machine).await?,
            None => self.machines.delete(&key).await?,
        };
        Ok(())
    }

    pub(super) async fn put_hub(&self, namespace: &str, hub: Option<&Hub>) -> Result<(), Error> {
        let key = (self.cloud.clone(), namespace.to_owned());
        match hub {
            Some(hub) => self.hubs.put(&key, hub).await?,
            None => self.hubs.delete(&key).await?,
        };
        Ok(())
    }
}
