//! The `kubernetes` service: the API server of the site, reached as the agent's own account.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use percent_encoding::percent_decode_str;
use tarbet_link::{Body, ByteStream, Denial, IncomingUpgrade, Target, Upgraded, relay};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use super::Service;
use super::policy::{EXTRA, KubeRequest, Wanted};

type Upstream = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Headers of ours that are for the agent, not for the API server.
const OURS: &str = "tarbet-";
/// What all headers begin with by which a request asks to be somebody.
const IMPERSONATE: &str = "impersonate-";

/// The Kubernetes API of this site.
pub struct Kubernetes {
    upstream: Upstream,
    server: String,
    /// Whether the kubeconfig already says as whom every request goes.
    impersonates: bool,
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
        let impersonation = config.extra_headers_layer().map_err(|error| unusable(chain(&error)))?;
        let account = &config.auth_info;
        let impersonates = account.impersonate.is_some()
            || account.impersonate_uid.is_some()
            || account.impersonate_groups.is_some()
            || account.impersonate_user_extra.is_some();
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
        let upstream = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(auth)
            .layer(impersonation)
            .map_err(BoxError::from)
            .service(client);
        Ok(Self { upstream: BoxCloneSyncService::new(upstream), server, impersonates })
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Denial> {
        if self.impersonates && request.headers().keys().any(|name| name.as_str().starts_with(IMPERSONATE)) {
            let text = "The request impersonates somebody, and the agent's kubeconfig does so already.";
            let code = reach::TARGET_UNREACHABLE.id;
            return Err(Denial::new(StatusCode::BAD_GATEWAY, code, text).at("agent → Kubernetes API"));
        }
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

/// Everybody a request wants to be, besides the agent's account: names of users and groups, ids, and of what
/// it adds about the user only under which keys. The values there are as many as there are jobs and people.
fn impersonated(headers: &HeaderMap) -> Vec<String> {
    let mut asked = Vec::new();
    for (name, value) in headers {
        let Some(kind) = name.as_str().strip_prefix(IMPERSONATE) else { continue };
        let wanted = match kind.strip_prefix("extra-") {
            Some(key) => format!("{EXTRA}{}", percent_decode_str(key).decode_utf8_lossy()),
            None => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        if !asked.contains(&wanted) {
            asked.push(wanted);
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn names_are_judged_by_value_and_extras_by_key() {
        let pairs = [
            ("impersonate-user", "gitlab:ci_job:41"),
            ("impersonate-group", "gitlab:ci_job"),
            ("impersonate-group", "gitlab:project:3"),
            ("impersonate-uid", "u-1"),
            ("impersonate-extra-agent.gitlab.com%2fci_job_id", "41"),
            ("impersonate-extra-agent.gitlab.com%2fci_job_id", "42"),
            ("impersonate-odd", "x"),
            ("accept", "*/*"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value.parse().unwrap());
        }
        let expected = [
            "gitlab:ci_job:41",
            "gitlab:ci_job",
            "gitlab:project:3",
            "u-1",
            "extra:agent.gitlab.com/ci_job_id",
            "x",
        ];
        assert_eq!(impersonated(&headers), expected);
    }

    #[tokio::test]
    async fn whom_the_kubeconfig_impersonates_is_kept_and_not_combined() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            String::from_utf8(head).unwrap().to_lowercase()
        });
        let mut config = kube::Config::new(server.parse().unwrap());
        config.auth_info.impersonate = Some("deployer".into());
        config.auth_info.impersonate_groups = Some(vec!["deployers".into()]);
        let service = Kubernetes::new(config).unwrap();
        let target = || Target::service("kubernetes").unwrap();
        let asking = Request::get("/version").header("impersonate-user", "gitlab:user:ada");
        let refused = service.call(target(), asking.body(Body::empty()).unwrap()).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::BAD_GATEWAY);
        let plain = Request::get("/version").body(Body::empty()).unwrap();
        assert_eq!(service.call(target(), plain).await.unwrap().status(), StatusCode::OK);
        let heard = heard.await.unwrap();
        assert!(heard.contains("impersonate-user: deployer\r\n"), "{heard}");
        assert!(heard.contains("impersonate-group: deployers\r\n"), "{heard}");
    }
}
