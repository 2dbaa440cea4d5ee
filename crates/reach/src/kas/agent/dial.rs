//! The way to a kas: TCP or a proxy, TLS and a WebSocket, as its address says.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use tarbet_identity::tls::{ClientTls, TlsError};
use tarbet_link::{BadGatewayUrl, GatewayUrl, NetConnector, NetDialer, ProxySettings};

/// What gRPC in a WebSocket is called.
pub const SUBPROTOCOL: &str = "ws-tunnel";

/// The protocol's own limit for the first hop.
const CONNECT: Duration = Duration::from_secs(30);
/// Connecting, TLS and the answer to the upgrade together.
const ALL: Duration = Duration::from_mins(1);

/// Reads the address of a kas: `grpc`, `grpcs`, `ws` or `wss`, with the ports 80 and 443 where none is
/// given.
pub fn kas_address(text: &str) -> Result<GatewayUrl, BadGatewayUrl> {
    let mut url = url::Url::parse(text).map_err(|_| BadGatewayUrl::Form(text.chars().take(80).collect()))?;
    let port = match url.scheme() {
        "grpc" | "ws" => 80,
        "grpcs" | "wss" => 443,
        other => return Err(BadGatewayUrl::Scheme(other.chars().take(20).collect())),
    };
    if url.port().is_none() {
        // The usual ports of ws and wss are left out of the text again, where they mean the same.
        let _ = url.set_port(Some(port));
    }
    url.as_str().parse()
}

/// Makes the connector for an address. TLS offers the protocol that will be spoken inside; the headers
/// and the agent's name go along with the upgrade to a WebSocket.
pub fn connector(
    address: &GatewayUrl,
    tls: ClientTls,
    proxies: ProxySettings,
    headers: &HeaderMap,
    user_agent: &str,
    now: Timestamp,
) -> Result<NetConnector, TlsError> {
    let mut connector = NetConnector::new(Arc::new(NetDialer { timeout: CONNECT }));
    if address.tls() {
        let spoken = if address.websocket() { "http/1.1" } else { "h2" };
        connector.tls = Some(Arc::new(tls.alpn([spoken]).build(now)?));
    }
    connector.proxies = proxies;
    connector.headers = headers.clone();
    if let Ok(name) = HeaderValue::from_str(user_agent) {
        connector.headers.insert(header::USER_AGENT, name);
    }
    connector.subprotocol = SUBPROTOCOL.into();
    connector.timeout = ALL;
    Ok(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_ports_of_the_web() {
        for (text, printed) in [
            ("grpc://kas", "grpc://kas:80"),
            ("grpcs://kas.example.org", "grpcs://kas.example.org:443"),
            ("grpc://127.0.0.1:8150", "grpc://127.0.0.1:8150"),
            ("wss://kas.example.org/-/kubernetes-agent/", "wss://kas.example.org:443/-/kubernetes-agent/"),
            ("ws://[::1]:8150/", "ws://[::1]:8150/"),
        ] {
            assert_eq!(kas_address(text).unwrap().to_string(), printed);
        }
        for text in ["https://kas", "kas:8150", "", "wss://"] {
            assert!(kas_address(text).is_err(), "{text}");
        }
    }
}
