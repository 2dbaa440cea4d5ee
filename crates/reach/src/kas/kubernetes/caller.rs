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
use super::impersonation::Impersonation;
use crate::kas::call::Call;
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
        let metadata = trace(request.headers());
        let call = self.open(&metadata).await?;
        exchange(call, request, &self.options).await
    }

    /// Waits for a tunnel. No request is sent yet.
    pub(crate) async fn open(&self, metadata: &HeaderMap) -> Result<Call, Status> {
        let method = MethodPath::of(Rpc::MakeRequest, self.options.prefix);
        let until = Instant::now() + self.max_wait;
        self.pool.open(self.agent, &method, metadata, until).await
    }

    /// Sends a request through a tunnel and gives the response as soon as its head is there.
    pub(crate) async fn send_on(
        &self,
        call: Call,
        request: Request<Body>,
    ) -> Result<Response<Body>, LinkError> {
        send_on(call, request, &self.options).await
    }
}

/// Sends a request through a tunnel, wherever that is.
pub(crate) async fn send_on(
    call: Call,
    request: Request<Body>,
    options: &RequestOptions,
) -> Result<Response<Body>, LinkError> {
    exchange(call, request, options).await.map_err(|status| failed(&status))
}

/// Whom the request impersonates by its headers goes along in the form of the protocol, unless the options
/// say whom.
async fn exchange(
    call: Call,
    mut request: Request<Body>,
    options: &RequestOptions,
) -> Result<Response<Body>, Status> {
    let own;
    let asked = Impersonation::take(request.headers_mut(), options.prefix);
    let options = match (&options.impersonation, asked) {
        (None, Some(who)) => {
            own = RequestOptions { impersonation: Some(who), ..options.clone() };
            &own
        }
        _ => options,
    };
    make_request(call, request, options).await
}

/// What of a request's headers the call itself carries on.
pub(crate) fn trace(headers: &HeaderMap) -> HeaderMap {
    let names = ["traceparent", "tracestate", "x-request-id"];
    names.into_iter().filter_map(|name| Some((name.parse().ok()?, headers.get(name)?.clone()))).collect()
}

impl Caller for AgentCaller {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            let metadata = trace(request.headers());
            let call = self.open(&metadata).await.map_err(|status| denied(&status))?;
            self.send_on(call, request).await
        }
        .boxed()
    }
}

/// What it means to an HTTP caller that no call could be opened. Nothing was sent yet.
pub(crate) fn denied(status: &Status) -> LinkError {
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

/// What it means to an HTTP caller that a call failed after its request was sent. The agent may have passed
/// the request on before it failed, whatever it says, so this is always 502 and never a reason to send the
/// request again.
fn failed(status: &Status) -> LinkError {
    use tonic::Code as Grpc;
    let code: &Code = match status.code() {
        Grpc::InvalidArgument => &reach::PROTOCOL_VIOLATION,
        Grpc::Unavailable if status.message().starts_with("gateway → agent") => &reach::LINK_LOST,
        _ => &reach::TARGET_UNREACHABLE,
    };
    let denial = Denial::new(StatusCode::BAD_GATEWAY, code.id, status.message()).at(code.hop);
    LinkError::Denied(Box::new(denial))
}
