//! A site's Kubernetes API on the caller's own machine, for kubectl and everything like it: what they send goes
//! to the site's agent, sealed if the way is, with the proof of who calls if it has one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, UPGRADE};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tarbet_identity::Secret;
use tarbet_link::{Body, ByteStream, Caller, LinkError, Target, Upgraded, relay};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;

use super::{RemoteSite, bad_target, problem};
use crate::gateway::kube::SERVICE;
use crate::gateway::kube::refusal::Manner;

/// A client has this long to send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_mins(1);

/// The Kubernetes API of a site, for those on this machine who show a token. Cheap to clone.
#[derive(Clone)]
pub struct LocalKubernetes {
    site: RemoteSite,
    token: Arc<Secret>,
}

impl LocalKubernetes {
    /// The API behind this way. Other programs and other people's programs reach the same port, and so do pages
    /// in a browser: only who shows this token is let in.
    pub fn new(site: RemoteSite, token: Secret) -> Self {
        Self { site, token: Arc::new(token) }
    }

    /// Serves one connection to its end.
    pub async fn serve(self, stream: ByteStream) {
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        server.http2().timer(TokioTimer::new());
        let service = service_fn(move |request| {
            let local = self.clone();
            async move { Ok::<_, Infallible>(local.answer(request).await) }
        });
        let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "A Kubernetes client's connection ended early.");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let manner = Manner::of(request.headers(), false);
        if !self.admits(&request) {
            let text = "The request does not show the token in the kubeconfig of this proxy.";
            return manner.put(&Problem::new(&reach::CREDENTIALS_MISSING, text));
        }
        match self.pass(request).await {
            Ok(response) => response,
            Err(error) => manner.put(&problem(&error)),
        }
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        shown.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|shown| self.token.matches(shown))
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Body>, LinkError> {
        let headers = request.headers_mut();
        headers.remove(AUTHORIZATION);
        headers.remove(COOKIE);
        let upgrade = request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(&mut request));
        // As an agent's policy reads it: without the name of this machine.
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse();
        *request.uri_mut() =
            path.map_err(|error: http::uri::InvalidUri| LinkError::Request(error.to_string().into()))?;
        let mut request = request.map(Body::new);
        request.extensions_mut().clear();
        request.extensions_mut().insert(Target::service(SERVICE).map_err(bad_target)?);
        let mut response = self.site.call(request).await?;
        if let (Some(upgrade), Some(far)) = (upgrade, Upgraded::take(&mut response)) {
            tokio::spawn(async move {
                match upgrade.await {
                    // Either end may break off at any time; both know why by themselves.
                    Ok(near) => drop(relay(ByteStream::new(TokioIo::new(near)), far).await),
                    Err(error) => tracing::debug!(%error, "The client did not take its upgrade."),
                }
            });
        }
        Ok(response)
    }
}
