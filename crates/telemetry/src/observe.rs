//! The observability listener: metrics, liveness and readiness of one process.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::health::{self, Health};
use crate::metrics::Metrics;

/// Where each page is found. The defaults follow Kubernetes; originals have their own names.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Prometheus page.
    pub metrics: Vec<String>,
    /// The process turns its wheels.
    pub liveness: Vec<String>,
    /// The process can do its work.
    pub readiness: Vec<String>,
}

impl Default for Paths {
    fn default() -> Self {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            metrics: list(&["/metrics"]),
            liveness: list(&["/livez", "/healthz", "/liveness"]),
            readiness: list(&["/readyz", "/readiness"]),
        }
    }
}

#[derive(Clone)]
struct Observed {
    metrics: Metrics,
    health: Health,
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    parts: BTreeMap<String, health::State>,
}

/// The pages, to be served alone or beside others.
pub fn router(metrics: Metrics, health: Health, paths: &Paths) -> Router {
    let mut router = Router::new();
    for path in &paths.metrics {
        router = router.route(path, get(page));
    }
    for path in &paths.liveness {
        // Answering at all is the proof: a runtime whose workers are stuck does not get here.
        router = router.route(path, get(|| async { "alive\n" }));
    }
    for path in &paths.readiness {
        router = router.route(path, get(readiness));
    }
    router.with_state(Observed { metrics, health })
}

async fn page(State(observed): State<Observed>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match observed.metrics.render() {
        Ok(page) => ([(header::CONTENT_TYPE, TEXT)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readiness(State(observed): State<Observed>) -> Response {
    let ready = observed.health.is_ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, parts: observed.health.parts() })).into_response()
}
