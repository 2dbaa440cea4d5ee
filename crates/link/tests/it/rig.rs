//! Two ends of a link with a small world behind the agent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use jiff::Timestamp;
use tarbet_identity::tls::{self, CredentialSource};
use tarbet_identity::{PinSet, PrivateKey};
use tarbet_link::{
    Accepted, AgentInfo, AgentLink, Body, ByteStream, CloseReason, Credential, Denial, Handler, Hello,
    IncomingCall, IncomingStream, IncomingUpgrade, Link, Purpose, Secure, Settings, Target, Versions,
    WebSocketLimits,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

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

/// What is behind the agent.
#[derive(Default)]
pub(super) struct World {
    /// Requests that wait for ever, now.
    pub(super) hanging: AtomicUsize,
    /// Requests that came to an answer.
    pub(super) answered: AtomicUsize,
    /// Byte streams open now.
    pub(super) streams: AtomicUsize,
}

struct Count<'a>(&'a AtomicUsize);

impl<'a> Count<'a> {
    fn up(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(counter)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl World {
    async fn answer(&self, call: IncomingCall) -> Result<Response<Body>, Denial> {
        let IncomingCall { target, request } = call;
        let path = request.uri().path().to_owned();
        let response = match path.as_str() {
            "/echo" => Response::new(Body::new(Echo { body: request.into_body(), seen: 0, done: false })),
            "/flood" => Response::new(Body::new(Flood { chunk: Bytes::from(vec![b'x'; 16 * 1024]) })),
            "/tiny-flood" => Response::new(Body::new(Flood { chunk: Bytes::from_static(b"x") })),
            "/hang" => {
                let _count = Count::up(&self.hanging);
                std::future::pending().await
            }
            "/early" => Response::new(Body::from("no need to read that")),
            "/target" => Response::new(Body::from(target.map(|t| t.to_string()).unwrap_or_default())),
            "/headers" => {
                let names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
                let mut response = Response::new(Body::from(names.join(" ")));
                response.headers_mut().insert("tarbet-code", "TB-9999".parse().unwrap());
                response
            }
            "/fail" => {
                let frames =
                    futures::stream::iter([Ok(Frame::data(Bytes::from("half"))), Err("the disk is gone")]);
                Response::new(Body::new(http_body_util::StreamBody::new(frames)))
            }
            "/empty-frames" => {
                let frame =
                    |text: &'static str| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(text)));
                let frames: Vec<_> = (0..300).map(|i| frame(if i % 100 == 0 { "x" } else { "" })).collect();
                Response::new(Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames))))
            }
            "/large-headers" | "/large-trailers" => {
                let mut headers = HeaderMap::new();
                for i in 0..40 {
                    let name: http::HeaderName = format!("x-{i}").parse().unwrap();
                    headers.insert(name, "v".repeat(16 * 1024).parse().unwrap());
                }
                let mut response = Response::new(Body::empty());
                if path == "/large-headers" {
                    *response.headers_mut() = headers;
                } else {
                    let frames = [Ok::<_, std::convert::Infallible>(Frame::trailers(headers))];
                    let body = http_body_util::StreamBody::new(futures::stream::iter(frames));
                    response = Response::new(Body::new(body));
                }
                response
            }
            "/deny" => {
                let message = "Verboten — 100 %\r\nnot a header: x";
                return Err(Denial::new(StatusCode::FORBIDDEN, "TB-1201", message)
                    .at("agent lab-1")
                    .untouched());
            }
            _ => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        };
        self.answered.fetch_add(1, SeqCst);
        Ok(response)
    }
}

impl Handler for World {
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        self.answer(call).boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            let _count = Count::up(&self.streams);
            match incoming.target().address().map(tarbet_link::Address::host) {
                Some("echo") => echo(incoming.accept().unwrap()).await,
                Some("flood") => {
                    let mut stream = incoming.accept().unwrap();
                    while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
                }
                Some("refuse") => {
                    let message = "Nobody listens there.";
                    incoming
                        .deny(&Denial::new(StatusCode::BAD_GATEWAY, "TB-1202", message).at("agent → target"));
                }
                _ => drop(incoming),
            }
        }
        .boxed()
    }

    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move {
            let request = incoming.request();
            assert_eq!(request.headers()["connection"], "Upgrade");
            if request.uri().path() == "/exec" {
                assert_eq!((request.method().as_str(), request.uri().query()), ("POST", Some("command=sh")));
                let token = request.headers()["upgrade"].clone();
                let response =
                    Response::builder().status(101).header("upgrade", token).header("x-kept", "yes");
                echo(incoming.accept(response.body(()).unwrap()).unwrap()).await;
            } else {
                let mut response = Response::new(Body::from("no shell for you"));
                *response.status_mut() = StatusCode::FORBIDDEN;
                incoming.reject(response).await;
            }
        }
        .boxed()
    }
}

// Sends everything back, then one more line once the other side has ended.
async fn echo(stream: ByteStream) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        if writer.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = writer.write_all(b"bye").await;
    let _ = writer.shutdown().await;
}

/// Gives back a body and, as a trailer, how long it was.
struct Echo {
    body: Body,
    seen: usize,
    done: bool,
}

impl http_body::Body for Echo {
    type Data = Bytes;
    type Error = tarbet_link::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.done {
            return Poll::Ready(None);
        }
        match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) if frame.is_data() => {
                self.seen += frame.data_ref().map_or(0, Bytes::len);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            end => {
                self.done = true;
                let mut trailers =
                    end.and_then(Result::ok).and_then(|f| f.into_trailers().ok()).unwrap_or_default();
                trailers.insert("x-length", self.seen.into());
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }
}

/// Never ends.
struct Flood {
    chunk: Bytes,
}

impl http_body::Body for Flood {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(Frame::data(self.chunk.clone()))))
    }
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
