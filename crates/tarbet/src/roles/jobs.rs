//! `tarbet jobs`: the controller that runs private pipelines on request.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tarbet_cluster::{Client, Source};
use tarbet_jobs::{Config as JobsConfig, Controller, JobMetrics, Remote, RemoteConfig};
use tarbet_link::{Body, Caller, Target};
use tarbet_telemetry::codes::{ground, jobs};
use tarbet_telemetry::log::Format;
use tarbet_telemetry::{Coded, Problem, Stage};

use super::listeners::{ListenArgs, in_a_pod};
use super::process::{Process, Threads};
use crate::cli::endpoint::ServerArgs;
use crate::config::{Config, Log};

pub const EXAMPLES: &str = "Examples:
  tarbet jobs --remote-kubeconfig /etc/remote/kubeconfig
  tarbet jobs --remote-site public --server https://gateway:8153 --token-file token
  SERVICE_NAMESPACE=internal-services tarbet jobs --remote-cluster-config-file F --leader-elect

It runs in the private cluster. What may run is decided by the object `config` of the kind
InternalServicesConfig in its namespace; several remotes are listed under jobs.remotes.";

#[derive(Debug, Args)]
pub struct JobsArgs {
    /// The kubeconfig of the cluster whose requests are served; read again when it changes
    #[arg(long, visible_alias = "remote-cluster-config-file", value_name = "FILE")]
    remote_kubeconfig: Option<PathBuf>,
    /// Instead: the site whose agent offers that cluster's API, reached through a gateway
    #[arg(long, value_name = "SITE", conflicts_with = "remote_kubeconfig")]
    remote_site: Option<String>,
    /// A key of that site's agent (sha256:…), as `tarbet site list -o json` shows it; may be repeated.
    /// Without one the first that is seen is remembered
    #[arg(long, value_name = "PIN", requires = "remote_site")]
    remote_site_key: Vec<String>,
    /// The name of the remote, part of what makes a run unique; made from its URL or site if absent. Runs
    /// of a remote that had another name are taken over at the start
    #[arg(long, value_name = "NAME")]
    remote_name: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// The kubeconfig of the private cluster; without it KUBECONFIG, the pod's account, ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of configuration, Pipelines and runs
    #[arg(long, env = "SERVICE_NAMESPACE", value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Let one of several replicas work
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    leader_elect: Option<bool>,
    /// The name of the lease
    #[arg(long, value_name = "NAME")]
    leader_election_id: Option<String>,
    /// How long others wait for a silent leader, such as 15s
    #[arg(long, value_parser = go_duration, value_name = "DURATION")]
    lease_duration: Option<Duration>,
    /// How long a leader goes on without renewing
    #[arg(long, value_parser = go_duration, value_name = "DURATION")]
    leader_renew_deadline: Option<Duration>,
    /// How often it renews
    #[arg(long, value_parser = go_duration, value_name = "DURATION")]
    leader_elector_retry_period: Option<Duration>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    zap: ZapArgs,
}

/// How the original's logger is told what to write.
#[derive(Debug, Default, Args)]
struct ZapArgs {
    /// Taken and without effect
    #[arg(long = "zap-devel", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    devel: Option<bool>,
    /// `json` or `console`, as log.format
    #[arg(long = "zap-encoder", hide = true, value_name = "FORMAT")]
    encoder: Option<String>,
    /// `debug`, `info`, `error` or a number, as log.filter
    #[arg(long = "zap-log-level", hide = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Taken and without effect
    #[arg(long = "zap-stacktrace-level", hide = true, value_name = "LEVEL")]
    stacktrace_level: Option<String>,
    /// Taken and without effect
    #[arg(long = "zap-time-encoding", hide = true, value_name = "FORMAT")]
    time_encoding: Option<String>,
}

impl ZapArgs {
    fn apply(&self, log: &mut Log) {
        match self.encoder.as_deref() {
            Some("json") => log.format = Format::Json,
            Some("console") => log.format = Format::Text,
            _ => {}
        }
        match self.log_level.as_deref() {
            Some("debug" | "1") => log.filter = "debug".into(),
            Some("info" | "0") => log.filter = "info".into(),
            Some(level @ ("error" | "warn")) => log.filter = level.into(),
            // Its levels go on counting below debug.
            Some(level) if level.parse::<u8>().is_ok() => log.filter = "trace".into(),
            _ => {}
        }
    }
}

pub fn run(mut config: Config, args: JobsArgs) -> Result<(), Problem> {
    args.zap.apply(&mut config.log);
    let mut settings = merged(config.jobs.clone(), &args)?;
    let listeners = args.listen.choose(&config.observability, in_a_pod())?;
    config.observability.listen = listeners.chosen();
    let observability = config.observability.clone();
    Process::run("jobs", &config, listeners.metrics, Threads::One, |process| async move {
        name_remotes(&mut settings).await?;
        let source = source(settings.kubeconfig.as_deref())?;
        let local = connect(&source).await?;
        let mut remotes = Vec::new();
        for remote in &settings.remotes {
            remotes.push(Remote { name: remote.name.clone(), client: reach(remote, &args.server).await? });
        }
        if let Some(probes) = listeners.probes {
            process.serve_probes(probes, &observability).await?;
        }
        let metrics = JobMetrics::register(&process.metrics);
        let controller =
            Controller::new(settings, local, remotes, metrics, process.health.clone(), identity());
        process.supervisor.spawn(Stage::Work, "jobs controller", |stop| async move {
            controller.run(stop).await;
            Ok(())
        });
        Ok(())
    })
}

fn merged(mut config: JobsConfig, args: &JobsArgs) -> Result<JobsConfig, Problem> {
    if args.remote_kubeconfig.is_some() || args.remote_site.is_some() {
        let (kubeconfig, site) = (args.remote_kubeconfig.clone(), args.remote_site.clone());
        let name = args.remote_name.clone().unwrap_or_default();
        let site_keys = args.remote_site_key.clone();
        config.remotes = vec![RemoteConfig { name, kubeconfig, site, site_keys }];
    }
    config.kubeconfig = args.kubeconfig.clone().or(config.kubeconfig);
    if let Some(namespace) = args.namespace.clone().filter(|namespace| !namespace.is_empty()) {
        config.namespace = namespace;
    }
    config.leader_election.enabled = args.leader_elect.unwrap_or(config.leader_election.enabled);
    if let Some(id) = &args.leader_election_id {
        config.leader_election.id.clone_from(id);
    }
    let times = &mut config.leader_election;
    times.duration = args.lease_duration.unwrap_or(times.duration);
    times.renew = args.leader_renew_deadline.unwrap_or(times.renew);
    times.retry = args.leader_elector_retry_period.unwrap_or(times.retry);
    if config.remotes.is_empty() {
        return Err(Problem::new(&jobs::NO_REMOTE, "The controller does not know whose requests to serve."));
    }
    Ok(config)
}

/// Gives a remote without a name one that no other cluster has: controllers for two of them may
/// share a namespace, and must not take each other's runs for their own.
async fn name_remotes(config: &mut JobsConfig) -> Result<(), Problem> {
    for remote in config.remotes.iter_mut().filter(|remote| remote.name.is_empty()) {
        let place = match (&remote.site, &remote.kubeconfig) {
            (Some(site), _) => site.clone(),
            (None, file) => {
                let source = Source::file(file.clone().unwrap_or_default());
                tarbet_cluster::place(&source).await.map_err(|error| error.problem())?.url
            }
        };
        remote.name = tarbet_jobs::names::remote_name(&place);
    }
    match config.mistakes().first() {
        Some((setting, message)) => {
            Err(Problem::new(&ground::CONFIG_INVALID, format!("jobs.{setting} {message}.")))
        }
        None => Ok(()),
    }
}

/// The private cluster, in the order the original looks for it.
pub fn source(named: Option<&std::path::Path>) -> Result<Source, Problem> {
    let variable = std::env::var("KUBECONFIG").ok();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    Source::choose(named, variable.as_deref(), in_a_pod(), home.as_deref()).map_err(|error| error.problem())
}

/// A client for a cluster.
pub async fn connect(source: &Source) -> Result<Client, Problem> {
    tarbet_cluster::connect(source).await.map_err(|error| error.problem())
}

/// The way to a remote: its kubeconfig, or the site that offers its API.
async fn reach(remote: &RemoteConfig, server: &ServerArgs) -> Result<Client, Problem> {
    match &remote.site {
        Some(site) => by_site(site, &remote.site_keys, server).await,
        None => connect(&Source::file(remote.kubeconfig.clone().unwrap_or_default())).await,
    }
}

/// A client for the cluster whose API a site's agent offers. The agent is let in there, not we.
pub async fn by_site(site: &str, keys: &[String], server: &ServerArgs) -> Result<Client, Problem> {
    let target = Target::service("kubernetes").map_err(|error| {
        Problem::new(&ground::INTERNAL, "The service cannot be named.").because(error.to_string())
    })?;
    let way = super::site::way(server, site, keys).await?;
    Ok(tarbet_cluster::connect_by(move |request| {
        let way = way.clone();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(target.clone());
        async move { Ok(way.call(http::Request::from_parts(parts, Body::new(body))).await?) }
    }))
}

/// Tells this replica from every other one, also from itself before a restart.
pub fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let once = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}_{}", host.trim(), once.trim())
}

fn go_duration(text: &str) -> Result<Duration, String> {
    tarbet_jobs::duration::parse(text).ok_or_else(|| "expected a duration such as 15s or 1m30s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_originals_words_for_logs_are_understood() {
        let mut log = Log::default();
        let said = |encoder: &str, level: &str| ZapArgs {
            encoder: Some(encoder.into()),
            log_level: Some(level.into()),
            ..ZapArgs::default()
        };
        said("json", "error").apply(&mut log);
        assert!(log.format == Format::Json && log.filter == "error");
        said("console", "3").apply(&mut log);
        assert!(log.format == Format::Text && log.filter == "trace");
        said("else", "else").apply(&mut log);
        assert!(
            log.format == Format::Text && log.filter == "trace",
            "what is not understood changes nothing"
        );
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        jobs: JobsArgs,
    }

    /// As the original's own deployment starts it.
    #[test]
    fn the_originals_times_of_the_election_are_taken() {
        let words = [
            "jobs",
            "--health-probe-bind-address=:8081",
            "--metrics-bind-address=127.0.0.1:8080",
            "--leader-elect",
            "--lease-duration=90s",
            "--leader-renew-deadline=1m0s",
            "--leader-elector-retry-period=10s",
            "--remote-cluster-config-file=/etc/remote/kubeconfig",
        ];
        let line = <Line as clap::Parser>::try_parse_from(words).unwrap();
        let config = merged(JobsConfig::default(), &line.jobs).unwrap();
        let times = &config.leader_election;
        assert!(times.enabled);
        assert_eq!([times.duration, times.renew, times.retry].map(|time| time.as_secs()), [90, 60, 10]);
        let wrong = <Line as clap::Parser>::try_parse_from(["jobs", "--lease-duration=soon"]);
        assert!(wrong.is_err());
    }
}
