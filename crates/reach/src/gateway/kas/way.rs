//! All tunnels of one agent as one way to its site.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use tarbet_link::handshake::{Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Caller, Denial, Dialer, LinkError, Target};
use tarbet_telemetry::codes::reach;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::PRODUCT;
use crate::gateway::{Hub, kube};
use crate::kas::kubernetes::{AgentCaller, RequestOptions, denied, trace};
use crate::local::Way;
use crate::metrics::GatewayMetrics;

const HOP: &str = "gateway → agent";

pub(super) struct KasWay {
    caller: AgentCaller,
    /// The last tunnel left.
    gone: CancellationToken,
    metrics: GatewayMetrics,
    /// The gateway leaves: whoever has no tunnel yet goes elsewhere.
    leaving: CancellationToken,
}

impl KasWay {
    pub(super) fn new(hub: &Arc<Hub>, agent: i64, gone: CancellationToken) -> Self {
        let options =
            RequestOptions { prefix: hub.kas.prefix, impersonation: None, product: PRODUCT.to_owned() };
        let pool = hub.kas.pool.clone();
        let caller = AgentCaller { pool, agent, max_wait: hub.config().max_wait, options };
        Self { caller, gone, metrics: hub.metrics.clone(), leaving: hub.leaving.clone() }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let metadata = trace(request.headers());
        let begun = Instant::now();
        let found = tokio::select! {
            biased;
            call = self.caller.open(&metadata) => call.map_err(|status| denied(&status)),
            () = self.gone.cancelled() => Err(lost()),
            () = self.leaving.cancelled() => Err(draining()),
        };
        self.metrics.looked_for_tunnel(found.is_ok(), begun.elapsed());
        let call = found?;
        self.caller.send_on(call, request).await
    }
}

/// Before anything was sent, so it may go another way.
pub(super) fn lost() -> LinkError {
    let text = "The agent left before the request could be sent.";
    let denial = Denial::new(StatusCode::BAD_GATEWAY, reach::LINK_LOST.id, text);
    LinkError::Denied(Box::new(denial.at(HOP).untouched()))
}

pub(super) fn draining() -> LinkError {
    let denial = Denial::new(StatusCode::SERVICE_UNAVAILABLE, reach::DRAINING.id, "The gateway leaves.");
    LinkError::Denied(Box::new(denial.at(HOP).untouched()))
}

pub(super) fn not_offered(target: &str) -> LinkError {
    let text = format!("An agent of the kas protocol carries the Kubernetes API only, not `{target}`.");
    let denial = Denial::new(StatusCode::NOT_FOUND, reach::SERVICE_NOT_OFFERED.id, text);
    LinkError::Denied(Box::new(denial.at(HOP)))
}

/// A copy of a request that does no harm if it is made twice.
fn again(request: &Request<Body>) -> Option<Request<Body>> {
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD)
        && request.body().is_end_stream()
        && !request.headers().contains_key(http::header::UPGRADE);
    harmless.then(|| {
        let mut copy = Request::new(Body::empty());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

fn is_lost(error: &LinkError) -> bool {
    matches!(error, LinkError::Denied(denial) if !denial.untouched && denial.code == reach::LINK_LOST.id)
}

impl Caller for KasWay {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            let target = request.extensions().get::<Target>();
            if let Some(target) = target.filter(|target| target.name() != kube::SERVICE) {
                return Err(not_offered(target.name()));
            }
            let copy = again(&request);
            match (self.send(request).await, copy) {
                // One tunnel broke; the agent, or another one of the site, may have more.
                (Err(error), Some(copy)) if is_lost(&error) => self.send(copy).await,
                (outcome, _) => outcome,
            }
        }
        .boxed()
    }
}

impl Dialer for KasWay {
    fn open_with(&self, target: Target, _: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        let error = not_offered(target.name());
        async move { Err(error) }.boxed()
    }
}

impl Way for KasWay {
    fn is_one_link(&self) -> bool {
        false
    }

    // The agent's connections are asked to move by whoever serves them.
    fn drain(&self) {}

    fn dismiss(&self, refusal: Refusal) {
        let status = match refusal.code {
            // Idle tunnels of a gateway that leaves end well, each with its connection.
            RefusalCode::Draining => return,
            RefusalCode::Credential | RefusalCode::Revoked => Status::unauthenticated(refusal.text),
            _ => Status::unavailable(refusal.text),
        };
        self.caller.pool.evict(self.caller.agent, None, &status);
    }
}
