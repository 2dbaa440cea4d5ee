//! An orchestrator as people start it, and a remembered cloud in this process that it drives over gRPC.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tarbet_nets::cloud::MemoryCloud;
use tarbet_nets::controller::RemoteController;
use tarbet_nets::wire::paraglider::controller_client::ControllerClient;
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_testbed::Lease;
use tarbet_testbed::product::{Agent, Product};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

pub(super) struct World {
    pub(super) process: Agent,
    client: Client,
    ports: Lease,
    _plugin: Option<DropGuard>,
}

impl World {
    /// One remembered cloud, `east`, in whose account others have these networks.
    pub(super) async fn remembered(
        product: &Product,
        name: &str,
        store: &Value,
        foreign: Vec<ipnet::IpNet>,
    ) -> Result<Self> {
        let ports = Lease::block(4)?;
        let controller = Arc::new(RemoteController::new("127.0.0.1", ports.port(1))?);
        let cloud = MemoryCloud::new("east", controller).beside(foreign);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let plugin = listener.local_addr()?;
        let stop = CancellationToken::new();
        let routes = tarbet_nets::cloud::serve(Arc::new(cloud), "east");
        tokio::spawn(tarbet_nets::grpc::serve(listener, routes, stop.clone()));
        let clouds = json!([{ "name": "east", "host": "127.0.0.1", "port": plugin.port() }]);
        Self::start(product, name, store, &clouds, ports, Some(stop.drop_guard())).await
    }

    /// With these clouds.
    pub(super) async fn with_clouds(
        product: &Product,
        name: &str,
        store: &Value,
        clouds: &Value,
    ) -> Result<Self> {
        Self::start(product, name, store, clouds, Lease::block(4)?, None).await
    }

    async fn start(
        product: &Product,
        name: &str,
        store: &Value,
        clouds: &Value,
        ports: Lease,
        plugin: Option<DropGuard>,
    ) -> Result<Self> {
        let names = clouds.as_array().context("no clouds")?.iter().map(|cloud| &cloud["name"]);
        let deployments: Vec<Value> =
            names.map(|cloud| json!({ "name": cloud, "deployment": "d" })).collect();
        let at = |index| json!({ "host": "127.0.0.1", "port": ports.port(index) });
        let config = json!({
            "store": store,
            "nets": {
                "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
                "tagService": at(2), "kvStore": at(3),
                "cloudPlugins": clouds, "namespaces": { "default": deployments },
            },
        });
        // JSON is YAML.
        let file = product.folder().write(&format!("{name}.yaml"), &config.to_string())?;
        let process = product.role(name, &["nets", "--config", &file.display().to_string()], &[]).await?;
        Ok(Self { process, client: Client::new(), ports, _plugin: plugin })
    }

    pub(super) async fn rest(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports.port(0));
        let request = self.client.request(method, url);
        let request = if let Some(body) = body { request.json(body) } else { request };
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{path}: {status} {text}");
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    pub(super) async fn create(&self, cloud: &str, name: &str) -> Result<()> {
        let path = format!("/namespaces/default/clouds/{cloud}/resources/{name}");
        self.rest(Method::PUT, &path, Some(&json!({ "description": "" }))).await.map(drop)
    }

    pub(super) async fn permit(&self, cloud: &str, name: &str, rule: &str, tag: &str) -> Result<()> {
        let path = format!("/namespaces/default/clouds/{cloud}/resources/{name}/rules");
        let rule = json!({ "name": rule, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": [tag] });
        self.rest(Method::POST, &path, Some(&rule)).await.map(drop)
    }

    pub(super) async fn join(&self, tag: &str, member: &str) -> Result<()> {
        let body = json!({ "name": tag, "child_tags": [member] });
        self.rest(Method::POST, &format!("/tags/{tag}/applyMembers"), Some(&body)).await.map(drop)
    }

    pub(super) async fn leave(&self, tag: &str, member: &str) -> Result<()> {
        self.rest(Method::DELETE, &format!("/tags/{tag}/members/{member}"), None).await.map(drop)
    }

    pub(super) async fn controller(&self) -> Result<ControllerClient<Channel>> {
        Ok(ControllerClient::connect(format!("http://127.0.0.1:{}", self.ports.port(1))).await?)
    }

    pub(super) async fn tags(&self) -> Result<TagServiceClient<Channel>> {
        Ok(TagServiceClient::connect(format!("http://127.0.0.1:{}", self.ports.port(2))).await?)
    }
}
