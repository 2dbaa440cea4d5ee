//! Two ends of a link with a small world behind the agent.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use jiff::Timestamp;
use tarbet_identity::tls::{self, CredentialSource};
use tarbet_identity::{PinSet, PrivateKey};
use tarbet_link::{
    Accepted, AgentInfo, AgentLink, Body, ByteStream, CloseReason, Credential, Handler, Hello, Link, Purpose,
    Secure, Settings, Target, Versions, WebSocketLimits,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::world::World;

/// How much of everything: 1 by default.
pub(super) fn effort() -> usize {
    std::env::var("EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Waits until something is so.
pub(super) async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    while !so() {
        assert!(tokio::time::Instant::now() < deadline, "never came true: {what}");
        tick.tick().await;
    }
}

/// Fails instead of hanging.
pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    let ended = tokio::time::timeout(Duration::from_mins(1), future).await;
    ended.unwrap_or_else(|_| panic!("took too long: {what}"))
}

/// What carries the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Over {
    Memory,
    Tcp,
    Tls,
    WebSocket,
}

pub(super) const ALL: [Over; 4] = [Over::Memory, Over::Tcp, Over::Tls, Over::WebSocket];

/// Two connected streams: the gateway's and the agent's.
pub(super) async fn wires(over: Over) -> (ByteStream, ByteStream) {
    match over {
        Over::Memory => {
            let (a, b) = tokio::io::duplex(256 * 1024);
            (ByteStream::new(a), ByteStream::new(b))
        }
        Over::Tcp => {
            let (a, b) = sockets().await;
            (ByteStream::new(a), ByteStream::new(b))
        }
        Over::Tls => {
            let (a, b) = sockets().await;
            let key = PrivateKey::generate().unwrap();
            let credential = CredentialSource::Fixed(tls::Credential::self_signed(&key).unwrap());
            let acceptor = tls::ServerTls::new(credential).build(Timestamp::UNIX_EPOCH).unwrap();
            let pins = PinSet::default();
            pins.insert(key.public().pin());
            let connector = tls::ClientTls::pinned(pins).build(Timestamp::UNIX_EPOCH).unwrap();
            let (server, client) =
                tokio::join!(acceptor.accept(a), connector.secure(ByteStream::new(b), "gateway"));
            (ByteStream::new(server.unwrap()), client.unwrap())
        }
        Over::WebSocket => {
            let (a, b) = sockets().await;
            let limits = WebSocketLimits::default();
            let headers = HeaderMap::new();
            let (server, client) = tokio::join!(
                tarbet_link::accept_websocket(a, &["ws-tunnel", "tarbet-link"], limits),
                tarbet_link::connect_websocket(b, "ws://gateway/agents", "tarbet-link", &headers, limits),
            );
            let (server, request, chosen) = server.unwrap();
            assert_eq!((request.uri().path(), chosen), ("/agents", "tarbet-link"));
            (ByteStream::new(server), ByteStream::new(client.unwrap()))
        }
    }
}

pub(super) async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
    let (a, b) = (accepted.unwrap().0, connected.unwrap());
    a.set_nodelay(true).unwrap();
    b.set_nodelay(true).unwrap();
    (a, b)
}

pub(super) fn hello() -> Hello {
    Hello {
        versions: Versions { lowest: 1, highest: 1 },
        credential: Credential::new("open sesame"),
        agent: AgentInfo {
            name: "lab-1".into(),
            version: "0.1.0".into(),
            instance: Uuid::from_u128(1),
            connection: Uuid::from_u128(2),
            services: vec!["kubernetes".into(), "tcp".into()],
            purpose: Purpose::General,
        },
    }
}

pub(super) fn accepted(settings: Settings) -> Accepted {
    Accepted { link: Uuid::from_u128(7), gateway: "gw-1".into(), settings }
}

/// Both ends of a link, driven.
pub(super) struct Pair {
    pub(super) link: Link,
    pub(super) agent: AgentLink,
    pub(super) gateway_end: JoinHandle<CloseReason>,
    pub(super) agent_end: JoinHandle<CloseReason>,
    pub(super) world: Arc<World>,
}

pub(super) async fn pair(over: Over) -> Pair {
    pair_with(over, Settings::default(), Settings::default()).await
}

pub(super) async fn pair_with(over: Over, gateway: Settings, agent: Settings) -> Pair {
    let (a, b) = Box::pin(wires(over)).await;
    join(a, b, gateway, agent).await
}

pub(super) async fn join(a: ByteStream, b: ByteStream, gateway: Settings, agent: Settings) -> Pair {
    let world = Arc::new(World::default());
    let handler: Arc<dyn Handler> = world.clone();
    let timeout = gateway.handshake_timeout;
    // The agent's end must move for the gateway's first PING to be answered.
    let agent_side = async {
        let (link, driver) = tarbet_link::connect(b, hello(), agent, handler).await.unwrap();
        (link, tokio::spawn(driver))
    };
    let gateway_side = async {
        let yes = |hello: Hello| async move {
            assert_eq!(hello.credential.reveal(), b"open sesame");
            Ok(accepted(gateway))
        };
        let (link, driver) = tarbet_link::accept(a, timeout, yes).await.unwrap();
        (link, tokio::spawn(driver))
    };
    let ((link, gateway_end), (agent, agent_end)) =
        soon("handshake", Box::pin(async { tokio::join!(gateway_side, agent_side) })).await;
    Pair { link, agent, gateway_end, agent_end, world }
}

/// A body in pieces, with a trailer.
pub(super) fn pieces(count: usize, size: usize) -> Body {
    let data = (0..count)
        .map(move |i| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![i as u8; size]))));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-from", "caller".parse().unwrap());
    let frames = data.chain([Ok(Frame::trailers(trailers))]);
    Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames)))
}

pub(super) fn get(path: &str) -> Request<Body> {
    Request::get(format!("http://site{path}")).body(Body::empty()).unwrap()
}

pub(super) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(format!("http://site{path}")).body(body.into()).unwrap()
}

pub(super) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(super) fn tcp(host: &str) -> Target {
    Target::tcp(tarbet_link::Address::new(host, 7).unwrap())
}

/// A wire that can be cut in the middle without either end being told.
pub(super) struct Severable {
    cut: CancellationToken,
}

impl Severable {
    pub(super) fn wires() -> (ByteStream, ByteStream, Self) {
        let (near, a) = tokio::io::duplex(64 * 1024);
        let (b, far) = tokio::io::duplex(64 * 1024);
        let cut = CancellationToken::new();
        let severed = cut.clone();
        tokio::spawn(async move {
            let (mut a, mut b) = (a, b);
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut a, &mut b) => {}
                // Holds both ends open and moves nothing.
                () = severed.cancelled() => std::future::pending().await,
            }
        });
        (ByteStream::new(near), ByteStream::new(far), Self { cut })
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }
}
