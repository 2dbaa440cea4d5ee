//! Envoy's reverse tunnels, one worker on each side. The tunnel's own TLS covers only its handshake: what
//! follows is plain unless it is given TLS of its own, so it is.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::{Authority, Envoy, Folder, Lease, Subject, eventually};

use super::{Tunnel, local, working};

const TYPES: &str = "type.googleapis.com/envoy.extensions.";
/// The first requests must not come before the tunnel does: it would not recover.
const SETTLED: Duration = Duration::from_secs(1);

pub(super) async fn start(backend: SocketAddr) -> Result<Tunnel> {
    let (folder, ports) = (Folder::new("envoy-tunnel")?, Lease::block(2)?);
    let authority = Authority::new("bench")?;
    let issued = authority.issue(&Subject::loopback("bench"))?;
    folder.write("cert.pem", &issued.certificate)?;
    folder.write("key.pem", &issued.key)?;
    folder.write("ca.pem", authority.pem())?;
    let tls = Tls { folder: folder.path() };
    let (user, tunnel) = (ports.port(0), ports.port(1));
    let gateway = Envoy::start("gateway", gateway(&tls, user, tunnel)).await.context("the public side")?;
    let agent = Envoy::start("agent", agent(&tls, tunnel, backend)).await.context("the private side")?;
    let joined = format!("listener.127.0.0.1_{tunnel}.downstream_cx_total: ");
    eventually(Duration::from_secs(30), "envoy's tunnel", || async {
        let stats = gateway.admin("/stats?filter=downstream_cx_total").await?;
        let count = stats.lines().find_map(|line| line.strip_prefix(&joined)).context("no such listener")?;
        ensure!(count != "0", "no tunnel");
        Ok(())
    })
    .await?;
    tokio::time::sleep(SETTLED).await;
    working(local(user), &[]).await?;
    let pids = vec![gateway.pid(), agent.pid()];
    Ok(Tunnel { name: "envoy", address: local(user), pids, _kept: Box::new((agent, gateway, folder, ports)) })
}

fn gateway(tls: &Tls<'_>, user: u16, tunnel: u16) -> Value {
    let interface = "bootstrap.reverse_tunnel.upstream_socket_interface";
    let cluster = json!({
        "name": "site", "connect_timeout": "5s", "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {"name": "envoy.clusters.reverse_connection", "typed_config": typed(
            "clusters.reverse_connection.v3.ReverseConnectionClusterConfig",
            json!({"cleanup_interval": "60s", "host_id_format": "site-node"}),
        )},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
            "upstreams.http.v3.HttpProtocolOptions",
            json!({"explicit_http_config": {"http2_protocol_options": {}}}),
        )},
        "transport_socket": tls.client(),
    });
    let accepts = json!({"filters": [{"name": "envoy.filters.network.reverse_tunnel", "typed_config": typed(
        "filters.network.reverse_tunnel.v3.ReverseTunnel", json!({"ping_interval": "10s"}),
    )}], "transport_socket": tls.server()});
    json!({
        "node": {"id": "gateway", "cluster": "gateway"},
        "bootstrap_extensions": [{"name": format!("envoy.{interface}"), "typed_config": typed(
            &format!("{interface}.v3.UpstreamReverseConnectionSocketInterface"), json!({"stat_prefix": "tunnels"}),
        )}],
        "static_resources": {
            "listeners": [
                {"name": "tunnels", "address": at(local(tunnel)), "filter_chains": [accepts]},
                {"name": "users", "address": at(local(user)), "filter_chains": [{"filters": [http("AUTO", "site")]}]},
            ],
            "clusters": [cluster],
        },
    })
}

fn agent(tls: &Tls<'_>, tunnel: u16, backend: SocketAddr) -> Value {
    let interface = "bootstrap.reverse_tunnel.downstream_socket_interface";
    let dials = json!({"socket_address": {
        "address": "rc://site-node:site:bench@gateway:1", "port_value": 0,
        "resolver_name": "envoy.resolvers.reverse_connection",
    }});
    let cluster = |name: &str, address: SocketAddr| {
        json!({
            "name": name, "type": "STATIC", "connect_timeout": "5s",
            "load_assignment": {"cluster_name": name, "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": at(address)}}]},
            ]},
        })
    };
    let mut gateway = cluster("gateway", local(tunnel));
    gateway["transport_socket"] = tls.client();
    json!({
        "node": {"id": "site-node", "cluster": "site"},
        "bootstrap_extensions": [{"name": format!("envoy.{interface}"), "typed_config": typed(
            &format!("{interface}.v3.DownstreamReverseConnectionSocketInterface"), json!({"stat_prefix": "tunnel"}),
        )}],
        "static_resources": {
            "listeners": [{
                "name": "tunnel", "listener_filters_timeout": "0s", "address": dials,
                "filter_chains": [{"filters": [http("HTTP2", "backend")], "transport_socket": tls.server()}],
            }],
            "clusters": [gateway, cluster("backend", backend)],
        },
    })
}

/// Sends every request to this cluster.
fn http(codec: &str, cluster: &str) -> Value {
    let all = json!({"name": "all", "domains": ["*"], "routes": [
        {"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}},
    ]});
    let router = json!({"name": "envoy.filters.http.router",
        "typed_config": typed("filters.http.router.v3.Router", json!({}))});
    json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({"stat_prefix": "http", "codec_type": codec, "route_config": {"virtual_hosts": [all]},
               "http_filters": [router]}),
    )})
}

fn at(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn typed(name: &str, mut config: Value) -> Value {
    config["@type"] = json!(format!("{TYPES}{name}"));
    config
}

/// The certificates in a folder, as each side uses them.
struct Tls<'a> {
    folder: &'a Path,
}

impl Tls<'_> {
    fn file(&self, name: &str) -> Value {
        json!({"filename": self.folder.join(name)})
    }

    fn server(&self) -> Value {
        let pair = json!({"certificate_chain": self.file("cert.pem"), "private_key": self.file("key.pem")});
        Self::socket("DownstreamTlsContext", json!({"common_tls_context": {"tls_certificates": [pair]}}))
    }

    fn client(&self) -> Value {
        let trust = json!({"trusted_ca": self.file("ca.pem")});
        let config = json!({"sni": "localhost", "common_tls_context": {"validation_context": trust}});
        Self::socket("UpstreamTlsContext", config)
    }

    fn socket(kind: &str, mut config: Value) -> Value {
        let only =
            json!({"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"});
        config["common_tls_context"]["tls_params"] = only;
        json!({"name": "envoy.transport_sockets.tls",
               "typed_config": typed(&format!("transport_sockets.tls.v3.{kind}"), config)})
    }
}
