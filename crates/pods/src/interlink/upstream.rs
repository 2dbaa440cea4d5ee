//! The way from the API server to its plugin: plain HTTP, to an address or a socket.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tarbet_cluster::Connect;
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Problem, problem};
use tokio::net::UnixStream;

use crate::wire::extension::{EXTENSIONS, EXTENSIONS_HEADER};
use crate::wire::{Origin, SESSION_HEADER};

/// What the plugin has to say whose it is.
const ORIGIN: Duration = Duration::from_secs(10);
/// A scheduler may take its time to accept a job; a delete waits for the pod's grace.
const PATIENCE: Duration = Duration::from_mins(15);

/// Where the plugin is. Cheap to clone.
#[derive(Clone)]
pub struct Upstream {
    client: Client<Connect, Full<Bytes>>,
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
        let (connect, base) = if let Some(path) = url.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            let open = move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await }
            };
            (Connect::new(open), "http://unix".to_owned())
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
            (Connect::network(), base)
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_mins(1))
            .build(connect);
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
            let _ = tokio::time::timeout(ORIGIN, self.ping("Origin")).await;
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
