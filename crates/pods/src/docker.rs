//! Runs pods as containers of a Docker daemon.
//!
//! A pod has one container for each of its own, and a pause container that holds their network; where
//! one container runs once, the network is its own and nothing has to hold it. What Docker has, by
//! labels, and what is recorded in the data root are the whole state: after a crash everything goes
//! on from there. Names are unique, so Docker itself refuses a second one.

mod create;
mod drive;
mod engine;
mod exec;
mod image;
pub mod machine;
mod marks;
mod observe;
mod pause;
mod pod;
mod replies;
mod status;
mod usage;

pub(crate) use replies::read_any as read_any_reply;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bollard::query_parameters::LogsOptions;
use bytes::Bytes;
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tarbet_cluster::Reached;
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::error::RunError;
use crate::folder::{lay_out, lay_out_volume};
use crate::plan::{Policy, Pull, Restart, plan};
use crate::record::{Found, Records};
use crate::runner::{Known, LogStream, Runner, Session, Turn};
use crate::wire::{CreateReply, ExecRequest, LogRequest, PingReply, PodStatus, PodUsage, RetrievedPod};
use engine::{Engine, failed};
use machine::{Slot, State};
use observe::Observed;
use pod::{Inner, Pod};
use status::{Facts, container_status};

/// All last messages of a pod together.
const MESSAGES_LIMIT: usize = 12_288;
/// Changes that a slow listener may be behind before it has to read everything again.
const CHANGES: usize = 1024;
/// The longest wait between two tries to remove a pod.
const DELETE_RETRY: Duration = Duration::from_secs(15);
/// Containers that are made and started at once. All of them wait for the same locks of the kernel, and the
/// more wait the longer each holds them: a thousand pods at a time would end none of them.
const STARTS: usize = 16;
/// What a delete waits for beyond the pod's own grace before it says that it is not done yet.
const DELETE_MARGIN: Duration = Duration::from_secs(30);

/// How to run pods with Docker.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// `unix:///path` or `tcp://address:port`.
    pub host: String,
    /// Where pods' files are; the daemon must see the same folder.
    pub root: PathBuf,
    /// What pods may ask for.
    pub policy: Policy,
    /// The network of pods: `bridge`, `none` or one of Docker's own.
    pub network: String,
    /// Name servers of pods; Docker's own if empty.
    pub dns: Vec<String>,
    /// When images are pulled, whatever pods say.
    pub pull: Option<Pull>,
}

/// A [`Runner`] on a Docker daemon.
pub struct Docker {
    config: DockerConfig,
    engine: Arc<Engine>,
    records: Records,
    instance: String,
    observed: Observed,
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    /// One pod is taken in at a time: a second create of the same one then finds the first.
    intake: Arc<tokio::sync::Mutex<()>>,
    /// A turn for each container that may be made and started now.
    starts: Semaphore,
    changes: broadcast::Sender<String>,
    stop: CancellationToken,
    /// Itself, for the tasks that calls begin.
    me: Weak<Self>,
}

impl Docker {
    /// Takes up the pods on disk and begins to observe the daemon, which may be away.
    pub fn open(config: DockerConfig, stop: CancellationToken) -> Result<Arc<Self>, RunError> {
        Self::open_telling(config, stop, Reached::default())
    }

    /// The same, telling which points it passes.
    pub fn open_telling(
        config: DockerConfig,
        stop: CancellationToken,
        reached: Reached,
    ) -> Result<Arc<Self>, RunError> {
        let records = Records::open(&config.root)?.telling(reached);
        // Two plugins on one daemon tell their pods apart by where they keep them.
        let digest = Sha256::digest(records.root().as_os_str().as_encoded_bytes());
        let instance = hex(&digest[..8]);
        let (changes, _) = broadcast::channel(CHANGES);
        let docker = Arc::new_cyclic(|me| Self {
            engine: Arc::new(Engine::new(config.host.clone())),
            observed: Observed::new(instance.clone(), changes.clone()),
            pods: Mutex::default(),
            intake: Arc::default(),
            starts: Semaphore::new(STARTS),
            config,
            records,
            instance,
            changes,
            stop,
            me: me.clone(),
        });
        for found in docker.records.load(&docker.config.policy)? {
            let deleted = found.deleted;
            let pod = docker.take_in(found);
            tracing::info!(pod = %pod.id, deleted, "Took up a pod.");
            if deleted {
                docker.begin_delete(&pod, None);
            }
        }
        tokio::spawn(docker.observed.clone().run(Arc::clone(&docker.engine), docker.stop.clone()));
        tokio::spawn(Arc::clone(&docker).dispatch());
        Ok(docker)
    }

    /// Wakes the drivers of pods that changed.
    async fn dispatch(self: Arc<Self>) {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = self.stop.cancelled() => return,
                change = changes.recv() => change,
            };
            match change {
                Ok(uid) if !uid.is_empty() => {
                    if let Some(pod) = self.pod(&uid) {
                        pod.wake.notify_one();
                    }
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.lock().values().for_each(|pod| pod.wake.notify_one());
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    /// Who is told of the points that are passed.
    fn reached(&self) -> &Reached {
        self.records.reached()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.lock().get(uid).cloned()
    }

    fn known_pod(&self, uid: &str) -> Result<Arc<Pod>, RunError> {
        self.pod(uid).ok_or_else(|| RunError::UnknownPod(uid.to_owned()))
    }

    /// Keeps a pod in mind and drives it, unless it is being removed.
    fn take_in(self: &Arc<Self>, found: Found) -> Arc<Pod> {
        let pod = Arc::new(Pod {
            id: found.known.id().clone(),
            folder: found.folder,
            inner: Mutex::new(Inner {
                known: Arc::new(found.known),
                generations: found.generations,
                waiting: HashMap::new(),
                messages: HashMap::new(),
                ended: HashMap::new(),
                deleting: false,
            }),
            turn: tokio::sync::Mutex::default(),
            wake: Notify::new(),
            stop: self.stop.child_token(),
            gone: CancellationToken::new(),
        });
        self.lock().insert(pod.id.uid.clone(), Arc::clone(&pod));
        if !found.deleted {
            tokio::spawn(Arc::clone(self).drive(Arc::clone(&pod)));
        }
        pod
    }

    /// Takes in a pod whose turn it is, unless it is here.
    async fn begin(self: Arc<Self>, known: Known) -> Result<(), RunError> {
        if self.records.is_deleted(&known.plan.id.uid) {
            return Err(RunError::Gone(known.plan.id.uid));
        }
        if self.pod(&known.plan.id.uid).is_some() {
            return Ok(());
        }
        self.engine.api().await?;
        let records = self.records.clone();
        let found = tokio::task::spawn_blocking(move || {
            let folder = records.folder(&known)?;
            // The record last: a pod that is recorded is driven, and its files are not written again.
            let laid = lay_out(&folder, &known.plan).map_err(RunError::folder("write the pod's files"));
            let laid = laid.and_then(|()| {
                records.reached().at("files written");
                records.save(&folder, &known, &HashMap::new())
            });
            if let Err(error) = laid {
                let _ = records.forget(&known);
                return Err(error);
            }
            Ok(Found { known, folder, generations: HashMap::new(), deleted: false })
        });
        let found = found.await.map_err(|_| RunError::Ending)??;
        self.take_in(found);
        Ok(())
    }

    /// Begins to remove a pod, once; it goes on until all is gone, whoever waits for it.
    fn begin_delete(self: &Arc<Self>, pod: &Arc<Pod>, grace: Option<Duration>) {
        if std::mem::replace(&mut pod.lock().deleting, true) {
            return;
        }
        pod.stop.cancel();
        let (docker, pod) = (Arc::clone(self), Arc::clone(pod));
        tokio::spawn(async move {
            let grace = grace.unwrap_or(pod.known().plan.grace);
            let mut wait = Duration::from_millis(500);
            while let Err(error) = docker.remove(&pod, grace).await {
                tracing::warn!(pod = %pod.id, error = %error, "A pod could not be removed yet.");
                tokio::select! {
                    () = docker.stop.cancelled() => return,
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(DELETE_RETRY),
                }
            }
            docker.lock().remove(&pod.id.uid);
            pod.gone.cancel();
            let _ = docker.changes.send(pod.id.uid.clone());
            tracing::info!(pod = %pod.id, "Removed a pod.");
        });
    }

    async fn remove(&self, pod: &Pod, grace: Duration) -> Result<(), RunError> {
        let _turn = pod.turn.lock().await;
        let api = self.engine.api().await?;
        let (known, generations) = (pod.known(), pod.lock().generations.clone());
        let plan = &known.plan;
        let names: Vec<String> = plan
            .all()
            .flat_map(|container| {
                let last = generations.get(&container.name).copied().unwrap_or_default();
                (0..=last).map(|generation| create::name(&pod.id, &container.name, generation))
            })
            .collect();
        let gone = join_all(names.iter().map(|name| self.take_down(&api, name, grace))).await;
        gone.into_iter().collect::<Result<Vec<()>, _>>()?;
        self.take_down(&api, &create::pause_name(&pod.id), Duration::ZERO).await?;
        self.records.forget(&known)
    }

    /// The pod's own address, from what was seen. One that shares the machine's has none.
    fn address_of(&self, pod: &Pod) -> Option<IpAddr> {
        let known = pod.known();
        let plan = &known.plan;
        if plan.host_network {
            return None;
        }
        let only = plan.containers.first().filter(|_| plan.is_alone());
        let only = only.and_then(|only| self.seen(pod, &Slot::Container(only.name.clone())));
        only.and_then(|seen| seen.address).or_else(|| self.seen(pod, &Slot::Pause)?.address)
    }

    fn status_of(&self, pod: &Pod) -> PodStatus {
        let known = pod.known();
        let plan = &known.plan;
        let mut turn = Turn::Now;
        let mut room = MESSAGES_LIMIT;
        let mut statuses: Vec<_> = Vec::new();
        for (at, container) in plan.all().enumerate() {
            let slot = Slot::Container(container.name.clone());
            let seen = self.seen(pod, &slot);
            let state = self.state(pod, &slot);
            let message = matches!(state, State::Ended(_)).then(|| {
                let mut text = pod.message(&container.name);
                let cut = (0..=text.len().min(room))
                    .rev()
                    .find(|&at| text.is_char_boundary(at))
                    .unwrap_or_default();
                text.truncate(cut);
                room -= text.len();
                text
            });
            let inner = pod.lock();
            statuses.push(container_status(Facts {
                container,
                seen: seen.as_ref(),
                lost: state == State::Lost && self.observed.complete(),
                turn,
                waiting: inner.waiting.get(&container.name),
                message,
                replaced: inner.generations.get(&container.name).copied().unwrap_or_default()
                    + inner.ended.get(&container.name).copied().unwrap_or_default(),
            }));
            if at < plan.init.len() {
                let code = match state {
                    State::Ended(code) => Some(code),
                    State::Lost => Some(137),
                    State::Absent | State::Created | State::Running => None,
                };
                turn = turn.after_init(
                    container,
                    seen.is_some_and(|seen| seen.started.is_some()),
                    code,
                    plan.restart,
                );
            }
        }
        let containers = statuses.split_off(plan.init.len());
        PodStatus {
            name: pod.id.name.clone(),
            uid: pod.id.uid.clone(),
            namespace: pod.id.namespace.clone(),
            jid: create::pause_name(&pod.id),
            containers,
            init_containers: statuses,
            pod_ip: self.address_of(pod).map(|address| address.to_string()).unwrap_or_default(),
            stale_seconds: self.observed.away().map_or(0, |(age, _)| age.as_secs().max(1)),
        }
    }

    /// The Docker name of the container a request means, once it exists.
    fn running(&self, pod: &Pod, container: &str) -> Result<String, RunError> {
        let known = pod.known();
        let plan = &known.plan;
        let unknown =
            || RunError::UnknownContainer { pod: pod.id.uid.clone(), container: container.to_owned() };
        let meant = plan.meant(container).ok_or_else(unknown)?;
        let name = pod.name_of(&Slot::Container(meant.name.clone()));
        self.observed.get(&name).map(|_| name).ok_or_else(unknown)
    }
}

#[async_trait]
impl Runner for Docker {
    async fn start(&self, retrieved: RetrievedPod) -> Result<CreateReply, RunError> {
        let plan = plan(&retrieved, &self.config.policy)?;
        let reply = CreateReply { pod_uid: plan.id.uid.clone(), pod_jid: create::pause_name(&plan.id) };
        let turn = Arc::clone(&self.intake).lock_owned().await;
        let Some(docker) = self.me.upgrade() else { return Err(RunError::Ending) };
        // To its end, also where the caller leaves: whoever comes next would write into the same folder.
        let begun = tokio::spawn(async move {
            let _turn = turn;
            docker.begin(Known { retrieved, plan }).await
        });
        begun.await.map_err(|_| RunError::Ending)?.map(|()| reply)
    }

    async fn status(&self, uids: &[String]) -> Result<Vec<PodStatus>, RunError> {
        let pods: Vec<Arc<Pod>> = {
            let pods = self.lock();
            uids.iter().filter_map(|uid| pods.get(uid).cloned()).collect()
        };
        Ok(pods.iter().map(|pod| self.status_of(pod)).collect())
    }

    async fn list(&self) -> Result<Vec<PodStatus>, RunError> {
        let mut pods: Vec<Arc<Pod>> = self.lock().values().cloned().collect();
        pods.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(pods.iter().map(|pod| self.status_of(pod)).collect())
    }

    async fn logs(&self, request: LogRequest) -> Result<LogStream, RunError> {
        let pod = self.known_pod(&request.pod_uid)?;
        let options = &request.options;
        if options.previous {
            return Err(RunError::Unsupported("the log of an earlier run is not kept by this plugin".into()));
        }
        let name = self.running(&pod, &request.container_name)?;
        let now = Timestamp::now().as_second();
        let since = match (options.since_seconds, options.since_time) {
            (0, None) => 0,
            (0, Some(time)) => time.as_second(),
            (seconds, _) => now.saturating_sub(i64::try_from(seconds).unwrap_or(i64::MAX)),
        };
        let tail = if options.tail == 0 { "all".to_owned() } else { options.tail.to_string() };
        let wanted = LogsOptions {
            follow: options.follow,
            stdout: true,
            stderr: true,
            since: i32::try_from(since.max(0)).unwrap_or(i32::MAX),
            timestamps: options.timestamps,
            tail,
            ..Default::default()
        };
        let api = self.engine.api().await?;
        let log = api.logs(&name, Some(wanted)).map_ok(bollard::container::LogOutput::into_bytes);
        let log = log.map_err(|error| failed("read a log")(error));
        Ok(if options.bytes == 0 { log.boxed() } else { limited(log.boxed(), options.bytes) })
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session, RunError> {
        let pod = self.known_pod(&request.pod_uid)?;
        let name = self.running(&pod, &request.container)?;
        exec::exec(self.engine.api().await?, &name, request).await
    }

    async fn delete(&self, uid: &str, grace: Option<Duration>) -> Result<(), RunError> {
        let turn = self.intake.lock().await;
        let Some(pod) = self.pod(uid) else {
            // Not here, and a create that is still on its way comes too late.
            if crate::wire::is_uid(uid) {
                self.records.mark_deleted(uid)?;
                self.records.forget_unrecorded(uid)?;
            }
            return Ok(());
        };
        self.records.mark_deleted(uid)?;
        let Some(docker) = self.me.upgrade() else { return Err(RunError::Ending) };
        docker.begin_delete(&pod, grace);
        drop(turn);
        let patience = grace.unwrap_or(pod.known().plan.grace) + DELETE_MARGIN;
        tokio::time::timeout(patience, pod.gone.cancelled()).await.map_err(|_| RunError::Away {
            runtime: "Docker",
            reason: "the pod is not removed yet; the plugin goes on trying".into(),
        })
    }

    async fn update(&self, retrieved: RetrievedPod) -> Result<(), RunError> {
        let new = plan(&retrieved, &self.config.policy)?;
        let pod = self.known_pod(&new.id.uid)?;
        let _turn = pod.turn.lock().await;
        if pod.lock().deleting {
            return Err(RunError::Gone(pod.id.uid.clone()));
        }
        for volume in &new.volumes {
            lay_out_volume(&pod.folder, volume).map_err(RunError::folder("rewrite the pod's files"))?;
        }
        let before = pod.known();
        let old = &before.plan;
        let changed: Vec<String> = new
            .containers
            .iter()
            .filter(|new| old.container(&new.name).is_some_and(|old| old.image != new.image))
            .map(|container| container.name.clone())
            .collect();
        // Everything else of a running pod is as it was when it was made.
        let mut known = Known::clone(&before);
        known.retrieved.pod.metadata = retrieved.pod.metadata;
        known.retrieved.containers = retrieved.containers;
        known.plan.volumes = new.volumes;
        known.plan.annotations = new.annotations;
        for name in &changed {
            let image =
                new.containers.iter().find(|c| &c.name == name).map(|c| c.image.clone()).unwrap_or_default();
            if let Some(container) = known.plan.containers.iter_mut().find(|c| &c.name == name) {
                container.image.clone_from(&image);
            }
            let spec = known.retrieved.pod.spec.as_mut();
            if let Some(container) =
                spec.and_then(|spec| spec.containers.iter_mut().find(|c| &c.name == name))
            {
                container.image = Some(image);
            }
            let running = pod.name_of(&Slot::Container(name.clone()));
            self.take_down(&self.engine.api().await?, &running, old.grace).await?;
            *pod.lock().generations.entry(name.clone()).or_default() += 1;
        }
        let generations = pod.lock().generations.clone();
        self.records.save(&pod.folder, &known, &generations)?;
        pod.lock().known = Arc::new(known);
        pod.wake.notify_one();
        Ok(())
    }

    async fn end(&self, uid: &str, container: &str, grace: Duration) -> Result<(), RunError> {
        let pod = self.known_pod(uid)?;
        let name = self.running(&pod, container)?;
        let known = pod.known();
        let sidecar = known.plan.container(container).is_some_and(|container| container.sidecar);
        let restart = if sidecar { Restart::Always } else { known.plan.restart };
        usage::end(&self.engine.api().await?, &name, grace, restart).await?;
        if restart != Restart::Never {
            // Docker counts only the restarts that it makes by itself.
            *pod.lock().ended.entry(container.to_owned()).or_default() += 1;
        }
        self.observed.look(&self.engine.api().await?, &name).await.map(drop)
    }

    async fn usage(&self) -> Result<Vec<PodUsage>, RunError> {
        let pods: Vec<Arc<Pod>> = self.lock().values().cloned().collect();
        let running = |pod: &Arc<Pod>| {
            let known = pod.known();
            let names: Vec<(String, String)> = known
                .plan
                .all()
                .map(|container| Slot::Container(container.name.clone()))
                .filter(|slot| self.state(pod, slot) == State::Running)
                .filter_map(|slot| match &slot {
                    Slot::Container(name) => Some((name.clone(), pod.name_of(&slot))),
                    Slot::Pause => None,
                })
                .collect();
            (pod.id.uid.clone(), names)
        };
        usage::read(&self.engine.api().await?, pods.iter().map(running).collect()).await
    }

    async fn address(&self, uid: &str) -> Option<IpAddr> {
        let pod = self.pod(uid)?;
        let known = pod.known();
        if known.plan.host_network {
            return Some(Ipv4Addr::LOCALHOST.into());
        }
        let api = self.engine.api().await.ok()?;
        // A pod of one container that an older plugin made has its network in a pause container all the same.
        if let Some(only) = known.plan.containers.first().filter(|_| known.plan.is_alone())
            && let Some(address) =
                usage::address(&api, &pod.name_of(&Slot::Container(only.name.clone()))).await
        {
            return Some(address);
        }
        usage::address(&api, &create::pause_name(&pod.id)).await
    }

    fn known(&self, uid: &str) -> Option<Arc<Known>> {
        self.pod(uid).map(|pod| pod.known())
    }

    async fn ping(&self) -> PingReply {
        let status = match self.observed.away() {
            None => "ok".to_owned(),
            Some((age, reason)) => format!("away for {} s: {reason}", age.as_secs()),
        };
        PingReply { status, ..Default::default() }
    }

    fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The first bytes of a log.
pub(crate) fn limited(log: LogStream, bytes: u64) -> LogStream {
    let left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let cut = stream::try_unfold((log, left), |(mut log, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(piece): Option<Bytes> = log.try_next().await? else { return Ok(None) };
        let piece = piece.slice(..piece.len().min(left));
        let rest = left - piece.len();
        Ok(Some((piece, (log, rest))))
    });
    cut.boxed()
}
