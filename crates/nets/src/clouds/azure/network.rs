//! Virtual networks: one for each namespace and location, peered with each other and with the gateway's.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::arm::holds;
use super::names::{self, GATEWAY_SUBNET, Group, NAMESPACE_TAG, Names, SUBNET};
use super::{Azure, rules};
use crate::error::Error;
use crate::plan::target::Owner;

/// The space of every gateway's network: it is never routed to, so all may have the same.
const GATEWAY_SPACE: &str = "192.168.255.0/27";

/// How two networks are peered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// Their machines reach each other.
    Plain,
    /// The first has the VPN gateway, and the second uses it.
    Gateway,
}

/// The namespace an object belongs to.
pub(super) fn namespace_of(object: &Value) -> Option<&str> {
    object["tags"][NAMESPACE_TAG].as_str()
}

/// An object's id.
pub(super) fn id(object: &Value) -> &str {
    object["id"].as_str().unwrap_or_default()
}

/// The spaces of a network.
pub(super) fn spaces(vnet: &Value) -> Vec<IpNet> {
    prefixes(&vnet["properties"]["addressSpace"])
}

fn prefixes(space: &Value) -> Vec<IpNet> {
    let prefixes = space["addressPrefixes"].as_array().into_iter().flatten();
    prefixes.filter_map(|prefix| prefix.as_str()?.parse().ok()).collect()
}

fn is_gateway_network(vnet: &Value) -> bool {
    namespace_of(vnet).is_some_and(|namespace| {
        vnet["name"].as_str().is_some_and(|name| name == Names(namespace).gateway_vnet())
    })
}

/// A subnet as it is, without what only Azure writes.
fn subnet_body(subnet: &Value) -> Value {
    let mut properties = json!({});
    for field in ["addressPrefix", "addressPrefixes"] {
        if !subnet["properties"][field].is_null() {
            properties[field] = subnet["properties"][field].clone();
        }
    }
    for field in ["networkSecurityGroup", "natGateway", "routeTable"] {
        if let Some(id) = subnet["properties"][field]["id"].as_str() {
            properties[field] = json!({ "id": id });
        }
    }
    json!({ "properties": properties })
}

impl Azure {
    /// One at a time changes the networks of a namespace. Never held while a gateway or machine is made.
    pub(super) async fn shape(&self, group: &Group, namespace: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.turns.turn(&format!("networks {} {namespace}", group.id())).await
    }

    /// The networks of a namespace, without the gateway's.
    pub(super) async fn vnets(&self, group: &Group, namespace: &str) -> Result<Vec<Value>, Error> {
        let mut vnets = self.arm.list(&group.network("virtualNetworks")).await?;
        vnets.retain(|vnet| namespace_of(vnet) == Some(namespace) && !is_gateway_network(vnet));
        Ok(vnets)
    }

    /// The network of a location, made if there is none.
    pub(super) async fn vnet_for(
        &self,
        group: &Group,
        namespace: &str,
        location: &str,
    ) -> Result<Value, Error> {
        let id = group.network(&format!("virtualNetworks/{}", Names(namespace).vnet(location)));
        if let Some(vnet) = self.arm.settled(&id).await? {
            return match namespace_of(&vnet) {
                Some(of) if of == namespace => Ok(vnet),
                _ => Err(Error::Foreign { namespace: namespace.into(), resource: id }),
            };
        }
        let found = self.controller.find_spaces(&[0]).await?;
        let space = found.into_iter().find(|space| space.addr().is_ipv4());
        let space =
            space.ok_or_else(|| Error::Unsupported("Azure's networks need an IPv4 address space".into()))?;
        let body = json!({
            "location": location,
            "tags": { NAMESPACE_TAG: namespace },
            "properties": {
                "addressSpace": { "addressPrefixes": [space] },
                "subnets": [{ "name": SUBNET, "properties": { "addressPrefix": space } }],
            },
        });
        self.arm.put(&id, &body).await
    }

    /// The network of the VPN gateway.
    pub(super) async fn gateway_vnet(&self, group: &Group, namespace: &str) -> Result<Value, Error> {
        let id = group.network(&format!("virtualNetworks/{}", Names(namespace).gateway_vnet()));
        let body = json!({
            "location": self.config.gateway_location,
            "tags": { NAMESPACE_TAG: namespace },
            "properties": {
                "addressSpace": { "addressPrefixes": [GATEWAY_SPACE] },
                "subnets": [{ "name": GATEWAY_SUBNET, "properties": { "addressPrefix": GATEWAY_SPACE } }],
            },
        });
        self.arm.ensure(&id, &body).await
    }

    /// Peers a network with the gateway's; through it if there is a gateway.
    pub(super) async fn join_gateway(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
    ) -> Result<(), Error> {
        let hub = self.gateway_vnet(group, namespace).await?;
        let gateway = group.network(&format!("virtualNetworkGateways/{}", Names(namespace).gateway()));
        // One that is being made will join all networks itself when it is there.
        let ready = self
            .arm
            .get(&gateway)
            .await?
            .is_some_and(|gateway| gateway["properties"]["provisioningState"] == "Succeeded");
        let passage = if ready { Passage::Gateway } else { Passage::Plain };
        self.peer(id(&hub), id(vnet), passage).await
    }

    /// Peers two networks, both ways.
    pub(super) async fn peer(&self, first: &str, second: &str, passage: Passage) -> Result<(), Error> {
        let gateway = passage == Passage::Gateway;
        let mut halves = Vec::new();
        for (own, other, serves) in [(first, second, true), (second, first, false)] {
            let name = names::peering(names::last(own), names::last(other));
            let id = format!("{own}/virtualNetworkPeerings/{name}");
            let body = json!({
                "properties": {
                    "remoteVirtualNetwork": { "id": other },
                    "allowVirtualNetworkAccess": true,
                    "allowForwardedTraffic": gateway,
                    "allowGatewayTransit": gateway && serves,
                    "useRemoteGateways": gateway && !serves,
                },
            });
            let mut found = self.arm.settled(&id).await?;
            // A half whose other half was removed never comes back by itself, and stands in the way of a new one.
            if found.as_ref().is_some_and(|half| half["properties"]["peeringState"] == "Disconnected") {
                self.arm.delete(&id).await?;
                found = None;
            }
            halves.push((id, body, found));
        }
        for (id, body, found) in halves {
            if !found.is_some_and(|half| holds(&half, &body)) {
                self.arm.put(&id, &body).await?;
            }
        }
        Ok(())
    }

    /// Takes a peering away, both ways.
    pub(super) async fn unpeer(&self, first: &str, second: &str) -> Result<(), Error> {
        // The far half first: the near one, which callers look at, leads to it after a crash.
        for (own, other) in [(second, first), (first, second)] {
            let name = names::peering(names::last(own), names::last(other));
            self.arm.delete(&format!("{own}/virtualNetworkPeerings/{name}")).await?;
        }
        Ok(())
    }

    /// Peers a network with one that somebody's targets are in.
    pub(super) async fn peer_with(&self, group: &Group, vnet: &Value, other: &Owner) -> Result<(), Error> {
        let there = match &other.deployment {
            Some(deployment) => Group::parse("deployment", deployment)?,
            None => group.clone(),
        };
        let vnets = self.vnets(&there, &other.namespace).await?;
        let Some(peer) = vnets.iter().find(|vnet| spaces(vnet).contains(&other.space)) else {
            return Err(Error::Internal(format!("{} is reported as ours and is not", other.space)));
        };
        let _turn = self.turns.turn("peerings").await;
        self.peer(id(vnet), id(peer), Passage::Plain).await
    }

    /// Takes away peerings of a network that no rule needs any more.
    pub(super) async fn prune(&self, vnet_id: &str) -> Result<(), Error> {
        let _turn = self.turns.turn("peerings").await;
        let Some(vnet) = self.arm.get(vnet_id).await? else { return Ok(()) };
        let own = spaces(&vnet);
        for half in vnet["properties"]["virtualNetworkPeerings"].as_array().into_iter().flatten() {
            let Some(other) = half["properties"]["remoteVirtualNetwork"]["id"].as_str() else { continue };
            let ours = names::peering(names::last(vnet_id), names::last(other));
            let hub = namespace_of(&vnet).map(|namespace| Names(namespace).gateway_vnet());
            if half["name"].as_str() != Some(&*ours) || hub.as_deref() == Some(names::last(other)) {
                continue;
            }
            let far = prefixes(&half["properties"]["remoteAddressSpace"]);
            let mut groups: Vec<Group> = [vnet_id, other].iter().filter_map(|id| Group::of(id)).collect();
            groups.dedup();
            let mut filters = Vec::new();
            for group in groups {
                for nsg in self.arm.list(&group.network("networkSecurityGroups")).await? {
                    filters
                        .extend(nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default());
                }
            }
            if !rules::joins(&filters, &own, &far) {
                self.unpeer(vnet_id, other).await?;
            }
        }
        Ok(())
    }

    /// Gives the machines of a network a way to public addresses.
    pub(super) async fn open_public(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
    ) -> Result<(), Error> {
        let names = Names(namespace);
        let location = names::location(vnet["location"].as_str().unwrap_or_default());
        let _turn = self.shape(group, namespace).await;
        let ip = self.public_ip(group, namespace, &location, &names.nat_ip(&location)).await?;
        let nat = group.network(&format!("natGateways/{}", names.nat(&location)));
        let body = json!({
            "location": location,
            "tags": { NAMESPACE_TAG: namespace },
            "sku": { "name": "Standard" },
            "properties": { "publicIpAddresses": [{ "id": id(&ip) }] },
        });
        let nat = self.arm.ensure(&nat, &body).await?;
        let subnet = format!("{}/subnets/{SUBNET}", id(vnet));
        let Some(found) = self.arm.settled(&subnet).await? else { return Ok(()) };
        let mut body = subnet_body(&found);
        body["properties"]["natGateway"] = json!({ "id": id(&nat) });
        if holds(&found, &body) { Ok(()) } else { self.arm.put(&subnet, &body).await.map(drop) }
    }

    /// A public address.
    pub(super) async fn public_ip(
        &self,
        group: &Group,
        namespace: &str,
        location: &str,
        name: &str,
    ) -> Result<Value, Error> {
        let body = json!({
            "location": location,
            "tags": { NAMESPACE_TAG: namespace },
            "sku": { "name": "Standard" },
            "properties": { "publicIPAllocationMethod": "Static" },
        });
        self.arm.ensure(&group.network(&format!("publicIPAddresses/{name}")), &body).await
    }

    /// Removes networks of ours that nothing is in any more, and what was made for them alone.
    pub(super) async fn tidy(&self, group: &Group, namespace: &str) -> Result<(), Error> {
        let _turn = self.shape(group, namespace).await;
        let names = Names(namespace);
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        let mut left = 0;
        for vnet in self.vnets(group, namespace).await? {
            let location = names::location(vnet["location"].as_str().unwrap_or_default());
            let ours = vnet["name"].as_str() == Some(&*names.vnet(&location));
            let subnets = vnet["properties"]["subnets"].as_array().cloned().unwrap_or_default();
            let inhabited = subnets.iter().any(|subnet| {
                subnet["name"].as_str() != Some(SUBNET)
                    || nics.iter().any(|nic| {
                        let of = nic.pointer("/properties/ipConfigurations/0/properties/subnet/id");
                        of.and_then(Value::as_str).is_some_and(|of| of.eq_ignore_ascii_case(id(subnet)))
                    })
            });
            if !ours || inhabited {
                left += 1;
                continue;
            }
            for half in vnet["properties"]["virtualNetworkPeerings"].as_array().into_iter().flatten() {
                if let Some(other) = half["properties"]["remoteVirtualNetwork"]["id"].as_str() {
                    self.unpeer(id(&vnet), other).await?;
                }
            }
            self.close_public(group, namespace, &vnet, &location).await?;
            // The network goes last: while it is there, it leads to all that belongs to it.
            self.arm.delete(id(&vnet)).await?;
        }
        if left == 0 { self.tidy_gateway(group, namespace).await } else { Ok(()) }
    }

    async fn close_public(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
        location: &str,
    ) -> Result<(), Error> {
        let names = Names(namespace);
        let ip = group.network(&format!("publicIPAddresses/{}", names.nat_ip(location)));
        if self.arm.get(&ip).await?.is_none() {
            return Ok(());
        }
        for subnet in vnet["properties"]["subnets"].as_array().into_iter().flatten() {
            let mut body = subnet_body(subnet);
            let used =
                body["properties"].as_object_mut().and_then(|properties| properties.remove("natGateway"));
            if used.is_some() {
                self.arm.put(id(subnet), &body).await?;
            }
        }
        self.arm.delete(&group.network(&format!("natGateways/{}", names.nat(location)))).await?;
        self.arm.delete(&ip).await
    }

    /// Removes the gateway's network if there is no gateway in it.
    pub(super) async fn tidy_gateway(&self, group: &Group, namespace: &str) -> Result<(), Error> {
        let names = Names(namespace);
        let gateway = group.network(&format!("virtualNetworkGateways/{}", names.gateway()));
        if self.arm.get(&gateway).await?.is_none() {
            self.arm.delete(&group.network(&format!("virtualNetworks/{}", names.gateway_vnet()))).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_written_back_without_what_azure_adds() {
        let found = json!({
            "id": "/x", "etag": "1", "name": "default",
            "properties": {
                "addressPrefix": "10.0.0.0/16", "provisioningState": "Succeeded",
                "ipConfigurations": [{ "id": "/y" }], "networkSecurityGroup": { "id": "/n", "etag": "2" },
            },
        });
        assert_eq!(
            subnet_body(&found),
            json!({ "properties": { "addressPrefix": "10.0.0.0/16", "networkSecurityGroup": { "id": "/n" } } })
        );
    }

    #[test]
    fn the_gateways_network_is_known_by_name_and_namespace() {
        let vnet = |name: &str| json!({ "name": name, "tags": { NAMESPACE_TAG: "a" } });
        assert!(is_gateway_network(&vnet("paraglider-a-vpn-gw-vnet")));
        assert!(!is_gateway_network(&vnet("paraglider-b-vpn-gw-vnet")));
    }
}
