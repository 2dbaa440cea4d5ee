//! The `kubernetes` service: the API server of the site, reached as the agent's own account.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use tarbet_link::{Body, ByteStream, Denial, IncomingUpgrade, Target, Upgraded, relay};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use super::Service;
use super::policy::{KubeRequest, Wanted};

type Upstream = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Headers of ours that are for the agent, not for the API server.
const OURS: &str = "tarbet-";

/// The Kubernetes API of this site.
pub struct Kubernetes {
    upstream: Upstream,
    server: String,
}

impl Kubernetes {
    /// The API server that this configuration names, with its credentials.
    pub fn new(config: kube::Config) -> Result<Self, Problem> {
        let unusable = |cause: String| {
            Problem::new(&ground::CONFIG_INVALID, "The Kubernetes configuration of the agent cannot be used.")
                .because(cause)
        };
        let server = config.cluster_url.to_string();
        let connector = config.rustls_https_connector().map_err(|error| unusable(chain(&error)))?;
        let auth = config.auth_layer().map_err(|error| unusable(chain(&error)))?;
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
        let upstream = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(auth)
            .map_err(BoxError::from)
            .service(client);
        Ok(Self { upstream: BoxCloneSyncService::new(upstream), server })
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Denial> {
        self.upstream.clone().oneshot(request).await.map_err(|error| {
            let cause = chain(error.as_ref());
            tracing::warn!(server = %self.server, cause, "The API server does not answer.");
            let text = "The Kubernetes API server of the site does not answer the agent.";
            Denial::new(StatusCode::BAD_GATEWAY, reach::TARGET_UNREACHABLE.id, text)
                .at("agent → Kubernetes API")
        })
    }
}

impl Service for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn describe(&self, _target: &Target, request: Option<&Request<()>>) -> Result<Wanted, Denial> {
        let malformed = |text: String| {
            Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent: policy")
        };
        let request =
            request.ok_or_else(|| malformed("The kubernetes service takes requests, not streams.".into()))?;
        let uri = request.uri();
        let wanted = KubeRequest::parse(request.method().as_str(), uri.path(), uri.query())
            .map_err(|error| malformed(format!("The path is refused: {error}.")))?;
        Ok(Wanted::Kubernetes(wanted, impersonated(request.headers())))
    }

    fn call(&self, _target: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let mut response = self.send(as_own(request)).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Ok(response.map(Body::new));
            }
            let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| {
                tracing::debug!(%error, "The API server did not finish its upgrade.");
                let text = "The Kubernetes API server of the site did not finish its upgrade.";
                Denial::new(StatusCode::BAD_GATEWAY, reach::TARGET_UNREACHABLE.id, text)
                    .at("agent → Kubernetes API")
            })?;
            let mut response = response.map(|_| Body::empty());
            Upgraded::put(&mut response, ByteStream::new(TokioIo::new(upgraded)));
            Ok(response)
        }
        .boxed()
    }

    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = incoming.request().method().clone();
            *request.uri_mut() = incoming.request().uri().clone();
            *request.headers_mut() = incoming.request().headers().clone();
            let mut response = match self.send(as_own(request)).await {
                Ok(response) => response,
                Err(denial) => return incoming.deny(&denial).await,
            };
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return incoming.reject(response.map(Body::new)).await;
            }
            let upgrade = hyper::upgrade::on(&mut response);
            let Ok(near) = incoming.accept(response.map(drop)) else { return };
            match upgrade.await {
                Ok(far) => {
                    // Either end may break off at any time; both know why by themselves.
                    let _ = relay(near, ByteStream::new(TokioIo::new(far))).await;
                }
                Err(error) => tracing::debug!(%error, "The API server did not finish its upgrade."),
            }
        }
        .boxed()
    }
}

/// The request as the agent's own: no foreign credentials, no host of another machine.
fn as_own(mut request: Request<Body>) -> Request<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = path.parse::<Uri>() {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = http::Version::HTTP_11;
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    headers.remove(HOST);
    let ours: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
    request.extensions_mut().clear();
    request
}

/// Everybody a request wants to be, besides the agent's account.
fn impersonated(headers: &HeaderMap) -> Vec<String> {
    let asked = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    asked.map(|(_, value)| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}
