//! The parts at the edge, put together from their settings: the API server and the plugins.

mod config;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use ipnet::IpNet;
use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use tarbet_cluster::Reached;
use tarbet_identity::tls::{Acceptor, CaSource, ClientCerts, CredentialSource, ServerTls};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Health, Metrics, Problem, Stage, Supervisor, problem};
use tokio_util::sync::CancellationToken;

pub use config::{EdgeConfig, Environment, JobPer, Part, Tls, load};

use crate::batch::runtime::Runtime;
use crate::batch::script::ScriptConfig;
use crate::batch::tsocks::Tsocks;
use crate::batch::{Batch, BatchConfig, BatchSystem};
use crate::care::Cared;
use crate::docker::{Docker, DockerConfig};
use crate::interlink::{self, InterlinkConfig, Upstream};
use crate::metrics::{self, Calls};
use crate::plan::Pull;
use crate::plugin::{self, PluginConfig};
use crate::process::Processes;
use crate::record::Records;
use crate::runner::Runner;
use crate::serve::{Bind, Guard, Listener, serve};
use crate::slurm::flags::FlagConfig;
use crate::slurm::{Slurm, SlurmConfig};

/// How often certificate files are looked at.
const FOLLOW_CERTIFICATES: Duration = Duration::from_secs(30);
/// How often a plugin tells its health.
const HEALTH: Duration = Duration::from_secs(2);
/// How often the API server asks for its plugin's: interLink's own rhythm, since each question may
/// cost the plugin a process.
const PLUGIN_HEALTH: Duration = Duration::from_secs(10);
/// The same while it does not answer.
const PLUGIN_AWAY: Duration = Duration::from_secs(2);

impl Part {
    /// The port it listens on unless told.
    pub fn port(self) -> u16 {
        match self {
            Self::Interlink => 3000,
            Self::Docker => 4000,
            Self::Slurm => 4001,
            Self::Process => 4002,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Interlink => "interlink",
            Self::Docker => "plugin docker",
            Self::Slurm => "plugin slurm",
            Self::Process => "plugin process",
        }
    }
}

/// Starts a part; it goes on under `supervisor`. Gives where it listens.
pub async fn start(
    part: Part,
    config: EdgeConfig,
    environment: &Environment,
    supervisor: &Supervisor,
    metrics: &Metrics,
    health: &Health,
) -> Result<String, Problem> {
    start_telling(part, config, environment, supervisor, metrics, health, Reached::default()).await
}

/// The same, telling which points a plugin passes.
pub async fn start_telling(
    part: Part,
    config: EdgeConfig,
    environment: &Environment,
    supervisor: &Supervisor,
    metrics: &Metrics,
    health: &Health,
    reached: Reached,
) -> Result<String, Problem> {
    let (guard, tls) = (guard(&config)?, tls(&config)?);
    let bind = bind(part, &config)?;
    refuse_strangers(&bind, &guard, &config)?;
    let listener = Listener::bind(&bind).await?;
    let (name, told) = (part.name(), health.part(part.name()));
    // Ends after the listener: calls that still run need it.
    let stop = CancellationToken::new();
    let calls = Calls::new(metrics, if part == Part::Interlink { "interlink" } else { "plugin" });
    let router = if part == Part::Interlink {
        let upstream = upstream(&config)?;
        let up = metrics.register(
            "tarbet_interlink_plugin_up",
            "Whether the plugin answers, and what runs its pods does",
            Gauge::default(),
        );
        let (asked, plugin) = (upstream.clone(), health.part("plugin"));
        supervisor.spawn(Stage::Observe, "plugin health", |end| watch_plugin(asked, plugin, up, end));
        interlink_router(&config, upstream, stop.clone()).await?
    } else {
        let runner = open_telling(part, &config, environment, stop.clone(), reached)?;
        let runner: Arc<dyn Runner> = if config.enable_probes || part == Part::Docker {
            Arc::new(Cared::new(runner, stop.clone()))
        } else {
            runner
        };
        let up = metrics.register(
            "tarbet_plugin_runtime_up",
            "Whether what runs the pods answers",
            Gauge::default(),
        );
        let pods = metrics.register("tarbet_plugin_pods", "Pods that are known", Gauge::default());
        supervisor.spawn(Stage::Observe, format!("{name} health"), |end| {
            watch_health(Arc::clone(&runner), health.part(format!("{name} runtime")), (up, pods), end)
        });
        plugin::router_with(
            runner,
            PluginConfig { export: config.export_pod_data, taints: config.taints.clone() },
        )
    };
    let router = router.layer(axum::middleware::from_fn_with_state(calls, metrics::count));
    if let Some(tls) = tls.clone() {
        supervisor.spawn(Stage::Upkeep, format!("{name} certificates"), |end| async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = tls.follow(tokio::time::interval(FOLLOW_CERTIFICATES), Timestamp::now) => {}
            }
            Ok(())
        });
    }
    let address = listener.name();
    tracing::info!(part = name, address = %address, tls = tls.is_some(), "Listening.");
    supervisor.spawn(Stage::Intake, name, |end| async move {
        told.ready();
        serve(listener, tls, guard, router, end).await;
        stop.cancel();
        Ok(())
    });
    Ok(address)
}

fn upstream(config: &EdgeConfig) -> Result<Upstream, Problem> {
    let port = if config.sidecar_port.is_empty() {
        Part::Docker.port().to_string()
    } else {
        config.sidecar_port.clone()
    };
    Upstream::new(&config.sidecar_url, &port)
}

async fn interlink_router(
    config: &EdgeConfig,
    upstream: Upstream,
    stop: CancellationToken,
) -> Result<Router, Problem> {
    let settings = InterlinkConfig {
        root: config.data_root_folder.clone(),
        export: config.export_pod_data,
        kubeconfig: config.custom_kubeconf.clone(),
        body: config.plugin_body,
    };
    interlink::router(settings, upstream, stop).await
}

/// Opens what runs the pods of a plugin.
pub fn open(
    part: Part,
    config: &EdgeConfig,
    environment: &Environment,
    stop: CancellationToken,
) -> Result<Arc<dyn Runner>, Problem> {
    open_telling(part, config, environment, stop, Reached::default())
}

fn open_telling(
    part: Part,
    config: &EdgeConfig,
    environment: &Environment,
    stop: CancellationToken,
    reached: Reached,
) -> Result<Arc<dyn Runner>, Problem> {
    let opened: Result<Arc<dyn Runner>, _> = match part {
        Part::Interlink | Part::Docker => {
            Docker::open_telling(docker(config)?, stop, reached).map(|docker| docker as _)
        }
        Part::Slurm => {
            let system = Slurm::new(SlurmConfig {
                sbatch: config.sbatch_path.clone(),
                scancel: config.scancel_path.clone(),
                squeue: config.squeue_path.clone(),
                srun: config.srun_path.clone(),
                sinfo: config.sinfo_path.clone(),
                resources: config.resource_script_path.clone().filter(|path| !path.as_os_str().is_empty()),
                environment: config::for_slurm(environment),
                all_users: rustix::process::geteuid().is_root(),
            });
            open_batch(batch(config)?, Arc::new(system), stop, reached)
        }
        Part::Process => {
            let root =
                Records::open(&config.data_root_folder).map_err(|error| error.problem())?.root().to_owned();
            let system = Processes::new(root, config.bash_path.clone());
            let config = EdgeConfig {
                container_runtime: "process".into(),
                // A machine has no queue: one session holds all containers of a pod.
                job_per: JobPer::Pod,
                ..config.clone()
            };
            open_batch(batch(&config)?, Arc::new(system), stop, reached)
        }
    };
    opened.map_err(|error| error.problem())
}

fn open_batch(
    config: BatchConfig,
    system: Arc<dyn BatchSystem>,
    stop: CancellationToken,
    reached: Reached,
) -> Result<Arc<dyn Runner>, crate::error::RunError> {
    let batch = Batch::open_telling(config, system, stop, reached)?;
    Ok(batch)
}

fn docker(config: &EdgeConfig) -> Result<DockerConfig, Problem> {
    let pull = match config.image_pull_policy.as_str() {
        "" => None,
        "Always" => Some(Pull::Always),
        "IfNotPresent" => Some(Pull::IfNotPresent),
        "Never" => Some(Pull::Never),
        other => {
            return Err(Problem::new(&ground::CONFIG_INVALID, format!("ImagePullPolicy is `{other}`."))
                .because("it takes Always, IfNotPresent or Never"));
        }
    };
    Ok(DockerConfig {
        host: config.docker_host.clone(),
        root: config.data_root_folder.clone(),
        policy: config.policy.clone(),
        network: config.docker_network.clone(),
        dns: config.docker_dns.clone(),
        pull,
    })
}

fn batch(config: &EdgeConfig) -> Result<BatchConfig, Problem> {
    let needed = [
        ("TsocksPath", config.tsocks_path.as_os_str().is_empty()),
        ("TsocksLoginNode", config.tsocks_login_node.is_empty()),
    ];
    if let Some((name, _)) = needed.into_iter().find(|(_, empty)| config.tsocks && *empty) {
        return Err(Problem::new(&ground::CONFIG_INVALID, format!("Tsocks is true and {name} is empty."))
            .because("jobs reach the outside by this library and this login node"));
    }
    let singularity = || Runtime::Singularity {
        path: config.singularity_path.clone(),
        options: config.singularity_default_options.clone(),
    };
    let runtime = match config.container_runtime.as_str() {
        "enroot" => Runtime::Enroot {
            path: config.enroot_path.clone(),
            options: config.enroot_default_options.clone(),
        },
        "podman" => Runtime::Podman { path: config.podman_path.clone(), options: Vec::new() },
        "process" => Runtime::Process { bwrap: config.bwrap_path.clone() },
        "apptainer" if config.singularity_path == "singularity" => Runtime::Singularity {
            path: "apptainer".into(),
            options: config.singularity_default_options.clone(),
        },
        _ => singularity(),
    };
    let tsocks = config.tsocks.then(|| Tsocks {
        library: config.tsocks_path.clone(),
        login_node: config.tsocks_login_node.clone(),
    });
    Ok(BatchConfig {
        root: config.data_root_folder.clone(),
        policy: config.policy.clone(),
        script: ScriptConfig {
            bash: config.bash_path.clone(),
            prefix: config.command_prefix.clone(),
            runtime,
            image_prefix: config.image_prefix.clone(),
            shared: config.shared_fs,
            tsocks,
            kill_wait: Duration::from_secs(config.kill_wait_seconds),
        },
        flags: FlagConfig {
            flavors: config.flavors.clone(),
            default_flavor: config.default_flavor.clone(),
            default_uid: config.default_uid,
        },
        interval: Duration::from_secs(config.status_seconds.max(1)),
        per_container: config.job_per == JobPer::Container,
    })
}

async fn watch_health(
    runner: Arc<dyn Runner>,
    told: tarbet_telemetry::health::Part,
    (up, pods): (Gauge, Gauge),
    end: CancellationToken,
) -> Result<(), Problem> {
    loop {
        let status = runner.ping().await.status;
        up.set(i64::from(status == "ok"));
        match status.as_str() {
            "ok" => told.ready(),
            away => told.failing(steady(away)),
        }
        if let Ok(known) = runner.list().await {
            pods.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        }
        tokio::select! {
            () = end.cancelled() => return Ok(()),
            () = tokio::time::sleep(HEALTH) => {}
        }
    }
}

/// The same words as long as it is the same: without the age, so that it is logged once.
fn steady(status: &str) -> String {
    match status.split_once("away for ").and_then(|(_, rest)| rest.split_once(" s: ")) {
        Some((_, reason)) => format!("away: {reason}"),
        None => status.to_owned(),
    }
}

/// Says of the API server that it can work while its plugin answers: it holds no pods itself.
async fn watch_plugin(
    upstream: Upstream,
    told: tarbet_telemetry::health::Part,
    up: Gauge,
    end: CancellationToken,
) -> Result<(), Problem> {
    loop {
        let answers = interlink::plugin_health(&upstream).await;
        up.set(i64::from(answers.is_ok()));
        let pause = match answers {
            Ok(()) => {
                told.ready();
                PLUGIN_HEALTH
            }
            Err(reason) => {
                told.failing(steady(&reason));
                PLUGIN_AWAY
            }
        };
        tokio::select! {
            () = end.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn guard(config: &EdgeConfig) -> Result<Guard, Problem> {
    let guard = config.accepted_tokens_file.clone().map_or_else(Guard::open, Guard::tokens);
    if config.allowed_callers.is_empty() {
        return Ok(guard);
    }
    let network = |text: &String| {
        let one = || text.parse::<IpAddr>().map(IpNet::from);
        text.parse::<IpNet>().or_else(|_| one()).map_err(|_| {
            Problem::new(&ground::CONFIG_INVALID, format!("AllowedCallers has `{text}`."))
                .because("it takes addresses and networks, such as 10.1.2.3 or 10.1.0.0/16")
        })
    };
    Ok(guard.only_from(config.allowed_callers.iter().map(network).collect::<Result<_, _>>()?))
}

fn tls(config: &EdgeConfig) -> Result<Option<Acceptor>, Problem> {
    let Tls { enabled, cert_file, key_file, ca_cert_file } = &config.tls;
    if !enabled {
        return Ok(None);
    }
    let (Some(certificate), Some(key)) = (cert_file.clone(), key_file.clone()) else {
        return Err(Problem::new(&ground::CONFIG_INVALID, "TLS is enabled without a certificate.")
            .because("TLS.CertFile or TLS.KeyFile is missing"));
    };
    let clients = ca_cert_file
        .clone()
        .map_or(ClientCerts::NotAsked, |file| ClientCerts::Required(CaSource::File(file)));
    let server = ServerTls::new(CredentialSource::Files { certificate, key })
        .clients(clients)
        .alpn(["h2", "http/1.1"]);
    server.build(Timestamp::now()).map(Some).map_err(|error| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "The certificate of the listener cannot be used.")
            .because(problem::chain(&error))
    })
}

/// Where a part listens, as its settings say.
fn bind(part: Part, config: &EdgeConfig) -> Result<Bind, Problem> {
    let (address, port) = match part {
        Part::Interlink => (&config.interlink_address, &config.interlink_port),
        _ if !config.socket.is_empty() => (&config.socket, &config.sidecar_port),
        _ => (&config.sidecar_address, &config.sidecar_port),
    };
    let wrong = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, format!("`{address}` is no address to listen on."))
            .because(cause)
    };
    if let Some(path) = address.strip_prefix("unix://") {
        return Ok(Bind::Unix(PathBuf::from(path)));
    }
    let port = if port.is_empty() {
        part.port()
    } else {
        port.parse().map_err(|_| wrong(format!("`{port}` is no port")))?
    };
    let host = address.split_once("://").map_or(address.as_str(), |(_, host)| host).trim_end_matches('/');
    if let Ok(whole) = host.parse::<SocketAddr>() {
        return Ok(Bind::Tcp(whole));
    }
    let ip = match host {
        "" | "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => {
            if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
                ip
            } else {
                let found = (host, port).to_socket_addrs().map_err(|error| wrong(error.to_string()))?.next();
                found.ok_or_else(|| wrong("the name has no address".into()))?.ip()
            }
        }
    };
    Ok(Bind::Tcp(SocketAddr::new(ip, port)))
}

/// Without tokens, certificates or named callers only this machine may call.
fn refuse_strangers(bind: &Bind, guard: &Guard, config: &EdgeConfig) -> Result<(), Problem> {
    let certificates = config.tls.enabled && config.tls.ca_cert_file.is_some();
    let named = !config.allowed_callers.is_empty();
    match bind {
        Bind::Tcp(address) if !address.ip().is_loopback() && guard.is_open() && !certificates && !named => {
            Err(Problem::new(&ground::CONFIG_INVALID, format!("{address} would be open to everybody."))
                .because("neither AcceptedTokensFile nor TLS.CACertFile nor AllowedCallers is set")
                .advising("set one of them, or listen on loopback or a unix socket"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_through_a_login_node_needs_both_of_its_ends() {
        let whole = EdgeConfig {
            tsocks: true,
            tsocks_path: "/usr/lib/libtsocks.so".into(),
            tsocks_login_node: "login01".into(),
            ..Default::default()
        };
        assert!(batch(&whole).is_ok());
        let no_node = EdgeConfig { tsocks_login_node: String::new(), ..whole.clone() };
        assert!(batch(&no_node).unwrap_err().to_string().contains("TsocksLoginNode"));
        let no_path = EdgeConfig { tsocks_path: "".into(), ..whole.clone() };
        assert!(batch(&no_path).unwrap_err().to_string().contains("TsocksPath"));
        assert!(batch(&EdgeConfig { tsocks: false, ..no_path }).is_ok());
    }
}
