//! Starting the roles: what listens, what runs beside it, and in which order it stops.

use std::net::SocketAddr;
use std::sync::Arc;

use tarbet_store::Store;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Health, Metrics, Problem, Stage, Supervisor};
use tokio::net::TcpListener;
use tonic::service::Routes;

use crate::cloud::{Cloud, Guarded, Remote};
use crate::config::{ListenConfig, NetsConfig};
use crate::controller::LateController;
use crate::error::Error;
use crate::grpc;
use crate::metrics::NetsMetrics;
use crate::orchestrator::{Clouds, Orchestrator};
use crate::tags::{Sharing, Tags};
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

/// Starts the orchestrator with the tag and key-value services, and goes on with what was cut off.
pub async fn nets(config: NetsConfig, around: &Surroundings) -> Result<Orchestrator, Error> {
    let config = config.completed();
    if let Some((setting, message)) = config.mistakes().into_iter().next() {
        return Err(Error::invalid(setting, message));
    }
    let part = around.health.part("nets");
    let tags = start_tags(around).await?;
    let late = LateController::default();
    let mut clouds = Clouds::new();
    for plugin in &config.cloud_plugins {
        let cloud: Arc<dyn Cloud> = match &plugin.local {
            None => Arc::new(Remote::new(&plugin.name, &plugin.host, plugin.port)?),
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
    late.set(Arc::new(orchestrator.clone()));

    let rest = bind("nets.server", &config.server.host, config.server.port).await?;
    let rpc = bind("nets.server", &config.server.host, config.server.rpc_port).await?;
    listen(around, "orchestrator gRPC", rpc, orchestrator.routes());
    listen_tags(around, &tags, &config.tag_service, config.seed_tag_service.as_ref()).await?;
    let kv = bind("nets.kvStore", &config.kv_store.host, config.kv_store.port).await?;
    listen(around, "key-value service", kv, Routes::new(orchestrator.values().service()));
    let router = orchestrator.router();
    around.supervisor.spawn(Stage::Intake, "orchestrator REST", |stop| async move {
        let served = axum::serve(rest, router).with_graceful_shutdown(stop.cancelled_owned()).await;
        served.map_err(|error| {
            Problem::new(&ground::TASK_FAILED, "The REST listener failed.").because(error.to_string())
        })
    });
    let finishing = orchestrator.clone();
    around.supervisor.spawn(Stage::Work, "operations", |stop| async move {
        stop.cancelled().await;
        finishing.finish().await;
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
    let resumed = orchestrator.resume().await?;
    tracing::info!(clouds = config.cloud_plugins.len(), resumed, "The orchestrator is up.");
    keep_ready(around, part);
    Ok(orchestrator)
}

/// Starts the tag service alone, on today's wire, and on the first generation's if told to.
pub async fn tags(
    today: Option<&ListenConfig>,
    seed: Option<&ListenConfig>,
    kv: Option<&ListenConfig>,
    around: &Surroundings,
) -> Result<(), Error> {
    let part = around.health.part("tags");
    let tags = start_tags(around).await?;
    if let Some(today) = today {
        listen_tags(around, &tags, today, None).await?;
    }
    if let Some(seed) = seed {
        let listener = bind("seed tag service", &seed.host, seed.port).await?;
        listen(around, "seed tag service", listener, Routes::new(tags.seed()));
    }
    if let Some(kv) = kv {
        let listener = bind("key-value service", &kv.host, kv.port).await?;
        listen(around, "key-value service", listener, Routes::new(Values::new(&around.store)?.service()));
    }
    keep_ready(around, part);
    Ok(())
}

/// Starts a cloud plugin.
pub async fn cloud(
    name: &str,
    cloud: Arc<dyn Cloud>,
    at: &ListenConfig,
    around: &Surroundings,
) -> Result<SocketAddr, Error> {
    let part = around.health.part(format!("cloud {name}"));
    let listener = bind("cloud.listen", &at.host, at.port).await?;
    let address = listener.local_addr().map_err(|error| Error::Internal(error.to_string()))?;
    listen(around, "cloud plugin", listener, crate::cloud::serve(cloud, name));
    keep_ready(around, part);
    Ok(address)
}

async fn start_tags(around: &Surroundings) -> Result<Tags, Error> {
    let tags = Tags::open(&around.store, around.sharing).await?;
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
) -> Result<(), Error> {
    let listener = bind("nets.tagService", &today.host, today.port).await?;
    listen(around, "tag service", listener, Routes::new(tags.today()));
    if let Some(seed) = seed {
        let listener = bind("nets.seedTagService", &seed.host, seed.port).await?;
        listen(around, "seed tag service", listener, Routes::new(tags.seed()));
    }
    Ok(())
}

fn listen(around: &Surroundings, name: &'static str, listener: TcpListener, routes: Routes) {
    around.supervisor.spawn(Stage::Intake, name, |stop| async move {
        grpc::serve(listener, routes, stop).await.map_err(|error| error.problem())
    });
}

/// Binds a listener. Plaintext stays on this machine.
async fn bind(setting: &str, host: &str, port: u16) -> Result<TcpListener, Error> {
    let refused = |cause: std::io::Error| -> Error {
        Problem::new(&ground::ADDRESS_IN_USE, format!("The listener of {setting} cannot bind {host}:{port}."))
            .because(cause.to_string())
            .into()
    };
    let mut addresses = tokio::net::lookup_host((host, port)).await.map_err(refused)?;
    let address =
        addresses.next().ok_or_else(|| Error::invalid(setting, format!("`{host}` has no address")))?;
    grpc::refuse_beyond_loopback(setting, address)?;
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    tracing::info!(listener = setting, %address, "Listening.");
    Ok(listener)
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
