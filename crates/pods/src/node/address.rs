//! The address that the cluster reaches a node by.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Uri;
use tarbet_cluster::Place;
use tokio::net::UdpSocket;

use super::config::NodeConfig;

/// What the settings say; else where the kubelet API listens; else the address of this machine on the way to
/// the cluster's API, which is one that the cluster knows.
pub(super) async fn find(config: &NodeConfig, place: &Place) -> String {
    if !config.pod_ip.is_empty() {
        return config.pod_ip.clone();
    }
    let api = place.url.parse::<Uri>().unwrap_or_default();
    let host = api.host().unwrap_or_default().trim_matches(['[', ']']);
    let listening = config.kubelet_listen.ip();
    let own = if listening.is_unspecified() {
        towards(host, api.port_u16().unwrap_or(443)).await.unwrap_or(Ipv4Addr::LOCALHOST.into())
    } else {
        listening
    };
    if own.is_loopback() && !is_loopback(host) {
        tracing::warn!(
            address = %own,
            "The cluster cannot reach this node for logs and commands; set PodIP or --pod-ip."
        );
    }
    own.to_string()
}

/// Whether a host of a URL is this machine, whatever it is.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The address of this machine that packets to `host` come from. None is sent.
async fn towards(host: &str, port: u16) -> Option<IpAddr> {
    let there = tokio::net::lookup_host((host, port)).await.ok()?.next()?;
    let any: SocketAddr = match there {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(there).await.ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(pod_ip: &str, listen: &str, url: &str) -> String {
        let config = NodeConfig {
            pod_ip: pod_ip.to_owned(),
            kubelet_listen: listen.parse().unwrap(),
            ..Default::default()
        };
        find(&config, &Place { url: url.to_owned(), ..Default::default() }).await
    }

    #[tokio::test]
    async fn what_is_said_comes_first_then_what_listens_then_the_way_to_the_cluster() {
        let api = "https://127.0.0.1:6443/";
        assert_eq!(found("192.0.2.1", "192.0.2.2:1", api).await, "192.0.2.1");
        assert_eq!(found("", "192.0.2.2:1", api).await, "192.0.2.2");
        assert_eq!(found("", "0.0.0.0:1", api).await, "127.0.0.1");
        assert_eq!(found("", "0.0.0.0:1", "").await, "127.0.0.1", "there is no way");
    }

    #[test]
    fn this_machine_has_several_names() {
        assert!(["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"].into_iter().all(is_loopback));
        assert!(!["10.0.0.1", "edge", "", "local"].into_iter().any(is_loopback));
    }
}
