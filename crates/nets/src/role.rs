//! Starting the roles: what listens, what runs beside it, and in which order it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tarbet_store::Store;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::intake::{self, Limits};
use tarbet_telemetry::{Coded, Health, Metrics, Problem, Stage, Supervisor};
use tokio::net::TcpListener;

use crate::cloud::{Cloud, Guarded, Remote, RemoteSeed};
use crate::config::{ListenConfig, NetsConfig};
use crate::controller::LateController;
use crate::error::Error;
use crate::grpc::{self, Rpc};
use crate::metrics::NetsMetrics;
use crate::orchestrator::{Clouds, Orchestrator};
use crate::tags::{RemoteTags, Sharing, TagWire, Tags};
use crate::trust::{DialTrust, Gate, ListenTrust};
use crate::values::Values;

/// What every role is given.
#[derive(Clone)]
pub struct Surroundings {
    /// Where records are kept.
    pub store: Store,
    /// Whether other processes change them too.
    pub sharing: Sharing,
    /// Counts.
    pub metrics: Metrics,
    /// Tells what works.
    pub health: Health,
    /// Owns the tasks.
    pub supervisor: Supervisor,
}

/// Paraglider's file says where the tag service is. On a host that is none of ours it can only be somebody
/// else's, which is then used; here it is this process that serves it.
pub async fn with_tags_where_they_are(mut config: NetsConfig) -> NetsConfig {
    let ListenConfig { host, port } = config.tag_service.clone();
    let foreign = matches!(TcpListener::bind((host.as_str(), 0)).await,
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable);
    if foreign && config.remote_tags.is_none() {
        tracing::info!(%host, port, "The tag service is on another host, and its tags are used.");
        let wire = generation(&config);
        config.remote_tags = Some(RemoteTags { host, port, wire, trust: DialTrust::default() });
    }
    config
}

/// Whose messages the surroundings speak: the first generation's if plugins do.
fn generation(config: &NetsConfig) -> TagWire {
    let old = config.cloud_plugins.iter().any(|plugin| plugin.wire() == TagWire::Seed);
    if old { TagWire::Seed } else { TagWire::Today }
}

/// Starts the orchestrator with the tag and key-value services, and goes on with what was cut off.
pub async fn nets(config: NetsConfig, around: &Surroundings) -> Result<Orchestrator, Error> {
    let config = config.completed();
    if let Some((setting, message)) = config.mistakes().into_iter().next() {
        return Err(Error::setting(setting, message));
    }
    let part = around.health.part("nets");
    let tags = match &config.remote_tags {
        Some(remote) => Tags::remote(remote)?,
        None => start_tags(around, config.subscriptions_kept).await?,
    };
    let late = LateController::default();
    let mut clouds = Clouds::new();
    for plugin in &config.cloud_plugins {
        let cloud: Arc<dyn Cloud> = match &plugin.local {
            None if plugin.wire() == TagWire::Seed => {
                tracing::info!(cloud = %plugin.name, "The plugin is spoken to as one of the first generation.");
                Arc::new(RemoteSeed::trusting(&plugin.name, &plugin.host, plugin.port, &plugin.trust)?)
            }
            None => Arc::new(Remote::trusting(&plugin.name, &plugin.host, plugin.port, &plugin.trust)?),
            Some(local) => {
                let controller = Arc::new(late.clone());
                let cloud = crate::local::Local::open(&plugin.name, local, &around.store, controller).await?;
                Arc::new(Guarded::new(local.policy.clone(), cloud))
            }
        };
        clouds.insert(plugin.name.clone(), cloud);
    }
    let metrics = NetsMetrics::new(&around.metrics);
    let orchestrator = Orchestrator::open(&config, &around.store, tags.clone(), clouds, metrics).await?;
    if around.sharing == Sharing::Shared {
        orchestrator.share();
    }
    late.set(Arc::new(orchestrator.clone()));

    let trust = &config.security;
    let server = &config.server;
    let rest = Door::bind("nets.server", &server.host, server.port, trust, &["h2", "http/1.1"]).await?;
    let rpc = Door::bind("nets.server", &server.host, server.rpc_port, trust, &["h2"]).await?;
    rpc.serve(around, "orchestrator gRPC", orchestrator.routes());
    // Whoever keeps the tags serves them.
    if config.remote_tags.is_none() {
        let (at, seed) = (&config.tag_service, config.seed_tag_service.as_ref());
        match generation(&config) {
            // Both generations share one path, so a port is for one of them.
            TagWire::Seed if seed.is_none() => {
                let door = Door::bind("nets.tagService", &at.host, at.port, trust, &["h2"]).await?;
                door.serve(around, "seed tag service", tags.seed());
            }
            _ => listen_tags(around, &tags, at, seed, trust).await?,
        }
    }
    let kv = Door::bind("nets.kvStore", &config.kv_store.host, config.kv_store.port, trust, &["h2"]).await?;
    kv.serve(around, "key-value service", orchestrator.values().service());
    let router = rest.gate.rest(orchestrator.router());
    around.supervisor.spawn(Stage::Intake, "orchestrator REST", |stop| async move {
        let failed = |error: std::io::Error| {
            Problem::new(&ground::TASK_FAILED, "The REST listener failed.").because(error.to_string())
        };
        let callers = rest.gate.connections(rest.listener, stop.clone()).map_err(failed)?;
        intake::serve(callers, router, Limits::default(), stop).await;
        Ok(())
    });
    let finishing = orchestrator.clone();
    around.supervisor.spawn(Stage::Work, "operations", |stop| async move {
        stop.cancelled().await;
        finishing.finish().await;
        Ok(())
    });
    let following = orchestrator.clone();
    around.supervisor.spawn(Stage::Work, "tags that are followed", |stop| async move {
        following.keep_in_line(stop).await;
        Ok(())
    });
    let flags = orchestrator.clone();
    around.supervisor.spawn(Stage::Work, "cloud flags", |stop| async move {
        tokio::select! {
            () = flags.send_flags() => stop.cancelled().await,
            () = stop.cancelled() => {}
        }
        Ok(())
    });
    match around.sharing {
        Sharing::Alone => {
            let resumed = orchestrator.resume().await?;
            tracing::info!(clouds = config.cloud_plugins.len(), resumed, "The orchestrator is up.");
        }
        Sharing::Shared => {
            let (leading, lease) = (orchestrator.clone(), config.leader_lease);
            let reached_at =
                format!("{}://{}:{}", config.security.scheme(), config.server.host, config.server.port);
            // Last to end, so that operations can be finished under the lease.
            around.supervisor.spawn(Stage::Upkeep, "lease of the orchestrators", |stop| async move {
                leading.lead(&reached_at, lease, stop).await.map_err(|error| error.problem())
            });
        }
    }
    keep_ready(around, part);
    Ok(orchestrator)
}

/// Starts the tag service alone, on today's wire, and on the first generation's if told to.
pub async fn tags(
    today: Option<&ListenConfig>,
    seed: Option<&ListenConfig>,
    kv: Option<&ListenConfig>,
    trust: &ListenTrust,
    subscriptions_kept: Duration,
    around: &Surroundings,
) -> Result<(), Error> {
    let part = around.health.part("tags");
    let tags = start_tags(around, subscriptions_kept).await?;
    if let Some(today) = today {
        listen_tags(around, &tags, today, None, trust).await?;
    }
    if let Some(seed) = seed {
        let door = Door::bind("seed tag service", &seed.host, seed.port, trust, &["h2"]).await?;
        door.serve(around, "seed tag service", tags.seed());
    }
    if let Some(kv) = kv {
        let door = Door::bind("key-value service", &kv.host, kv.port, trust, &["h2"]).await?;
        door.serve(around, "key-value service", Values::new(&around.store)?.service());
    }
    keep_ready(around, part);
    Ok(())
}

/// Starts a cloud plugin.
pub async fn cloud(
    name: &str,
    cloud: Arc<dyn Cloud>,
    at: &ListenConfig,
    trust: &ListenTrust,
    around: &Surroundings,
) -> Result<SocketAddr, Error> {
    let part = around.health.part(format!("cloud {name}"));
    let door = Door::bind("cloud.listen", &at.host, at.port, trust, &["h2"]).await?;
    let address = door.listener.local_addr().map_err(|error| Error::Internal(error.to_string()))?;
    door.serve(around, "cloud plugin", crate::cloud::serve(cloud, name));
    keep_ready(around, part);
    Ok(address)
}

async fn start_tags(around: &Surroundings, subscriptions_kept: Duration) -> Result<Tags, Error> {
    let tags = Tags::open_keeping(&around.store, around.sharing, subscriptions_kept).await?;
    let following = tags.clone();
    around.supervisor.spawn(Stage::Work, "tag follower", |stop| async move {
        following.follow(stop).await;
        Ok(())
    });
    Ok(tags)
}

async fn listen_tags(
    around: &Surroundings,
    tags: &Tags,
    today: &ListenConfig,
    seed: Option<&ListenConfig>,
    trust: &ListenTrust,
) -> Result<(), Error> {
    let door = Door::bind("nets.tagService", &today.host, today.port, trust, &["h2"]).await?;
    door.serve(around, "tag service", tags.today());
    if let Some(seed) = seed {
        let door = Door::bind("nets.seedTagService", &seed.host, seed.port, trust, &["h2"]).await?;
        door.serve(around, "seed tag service", tags.seed());
    }
    Ok(())
}

/// A bound listener and what it asks of callers.
struct Door {
    listener: TcpListener,
    gate: Gate,
}

impl Door {
    /// Plaintext, and callers without proof, stay on this machine.
    async fn bind(
        setting: &str,
        host: &str,
        port: u16,
        trust: &ListenTrust,
        alpn: &[&str],
    ) -> Result<Self, Error> {
        let refused = |cause: std::io::Error| -> Error {
            let message = format!("The listener of {setting} cannot bind {host}:{port}.");
            let problem = Problem::new(&ground::ADDRESS_IN_USE, message).because(cause.to_string());
            if setting != "nets.tagService" {
                return problem.into();
            }
            let advice = "stop the other process or choose another address; if it is the tag service to be used, name \
                          it in `remoteTags`";
            problem.advising(advice).into()
        };
        let mut addresses = tokio::net::lookup_host((host, port)).await.map_err(refused)?;
        let address =
            addresses.next().ok_or_else(|| Error::setting(setting, format!("`{host}` has no address")))?;
        let gate = trust.gate(setting, address, alpn)?;
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        tracing::info!(listener = setting, %address, "Listening.");
        Ok(Self { listener, gate })
    }

    fn serve(self, around: &Surroundings, name: &'static str, service: impl Rpc) {
        around.supervisor.spawn(Stage::Intake, name, |stop| async move {
            let served = grpc::serve_behind(&self.gate, self.listener, service, stop).await;
            served.map_err(|error| error.problem())
        });
    }
}

/// The part stays listed, and ready, until the process drains.
fn keep_ready(around: &Surroundings, part: tarbet_telemetry::health::Part) {
    part.ready();
    around.supervisor.spawn(Stage::Upkeep, "readiness", |stop| async move {
        stop.cancelled().await;
        part.draining();
        Ok(())
    });
}
