//! Pods of `tarbet up`: interLink's API in front of the best plugin there is.

use std::os::unix::net::UnixStream;
use std::path::Path;

use tarbet_pods::edge::{self, EdgeConfig, Environment, Part};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::config::Config;
use crate::roles::process::Process;

/// What was started.
pub(super) struct Pods {
    /// The API.
    pub(super) url: String,
    /// For people.
    pub(super) told: String,
}

/// How it is told that pods run without their images.
pub const PLAIN: &str = "as plain processes";

/// The folder of a plugin's pods below the state folder.
pub fn root(folder: &Path, part: Part) -> std::path::PathBuf {
    folder.join("pods").join(if part == Part::Docker { "docker" } else { "process" })
}

pub(super) async fn start(process: &Process, config: &Config, folder: &Path) -> Result<Pods, Problem> {
    let environment = environment();
    let base = edge::load(config.edge.clone(), Part::Interlink, None, &environment)?;
    let part = if docker_answers(&base.docker_host) { Part::Docker } else { Part::Process };
    let settings = placed(&base, folder, part);
    let plugin =
        EdgeConfig { socket: String::new(), sidecar_address: "127.0.0.1:0".into(), ..settings.clone() };
    let address =
        edge::start(part, plugin, &environment, &process.supervisor, &process.metrics, &process.health)
            .await?;
    let port = address.rsplit(':').next().unwrap_or_default().trim_end_matches('/').to_owned();
    let api = EdgeConfig { sidecar_url: "http://127.0.0.1".into(), sidecar_port: port, ..settings };
    let begin = |api: EdgeConfig| {
        edge::start(
            Part::Interlink,
            api,
            &environment,
            &process.supervisor,
            &process.metrics,
            &process.health,
        )
    };
    let address = match begin(api.clone()).await {
        // Another program has the usual port, and nobody insisted on it.
        Err(problem) if problem.code == ground::ADDRESS_IN_USE.id && usual(&base) => {
            begin(EdgeConfig { interlink_address: "127.0.0.1:0".into(), ..api }).await?
        }
        started => started?,
    };
    let url = if address.contains("://") { address } else { format!("http://{address}") };
    let kind =
        if part == Part::Docker { "on Docker".to_owned() } else { format!("{PLAIN} (no Docker answers)") };
    Ok(Pods { told: format!("{url}  {kind}"), url })
}

/// Below the state folder unless the settings name another place.
pub fn placed(base: &EdgeConfig, folder: &Path, part: Part) -> EdgeConfig {
    let mut settings = base.clone();
    if settings.data_root_folder == EdgeConfig::default().data_root_folder {
        settings.data_root_folder = root(folder, part);
    }
    settings
}

fn usual(settings: &EdgeConfig) -> bool {
    let usual = EdgeConfig::default();
    (&settings.interlink_address, &settings.interlink_port)
        == (&usual.interlink_address, &usual.interlink_port)
}

pub fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Whether a daemon listens where Docker should. One over TCP is believed.
pub fn docker_answers(host: &str) -> bool {
    match host.strip_prefix("unix://") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => !host.is_empty(),
    }
}
