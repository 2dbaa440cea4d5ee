//! The VPN gateway of a namespace, and its tunnels to other clouds.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Azure;
use super::names::{GATEWAY_SUBNET, Group, NAMESPACE_TAG, Names, last};
use super::network::{id, namespace_of};
use super::peering::Passage;
use crate::cloud::{NewConnections, OldConnections};
use crate::error::Error;
use crate::plan::connect::Gateway;

/// The two halves of a gateway, by the names of their configurations.
const HALVES: [&str; 2] = ["default", "activeActive"];
/// A tunnel that says nothing this long is made anew.
const DEAD_PEER_SECONDS: u32 = 45;

/// The addresses inside tunnels that each half of a gateway has.
pub(super) fn inside(gateway: &Value) -> [Vec<Ipv4Addr>; 2] {
    HALVES.map(|half| {
        let all = gateway.pointer("/properties/bgpSettings/bgpPeeringAddresses").and_then(Value::as_array);
        let own = all.into_iter().flatten().find(|entry| {
            entry["ipconfigurationId"].as_str().is_some_and(|id| last(id).eq_ignore_ascii_case(half))
        });
        let addresses = own.and_then(|entry| entry["customBgpIpAddresses"].as_array());
        addresses.into_iter().flatten().filter_map(|text| text.as_str()?.parse().ok()).collect()
    })
}

/// What each half has with these addresses too, dealt out in turn; nothing if it has them all.
fn with(mut have: [Vec<Ipv4Addr>; 2], wanted: &[Ipv4Addr]) -> Option<[Vec<Ipv4Addr>; 2]> {
    let mut changed = false;
    for (index, address) in wanted.iter().enumerate() {
        if !have.iter().flatten().any(|known| known == address) {
            have[index % 2].push(*address);
            changed = true;
        }
    }
    changed.then_some(have)
}

/// Static routes, as IBM's gateways want their tunnels.
fn ibm_policy() -> Value {
    json!([{
        "dhGroup": "DHGroup24",
        "ikeEncryption": "AES256",
        "ikeIntegrity": "SHA384",
        "ipsecEncryption": "AES256",
        "ipsecIntegrity": "SHA256",
        "pfsGroup": "None",
        "saDataSizeKilobytes": 0,
        "saLifeTimeSeconds": 27000,
    }])
}

impl Azure {
    async fn gateway_turn(&self, group: &Group, namespace: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.turns.turn(&format!("gateway {} {namespace}", group.id())).await
    }

    fn gateway_body(
        &self,
        group: &Group,
        namespace: &str,
        asn: u32,
        inside: Option<&[Vec<Ipv4Addr>; 2]>,
    ) -> Value {
        let names = Names(namespace);
        let own = group.network(&format!("virtualNetworkGateways/{}", names.gateway()));
        let subnet =
            group.network(&format!("virtualNetworks/{}/subnets/{GATEWAY_SUBNET}", names.gateway_vnet()));
        let halves = HALVES.iter().enumerate().map(|(index, half)| {
            json!({
                "name": half,
                "properties": {
                    "privateIPAllocationMethod": "Dynamic",
                    "publicIPAddress": { "id": group.network(&format!("publicIPAddresses/{}", names.gateway_ip(index))) },
                    "subnet": { "id": subnet },
                },
            })
        });
        let mut bgp = json!({ "asn": asn });
        if let Some(inside) = inside {
            let addresses = HALVES.iter().zip(inside).map(|(half, addresses)| {
                json!({
                    "ipconfigurationId": format!("{own}/ipConfigurations/{half}"),
                    "customBgpIpAddresses": addresses,
                })
            });
            bgp["bgpPeeringAddresses"] = addresses.collect();
        }
        json!({
            "location": self.config.gateway_location,
            "tags": { NAMESPACE_TAG: namespace },
            "properties": {
                "activeActive": true,
                "bgpSettings": bgp,
                "enableBgp": true,
                "gatewayType": "Vpn",
                "ipConfigurations": halves.collect::<Value>(),
                "sku": { "name": "VpnGw1", "tier": "VpnGw1" },
                "vpnGatewayGeneration": "Generation1",
                "vpnType": "RouteBased",
            },
        })
    }

    /// Makes the gateway or finds it, gives it these addresses inside tunnels, and lets every network
    /// of the namespace use it.
    pub(super) async fn make_gateway(
        &self,
        group: &Group,
        namespace: &str,
        addresses: &[Ipv4Addr],
    ) -> Result<Gateway, Error> {
        let names = Names(namespace);
        let _turn = self.gateway_turn(group, namespace).await;
        let hub = {
            let _turn = self.shape(group, namespace).await;
            self.gateway_vnet(group, namespace).await?
        };
        let mut public = Vec::new();
        for index in 0..HALVES.len() {
            let location = &self.config.gateway_location;
            let ip = self.public_ip(group, namespace, location, &names.gateway_ip(index)).await?;
            let address = ip["properties"]["ipAddress"].as_str();
            let address = address.ok_or_else(|| self.arm.failed(id(&ip), "it has no address"))?;
            public.push(address.to_owned());
        }
        let own = group.network(&format!("virtualNetworkGateways/{}", names.gateway()));
        let found = self.arm.settled(&own).await?;
        let known = found.as_ref().and_then(|found| {
            found.pointer("/properties/bgpSettings/asn")?.as_u64().and_then(|asn| u32::try_from(asn).ok())
        });
        let asn = match known {
            Some(asn) => asn,
            None => self.controller.find_asn().await?,
        };
        let gateway = match found {
            Some(found) if found["properties"]["provisioningState"] != "Failed" => found,
            _ => self.arm.put(&own, &self.gateway_body(group, namespace, asn, None)).await?,
        };
        if let Some(all) = with(inside(&gateway), addresses) {
            self.arm.put(&own, &self.gateway_body(group, namespace, asn, Some(&all))).await?;
        }
        let _shape = self.shape(group, namespace).await;
        for vnet in self.vnets(group, namespace).await? {
            self.peer(id(&hub), id(&vnet), Passage::Gateway).await?;
        }
        Ok(Gateway { asn, addresses: public })
    }

    /// Makes the tunnels to another cloud's gateway.
    pub(super) async fn make_connections(&self, group: &Group, new: &NewConnections) -> Result<(), Error> {
        let namespace = &new.deployment.namespace;
        if new.bgp && new.gateways.len() != new.bgp_addresses.len() {
            return Err(Error::invalid("gateway_ip_addresses", "must be as many as bgp_ip_addresses"));
        }
        let _turn = self.gateway_turn(group, namespace).await;
        let names = Names(namespace);
        let gateway = group.network(&format!("virtualNetworkGateways/{}", names.gateway()));
        if self.arm.settled(&gateway).await?.is_none() {
            return Err(Error::Place(format!("the namespace {namespace} has no VPN gateway")));
        }
        let mut known = self.local_gateways(group, namespace, &new.cloud).await?;
        for (number, address) in new.gateways.iter().enumerate() {
            let existing =
                known.iter().find(|(_, found)| found["properties"]["gatewayIpAddress"] == **address);
            let index = existing
                .map(|(index, _)| *index)
                .or_else(|| (0..=known.len()).find(|index| !known.iter().any(|(taken, _)| taken == index)));
            let index = index.unwrap_or_default();
            let mut properties = json!({ "gatewayIpAddress": address });
            if new.bgp {
                properties["bgpSettings"] = json!({
                    "asn": new.asn, "bgpPeeringAddress": new.bgp_addresses[number], "peerWeight": 0,
                });
            } else {
                properties["localNetworkAddressSpace"] = json!({ "addressPrefixes": new.remote_spaces });
            }
            let local =
                group.network(&format!("localNetworkGateways/{}", names.local_gateway(&new.cloud, index)));
            let body = json!({
                "location": self.config.gateway_location,
                "tags": { NAMESPACE_TAG: namespace },
                "properties": properties,
            });
            let made = self.arm.ensure(&local, &body).await?;
            known.push((index, made));
            self.make_connection(group, new, &gateway, &local, index).await?;
        }
        Ok(())
    }

    async fn make_connection(
        &self,
        group: &Group,
        new: &NewConnections,
        gateway: &str,
        local: &str,
        index: usize,
    ) -> Result<(), Error> {
        let namespace = &new.deployment.namespace;
        let own = group.network(&format!("connections/{}", Names(namespace).connection(&new.cloud, index)));
        let mut body = json!({
            "location": self.config.gateway_location,
            "tags": { NAMESPACE_TAG: namespace },
            "properties": {
                "connectionProtocol": "IKEv2",
                "connectionType": "IPsec",
                "dpdTimeoutSeconds": DEAD_PEER_SECONDS,
                "enableBgp": new.bgp,
                "localNetworkGateway2": { "id": local },
                "sharedKey": new.key.expose(),
                "virtualNetworkGateway1": { "id": gateway },
            },
        });
        if !new.bgp {
            body["properties"]["ipsecPolicies"] = ibm_policy();
        }
        let existed = self.arm.settled(&own).await?;
        self.arm.ensure(&own, &body).await?;
        if existed.is_some() {
            // Azure does not tell a connection's key with the connection.
            let key = format!("{own}/sharedkey");
            let found = self.arm.get(&key).await?.unwrap_or_default();
            if found["value"].as_str() != Some(new.key.expose()) {
                self.arm.put(&key, &json!({ "value": new.key.expose() })).await?;
            }
        }
        Ok(())
    }

    /// The local gateways that stand for a cloud, with their numbers.
    async fn local_gateways(
        &self,
        group: &Group,
        namespace: &str,
        cloud: &str,
    ) -> Result<Vec<(usize, Value)>, Error> {
        let all = self.arm.list(&group.network("localNetworkGateways")).await?;
        let ours = all.into_iter().filter_map(|found| {
            let index = Names(namespace).local_gateway_index(cloud, found["name"].as_str()?)?;
            (namespace_of(&found) == Some(namespace)).then_some((index, found))
        });
        Ok(ours.collect())
    }

    /// Removes tunnels, and the gateway with the last of them.
    pub(super) async fn remove_connections(&self, group: &Group, old: &OldConnections) -> Result<(), Error> {
        let namespace = &old.deployment.namespace;
        let names = Names(namespace);
        let _turn = self.gateway_turn(group, namespace).await;
        for (index, local) in self.local_gateways(group, namespace, &old.cloud).await? {
            let peer = local.pointer("/properties/bgpSettings/bgpPeeringAddress").and_then(Value::as_str);
            let meant = match peer.and_then(|peer| peer.parse::<Ipv4Addr>().ok()) {
                Some(peer) => old.bgp_addresses.contains(&peer),
                None => old.bgp_addresses.is_empty(),
            };
            if meant {
                let connection = names.connection(&old.cloud, index);
                self.arm.delete(&group.network(&format!("connections/{connection}"))).await?;
                self.arm.delete(id(&local)).await?;
            }
        }
        let left = self.arm.list(&group.network("localNetworkGateways")).await?;
        if left.iter().any(|found| namespace_of(found) == Some(namespace)) {
            return Ok(());
        }
        self.remove_gateway(group, namespace).await
    }

    async fn remove_gateway(&self, group: &Group, namespace: &str) -> Result<(), Error> {
        let names = Names(namespace);
        let _shape = self.shape(group, namespace).await;
        let hub = group.network(&format!("virtualNetworks/{}", names.gateway_vnet()));
        let vnets = self.vnets(group, namespace).await?;
        let gateway = group.network(&format!("virtualNetworkGateways/{}", names.gateway()));
        if self.arm.settled(&gateway).await?.is_some() {
            for vnet in &vnets {
                // The user of a gateway lets go of it first.
                self.release_gateway(&hub, id(vnet)).await?;
            }
            self.arm.delete(&gateway).await?;
        }
        for index in 0..HALVES.len() {
            self.arm
                .delete(&group.network(&format!("publicIPAddresses/{}", names.gateway_ip(index))))
                .await?;
        }
        if vnets.is_empty() { self.tidy_gateway(group, namespace).await } else { Ok(()) }
    }

    async fn release_gateway(&self, hub: &str, vnet: &str) -> Result<(), Error> {
        self.peer(vnet, hub, Passage::Plain).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_dealt_out_once() {
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let (a, b, c) = (address("169.254.21.1"), address("169.254.21.5"), address("169.254.21.9"));
        let first = with([vec![], vec![]], &[a, b]).unwrap();
        assert_eq!(first, [vec![a], vec![b]]);
        assert_eq!(with(first.clone(), &[a, b]), None);
        assert_eq!(with(first, &[c]).unwrap(), [vec![a, c], vec![b]]);
        let gateway = json!({ "properties": { "bgpSettings": { "bgpPeeringAddresses": [
            { "ipconfigurationId": "/x/ipConfigurations/ActiveActive", "customBgpIpAddresses": ["169.254.21.5"] },
        ] } } });
        assert_eq!(inside(&gateway), [vec![], vec![b]]);
    }
}
