//! What the controller counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Write {
    pub(crate) kind: &'static str,
    pub(crate) verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Mesh {
    pub(crate) mesh: String,
}

/// What the controller counts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MeshMetrics {
    pub(crate) writes: Family<Write, Counter>,
    pub(crate) failures: Counter,
    pub(crate) reconciles: Histogram,
    pub(crate) exported: Gauge,
    pub(crate) imported: Gauge,
    pub(crate) connected: Family<Mesh, Gauge>,
    pub(crate) refused: Family<Mesh, Gauge>,
}

impl MeshMetrics {
    /// Registers all of them.
    pub fn register(metrics: &tarbet_telemetry::Metrics) -> Self {
        let buckets = exponential_buckets(0.001, 2.0, 16);
        Self {
            writes: metrics.register("tarbet_mesh_writes", "Writes to the cluster", Family::default()),
            failures: metrics.register(
                "tarbet_mesh_write_failures",
                "Writes that failed",
                Counter::default(),
            ),
            reconciles: metrics.register(
                "tarbet_mesh_reconcile_seconds",
                "Seconds from a change to the last write it needed",
                Histogram::new(buckets),
            ),
            exported: metrics.register(
                "tarbet_mesh_exported_services",
                "Services told to peers",
                Gauge::default(),
            ),
            imported: metrics.register(
                "tarbet_mesh_imported_services",
                "Services of peers here",
                Gauge::default(),
            ),
            connected: metrics.register(
                "tarbet_mesh_peer_connected",
                "Whether a peer answers",
                Family::default(),
            ),
            refused: metrics.register(
                "tarbet_mesh_peer_refused_services",
                "Services of a peer that were refused",
                Family::default(),
            ),
        }
    }

    /// All writes so far.
    pub fn writes(&self) -> u64 {
        use crate::plan::Kind;
        let kinds =
            Kind::ALL.iter().map(|kind| kind.name()).chain(["MeshFederation", "FederationServiceRules"]);
        let verbs = ["apply", "replace", "delete", "status"];
        kinds
            .flat_map(|kind| verbs.map(|verb| Write { kind, verb }))
            .map(|write| self.writes.get_or_create(&write).get())
            .sum()
    }
}
