//! A cloud on today's wire.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{Cloud, convert};
use crate::model::Deployment;
use crate::wire::paraglider::cloud_plugin_server::{CloudPlugin, CloudPluginServer};
use crate::wire::paraglider::{
    AddPermitListRulesRequest, AddPermitListRulesResponse, AttachResourceRequest, AttachResourceResponse,
    CreateResourceRequest, CreateResourceResponse, CreateVpnConnectionsRequest, CreateVpnConnectionsResponse,
    CreateVpnGatewayRequest, CreateVpnGatewayResponse, DeletePermitListRulesRequest,
    DeletePermitListRulesResponse, GetNetworkAddressSpacesRequest, GetNetworkAddressSpacesResponse,
    GetPermitListRequest, GetPermitListResponse, GetUsedAddressSpacesRequest, GetUsedAddressSpacesResponse,
    GetUsedAsnsRequest, GetUsedAsnsResponse, GetUsedBgpPeeringIpAddressesRequest,
    GetUsedBgpPeeringIpAddressesResponse, ParagliderDeployment, SetFlagsRequest, SetFlagsResponse,
};

/// A hundred thousand address spaces are one message.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;

pub(super) fn service(cloud: Arc<dyn Cloud>) -> CloudPluginServer<Today> {
    CloudPluginServer::new(Today(cloud))
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX)
}

pub(super) struct Today(Arc<dyn Cloud>);

fn deployments(given: Vec<ParagliderDeployment>) -> Vec<Deployment> {
    given.into_iter().map(Into::into).collect()
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl CloudPlugin for Today {
    async fn get_used_address_spaces(
        &self,
        request: Request<GetUsedAddressSpacesRequest>,
    ) -> Answer<GetUsedAddressSpacesResponse> {
        let used = self.0.used_spaces(&deployments(request.into_inner().deployments)).await?;
        let address_space_mappings = used.into_iter().map(Into::into).collect();
        Ok(Response::new(GetUsedAddressSpacesResponse { address_space_mappings }))
    }

    async fn get_used_asns(&self, request: Request<GetUsedAsnsRequest>) -> Answer<GetUsedAsnsResponse> {
        let asns = self.0.used_asns(&deployments(request.into_inner().deployments)).await?;
        Ok(Response::new(GetUsedAsnsResponse { asns }))
    }

    async fn get_used_bgp_peering_ip_addresses(
        &self,
        request: Request<GetUsedBgpPeeringIpAddressesRequest>,
    ) -> Answer<GetUsedBgpPeeringIpAddressesResponse> {
        let used = self.0.used_bgp_addresses(&deployments(request.into_inner().deployments)).await?;
        let ip_addresses = used.iter().map(ToString::to_string).collect();
        Ok(Response::new(GetUsedBgpPeeringIpAddressesResponse { ip_addresses }))
    }

    async fn create_resource(
        &self,
        request: Request<CreateResourceRequest>,
    ) -> Answer<CreateResourceResponse> {
        let created = self.0.create_resource(request.into_inner().try_into()?).await?;
        Ok(Response::new(CreateResourceResponse { name: created.name, uri: created.uri, ip: created.ip }))
    }

    async fn attach_resource(
        &self,
        request: Request<AttachResourceRequest>,
    ) -> Answer<AttachResourceResponse> {
        let AttachResourceRequest { namespace, resource } = request.into_inner();
        let attached = self.0.attach_resource(&namespace, &resource).await?;
        Ok(Response::new(AttachResourceResponse { name: attached.name, uri: attached.uri, ip: attached.ip }))
    }

    async fn get_permit_list(&self, request: Request<GetPermitListRequest>) -> Answer<GetPermitListResponse> {
        let GetPermitListRequest { namespace, resource } = request.into_inner();
        let rules = self.0.permit_list(&namespace, &resource).await?.into_iter().map(Into::into).collect();
        Ok(Response::new(GetPermitListResponse { rules }))
    }

    async fn add_permit_list_rules(
        &self,
        request: Request<AddPermitListRulesRequest>,
    ) -> Answer<AddPermitListRulesResponse> {
        let AddPermitListRulesRequest { namespace, resource, rules } = request.into_inner();
        self.0.add_rules(&namespace, &resource, rules.into_iter().map(Into::into).collect()).await?;
        Ok(Response::new(AddPermitListRulesResponse {}))
    }

    async fn delete_permit_list_rules(
        &self,
        request: Request<DeletePermitListRulesRequest>,
    ) -> Answer<DeletePermitListRulesResponse> {
        let DeletePermitListRulesRequest { namespace, resource, rule_names } = request.into_inner();
        self.0.delete_rules(&namespace, &resource, rule_names).await?;
        Ok(Response::new(DeletePermitListRulesResponse {}))
    }

    async fn create_vpn_gateway(
        &self,
        request: Request<CreateVpnGatewayRequest>,
    ) -> Answer<CreateVpnGatewayResponse> {
        let gateway = self.0.create_gateway(request.into_inner().try_into()?).await?;
        Ok(Response::new(CreateVpnGatewayResponse {
            asn: gateway.asn,
            gateway_ip_addresses: gateway.addresses,
        }))
    }

    async fn create_vpn_connections(
        &self,
        request: Request<CreateVpnConnectionsRequest>,
    ) -> Answer<CreateVpnConnectionsResponse> {
        self.0.create_connections(request.into_inner().try_into()?).await?;
        Ok(Response::new(CreateVpnConnectionsResponse {}))
    }

    async fn get_network_address_spaces(
        &self,
        request: Request<GetNetworkAddressSpacesRequest>,
    ) -> Answer<GetNetworkAddressSpacesResponse> {
        let GetNetworkAddressSpacesRequest { deployment, address_space } = request.into_inner();
        let space = convert::space("address_space", &address_space)?;
        let spaces = self.0.network_spaces(&convert::deployment(deployment)?, space).await?;
        let address_spaces = spaces.iter().map(ToString::to_string).collect();
        Ok(Response::new(GetNetworkAddressSpacesResponse { address_spaces }))
    }

    async fn set_flags(&self, request: Request<SetFlagsRequest>) -> Answer<SetFlagsResponse> {
        // A message whose every field is zero may be left out.
        let flags = request.into_inner().flags.unwrap_or_default();
        self.0.set_flags(flags.into()).await?;
        Ok(Response::new(SetFlagsResponse {}))
    }
}
