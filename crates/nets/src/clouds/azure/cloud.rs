//! Azure as a cloud.

use std::net::Ipv4Addr;

use async_trait::async_trait;
use ipnet::IpNet;
use serde_json::Value;

use super::cluster::{self, is_cluster};
use super::describe::{self, Kind};
use super::machine::{self, Machine};
use super::names::Group;
use super::network::{id, is_gateway_network, namespace_of, range_in, spaces};
use super::public::Network;
use super::rules::{self, Tags};
use super::{Azure, lock, names};
use crate::cloud::{
    Cloud, Held, Need, NewConnections, NewGateway, NewResource, OldConnections, needs, tell_idle_flags,
};
use crate::clouds::ways::{HasWays as _, loses};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;
use crate::plan::target::{Map, Owner};

impl Azure {
    /// Makes what the rules need beside the permission.
    async fn provide(&self, namespace: &str, machine: &Machine, rules: &[Rule]) -> Result<(), Error> {
        let targets: Vec<IpNet> = rules.iter().map(rule::targets).collect::<Result<Vec<_>, _>>()?.concat();
        if targets.is_empty() {
            return Ok(());
        }
        let vnet = self.arm.get(&machine.vnet).await?;
        let vnet = vnet.ok_or_else(|| self.arm.failed(&machine.vnet, "it is gone"))?;
        let own = spaces(&vnet);
        if targets.iter().all(|target| own.iter().any(|space| space.contains(target))) {
            return Ok(());
        }
        let space = own.iter().find(|space| space.contains(&machine.address)).copied();
        let space =
            space.ok_or_else(|| self.arm.failed(&machine.vnet, "its spaces do not hold the resource"))?;
        let owner = Owner { cloud: self.name.clone(), namespace: namespace.into(), deployment: None, space };
        let map = Map::new(&self.controller.used_spaces().await?);
        for need in needs(rules, &owner, &map)? {
            match need {
                Need::Peering(other) => self.peer_with(&machine.group, &vnet, &other).await?,
                Need::Public => self.open_public(&machine.group, namespace, &vnet, &machine.subnet).await?,
                Need::Vpn(other) => {
                    self.controller.connect(ConnectRequest::between(&owner, &other)).await?;
                }
            }
        }
        Ok(())
    }

    /// Finds a resource of a namespace by its URI.
    async fn resource(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        if is_cluster(uri) { self.cluster(namespace, uri).await } else { self.machine(namespace, uri).await }
    }

    /// A packet filter, and its rules as Azure has them.
    async fn filter(&self, nsg: &str) -> Result<(Value, Vec<Value>), Error> {
        let found = self.arm.settled(nsg).await?;
        let mut found = found.ok_or_else(|| self.arm.failed(nsg, "it is gone"))?;
        match found.pointer_mut("/properties/securityRules").map(Value::take) {
            Some(Value::Array(rules)) => Ok((found, rules)),
            _ => Ok((found, Vec::new())),
        }
    }

    /// The permissions of a resource, as Azure has them.
    async fn permissions(&self, machine: &Machine) -> Result<Vec<(Rule, Tags)>, Error> {
        let (filter, all) = self.filter(&machine.nsg).await?;
        Ok(all.iter().filter(|found| machine.owns(&filter, found)).filter_map(rules::read).collect())
    }

    /// Where the tags of a rule are kept that are too long for Azure.
    fn tag_key(nsg: &str, rule: &str) -> String {
        format!("{}/{rule}", names::last(nsg))
    }

    async fn keep_tags(&self, namespace: &str, nsg: &str, rule: &Rule) -> Result<(), Error> {
        if rules::description(&rule.tags).is_some() {
            return Ok(());
        }
        let key = Self::tag_key(nsg, &rule.name);
        self.controller.set_value(namespace, &self.name, &key, &rule.tags.join(" ")).await
    }

    /// Makes what rules need and writes them; whether one that was there lost targets.
    async fn write_rules(&self, namespace: &str, machine: &Machine, rules: Vec<Rule>) -> Result<bool, Error> {
        self.provide(namespace, machine, &rules).await?;
        let _turn = self.turns.turn(&machine.nsg).await;
        let (filter, mut existing) = self.filter(&machine.nsg).await?;
        for rule in &rules {
            let name = rules::name(&rule.name);
            let same = existing.iter().find(|found| found["name"].as_str() == Some(&*name));
            if same.is_some_and(|found| !machine.owns(&filter, found)) {
                let message = format!(
                    "another resource behind the packet filter {} has a rule `{}`: use another name",
                    names::last(&machine.nsg),
                    rule.name
                );
                return Err(Error::invalid("name", message));
            }
        }
        let mut lost = false;
        for rule in rules {
            let name = rules::name(&rule.name);
            let id = format!("{}/securityRules/{name}", machine.nsg);
            let same = existing.iter().position(|found| found["name"].as_str() == Some(&*name));
            let priority = rules::priority(&existing, &rule)
                .ok_or_else(|| self.arm.failed(&machine.nsg, "all priorities of this direction are taken"))?;
            let body = rules::compile(&rule, machine.address, priority)?;
            self.keep_tags(namespace, &machine.nsg, &rule).await?;
            if let Some(at) = same {
                if rules::is_as(&existing[at], &body) {
                    continue;
                }
                lost |= rules::read(&existing[at]).is_some_and(|(old, _)| loses(&old, &rule));
                existing.remove(at);
            }
            existing.push(self.arm.put(&id, &body).await?);
        }
        Ok(lost)
    }

    /// Removes a permission, and its tags where they are kept elsewhere.
    pub(super) async fn remove_permission(
        &self,
        namespace: &str,
        nsg: &str,
        rule: &str,
        kept: bool,
    ) -> Result<(), Error> {
        self.arm.delete(&format!("{nsg}/securityRules/{}", rules::name(rule))).await?;
        if kept {
            self.controller.delete_value(namespace, &self.name, &Self::tag_key(nsg, rule)).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Cloud for Azure {
    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let mut mappings = Vec::new();
        for deployment in deployments {
            let group = self.group(deployment)?;
            let all = self.all_vnets(&group, &deployment.namespace).await?;
            let (hubs, vnets): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_gateway_network);
            let mut spaces: Vec<IpNet> = vnets.iter().chain(&hubs).flat_map(spaces).collect();
            // Services have addresses that are in no network, and nobody else may have them.
            let clusters = self.clusters(&group, &deployment.namespace, &vnets).await?;
            spaces.extend(clusters.iter().filter_map(cluster::services));
            if !spaces.is_empty() {
                mappings.push(Mapping {
                    spaces,
                    cloud: self.name.clone(),
                    namespace: deployment.namespace.clone(),
                    deployment: Some(deployment.id.clone()),
                });
            }
        }
        Ok(mappings)
    }

    async fn used_asns(&self, deployments: &[Deployment]) -> Result<Vec<u32>, Error> {
        let mut asns = Vec::new();
        for deployment in deployments {
            let gateways = self.arm.list(&self.group(deployment)?.network("virtualNetworkGateways")).await?;
            asns.extend(gateways.iter().filter_map(|gateway| {
                gateway
                    .pointer("/properties/bgpSettings/asn")?
                    .as_u64()
                    .and_then(|asn| u32::try_from(asn).ok())
            }));
        }
        asns.sort_unstable();
        asns.dedup();
        Ok(asns)
    }

    async fn used_bgp_addresses(&self, deployments: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        let mut addresses = Vec::new();
        for deployment in deployments {
            let gateways = self.arm.list(&self.group(deployment)?.network("virtualNetworkGateways")).await?;
            addresses.extend(gateways.iter().flat_map(|gateway| super::vpn::inside(gateway).concat()));
        }
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        names::check("name", &new.name)?;
        let described = describe::read(&new.description)?;
        let group = self.group(&new.deployment)?;
        match described.kind {
            Kind::Machine => {
                self.make_machine(&group, &new.deployment.namespace, &new.name, &described).await
            }
            Kind::Cluster => {
                self.make_cluster(&group, &new.deployment.namespace, &new.name, &described).await
            }
        }
    }

    /// Azure's ids have no case.
    fn deployment_of(&self, uri: &str) -> Option<String> {
        Group::of(uri).map(|group| group.id().to_ascii_lowercase())
    }

    fn place_of(&self, id: &str, _: &str) -> Result<(String, String), Error> {
        Group::and_name(id).map(|(group, name)| (group.id().to_owned(), name))
    }

    async fn attach_resource(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        if !lock(&self.flags).attach_resource_enabled {
            return Err(Error::Unsupported("taking in resources is off: set attachResourceEnabled".into()));
        }
        self.attach(namespace, uri).await
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let machine = self.resource(namespace, uri).await?;
        let mut found = Vec::new();
        for (mut rule, tags) in self.permissions(&machine).await? {
            if tags == Tags::Kept {
                let key = Self::tag_key(&machine.nsg, &rule.name);
                let kept = self.controller.get_value(namespace, &self.name, &key).await?;
                rule.tags = kept.split_whitespace().map(str::to_owned).collect();
            }
            found.push(rule);
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        rules::check(&rules)?;
        let machine = self.resource(namespace, uri).await?;
        let written = {
            let _adding = self.ways.adding().await;
            self.write_rules(namespace, &machine, rules).await
        };
        self.after_adding(Network::new(&machine.group, namespace, &machine.vnet), written).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, gone: Vec<String>) -> Result<(), Error> {
        let machine = self.resource(namespace, uri).await?;
        {
            let _turn = self.turns.turn(&machine.nsg).await;
            for (rule, tags) in self.permissions(&machine).await? {
                if gone.contains(&rule.name) {
                    self.remove_permission(namespace, &machine.nsg, &rule.name, tags == Tags::Kept).await?;
                }
            }
        }
        self.take_ways(Some(Network::new(&machine.group, namespace, &machine.vnet))).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let group = self.group(&new.deployment)?;
        self.make_gateway(&group, &new.deployment.namespace, &new.bgp_addresses).await
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        let group = self.group(deployment)?;
        let addresses = crate::plan::bgp::agreed(&self.name, cloud);
        self.make_gateway(&group, &deployment.namespace, &addresses).await?;
        Ok(addresses)
    }

    fn replaces_keys(&self) -> bool {
        true
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        let group = self.group(&new.deployment)?;
        self.make_connections(&group, &new).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let vnets = self.vnets(&self.group(deployment)?, &deployment.namespace).await?;
        let found = vnets.iter().map(spaces).find(|own| own.iter().any(|own| own.contains(&space)));
        Ok(found.unwrap_or_default())
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        tell_idle_flags(&self.name, flags, &["attachResourceEnabled", "kubernetesClustersEnabled"]);
        *lock(&self.flags) = flags;
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for place in self.places(namespace) {
            let group = self.group(&place)?;
            for nic in self.arm.list(&group.network("networkInterfaces")).await? {
                let of = namespace_of(&nic).filter(|of| *of == place.namespace);
                let machine = nic["properties"]["virtualMachine"]["id"].as_str();
                let (Some(of), Some(machine)) = (of, machine) else { continue };
                held.push(Held {
                    namespace: of.into(),
                    name: names::last(machine).into(),
                    uri: machine.into(),
                    ip: machine::address(&nic).unwrap_or_default().into(),
                    network: machine::network(&nic).map(names::last).unwrap_or_default().into(),
                });
            }
            let vnets = self.vnets(&group, &place.namespace).await?;
            for found in self.clusters(&group, &place.namespace, &vnets).await? {
                let (Some(of), Some(subnet)) = (namespace_of(&found), cluster::subnet_of(&found)) else {
                    continue;
                };
                held.push(Held {
                    namespace: of.into(),
                    name: called(&found).into(),
                    uri: id(&found).into(),
                    ip: range_in(&vnets, subnet).map(|range| range.to_string()).unwrap_or_default(),
                    network: names::last(names::parent(subnet)).into(),
                });
            }
        }
        held.sort_by(|a, b| a.uri.cmp(&b.uri));
        Ok(held)
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        if is_cluster(uri) {
            self.remove_cluster(namespace, uri).await
        } else {
            self.remove_machine(namespace, uri).await
        }
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        let group = self.group(&old.deployment)?;
        self.remove_connections(&group, &old).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for place in self.places(namespace) {
            let group = self.group(&place)?;
            found.extend(self.differences(&group, &place.namespace, repair).await?);
            if repair {
                let vnets = self.vnets(&group, &place.namespace).await?;
                self.ways.owe(vnets.iter().map(|vnet| Network::new(&group, &place.namespace, id(vnet))));
            }
        }
        // A question changes nothing.
        if repair {
            self.take_ways(None).await?;
        }
        Ok(found)
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        self.others(deployments).await
    }
}

/// The id of an object in words.
pub(super) fn called(object: &Value) -> &str {
    names::last(id(object))
}
