//! VPNs: a gateway and a router in one region, tunnels and BGP sessions on both.
//!
//! The interfaces of the router are the record of the tunnels: each is made before its tunnel, and goes before it.

use std::net::Ipv4Addr;

use http::Method;
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::network::network_path;
use super::{Gcp, last, legal, n, project, url};
use crate::cloud::{NewConnections, NewGateway, OldConnections};
use crate::error::Error;
use crate::model::Deployment;
use crate::plan::bgp;
use crate::plan::connect::Gateway;

/// Interfaces of a router with an address inside a tunnel.
pub(super) fn insides(router: &Value) -> impl Iterator<Item = (Ipv4Addr, &Value)> {
    let interfaces = router["interfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    interfaces.iter().filter_map(|interface| {
        Some((interface["ipRange"].as_str()?.split('/').next()?.parse().ok()?, interface))
    })
}

/// The interface of the tunnel an address is in, whichever end's it is.
fn around(router: &Value, address: Ipv4Addr) -> Option<&Value> {
    let tunnel = Ipv4Net::new_assert(address, 30).trunc();
    insides(router).find(|(inside, _)| tunnel.contains(inside)).map(|(_, interface)| interface)
}

fn names<'a>(router: &'a Value, list: &str) -> Vec<&'a str> {
    router[list].as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// All names that a link to a cloud gets fit, or an error before any of it is made.
fn check_names(namespace: &str, cloud: &str) -> Result<(), Error> {
    // The first generation names no cloud yet.
    if cloud.is_empty() {
        return Ok(());
    }
    let n = n(namespace);
    for name in
        [format!("{n}-{cloud}-tunnel-0-int-0"), format!("{n}-{cloud}-peer-gw"), format!("{cloud}-bgp-peer-0")]
    {
        legal("cloud", name)?;
    }
    Ok(())
}

impl Gcp {
    /// Where gateways are.
    pub(super) fn region(&self, project: &str) -> String {
        format!("projects/{project}/regions/{}", self.vpn_region)
    }

    pub(super) async fn vpn_router(&self, deployment: &Deployment) -> Result<Option<Value>, Error> {
        let region = self.region(project(&deployment.id)?);
        self.get(&format!("{region}/routers/{}-router", n(&deployment.namespace))).await
    }

    /// The router of a namespace's gateway, with a number.
    async fn router(&self, deployment: &Deployment) -> Result<(Value, u32), Error> {
        let project = project(&deployment.id)?;
        let (region, n) = (self.region(project), n(&deployment.namespace));
        let number = |router: &Value| router["bgp"]["asn"].as_u64().and_then(|asn| u32::try_from(asn).ok());
        let known = self.vpn_router(deployment).await?;
        if let Some((router, asn)) = known.as_ref().and_then(|router| Some((router.clone(), number(router)?)))
        {
            return Ok((router, asn));
        }
        let asn = self.controller.find_asn().await?;
        let bgp = json!({ "asn": asn });
        if known.is_some() {
            // It was made for NAT alone.
            self.change(Method::PATCH, &format!("{region}/routers/{n}-router"), Some(json!({ "bgp": bgp })))
                .await?;
        } else {
            let network = url(&network_path(project, &deployment.namespace));
            let router =
                json!({ "name": legal("namespace", format!("{n}-router"))?, "network": network, "bgp": bgp });
            self.insert(&format!("{region}/routers"), router).await?;
        }
        let router = self.vpn_router(deployment).await?.unwrap_or_default();
        let asn = number(&router).ok_or_else(|| self.strange("a router without a number"))?;
        Ok((router, asn))
    }

    /// Interfaces for these addresses inside tunnels.
    async fn make_interfaces(
        &self,
        deployment: &Deployment,
        cloud: &str,
        addresses: &[Ipv4Addr],
    ) -> Result<u32, Error> {
        let region = self.region(project(&deployment.id)?);
        let n = n(&deployment.namespace);
        let _turn = self.router.lock().await;
        let (router, asn) = self.router(deployment).await?;
        let mut all = router["interfaces"].as_array().cloned().unwrap_or_default();
        let before = all.len();
        for address in addresses.iter().filter(|address| around(&router, **address).is_none()) {
            let name = |index: usize| format!("{n}-{cloud}-tunnel-{index}-int-{index}");
            let free = (0..=all.len()).find(|index| !all.iter().any(|item| item["name"] == name(*index)));
            let index = free.unwrap_or_default();
            let tunnel = format!("{n}-{cloud}-tunnel-{index}");
            all.push(json!({
                "name": legal("cloud", name(index))?, "ipRange": format!("{address}/30"),
                "linkedVpnTunnel": url(&format!("{region}/vpnTunnels/{tunnel}")),
            }));
        }
        if all.len() > before {
            let body = json!({ "interfaces": all });
            self.change(Method::PATCH, &format!("{region}/routers/{n}-router"), Some(body)).await?;
        }
        Ok(asn)
    }

    pub(super) async fn make_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let project = project(&new.deployment.id)?;
        let (region, n) = (self.region(project), n(&new.deployment.namespace));
        let network = url(&network_path(project, &new.deployment.namespace));
        let gateway = legal("namespace", format!("{n}-vpn-gw"))?;
        let path = format!("{region}/vpnGateways/{gateway}");
        check_names(&new.deployment.namespace, &new.cloud)?;
        if self.get(&path).await?.is_none() {
            self.insert(&format!("{region}/vpnGateways"), json!({ "name": gateway, "network": network }))
                .await?;
        }
        let asn = self.make_interfaces(&new.deployment, &new.cloud, &new.bgp_addresses).await?;
        // The first generation names none yet.
        let count = match new.bgp_addresses.len() {
            0 => bgp::TUNNELS_AGREED,
            named => named,
        };
        let addresses = self.gateway_addresses(&path).await?;
        if addresses.len() < count {
            let said = format!("the gateway has {} addresses, {count} are needed", addresses.len());
            return Err(self.rest.failed("CreateVpnGateway", &said));
        }
        Ok(Gateway { asn, addresses: addresses.into_iter().take(count).collect() })
    }

    async fn gateway_addresses(&self, path: &str) -> Result<Vec<String>, Error> {
        let mut waiting = self.rest.waiting(path);
        loop {
            let made = self.get(path).await?.unwrap_or_default();
            let interfaces = made["vpnInterfaces"].as_array().cloned().unwrap_or_default();
            let found: Vec<String> =
                interfaces.iter().filter_map(|one| one["ipAddress"].as_str().map(str::to_owned)).collect();
            if !interfaces.is_empty() && found.len() == interfaces.len() {
                return Ok(found);
            }
            waiting.pause(None).await?;
        }
    }

    pub(super) async fn make_session(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        let own = bgp::agreed(&self.name, cloud);
        check_names(&deployment.namespace, cloud)?;
        self.make_interfaces(deployment, cloud, &own).await?;
        Ok(own)
    }

    pub(super) async fn make_connections(&self, new: NewConnections) -> Result<(), Error> {
        if !new.bgp {
            return Err(Error::Unsupported("Google Cloud is connected with BGP only".into()));
        }
        if new.gateways.len() != new.bgp_addresses.len() {
            return Err(Error::invalid("gateway_ip_addresses", "must be as many as bgp_ip_addresses"));
        }
        let project = project(&new.deployment.id)?;
        check_names(&new.deployment.namespace, &new.cloud)?;
        let (region, n) = (self.region(project), n(&new.deployment.namespace));
        let router = self.vpn_router(&new.deployment).await?.unwrap_or_default();
        let mut interfaces = Vec::new();
        for address in &new.bgp_addresses {
            let found =
                around(&router, *address).map(|one| (one["name"].clone(), one["linkedVpnTunnel"].clone()));
            let missing = || Error::invalid("bgp_ip_addresses", format!("no gateway was made for {address}"));
            interfaces.push(found.ok_or_else(missing)?);
        }
        let tunnel_name = |index: usize| {
            interfaces.get(index).and_then(|(_, tunnel)| tunnel.as_str()).map(last).unwrap_or_default()
        };
        // A second link to the same cloud has other tunnels, and a peer of its own.
        let first = tunnel_name(0).rsplit('-').next().filter(|index| *index != "0");
        let suffix = first.map(|index| format!("-{index}")).unwrap_or_default();
        let peer = legal("cloud", format!("{n}-{}-peer-gw{suffix}", new.cloud))?;
        let peers = format!("projects/{project}/global/externalVpnGateways");
        if self.get(&format!("{peers}/{peer}")).await?.is_none() {
            let redundancy =
                if new.gateways.len() > 1 { "TWO_IPS_REDUNDANCY" } else { "SINGLE_IP_INTERNALLY_REDUNDANT" };
            let ends: Vec<Value> = new
                .gateways
                .iter()
                .enumerate()
                .map(|(id, address)| json!({ "id": id, "ipAddress": address }))
                .collect();
            self.insert(&peers, json!({ "name": peer, "redundancyType": redundancy, "interfaces": ends }))
                .await?;
        }
        for index in 0..new.gateways.len() {
            let name = tunnel_name(index);
            if self.get(&format!("{region}/vpnTunnels/{name}")).await?.is_some() {
                continue;
            }
            let tunnel = json!({
                "name": name,
                "vpnGateway": url(&format!("{region}/vpnGateways/{n}-vpn-gw")),
                "vpnGatewayInterface": index,
                "peerExternalGateway": url(&format!("{peers}/{peer}")),
                "peerExternalGatewayInterface": index,
                "ikeVersion": 2,
                "sharedSecret": new.key.expose(),
                "router": url(&format!("{region}/routers/{n}-router")),
            });
            self.insert(&format!("{region}/vpnTunnels"), tunnel).await?;
        }
        let _turn = self.router.lock().await;
        let router = self.vpn_router(&new.deployment).await?.unwrap_or_default();
        let mut all = router["bgpPeers"].as_array().cloned().unwrap_or_default();
        let before = all.len();
        for ((interface, tunnel), address) in interfaces.iter().zip(&new.bgp_addresses) {
            let index = tunnel.as_str().and_then(|tunnel| tunnel.rsplit('-').next()).unwrap_or_default();
            let name = legal("cloud", format!("{}-bgp-peer-{index}", new.cloud))?;
            if !names(&router, "bgpPeers").contains(&name.as_str()) {
                all.push(json!({
                    "name": name, "interfaceName": interface, "peerIpAddress": address.to_string(), "peerAsn": new.asn,
                }));
            }
        }
        if all.len() == before {
            return Ok(());
        }
        self.change(Method::PATCH, &format!("{region}/routers/{n}-router"), Some(json!({ "bgpPeers": all })))
            .await
            .map(drop)
    }

    pub(super) async fn remove_connections(&self, project: &str, old: &OldConnections) -> Result<(), Error> {
        let (region, n) = (self.region(project), n(&old.deployment.namespace));
        let path = format!("{region}/routers/{n}-router");
        let _turn = self.router.lock().await;
        let mut router = self.vpn_router(&old.deployment).await?.unwrap_or_default();
        let gone: Vec<String> = old
            .bgp_addresses
            .iter()
            .filter_map(|address| Some(around(&router, *address)?["name"].as_str()?.to_owned()))
            .collect();
        if !gone.is_empty() {
            let is_gone = |name: &Value| name.as_str().is_some_and(|name| gone.iter().any(|one| one == name));
            let keep = |list: &str, by: &str| -> Vec<Value> {
                let all = router[list].as_array().cloned().unwrap_or_default();
                all.into_iter().filter(|item| !is_gone(&item[by])).collect()
            };
            let body = json!({ "bgpPeers": keep("bgpPeers", "interfaceName"), "interfaces": keep("interfaces", "name") });
            self.change(Method::PATCH, &path, Some(body)).await?;
            router = self.vpn_router(&old.deployment).await?.unwrap_or_default();
        }
        // A tunnel without an interface is one whose removal was begun, now or before a stop.
        let linked: Vec<&str> =
            insides(&router).filter_map(|(_, one)| one["linkedVpnTunnel"].as_str().map(last)).collect();
        let mut left = Vec::new();
        for tunnel in self.list(&format!("{region}/vpnTunnels"), &format!("{n}-.*-tunnel-.*")).await? {
            let name = tunnel["name"].as_str().unwrap_or_default();
            if tunnel["vpnGateway"].as_str().map(last) != Some(&*format!("{n}-vpn-gw")) {
                continue;
            }
            if linked.contains(&name) {
                left.push(tunnel["peerExternalGateway"].as_str().map(last).unwrap_or_default().to_owned());
            } else {
                self.remove(&format!("{region}/vpnTunnels/{name}")).await?;
            }
        }
        let peers = format!("projects/{project}/global/externalVpnGateways");
        for peer in self.list(&peers, &format!("{n}-{}-peer-gw.*", old.cloud)).await? {
            let name = peer["name"].as_str().unwrap_or_default();
            if !left.iter().any(|used| used == name) {
                self.remove(&format!("{peers}/{name}")).await?;
            }
        }
        if !left.is_empty() || !linked.is_empty() {
            return Ok(());
        }
        // The last is gone, and with it what was there for all of them.
        self.remove(&format!("{region}/vpnGateways/{n}-vpn-gw")).await?;
        let nat = router["nats"].as_array().is_some_and(|nats| !nats.is_empty());
        if router.is_object() && !nat {
            self.remove(&path).await?;
        }
        Ok(())
    }

    /// Lets machines of a region reach public addresses.
    pub(super) async fn make_nat(&self, deployment: &Deployment, region: &str) -> Result<(), Error> {
        let project = project(&deployment.id)?;
        let n = n(&deployment.namespace);
        let routers = format!("projects/{project}/regions/{region}/routers");
        let name = legal("namespace", format!("{n}-router"))?;
        let path = format!("{routers}/{name}");
        let nats = json!([{
            "name": legal("namespace", format!("{n}-nat"))?,
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }]);
        let _turn = self.router.lock().await;
        match self.get(&path).await? {
            None => {
                let network = url(&network_path(project, &deployment.namespace));
                let router = json!({ "name": name, "network": network, "nats": nats });
                self.insert(&routers, router).await.map(drop)
            }
            Some(router) if router["nats"].as_array().is_some_and(|nats| !nats.is_empty()) => Ok(()),
            Some(_) => self.change(Method::PATCH, &path, Some(json!({ "nats": nats }))).await.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_link_fit_or_none_of_it_is_made() {
        assert!(check_names("default", "azure").is_ok() && check_names("default", "").is_ok());
        // Its tunnels would still fit, their interfaces would not.
        let cloud = "c".repeat(37);
        assert!(legal("cloud", format!("{}-{cloud}-tunnel-0", n("default"))).is_ok());
        assert!(check_names("default", &cloud).unwrap_err().to_string().contains("cloud"));
        assert!(check_names("default", &"c".repeat(60)).is_err());
    }

    #[test]
    fn either_end_finds_the_tunnel() {
        let router =
            json!({ "interfaces": [{ "name": "a", "ipRange": "169.254.21.2/30" }, { "name": "x" }] });
        assert_eq!(around(&router, "169.254.21.1".parse().unwrap()).unwrap()["name"], "a");
        assert!(around(&router, "169.254.21.5".parse().unwrap()).is_none());
        assert_eq!(insides(&router).count(), 1);
    }
}
