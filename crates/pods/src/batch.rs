//! Runs each pod as one job of a batch system: Slurm, or plain processes of the machine.
//!
//! The job's script writes a file when a container begins and when it ends, so most is known
//! without asking the batch system at all. It is asked for all jobs at once, at most every few
//! seconds. While it does not answer nothing is called failed.

mod attach;
mod logs;
mod observe;
mod pod;
pub mod runtime;
pub mod script;
pub mod states;
pub mod word;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};
use tokio::process::Command;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::error::RunError;
use crate::folder::{lay_out, lay_out_volume};
use crate::plan::{Container, Plan, PlanError, Policy, Restart, plan};
use crate::record::{Found, Records};
use crate::runner::{Known, LogStream, Runner, Session, Turn};
use crate::slurm::flags::{FlagConfig, flags};
use crate::wire::{CreateReply, ExecRequest, LogRequest, PingReply, PodStatus, RetrievedPod, is_uid};
use attach::attach;
use observe::Queue;
use pod::{Inner, Pod};
use script::{ScriptConfig, exec_script, script};
use states::{JobState, container_state};

/// The id of the job, once it is known.
const JOB_ID: &str = "JobID.jid";
const SCRIPT: &str = "job.sh";
const CHANGES: usize = 1024;

/// What runs jobs.
#[async_trait]
pub trait BatchSystem: Send + Sync + 'static {
    /// Its name for people.
    fn name(&self) -> &'static str;
    /// Submits a job and gives its id.
    async fn submit(&self, job: &Job) -> Result<String, SubmitError>;
    /// All jobs it knows, running and ended, by one question.
    async fn list(&self) -> Result<Vec<JobSeen>, RunError>;
    /// Ends the job of this id, or all jobs of this name.
    async fn cancel(&self, name: &str, id: Option<&str>, grace: Duration) -> Result<(), RunError>;
    /// The beginning of a command that runs where the job runs.
    fn inside(&self, id: &str) -> Result<Command, RunError>;
}

/// A job to submit.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name: the pod's UID.
    pub name: String,
    /// Its script.
    pub script: PathBuf,
    /// The pod's folder.
    pub folder: PathBuf,
}

/// A job that the batch system knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSeen {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: JobState,
}

/// A job that was not submitted, or perhaps was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It was not.
    #[error("{0}")]
    Refused(String),
    /// It may have been.
    #[error("{0}")]
    Unclear(String),
}

/// How to run pods as jobs.
#[derive(Debug, Clone)]
pub struct BatchConfig {
    /// Where pods' files are.
    pub root: PathBuf,
    /// What pods may ask for.
    pub policy: Policy,
    /// How scripts are written.
    pub script: ScriptConfig,
    /// How pods become options of the batch system.
    pub flags: FlagConfig,
    /// The least time between two questions for all jobs.
    pub interval: Duration,
}

/// A [`Runner`] on a batch system.
pub struct Batch {
    config: BatchConfig,
    system: Arc<dyn BatchSystem>,
    records: Records,
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    intake: tokio::sync::Mutex<()>,
    queue: Mutex<Queue>,
    /// Asks for a look at the queue before its time.
    ask: Notify,
    changes: broadcast::Sender<String>,
    stop: CancellationToken,
}

impl Batch {
    /// Takes up the pods on disk and begins to look at the queue.
    pub fn open(
        config: BatchConfig,
        system: Arc<dyn BatchSystem>,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, RunError> {
        let records = Records::open(&config.root)?;
        let (changes, _) = broadcast::channel(CHANGES);
        let batch = Arc::new(Self {
            pods: Mutex::default(),
            intake: tokio::sync::Mutex::default(),
            queue: Mutex::default(),
            ask: Notify::new(),
            config,
            system,
            records,
            changes,
            stop,
        });
        let mut unfinished = Vec::new();
        for found in batch.records.load(&batch.config.policy)? {
            let deleted = found.deleted;
            let pod = batch.take_in(found);
            tracing::info!(pod = %pod.id, deleted, "Took up a pod.");
            if deleted || pod.lock().job.is_none() {
                unfinished.push((pod, deleted));
            }
        }
        tokio::spawn(Arc::clone(&batch).finish(unfinished));
        tokio::spawn(Arc::clone(&batch).watch_queue());
        tokio::spawn(Arc::clone(&batch).watch_files());
        Ok(batch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pod(&self, uid: &str) -> Result<Arc<Pod>, RunError> {
        self.lock().get(uid).cloned().ok_or_else(|| RunError::UnknownPod(uid.to_owned()))
    }

    fn take_in(&self, found: Found) -> Arc<Pod> {
        let job = found.folder.text(JOB_ID).filter(|id| !id.is_empty());
        let inner = Inner { known: Arc::new(found.known), job, missing: 0, told: String::new() };
        let pod =
            Arc::new(Pod { id: inner.known.id().clone(), folder: found.folder, inner: Mutex::new(inner) });
        self.lock().insert(pod.id.uid.clone(), Arc::clone(&pod));
        pod
    }

    /// Finishes what a crash cut off: submissions without an id, and removals.
    async fn finish(self: Arc<Self>, unfinished: Vec<(Arc<Pod>, bool)>) {
        for (pod, deleted) in unfinished {
            let mut wait = Duration::from_millis(500);
            loop {
                let done = if deleted {
                    self.remove(&pod, None).await
                } else {
                    let turn = self.intake.lock().await;
                    let done = self.settle(&pod).await;
                    drop(turn);
                    done
                };
                match done {
                    Ok(()) => break,
                    Err(error) => tracing::warn!(pod = %pod.id, error = %error, "A pod waits."),
                }
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(Duration::from_secs(30)),
                }
            }
        }
    }

    /// Makes sure that a recorded pod has its one job: the one that is there, or a new one.
    async fn settle(&self, pod: &Pod) -> Result<(), RunError> {
        if let Some(id) = self.find(&pod.id.uid).await? {
            return self.note_job(pod, &id);
        }
        // Its script has begun although the queue has forgotten it.
        if pod.folder.has("job.lock") {
            return self.note_job(pod, "0");
        }
        match self.submit(pod).await {
            Ok(()) => Ok(()),
            Err(SubmitError::Refused(reason) | SubmitError::Unclear(reason)) => {
                Err(RunError::Away { runtime: self.system.name(), reason })
            }
        }
    }

    /// The id of the job of this name, asked now.
    async fn find(&self, name: &str) -> Result<Option<String>, RunError> {
        let jobs = self.system.list().await?;
        Ok(jobs.into_iter().find(|job| job.name == name).map(|job| job.id))
    }

    async fn submit(&self, pod: &Pod) -> Result<(), SubmitError> {
        let path = pod.folder.path();
        let job = Job { name: pod.id.uid.clone(), script: path.join(SCRIPT), folder: path.to_owned() };
        let id = self.system.submit(&job).await?;
        self.note_job(pod, &id).map_err(|error| SubmitError::Unclear(error.to_string()))
    }

    fn note_job(&self, pod: &Pod, id: &str) -> Result<(), RunError> {
        pod.folder.write(JOB_ID, id.as_bytes(), 0o600).map_err(RunError::folder("record the job's id"))?;
        pod.lock().job = Some(id.to_owned());
        self.ask.notify_one();
        Ok(())
    }

    fn status_of(&self, pod: &Pod) -> PodStatus {
        let known = pod.known();
        let plan = &known.plan;
        let view = self.view(pod);
        let mut turn = Turn::Now;
        let mut statuses = Vec::new();
        for (at, container) in plan.all().enumerate() {
            let marks = pod.marks(container, at < plan.init.len());
            let state = container_state(&marks, &view, turn);
            if at < plan.init.len() {
                // Jobs run once, whatever the restart policy.
                turn = turn.after(marks.ended.map(|(code, _)| i64::from(code)), Restart::Never);
            }
            statuses.push(status_of_container(container, state, pod.lock().job.as_deref()));
        }
        let containers = statuses.split_off(plan.init.len());
        PodStatus {
            name: pod.id.name.clone(),
            uid: pod.id.uid.clone(),
            namespace: pod.id.namespace.clone(),
            jid: pod.lock().job.clone().unwrap_or_default(),
            containers,
            init_containers: statuses,
            stale_seconds: self
                .queue()
                .failing
                .as_ref()
                .map_or(0, |(since, _)| since.elapsed().as_secs().max(1)),
        }
    }

    /// Ends the job and removes the pod's folder.
    async fn remove(&self, pod: &Pod, grace: Option<Duration>) -> Result<(), RunError> {
        let job = pod.lock().job.clone();
        let grace = grace.unwrap_or(pod.known().plan.grace).min(self.config.script.kill_wait);
        let over = pod.is_over();
        if !over {
            let id = job.as_deref().filter(|id| *id != "0");
            self.system.cancel(&pod.id.uid, id, grace).await?;
        }
        // Without its folder a job that comes late ends before it does anything.
        self.records.forget(&pod.known())?;
        self.lock().remove(&pod.id.uid);
        let _ = self.changes.send(pod.id.uid.clone());
        tracing::info!(pod = %pod.id, "Removed a pod.");
        Ok(())
    }

    /// Writes the pod's record, files and script.
    fn prepare(&self, known: Known) -> Result<Found, RunError> {
        let options = flags(&known.plan, &self.config.flags, &self.config.policy)?;
        let folder = self.records.folder(&known)?;
        let write = || -> Result<(), RunError> {
            let text = script(&known.plan, &self.config.script, folder.path(), &options)?;
            let mut laid = Plan::clone(&known.plan);
            if !self.config.script.shared {
                // Carried in the script instead.
                laid.volumes.clear();
                laid.init
                    .iter_mut()
                    .chain(&mut laid.containers)
                    .for_each(|container| container.mounts.clear());
            }
            lay_out(&folder, &laid).map_err(RunError::folder("write the pod's files"))?;
            folder
                .write(SCRIPT, text.as_bytes(), 0o700)
                .map_err(RunError::folder("write the job's script"))?;
            self.records.save(&folder, &known, &HashMap::new())
        };
        match write() {
            Ok(()) => Ok(Found { known, folder, generations: HashMap::new(), deleted: false }),
            Err(error) => {
                let _ = self.records.forget(&known);
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Runner for Batch {
    async fn start(&self, retrieved: RetrievedPod) -> Result<CreateReply, RunError> {
        let plan = plan(&retrieved, &self.config.policy)?;
        let uid = plan.id.uid.clone();
        let _turn = self.intake.lock().await;
        if self.records.is_deleted(&uid) {
            return Err(RunError::Gone(uid));
        }
        let reply = |job: String| CreateReply { pod_uid: uid.clone(), pod_jid: job };
        if let Ok(pod) = self.pod(&uid) {
            let job = pod.lock().job.clone();
            return Ok(reply(job.unwrap_or_else(|| "submitting".into())));
        }
        let pod = self.take_in(self.prepare(Known { retrieved, plan })?);
        let failure = match self.submit(&pod).await {
            Ok(()) => None,
            Err(SubmitError::Refused(reason)) => {
                Some(RunError::Refused { runtime: self.system.name(), what: "take the job".into(), reason })
            }
            Err(SubmitError::Unclear(reason)) => {
                // It may be there all the same: the name tells.
                match self.find(&uid).await {
                    Ok(Some(id)) => self.note_job(&pod, &id).err(),
                    _ => Some(RunError::Away { runtime: self.system.name(), reason }),
                }
            }
        };
        if let Some(error) = failure {
            // A job that comes to light later finds no folder and ends at once.
            self.lock().remove(&uid);
            self.records.forget(&pod.known())?;
            return Err(error);
        }
        let job = pod.lock().job.clone();
        Ok(reply(job.unwrap_or_default()))
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
        let pod = self.pod(&request.pod_uid)?;
        let known = pod.known();
        let container =
            known.plan.meant(&request.container_name).ok_or_else(|| pod.unknown(&request.container_name))?;
        if request.options.previous {
            return Err(RunError::Unsupported("jobs run once: there is no earlier log".into()));
        }
        let stem = known.stem(container);
        Ok(logs::read(logs::Source { pod: Arc::clone(&pod), stem }, request.options))
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session, RunError> {
        if request.command.is_empty() {
            let what = "attaching to a container's input is not possible with this plugin";
            return Err(RunError::Unsupported(what.into()));
        }
        let pod = self.pod(&request.pod_uid)?;
        let known = pod.known();
        let container =
            known.plan.meant(&request.container).ok_or_else(|| pod.unknown(&request.container))?;
        let marks = pod.marks(container, known.plan.init.iter().any(|init| init.name == container.name));
        let job = pod.lock().job.clone();
        let Some(job) = job.filter(|_| marks.started.is_some() && marks.ended.is_none()) else {
            return Err(pod.unknown(&container.name));
        };
        if request.command.iter().any(|word| word.contains('\0')) {
            return Err(PlanError::Value("the command".into()).into());
        }
        let text =
            exec_script(&known.plan, container, &request.command, &self.config.script, pod.folder.path())?;
        let name = format!("exec-{}.sh", uuid::Uuid::new_v4());
        pod.folder
            .write(&name, text.as_bytes(), 0o700)
            .map_err(RunError::folder("write the command's script"))?;
        let mut command = self.system.inside(&job)?;
        command.arg(&self.config.script.bash).arg(pod.folder.path().join(&name));
        attach(command, request.stdin).map_err(|error| RunError::Refused {
            runtime: self.system.name(),
            what: "run a command".into(),
            reason: error.to_string(),
        })
    }

    async fn delete(&self, uid: &str, grace: Option<Duration>) -> Result<(), RunError> {
        let _turn = self.intake.lock().await;
        let Ok(pod) = self.pod(uid) else {
            return if is_uid(uid) { self.records.mark_deleted(uid) } else { Ok(()) };
        };
        self.records.mark_deleted(uid)?;
        self.remove(&pod, grace).await
    }

    async fn update(&self, retrieved: RetrievedPod) -> Result<(), RunError> {
        let new = plan(&retrieved, &self.config.policy)?;
        let pod = self.pod(&new.id.uid)?;
        if !self.config.script.shared {
            return Err(RunError::Unsupported(
                "files of a pod can change only where jobs share the plugin's file system (SHARED_FS)".into(),
            ));
        }
        for volume in &new.volumes {
            lay_out_volume(&pod.folder, volume).map_err(RunError::folder("rewrite the pod's files"))?;
        }
        let mut known = Known::clone(&pod.known());
        known.retrieved.pod.metadata = retrieved.pod.metadata;
        known.retrieved.containers = retrieved.containers;
        known.plan.volumes = new.volumes;
        self.records.save(&pod.folder, &known, &HashMap::new())?;
        pod.lock().known = Arc::new(known);
        Ok(())
    }

    async fn ping(&self) -> PingReply {
        let status = match &self.queue().failing {
            None => "ok".to_owned(),
            Some((since, reason)) => format!("away for {} s: {reason}", since.elapsed().as_secs()),
        };
        PingReply { status, ..Default::default() }
    }

    fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }
}

fn status_of_container(container: &Container, state: ContainerState, job: Option<&str>) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        image_id: container.image.clone(),
        container_id: job.map(|job| format!("job://{job}/{}", container.name)),
        ready: state.running.is_some(),
        started: Some(state.running.is_some()),
        last_state: Some(ContainerState::default()),
        state: Some(state),
        ..Default::default()
    }
}
