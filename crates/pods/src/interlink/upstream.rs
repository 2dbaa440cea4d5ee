//! The way from the API server to its plugin: plain HTTP, to an address or a socket.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Problem, problem};
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

use crate::wire::extension::{EXTENSIONS, EXTENSIONS_HEADER};
use crate::wire::{Origin, SESSION_HEADER};

const DIAL: Duration = Duration::from_secs(10);
/// A scheduler may take its time to accept a job; a delete waits for the pod's grace.
const PATIENCE: Duration = Duration::from_mins(15);

/// Where the plugin is. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    client: Client<Dial, Full<Bytes>>,
    base: String,
    origin: Arc<Mutex<Option<Origin>>>,
}

impl Upstream {
    /// Reads `SidecarURL` and `SidecarPort`.
    pub fn new(url: &str, port: &str) -> Result<Self, Problem> {
        let wrong = |cause: &str| {
            Problem::new(&ground::CONFIG_INVALID, format!("SidecarURL `{url}` cannot be used."))
                .because(cause)
        };
        let (dial, base) = if let Some(path) = url.strip_prefix("unix://") {
            (Dial::Unix(path.into()), "http://unix".to_owned())
        } else {
            let text = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
            let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| wrong("it is not a URL"))?;
            if uri.scheme_str() != Some("http") {
                return Err(wrong("plugins are reached by http or unix"));
            }
            let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
            let base = match uri.port_u16() {
                Some(port) => format!("http://{host}:{port}"),
                None => format!(
                    "http://{host}:{}",
                    port.parse::<u16>().map_err(|_| wrong("SidecarPort is no port"))?
                ),
            };
            (Dial::Tcp, base)
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_mins(1))
            .build(dial);
        Ok(Self { client, base, origin: Arc::default() })
    }

    /// Asks the plugin how it is, and takes note of whose it is.
    pub async fn ping(&self, session: &str) -> Result<Response<Incoming>, Problem> {
        let body = Bytes::from_static(b"[]");
        let answer = self.send(Method::GET, "/status", session, HeaderMap::new(), body).await?;
        if answer.status().is_success() {
            let origin = Origin::of(answer.headers());
            *self.origin.lock().unwrap_or_else(PoisonError::into_inner) = Some(origin);
        }
        Ok(answer)
    }

    /// Whose the plugin is: as its last answer to a ping told, or asked for now. One that does not answer is
    /// taken for another's, which is given nothing it does not know.
    pub async fn origin(&self) -> Origin {
        let noted = || *self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if noted().is_none() {
            // What it answers is noted; that it does not answer is heard with the call that comes next.
            let _ = tokio::time::timeout(DIAL, self.ping("Origin")).await;
        }
        noted().unwrap_or(Origin::Other)
    }

    /// Sends a call and waits for the head of the answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        session: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Problem> {
        let away = |cause: String| {
            Problem::new(&pods::PLUGIN_AWAY, format!("The plugin at {} does not answer.", self.base))
                .because(cause)
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() =
            format!("{}{path}", self.base).parse().map_err(|_| away("the path is no URL".into()))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(EXTENSIONS_HEADER, HeaderValue::from_static(EXTENSIONS));
        if let Ok(session) = HeaderValue::from_str(session) {
            request.headers_mut().insert(SESSION_HEADER, session);
        }
        match tokio::time::timeout(PATIENCE, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(away(problem::chain(&error))),
            Err(_) => Err(away(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }
}

#[derive(Clone)]
enum Dial {
    Tcp,
    Unix(PathBuf),
}

impl Service<Uri> for Dial {
    type Response = Wire;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Wire>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = self.clone();
        let open = async move {
            match dial {
                Self::Unix(path) => Ok(Wire::Unix(TokioIo::new(UnixStream::connect(path).await?))),
                Self::Tcp => {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
                    stream.set_nodelay(true)?;
                    Ok(Wire::Tcp(TokioIo::new(stream)))
                }
            }
        };
        async move {
            tokio::time::timeout(DIAL, open).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        }
        .boxed()
    }
}

/// A connection of either kind.
enum Wire {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Self::Unix(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_write(cx, buf),
            Self::Unix(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_flush(cx),
            Self::Unix(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Self::Unix(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
