//! All tunnels of one agent as one way to its site.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use tarbet_link::handshake::{Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Caller, Denial, Dialer, LinkError, Target};
use tarbet_telemetry::codes::reach;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::PRODUCT;
use crate::gateway::{Hub, kube};
use crate::kas::inbox::Inbox;
use crate::kas::kubernetes::{RequestOptions, denied, send_on, trace};
use crate::kas::{Call, MethodPath, Rpc, TunnelPool, grpc};
use crate::local::Way;
use crate::metrics::GatewayMetrics;
use crate::route::Until;

const HOP: &str = "gateway → agent";

pub(super) struct KasWay {
    hub: Weak<Hub>,
    pool: TunnelPool,
    agent: i64,
    options: RequestOptions,
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
        Self {
            hub: Arc::downgrade(hub),
            pool: hub.kas.pool.clone(),
            agent,
            options,
            gone,
            metrics: hub.metrics.clone(),
            leaving: hub.leaving.clone(),
        }
    }

    /// Waits for a tunnel, as long as the request may.
    async fn open(&self, method: &MethodPath, metadata: &HeaderMap, until: Until) -> Result<Call, LinkError> {
        let begun = Instant::now();
        let found = tokio::select! {
            biased;
            call = self.pool.open(self.agent, method, metadata, until.at) => call.map_err(|status| denied(&status)),
            () = self.gone.cancelled() => Err(lost()),
            () = self.leaving.cancelled() => Err(draining()),
        };
        // One that goes on to look elsewhere has not failed.
        if found.is_ok() || until.last {
            self.metrics.looked_for_tunnel(found.is_ok(), begun.elapsed());
        }
        found
    }

    fn until(&self, request: &Request<Body>) -> Until {
        let longest = self.hub.upgrade().map(|hub| hub.config().max_wait);
        Until::of(request, longest.unwrap_or_default())
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let method = MethodPath::of(Rpc::MakeRequest, self.options.prefix);
        let call = self.open(&method, &trace(request.headers()), self.until(&request)).await?;
        send_on(call, request, &self.options).await
    }

    async fn pass_on(
        &self,
        method: &MethodPath,
        request: Request<Body>,
    ) -> Result<Response<Body>, LinkError> {
        let until = self.until(&request);
        let (metadata, requests) = match take_apart(request) {
            Ok(parts) => parts,
            Err(answer) => return Ok(*answer),
        };
        let call = self.open(method, &metadata, until).await?;
        Ok(grpc::carry(call, requests).await)
    }
}

/// The gRPC method that a request is for; `None` if it is one to the Kubernetes API.
pub(super) fn called(request: &Request<Body>) -> Result<Option<MethodPath>, LinkError> {
    let target = request.extensions().get::<Target>();
    let Some(target) = target.filter(|target| target.name() != kube::SERVICE) else { return Ok(None) };
    let meant = grpc::method(request).filter(|method| method.service() == target.name());
    meant.map(Some).ok_or_else(|| not_offered(target.name()))
}

/// The metadata and the messages of a gRPC call; the answer, if they cannot be read.
pub(super) fn take_apart(request: Request<Body>) -> Result<(HeaderMap, Inbox), Box<Response<Body>>> {
    let (head, body) = request.into_parts();
    match Inbox::new(&head.headers, body) {
        Ok(requests) => Ok((head.headers, requests)),
        Err(error) => Err(Box::new(grpc::only_status(HeaderMap::new(), &error.into()))),
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
    let text =
        format!("An agent of the kas protocol carries gRPC and the Kubernetes API only, not `{target}`.");
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
            if let Some(method) = called(&request)? {
                return self.pass_on(&method, request).await;
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
        self.pool.evict(self.agent, None, &status);
    }
}
