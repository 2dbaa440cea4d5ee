//! What is counted.

use prometheus_client::metrics::counter::Counter;
use tarbet_telemetry::Metrics;

/// The orchestrator's counters.
#[derive(Clone, Debug, Default)]
pub struct NetsMetrics {
    /// Operations begun.
    pub operations: Counter,
    /// Permit lists that followed a tag.
    pub propagated: Counter,
}

impl NetsMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            operations: metrics.register("tarbet_nets_operations", "Operations begun", Counter::default()),
            propagated: metrics.register(
                "tarbet_nets_propagated",
                "Permit lists brought in line with a changed tag",
                Counter::default(),
            ),
        }
    }
}
