//! A problem as an answer over HTTP.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use serde_json::{Value, json};
use tarbet_telemetry::Problem;

/// What axum says about a request it does not take is shorter than this.
const SAYING_MAX: usize = 16 * 1024;

/// The whole problem, with the `error` that the original's programs read.
pub(crate) fn body(problem: &Problem) -> Value {
    let mut body = serde_json::to_value(problem).unwrap_or_default();
    body["error"] = format!("{} ({})", problem.message, problem.cause).into();
    body
}

/// The same with its status.
pub(crate) fn answer(problem: &Problem) -> Response {
    (problem.status(), Json(body(problem))).into_response()
}

/// Whatever fails before a handler is reached (no such path, a query that cannot be read) says so in JSON too.
pub(crate) async fn in_json(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let written = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_owned());
    let is_json = written.is_some_and(|kind| kind.starts_with(b"application/json"));
    if !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    let said = to_bytes(response.into_body(), SAYING_MAX).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let said = if said.is_empty() { status.canonical_reason().unwrap_or("refused") } else { &*said };
    (status, Json(json!({ "error": said }))).into_response()
}
