//! What people change through the API leaves a record, like every request to a site.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::Failure;
use crate::audit::Event;
use crate::gateway::Hub;

/// Records a change, whether it was made or refused. A change that cannot be recorded is not made.
pub(super) async fn changes(State(hub): State<Arc<Hub>>, request: Request, next: Next) -> Response {
    let asks = request.uri().path().ends_with("/whoami");
    if asks || [Method::GET, Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    if let Err(problem) = hub.audit.ready() {
        return Failure(problem).into_response();
    }
    let wants = format!("{} {}", request.method(), request.uri().path());
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = bearer.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().trim().to_owned();
    let principal = hub.known.caller(&token, Timestamp::now()).await.ok().map(|caller| caller.name.clone());
    let mut event = Event { principal, wants, outcome: "begun".into(), ..Event::default() };
    event.begun = hub.audit.record(Timestamp::now(), &event);
    if let Some(seq) = event.begun
        && let Err(problem) = hub.audit.written(seq).await
    {
        event.outcome = "refused".into();
        event.code = Some(problem.code.clone());
        hub.audit.record(Timestamp::now(), &event);
        return Failure(problem).into_response();
    }
    let answer = next.run(request).await;
    let status = answer.status();
    let outcome = match status.as_u16() {
        200..=399 => "answered",
        401 | 403 | 404 => "refused",
        _ => "failed",
    };
    event.outcome = outcome.into();
    event.status = Some(status.as_u16());
    hub.audit.record(Timestamp::now(), &event);
    answer
}
