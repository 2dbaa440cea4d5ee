//! What the tests stand on: stores, listeners on free ports, and how often to repeat.

use std::net::SocketAddr;

use tarbet_store::{Clock, RedbConfig, Store, StoreConfig};
use tarbet_testbed::Redis;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Routes;

/// How much to repeat: 1 for everyday, more for `make verify`.
pub(crate) fn effort() -> usize {
    std::env::var("EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub(crate) async fn memory() -> Store {
    tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await.unwrap()
}

pub(crate) async fn redb(folder: &tempfile::TempDir) -> Store {
    let config = StoreConfig::Redb(RedbConfig { path: folder.path().join("store.redb") });
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
    _stop: DropGuard,
}

impl Listening {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

pub(crate) async fn serve(routes: Routes) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(tarbet_nets::grpc::serve(listener, routes, stop.clone()));
    Listening { address, _stop: stop.drop_guard() }
}
