//! What the tests stand on: stores, listeners on free ports, and how often to repeat.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use tarbet_nets::cloud::{Calls, MemoryCloud};
use tarbet_nets::config::ListenConfig;
use tarbet_nets::controller::RemoteController;
use tarbet_nets::role::Surroundings;
use tarbet_nets::tags::Sharing;
use tarbet_nets::trust::DialTrust;
use tarbet_nets::{NetsConfig, Orchestrator};
use tarbet_store::{Clock, RedbConfig, Store, StoreConfig};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tarbet_testbed::{Lease, Redis};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Routes;

pub(crate) use tarbet_testbed::effort;

pub(crate) async fn memory() -> Store {
    tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await.unwrap()
}

pub(crate) async fn redb(folder: &tempfile::TempDir) -> Store {
    let config = StoreConfig::Redb(RedbConfig::at(folder.path().join("store.redb")));
    tarbet_store::open(&config, Clock::system()).await.unwrap()
}

pub(crate) async fn redis(redis: &Redis) -> Store {
    let config = serde_json::json!({ "kind": "redis", "url": redis.url() });
    let config: StoreConfig = serde_json::from_value(config).unwrap();
    tarbet_store::open(&config, Clock::system()).await.unwrap()
}

/// A gRPC listener that ends when dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    served: JoinHandle<()>,
    stop: DropGuard,
}

impl Listening {
    /// Ends it, and waits until it has.
    async fn end(self) {
        drop(self.stop);
        self.served.await.unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

pub(crate) async fn serve(routes: Routes) -> Listening {
    serve_at(SocketAddr::from(([127, 0, 0, 1], 0)), routes).await
}

async fn serve_at(address: SocketAddr, routes: Routes) -> Listening {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tarbet_nets::grpc::serve(listener, routes, stop.clone());
    let served = tokio::spawn(async move { serving.await.unwrap() });
    Listening { address, served, stop: stop.drop_guard() }
}

/// Two remembered clouds behind real gRPC, and where the orchestrator must listen so that they find it.
pub(crate) struct Clouds {
    pub(crate) east: Arc<MemoryCloud>,
    pub(crate) west: Arc<MemoryCloud>,
    pub(crate) config: NetsConfig,
    /// The same on other ports: for a second orchestrator, which the clouds know too.
    pub(crate) second: NetsConfig,
    at_east: SocketAddr,
    east_listens: Option<Listening>,
    _west_listens: Listening,
    _ports: Lease,
}

impl Clouds {
    /// The plugin of east does not answer any more.
    pub(crate) async fn east_leaves(&mut self) {
        self.east_listens.take().unwrap().end().await;
    }

    /// It does again.
    pub(crate) async fn east_returns(&mut self) {
        let routes = tarbet_nets::cloud::serve(self.east.clone(), "east");
        self.east_listens = Some(serve_at(self.at_east, routes).await);
    }
}

/// `east` and `west` with a deployment each in the namespaces `default` and `other`.
pub(crate) async fn clouds(calls: Option<Calls>) -> Clouds {
    let ports = Lease::block(8).unwrap();
    let at = |index| ListenConfig { host: "127.0.0.1".into(), port: ports.port(index) };
    let controller = RemoteController::trusting(&[at(1), at(5)], &DialTrust::default()).unwrap();
    let controller = Arc::new(controller);
    let make = |name: &str| {
        let cloud = MemoryCloud::new(name, controller.clone());
        Arc::new(match &calls {
            Some(calls) => cloud.watched(calls.clone()),
            None => cloud,
        })
    };
    let (east, west) = (make("east"), make("west"));
    let (at_east, at_west) = (
        serve(tarbet_nets::cloud::serve(east.clone(), "east")).await,
        serve(tarbet_nets::cloud::serve(west.clone(), "west")).await,
    );
    let config = |first| {
        let config = serde_json::json!({
        "server": { "host": "127.0.0.1", "port": ports.port(first), "rpcPort": ports.port(first + 1) },
        "tagService": { "host": "127.0.0.1", "port": ports.port(first + 2) },
        "kvStore": { "host": "127.0.0.1", "port": ports.port(first + 3) },
        "leaderLease": "1s",
        "cloudPlugins": [
            { "name": "east", "host": "127.0.0.1", "port": at_east.address.port() },
            { "name": "west", "host": "127.0.0.1", "port": at_west.address.port() },
        ],
        "namespaces": {
            "default": [{ "name": "east", "deployment": "e1" }, { "name": "west", "deployment": "w1" }],
            "other": [{ "name": "east", "deployment": "e2" }],
        },
        });
        serde_json::from_value(config).unwrap()
    };
    let (config, second) = (config(0), config(4));
    Clouds {
        east,
        west,
        config,
        second,
        at_east: at_east.address,
        east_listens: Some(at_east),
        _west_listens: at_west,
        _ports: ports,
    }
}

/// An orchestrator in this process, with all its listeners. It stops when dropped.
pub(crate) struct Running {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) rest: String,
    supervisor: Supervisor,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

pub(crate) async fn orchestrator(config: &NetsConfig, store: &Store) -> Running {
    start(config, store, Sharing::Alone).await
}

/// One of several on the same store.
pub(crate) async fn replica(config: &NetsConfig, store: &Store) -> Running {
    start(config, store, Sharing::Shared).await
}

async fn start(config: &NetsConfig, store: &Store, sharing: Sharing) -> Running {
    let supervisor = Supervisor::default();
    let around = Surroundings {
        store: store.clone(),
        sharing,
        metrics: Metrics::new("nets", "test"),
        health: Health::default(),
        supervisor: supervisor.clone(),
    };
    let orchestrator = tarbet_nets::role::nets(config.clone(), &around).await.unwrap();
    let running = supervisor.clone();
    tokio::spawn(async move { running.run(Duration::from_secs(5), std::future::pending).await });
    let rest = format!("{}://127.0.0.1:{}", config.security.scheme(), config.server.port);
    Running { orchestrator, rest, supervisor }
}

/// A REST call: its status and its body.
pub(crate) async fn rest(method: Method, url: String, body: serde_json::Value) -> (u16, serde_json::Value) {
    let request = reqwest::Client::new().request(method, url);
    let request = if body.is_null() { request } else { request.json(&body) };
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text)))
}
