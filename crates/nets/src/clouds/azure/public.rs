//! The way to public addresses: a NAT gateway for each network, there while a rule has a public target.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::arm::holds;
use super::machine::subnet_of_nic;
use super::names::{self, Group, NAMESPACE_TAG, Names};
use super::network::{id, is_ours, subnet_body, subnets};
use super::{Azure, rules};
use crate::clouds::ways::{HasWays, Ways};
use crate::error::Error;

/// The gateway of a network, and its address.
fn gateway(group: &Group, namespace: &str, vnet: &Value) -> (String, String) {
    let names = Names(namespace);
    let nat = if is_ours(vnet, namespace) {
        names.nat(&names::location(vnet["location"].as_str().unwrap_or_default()))
    } else {
        names.nat_of(names::last(id(vnet)))
    };
    (group.network(&format!("natGateways/{nat}")), format!("{nat}-ip"))
}

/// The id that an object has in a field.
fn referred<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object["properties"][field]["id"].as_str()
}

impl Azure {
    /// Gives what is in a subnet a way to public addresses. One that others gave it serves as well.
    pub(super) async fn open_public(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
        subnet: &str,
    ) -> Result<(), Error> {
        let _turn = self.shape(group, namespace).await;
        let subnet = format!("{}/subnets/{subnet}", id(vnet));
        // Before anything is made that is paid for.
        let found = self.arm.settled(&subnet).await?;
        let found = found.ok_or_else(|| self.arm.failed(&subnet, "it is gone"))?;
        let (own, ip) = gateway(group, namespace, vnet);
        if referred(&found, "natGateway").is_some_and(|other| !other.eq_ignore_ascii_case(&own)) {
            return Ok(());
        }
        let location = names::location(vnet["location"].as_str().unwrap_or_default());
        let ip = self.public_ip(group, namespace, &location, &ip).await?;
        let body = json!({
            "location": location,
            "tags": { NAMESPACE_TAG: namespace },
            "sku": { "name": "Standard" },
            "properties": { "publicIpAddresses": [{ "id": id(&ip) }] },
        });
        let nat = self.arm.ensure(&own, &body).await?;
        let mut body = subnet_body(&found);
        body["properties"]["natGateway"] = json!({ "id": id(&nat) });
        if holds(&found, &body) { Ok(()) } else { self.arm.put(&subnet, &body).await.map(drop) }
    }

    /// Takes the way to public addresses from all of a network.
    pub(super) async fn close_public(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
    ) -> Result<(), Error> {
        self.close_public_of(group, namespace, vnet, |_| true).await
    }

    /// Takes the way to public addresses from subnets, and the gateway with the last of them. The address goes
    /// last: while it is there, so may be the rest.
    async fn close_public_of(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
        idle: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Result<(), Error> {
        let (own, ip) = gateway(group, namespace, vnet);
        let ip = group.network(&format!("publicIPAddresses/{ip}"));
        if self.arm.get(&ip).await?.is_none() {
            return Ok(());
        }
        let mut left = 0;
        for subnet in subnets(vnet) {
            if !referred(subnet, "natGateway").is_some_and(|nat| nat.eq_ignore_ascii_case(&own)) {
                continue;
            }
            if !idle(subnet) {
                left += 1;
                continue;
            }
            let mut body = subnet_body(subnet);
            if let Some(properties) = body["properties"].as_object_mut() {
                properties.remove("natGateway");
            }
            self.arm.put(id(subnet), &body).await?;
        }
        if left > 0 {
            return Ok(());
        }
        self.arm.delete(&own).await?;
        self.arm.delete(&ip).await
    }

    /// Takes the way to public addresses from subnets of a network in which no rule has a public target any more.
    async fn close_idle_public(&self, group: &Group, namespace: &str, vnet: &str) -> Result<(), Error> {
        let _turn = self.shape(group, namespace).await;
        let Some(vnet) = self.arm.settled(vnet).await? else { return Ok(()) };
        let (_, ip) = gateway(group, namespace, &vnet);
        if self.arm.get(&group.network(&format!("publicIPAddresses/{ip}"))).await?.is_none() {
            return Ok(());
        }
        let filters = self.arm.list(&group.network("networkSecurityGroups")).await?;
        let open: BTreeSet<String> = filters
            .iter()
            .filter(|nsg| {
                let rules = nsg["properties"]["securityRules"].as_array();
                rules.into_iter().flatten().any(rules::is_public)
            })
            .map(|nsg| id(nsg).to_ascii_lowercase())
            .collect();
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        let is_open = |object: &Value| {
            referred(object, "networkSecurityGroup")
                .is_some_and(|nsg| open.contains(&nsg.to_ascii_lowercase()))
        };
        let idle = |subnet: &Value| {
            let inside =
                |nic: &&Value| subnet_of_nic(nic).is_some_and(|of| of.eq_ignore_ascii_case(id(subnet)));
            !is_open(subnet) && !nics.iter().filter(inside).any(is_open)
        };
        self.close_public_of(group, namespace, &vnet, idle).await
    }
}

impl HasWays for Azure {
    type Network = Network;

    fn ways(&self) -> &Ways<Network> {
        &self.ways
    }

    fn called(&self) -> &str {
        &self.name
    }

    async fn take_ways_of(&self, network: &Network) -> Result<(), Error> {
        let Network { group, namespace, vnet } = network;
        self.prune(vnet).await?;
        let group = Group::parse("deployment", group)?;
        self.close_idle_public(&group, namespace, vnet).await
    }
}

/// A network whose ways may be idle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::clouds) struct Network {
    /// The resource group of what is in it.
    pub(super) group: String,
    pub(super) namespace: String,
    /// Its id.
    pub(super) vnet: String,
}

impl Network {
    pub(super) fn new(group: &Group, namespace: &str, vnet: &str) -> Self {
        Self { group: group.id().into(), namespace: namespace.into(), vnet: vnet.into() }
    }
}
