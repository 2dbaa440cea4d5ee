//! Runs each pod as one job of a batch system: Slurm, or plain processes of the machine.
//!
//! The job's script writes a file when a container begins and when it ends, so most is known
//! without asking the batch system at all. It is asked for all jobs at once, at most every few
//! seconds. While it does not answer nothing is called failed.

mod attach;
mod end;
pub mod inside;
mod logs;
mod observe;
mod pod;
pub mod runtime;
pub mod script;
pub mod split;
pub mod states;
mod submit;
mod terminal;
pub mod tsocks;
pub mod word;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};
use tokio::process::Command;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::error::RunError;
use crate::folder::{lay_out, lay_out_volume};
use crate::plan::{Container, Content, Plan, PlanError, Policy, Restart, plan};
use crate::record::{Found, Records};
use crate::runner::{Known, LogStream, Runner, Session, Turn};
use crate::slurm::flags::{FlagConfig, flags, user};
use crate::wire::{
    CreateReply, ExecRequest, LogOptions, LogRequest, PingReply, PodStatus, PodUsage, RetrievedPod,
    SystemInfo, is_uid,
};
use attach::attach;
use inside::exec_script;
use observe::Queue;
use pod::{Inner, Pod};
use script::{ScriptConfig, Share};
use states::{JobState, Marks, container_state};

/// The id of the job, once it is known.
const JOB_ID: &str = "JobID.jid";
/// Files that changed since the job's script was written, as a piece of script.
const FILES: &str = "files.sh";
/// Which files those are; always there, so that a change is seen as soon as the file is opened.
const FILES_VERSION: &str = "files.version";
/// How long the containers of a deleted pod have, in seconds.
const GRACE: &str = "grace";
const CHANGES: usize = 1024;
/// All last messages of a pod together, as kubelets cut them.
const MESSAGES_LIMIT: usize = 12_288;
/// What a job may take to end after its containers were killed.
const END_MARGIN: Duration = Duration::from_secs(20);
/// How often the files of a job that ends are looked at.
const END_LOOK: Duration = Duration::from_millis(100);

/// What runs jobs.
#[async_trait]
pub trait BatchSystem: Send + Sync + 'static {
    /// Its name for people.
    fn name(&self) -> &'static str;
    /// Submits a job and gives its id.
    async fn submit(&self, job: &Job) -> Result<String, SubmitError>;
    /// All jobs it knows, running and ended, by one question.
    async fn list(&self) -> Result<Vec<JobSeen>, RunError>;
    /// Ends the job of this id, or all jobs of this name, and says whether they have certainly ended.
    async fn cancel(&self, name: &str, id: Option<&str>, grace: Duration) -> Result<bool, RunError>;
    /// A summary of its machines for people, where it has one.
    async fn summary(&self) -> Option<Result<String, RunError>> {
        None
    }
    /// Whether jobs may run as another user than the plugin.
    fn changes_user(&self) -> bool {
        false
    }
    /// What it can take, as a ping tells it, where it knows.
    async fn offer(&self) -> Option<Result<PingReply, RunError>> {
        None
    }
    /// The beginning of a command that runs where the job runs. One that has a terminal for its streams
    /// makes it that of a new session.
    fn inside(&self, id: &str, terminal: bool) -> Result<Command, RunError>;
    /// Whether commands inside get a terminal there, so that the one here only passes on what comes.
    fn has_terminals(&self) -> bool {
        false
    }
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
    /// The job that must have begun before.
    pub after: Option<String>,
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
    /// A job for each container of a pod instead of one for all.
    pub per_container: bool,
}

/// A [`Runner`] on a batch system.
pub struct Batch {
    config: BatchConfig,
    system: Arc<dyn BatchSystem>,
    records: Records,
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    intake: tokio::sync::Mutex<()>,
    queue: Mutex<Queue>,
    /// What the batch system can take, as it was told last.
    offer: Mutex<PingReply>,
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
            offer: Mutex::default(),
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
            if deleted || !pod.is_sent() {
                unfinished.push((pod, deleted));
            }
        }
        tokio::spawn(Arc::clone(&batch).finish(unfinished));
        tokio::spawn(Arc::clone(&batch).watch_queue());
        tokio::spawn(Arc::clone(&batch).watch_files());
        tokio::spawn(Arc::clone(&batch).watch_offer());
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
        // Its scripts tell how many jobs it has, whatever the settings say by now.
        let count = (1..found.known.plan.containers.len())
            .take_while(|&at| found.folder.has(&format!("{}.sh", Share::One(at).stem())))
            .count();
        let ids = Some(JOB_ID).filter(|name| found.folder.is_own(name));
        let ids = ids.and_then(|name| found.folder.text(name)).unwrap_or_default();
        let mut jobs: Vec<Option<String>> =
            ids.split(',').map(|id| (!id.is_empty()).then(|| id.to_owned())).collect();
        jobs.resize(count + 1, None);
        let inner = Inner {
            known: Arc::new(found.known),
            jobs,
            missing: 0,
            over: Vec::new(),
            told: String::new(),
            address: None,
        };
        let pod =
            Arc::new(Pod { id: inner.known.id().clone(), folder: found.folder, inner: Mutex::new(inner) });
        self.lock().insert(pod.id.uid.clone(), Arc::clone(&pod));
        pod
    }

    fn status_of(&self, pod: &Pod) -> PodStatus {
        let known = pod.known();
        let plan = &known.plan;
        let mut turn = Turn::Now;
        let mut room = MESSAGES_LIMIT;
        let mut statuses = Vec::new();
        for (at, container) in plan.all().enumerate() {
            let mut marks = pod.marks(container, at < plan.init.len());
            let share = pod.share_of(container);
            let view = self.view(pod, share);
            if marks.ended.is_none() && view.is_over() {
                marks.said = pod.last_words(share);
            }
            for text in [&mut marks.message, &mut marks.said] {
                text.truncate(text.floor_char_boundary(room));
                room -= text.len();
            }
            let state = container_state(&marks, &view, turn);
            if at < plan.init.len() {
                // A status is the last word: restarts happen before it is written.
                let code = marks.ended.map(|(code, _)| i64::from(code));
                turn = turn.after_init(container, marks.started.is_some(), code, Restart::Never);
            }
            statuses.push(status_of_container(container, state, &marks, pod.job_of(share).as_deref()));
        }
        let containers = statuses.split_off(plan.init.len());
        PodStatus {
            name: pod.id.name.clone(),
            uid: pod.id.uid.clone(),
            namespace: pod.id.namespace.clone(),
            jid: pod.job_ids(),
            containers,
            init_containers: statuses,
            pod_ip: pod.address().map(|address| address.to_string()).unwrap_or_default(),
            stale_seconds: self
                .queue()
                .failing
                .as_ref()
                .map_or(0, |(since, _)| since.elapsed().as_secs().max(1)),
        }
    }

    /// Ends the job and removes the pod's folder.
    async fn remove(&self, pod: &Pod, grace: Option<Duration>) -> Result<(), RunError> {
        let grace = grace.unwrap_or(pod.known().plan.grace).min(self.config.script.kill_wait);
        if !pod.is_over() {
            // The script kills what has not ended by then, so that it can still clean up itself.
            let seconds = format!("{}\n", grace.as_secs());
            if let Err(error) = self.write_for_job(pod, GRACE, seconds.as_bytes(), 0o600) {
                tracing::warn!(pod = %pod.id, error = %error, "The job is not told how long it has.");
            }
            let mut ended = true;
            for share in pod.shares() {
                let id = pod.job_of(share).filter(|id| id != "0");
                ended &= self.system.cancel(&share.job_name(&pod.id.uid), id.as_deref(), grace).await?;
            }
            if !ended && !self.wait_for_end(pod, grace + END_MARGIN).await {
                tracing::warn!(pod = %pod.id, "A job goes on although it was cancelled.");
            }
        }
        // Without its folder a job that comes late ends before it does anything.
        self.records.forget(&pod.known())?;
        self.lock().remove(&pod.id.uid);
        let _ = self.changes.send(pod.id.uid.clone());
        tracing::info!(pod = %pod.id, "Removed a pod.");
        Ok(())
    }

    /// Waits until nothing of the pod runs any more, and says whether that is so.
    async fn wait_for_end(&self, pod: &Pod, at_most: Duration) -> bool {
        let late = tokio::time::Instant::now() + at_most;
        self.ask.notify_one();
        loop {
            // A job that has not begun finds no folder when it does.
            let quiet = |share: Share| !pod.has_begun(share) || self.view(pod, share).is_over();
            if pod.is_over() || pod.shares().all(quiet) {
                return true;
            }
            if tokio::time::Instant::now() >= late {
                return false;
            }
            tokio::time::sleep(END_LOOK).await;
        }
    }

    /// The user of a pod's job, where it is not the plugin's own.
    fn other_user(&self, plan: &Plan) -> Result<Option<u32>, RunError> {
        if !self.system.changes_user() {
            return Ok(None);
        }
        let user = user(plan, &self.config.flags, &self.config.policy)?;
        Ok(user.filter(|user| *user != rustix::process::geteuid().as_raw()))
    }

    /// Writes a file that the pod's job reads.
    fn write_for_job(&self, pod: &Pod, name: &str, content: &[u8], mode: u32) -> Result<(), RunError> {
        let other = self.other_user(&pod.known().plan)?;
        let wrote = pod.folder.write(name, content, mode);
        wrote
            .and_then(|()| other.map_or(Ok(()), |user| pod.folder.give(name, user)))
            .map_err(RunError::folder("write a file of the pod"))
    }

    /// Writes the pod's record, files and script.
    fn prepare(&self, known: Known) -> Result<Found, RunError> {
        let shares: Vec<Share> = match known.plan.containers.len() {
            count if self.config.per_container => (0..count).map(Share::One).collect(),
            _ => vec![Share::Whole],
        };
        let options = |share: Share| {
            flags(&share.part(&known.plan), &known.plan, &self.config.flags, &self.config.policy)
        };
        // Before anything is written: what is refused leaves nothing behind.
        shares.iter().try_for_each(|share| options(*share).map(drop))?;
        let folder = self.records.folder(&known)?;
        let write = || -> Result<(), RunError> {
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
            if !self.config.script.shared && script::follows(&known.plan) {
                let wrote = folder.write(FILES_VERSION, b"0\n", 0o600);
                wrote.map_err(RunError::folder("write the pod's files"))?;
            }
            // The first one last: the number of scripts is the number of jobs.
            for &share in shares.iter().rev() {
                let (config, path) = (&self.config.script, folder.path());
                let text = script::share(&known.plan, config, path, &options(share)?, share)?;
                folder
                    .write(&format!("{}.sh", share.stem()), text.as_bytes(), 0o700)
                    .map_err(RunError::folder("write the job's script"))?;
            }
            if let Some(user) = self.other_user(&known.plan)? {
                folder.give_all(user).map_err(RunError::folder(format!("give its files to user {user}")))?;
            }
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
            let job = pod.job_ids();
            return Ok(reply(if job.is_empty() { "submitting".into() } else { job }));
        }
        let pod = self.take_in(self.prepare(Known { retrieved, plan })?);
        if let Err(error) = self.submit(&pod).await {
            // A job that comes to light later finds no folder and ends at once.
            self.lock().remove(&uid);
            self.records.forget(&pod.known())?;
            return Err(error);
        }
        Ok(reply(pod.job_ids()))
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
        let mut stem = known.stem(container);
        if request.options.previous {
            stem.push_str(".previous");
            if !pod.folder.has(&format!("{stem}.out")) {
                return Err(RunError::Unsupported("the container has run only once".into()));
            }
        }
        let options =
            LogOptions { follow: request.options.follow && !request.options.previous, ..request.options };
        let job = pod.share_of(container);
        Ok(logs::read(logs::Source { pod: Arc::clone(&pod), stem, job }, options))
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
        let marks = pod.marks(container, known.plan.is_init(&container.name));
        let share = pod.share_of(container);
        let Some(job) = pod.job_of(share).filter(|_| marks.started.is_some() && marks.ended.is_none()) else {
            return Err(pod.unknown(&container.name));
        };
        if request.command.iter().any(|word| word.contains('\0')) {
            return Err(PlanError::Value("the command".into()).into());
        }
        let text = exec_script(
            &known.plan,
            (container, &known.stem(container)),
            (&request.command, request.tty),
            &self.config.script,
            pod.folder.path(),
            share,
        )?;
        let command = self.inside(&pod, &job, &text, request.tty)?;
        let begun = if request.tty {
            terminal::attach(command, self.system.has_terminals())
        } else {
            attach(command, request.stdin)
        };
        begun.map_err(|error| RunError::Refused {
            runtime: self.system.name(),
            what: "run a command".into(),
            reason: error.to_string(),
        })
    }

    async fn delete(&self, uid: &str, grace: Option<Duration>) -> Result<(), RunError> {
        let pod = {
            let _turn = self.intake.lock().await;
            let Ok(pod) = self.pod(uid) else {
                return if is_uid(uid) { self.records.mark_deleted(uid) } else { Ok(()) };
            };
            self.records.mark_deleted(uid)?;
            pod
        };
        // Others may begin while it ends; itself it cannot, once it is marked.
        self.remove(&pod, grace).await
    }

    async fn update(&self, retrieved: RetrievedPod) -> Result<(), RunError> {
        let new = plan(&retrieved, &self.config.policy)?;
        let pod = self.pod(&new.id.uid)?;
        self.end_changed(&pod, &new).await?;
        let failed = || RunError::folder("rewrite the pod's files");
        if pod.folder.has(FILES_VERSION) {
            // The job looks for a new version, now or when it begins.
            let text = script::files_script(&new);
            self.write_for_job(&pod, FILES, text.as_bytes(), 0o600)?;
            let version = format!("{}\n", uuid::Uuid::new_v4());
            self.write_for_job(&pod, FILES_VERSION, version.as_bytes(), 0o600)?;
        } else if self.config.script.shared {
            for volume in &new.volumes {
                lay_out_volume(&pod.folder, volume).map_err(failed())?;
            }
            if let (Some(user), true) = (self.other_user(&new)?, script::follows(&new)) {
                for volume in new.volumes.iter().filter(|volume| matches!(volume.content, Content::Files(_)))
                {
                    let folder = pod.folder.enter(volume.folder.as_str());
                    folder.and_then(|folder| folder.give_all(user)).map_err(failed())?;
                }
            }
        } else if script::follows(&new) {
            let what = "the job was begun by a version whose scripts do not look for changed files";
            return Err(RunError::Unsupported(what.into()));
        }
        let mut known = Known::clone(&pod.known());
        known.retrieved.pod.metadata = retrieved.pod.metadata;
        known.retrieved.containers = retrieved.containers;
        known.plan.volumes = new.volumes;
        self.records.save(&pod.folder, &known, &HashMap::new())?;
        pod.lock().known = Arc::new(known);
        Ok(())
    }

    async fn end(&self, uid: &str, container: &str, grace: Duration) -> Result<(), RunError> {
        let pod = self.pod(uid)?;
        let known = pod.known();
        let container = known.plan.meant(container).ok_or_else(|| pod.unknown(container))?;
        self.end_one(&pod, container, grace).await
    }

    async fn usage(&self) -> Result<Vec<PodUsage>, RunError> {
        // What jobs use is known where they run; sites tell it by their own accounting.
        Ok(Vec::new())
    }

    async fn system_info(&self) -> Option<SystemInfo> {
        let timestamp = jiff::Timestamp::now().to_string();
        Some(match self.system.summary().await? {
            Ok(sinfo_output) => SystemInfo {
                status: "ok".into(),
                timestamp,
                slurm_connected: true,
                sinfo_output,
                error: None,
            },
            Err(error) => SystemInfo {
                status: "warning".into(),
                timestamp,
                error: Some(error.to_string()),
                ..Default::default()
            },
        })
    }

    fn known(&self, uid: &str) -> Option<Arc<Known>> {
        self.pod(uid).ok().map(|pod| pod.known())
    }

    async fn ping(&self) -> PingReply {
        let status = match &self.queue().failing {
            None => "ok".to_owned(),
            Some((since, reason)) => format!("away for {} s: {reason}", since.elapsed().as_secs()),
        };
        PingReply { status, ..self.offer.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }
}

fn status_of_container(
    container: &Container,
    state: ContainerState,
    marks: &Marks,
    job: Option<&str>,
) -> ContainerStatus {
    let before = marks.before.map(|code| ContainerStateTerminated {
        exit_code: code,
        reason: Some(if code == 0 { "Completed" } else { "Error" }.into()),
        ..Default::default()
    });
    ContainerStatus {
        restart_count: marks.restarts,
        name: container.name.clone(),
        image: container.image.clone(),
        image_id: container.image.clone(),
        container_id: job.map(|job| format!("job://{job}/{}", container.name)),
        ready: state.running.is_some(),
        started: Some(state.running.is_some()),
        last_state: Some(ContainerState { terminated: before, ..Default::default() }),
        state: Some(state),
        ..Default::default()
    }
}
