//! What the API server and the plugins count.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tarbet_telemetry::Metrics;

use crate::wire::extension::{EXEC, LIST, UPDATE, USAGE, WATCH};

/// What is counted by name; other paths would be as many as callers can think of.
const CALLS: [&str; 14] = [
    "/ping",
    "/setKubeCFG",
    "/pinglink",
    "/create",
    "/delete",
    "/status",
    "/getLogs",
    "/updateCache",
    "/system-info",
    UPDATE,
    LIST,
    USAGE,
    WATCH,
    EXEC,
];
/// From a state that is remembered to a job that a busy scheduler takes.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    call: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

/// The calls of one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Calls {
    answered: Family<Answered, Counter>,
    seconds: Family<Call, Histogram>,
    open: Gauge,
}

impl Calls {
    /// Counts under names that begin with `tarbet_` and this.
    pub(crate) fn new(metrics: &Metrics, prefix: &str) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            answered: metrics.register(
                &format!("tarbet_{prefix}_calls"),
                "Calls that were answered",
                Family::default(),
            ),
            seconds: metrics.register(
                &format!("tarbet_{prefix}_call_seconds"),
                "Seconds until a call was answered; what follows the head is not counted",
                Family::new_with_constructor(histogram),
            ),
            open: metrics.register(
                &format!("tarbet_{prefix}_calls_open"),
                "Calls that wait for their answer",
                Gauge::default(),
            ),
        }
    }
}

/// Takes one back whatever becomes of the call.
struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a call.
pub(crate) async fn count(State(calls): State<Calls>, request: Request, next: Next) -> Response {
    let call = CALLS.iter().find(|call| **call == request.uri().path()).unwrap_or(&"other");
    calls.open.inc();
    let open = Open(calls.open.clone());
    let begun = Instant::now();
    let response = next.run(request).await;
    drop(open);
    calls.seconds.get_or_create(&Call { call }).observe(begun.elapsed().as_secs_f64());
    calls.answered.get_or_create(&Answered { call, code: response.status().as_u16() }).inc();
    response
}
