//! Virtual networks: one for each namespace and location, peered with each other and with the gateway's.

use std::collections::BTreeSet;

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};

use super::Azure;
use super::arm::holds;
use super::machine::subnet_of_nic;
use super::names::{self, GATEWAY_SUBNET, Group, NAMESPACE_TAG, Names, SUBNET};
use super::peering::{Passage, halves, remote};
use crate::error::Error;

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

pub(super) fn prefixes(space: &Value) -> Vec<IpNet> {
    let prefixes = space["addressPrefixes"].as_array().into_iter().flatten();
    prefixes.filter_map(|prefix| prefix.as_str()?.parse().ok()).collect()
}

/// Whether this is the network that a namespace has at its place, and none that was taken in.
pub(super) fn is_ours(vnet: &Value, namespace: &str) -> bool {
    let location = names::location(vnet["location"].as_str().unwrap_or_default());
    vnet["name"].as_str() == Some(&*Names(namespace).vnet(&location))
}

pub(super) fn subnets(vnet: &Value) -> &[Value] {
    vnet["properties"]["subnets"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Whether any subnet of a network is not that of machines.
pub(super) fn has_clusters(vnet: &Value) -> bool {
    subnets(vnet).iter().any(|subnet| subnet["name"].as_str() != Some(SUBNET))
}

/// The range of a subnet.
pub(super) fn range(subnet: &Value) -> Option<IpNet> {
    let first = subnet["properties"]["addressPrefixes"].get(0);
    subnet["properties"]["addressPrefix"].as_str().or_else(|| first?.as_str())?.parse().ok()
}

/// The range of one of the subnets of these networks.
pub(super) fn range_in(vnets: &[Value], subnet: &str) -> Option<IpNet> {
    vnets.iter().flat_map(subnets).find(|found| id(found).eq_ignore_ascii_case(subnet)).and_then(range)
}

/// A network as it is, without what only Azure writes. Its peerings stay as they are when nothing is said of them.
fn vnet_body(vnet: &Value) -> Value {
    let mut properties = vnet["properties"].clone();
    if let Some(properties) = properties.as_object_mut() {
        for written in ["provisioningState", "resourceGuid", "virtualNetworkPeerings", "flowLogs"] {
            properties.remove(written);
        }
    }
    let named = subnets(vnet).iter().map(|subnet| {
        let mut body = subnet_body(subnet);
        body["name"] = subnet["name"].clone();
        body
    });
    properties["subnets"] = named.collect();
    json!({ "location": vnet["location"], "tags": vnet["tags"], "properties": properties })
}

pub(super) fn is_gateway_network(vnet: &Value) -> bool {
    namespace_of(vnet).is_some_and(|namespace| {
        vnet["name"].as_str().is_some_and(|name| name == Names(namespace).gateway_vnet())
    })
}

/// A subnet as it is, without what only Azure writes. What is not said is taken away, so all of it is said.
pub(super) fn subnet_body(subnet: &Value) -> Value {
    let told = &subnet["properties"];
    let mut properties = json!({});
    for field in [
        "addressPrefix",
        "addressPrefixes",
        "defaultOutboundAccess",
        "privateEndpointNetworkPolicies",
        "privateLinkServiceNetworkPolicies",
    ] {
        if !told[field].is_null() {
            properties[field] = told[field].clone();
        }
    }
    for field in ["networkSecurityGroup", "natGateway", "routeTable"] {
        if let Some(id) = told[field]["id"].as_str() {
            properties[field] = json!({ "id": id });
        }
    }
    for (field, parts) in [
        ("serviceEndpoints", &["service", "locations"][..]),
        ("serviceEndpointPolicies", &["id"]),
        ("ipAllocations", &["id"]),
        ("delegations", &["id", "name", "properties/serviceName"]),
        ("applicationGatewayIPConfigurations", &["id", "name", "properties/subnet/id"]),
    ] {
        if let Some(items) = told[field].as_array().filter(|items| !items.is_empty()) {
            properties[field] = items.iter().map(|item| only(item, parts)).collect();
        }
    }
    json!({ "properties": properties })
}

/// These parts of an object, and nothing else.
fn only(item: &Value, parts: &[&str]) -> Value {
    let mut kept = json!({});
    for part in parts {
        if let Some(value) = item.pointer(&format!("/{part}")) {
            part.split('/').fold(&mut kept, |at, name| &mut at[name]).clone_from(value);
        }
    }
    kept
}

impl Azure {
    /// One at a time changes the networks of a namespace. Never held while a gateway or machine is made.
    pub(super) async fn shape(&self, group: &Group, namespace: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.turns.turn(&format!("networks {} {namespace}", group.id())).await
    }

    /// The networks of a namespace, without the gateway's.
    pub(super) async fn vnets(&self, group: &Group, namespace: &str) -> Result<Vec<Value>, Error> {
        let mut vnets = self.all_vnets(group, namespace).await?;
        vnets.retain(|vnet| !is_gateway_network(vnet));
        Ok(vnets)
    }

    /// The networks of a namespace, and the gateway's.
    pub(super) async fn all_vnets(&self, group: &Group, namespace: &str) -> Result<Vec<Value>, Error> {
        let mut vnets = self.arm.list(&group.network("virtualNetworks")).await?;
        vnets.retain(|vnet| namespace_of(vnet) == Some(namespace));
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
        let space = self.space().await?;
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

    /// A space that nobody has.
    pub(super) async fn space(&self) -> Result<Ipv4Net, Error> {
        let found = self.controller.find_spaces(&[0]).await?;
        let space = found.into_iter().find_map(|space| match space {
            IpNet::V4(space) => Some(space),
            IpNet::V6(_) => None,
        });
        space.ok_or_else(|| Error::Unsupported("Azure's networks need an IPv4 address space".into()))
    }

    /// A subnet behind a packet filter, with a space of its own that the network gets for it.
    pub(super) async fn subnet_for(&self, vnet: &Value, name: &str, nsg: &str) -> Result<Value, Error> {
        let own = format!("{}/subnets/{name}", id(vnet));
        if let Some(found) = self.arm.settled(&own).await? {
            return self.put_subnet_behind(found, nsg).await;
        }
        let space = self.space().await?;
        let mut body = vnet_body(vnet);
        // One call for both: whoever is cut off has both or neither.
        push(&mut body["properties"]["addressSpace"]["addressPrefixes"], json!(space));
        let subnet = json!({
            "name": name, "properties": { "addressPrefix": space, "networkSecurityGroup": { "id": nsg } },
        });
        push(&mut body["properties"]["subnets"], subnet);
        self.arm.put(id(vnet), &body).await?;
        let made = self.arm.settled(&own).await?;
        made.ok_or_else(|| self.arm.failed(&own, "it was made, and is not there"))
    }

    /// A subnet that is behind this packet filter, and put there if it is not.
    pub(super) async fn put_subnet_behind(&self, subnet: Value, nsg: &str) -> Result<Value, Error> {
        let mut body = subnet_body(&subnet);
        body["properties"]["networkSecurityGroup"] = json!({ "id": nsg });
        if holds(&subnet, &body) { Ok(subnet) } else { self.arm.put(id(&subnet), &body).await }
    }

    /// Takes a subnet away and its space from the network; both may be gone already.
    pub(super) async fn remove_subnet(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &str,
        name: &str,
    ) -> Result<(), Error> {
        let _turn = self.shape(group, namespace).await;
        let Some(mut found) = self.arm.settled(vnet).await? else { return Ok(()) };
        let named =
            |subnet: &Value| subnet["name"].as_str().is_some_and(|own| own.eq_ignore_ascii_case(name));
        if let Some(subnet) = subnets(&found).iter().find(|subnet| named(subnet)) {
            let gone = range(subnet);
            let left: BTreeSet<IpNet> =
                spaces(&found).into_iter().filter(|space| Some(*space) != gone).collect();
            let mut body = vnet_body(&found);
            body["properties"]["addressSpace"]["addressPrefixes"] = json!(left);
            if let Some(subnets) = body["properties"]["subnets"].as_array_mut() {
                subnets.retain(|subnet| !named(subnet));
            }
            self.arm.put(vnet, &body).await?;
            found = self.arm.settled(vnet).await?.unwrap_or_default();
        }
        self.tell_peers(&found).await
    }

    /// The network of the VPN gateway. One that is there keeps its space, whatever the settings say now.
    pub(super) async fn gateway_vnet(&self, group: &Group, namespace: &str) -> Result<Value, Error> {
        let id = group.network(&format!("virtualNetworks/{}", Names(namespace).gateway_vnet()));
        let space = self.config.gateway_space;
        let made =
            |vnet: &Value| vnet["properties"]["provisioningState"] != "Failed" && is_gateway_network(vnet);
        if let Some(found) = self.arm.settled(&id).await?.filter(made) {
            return Ok(found);
        }
        let body = json!({
            "location": self.config.gateway_location,
            "tags": { NAMESPACE_TAG: namespace },
            "properties": {
                "addressSpace": { "addressPrefixes": [space] },
                "subnets": [{ "name": GATEWAY_SUBNET, "properties": { "addressPrefix": space } }],
            },
        });
        self.arm.put(&id, &body).await
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
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        let mut left = 0;
        for vnet in self.vnets(group, namespace).await? {
            let ours = is_ours(&vnet, namespace);
            let inhabited = subnets(&vnet).iter().any(|subnet| {
                subnet["name"].as_str() != Some(SUBNET)
                    || nics.iter().filter_map(subnet_of_nic).any(|of| of.eq_ignore_ascii_case(id(subnet)))
            });
            if !ours || inhabited {
                left += 1;
                continue;
            }
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for half in halves(&vnet) {
                match remote(half) {
                    Some(other) if self.made_peering(id(&vnet), half).await? => ours.push(other),
                    // Its other half is gone, and it never comes back by itself.
                    _ if half["properties"]["peeringState"] == "Disconnected" => {}
                    _ => theirs.push(names::last(id(half))),
                }
            }
            for other in ours {
                self.unpeer(id(&vnet), other).await?;
            }
            // A network takes its peerings with it, so one that others peered stays for as long as they want.
            if !theirs.is_empty() {
                let (network, peerings) = (names::last(id(&vnet)), theirs.join(" "));
                tracing::info!(cloud = %self.name, network, %peerings, "An empty network stays, as others peered it.");
                left += 1;
                continue;
            }
            self.close_public(group, namespace, &vnet).await?;
            // The network goes last: while it is there, it leads to all that belongs to it.
            self.arm.delete(id(&vnet)).await?;
        }
        if left == 0 { self.tidy_gateway(group, namespace).await } else { Ok(()) }
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

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(list) => list.push(item),
        other => *other = json!([item]),
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
    fn what_others_said_of_a_subnet_is_said_again() {
        let said = json!({
            "addressPrefix": "10.0.0.0/16", "privateEndpointNetworkPolicies": "Disabled",
            "privateLinkServiceNetworkPolicies": "Enabled", "defaultOutboundAccess": false,
            "routeTable": { "id": "/r" }, "natGateway": { "id": "/g" }, "ipAllocations": [{ "id": "/i" }],
            "serviceEndpoints": [{ "service": "Microsoft.Storage", "locations": ["westus2"] }],
            "serviceEndpointPolicies": [{ "id": "/p" }],
            "delegations": [{ "id": "/d", "name": "d", "properties": { "serviceName": "Microsoft.Sql/x" } }],
            "applicationGatewayIPConfigurations": [
                { "id": "/a", "name": "a", "properties": { "subnet": { "id": "/s" } } },
            ],
        });
        let mut found = json!({ "properties": said });
        for written in [
            "/properties/serviceEndpoints/0",
            "/properties/serviceEndpointPolicies/0",
            "/properties/delegations/0",
            "/properties/delegations/0/properties",
            "/properties/applicationGatewayIPConfigurations/0/properties",
        ] {
            found.pointer_mut(written).unwrap()["provisioningState"] = json!("Succeeded");
        }
        assert_eq!(subnet_body(&found), json!({ "properties": said }));
    }

    #[test]
    fn a_network_is_written_back_without_what_azure_adds() {
        let found = json!({
            "id": "/v", "name": "v", "location": "x", "etag": "1", "tags": { "a": "b" },
            "properties": {
                "addressSpace": { "addressPrefixes": ["10.0.0.0/16"] }, "provisioningState": "Succeeded",
                "resourceGuid": "g", "virtualNetworkPeerings": [{}], "enableDdosProtection": false,
                "subnets": [{ "id": "/v/subnets/s", "name": "s", "properties": {
                    "addressPrefix": "10.0.0.0/16", "provisioningState": "Succeeded",
                } }],
            },
        });
        let written = json!({
            "location": "x", "tags": { "a": "b" },
            "properties": {
                "addressSpace": { "addressPrefixes": ["10.0.0.0/16"] }, "enableDdosProtection": false,
                "subnets": [{ "name": "s", "properties": { "addressPrefix": "10.0.0.0/16" } }],
            },
        });
        assert_eq!(vnet_body(&found), written);
        assert_eq!(
            range_in(std::slice::from_ref(&found), "/V/subnets/S"),
            Some("10.0.0.0/16".parse().unwrap())
        );
        assert!(has_clusters(&found));
        let list = json!({ "properties": { "addressPrefixes": ["10.1.0.0/16"] } });
        assert_eq!(range(&list), Some("10.1.0.0/16".parse().unwrap()));
    }

    #[test]
    fn the_gateways_network_is_known_by_name_and_namespace() {
        let vnet = |name: &str| json!({ "name": name, "tags": { NAMESPACE_TAG: "a" } });
        assert!(is_gateway_network(&vnet("paraglider-a-vpn-gw-vnet")));
        assert!(!is_gateway_network(&vnet("paraglider-b-vpn-gw-vnet")));
    }
}
