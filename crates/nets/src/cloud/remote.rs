//! A cloud whose plugin is another process, on today's wire. One connection, kept.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use ipnet::IpNet;
use tarbet_telemetry::codes::nets;
use tonic::{Code, Status};

use super::{
    AT_ONCE, Abilities, Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections, convert,
};
use crate::error::Error;
use crate::grpc;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::trust::{DialTrust, Line};
use crate::wire::paraglider::{self as today, cloud_plugin_client::CloudPluginClient};
use crate::wire::upkeep::{self, cloud_upkeep_client::CloudUpkeepClient};

/// A hundred thousand address spaces are one message.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;

/// A cloud over the wire.
#[derive(Clone, Debug)]
pub struct Remote {
    name: String,
    plugin: CloudPluginClient<Line>,
    upkeep: CloudUpkeepClient<Line>,
    /// What the plugin said last when it was asked what it can do.
    at_once: Arc<AtomicUsize>,
}

impl Remote {
    /// The plugin of the cloud `name` at this address. It need not be up yet.
    pub fn new(name: &str, host: &str, port: u16) -> Result<Self, Error> {
        Self::trusting(name, host, port, &DialTrust::default())
    }

    /// The same with a certificate or a token.
    pub fn trusting(name: &str, host: &str, port: u16, trust: &DialTrust) -> Result<Self, Error> {
        let channel = trust.line(host, port)?;
        Ok(Self {
            name: name.into(),
            plugin: CloudPluginClient::new(channel.clone()).max_decoding_message_size(MESSAGE_MAX),
            upkeep: CloudUpkeepClient::new(channel),
            at_once: Arc::new(AtomicUsize::new(AT_ONCE)),
        })
    }

    fn told(&self, status: &Status) -> Error {
        let told =
            grpc::told(status, &format!("orchestrator → plugin of {}", self.name), &nets::PLUGIN_UNREACHABLE);
        match told {
            // What the orchestrator let pass and the cloud's own limits do not.
            Error::Told(problem) if problem.code == nets::INVALID.id && problem.hop == nets::INVALID.hop => {
                (*problem).at(format!("plugin of {}, before the cloud was called", self.name)).into()
            }
            told => told,
        }
    }
}

fn deployments(given: &[Deployment]) -> Vec<today::ParagliderDeployment> {
    given.iter().cloned().map(Into::into).collect()
}

#[async_trait]
impl Cloud for Remote {
    fn at_once(&self) -> usize {
        self.at_once.load(Ordering::Relaxed)
    }

    async fn abilities(&self) -> Result<Abilities, Error> {
        let told = match self.upkeep.clone().abilities(upkeep::AbilitiesRequest {}).await {
            Ok(answer) => answer.into_inner(),
            // The originals' plugins, and ours of earlier releases.
            Err(status) if status.code() == Code::Unimplemented => upkeep::AbilitiesResponse::default(),
            Err(status) => return Err(self.told(&status)),
        };
        let at_once = match told.permit_lists_at_once {
            0 => AT_ONCE,
            told => usize::try_from(told).unwrap_or(AT_ONCE),
        };
        self.at_once.store(at_once, Ordering::Relaxed);
        Ok(Abilities { replaces_keys: told.replaces_keys, at_once })
    }

    async fn find_deployment(&self, uri: &str) -> Result<Option<String>, Error> {
        let request = upkeep::FindDeploymentRequest { uri: uri.into() };
        match self.upkeep.clone().find_deployment(request).await {
            Ok(answer) => Ok(Some(answer.into_inner().deployment).filter(|found| !found.is_empty())),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(self.told(&status)),
        }
    }

    async fn used_spaces(&self, given: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let request = today::GetUsedAddressSpacesRequest { deployments: deployments(given) };
        let answer = self
            .plugin
            .clone()
            .get_used_address_spaces(request)
            .await
            .map_err(|status| self.told(&status))?;
        answer.into_inner().address_space_mappings.into_iter().map(TryInto::try_into).collect()
    }

    async fn used_asns(&self, given: &[Deployment]) -> Result<Vec<u32>, Error> {
        let request = today::GetUsedAsnsRequest { deployments: deployments(given) };
        let answer = self.plugin.clone().get_used_asns(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().asns)
    }

    async fn used_bgp_addresses(&self, given: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        let request = today::GetUsedBgpPeeringIpAddressesRequest { deployments: deployments(given) };
        let answer = self
            .plugin
            .clone()
            .get_used_bgp_peering_ip_addresses(request)
            .await
            .map_err(|status| self.told(&status))?;
        convert::addresses("ip_addresses", &answer.into_inner().ip_addresses)
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        let request = today::CreateResourceRequest {
            deployment: Some(new.deployment.into()),
            name: new.name,
            description: new.description.into_bytes(),
        };
        let answer =
            self.plugin.clone().create_resource(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().into())
    }

    async fn attach_resource(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        let request = today::AttachResourceRequest { namespace: namespace.into(), resource: uri.into() };
        let answer =
            self.plugin.clone().attach_resource(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().into())
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let request = today::GetPermitListRequest { namespace: namespace.into(), resource: uri.into() };
        let answer =
            self.plugin.clone().get_permit_list(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().rules.into_iter().map(Into::into).collect())
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        let rules = rules.into_iter().map(Into::into).collect();
        let request =
            today::AddPermitListRulesRequest { namespace: namespace.into(), resource: uri.into(), rules };
        self.plugin
            .clone()
            .add_permit_list_rules(request)
            .await
            .map(drop)
            .map_err(|status| self.told(&status))
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let request = today::DeletePermitListRulesRequest {
            namespace: namespace.into(),
            resource: uri.into(),
            rule_names: names,
        };
        self.plugin
            .clone()
            .delete_permit_list_rules(request)
            .await
            .map(drop)
            .map_err(|status| self.told(&status))
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let request = today::CreateVpnGatewayRequest::from(new);
        let answer =
            self.plugin.clone().create_vpn_gateway(request).await.map_err(|status| self.told(&status))?;
        let today::CreateVpnGatewayResponse { asn, gateway_ip_addresses: addresses } = answer.into_inner();
        Ok(Gateway { asn, addresses })
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        let request = today::CreateVpnConnectionsRequest::from(new);
        self.plugin
            .clone()
            .create_vpn_connections(request)
            .await
            .map(drop)
            .map_err(|status| self.told(&status))
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let request = today::GetNetworkAddressSpacesRequest {
            deployment: Some(deployment.clone().into()),
            address_space: space.to_string(),
        };
        let answer = self
            .plugin
            .clone()
            .get_network_address_spaces(request)
            .await
            .map_err(|status| self.told(&status))?;
        answer.into_inner().address_spaces.iter().map(|text| convert::space("address_spaces", text)).collect()
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        let request = today::SetFlagsRequest { flags: Some(flags.into()) };
        self.plugin.clone().set_flags(request).await.map(drop).map_err(|status| self.told(&status))
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let request = upkeep::ListResourcesRequest { namespace: namespace.into() };
        let answer =
            self.upkeep.clone().list_resources(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().resources.into_iter().map(Into::into).collect())
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let request = upkeep::DeleteResourceRequest { namespace: namespace.into(), resource: uri.into() };
        self.upkeep.clone().delete_resource(request).await.map(drop).map_err(|status| self.told(&status))
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        let request = upkeep::DeleteVpnConnectionsRequest {
            deployment: old.deployment.id,
            namespace: old.deployment.namespace,
            cloud: old.cloud,
            bgp_ip_addresses: old.bgp_addresses.iter().map(ToString::to_string).collect(),
        };
        self.upkeep
            .clone()
            .delete_vpn_connections(request)
            .await
            .map(drop)
            .map_err(|status| self.told(&status))
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let request = upkeep::DriftRequest { namespace: namespace.into(), repair };
        let answer = self.upkeep.clone().drift(request).await.map_err(|status| self.told(&status))?;
        Ok(answer.into_inner().differences)
    }

    async fn foreign_networks(&self, given: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let deployments = given.iter().cloned().map(Into::into).collect();
        let request = upkeep::ListForeignNetworksRequest { deployments };
        let answer =
            self.upkeep.clone().list_foreign_networks(request).await.map_err(|status| self.told(&status))?;
        answer.into_inner().networks.into_iter().map(TryInto::try_into).collect()
    }
}
