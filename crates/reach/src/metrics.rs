//! What a gateway counts.

use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use tarbet_identity::tls::Turns;
use tarbet_telemetry::Metrics;

use crate::local::LocalLinks;
use crate::quota::Quotas;

/// As the original has them: from a millisecond, four times as long each.
const ROUTING: (f64, f64, u16) = (0.001, 4.0, 8);

type Outcome = [(&'static str, &'static str); 1];
type Limit = [(&'static str, &'static str); 1];

/// The counters of one gateway.
#[derive(Clone)]
pub struct GatewayMetrics {
    /// Links taken in.
    pub links_opened: Counter,
    /// Agents turned away.
    pub refused_links: Counter,
    requests: Family<Outcome, Counter>,
    quotas: Family<Limit, Counter>,
    latency: Histogram,
    /// Calls of agents that were one too many, by the original's name.
    pub rate_exceeded: Counter,
    /// Requests for which nobody was found in time, by the original's name.
    pub routing_timeouts: Counter,
    routing: Family<Outcome, Histogram, fn() -> Histogram>,
}

impl GatewayMetrics {
    /// Registers them.
    pub fn register(metrics: &Metrics, local: &LocalLinks, quotas: &Quotas) -> Self {
        let now = Now(local.clone(), quotas.clone());
        metrics.with(|registry| registry.register_collector(Box::new(now)));
        let version = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        metrics.with(|registry| {
            registry.register(
                "gitlab_build",
                "Version, under the name that kas has for it",
                Info::new(version),
            );
        });
        Self {
            rate_exceeded: metrics.register(
                "agent_server_rate_exceeded",
                "Calls of agents over gateway.kas.calls_per_minute (a name of kas)",
                Counter::default(),
            ),
            routing_timeouts: metrics.register(
                "k8s_api_proxy_routing_timeout",
                "Requests of Kubernetes clients for which no agent was found in time (a name of kas)",
                Counter::default(),
            ),
            routing: metrics.register(
                "k8s_api_proxy_routing_duration_seconds",
                "Time until a tunnel of a kas agent was found here (a name of kas)",
                Family::new_with_constructor(|| {
                    let (start, factor, count) = ROUTING;
                    Histogram::new(exponential_buckets(start, factor, count))
                }),
            ),
            links_opened: metrics.register("tarbet_links_opened", "Links taken in", Counter::default()),
            refused_links: metrics.register("tarbet_links_refused", "Agents turned away", Counter::default()),
            requests: metrics.register("tarbet_requests", "Requests routed, by outcome", Family::default()),
            quotas: metrics.register(
                "tarbet_quota_refusals",
                "Requests and links refused because of a limit, by its setting",
                Family::default(),
            ),
            latency: metrics.register(
                "tarbet_request_first_byte_seconds",
                "Time from a request's headers to its response's headers",
                Histogram::new(exponential_buckets(0.000_25, 4.0, 10)),
            ),
        }
    }

    /// A limit was met; `setting` names it.
    pub fn over_quota(&self, setting: &'static str) {
        self.quotas.get_or_create(&[("limit", setting)]).inc();
    }

    /// A tunnel was found for a request, or given up on.
    pub fn looked_for_tunnel(&self, found: bool, took: Duration) {
        let status = if found { "success" } else { "aborted" };
        self.routing.get_or_create(&[("status", status)]).observe(took.as_secs_f64());
    }

    /// A request was answered, or failed before it was.
    pub fn routed(&self, success: bool, took: Duration) {
        let outcome = if success { "success" } else { "failure" };
        self.requests.get_or_create(&[("outcome", outcome)]).inc();
        self.latency.observe(took.as_secs_f64());
    }
}

/// Shows how many agents wait for their turn in TLS.
pub(crate) fn register_handshakes(metrics: &Metrics, turns: &Turns) {
    let handshakes = Handshakes(turns.clone());
    metrics.with(|registry| registry.register_collector(Box::new(handshakes)));
}

#[derive(Debug)]
struct Handshakes(Turns);

impl Collector for Handshakes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Agents that wait for their turn to finish a TLS handshake";
        gauge(&mut encoder, "tarbet_handshakes_waiting", help, self.0.waiting())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> std::fmt::Result {
    let gauge = ConstGauge::new(value as u64);
    let family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(family)
}

/// What is true at the moment somebody looks.
struct Now(LocalLinks, Quotas);

impl std::fmt::Debug for Now {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Now")
    }
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let waiting: usize = self.0.awaited().iter().map(|(_, count)| count).sum();
        let links = self.0.all();
        // All tunnels of one agent are one way, which is not one link.
        let agents = links.iter().filter(|held| !held.way.is_one_link()).count();
        for (name, help, value) in [
            ("tarbet_links", "Links held now", links.len()),
            ("connected_agents_count", "Agents of the kas protocol held now (a name of kas)", agents),
            ("tarbet_requests_waiting", "Requests waiting for a site to connect", waiting),
            ("tarbet_requests_counted", "Requests that count against a limit now", self.1.counted()),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        Ok(())
    }
}
