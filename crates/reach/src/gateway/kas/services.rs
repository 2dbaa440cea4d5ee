//! The gRPC services that GitLab calls on the API listener.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use prost::Message;
use prost_types::Any;
use tarbet_telemetry::problem::chain;
use tonic::Status;

use super::tracker::connected_agents;
use crate::gateway::Hub;
use crate::kas::frame::put;
use crate::kas::inbox::Inbox;
use crate::kas::outbox::{OutboxBody, outbox};
use crate::kas::{Prefix, Rpc, meta, status};

/// What all replicas listen to for what was pushed.
const EVENTS: &str = "kas_events";
const EVENT: &str = "event.GitPushEvent";

/// The services. Plural's fork has the first one only.
pub(in crate::gateway) fn routes(hub: &Hub) -> axum::Router<Arc<Hub>> {
    let prefix = hub.kas.prefix;
    let routes = axum::Router::new().route(Rpc::GetConnectedAgents.path(prefix), post(connected_agents));
    match prefix {
        Prefix::Plural => routes,
        Prefix::Gitlab => routes
            .route(Rpc::GitPushEvent.path(prefix), post(pushed))
            .route(Rpc::ListAgentConfigFiles.path(prefix), post(config_files)),
    }
}

/// Something was pushed. Nothing here follows repositories; replicas of the original may.
async fn pushed(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    let answered = async {
        let Pushed { event } = asked(&hub, request, Rpc::GitPushEvent).await?;
        let event = event.ok_or_else(|| Status::invalid_argument("GitPushEvent: it has no event"))?;
        if let Some(beside) = &hub.kas.beside {
            let told = Any { type_url: hub.kas.prefix.type_url(EVENT), value: event.to_vec() };
            beside.book().tell(EVENTS, &told.encode_to_vec()).await.map_err(|error| {
                tracing::warn!(error = %chain(&error), "Other replicas cannot be told what was pushed.");
                Status::unavailable("gateway → Redis: the other replicas cannot be told")
            })?;
        }
        Ok(())
    };
    answer(answered.await)
}

/// `GitPushEventRequest`, whose event goes on as it is.
#[derive(Clone, PartialEq, Message)]
struct Pushed {
    #[prost(bytes = "bytes", optional, tag = "1")]
    event: Option<Bytes>,
}

/// Nothing here reads repositories, so there are none: an empty list is an empty message.
async fn config_files(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    answer(asked::<()>(&hub, request, Rpc::ListAgentConfigFiles).await)
}

/// The one message of a call, if the caller may make it.
pub(super) async fn asked<M: Message + Default>(hub: &Hub, request: Request, rpc: Rpc) -> Result<M, Status> {
    let (head, body) = request.into_parts();
    admit(hub, &head.headers)?;
    let mut inbox = Inbox::new(&head.headers, body)?;
    let malformed = |what: &str| Status::invalid_argument(format!("{}: {what}", rpc.method()));
    let message = inbox.message().await.ok_or_else(|| malformed("the call has no message"))??;
    M::decode(message).map_err(|_| malformed("the message is not that of the method"))
}

/// The whole answer to a call.
pub(super) fn answer<M: Message>(answered: Result<M, Status>) -> Response {
    let mut response = match answered {
        Ok(answer) => {
            let (outbox, body) = outbox();
            outbox.push(|buffer| put(buffer, &answer));
            outbox.answer(&Status::ok(""));
            Response::new(axum::body::Body::new(body))
        }
        Err(status) => {
            let mut refusal = Response::new(axum::body::Body::new(OutboxBody::empty()));
            refusal.headers_mut().extend(status::to_headers(&status));
            refusal
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Whether GitLab calls.
pub(super) fn admit(hub: &Hub, headers: &HeaderMap) -> Result<(), Status> {
    let refused = || Status::unauthenticated("GitLab → gateway: JWT validation failed");
    let token = meta::bearer(headers).ok_or_else(refused)?;
    let Some(callers) = &hub.kas.callers else {
        tracing::info!("The gRPC API was called, and gateway.kas.api_secret_file is not set.");
        return Err(refused());
    };
    let claims = callers.verifier.verify(token, Timestamp::now()).map_err(|error| {
        tracing::info!(cause = %chain(&error), "A caller of the gRPC API was refused.");
        refused()
    })?;
    let issuer = claims.issuer.as_deref();
    if callers.takes(issuer) {
        return Ok(());
    }
    tracing::info!(?issuer, "A caller of the gRPC API was refused: its token is of somebody else.");
    Err(refused())
}
