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
mod prepare;
pub mod runtime;
pub mod script;
pub mod split;
pub mod states;
mod status;
mod submit;
mod system;
mod terminal;
pub mod tsocks;
pub mod word;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tarbet_cluster::Reached;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use crate::error::RunError;
use crate::plan::{Container, Plan, PlanError, Policy, plan};
use crate::record::{Found, Records};
use crate::runner::{Known, LogStream, Runner, Session};
use crate::slurm::flags::{FlagConfig, user};
use crate::wire::{
    CreateReply, ExecRequest, LogOptions, LogRequest, PingReply, PodStatus, PodUsage, RetrievedPod,
    SystemInfo, is_uid,
};
use attach::attach;
use inside::exec_script;
use observe::Queue;
pub(crate) use observe::is_ours;
use pod::{Inner, Pod};
use prepare::{prepare, rewrite, write_for};
use script::{ScriptConfig, Share};
use states::{JobState, JobView};
use submit::{Owed, Submission};
use system::Whose;
pub use system::{BatchSystem, Job, JobSeen, SubmitError, Unwanted};

/// The id of the job, once it is known.
const JOB_ID: &str = "JobID.jid";
/// Files that changed since the job's script was written, as a piece of script.
const FILES: &str = "files.sh";
/// Which files those are; always there, so that a change is seen as soon as the file is opened.
const FILES_VERSION: &str = "files.version";
/// How long the containers of a deleted pod have, in seconds.
const GRACE: &str = "grace";
const CHANGES: usize = 1024;
/// What a job may take to end after its containers were killed.
const END_MARGIN: Duration = Duration::from_secs(20);
/// How often the files of a job that ends are looked at.
const END_LOOK: Duration = Duration::from_millis(100);

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
    config: Arc<BatchConfig>,
    system: Arc<dyn BatchSystem>,
    records: Records,
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    intake: Arc<tokio::sync::Mutex<()>>,
    queue: Mutex<Queue>,
    /// What the batch system can take, as it was told last.
    offer: Mutex<PingReply>,
    /// Asks for a look at the queue before its time.
    ask: Notify,
    changes: broadcast::Sender<String>,
    /// What is to be finished, and word that there is more of it.
    owed: Mutex<Vec<Owed>>,
    owing: Notify,
    stop: CancellationToken,
    /// Itself, for the tasks that calls begin.
    me: Weak<Self>,
}

/// Does what waits for a file system beside all else: the data root is shared with jobs, and such a file system may
/// stand still for as long as its server does.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The process ends: nobody waits for what comes.
        Err(_) => std::future::pending().await,
    }
}

impl Batch {
    /// Takes up the pods on disk and begins to look at the queue.
    pub fn open(
        config: BatchConfig,
        system: Arc<dyn BatchSystem>,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, RunError> {
        Self::open_telling(config, system, stop, Reached::default())
    }

    /// The same, telling which points it passes.
    pub fn open_telling(
        config: BatchConfig,
        system: Arc<dyn BatchSystem>,
        stop: CancellationToken,
        reached: Reached,
    ) -> Result<Arc<Self>, RunError> {
        let records = Records::open(&config.root)?.telling(reached);
        let (changes, _) = broadcast::channel(CHANGES);
        let batch = Arc::new_cyclic(|me| Self {
            pods: Mutex::default(),
            intake: Arc::default(),
            queue: Mutex::default(),
            offer: Mutex::default(),
            ask: Notify::new(),
            owed: Mutex::default(),
            owing: Notify::new(),
            config: Arc::new(config),
            system,
            records,
            changes,
            stop,
            me: me.clone(),
        });
        let mut unfinished = Vec::new();
        for found in batch.records.load(&batch.config.policy)? {
            let deleted = found.deleted;
            let pod = batch.take_in(found);
            tracing::info!(pod = %pod.id, deleted, "Took up a pod.");
            if deleted || !pod.is_sent() {
                unfinished.push(Owed { pod, deleted });
            }
        }
        batch.owe(unfinished);
        tokio::spawn(Arc::clone(&batch).finish());
        tokio::spawn(Arc::clone(&batch).watch_queue());
        tokio::spawn(Arc::clone(&batch).watch_files());
        tokio::spawn(Arc::clone(&batch).watch_offer());
        Ok(batch)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Pod>> {
        self.lock().values().cloned().collect()
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
        let inner = Inner::new(found.known, jobs);
        let pod =
            Arc::new(Pod { id: inner.known.id().clone(), folder: found.folder, inner: Mutex::new(inner) });
        self.lock().insert(pod.id.uid.clone(), Arc::clone(&pod));
        pod
    }

    /// Who is told of the points that are passed.
    fn reached(&self) -> &Reached {
        self.records.reached()
    }

    async fn is_deleted(&self, uid: &str) -> bool {
        let (records, uid) = (self.records.clone(), uid.to_owned());
        aside(move || records.is_deleted(&uid)).await
    }

    async fn mark_deleted(&self, uid: &str) -> Result<(), RunError> {
        let (records, uid) = (self.records.clone(), uid.to_owned());
        aside(move || records.mark_deleted(&uid)).await
    }

    /// Sees to it that a pod which is not here never comes, and that nothing is left of a try to begin it.
    async fn never_begin(&self, uid: &str) -> Result<(), RunError> {
        self.mark_deleted(uid).await?;
        let (records, uid) = (self.records.clone(), uid.to_owned());
        aside(move || records.forget_unrecorded(&uid)).await
    }

    async fn forget(&self, pod: &Pod) -> Result<(), RunError> {
        let (records, known) = (self.records.clone(), pod.known());
        aside(move || records.forget(&known)).await
    }

    /// Takes in a pod whose turn it is, unless it is here.
    async fn begin(&self, known: Known) -> Result<CreateReply, RunError> {
        let uid = known.plan.id.uid.clone();
        if self.is_deleted(&uid).await {
            return Err(RunError::Gone(uid));
        }
        let reply = |pod: &Pod| {
            let job = pod.job_ids();
            let pod_jid = if job.is_empty() { "submitting".into() } else { job };
            Ok(CreateReply { pod_uid: uid.clone(), pod_jid })
        };
        if let Ok(pod) = self.pod(&uid) {
            return reply(&pod);
        }
        let other = self.other_user(&known.plan)?;
        let (config, records) = (Arc::clone(&self.config), self.records.clone());
        let pod = self.take_in(aside(move || prepare(&config, &records, other, known)).await?);
        let submission = Submission::of(self, &pod);
        match self.submit(&pod).await {
            Ok(true) => submission.over(),
            // It is recorded, and is finished later.
            Ok(false) => drop(submission),
            Err(error) => {
                submission.over();
                self.lock().remove(&uid);
                self.forget(&pod).await?;
                return Err(error);
            }
        }
        reply(&pod)
    }

    /// Ends the job and removes the pod's folder.
    async fn remove(&self, pod: &Arc<Pod>, grace: Option<Duration>) -> Result<(), RunError> {
        let known = pod.known();
        let grace = grace.unwrap_or(known.plan.grace).min(self.config.script.kill_wait);
        let (of, other) = (Arc::clone(pod), self.other_user(&known.plan));
        let over = aside(move || {
            if of.is_over() {
                return true;
            }
            // The script kills what has not ended by then, so that it can still clean up itself.
            let seconds = format!("{}\n", grace.as_secs());
            let wrote = other.and_then(|other| write_for(&of, other, GRACE, seconds.as_bytes(), 0o600));
            if let Err(error) = wrote {
                tracing::warn!(pod = %of.id, error = %error, "The job is not told how long it has.");
            }
            false
        });
        if !over.await {
            self.reached().at("grace told");
            let mut ended = true;
            for share in pod.shares() {
                ended &= self.cancel(pod, share, grace).await?;
                self.reached().at("job cancelled");
            }
            if !ended && !self.wait_for_end(pod, grace + END_MARGIN).await {
                tracing::warn!(pod = %pod.id, "A job goes on although it was cancelled.");
                // Forgotten, it would be nobody's. Where nothing is seen of it there is nothing to wait for.
                if pod.shares().any(|share| self.view(pod, share) == JobView::Seen(JobState::Running)) {
                    return Err(self.away("a job goes on although it was cancelled".into()));
                }
            }
        }
        // Without its folder a job that comes late ends before it does anything.
        self.forget(pod).await?;
        self.lock().remove(&pod.id.uid);
        let _ = self.changes.send(pod.id.uid.clone());
        tracing::info!(pod = %pod.id, "Removed a pod.");
        Ok(())
    }

    /// Waits until nothing of the pod runs any more, and says whether that is so.
    async fn wait_for_end(&self, pod: &Arc<Pod>, at_most: Duration) -> bool {
        let late = tokio::time::Instant::now() + at_most;
        self.ask.notify_one();
        loop {
            let left: Vec<Share> = pod.shares().filter(|share| !self.view(pod, *share).is_over()).collect();
            let of = Arc::clone(pod);
            // A job that has not begun finds no folder when it does.
            let quiet = aside(move || of.is_over() || !left.into_iter().any(|share| of.has_begun(share)));
            if quiet.await {
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

    /// Whose jobs may be those of a pod.
    fn whose(&self, pod: &Pod) -> Whose {
        // One that the settings no longer name is known by its name alone.
        let other = self.other_user(&pod.known().plan);
        other.map_or(Whose::Anybody, |other| Whose::Users(rustix::process::geteuid().as_raw(), other))
    }

    /// Writes a file that the pod's job reads.
    fn write_for_job(&self, pod: &Pod, name: &str, content: &[u8], mode: u32) -> Result<(), RunError> {
        write_for(pod, self.other_user(&pod.known().plan)?, name, content, mode)
    }
}

#[async_trait]
impl Runner for Batch {
    async fn start(&self, retrieved: RetrievedPod) -> Result<CreateReply, RunError> {
        let plan = plan(&retrieved, &self.config.policy)?;
        let turn = Arc::clone(&self.intake).lock_owned().await;
        let Some(batch) = self.me.upgrade() else { return Err(RunError::Ending) };
        // To its end, also where the caller leaves: whoever comes next would write into the same folder.
        let begun = tokio::spawn(async move {
            let _turn = turn;
            batch.begin(Known { retrieved, plan }).await
        });
        begun.await.map_err(|_| RunError::Ending)?
    }

    async fn status(&self, uids: &[String]) -> Result<Vec<PodStatus>, RunError> {
        let pods: Vec<Arc<Pod>> = {
            let pods = self.lock();
            uids.iter().filter_map(|uid| pods.get(uid).cloned()).collect()
        };
        Ok(self.statuses(pods).await)
    }

    async fn list(&self) -> Result<Vec<PodStatus>, RunError> {
        let mut pods = self.all();
        pods.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(self.statuses(pods).await)
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
                return if is_uid(uid) { self.never_begin(uid).await } else { Ok(()) };
            };
            self.mark_deleted(uid).await?;
            pod
        };
        // Others may begin while it ends; itself it cannot, once it is marked.
        self.remove(&pod, grace).await
    }

    async fn update(&self, retrieved: RetrievedPod) -> Result<(), RunError> {
        let new = plan(&retrieved, &self.config.policy)?;
        let pod = self.pod(&new.id.uid)?;
        self.end_changed(&pod, &new).await?;
        let other = self.other_user(&new)?;
        let (config, records, of) = (Arc::clone(&self.config), self.records.clone(), Arc::clone(&pod));
        let known = aside(move || rewrite(&config, &records, other, &of, (retrieved, new))).await?;
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
