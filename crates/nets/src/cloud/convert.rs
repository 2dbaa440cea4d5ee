//! Between the wires and the model. What cannot be read is an error that names the field.

use std::net::Ipv4Addr;

use ipnet::IpNet;

use super::{NewConnections, NewGateway, NewResource};
use crate::error::Error;
use crate::model::{Created, Deployment, Direction, Flags, Mapping, Rule, SharedKey};
use crate::plan::target;
use crate::wire::{invisinets as seed, paraglider as today};

pub(crate) fn space(field: &str, text: &str) -> Result<IpNet, Error> {
    target::parse(text)
        .ok_or_else(|| Error::invalid(field, format!("`{}` is not a prefix", text.escape_debug())))
}

pub(crate) fn some_space(field: &str, text: &str) -> Result<Option<IpNet>, Error> {
    if text.is_empty() { Ok(None) } else { space(field, text).map(Some) }
}

pub(crate) fn addresses(field: &str, texts: &[String]) -> Result<Vec<Ipv4Addr>, Error> {
    let read = |text: &String| {
        // Some clouds write the length of the network behind the address.
        let bare = text.split('/').next().unwrap_or_default();
        bare.parse()
            .map_err(|_| Error::invalid(field, format!("`{}` is not an IPv4 address", text.escape_debug())))
    };
    texts.iter().map(read).collect()
}

pub(crate) fn deployment(given: Option<today::ParagliderDeployment>) -> Result<Deployment, Error> {
    given.map(Into::into).ok_or_else(|| Error::invalid("deployment", "is missing"))
}

pub(crate) fn description(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| Error::invalid("description", "is not text"))
}

impl From<today::ParagliderDeployment> for Deployment {
    fn from(given: today::ParagliderDeployment) -> Self {
        Self { id: given.id, namespace: given.namespace }
    }
}

impl From<Deployment> for today::ParagliderDeployment {
    fn from(given: Deployment) -> Self {
        Self { id: given.id, namespace: given.namespace }
    }
}

impl From<seed::InvisinetsDeployment> for Deployment {
    fn from(given: seed::InvisinetsDeployment) -> Self {
        Self { id: given.id, namespace: given.namespace }
    }
}

impl From<today::PermitListRule> for Rule {
    fn from(rule: today::PermitListRule) -> Self {
        let direction = if rule.direction() == today::Direction::Outbound {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        let today::PermitListRule { name, targets, src_port, dst_port, protocol, tags, .. } = rule;
        Self { name, targets, direction, src_port, dst_port, protocol, tags }
    }
}

impl From<Rule> for today::PermitListRule {
    fn from(rule: Rule) -> Self {
        let Rule { name, targets, direction, src_port, dst_port, protocol, tags } = rule;
        Self { name, targets, direction: direction.into(), src_port, dst_port, protocol, tags }
    }
}

impl From<seed::PermitListRule> for Rule {
    fn from(rule: seed::PermitListRule) -> Self {
        let direction = if rule.direction() == seed::Direction::Outbound {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        let seed::PermitListRule { id, targets, src_port, dst_port, protocol, tags, .. } = rule;
        Self { name: id, targets, direction, src_port, dst_port, protocol, tags }
    }
}

impl From<Rule> for seed::PermitListRule {
    fn from(rule: Rule) -> Self {
        let Rule { name, targets, direction, src_port, dst_port, protocol, tags } = rule;
        Self { id: name, targets, direction: direction.into(), src_port, dst_port, protocol, tags }
    }
}

impl TryFrom<today::AddressSpaceMapping> for Mapping {
    type Error = Error;

    fn try_from(given: today::AddressSpaceMapping) -> Result<Self, Error> {
        let spaces = given
            .address_spaces
            .iter()
            .map(|text| space("address_spaces", text))
            .collect::<Result<_, _>>()?;
        Ok(Self { spaces, cloud: given.cloud, namespace: given.namespace, deployment: given.deployment })
    }
}

impl From<Mapping> for today::AddressSpaceMapping {
    fn from(mapping: Mapping) -> Self {
        let address_spaces = mapping.spaces.iter().map(ToString::to_string).collect();
        Self {
            address_spaces,
            cloud: mapping.cloud,
            namespace: mapping.namespace,
            deployment: mapping.deployment,
        }
    }
}

impl From<today::CreateResourceResponse> for Created {
    fn from(given: today::CreateResourceResponse) -> Self {
        Self { name: given.name, uri: given.uri, ip: given.ip }
    }
}

impl From<today::AttachResourceResponse> for Created {
    fn from(given: today::AttachResourceResponse) -> Self {
        Self { name: given.name, uri: given.uri, ip: given.ip }
    }
}

impl From<today::PluginFlags> for Flags {
    fn from(given: today::PluginFlags) -> Self {
        Self {
            attach_resource_enabled: given.attach_resource_enabled,
            kubernetes_clusters_enabled: given.kubernetes_clusters_enabled,
            private_endpoints_enabled: given.private_endpoints_enabled,
        }
    }
}

impl From<Flags> for today::PluginFlags {
    fn from(flags: Flags) -> Self {
        Self {
            private_endpoints_enabled: flags.private_endpoints_enabled,
            kubernetes_clusters_enabled: flags.kubernetes_clusters_enabled,
            attach_resource_enabled: flags.attach_resource_enabled,
        }
    }
}

impl TryFrom<today::CreateResourceRequest> for NewResource {
    type Error = Error;

    fn try_from(given: today::CreateResourceRequest) -> Result<Self, Error> {
        let description = description(given.description)?;
        Ok(Self { deployment: deployment(given.deployment)?, name: given.name, description })
    }
}

impl TryFrom<today::CreateVpnGatewayRequest> for NewGateway {
    type Error = Error;

    fn try_from(given: today::CreateVpnGatewayRequest) -> Result<Self, Error> {
        Ok(Self {
            deployment: deployment(given.deployment)?,
            cloud: given.cloud,
            bgp_addresses: addresses("bgp_peering_ip_addresses", &given.bgp_peering_ip_addresses)?,
            space: some_space("address_space", &given.address_space)?,
        })
    }
}

impl From<NewGateway> for today::CreateVpnGatewayRequest {
    fn from(new: NewGateway) -> Self {
        Self {
            deployment: Some(new.deployment.into()),
            cloud: new.cloud,
            bgp_peering_ip_addresses: new.bgp_addresses.iter().map(ToString::to_string).collect(),
            address_space: new.space.map(|space| space.to_string()).unwrap_or_default(),
        }
    }
}

impl TryFrom<today::CreateVpnConnectionsRequest> for NewConnections {
    type Error = Error;

    fn try_from(given: today::CreateVpnConnectionsRequest) -> Result<Self, Error> {
        Ok(Self {
            deployment: deployment(given.deployment)?,
            cloud: given.cloud,
            asn: given.asn,
            gateways: given.gateway_ip_addresses,
            bgp_addresses: addresses("bgp_ip_addresses", &given.bgp_ip_addresses)?,
            key: SharedKey::new(given.shared_key),
            remote_spaces: given.remote_addresses,
            bgp: !given.is_bgp_disabled,
            space: some_space("address_space", &given.address_space)?,
        })
    }
}

impl From<NewConnections> for today::CreateVpnConnectionsRequest {
    fn from(new: NewConnections) -> Self {
        Self {
            deployment: Some(new.deployment.into()),
            cloud: new.cloud,
            asn: new.asn,
            gateway_ip_addresses: new.gateways,
            bgp_ip_addresses: new.bgp_addresses.iter().map(ToString::to_string).collect(),
            shared_key: new.key.expose().to_owned(),
            remote_addresses: new.remote_spaces,
            is_bgp_disabled: !new.bgp,
            address_space: new.space.map(|space| space.to_string()).unwrap_or_default(),
        }
    }
}
