//! Envoy is the real thing: it proxies.

use serde_json::json;
use tarbet_testbed::{Envoy, Lease};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn envoy_carries_bytes_to_a_backend() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lease = Lease::block(1).unwrap();
    let address = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let proxy = json!({ "name": "envoy.filters.network.tcp_proxy", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "x", "cluster": "backend",
    } });
    let bootstrap = json!({ "static_resources": {
        "listeners": [{ "name": "in", "address": address(lease.port(0)), "filter_chains": [{ "filters": [proxy] }] }],
        "clusters": [{ "name": "backend", "type": "STATIC", "load_assignment": { "cluster_name": "backend",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(backend.local_addr().unwrap().port()) } }] }] } }],
    } });
    let envoy = Envoy::start("plain", bootstrap).await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", lease.port(0))).await.unwrap();
    client.write_all(b"ping").await.unwrap();
    let (mut server, _) = backend.accept().await.unwrap();
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
    assert!(envoy.admin("/server_info").await.unwrap().contains("1.40"));
}
