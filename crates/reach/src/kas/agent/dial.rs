//! The way to a kas: TCP or a proxy, TLS and a WebSocket, as its address says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use tarbet_identity::tls::{ClientTls, TlsError};
use tarbet_link::{
    Address, BadGatewayUrl, ByteStream, Dialer, GatewayUrl, LinkError, NetConnector, NetDialer,
    ProxySettings, Target,
};

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
    let mut connector = NetConnector::new(Arc::new(Spread::default()));
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

/// How many connections are kept where nobody said it: one more where there is more than one kas to lose.
pub async fn usual_connections(address: &GatewayUrl) -> usize {
    let (host, port) = (address.address().host(), address.address().port());
    // Behind a WebSocket there is something that balances by itself.
    if address.websocket() {
        return 1;
    }
    let found = tokio::net::lookup_host((host, port)).await;
    if found.is_ok_and(|found| are_several(&found.collect::<Vec<_>>())) { 2 } else { 1 }
}

/// Whether these are several machines: one may have an address of each family.
fn are_several(found: &[SocketAddr]) -> bool {
    let of_family = |v4: bool| found.iter().filter(|address| address.is_ipv4() == v4).count();
    of_family(true) > 1 || of_family(false) > 1
}

/// Begins with another address of a name each time, so that connections are spread over all of them and one
/// that does not answer is not tried first for ever.
#[derive(Default)]
struct Spread(AtomicUsize);

impl Dialer for Spread {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        async move {
            let net = NetDialer { timeout: CONNECT };
            let Some(address) = target.address() else { return net.open_with(target, first).await };
            let found = match tokio::net::lookup_host((address.host(), address.port())).await {
                Ok(found) => found.collect::<Vec<_>>(),
                Err(_) => Vec::new(),
            };
            let mut last = None;
            for found in in_turn(found, self.0.fetch_add(1, Ordering::Relaxed)) {
                let Ok(one) = Address::new(found.ip().to_string(), found.port()) else { continue };
                match net.open_with(Target::tcp(one), first.clone()).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = Some(error),
                }
            }
            match last {
                Some(error) => Err(error),
                // It says what is wrong with the name.
                None => net.open_with(target, first).await,
            }
        }
        .boxed()
    }
}

/// The addresses, from the one whose turn it is. Those of the family that the system prefers stay first: the
/// other one may lead nowhere.
fn in_turn(found: Vec<SocketAddr>, turn: usize) -> Vec<SocketAddr> {
    let preferred = found.first().is_some_and(SocketAddr::is_ipv4);
    let (mut ordered, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.is_ipv4() == preferred);
    let count = ordered.len().max(1);
    ordered.rotate_left(turn % count);
    ordered.extend(others);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_over_the_addresses_of_a_name() {
        let all: Vec<SocketAddr> =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).into();
        let first = |turn| in_turn(all.clone(), turn)[0];
        assert_eq!([first(0), first(1), first(2), first(3)], [all[0], all[1], all[2], all[0]]);
        assert_eq!(in_turn(all.clone(), 1), [all[1], all[2], all[0]]);
        assert!(in_turn(Vec::new(), 5).is_empty());
        let both: Vec<SocketAddr> = ["127.0.0.1:1", "[::1]:1"].map(|text| text.parse().unwrap()).into();
        assert_eq!(in_turn(both.clone(), 1), both);
        assert!(are_several(&all) && !are_several(&both) && !are_several(&both[..1]));
    }

    #[tokio::test]
    async fn one_address_is_enough_for_one_connection() {
        for (address, usual) in [("grpc://127.0.0.1:8150", 1), ("wss://kas.invalid/", 1)] {
            assert_eq!(usual_connections(&kas_address(address).unwrap()).await, usual, "{address}");
        }
    }

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
