//! An agent of this protocol as a [`Caller`], like any other way to a site.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use tarbet_link::{Body, Caller, Denial, LinkError};
use tarbet_telemetry::codes::{Code, reach};
use tokio::time::Instant;
use tonic::Status;

use super::gateway::{RequestOptions, make_request};
use crate::kas::pool::TunnelPool;
use crate::kas::prefix::{MethodPath, Rpc};

/// Sends HTTP requests to the Kubernetes API behind one agent that is connected to this process.
#[derive(Debug, Clone)]
pub struct AgentCaller {
    /// The pool that holds the agent's tunnels.
    pub pool: TunnelPool,
    /// The agent.
    pub agent: i64,
    /// How long to wait for a tunnel.
    pub max_wait: Duration,
    /// What to add to requests.
    pub options: RequestOptions,
}

impl AgentCaller {
    /// Sends a request and gives the response as soon as its head is there.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let method = MethodPath::of(Rpc::MakeRequest, self.options.prefix);
        let until = Instant::now() + self.max_wait;
        let call = self.pool.open(self.agent, &method, &trace(request.headers()), until).await?;
        make_request(call, request, &self.options).await
    }
}

/// What of a request's headers the call itself carries on.
fn trace(headers: &HeaderMap) -> HeaderMap {
    let names = ["traceparent", "tracestate", "x-request-id"];
    names.into_iter().filter_map(|name| Some((name.parse().ok()?, headers.get(name)?.clone()))).collect()
}

impl Caller for AgentCaller {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move { self.send(request).await.map_err(|status| denied(&status)) }.boxed()
    }
}

/// What a failed call means to an HTTP caller.
fn denied(status: &Status) -> LinkError {
    use tonic::Code as Grpc;
    let (code, untouched): (&Code, bool) = match status.code() {
        Grpc::DeadlineExceeded => (&reach::SITE_NOT_CONNECTED, true),
        Grpc::Unimplemented => (&reach::SERVICE_NOT_OFFERED, true),
        Grpc::ResourceExhausted => (&reach::QUOTA_EXCEEDED, true),
        Grpc::InvalidArgument => (&reach::PROTOCOL_VIOLATION, false),
        Grpc::Unavailable if status.message().starts_with("gateway → agent") => (&reach::LINK_LOST, false),
        Grpc::Unavailable if status.message().starts_with("the gateway") => (&reach::DRAINING, true),
        _ => (&reach::TARGET_UNREACHABLE, false),
    };
    let http = StatusCode::from_u16(code.http).unwrap_or(StatusCode::BAD_GATEWAY);
    let denial = Denial::new(http, code.id, status.message()).at(code.hop);
    LinkError::Denied(Box::new(if untouched { denial.untouched() } else { denial }))
}
