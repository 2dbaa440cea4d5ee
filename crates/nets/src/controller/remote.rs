//! The orchestrator over today's wire.

use async_trait::async_trait;
use ipnet::IpNet;
use tarbet_telemetry::codes::nets;
use tonic::Status;
use tonic::transport::Channel;

use super::{ConnectRequest, Controller};
use crate::cloud::space_from;
use crate::error::Error;
use crate::grpc;
use crate::model::Mapping;
use crate::wire::paraglider::controller_client::ControllerClient;
use crate::wire::paraglider::{
    ConnectCloudsRequest, DeleteValueRequest, FindUnusedAddressSpacesRequest, FindUnusedAsnRequest,
    GetValueRequest, SetValueRequest,
};

/// A hundred thousand address spaces are one message.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;

/// An orchestrator in another process.
#[derive(Clone, Debug)]
pub struct RemoteController(ControllerClient<Channel>);

impl RemoteController {
    /// The orchestrator whose gRPC listener is here. It need not be up yet.
    pub fn new(host: &str, port: u16) -> Result<Self, Error> {
        Ok(Self(ControllerClient::new(grpc::channel(host, port)?).max_decoding_message_size(MESSAGE_MAX)))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form map_err wants")]
fn told(status: Status) -> Error {
    grpc::told(&status, "cloud plugin → orchestrator", &nets::ORCHESTRATOR_UNREACHABLE)
}

#[async_trait]
impl Controller for RemoteController {
    async fn find_spaces(&self, sizes: &[i32]) -> Result<Vec<IpNet>, Error> {
        let request = FindUnusedAddressSpacesRequest { sizes: sizes.to_vec() };
        let answer = self.0.clone().find_unused_address_spaces(request).await.map_err(told)?;
        answer.into_inner().address_spaces.iter().map(|text| space_from("address_spaces", text)).collect()
    }

    async fn used_spaces(&self) -> Result<Vec<Mapping>, Error> {
        let answer = self.0.clone().get_used_address_spaces(()).await.map_err(told)?;
        answer.into_inner().address_space_mappings.into_iter().map(TryInto::try_into).collect()
    }

    async fn find_asn(&self) -> Result<u32, Error> {
        Ok(self.0.clone().find_unused_asn(FindUnusedAsnRequest {}).await.map_err(told)?.into_inner().asn)
    }

    async fn connect(&self, request: ConnectRequest) -> Result<(), Error> {
        let request = ConnectCloudsRequest {
            cloud_a: request.cloud_a,
            cloud_b: request.cloud_b,
            cloud_a_namespace: request.namespace_a,
            cloud_b_namespace: request.namespace_b,
            address_spaces_cloud_a: request.spaces_a,
            address_spaces_cloud_b: request.spaces_b,
        };
        self.0.clone().connect_clouds(request).await.map(drop).map_err(told)
    }

    async fn set_value(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error> {
        let request = SetValueRequest {
            key: key.into(),
            value: value.into(),
            cloud: cloud.into(),
            namespace: namespace.into(),
        };
        self.0.clone().set_value(request).await.map(drop).map_err(told)
    }

    async fn get_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error> {
        let request = GetValueRequest { key: key.into(), cloud: cloud.into(), namespace: namespace.into() };
        Ok(self.0.clone().get_value(request).await.map_err(told)?.into_inner().value)
    }

    async fn delete_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error> {
        let request =
            DeleteValueRequest { key: key.into(), cloud: cloud.into(), namespace: namespace.into() };
        self.0.clone().delete_value(request).await.map(drop).map_err(told)
    }
}
