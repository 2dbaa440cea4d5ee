//! The local cloud as a cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net};

use super::state::{Hub, Machine, MachineName, Network, NetworkName, Peer, Tunnel};
use super::{Local, names, pending, require_root, six, wan};
use crate::cloud::{
    Cloud, Held, Need, NewConnections, NewGateway, NewResource, OldConnections, needs, tell_idle_flags,
};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;
use crate::plan::target::{Map, Owner};

/// The region of machines whose description names none.
const REGION: &str = "main";
/// A description says what the machine is, never where in the network.
const NETWORK_WORDS: &[&str] = &[
    "vpc",
    "subnet",
    "network",
    "networks",
    "networkinterfaces",
    "network_interfaces",
    "vnet",
    "ip",
    "address",
    "cidr",
];

/// The region a description asks for.
fn region(description: &str) -> Result<String, Error> {
    if description.trim().is_empty() {
        return Ok(REGION.into());
    }
    let wrong = |message: String| Error::invalid("description", message);
    let value: serde_json::Value =
        serde_json::from_str(description).map_err(|error| wrong(format!("is not JSON: {error}")))?;
    let map = value.as_object().ok_or_else(|| wrong("is not a JSON object".into()))?;
    for key in map.keys() {
        if NETWORK_WORDS.contains(&key.to_ascii_lowercase().as_str()) {
            return Err(Error::invalid(
                format!("description.{key}"),
                "the network is chosen for you; leave it out",
            ));
        }
    }
    let region = match map.get("region") {
        None => REGION,
        Some(region) => region.as_str().ok_or_else(|| wrong("region is not text".into()))?,
    };
    names::part("description.region", region)?;
    Ok(region.into())
}

/// Refuses the first target that is IPv6 and not carried, and says why.
fn refuse_ipv6(rules: &[Rule], carried: impl Fn(&IpNet) -> bool, why: &str) -> Result<(), Error> {
    for permission in rules {
        let targets = rule::targets(permission)?;
        if let Some(target) = targets.iter().find(|target| target.addr().is_ipv6() && !carried(target)) {
            return Err(Error::invalid(format!("{}.targets", permission.name), format!("{target} {why}")));
        }
    }
    Ok(())
}

/// The network of four around an address inside a tunnel.
pub(super) fn around(address: Ipv4Addr) -> String {
    Ipv4Net::new_assert(address, 30).trunc().to_string()
}

impl Local {
    /// Reads a URI, and refuses what is not of this namespace.
    fn machine_name(&self, namespace: &str, uri: &str) -> Result<MachineName, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let name = MachineName::parse(uri, &self.name).ok_or_else(unknown)?;
        if name.network.namespace != namespace {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        if !self.lock().machines.contains_key(&name) {
            return Err(unknown());
        }
        Ok(name)
    }

    /// Makes what the rules need beside the permission.
    async fn provide(&self, name: &MachineName, rules: &[Rule]) -> Result<(), Error> {
        let (network, local) = {
            let state = self.lock();
            let local: Vec<IpNet> = state.networks.values().flat_map(Network::spaces).collect();
            (state.networks.get(&name.network).cloned(), local)
        };
        let network = network.ok_or_else(|| Error::Internal(format!("{} has no network", name.name)))?;
        if network.space6.is_none() {
            refuse_ipv6(rules, |_| false, "is IPv6, and this network of the local cloud has IPv4 only")?;
        }
        let targets = rules.iter().map(rule::targets).collect::<Result<Vec<_>, _>>()?.concat();
        if targets.iter().all(|target| network.spaces().any(|space| space.contains(target))) {
            return Ok(());
        }
        let carried = |target: &IpNet| local.iter().any(|space| space.contains(target));
        refuse_ipv6(rules, carried, "is IPv6 and outside of this local cloud, which its VPNs do not carry")?;
        let namespace = &name.network.namespace;
        let own = Owner {
            cloud: self.name.clone(),
            namespace: namespace.clone(),
            deployment: None,
            space: network.space.into(),
        };
        let map = Map::new(&self.controller.used_spaces().await?);
        let needs = needs(rules, &own, &map)?;
        let ours = |owner: &Owner| network.spaces().any(|space| space == owner.space);
        for need in needs {
            match need {
                Need::Peering(owner) if ours(&owner) => {}
                Need::Peering(owner) => self.peer(&name.network, &owner).await?,
                Need::Public => self.open_public(namespace).await?,
                Need::Vpn(owner) => {
                    self.controller.connect(ConnectRequest::between(&own, &owner)).await?;
                }
            }
        }
        Ok(())
    }

    async fn peer(&self, own: &NetworkName, other: &Owner) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let changed = {
            let mut state = self.lock();
            let has = |network: &Network| network.spaces().any(|space| space == other.space);
            let found = state.networks.iter().find(|(_, network)| has(network));
            let Some(peer) = found.map(|(name, _)| name.clone()) else {
                return Err(Error::Internal(format!("{} is reported as ours and is not", other.space)));
            };
            let mut changed = Vec::new();
            for (at, to) in [(own, &peer), (&peer, own)] {
                if let Some(network) = state.networks.get_mut(at)
                    && network.peers.insert(to.clone())
                {
                    changed.push((at.clone(), network.clone()));
                }
            }
            (peer, changed)
        };
        for (name, network) in &changed.1 {
            self.records.put_network(name, Some(network)).await?;
        }
        if changed.1.is_empty() { Ok(()) } else { self.make_peering(own, &changed.0).await }
    }

    /// Takes away peerings of a network that no rule needs any more.
    async fn unpeer(&self, own: &NetworkName) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let unneeded: Vec<NetworkName> = {
            let state = self.lock();
            let peers = state.networks.get(own).map(|network| network.peers.clone()).unwrap_or_default();
            peers.into_iter().filter(|peer| !state.needs_peering(own, peer)).collect()
        };
        for peer in unneeded {
            self.unmake_peering(own, &peer).await?;
            for (at, to) in [(own, &peer), (&peer, own)] {
                let network = {
                    let mut state = self.lock();
                    let Some(network) = state.networks.get_mut(at) else { continue };
                    network.peers.remove(to);
                    network.clone()
                };
                self.records.put_network(at, Some(&network)).await?;
            }
        }
        Ok(())
    }

    async fn open_public(&self, namespace: &str) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let hub = {
            let mut state = self.lock();
            let new = || Hub { asn: 0, tunnels: BTreeMap::new(), public: false, next_tunnel: 0 };
            let hub = state.hubs.entry(namespace.to_owned()).or_insert_with(new);
            if std::mem::replace(&mut hub.public, true) {
                return Ok(());
            }
            hub.clone()
        };
        self.records.put_hub(namespace, Some(&hub)).await?;
        self.make_hub(namespace).await
    }

    /// Gives a machine new rules and loads them.
    async fn set_rules(
        &self,
        name: &MachineName,
        change: impl FnOnce(&mut BTreeMap<String, Rule>),
    ) -> Result<(), Error> {
        let unknown =
            || Error::Resource { namespace: name.network.namespace.clone(), resource: name.name.clone() };
        let mut machine = self.lock().machines.get(name).cloned().ok_or_else(unknown)?;
        let before = machine.rules.clone();
        change(&mut machine.rules);
        if machine.rules != before {
            self.records.put_machine(name, Some(&machine)).await?;
        } else if !self.filters.owes(name) {
            return Ok(());
        }
        let queued = {
            let mut state = self.lock();
            let rules = super::nft::machine(&machine);
            state.machines.insert(name.clone(), machine);
            self.filters.push_machine(name, self.names.network(&name.network), rules)
        };
        queued.loaded().await
    }

    /// The network a machine is to be in, made if there is none.
    async fn network_for(&self, name: &NetworkName) -> Result<Ipv4Net, Error> {
        let known = self.lock().networks.get(name).map(|network| network.space);
        if let Some(space) = known {
            return Ok(space);
        }
        let spaces = self.controller.find_spaces(&[0]).await?;
        let first = spaces.into_iter().find_map(|space| match space {
            IpNet::V4(space) => Some(space),
            IpNet::V6(_) => None,
        });
        first.ok_or_else(|| Error::Unsupported("the local cloud needs an IPv4 address space".into()))
    }
}

#[async_trait]
impl Cloud for Local {
    /// Those that come together are loaded into the kernel together, and a load takes nearly as long for one
    /// as for many: it is the size of the network that counts.
    fn at_once(&self) -> usize {
        1024
    }

    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let state = self.lock();
        let mappings = deployments.iter().map(|deployment| Mapping {
            spaces: state
                .networks_in(&deployment.namespace)
                .flat_map(|(_, network)| network.spaces())
                .collect(),
            cloud: self.name.clone(),
            namespace: deployment.namespace.clone(),
            deployment: Some(deployment.id.clone()),
        });
        Ok(mappings.filter(|mapping| !mapping.spaces.is_empty()).collect())
    }

    async fn used_asns(&self, _: &[Deployment]) -> Result<Vec<u32>, Error> {
        Ok(self.lock().hubs.values().map(|hub| hub.asn).filter(|asn| *asn != 0).collect())
    }

    async fn used_bgp_addresses(&self, _: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        let state = self.lock();
        let tunnels = state.hubs.values().flat_map(|hub| hub.tunnels.values());
        Ok(tunnels.filter_map(|tunnel| tunnel.inside).collect())
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        require_root()?;
        names::part("name", &new.name)?;
        names::part("namespace", &new.deployment.namespace)?;
        let network = NetworkName { namespace: new.deployment.namespace, region: region(&new.description)? };
        let name = MachineName { network: network.clone(), name: new.name };
        let space = self.network_for(&network).await?;
        let _turn = self.shape.lock().await;
        let fresh = {
            let mut state = self.lock();
            let fresh = !state.networks.contains_key(&network);
            let space6 = self.config.ipv6.map(|prefix| six::space(prefix, space));
            let made = Network { space, space6, peers: BTreeSet::default(), next_port: 1 };
            fresh.then(|| state.networks.entry(network.clone()).or_insert(made).clone())
        };
        if let Some(made) = &fresh {
            self.records.put_network(&network, Some(made)).await?;
        }
        self.make_network(&network).await?;
        let machine = {
            let mut state = self.lock();
            if let Some(machine) = state.machines.get(&name) {
                machine.clone()
            } else {
                let ip = state.free_address(&network).ok_or_else(|| Error::Cloud {
                    cloud: self.name.clone(),
                    what: "CreateResource".into(),
                    said: format!("the network {} is full", self.names.network(&network)),
                })?;
                let (port, space6) = state.networks.get_mut(&network).map_or((1, None), |network| {
                    network.next_port += 1;
                    (network.next_port - 1, network.space6)
                });
                let ip6 = space6.map(|space| six::beside(space, ip));
                let machine = Machine { ip, ip6, port, rules: BTreeMap::new() };
                state.machines.insert(name.clone(), machine.clone());
                machine
            }
        };
        let counted = self.lock().networks.get(&network).cloned();
        self.records.put_network(&network, counted.as_ref()).await?;
        self.records.put_machine(&name, Some(&machine)).await?;
        self.make_machine(&name).await?;
        Ok(Created { uri: name.uri(&self.name), name: name.name, ip: machine.ip.to_string() })
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let name = self.machine_name(namespace, uri)?;
        Ok(self
            .lock()
            .machines
            .get(&name)
            .map(|machine| machine.rules.values().cloned().collect())
            .unwrap_or_default())
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        require_root()?;
        let name = self.machine_name(namespace, uri)?;
        rule::check_call(&rules).map_err(Error::Invalid)?;
        self.provide(&name, &rules).await?;
        let _turn = self.turns.turn(uri).await;
        self.set_rules(&name, |known| known.extend(rules.into_iter().map(|rule| (rule.name.clone(), rule))))
            .await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, gone: Vec<String>) -> Result<(), Error> {
        require_root()?;
        let name = self.machine_name(namespace, uri)?;
        {
            let _turn = self.turns.turn(uri).await;
            self.set_rules(&name, |known| known.retain(|name, _| !gone.contains(name))).await?;
        }
        self.unpeer(&name.network).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        require_root()?;
        let namespace = new.deployment.namespace;
        let known = self.lock().hubs.get(&namespace).map(|hub| hub.asn).filter(|asn| *asn != 0);
        let asn = match known {
            Some(asn) => asn,
            None => self.controller.find_asn().await?,
        };
        let _turn = self.shape.lock().await;
        let mut hub = {
            let mut state = self.lock();
            let new = || Hub { asn, tunnels: BTreeMap::new(), public: false, next_tunnel: 0 };
            let hub = state.hubs.entry(namespace.clone()).or_insert_with(new);
            if hub.asn == 0 {
                hub.asn = asn;
            }
            hub.clone()
        };
        self.records.put_hub(&namespace, Some(&hub)).await?;
        // The first generation chooses addresses only later.
        let wanted: Vec<(String, Option<Ipv4Addr>)> = if new.bgp_addresses.is_empty() {
            pending::keys().map(|key| (key, None)).collect()
        } else {
            new.bgp_addresses.iter().map(|inside| (around(*inside), Some(*inside))).collect()
        };
        let mut addresses = Vec::new();
        for (key, inside) in wanted {
            if !hub.tunnels.contains_key(&key) {
                let index = hub.next_tunnel;
                let outside = self.make_tunnel_end(&namespace, index).await?;
                let tunnel = Tunnel { index, cloud: new.cloud.clone(), inside, outside, peer: None };
                hub.tunnels.insert(key.clone(), tunnel);
                hub.next_tunnel += 1;
                self.lock().hubs.insert(namespace.clone(), hub.clone());
                self.records.put_hub(&namespace, Some(&hub)).await?;
            }
            addresses.extend(hub.tunnels.get(&key).map(|tunnel| tunnel.outside.to_string()));
        }
        self.make_hub(&namespace).await?;
        Ok(Gateway { asn: hub.asn, addresses })
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        require_root()?;
        self.take_up(&deployment.namespace, cloud).await
    }

    fn replaces_keys(&self) -> bool {
        true
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        require_root()?;
        if !new.bgp {
            return Err(Error::Unsupported("the local cloud learns its routes by BGP only".into()));
        }
        let outsides = crate::cloud::addresses_from("gateway_ip_addresses", &new.gateways)?;
        if outsides.len() != new.bgp_addresses.len() {
            return Err(Error::invalid("gateway_ip_addresses", "must be as many as bgp_ip_addresses"));
        }
        let namespace = new.deployment.namespace;
        let _turn = self.shape.lock().await;
        let hub = {
            let mut state = self.lock();
            let unknown = || Error::Place(format!("the namespace {namespace} has no VPN gateway"));
            let hub = state.hubs.get_mut(&namespace).ok_or_else(unknown)?;
            for (inside, outside) in new.bgp_addresses.iter().zip(outsides) {
                let tunnel = hub.tunnels.get_mut(&around(*inside)).ok_or_else(|| {
                    Error::invalid("bgp_ip_addresses", format!("no tunnel was made for {inside}"))
                })?;
                tunnel.peer = Some(Peer { inside: *inside, outside, asn: new.asn, key: new.key.clone() });
            }
            hub.clone()
        };
        self.records.put_hub(&namespace, Some(&hub)).await?;
        self.make_hub(&namespace).await?;
        self.make_tunnels(&namespace).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let state = self.lock();
        let mut networks = state.networks_in(&deployment.namespace).map(|(_, network)| network);
        let found = networks.find(|network| network.spaces().any(|own| own.contains(&space)));
        Ok(found.into_iter().flat_map(Network::spaces).collect())
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        tell_idle_flags(&self.name, flags, &[]);
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let state = self.lock();
        let held = state
            .machines
            .iter()
            .filter(|(name, _)| namespace.is_empty() || name.network.namespace == namespace);
        Ok(held
            .map(|(name, machine)| Held {
                namespace: name.network.namespace.clone(),
                name: name.name.clone(),
                uri: name.uri(&self.name),
                ip: machine.ip.to_string(),
                network: self.names.network(&name.network),
            })
            .collect())
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        require_root()?;
        let name = self.machine_name(namespace, uri)?;
        {
            let _turn = self.shape.lock().await;
            self.remove_netns(&self.names.machine(&name)).await?;
            self.lock().machines.remove(&name);
            self.records.put_machine(&name, None).await?;
            self.make_filter(&name.network).await?;
        }
        self.unpeer(&name.network).await?;
        let _turn = self.shape.lock().await;
        if self.lock().machines_of(&name.network).next().is_some() {
            return Ok(());
        }
        // The last machine is gone, and the network with it.
        self.remove_netns(&self.names.network(&name.network)).await?;
        self.lock().networks.remove(&name.network);
        self.records.put_network(&name.network, None).await?;
        let idle = {
            let state = self.lock();
            let hub = state.hubs.get(namespace).is_some_and(|hub| hub.tunnels.is_empty());
            hub && state.networks_in(namespace).next().is_none()
        };
        if idle { self.remove_hub(namespace).await } else { self.route(namespace).await }
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        require_root()?;
        let namespace = old.deployment.namespace;
        let _turn = self.shape.lock().await;
        let Some(mut hub) = self.lock().hubs.get(&namespace).cloned() else { return Ok(()) };
        for inside in &old.bgp_addresses {
            if let Some(tunnel) = hub.tunnels.get(&around(*inside)) {
                self.remove_netns(&self.names.tunnel(&namespace, tunnel.index)).await?;
                hub.tunnels.remove(&around(*inside));
                self.lock().hubs.insert(namespace.clone(), hub.clone());
                self.records.put_hub(&namespace, Some(&hub)).await?;
            }
        }
        if hub.tunnels.is_empty() && !hub.public {
            return self.remove_hub(&namespace).await;
        }
        self.route(&namespace).await?;
        wan::release(self.config.wan.clone()).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let (found, strays) = self.differences(namespace).await?;
        if repair && !found.is_empty() {
            require_root()?;
            for netns in strays {
                self.remove_netns(&netns).await?;
            }
            self.restore().await?;
        }
        Ok(found)
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        require_root()?;
        self.others(deployments).await
    }
}

impl Local {
    async fn remove_hub(&self, namespace: &str) -> Result<(), Error> {
        self.remove_netns(&self.names.hub(namespace)).await?;
        self.lock().hubs.remove(namespace);
        self.records.put_hub(namespace, None).await?;
        wan::release(self.config.wan.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_ipv6_says_so() {
        let rule = |target: &str| Rule { name: "r".into(), targets: vec![target.into()], ..Rule::default() };
        let local = |target: &IpNet| "fd00::/64".parse::<IpNet>().unwrap().contains(target);
        refuse_ipv6(&[rule("10.0.0.4"), rule("fd00::4")], local, "why").unwrap();
        let refused = refuse_ipv6(&[rule("2001:db8::1")], local, "is far");
        let Err(Error::Invalid(mistakes)) = refused else { panic!("accepted") };
        assert_eq!(mistakes[0].field, "r.targets");
    }

    #[test]
    fn a_description_names_no_network() {
        assert_eq!(region("").unwrap(), "main");
        assert_eq!(region(r#"{"region":"north","size":"small"}"#).unwrap(), "north");
        for (bad, field) in [
            (r#"{"vpc":"x"}"#, "description.vpc"),
            (r#"{"Subnet":"x"}"#, "description.Subnet"),
            (r#"{"networkInterfaces":[]}"#, "description.networkInterfaces"),
            (r#"{"region":"a.b"}"#, "description.region"),
            (r#"{"region":1}"#, "description"),
            ("[]", "description"),
            ("{", "description"),
        ] {
            let Err(Error::Invalid(mistakes)) = region(bad) else { panic!("{bad}") };
            assert_eq!(mistakes[0].field, field);
        }
    }
}
