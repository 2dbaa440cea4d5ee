//! The API server of a site: a small real HTTP server, and the way to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tarbet_link::{Body, ByteStream, Caller, Denial, LinkError, Upgraded};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

type Reply = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

#[derive(Clone)]
pub(super) struct Site {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Seen>,
    _stop: Arc<DropGuard>,
}

pub(super) struct Seen {
    /// Requests that are being held.
    pub(super) held: AtomicUsize,
    /// Held requests that were given up or let go.
    pub(super) left: AtomicUsize,
    /// Lets held requests go, and streams go on, one permit each.
    pub(super) gate: Semaphore,
}

struct Leaving(Arc<Seen>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Ordering::SeqCst);
    }
}

impl Site {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen { held: 0.into(), left: 0.into(), gate: Semaphore::new(0) });
        let stop = CancellationToken::new();
        let (shared, token) = (Arc::clone(&seen), stop.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = token.cancelled() => return,
                };
                stream.set_nodelay(true).unwrap();
                let seen = Arc::clone(&shared);
                let service =
                    service_fn(move |request| answer(request, Arc::clone(&seen)).map(Ok::<_, Infallible>));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades(),
                );
            }
        });
        Self { address, seen, _stop: Arc::new(stop.drop_guard()) }
    }

    pub(super) fn held(&self) -> usize {
        self.seen.held.load(Ordering::SeqCst)
    }

    pub(super) fn left(&self) -> usize {
        self.seen.left.load(Ordering::SeqCst)
    }

    pub(super) fn upstream(&self) -> Upstream {
        Upstream { address: self.address, client: Client::builder(TokioExecutor::new()).build_http() }
    }
}

async fn answer(mut request: Request<Incoming>, seen: Arc<Seen>) -> Reply {
    let path = request.uri().path().to_owned();
    let number = |prefix: &str| path.strip_prefix(prefix).and_then(|rest| rest.parse::<usize>().ok());
    if path == "/sum" {
        let bytes = request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
        return full(bytes.to_string());
    }
    if path == "/duplex" {
        return Response::new(request.into_body().boxed_unsync());
    }
    if path == "/upgrade" {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
        });
        let mut response = full(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert(header::CONNECTION, "Upgrade".parse().unwrap());
        response.headers_mut().insert(header::UPGRADE, request.headers()[header::UPGRADE].clone());
        return response;
    }
    if path == "/hold" {
        let _leaving = Leaving(Arc::clone(&seen));
        seen.held.fetch_add(1, Ordering::SeqCst);
        seen.gate.acquire().await.unwrap().forget();
        return full("held".into());
    }
    if path == "/trickle" {
        let leaving = Leaving(Arc::clone(&seen));
        seen.held.fetch_add(1, Ordering::SeqCst);
        let ticks = futures::stream::unfold((0, leaving), move |(count, leaving)| {
            let seen = Arc::clone(&seen);
            async move {
                seen.gate.acquire().await.unwrap().forget();
                Some((Ok(Frame::data(Bytes::from(format!("tick {count}\n")))), (count + 1, leaving)))
            }
        });
        return Response::new(StreamBody::new(ticks).boxed_unsync());
    }
    if let Some(size) = number("/bytes/") {
        return full("x".repeat(size));
    }
    if let Some(count) = number("/chunks/") {
        let chunks = (0..count).map(|_| Ok(Frame::data(Bytes::from_static(&[b'y'; 1000]))));
        return Response::new(StreamBody::new(futures::stream::iter(chunks)).boxed_unsync());
    }
    if let Some(code) = number("/status/") {
        let mut response = full(String::new());
        *response.status_mut() = StatusCode::from_u16(u16::try_from(code).unwrap()).unwrap();
        return response;
    }
    let mut lines = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        lines.extend([name.as_str(), ": ", value.to_str().unwrap(), "\n"]);
    }
    full(lines)
}

fn full(text: String) -> Reply {
    Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync())
}

/// The agent's way to the site.
pub(super) struct Upstream {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
}

impl Caller for Upstream {
    fn call(&self, mut request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            if request.uri().path() == "/forbidden" {
                let denial = Denial::new(StatusCode::FORBIDDEN, "TB-1201", "The site does not allow it.");
                return Err(LinkError::Denied(Box::new(denial)));
            }
            let path = request.uri().path_and_query().unwrap().to_string();
            *request.uri_mut() = format!("http://{}{path}", self.address).parse().unwrap();
            let response = self.client.request(request).await.map_err(|error| LinkError::Connect {
                target: self.address.to_string(),
                source: std::io::Error::other(error),
            });
            let mut response = response?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                let stream = hyper::upgrade::on(&mut response).await.map_err(|error| LinkError::Connect {
                    target: self.address.to_string(),
                    source: std::io::Error::other(error),
                })?;
                let mut response = response.map(|_| Body::empty());
                Upgraded::put(&mut response, ByteStream::new(TokioIo::new(stream)));
                return Ok(response);
            }
            Ok(response.map(Body::new))
        }
        .boxed()
    }
}
