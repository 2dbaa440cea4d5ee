//! VPNs: one virtual private gateway for each namespace, and a connection for each tunnel.
//!
//! AWS tells where a tunnel ends only once it knows where the other end is. So a gateway has no addresses
//! when it is made; the connections are made next, and asking for the gateway again then tells them.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};

use super::Aws;
use super::api::{filter, tag, tags};
use super::network::{Way, space, text};
use crate::cloud::{NewConnections, NewGateway, OldConnections};
use crate::error::Error;
use crate::model::Deployment;
use crate::plan::connect::Gateway;

fn gateway_name(namespace: &str) -> String {
    format!("para-{namespace}-vgw")
}

/// The tunnel of this number to a cloud, and the gateway at its other end.
fn tunnel_names(namespace: &str, cloud: &str, number: usize) -> (String, String) {
    (format!("para-{namespace}-{cloud}-vpn{number}"), format!("para-{namespace}-{cloud}-cgw{number}"))
}

/// Whether it is there or will be; AWS goes on telling what is gone.
fn is_live(object: &Value) -> bool {
    !matches!(text(object, "state"), "deleting" | "deleted")
}

/// The network of four around an address inside a tunnel.
fn around(inside: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new_assert(inside, 30).trunc()
}

/// The first host is always AWS's own.
fn check_ours(inside: Ipv4Addr) -> Result<(), Error> {
    if u32::from(inside) & 3 == 2 {
        return Ok(());
    }
    Err(Error::invalid("bgp_ip_addresses", format!("{inside} is not the second host of its network of four")))
}

/// Where the first tunnel of a connection ends at AWS: as its options tell, else as the configuration that
/// AWS writes for the other end does.
pub(super) fn outside(connection: &Value) -> Option<Ipv4Addr> {
    let options = connection["options"]["tunnelOptionSet"].as_array();
    let told = options.and_then(|options| text(options.first()?, "outsideIpAddress").parse().ok());
    told.or_else(|| {
        let (_, ours) = text(connection, "customerGatewayConfiguration").split_once("<vpn_gateway>")?;
        let (_, address) = ours.split_once("<ip_address>")?;
        address.split_once('<')?.0.trim().parse().ok()
    })
}

impl Aws {
    /// What was made of a kind for a namespace and is still there.
    async fn live(
        &self,
        region: &str,
        action: &str,
        set: &str,
        namespace: &str,
    ) -> Result<Vec<Value>, Error> {
        let filters = [filter("tag:Namespace", &[namespace])];
        let found = self.find(region, action, set, &filters).await?;
        let ours = |object: &Value| tag(object, "Namespace") == Some(namespace) && is_live(object);
        Ok(found.into_iter().filter(ours).collect())
    }

    async fn gateways(&self, region: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        self.live(region, "DescribeVpnGateways", "vpnGatewaySet", namespace).await
    }

    async fn connections(&self, region: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        self.live(region, "DescribeVpnConnections", "vpnConnectionSet", namespace).await
    }

    async fn far_gateways(&self, region: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        self.live(region, "DescribeCustomerGateways", "customerGatewaySet", namespace).await
    }

    /// The region whose network the gateway of a namespace is for, and that gateway.
    async fn gateway_of(&self, namespace: &str) -> Result<Option<(String, Value)>, Error> {
        for region in &self.config.regions {
            if let Some(gateway) = self.gateways(region, namespace).await?.into_iter().next() {
                return Ok(Some((region.clone(), gateway)));
            }
        }
        Ok(None)
    }

    pub(super) async fn asns(&self, deployments: &[Deployment]) -> Result<Vec<u32>, Error> {
        let mut asns = Vec::new();
        for deployment in deployments {
            let found = self.gateway_of(&deployment.namespace).await?;
            asns.extend(found.and_then(|(_, gateway)| text(&gateway, "amazonSideAsn").parse::<u32>().ok()));
        }
        Ok(asns)
    }

    /// The network that holds a space, or the first of the namespace.
    async fn network_of(&self, namespace: &str, wanted: Option<IpNet>) -> Result<(String, String), Error> {
        for region in &self.config.regions {
            if let Some(vpc) = self.vpc(region, namespace).await?
                && wanted.is_none_or(|wanted| space(&vpc).is_some_and(|own| own.contains(&wanted)))
            {
                return Ok((region.clone(), text(&vpc, "vpcId").to_owned()));
            }
        }
        Err(Error::Place(format!("the namespace {namespace} has no network in AWS")))
    }

    pub(super) async fn make_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let namespace = &new.deployment.namespace;
        if new.cloud.is_empty() {
            // The first generation asks for addresses before it says for whom.
            return Err(Error::Unsupported(
                "AWS tells where its tunnels end only once it knows the other end: connect it over today's wire".into(),
            ));
        }
        let _turn = self.shape(namespace).await;
        let (region, gateway) = if let Some(known) = self.gateway_of(namespace).await? {
            known
        } else {
            let (region, _) = self.network_of(namespace, new.space).await?;
            let asn = self.controller.find_asn().await?;
            let parameters = json!({
                "Type": "ipsec.1",
                "AmazonSideAsn": asn,
                "TagSpecification": tags("vpn-gateway", namespace, &gateway_name(namespace)),
            });
            let look = || async { Ok(self.gateways(&region, namespace).await?.into_iter().next()) };
            let made = self.make(&region, ("CreateVpnGateway", "vpnGateway"), &parameters, &[], look).await?;
            (region, made)
        };
        let asn = text(&gateway, "amazonSideAsn")
            .parse()
            .map_err(|_| Error::Internal("AWS does not tell the number of its VPN gateway".into()))?;
        self.plug_in(&region, namespace, &gateway).await?;
        let known = self.connections(&region, namespace).await?;
        let addresses: Option<Vec<String>> = (0..new.bgp_addresses.len())
            .map(|number| {
                let (name, _) = tunnel_names(namespace, &new.cloud, number);
                let connection = known.iter().find(|connection| tag(connection, "Name") == Some(&name))?;
                outside(connection).map(|address| address.to_string())
            })
            .collect();
        Ok(Gateway { asn, addresses: addresses.unwrap_or_default() })
    }

    /// Plugs a gateway into the network of its region.
    async fn plug_in(&self, region: &str, namespace: &str, gateway: &Value) -> Result<(), Error> {
        let vpc = self.vpc(region, namespace).await?.unwrap_or_default();
        let (id, vpc) = (text(gateway, "vpnGatewayId"), text(&vpc, "vpcId"));
        let state = |gateway: &Value| {
            let attachments = gateway["attachments"].as_array().cloned().unwrap_or_default();
            let own = attachments.into_iter().find(|attachment| text(attachment, "vpcId") == vpc);
            own.map(|attachment| text(&attachment, "state").to_owned()).unwrap_or_default()
        };
        let mut now = state(gateway);
        let mut wait = self.wait();
        while now != "attached" {
            if now != "attaching" {
                let parameters = json!({ "VpnGatewayId": id, "VpcId": vpc });
                let look = || async {
                    let found = self.gateways(region, namespace).await?.into_iter().next();
                    Ok(found.filter(|gateway| matches!(state(gateway).as_str(), "attaching" | "attached")))
                };
                self.make(region, ("AttachVpnGateway", ""), &parameters, &[], look).await?;
            }
            let found = self.gateways(region, namespace).await?;
            now = found.first().map(state).unwrap_or_default();
            if now != "attached" {
                self.pause(&mut wait, "AttachVpnGateway").await?;
            }
        }
        Ok(())
    }

    pub(super) async fn make_connections(&self, new: NewConnections) -> Result<(), Error> {
        if !new.bgp {
            return Err(Error::Unsupported("AWS learns its routes by BGP only".into()));
        }
        let far = crate::cloud::addresses_from("gateway_ip_addresses", &new.gateways)?;
        if far.len() != new.bgp_addresses.len() {
            return Err(Error::invalid("gateway_ip_addresses", "must be as many as bgp_ip_addresses"));
        }
        new.bgp_addresses.iter().try_for_each(|inside| check_ours(*inside))?;
        let namespace = &new.deployment.namespace;
        let _turn = self.shape(namespace).await;
        let none = || Error::Place(format!("the namespace {namespace} has no VPN gateway"));
        let (region, gateway) = self.gateway_of(namespace).await?.ok_or_else(none)?;
        for (number, (inside, far)) in new.bgp_addresses.iter().zip(far).enumerate() {
            let (name, far_name) = tunnel_names(namespace, &new.cloud, number);
            let known = self.connections(&region, namespace).await?;
            if !known.iter().any(|connection| tag(connection, "Name") == Some(&name)) {
                let far = self.far_gateway(&region, namespace, &far_name, far, new.asn).await?;
                let parameters = json!({
                    "Type": "ipsec.1",
                    "CustomerGatewayId": far,
                    "VpnGatewayId": text(&gateway, "vpnGatewayId"),
                    "Options": {
                        "StaticRoutesOnly": false,
                        "TunnelOptions": [{ "TunnelInsideCidr": around(*inside), "PreSharedKey": new.key.expose() }],
                    },
                    "TagSpecification": tags("vpn-connection", namespace, &name),
                });
                let look = || async {
                    let found = self.connections(&region, namespace).await?;
                    Ok(found.into_iter().find(|connection| tag(connection, "Name") == Some(&name)))
                };
                self.make(&region, ("CreateVpnConnection", ""), &parameters, &[], look).await?;
            }
            let mut wait = self.wait();
            loop {
                let found = self.connections(&region, namespace).await?;
                let own = found.iter().find(|connection| tag(connection, "Name") == Some(&name));
                if own.is_some_and(|connection| text(connection, "state") == "available") {
                    break;
                }
                self.pause(&mut wait, "CreateVpnConnection").await?;
            }
        }
        Ok(())
    }

    /// The other end, as AWS writes it down.
    async fn far_gateway(
        &self,
        region: &str,
        namespace: &str,
        name: &str,
        address: Ipv4Addr,
        asn: u32,
    ) -> Result<String, Error> {
        let (wanted_address, wanted_asn) = (address.to_string(), asn.to_string());
        let same = |gateway: &Value| {
            tag(gateway, "Name") == Some(name)
                && text(gateway, "ipAddress") == wanted_address
                && text(gateway, "bgpAsn") == wanted_asn
        };
        let parameters = json!({
            "Type": "ipsec.1",
            "IpAddress": wanted_address,
            "BgpAsn": asn,
            "TagSpecification": tags("customer-gateway", namespace, name),
        });
        let look = || async { Ok(self.far_gateways(region, namespace).await?.into_iter().find(same)) };
        let made = ("CreateCustomerGateway", "customerGateway");
        let gateway = self.make(region, made, &parameters, &[], look).await?;
        Ok(text(&gateway, "customerGatewayId").to_owned())
    }

    /// A network's routes to a place behind its VPN gateway.
    pub(super) async fn route_to_gateway(
        &self,
        region: &str,
        namespace: &str,
        vpc: &str,
        to: IpNet,
    ) -> Result<(), Error> {
        let _turn = self.shape(namespace).await;
        match self.gateway_of(namespace).await? {
            Some((at, gateway)) if at == region => {
                let id = text(&gateway, "vpnGatewayId");
                self.route(region, vpc, &to.to_string(), Way::Gateway(id)).await
            }
            Some((at, _)) => Err(Error::Unsupported(format!(
                "the VPN gateway of namespace {namespace} is in {at}, and networks of other regions do not reach it"
            ))),
            None => {
                Err(Error::Internal(format!("the namespace {namespace} is connected and has no VPN gateway")))
            }
        }
    }

    pub(super) async fn remove_connections(&self, old: OldConnections) -> Result<(), Error> {
        let namespace = &old.deployment.namespace;
        let _turn = self.shape(namespace).await;
        let Some((region, gateway)) = self.gateway_of(namespace).await? else { return Ok(()) };
        for number in 0..old.bgp_addresses.len() {
            let (name, far_name) = tunnel_names(namespace, &old.cloud, number);
            for connection in self.connections(&region, namespace).await? {
                if tag(&connection, "Name") == Some(&name) {
                    let parameters = json!({ "VpnConnectionId": text(&connection, "vpnConnectionId") });
                    let gone = ["InvalidVpnConnectionID.NotFound"];
                    self.try_call(&region, "DeleteVpnConnection", &parameters, &gone).await?;
                }
            }
            for far in self.far_gateways(&region, namespace).await? {
                if tag(&far, "Name") == Some(&far_name) {
                    let parameters = json!({ "CustomerGatewayId": text(&far, "customerGatewayId") });
                    let gone = ["InvalidCustomerGatewayID.NotFound"];
                    self.try_call(&region, "DeleteCustomerGateway", &parameters, &gone).await?;
                }
            }
        }
        if self.connections(&region, namespace).await?.is_empty() {
            self.remove_gateway(&region, namespace, &gateway).await?;
        }
        Ok(())
    }

    /// Takes a gateway away with the routes that lead to it.
    async fn remove_gateway(&self, region: &str, namespace: &str, gateway: &Value) -> Result<(), Error> {
        let id = text(gateway, "vpnGatewayId");
        if let Some(vpc) = self.vpc(region, namespace).await? {
            let vpc = text(&vpc, "vpcId");
            let table = self.main_table(region, vpc).await?;
            let routes = table["routeSet"].as_array().cloned().unwrap_or_default();
            for route in routes.iter().filter(|route| text(route, "gatewayId") == id) {
                self.unroute(region, vpc, text(route, "destinationCidrBlock")).await?;
            }
            let parameters = json!({ "VpnGatewayId": id, "VpcId": vpc });
            let gone = ["InvalidVpnGatewayAttachment.NotFound", "InvalidVpnGatewayID.NotFound"];
            self.try_call(region, "DetachVpnGateway", &parameters, &gone).await?;
        }
        let gone = ["InvalidVpnGatewayID.NotFound"];
        self.try_call(region, "DeleteVpnGateway", &json!({ "VpnGatewayId": id }), &gone).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_tunnel_is_read_wherever_it_is_told() {
        let options = json!({ "options": { "tunnelOptionSet": [
            { "outsideIpAddress": "203.0.113.5" }, { "outsideIpAddress": "203.0.113.6" },
        ] } });
        assert_eq!(outside(&options), Some(Ipv4Addr::new(203, 0, 113, 5)));
        let document = "<ipsec_tunnel><customer_gateway><ip_address>198.51.100.1</ip_address></customer_gateway>\
                        <vpn_gateway><ip_address>203.0.113.7</ip_address></vpn_gateway></ipsec_tunnel>";
        let written = json!({ "customerGatewayConfiguration": document });
        assert_eq!(outside(&written), Some(Ipv4Addr::new(203, 0, 113, 7)));
        assert_eq!(outside(&json!({})), None);
    }

    #[test]
    fn the_first_host_is_ours() {
        assert!(check_ours(Ipv4Addr::new(169, 254, 21, 2)).is_ok());
        assert!(check_ours(Ipv4Addr::new(169, 254, 21, 1)).is_err());
        assert_eq!(around(Ipv4Addr::new(169, 254, 21, 2)).to_string(), "169.254.21.0/30");
    }
}
