//! What a node counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tarbet_telemetry::Metrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Outcome {
    pub(super) outcome: &'static str,
}

#[derive(Clone)]
pub(super) struct NodeMetrics {
    pub(super) pods: Gauge,
    pub(super) up: Gauge,
    pub(super) creates: Family<Outcome, Counter>,
    pub(super) deletes: Family<Outcome, Counter>,
    pub(super) updates: Family<Outcome, Counter>,
    pub(super) statuses: Family<Outcome, Counter>,
}

impl NodeMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            pods: metrics.register("tarbet_node_pods", "Pods bound to the node", Gauge::default()),
            up: metrics.register(
                "tarbet_node_interlink_up",
                "Whether interLink answered the last ping",
                Gauge::default(),
            ),
            creates: metrics.register("tarbet_node_creates", "Pods sent to interLink", Family::default()),
            deletes: metrics.register(
                "tarbet_node_deletes",
                "Pods removed from interLink",
                Family::default(),
            ),
            updates: metrics.register(
                "tarbet_node_updates",
                "Changed pods told to interLink",
                Family::default(),
            ),
            statuses: metrics.register(
                "tarbet_node_status_writes",
                "Statuses written to the cluster",
                Family::default(),
            ),
        }
    }
}

pub(super) fn count(family: &Family<Outcome, Counter>, good: bool) {
    family.get_or_create(&Outcome { outcome: if good { "ok" } else { "failed" } }).inc();
}
