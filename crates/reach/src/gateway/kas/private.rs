//! Replicas of the original at our private listener: they ask for a tunnel of an agent that is here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use tarbet_link::ByteStream;
use tarbet_telemetry::problem::chain;
use tonic::Status;

use crate::gateway::Hub;
use crate::gateway::leaving::until_leaving;
use crate::kas::outbox::OutboxBody;
use crate::kas::{meta, private, status};

/// As the original has it.
const PING: Duration = Duration::from_secs(50);
const PONG: Duration = Duration::from_secs(20);
/// One replica carries the calls of all its callers over one connection.
const STREAMS: u32 = 20_000;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Serves a connection of another replica until it ends; when the gateway leaves, what runs finishes.
pub(in crate::gateway) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let leaving = hub.leaving.clone();
    let service = service_fn(move |request| {
        let answer = answer(&hub, request, peer);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = until_leaving(connection, &leaving).await {
        tracing::debug!(%peer, error = %chain(&error), "The connection of another replica broke.");
    }
}

fn answer(hub: &Hub, request: Request<Incoming>, peer: SocketAddr) -> Response<OutboxBody> {
    match admit(hub, request.headers()) {
        Ok(()) => private::serve(&hub.kas.pool, request, hub.config().max_wait),
        Err(refusal) => {
            tracing::info!(%peer, cause = refusal.message(), "A call of another replica was refused.");
            let mut response = Response::new(OutboxBody::empty());
            response.headers_mut().extend(status::to_headers(&refusal));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            response
        }
    }
}

fn admit(hub: &Hub, headers: &HeaderMap) -> Result<(), Status> {
    if hub.leaving.is_cancelled() {
        return Err(Status::unavailable("gateway → gateway: the gateway is shutting down"));
    }
    let refused = || Status::unauthenticated("gateway → gateway: JWT validation failed");
    let (Some(verifier), Some(token)) = (&hub.colleagues, meta::bearer(headers)) else {
        return Err(refused());
    };
    verifier.verify(token, Timestamp::now()).map(drop).map_err(|error| {
        tracing::info!(cause = %chain(&error), "A token for the private listener was refused.");
        refused()
    })
}
