//! Services that other programs at the site give: streams to their socket or loopback port, and gRPC calls
//! to a service that goes by its full name.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, TE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tarbet_link::{Address, Body, ByteStream, Denial, Dialer, IncomingStream, NetDialer, Target, relay};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::Service;
use super::policy::Wanted;
use crate::kas::grpc;

/// Names that mean something else.
const TAKEN: [&str; 4] = ["kubernetes", "tcp", "info", super::end_to_end::SERVICE];

/// Headers of ours that are for the agent.
const OURS: &str = "tarbet-";
/// How the service is called in calls; it listens at the site alone.
const AUTHORITY: &str = "localhost";
const WINDOW: u32 = 1 << 20;

/// Where an offered service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `unix:///path`.
    Socket(PathBuf),
    /// `host:port`, with or without `http://`: the scheme is the caller's affair.
    Network(Address),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return match PathBuf::from(path) {
                path if path.is_absolute() => Ok(Self::Socket(path)),
                _ => Err(format!("`{text}` names no absolute path")),
            };
        }
        let bare = text.strip_prefix("http://").or_else(|| text.strip_prefix("tcp://")).unwrap_or(text);
        let address = bare.trim_end_matches('/').parse::<Address>();
        address.map(Self::Network).map_err(|error| error.to_string())
    }
}

/// One of them, under the name callers ask for.
pub struct Offered {
    name: String,
    place: Place,
    timeout: Duration,
    methods: Vec<String>,
    /// The one connection that all gRPC calls share.
    calls: Mutex<Option<SendRequest<Body>>>,
}

impl Offered {
    /// A service of this name at this place; connections are given up after `timeout`.
    pub fn new(name: &str, place: &str, timeout: Duration) -> Result<Self, String> {
        if TAKEN.contains(&name) {
            return Err(format!("the name `{name}` is the agent's own"));
        }
        let target = Target::service(name).map_err(|error| error.to_string())?;
        let (name, place) = (target.name().to_owned(), place.parse()?);
        Ok(Self { name, place, timeout, methods: Vec::new(), calls: Mutex::default() })
    }

    /// The same, a gRPC service with these methods.
    #[must_use]
    pub fn announcing(self, methods: &[String]) -> Self {
        Self { methods: methods.to_vec(), ..self }
    }

    async fn connect(&self) -> Result<ByteStream, String> {
        match &self.place {
            Place::Socket(path) => {
                let opened = tokio::time::timeout(self.timeout, UnixStream::connect(path)).await;
                let opened = opened.map_err(|_| "it did not answer in time".to_owned())?;
                opened.map(ByteStream::new).map_err(|error| error.to_string())
            }
            Place::Network(address) => {
                let dialer = NetDialer { timeout: self.timeout };
                dialer.open(Target::tcp(address.clone())).await.map_err(|error| chain(&error))
            }
        }
    }
}

impl Offered {
    /// The connection for calls, made if there is none that works.
    async fn client(&self) -> Result<SendRequest<Body>, String> {
        // Held while connecting: those who come meanwhile share the one connection.
        let mut calls = self.calls.lock().await;
        if let Some(client) = calls.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let stream = TokioIo::new(self.connect().await?);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2.timer(TokioTimer::new()).initial_stream_window_size(WINDOW);
        let opened = tokio::time::timeout(self.timeout, http2.handshake(stream)).await;
        let opened = opened.map_err(|_| "it did not answer in time".to_owned())?;
        let (client, connection) = opened.map_err(|error| chain(&error))?;
        let service = self.name.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(service, error = %chain(&error), "The connection to an offered service broke.");
            }
        });
        *calls = Some(client.clone());
        Ok(client)
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, String> {
        let mut again = true;
        loop {
            let mut client = self.client().await?;
            match client.try_send_request(request).await {
                Ok(response) => return Ok(response.map(Body::new)),
                Err(mut error) => match error.take_message() {
                    // It never left: the connection was closing. A service that closes every new one is asked no more.
                    Some(back) if again => (request, again) = (back, false),
                    _ => return Err(chain(error.error())),
                },
            }
            self.calls.lock().await.take();
        }
    }

    fn unanswered(&self, cause: &str) -> Denial {
        tracing::info!(service = %self.name, cause, "An offered service does not answer.");
        let text = format!("What gives the service `{}` does not answer.", self.name);
        Denial::new(StatusCode::BAD_GATEWAY, reach::TARGET_UNREACHABLE.id, text).at("agent → service")
    }
}

/// A call as the service gets it: no credentials, nothing of ours.
fn as_own(request: Request<Body>) -> Result<Request<Body>, String> {
    let (mut head, body) = request.into_parts();
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for (name, value) in &head.headers {
        let ours = name.as_str().starts_with(OURS) || [AUTHORIZATION, HOST, CONTENT_LENGTH].contains(name);
        if !ours {
            headers.append(name, value.clone());
        }
    }
    headers.insert(TE, HeaderValue::from_static("trailers"));
    head.headers = headers;
    head.uri = format!("http://{AUTHORITY}{}", head.uri.path()).parse().map_err(|_| "the path is none")?;
    head.version = http::Version::HTTP_2;
    head.extensions.clear();
    Ok(Request::from_parts(head, body))
}

impl Service for Offered {
    fn name(&self) -> &str {
        &self.name
    }

    fn methods(&self) -> Vec<String> {
        self.methods.clone()
    }

    fn describe(&self, target: &Target, request: Option<&Request<()>>) -> Result<Wanted, Denial> {
        // Whoever gives this service may give others that the policy does not name.
        let meant = request
            .is_none_or(|request| grpc::method(request).is_some_and(|method| method.service() == self.name));
        if target.address().is_none() && meant {
            return Ok(Wanted::Service(self.name.clone()));
        }
        let text =
            format!("The service `{}` takes streams without an address and its own gRPC calls.", self.name);
        Err(Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent"))
    }

    fn call(&self, _: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let sent = match as_own(request) {
                Ok(request) => self.send(request).await,
                Err(cause) => Err(cause),
            };
            sent.map_err(|cause| self.unanswered(&cause))
        }
        .boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            match self.connect().await {
                Ok(far) => {
                    if let Ok(near) = incoming.accept() {
                        // Either end may break off at any time; both know why by themselves.
                        let _ = relay(near, far).await;
                    }
                }
                Err(cause) => incoming.deny(&self.unanswered(&cause)),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sockets_or_addresses() {
        assert_eq!("unix:///run/x.sock".parse(), Ok(Place::Socket("/run/x.sock".into())));
        let local = Place::Network("127.0.0.1:3000".parse().unwrap());
        for text in ["127.0.0.1:3000", "http://127.0.0.1:3000/", "tcp://127.0.0.1:3000"] {
            assert_eq!(text.parse(), Ok(local.clone()), "{text}");
        }
        for text in ["unix://x", "", "nowhere", "https://x"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_the_agents_own_services_stay_its_own() {
        for name in ["kubernetes", "tcp", "info", "", "two words"] {
            assert!(Offered::new(name, "127.0.0.1:1", Duration::from_secs(1)).is_err(), "{name}");
        }
        assert!(Offered::new("interlink", "127.0.0.1:1", Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn a_call_is_taken_only_under_the_name_that_the_policy_judges() {
        let offered = Offered::new("shop.Orders", "127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let target = Target::service("shop.Orders").unwrap();
        let asks = |path: &str, kind: &str| {
            let request = Request::post(path).header("content-type", kind).body(()).unwrap();
            offered.describe(&target, Some(&request)).ok()
        };
        let orders = Some(Wanted::Service("shop.Orders".into()));
        assert_eq!(asks("/shop.Orders/Get", "application/grpc"), orders);
        assert_eq!(asks("/shop.Tills/Open", "application/grpc"), None);
        assert_eq!(asks("/shop.Orders/Get", "application/json"), None);
        assert_eq!(asks("/shop.Orders/Get/more", "application/grpc"), None);
        assert_eq!(offered.describe(&target, None).ok(), orders);
    }

    #[test]
    fn nothing_of_the_way_reaches_the_service() {
        let request = Request::post("https://gateway:8153/shop.Orders/Get?x")
            .header("authorization", "Bearer secret")
            .header("tarbet-caller", "ann")
            .header("x-kept", "1")
            .body(Body::empty())
            .unwrap();
        let request = as_own(request).unwrap();
        assert_eq!(request.uri(), "http://localhost/shop.Orders/Get");
        let names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
        assert_eq!(names, ["x-kept", "te"]);
    }
}
