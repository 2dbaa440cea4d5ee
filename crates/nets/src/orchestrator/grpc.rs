//! The controller on both wires.

use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::Orchestrator;
use crate::controller::{ConnectRequest, Controller as _};
use crate::error::Error;
use crate::wire::invisinets as seed;
use crate::wire::invisinets::controller_server::ControllerServer as SeedServer;
use crate::wire::paraglider as today;
use crate::wire::paraglider::controller_server::ControllerServer as TodayServer;

/// A hundred thousand address spaces are one message.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;

pub(super) fn routes(orchestrator: Orchestrator) -> Routes {
    Routes::new(TodayServer::new(Serving(orchestrator.clone())).max_encoding_message_size(MESSAGE_MAX))
        .add_service(SeedServer::new(Serving(orchestrator)).max_encoding_message_size(MESSAGE_MAX))
}

struct Serving(Orchestrator);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl today::controller_server::Controller for Serving {
    async fn find_unused_address_spaces(
        &self,
        request: Request<today::FindUnusedAddressSpacesRequest>,
    ) -> Answer<today::FindUnusedAddressSpacesResponse> {
        let spaces = self.0.find_spaces(&request.into_inner().sizes).await?;
        let address_spaces = spaces.iter().map(ToString::to_string).collect();
        Ok(Response::new(today::FindUnusedAddressSpacesResponse { address_spaces }))
    }

    async fn get_used_address_spaces(&self, _: Request<()>) -> Answer<today::GetUsedAddressSpacesResponse> {
        let address_space_mappings = self.0.used_spaces().await?.into_iter().map(Into::into).collect();
        Ok(Response::new(today::GetUsedAddressSpacesResponse { address_space_mappings }))
    }

    async fn find_unused_asn(
        &self,
        _: Request<today::FindUnusedAsnRequest>,
    ) -> Answer<today::FindUnusedAsnResponse> {
        Ok(Response::new(today::FindUnusedAsnResponse { asn: self.0.find_asn().await? }))
    }

    async fn connect_clouds(
        &self,
        request: Request<today::ConnectCloudsRequest>,
    ) -> Answer<today::ConnectCloudsResponse> {
        let given = request.into_inner();
        let request = ConnectRequest {
            cloud_a: given.cloud_a,
            cloud_b: given.cloud_b,
            namespace_a: given.cloud_a_namespace,
            namespace_b: given.cloud_b_namespace,
            spaces_a: given.address_spaces_cloud_a,
            spaces_b: given.address_spaces_cloud_b,
        };
        self.0.connect(request).await?;
        Ok(Response::new(today::ConnectCloudsResponse {}))
    }

    async fn set_value(&self, request: Request<today::SetValueRequest>) -> Answer<today::SetValueResponse> {
        let today::SetValueRequest { key, value, cloud, namespace } = request.into_inner();
        self.0.set_value(&namespace, &cloud, &key, &value).await?;
        Ok(Response::new(today::SetValueResponse {}))
    }

    async fn get_value(&self, request: Request<today::GetValueRequest>) -> Answer<today::GetValueResponse> {
        let today::GetValueRequest { key, cloud, namespace } = request.into_inner();
        let value = self.0.get_value(&namespace, &cloud, &key).await?;
        Ok(Response::new(today::GetValueResponse { value }))
    }

    async fn delete_value(
        &self,
        request: Request<today::DeleteValueRequest>,
    ) -> Answer<today::DeleteValueResponse> {
        let today::DeleteValueRequest { key, cloud, namespace } = request.into_inner();
        self.0.delete_value(&namespace, &cloud, &key).await?;
        Ok(Response::new(today::DeleteValueResponse {}))
    }
}

#[tonic::async_trait]
impl seed::controller_server::Controller for Serving {
    /// Spaces never overlap across namespaces here, so the namespace only has to exist.
    async fn find_unused_address_space(
        &self,
        request: Request<seed::Namespace>,
    ) -> Answer<seed::AddressSpace> {
        self.known(&request.into_inner().namespace)?;
        let spaces = self.0.find_spaces(&[0]).await?;
        let first =
            spaces.first().ok_or_else(|| Error::Internal("no space was found and none refused".into()))?;
        Ok(Response::new(seed::AddressSpace { address: first.to_string() }))
    }

    async fn get_used_address_spaces(
        &self,
        request: Request<seed::Namespace>,
    ) -> Answer<seed::AddressSpaceMappingList> {
        let namespace = request.into_inner().namespace;
        let used = self.0.used_spaces().await?.into_iter().filter(|mapping| mapping.namespace == namespace);
        let address_space_mappings = used
            .map(|mapping| seed::AddressSpaceMapping {
                address_spaces: mapping.spaces.iter().map(ToString::to_string).collect(),
                cloud: mapping.cloud,
                namespace: mapping.namespace,
            })
            .collect();
        Ok(Response::new(seed::AddressSpaceMappingList { address_space_mappings }))
    }

    async fn connect_clouds(
        &self,
        request: Request<seed::ConnectCloudsRequest>,
    ) -> Answer<seed::BasicResponse> {
        let given = request.into_inner();
        let some = |space: String| Some(space).filter(|space| !space.is_empty()).into_iter().collect();
        let message = format!("Connected {} with {}", given.cloud_a, given.cloud_b);
        let request = ConnectRequest {
            cloud_a: given.cloud_a,
            cloud_b: given.cloud_b,
            namespace_a: given.cloud_a_namespace,
            namespace_b: given.cloud_b_namespace,
            spaces_a: some(given.cloud_a_address_space),
            spaces_b: some(given.cloud_b_address_space),
        };
        self.0.connect(request).await?;
        Ok(Response::new(seed::BasicResponse { success: true, message, updated_resource: None }))
    }
}

impl Serving {
    fn known(&self, namespace: &str) -> Result<(), Error> {
        if self.0.namespaces().contains_key(namespace) {
            return Ok(());
        }
        Err(Error::Place(format!("there is no namespace `{namespace}`")))
    }
}
