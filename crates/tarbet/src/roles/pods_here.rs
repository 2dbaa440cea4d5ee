//! Pods at a site by its agent alone: API server and plugin in the agent's process, reached over its
//! link, with nothing that listens on a network.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tarbet_pods::edge::{self, EdgeConfig, Environment, Part};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::process::Process;

/// The name that `tarbet node --site` asks for.
pub const SERVICE: &str = "interlink";

#[derive(Debug, Clone, Args)]
pub struct PodsHereArgs {
    /// Also run pods here, as containers, jobs or processes, for nodes that use --site
    #[arg(long, value_name = "KIND")]
    plugin: Option<Kind>,
    /// interLink's configuration file, for --plugin
    #[arg(long, value_name = "FILE", requires = "plugin")]
    interlink_config: Option<PathBuf>,
    /// Where pods' files are kept, for --plugin
    #[arg(long, value_name = "FOLDER", requires = "plugin")]
    data_root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Docker,
    Slurm,
    Process,
}

/// Starts both parts on private sockets in the data root and gives the place to offer, if wanted.
pub async fn start(
    base: EdgeConfig,
    args: &PodsHereArgs,
    process: &Process,
) -> Result<Option<String>, Problem> {
    let Some(kind) = args.plugin else { return Ok(None) };
    let part = match kind {
        Kind::Docker => Part::Docker,
        Kind::Slurm => Part::Slurm,
        Kind::Process => Part::Process,
    };
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut config = edge::load(base, part, args.interlink_config.as_deref(), &environment)?;
    if let Some(root) = &args.data_root {
        config.data_root_folder.clone_from(root);
    }
    let root = private_folder(&config.data_root_folder)?;
    let place = |name: &str| format!("unix://{}", root.join(name).display());
    let (plugin, api) = (place("plugin.sock"), place("interlink.sock"));
    // A socket that only this account can open needs neither certificates nor tokens.
    let config = EdgeConfig {
        data_root_folder: root.clone(),
        socket: plugin.clone(),
        interlink_address: api.clone(),
        sidecar_url: plugin,
        tls: edge::Tls::default(),
        accepted_tokens_file: None,
        ..config
    };
    for part in [part, Part::Interlink] {
        edge::start(
            part,
            config.clone(),
            &environment,
            &process.supervisor,
            &process.metrics,
            &process.health,
        )
        .await?;
    }
    Ok(Some(api))
}

fn private_folder(path: &Path) -> Result<PathBuf, Problem> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let real = made.and_then(|()| path.canonicalize());
    real.map_err(|error| {
        Problem::new(&ground::CONFIG_INVALID, format!("The data root {} cannot be used.", path.display()))
            .because(error.to_string())
            .advising("name a folder of your own with --data-root")
    })
}
