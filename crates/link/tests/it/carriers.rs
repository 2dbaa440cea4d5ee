use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::HeaderMap;
use tarbet_link::{
    Address, Connect, ConnectError, Dialer, GatewayUrl, LinkError, NetConnector, NetDialer, ProxySettings,
    Settings, Target, WebSocketError, WebSocketLimits,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use super::rig::*;

const LIMITS: WebSocketLimits = WebSocketLimits { largest_read: 1000, largest_write: 100 };

#[tokio::test]
async fn the_plain_network_is_a_dialer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let dialer: Arc<dyn Dialer> = Arc::new(NetDialer::default());
    let target = Target::tcp(Address::new("127.0.0.1", port).unwrap());
    let mut near = dialer.open_with(target.clone(), "hello".into()).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    near.shutdown().await.unwrap();
    let mut heard = String::new();
    far.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello");
    drop(listener);
    let error = dialer.open(target).await.unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }) && error.safe_to_retry(), "{error:?}");
    let error = dialer.open(Target::service("kubernetes").unwrap()).await.unwrap_err();
    assert!(matches!(error, LinkError::Unsupported(_)), "{error:?}");
}

#[tokio::test]
async fn a_websocket_carries_any_bytes_in_any_pieces() {
    let (a, b) = wires(Over::WebSocket).await;
    let (mut a_read, mut a_write) = tokio::io::split(a);
    let (mut b_read, mut b_write) = tokio::io::split(b);
    let sent: Vec<u8> = (0..2_000_000u32).map(|i| (i % 253) as u8).collect();
    let (mut there, mut back) = (vec![0; sent.len()], vec![0; sent.len()]);
    let send = async |writer: &mut (dyn tokio::io::AsyncWrite + Unpin + Send)| {
        for piece in sent.chunks(70_001) {
            writer.write_all(piece).await.unwrap();
        }
        writer.flush().await.unwrap();
    };
    let ((), (), one, two) = soon("both ways", async {
        tokio::join!(
            send(&mut a_write),
            send(&mut b_write),
            b_read.read_exact(&mut there),
            a_read.read_exact(&mut back)
        )
    })
    .await;
    assert_eq!((one.unwrap(), two.unwrap()), (sent.len(), sent.len()));
    assert!(there == sent && back == sent);
    a_write.shutdown().await.unwrap();
    let mut rest = Vec::new();
    soon("end", b_read.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

// A plain WebSocket client against our server end.
async fn plain_client() -> (tokio_tungstenite::WebSocketStream<TcpStream>, tarbet_link::ByteStream) {
    let (a, b) = sockets().await;
    let request =
        tokio_tungstenite::tungstenite::client::ClientRequestBuilder::new("ws://gw/".parse().unwrap())
            .with_sub_protocol("ws-tunnel");
    let (server, client) = tokio::join!(
        tarbet_link::accept_websocket(a, &["ws-tunnel"], LIMITS),
        tokio_tungstenite::client_async(request, b),
    );
    (client.unwrap().0, tarbet_link::ByteStream::new(server.unwrap().0))
}

#[tokio::test]
async fn a_websocket_that_misbehaves_is_an_error_and_one_that_leaves_an_end() {
    let (mut client, mut server) = plain_client().await;
    client.send(Message::Ping("are you there".into())).await.unwrap();
    client.send(Message::Binary("ab".into())).await.unwrap();
    client.send(Message::Binary("".into())).await.unwrap();
    client.send(Message::Binary("cd".into())).await.unwrap();
    let mut heard = [0; 4];
    soon("bytes", server.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"abcd");
    server.flush().await.unwrap();
    assert_eq!(soon("pong", client.next()).await.unwrap().unwrap(), Message::Pong("are you there".into()));
    client.close(None).await.unwrap();
    assert_eq!(soon("end", server.read(&mut heard)).await.unwrap(), 0);

    let (mut client, mut server) = plain_client().await;
    client.send(Message::Text("words".into())).await.unwrap();
    assert!(soon("text", server.read(&mut heard)).await.is_err());

    let (mut client, mut server) = plain_client().await;
    client.send(Message::Binary(vec![0; 1001].into())).await.unwrap();
    assert!(soon("too long", server.read(&mut heard)).await.is_err());

    let (client, mut server) = plain_client().await;
    drop(client);
    assert_eq!(soon("gone", server.read(&mut heard)).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn messages_stay_below_their_limit() {
    let (mut client, mut server) = plain_client().await;
    let writing = tokio::spawn(async move {
        server.write_all(&[1; 1000]).await.unwrap();
        server.flush().await.unwrap();
        server
    });
    let mut total = 0;
    while total < 1000 {
        let message = soon("message", client.next()).await.unwrap().unwrap();
        assert!(message.len() <= 100);
        total += message.len();
    }
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn only_the_right_subprotocol_gets_in() {
    let (a, b) = sockets().await;
    let headers = HeaderMap::new();
    let (server, client) = tokio::join!(
        tarbet_link::accept_websocket(a, &["tarbet-link"], LIMITS),
        tarbet_link::connect_websocket(b, "ws://gw/", "other", &headers, LIMITS),
    );
    assert!(server.is_err());
    assert!(matches!(client.err(), Some(WebSocketError::Refused { status: 400 })));
}

#[tokio::test]
async fn malformed_upgrades_are_refused() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"GET / HTTP/1.0\r\nConnection: Upgrade\r\n\r\n",
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"GET",
    ] {
        let (a, mut b) = wires(Over::Memory).await;
        b.write_all(bytes).await.unwrap();
        b.shutdown().await.unwrap();
        let result = soon("accept", tarbet_link::accept_websocket(a, &["tarbet-link"], LIMITS)).await;
        assert!(result.is_err(), "{bytes:?}");
    }
}

/// An HTTP proxy that knows CONNECT and one password.
struct Proxy {
    port: u16,
    tunnels: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tunnels = Arc::new(AtomicUsize::new(0));
        let counter = tunnels.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let counter = counter.clone();
                tokio::spawn(async move { serve(socket, &counter).await });
            }
        });
        Self { port, tunnels }
    }
}

async fn serve(socket: TcpStream, tunnels: &AtomicUsize) {
    let mut client = BufReader::new(socket);
    let (mut head, mut line) = (String::new(), String::new());
    while client.read_line(&mut line).await.unwrap() > 2 {
        head.push_str(&line);
        line.clear();
    }
    // "user:pass" in base64.
    if !head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n") {
        client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.unwrap();
        return;
    }
    // Names do not resolve here: every host is this machine.
    let target = head.split_whitespace().nth(1).unwrap();
    let port: u16 = target.rsplit_once(':').unwrap().1.parse().unwrap();
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tunnels.fetch_add(1, SeqCst);
    client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

fn through(proxy: &Proxy, credentials: &str) -> NetConnector {
    let url = format!("http://{credentials}127.0.0.1:{}", proxy.port);
    let mut connector = NetConnector::new(Arc::new(NetDialer::default()));
    connector.proxies = ProxySettings::new(Some(&url), Some(&url), None).unwrap();
    connector.headers.insert("x-extra", "yes".parse().unwrap());
    connector
}

#[tokio::test]
async fn a_link_goes_through_a_proxy_in_a_websocket_or_not() {
    for scheme in ["grpc", "ws"] {
        let proxy = Proxy::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gateway: GatewayUrl = format!("{scheme}://gateway.example:{port}").parse().unwrap();
        let connector = through(&proxy, "user:pass@");
        let accepting = async {
            let (socket, _) = listener.accept().await.unwrap();
            if scheme == "grpc" {
                return tarbet_link::ByteStream::new(socket);
            }
            let accepted =
                tarbet_link::accept_websocket(socket, &["tarbet-link"], WebSocketLimits::default()).await;
            let (socket, request, _) = accepted.unwrap();
            assert_eq!(request.headers()["x-extra"], "yes");
            assert_eq!(request.headers()["host"], format!("gateway.example:{port}"));
            tarbet_link::ByteStream::new(socket)
        };
        let (near, far) =
            soon("connect", async { tokio::join!(accepting, connector.connect(&gateway)) }).await;
        assert_eq!(proxy.tunnels.load(SeqCst), 1);
        let pair = join(near, far.unwrap(), Settings::default(), Settings::default()).await;
        assert_eq!(text(pair.link.call(post("/echo", "hi")).await.unwrap()).await, "hi");
    }
}

#[tokio::test]
async fn each_hop_that_fails_is_named() {
    let proxy = Proxy::start().await;
    let gateway: GatewayUrl = "grpc://gateway.example:1".parse().unwrap();
    let error = through(&proxy, "").connect(&gateway).await.unwrap_err();
    assert!(matches!(error, ConnectError::Proxy { .. }), "{error:?}");
    assert!(tarbet_telemetry::problem::chain(&error).contains("407"));

    let error = through(&proxy, "user:pass@").connect(&"grpcs://127.0.0.1:1".parse().unwrap()).await;
    assert!(matches!(error, Err(ConnectError::Network { .. })), "{error:?}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = NetConnector::new(Arc::new(NetDialer::default()));
    let error = plain.connect(&format!("wss://127.0.0.1:{port}").parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoTls { .. }), "{error:?}");

    let impatient = NetConnector { timeout: Duration::from_millis(50), ..plain };
    let error = impatient.connect(&format!("ws://127.0.0.1:{port}").parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
}
