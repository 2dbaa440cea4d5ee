//! `tarbet plugin docker|slurm|process`: what runs the pods.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use tarbet_pods::edge::{self, EdgeConfig, Environment, Part};
use tarbet_telemetry::Problem;

use super::process::{Process, Threads};
use crate::config::Config;

pub const EXAMPLES: &str = "Examples:
  tarbet plugin docker
  tarbet plugin slurm --interlink-config /etc/interlink/SlurmConfig.yaml
  tarbet plugin process --listen unix:///run/interlink/plugin.sock

They take interLink's own configuration file and variables: INTERLINKCONFIGPATH, SLURMCONFIGPATH,
SIDECARPORT, SBATCHPATH, SCANCELPATH, SQUEUEPATH, SINGULARITYPATH, SHARED_FS, TSOCKS, TSOCKSPATH
and DOCKER_HOST. Docker listens on 4000 and Slurm on 4001, on loopback unless told.";

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Run pods as containers of a Docker daemon
    #[command(
        after_help = "Examples:\n  tarbet plugin docker\n  DOCKER_HOST=unix:///run/user/1000/docker.sock tarbet plugin docker --data-root ~/pods"
    )]
    Docker(EdgeArgs),
    /// Run pods as jobs of Slurm
    #[command(
        after_help = "Examples:\n  tarbet plugin slurm\n  SHARED_FS=true tarbet plugin slurm --data-root /shared/interlink"
    )]
    Slurm(EdgeArgs),
    /// Run pods as plain processes of this machine
    #[command(after_help = "Examples:\n  tarbet plugin process --data-root ~/pods")]
    Process(EdgeArgs),
}

/// What the API server and the plugins take.
#[derive(Debug, Clone, Args)]
pub struct EdgeArgs {
    /// interLink's configuration file
    #[arg(long, value_name = "FILE")]
    interlink_config: Option<PathBuf>,
    /// Where to listen: an address with or without a port, or unix:///path
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where pods' files are kept
    #[arg(long, value_name = "FOLDER")]
    data_root: Option<PathBuf>,
}

impl EdgeArgs {
    /// File, then variables, then flags.
    pub fn settings(&self, base: EdgeConfig, part: Part) -> Result<(EdgeConfig, Environment), Problem> {
        let environment: Environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut settings = edge::load(base, part, self.interlink_config.as_deref(), &environment)?;
        if let Some(listen) = &self.listen {
            let target = match part {
                Part::Interlink => &mut settings.interlink_address,
                _ => &mut settings.sidecar_address,
            };
            target.clone_from(listen);
            if listen.starts_with("unix://") && part != Part::Interlink {
                settings.socket.clone_from(listen);
            }
        }
        if let Some(root) = &self.data_root {
            settings.data_root_folder.clone_from(root);
        }
        Ok((settings, environment))
    }
}

const fn observe_at(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub fn run(config: Config, command: PluginCommand) -> Result<(), Problem> {
    match command {
        PluginCommand::Docker(args) => start(config, "plugin docker", Part::Docker, args, observe_at(8090)),
        PluginCommand::Slurm(args) => start(config, "plugin slurm", Part::Slurm, args, observe_at(8091)),
        PluginCommand::Process(args) => {
            start(config, "plugin process", Part::Process, args, observe_at(8092))
        }
    }
}

/// Runs one part of the edge as a role.
pub fn start(
    config: Config,
    role: &'static str,
    part: Part,
    args: EdgeArgs,
    observe_at: SocketAddr,
) -> Result<(), Problem> {
    let (settings, environment) = args.settings(config.edge.clone(), part)?;
    Process::run(role, &config, observe_at, Threads::Cores, |process| async move {
        edge::start(part, settings, &environment, &process.supervisor, &process.metrics, &process.health)
            .await
            .map(drop)
    })
}
