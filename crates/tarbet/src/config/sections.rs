//! The sections of the file. Each capability brings its own type; this is where they meet.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_telemetry::log::Format;

use super::Report;

/// Everything a Tarbet process can be told.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is written to the log, and how it looks.
    pub log: Log,
    /// Metrics, probes and traces.
    pub observability: Observability,
    /// How the process ends.
    pub shutdown: Shutdown,
}

impl Config {
    /// What the types alone cannot refuse.
    pub(super) fn check(&self, report: &mut Report) {
        if let Err(error) = tarbet_telemetry::log::check_filter(&self.log.filter) {
            report.wrong("log.filter", format!("`{}` is not a log filter: {error}", self.log.filter));
        }
        if self.shutdown.deadline.is_zero() {
            report.wrong("shutdown.deadline", "must be longer than nothing");
        }
    }
}

/// What is written to the log, and how it looks.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `auto` is text on a terminal and JSON otherwise; or `text`, or `json`.
    #[schemars(with = "String")]
    pub format: Format,
    /// A level (`info`), or levels by module (`info,tarbet_link=debug`).
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: Format::Auto, filter: "info".into() }
    }
}

/// Metrics, probes and traces.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Observability {
    /// Address of the metrics and probe listener; each role has its own default.
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// An OTLP/gRPC collector that spans are sent to, such as `http://127.0.0.1:4317`.
    pub otlp_endpoint: Option<String>,
}

/// How the process ends.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long running work may take to finish after SIGTERM or SIGINT.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub deadline: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30) }
    }
}
