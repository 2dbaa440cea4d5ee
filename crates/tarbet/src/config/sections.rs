//! The sections of the file. Each capability brings its own type; this is where they meet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use tarbet_reach::agent::AgentConfig;
use tarbet_reach::config::{GatewayConfig, TlsFiles};
use tarbet_store::{RedbConfig, StoreConfig};
use tarbet_telemetry::log::Format;
use tarbet_telemetry::observe::Paths;

use super::Report;
use crate::cli::state_folder;

/// Everything a Tarbet process can be told.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is written to the log, and how it looks.
    pub log: Log,
    /// Metrics, probes and traces.
    pub observability: Observability,
    /// Where state is kept: `kind: redb` (the default, with `path`), `redis` or `memory`.
    #[serde(deserialize_with = "store", skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,
    /// The web page of `tarbet up` and of `tarbet gateway --console`.
    pub console: Console,
    /// How the process ends.
    pub shutdown: Shutdown,
    /// The public side of reach.
    pub gateway: GatewayConfig,
    /// The private side of reach.
    pub agent: AgentConfig,
    /// Private pipelines on request.
    pub jobs: tarbet_jobs::Config,
    /// Services across meshes.
    pub mesh: tarbet_mesh::MeshConfig,
    /// A virtual node, by interLink's own keys.
    pub node: tarbet_pods::node::NodeConfig,
    /// The interLink API server and its plugins, by interLink's own keys.
    pub edge: tarbet_pods::edge::EdgeConfig,
    /// The orchestrator of many clouds' networks, by Paraglider's own keys.
    pub nets: tarbet_nets::NetsConfig,
    /// Cloud plugins that are processes of their own.
    pub cloud: tarbet_nets::config::CloudConfig,
}

/// A store without `kind` is the embedded one.
fn store<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StoreConfig>, D::Error> {
    let Some(mut value) = Option::<serde_json::Value>::deserialize(deserializer)? else { return Ok(None) };
    if let Some(map) = value.as_object_mut() {
        map.entry("kind").or_insert_with(|| "redb".into());
    }
    serde_json::from_value(value).map(Some).map_err(D::Error::custom)
}

impl Config {
    /// The store that is meant: a file in the state folder unless told otherwise.
    pub fn store(&self) -> StoreConfig {
        let embedded = || StoreConfig::Redb(RedbConfig::at(state_folder().join("tarbet.redb")));
        self.store.clone().unwrap_or_else(embedded)
    }

    /// What the types alone cannot refuse.
    pub(super) fn check(&self, report: &mut Report) {
        if let Err(error) = tarbet_telemetry::log::check_filter(&self.log.filter) {
            report.wrong("log.filter", format!("`{}` is not a log filter: {error}", self.log.filter));
        }
        if let Some(Err(found)) = self.store.as_ref().map(Validate::validate) {
            for (path, error) in found.iter() {
                report.wrong(&format!("store.{path}"), error.to_string());
            }
        }
        for (setting, message) in self.gateway.mistakes() {
            report.wrong(&format!("gateway.{setting}"), message);
        }
        for (setting, message) in self.jobs.mistakes() {
            report.wrong(&format!("jobs.{setting}"), message);
        }
        for (setting, message) in self.mesh.mistakes() {
            report.wrong(&format!("mesh.{setting}"), message);
        }
        for (setting, message) in self.nets.mistakes() {
            report.wrong(&format!("nets.{setting}"), message);
        }
        for (setting, message) in self.node.mistakes() {
            report.wrong(&format!("node.{setting}"), message);
        }
        if !self.console.listen.ip().is_loopback() {
            let message = "must be a loopback address, because it shows everything to whoever reaches it; \
                           from elsewhere use `ssh -L 7480:127.0.0.1:7480 HOST`";
            report.wrong("console.listen", message);
        }
        for (setting, message) in self.observability.mistakes() {
            report.wrong(&format!("observability.{setting}"), message);
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
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Observability {
    /// Address of the metrics and probe listener; each role has its own default.
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// A socket in the file system to listen on, instead of the address.
    pub socket: Option<PathBuf>,
    // Whether a flag said so.
    #[serde(skip)]
    pub listen_by_flag: bool,
    /// Its certificate; without one it speaks plain text.
    pub tls: Option<TlsFiles>,
    /// Connections that may be open at once; one more is closed as soon as it comes.
    pub max_connections: usize,
    /// A further path of the metrics, such as `/-/metrics`.
    pub metrics_path: Option<String>,
    /// A further path of the liveness probe.
    pub liveness_path: Option<String>,
    /// A further path of the readiness probe.
    pub readiness_path: Option<String>,
    /// An OTLP/gRPC collector that spans are sent to, such as `http://127.0.0.1:4317`.
    pub otlp_endpoint: Option<String>,
}

impl Default for Observability {
    fn default() -> Self {
        Self {
            listen: None,
            socket: None,
            listen_by_flag: false,
            tls: None,
            // Far more than ever look, and far less than what would starve the work.
            max_connections: 1_000,
            metrics_path: None,
            liveness_path: None,
            readiness_path: None,
            otlp_endpoint: None,
        }
    }
}

impl Observability {
    /// What the types alone cannot refuse, with the setting it is about.
    pub fn mistakes(&self) -> Vec<(&'static str, String)> {
        let paths = [
            ("metrics_path", &self.metrics_path),
            ("liveness_path", &self.liveness_path),
            ("readiness_path", &self.readiness_path),
        ];
        let plain = |path: &str| {
            path.starts_with('/')
                && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte))
        };
        let wrong = |(name, path): (&'static str, &Option<String>)| {
            let path = path.as_deref().filter(|path| !plain(path))?;
            Some((name, format!("`{path}` is no path: it begins with a slash and has only plain characters")))
        };
        let mut found: Vec<_> = paths.into_iter().filter_map(wrong).collect();
        if let Some(tls) = &self.tls {
            if let Err(message) = tls.source() {
                found.push(("tls", message.to_owned()));
            }
            if tls.client_ca_file.is_some() {
                let message =
                    "nobody is asked for a certificate here: what is shown is for whoever reaches it";
                found.push(("tls.client_ca_file", message.to_owned()));
            }
        }
        if self.max_connections == 0 {
            found.push(("max_connections", "must be at least 1".to_owned()));
        }
        found
    }

    /// Where each page is found: at its usual places, and where the settings say.
    pub fn paths(&self) -> Paths {
        let mut paths = Paths::default();
        let mut taken: Vec<String> =
            [&paths.metrics, &paths.liveness, &paths.readiness].into_iter().flatten().cloned().collect();
        for (further, page) in [
            (&self.metrics_path, &mut paths.metrics),
            (&self.liveness_path, &mut paths.liveness),
            (&self.readiness_path, &mut paths.readiness),
        ] {
            // One path leads to one page.
            if let Some(path) = further.as_ref().filter(|path| !taken.contains(path)) {
                taken.push(path.clone());
                page.push(path.clone());
            }
        }
        paths
    }
}

/// The web page of `tarbet up` and of `tarbet gateway --console`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Console {
    /// Where it listens; a loopback address.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Kubeconfigs of clusters whose virtual nodes, requests and federations are shown. One that is not there yet
    /// is shown as soon as it is.
    pub clusters: Vec<PathBuf>,
    /// The interLink API server whose pods are shown, where this process has none: `http://host:port`.
    pub interlink: Option<String>,
    /// The REST listener of the orchestrator whose networks are shown, where this process has none:
    /// `http://host:port`. It must ask for no token.
    pub nets: Option<String>,
}

impl Default for Console {
    fn default() -> Self {
        Self { listen: tarbet_console::LISTEN, clusters: Vec::new(), interlink: None, nets: None }
    }
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

impl Shutdown {
    /// Whether nobody said anything else.
    pub fn is_usual(&self) -> bool {
        self.deadline == Self::default().deadline
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_further_paths_and_each_path_one_page() {
        let observability = Observability {
            metrics_path: Some("/-/metrics".into()),
            liveness_path: Some("/readyz".into()),
            readiness_path: Some("/-/metrics".into()),
            ..Observability::default()
        };
        assert!(observability.mistakes().is_empty());
        let paths = observability.paths();
        assert_eq!(paths.metrics, ["/metrics", "/-/metrics"]);
        assert_eq!(
            (paths.liveness, paths.readiness),
            (Paths::default().liveness, Paths::default().readiness)
        );
        for bad in ["metrics", "", "/{x}", "/a b", "/*"] {
            let odd = Observability { liveness_path: Some(bad.into()), ..Observability::default() };
            assert_eq!(odd.mistakes().len(), 1, "{bad}");
        }
    }
}
