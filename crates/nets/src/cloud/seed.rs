//! A cloud on the first generation's wire.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{Cloud, NewConnections, NewGateway, NewResource, convert};
use crate::error::Error;
use crate::model::{Deployment, Rule, SharedKey};
use crate::plan::connect::{self, Pair};
use crate::plan::rule;
use crate::wire::invisinets::cloud_plugin_server::{CloudPlugin, CloudPluginServer};
use crate::wire::invisinets::{
    AddressSpaceList, BasicResponse, CreateResourceResponse, CreateVpnBgpSessionsRequest,
    CreateVpnBgpSessionsResponse, CreateVpnConnectionsRequest, CreateVpnGatewayResponse,
    InvisinetsDeployment, PermitList, PermitListRule, ResourceDescription, ResourceId,
};

pub(super) fn service(cloud: Arc<dyn Cloud>, name: &str) -> CloudPluginServer<Seed> {
    CloudPluginServer::new(Seed { cloud, name: name.into() })
}

pub(super) struct Seed {
    cloud: Arc<dyn Cloud>,
    name: String,
}

fn done(message: &str, resource: &str, namespace: &str) -> Response<BasicResponse> {
    let updated_resource = Some(ResourceId { id: resource.into(), namespace: namespace.into() });
    Response::new(BasicResponse { success: true, message: message.into(), updated_resource })
}

fn deployment(given: Option<InvisinetsDeployment>) -> Result<Deployment, Error> {
    given.map(Into::into).ok_or_else(|| Error::invalid("deployment", "is missing"))
}

/// On this wire a rule need not have an id: its contents then name it, so that it is known again. The same
/// permission twice is one.
fn named(rules: Vec<PermitListRule>) -> Vec<Rule> {
    let mut made = BTreeSet::new();
    let name = |given: PermitListRule| {
        let mut rule = Rule::from(given);
        if rule.name.is_empty() {
            rule.name = rule::name_of_contents(&rule);
            return made.insert(rule.name.clone()).then_some(rule);
        }
        Some(rule)
    };
    rules.into_iter().filter_map(name).collect()
}

impl Seed {
    /// How this cloud is connected to another, by the table of pairs.
    fn pair(&self, other: &str) -> Result<Pair, Error> {
        connect::pair(&self.name, other).map_err(Into::into)
    }

    /// The orchestrator of this generation asks for permit lists without a namespace; the resource has one.
    async fn namespace(&self, given: String, uri: &str) -> Result<String, Error> {
        if !given.is_empty() {
            return Ok(given);
        }
        let held = self.cloud.list_resources("").await?;
        let found = held.into_iter().find(|resource| resource.uri == uri);
        let missing = || Error::Resource { namespace: given, resource: uri.into() };
        found.map(|resource| resource.namespace).ok_or_else(missing)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl CloudPlugin for Seed {
    async fn get_used_address_spaces(
        &self,
        request: Request<InvisinetsDeployment>,
    ) -> Answer<AddressSpaceList> {
        let used = self.cloud.used_spaces(&[request.into_inner().into()]).await?;
        let address_spaces =
            used.iter().flat_map(|mapping| &mapping.spaces).map(ToString::to_string).collect();
        Ok(Response::new(AddressSpaceList { address_spaces }))
    }

    async fn create_resource(&self, request: Request<ResourceDescription>) -> Answer<CreateResourceResponse> {
        let ResourceDescription { id, description, namespace } = request.into_inner();
        let description = convert::description(description)?;
        let (deployment, name) = self.cloud.place_of(&id, &description)?;
        let new = NewResource { deployment: Deployment { id: deployment, namespace }, name, description };
        let created = self.cloud.create_resource(new).await?;
        Ok(Response::new(CreateResourceResponse { name: created.name, uri: created.uri, ip: created.ip }))
    }

    async fn get_permit_list(&self, request: Request<ResourceId>) -> Answer<PermitList> {
        let ResourceId { id, namespace } = request.into_inner();
        let namespace = self.namespace(namespace, &id).await?;
        let rules = self.cloud.permit_list(&namespace, &id).await?.into_iter().map(Into::into).collect();
        Ok(Response::new(PermitList { associated_resource: id, rules, namespace }))
    }

    async fn add_permit_list_rules(&self, request: Request<PermitList>) -> Answer<BasicResponse> {
        let PermitList { associated_resource, rules, namespace } = request.into_inner();
        let rules = named(rules);
        self.cloud.add_rules(&namespace, &associated_resource, rules).await?;
        Ok(done("Added the rules", &associated_resource, &namespace))
    }

    async fn delete_permit_list_rules(&self, request: Request<PermitList>) -> Answer<BasicResponse> {
        let PermitList { associated_resource, rules, namespace } = request.into_inner();
        let names = named(rules).into_iter().map(|rule| rule.name).collect();
        self.cloud.delete_rules(&namespace, &associated_resource, names).await?;
        Ok(done("Deleted the rules", &associated_resource, &namespace))
    }

    /// The peer is not known yet on this wire, nor are the addresses inside the tunnels.
    async fn create_vpn_gateway(
        &self,
        request: Request<InvisinetsDeployment>,
    ) -> Answer<CreateVpnGatewayResponse> {
        let deployment = request.into_inner().into();
        let new = NewGateway { deployment, cloud: String::new(), bgp_addresses: vec![], space: None };
        let gateway = self.cloud.create_gateway(new).await?;
        let asn = i64::from(gateway.asn);
        Ok(Response::new(CreateVpnGatewayResponse { gateway_ip_addresses: gateway.addresses, asn }))
    }

    async fn create_vpn_bgp_sessions(
        &self,
        request: Request<CreateVpnBgpSessionsRequest>,
    ) -> Answer<CreateVpnBgpSessionsResponse> {
        let CreateVpnBgpSessionsRequest { deployment: given, cloud } = request.into_inner();
        let deployment = deployment(given)?;
        let addresses = if self.pair(&cloud)?.bgp {
            self.cloud.create_bgp_sessions(&deployment, &cloud).await?
        } else {
            Vec::new()
        };
        let bgp_ip_addresses = addresses.iter().map(ToString::to_string).collect();
        Ok(Response::new(CreateVpnBgpSessionsResponse { bgp_ip_addresses }))
    }

    async fn create_vpn_connections(
        &self,
        request: Request<CreateVpnConnectionsRequest>,
    ) -> Answer<BasicResponse> {
        let given = request.into_inner();
        let asn = given
            .asn
            .try_into()
            .map_err(|_| Error::invalid("asn", format!("{} is no number of a system", given.asn)))?;
        // Addresses that one end has all the same mean nothing where routes are static.
        let bgp = self.pair(&given.cloud)?.bgp;
        let inside = if bgp { given.bgp_ip_addresses } else { Vec::new() };
        let new = NewConnections {
            deployment: deployment(given.deployment)?,
            cloud: given.cloud,
            asn,
            gateways: given.gateway_ip_addresses,
            bgp_addresses: convert::addresses("bgp_ip_addresses", &inside)?,
            key: SharedKey::new(given.shared_key),
            // On this wire it is the space across, for clouds that need to be told.
            remote_spaces: Some(given.address_space).filter(|space| !space.is_empty()).into_iter().collect(),
            bgp,
            space: None,
        };
        let namespace = new.deployment.namespace.clone();
        self.cloud.create_connections(new).await?;
        Ok(done(&format!("Connected {}", self.name), "", &namespace))
    }
}
