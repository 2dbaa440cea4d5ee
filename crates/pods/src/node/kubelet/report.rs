//! What the node says of its pods.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kubelet, Refusal};

/// All pods of the node.
pub(super) async fn pods(State(kubelet): State<Arc<Kubelet>>) -> Json<Value> {
    let items: Vec<Value> =
        kubelet.node.book.all().iter().filter_map(|entry| serde_json::to_value(&*entry.pod).ok()).collect();
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// The summary that metrics readers ask for. What pods use is known to the place they run at and not
/// told by interLink, so only times are in it.
pub(super) async fn summary(State(kubelet): State<Arc<Kubelet>>) -> Json<Value> {
    let now = Timestamp::now().to_string();
    let pods: Vec<Value> = kubelet
        .node
        .book
        .all()
        .iter()
        .map(|entry| {
            let status = entry.pod.status.as_ref();
            let containers: Vec<Value> = status
                .iter()
                .flat_map(|status| status.container_statuses.iter().flatten())
                .filter_map(|container| {
                    let running = container.state.as_ref()?.running.as_ref()?;
                    Some(json!({"name": container.name, "startTime": running.started_at}))
                })
                .collect();
            let (namespace, name) = entry.key();
            json!({
                "podRef": {"name": name, "namespace": namespace, "uid": entry.uid()},
                "startTime": status.and_then(|status| status.start_time.clone()),
                "containers": containers,
            })
        })
        .collect();
    Json(json!({
        "node": {"nodeName": kubelet.node.config.node_name, "startTime": now},
        "pods": pods,
    }))
}

/// The node's own counts.
pub(super) async fn metrics(State(kubelet): State<Arc<Kubelet>>) -> Result<Response, Refusal> {
    let text = kubelet.metrics.render();
    let text = text.map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// When containers began, in the form that resource metrics have.
pub(super) async fn resource(State(kubelet): State<Arc<Kubelet>>) -> Response {
    let mut text = String::from(
        "# HELP container_start_time_seconds Start time of the container since unix epoch in seconds\n\
         # TYPE container_start_time_seconds gauge\n",
    );
    for entry in kubelet.node.book.all() {
        let (namespace, pod) = entry.key();
        let statuses = entry.pod.status.as_ref().and_then(|status| status.container_statuses.clone());
        for status in statuses.into_iter().flatten() {
            let began = status.state.and_then(|state| state.running).and_then(|running| running.started_at);
            if let Some(began) = began {
                let container = status.name;
                let _ = writeln!(
                    text,
                    "container_start_time_seconds{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"}} {}",
                    began.0.as_second()
                );
            }
        }
    }
    text.push_str(
        "# HELP scrape_error 1 if there was an error while getting container metrics, 0 otherwise\n",
    );
    text.push_str("# TYPE scrape_error gauge\nscrape_error 0\n");
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
