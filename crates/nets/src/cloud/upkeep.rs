//! What goes beyond both generations, on its own service.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{Cloud, Held, OldConnections, convert};
use crate::model::Deployment;
use crate::wire::upkeep::cloud_upkeep_server::{CloudUpkeep, CloudUpkeepServer};
use crate::wire::upkeep::{
    DeleteResourceRequest, DeleteResourceResponse, DeleteVpnConnectionsRequest, DeleteVpnConnectionsResponse,
    DriftRequest, DriftResponse, ListResourcesRequest, ListResourcesResponse, Resource,
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

#[tonic::async_trait]
impl CloudUpkeep for Upkeep {
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
}
