//! Metrics under the names that dashboards of the original know, plus the state of the line.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// How a request went.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Attempt {
    pub(crate) request: String,
    pub(crate) namespace: String,
    pub(crate) reason: String,
    pub(crate) succeeded: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    controller: &'static str,
    result: &'static str,
}

/// What the controller counts.
#[derive(Clone)]
pub struct JobMetrics {
    running: Gauge,
    waiting: Gauge,
    depth: Gauge,
    attempts: Family<Attempt, Counter>,
    durations: Family<Attempt, Histogram, fn() -> Histogram>,
    reconciles: Family<Reconcile, Counter>,
}

const BUCKETS: [f64; 10] = [10.0, 20.0, 40.0, 60.0, 150.0, 300.0, 450.0, 900.0, 1800.0, 3600.0];

impl JobMetrics {
    /// Registers all of them.
    pub fn register(metrics: &tarbet_telemetry::Metrics) -> Self {
        let durations: Family<Attempt, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        Self {
            running: metrics.register(
                "internal_request_attempt_concurrent_requests",
                "Requests whose run is going on",
                Gauge::default(),
            ),
            waiting: metrics.register("tarbet_jobs_waiting_requests", "Requests in line", Gauge::default()),
            depth: metrics.register("workqueue_depth", "Requests to be looked at", Gauge::default()),
            // The encoder adds `_total`.
            attempts: metrics.register(
                "internal_request_attempt",
                "Requests that are over",
                Family::default(),
            ),
            durations: metrics.register(
                "internal_request_attempt_duration_seconds",
                "Seconds from the start of a request to its end",
                durations,
            ),
            reconciles: metrics.register(
                "controller_runtime_reconcile",
                "Looks at requests",
                Family::default(),
            ),
        }
    }

    pub(crate) fn line(&self, running: usize, waiting: usize) {
        self.running.set(running.cast_signed() as i64);
        self.waiting.set(waiting.cast_signed() as i64);
    }

    pub(crate) fn depth(&self, depth: usize) {
        self.depth.set(depth.cast_signed() as i64);
    }

    pub(crate) fn reconciled(&self, result: &'static str) {
        self.reconciles.get_or_create(&Reconcile { controller: "internalrequest", result }).inc();
    }

    /// A request is over; `seconds` only if it ran.
    pub(crate) fn over(&self, attempt: &Attempt, seconds: Option<f64>) {
        self.attempts.get_or_create(attempt).inc();
        if let Some(seconds) = seconds {
            self.durations.get_or_create(attempt).observe(seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_buckets_are_those_of_the_original() {
        let metrics = tarbet_telemetry::Metrics::new("jobs", "1");
        let jobs = JobMetrics::register(&metrics);
        let attempt = Attempt {
            request: "sign".into(),
            namespace: "team-a".into(),
            reason: "Succeeded".into(),
            succeeded: "true".into(),
        };
        jobs.over(&attempt, Some(12.0));
        jobs.line(1, 0);
        jobs.line(0, 0);
        let page = metrics.render().unwrap();
        let labels = r#"request="sign",namespace="team-a",reason="Succeeded",succeeded="true""#;
        for line in [
            format!("internal_request_attempt_total{{{labels}}} 1"),
            format!("internal_request_attempt_duration_seconds_bucket{{le=\"20.0\",{labels}}} 1"),
            "internal_request_attempt_concurrent_requests 0".to_owned(),
        ] {
            assert!(page.contains(&line), "{line} is missing in\n{page}");
        }
    }
}
