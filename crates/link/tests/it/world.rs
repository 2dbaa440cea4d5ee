//! What is behind the agent: a few answers, streams and shells.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tarbet_link::{Body, ByteStream, Denial, Handler, IncomingCall, IncomingStream, IncomingUpgrade};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The handler of the tests.
#[derive(Default)]
pub(super) struct World {
    /// Requests that wait for ever, now.
    pub(super) hanging: AtomicUsize,
    /// Requests that came to an answer.
    pub(super) answered: AtomicUsize,
    /// Lets a request to `/late` go one step further.
    pub(super) step: tokio::sync::Notify,
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
            "/late" => {
                let count = Count::up(&self.hanging);
                self.step.notified().await;
                let body = request.into_body().collect().await.unwrap().to_bytes();
                self.step.notified().await;
                drop(count);
                Response::new(Body::from(body.len().to_string()))
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
