//! What goes beyond both generations, on its own service.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{Abilities, Cloud, Held, OldConnections, convert};
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};
use crate::wire::upkeep as wire;
use crate::wire::upkeep::cloud_upkeep_server::{CloudUpkeep, CloudUpkeepServer};
use crate::wire::upkeep::{
    AbilitiesRequest, AbilitiesResponse, DeleteResourceRequest, DeleteResourceResponse,
    DeleteVpnConnectionsRequest, DeleteVpnConnectionsResponse, DriftRequest, DriftResponse,
    FindDeploymentRequest, FindDeploymentResponse, ListForeignNetworksRequest, ListForeignNetworksResponse,
    ListResourcesRequest, ListResourcesResponse, Resource,
};

pub(super) fn service(cloud: Arc<dyn Cloud>) -> CloudUpkeepServer<Upkeep> {
    CloudUpkeepServer::new(Upkeep(cloud))
}

pub(super) struct Upkeep(Arc<dyn Cloud>);

impl From<Held> for Resource {
    fn from(Held { namespace, name, uri, ip, network }: Held) -> Self {
        Self { namespace, name, uri, ip, network }
    }
}

impl From<Resource> for Held {
    fn from(Resource { namespace, name, uri, ip, network }: Resource) -> Self {
        Self { namespace, name, uri, ip, network }
    }
}

impl From<wire::Deployment> for Deployment {
    fn from(wire::Deployment { id, namespace }: wire::Deployment) -> Self {
        Self { id, namespace }
    }
}

impl From<Deployment> for wire::Deployment {
    fn from(Deployment { id, namespace }: Deployment) -> Self {
        Self { id, namespace }
    }
}

impl From<ForeignNetwork> for wire::ForeignNetwork {
    fn from(network: ForeignNetwork) -> Self {
        let ForeignNetwork { id, name, region, deployment, spaces, subnets, machines } = network;
        let address_spaces = spaces.iter().map(ToString::to_string).collect();
        Self { id, name, region, deployment, address_spaces, subnets, machines }
    }
}

impl TryFrom<wire::ForeignNetwork> for ForeignNetwork {
    type Error = Error;

    fn try_from(given: wire::ForeignNetwork) -> Result<Self, Error> {
        let wire::ForeignNetwork { id, name, region, deployment, address_spaces, subnets, machines } = given;
        if id.is_empty() {
            return Err(Error::invalid("networks.id", "is missing"));
        }
        let spaces = address_spaces.iter().map(|text| convert::space("address_spaces", text));
        let spaces = spaces.collect::<Result<_, _>>()?;
        let name = if name.is_empty() { id.clone() } else { name };
        Ok(Self { id, name, region, deployment, spaces, subnets, machines })
    }
}

#[tonic::async_trait]
impl CloudUpkeep for Upkeep {
    async fn abilities(&self, _: Request<AbilitiesRequest>) -> Result<Response<AbilitiesResponse>, Status> {
        let Abilities { replaces_keys, at_once } = self.0.abilities().await?;
        let permit_lists_at_once = u32::try_from(at_once).unwrap_or(u32::MAX);
        Ok(Response::new(AbilitiesResponse { replaces_keys, permit_lists_at_once }))
    }

    async fn find_deployment(
        &self,
        request: Request<FindDeploymentRequest>,
    ) -> Result<Response<FindDeploymentResponse>, Status> {
        let deployment = self.0.find_deployment(&request.into_inner().uri).await?.unwrap_or_default();
        Ok(Response::new(FindDeploymentResponse { deployment }))
    }

    async fn list_resources(
        &self,
        request: Request<ListResourcesRequest>,
    ) -> Result<Response<ListResourcesResponse>, Status> {
        let held = self.0.list_resources(&request.into_inner().namespace).await?;
        Ok(Response::new(ListResourcesResponse { resources: held.into_iter().map(Into::into).collect() }))
    }

    async fn delete_resource(
        &self,
        request: Request<DeleteResourceRequest>,
    ) -> Result<Response<DeleteResourceResponse>, Status> {
        let DeleteResourceRequest { namespace, resource } = request.into_inner();
        self.0.delete_resource(&namespace, &resource).await?;
        Ok(Response::new(DeleteResourceResponse {}))
    }

    async fn delete_vpn_connections(
        &self,
        request: Request<DeleteVpnConnectionsRequest>,
    ) -> Result<Response<DeleteVpnConnectionsResponse>, Status> {
        let DeleteVpnConnectionsRequest { deployment, namespace, cloud, bgp_ip_addresses } =
            request.into_inner();
        let bgp_addresses = convert::addresses("bgp_ip_addresses", &bgp_ip_addresses)?;
        let deployment = Deployment { id: deployment, namespace };
        self.0.delete_connections(OldConnections { deployment, cloud, bgp_addresses }).await?;
        Ok(Response::new(DeleteVpnConnectionsResponse {}))
    }

    async fn drift(&self, request: Request<DriftRequest>) -> Result<Response<DriftResponse>, Status> {
        let DriftRequest { namespace, repair } = request.into_inner();
        let differences = self.0.drift(&namespace, repair).await?;
        Ok(Response::new(DriftResponse { differences }))
    }

    async fn list_foreign_networks(
        &self,
        request: Request<ListForeignNetworksRequest>,
    ) -> Result<Response<ListForeignNetworksResponse>, Status> {
        let asked = request.into_inner().deployments;
        let deployments: Vec<Deployment> = asked.into_iter().map(Into::into).collect();
        let found = self.0.foreign_networks(&deployments).await?;
        Ok(Response::new(ListForeignNetworksResponse {
            networks: found.into_iter().map(Into::into).collect(),
        }))
    }
}
