//! What the node says of its pods.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{Kubelet, Refusal};

/// All pods of the node.
pub(super) async fn pods(State(kubelet): State<Arc<Kubelet>>) -> Json<Value> {
    let items: Vec<Value> =
        kubelet.node.book.all().iter().filter_map(|entry| serde_json::to_value(&entry.pod).ok()).collect();
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// The node's own counts.
pub(super) async fn metrics(State(kubelet): State<Arc<Kubelet>>) -> Result<Response, Refusal> {
    let text = kubelet.metrics.render();
    let text = text.map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
