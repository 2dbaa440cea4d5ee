//! The orchestrator over today's wire.

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use ipnet::IpNet;
use tarbet_telemetry::Coded;
use tarbet_telemetry::codes::nets;
use tonic::{Response, Status};

use super::{ConnectRequest, Controller};
use crate::cloud::space_from;
use crate::config::ListenConfig;
use crate::error::{Error, NO_VALUE};
use crate::grpc;
use crate::model::Mapping;
use crate::trust::{DialTrust, Line};
use crate::wire::paraglider::controller_client::ControllerClient;
use crate::wire::paraglider::{
    ConnectCloudsRequest, DeleteValueRequest, FindUnusedAddressSpacesRequest, FindUnusedAsnRequest,
    GetValueRequest, SetValueRequest,
};

/// A hundred thousand address spaces are one message.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;

/// Orchestrators in other processes. Where several share a store, the one that leads is found.
#[derive(Clone, Debug)]
pub struct RemoteController(Vec<ControllerClient<Line>>);

impl RemoteController {
    /// The orchestrator whose gRPC listener is here. It need not be up yet.
    pub fn new(host: &str, port: u16) -> Result<Self, Error> {
        let at = ListenConfig { host: host.into(), port };
        Self::trusting(std::slice::from_ref(&at), &DialTrust::default())
    }

    /// The orchestrators that share a store, with a certificate or a token.
    pub fn trusting(places: &[ListenConfig], trust: &DialTrust) -> Result<Self, Error> {
        let client = |at: &ListenConfig| {
            let line = trust.line(&at.host, at.port)?;
            Ok(ControllerClient::new(line).max_decoding_message_size(MESSAGE_MAX))
        };
        if places.is_empty() {
            return Err(Error::invalid("orchestrator", "is missing"));
        }
        Ok(Self(places.iter().map(client).collect::<Result<_, Error>>()?))
    }

    /// Asks all at once: those that do not lead say so, and one that hangs keeps nobody waiting.
    async fn ask<T, F>(&self, call: impl Fn(ControllerClient<Line>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut asked: FuturesUnordered<F> = self.0.iter().cloned().map(call).collect();
        let mut refused = None;
        while let Some(answer) = asked.next().await {
            let status = match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            let error = grpc::told(&status, "cloud plugin → orchestrator", &nets::ORCHESTRATOR_UNREACHABLE);
            if ![nets::STANDBY.id, nets::ORCHESTRATOR_UNREACHABLE.id].contains(&&*error.problem().code) {
                return Err(error);
            }
            refused.get_or_insert(error);
        }
        Err(refused.unwrap_or_else(|| Error::Internal("there is no orchestrator to ask".into())))
    }
}

#[async_trait]
impl Controller for RemoteController {
    async fn find_spaces(&self, sizes: &[i32]) -> Result<Vec<IpNet>, Error> {
        let request = FindUnusedAddressSpacesRequest { sizes: sizes.to_vec() };
        let call = |mut client: ControllerClient<Line>| {
            let request = request.clone();
            async move { client.find_unused_address_spaces(request).await }
        };
        let answer = self.ask(call).await?;
        answer.address_spaces.iter().map(|text| space_from("address_spaces", text)).collect()
    }

    async fn used_spaces(&self) -> Result<Vec<Mapping>, Error> {
        let call =
            |mut client: ControllerClient<Line>| async move { client.get_used_address_spaces(()).await };
        self.ask(call).await?.address_space_mappings.into_iter().map(TryInto::try_into).collect()
    }

    async fn find_asn(&self) -> Result<u32, Error> {
        let call = |mut client: ControllerClient<Line>| async move {
            client.find_unused_asn(FindUnusedAsnRequest {}).await
        };
        Ok(self.ask(call).await?.asn)
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
        let call = |mut client: ControllerClient<Line>| {
            let request = request.clone();
            async move { client.connect_clouds(request).await }
        };
        self.ask(call).await.map(drop)
    }

    async fn set_value(&self, namespace: &str, cloud: &str, key: &str, value: &str) -> Result<(), Error> {
        let request = SetValueRequest {
            key: key.into(),
            value: value.into(),
            cloud: cloud.into(),
            namespace: namespace.into(),
        };
        let call = |mut client: ControllerClient<Line>| {
            let request = request.clone();
            async move { client.set_value(request).await }
        };
        self.ask(call).await.map(drop)
    }

    async fn get_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<String, Error> {
        let request = GetValueRequest { key: key.into(), cloud: cloud.into(), namespace: namespace.into() };
        let call = |mut client: ControllerClient<Line>| {
            let request = request.clone();
            async move { client.get_value(request).await }
        };
        match self.ask(call).await {
            // The original has one status for everything; what is missing shows in its words.
            Err(Error::Told(problem))
                if problem.code == nets::CLOUD_FAILED.id && problem.cause.contains(NO_VALUE) =>
            {
                let (namespace, cloud, key) = (namespace.into(), cloud.into(), key.into());
                Err(Error::Value { namespace, cloud, key })
            }
            outcome => Ok(outcome?.value),
        }
    }

    async fn delete_value(&self, namespace: &str, cloud: &str, key: &str) -> Result<(), Error> {
        let request =
            DeleteValueRequest { key: key.into(), cloud: cloud.into(), namespace: namespace.into() };
        let call = |mut client: ControllerClient<Line>| {
            let request = request.clone();
            async move { client.delete_value(request).await }
        };
        self.ask(call).await.map(drop)
    }
}
