//! The controller: watches both sides and brings each request to its end.
//!
//! One task watches each kind on each side, one runs the queue; all of them belong to the term of
//! leadership and end with it. Nothing is kept over a term: the next one starts from the clusters.

mod wake;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::Client;
use tarbet_cluster::{Change, Election, Events, Outcome, Queue, Term, Timings};
use tarbet_telemetry::Health;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adopt::Adopted;
use crate::config::{Config, LeaderElection};
use crate::crd::InternalServicesConfigSpec;
use crate::error::JobError;
use crate::fair::{Turn, Turns};
use crate::logs::Logs;
use crate::machine::Phase;
use crate::metrics::JobMetrics;
use crate::observe::LocalSide;
use crate::plan::{Known, PipelineSight, RunSight, Sight, Step, plan};
use crate::remote::{Before, Owner, RemoteSide};
use crate::request::{Key, Request};
use crate::run::Run;
use crate::scope::{Ledger, Scopes};
use crate::signal::Signal;

/// Steps of one look at a request: more than any way through the plan takes.
const STEPS: usize = 24;

/// How soon a request is looked at again that we have no rights to write.
const UNHEARD: Duration = Duration::from_mins(1);

/// Called with the name of each step before and after it is taken, to die there in tests.
pub type Reached = Arc<dyn Fn(&str) + Send + Sync>;

/// A cluster whose requests are served.
#[derive(Clone)]
pub struct Remote {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub client: Client,
}

/// The controller, ready to run.
#[derive(Clone)]
pub struct Controller {
    config: Config,
    local: Client,
    remotes: Vec<Remote>,
    metrics: JobMetrics,
    health: Health,
    identity: String,
    reached: Reached,
}

impl Controller {
    /// A controller of the private cluster `local` for the requests of `remotes`. `identity` tells
    /// this replica from others.
    pub fn new(
        config: Config,
        local: Client,
        remotes: Vec<Remote>,
        metrics: JobMetrics,
        health: Health,
        identity: impl Into<String>,
    ) -> Self {
        Self { config, local, remotes, metrics, health, identity: identity.into(), reached: Arc::new(|_| {}) }
    }

    /// The same under another name among replicas.
    #[must_use]
    pub fn with_identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = identity.into();
        self
    }

    /// Calls `reached` at every boundary of a step.
    #[must_use]
    pub fn with_reached(mut self, reached: Reached) -> Self {
        self.reached = reached;
        self
    }

    /// Works until `stop`, or whenever this replica leads.
    pub async fn run(&self, stop: CancellationToken) {
        let LeaderElection { enabled, id, duration, renew, retry } = self.config.leader_election.clone();
        if !enabled {
            return self.work(Term::alone(stop)).await;
        }
        let part = Arc::new(self.health.part("leadership"));
        // A replica that stands by does its work by standing by.
        part.ready();
        let timings = Timings { duration, renew, retry };
        let election =
            Election::new(self.local.clone(), &self.config.namespace, &id, &self.identity, timings);
        election.lead(stop, |term| self.work(term)).await;
        drop(part);
    }

    async fn work(&self, term: Term) {
        let remotes = self.remotes.iter().map(|remote| RemoteSide::new(&remote.name, remote.client.clone()));
        let events = |client: &Client| Events::new(client.clone(), "tarbet-jobs");
        let remote_events = self.config.remote_events.then(|| {
            self.remotes
                .iter()
                .map(|remote| (Arc::from(remote.name.as_str()), events(&remote.client)))
                .collect()
        });
        let shared = Arc::new(Shared {
            local: LocalSide::new(self.local.clone(), &self.config.namespace),
            remotes: remotes.collect(),
            queue: Queue::default(),
            turns: Mutex::default(),
            ran: Mutex::default(),
            adopted: Adopted::default(),
            logs: Logs::new(self.local.clone(), &self.config.namespace, self.config.logs.clone()),
            events: events(&self.local),
            remote_events: remote_events.unwrap_or_default(),
            metrics: self.metrics.clone(),
            reached: Arc::clone(&self.reached),
            aside: TaskTracker::new(),
        });
        shared.run(&self.health, self.config.workers, term.ended().clone()).await;
    }
}

/// What is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// A request.
    Request(Key),
    /// A run whose request seems to be gone, by name.
    Stray(String),
}

/// Everything one term of leadership shares.
pub(crate) struct Shared {
    pub(crate) local: LocalSide,
    remotes: Vec<RemoteSide>,
    queue: Queue<Work>,
    turns: Mutex<Turns<Key>>,
    // The requests whose run was seen, by their UID: it is not made again, also if somebody removes
    // it with force before its request says that it runs.
    ran: Mutex<HashMap<Key, String>>,
    pub(crate) adopted: Adopted,
    pub(crate) logs: Logs,
    pub(crate) events: Events,
    pub(crate) remote_events: HashMap<Arc<str>, Events>,
    pub(crate) metrics: JobMetrics,
    reached: Reached,
    pub(crate) aside: TaskTracker,
}

/// What one look has found out so far.
#[derive(Default)]
struct Look {
    run: Asked<Arc<Run>>,
    config: Option<Arc<InternalServicesConfigSpec>>,
    pipeline: Asked<Vec<String>>,
    turn: Option<Turn>,
}

/// What the API said about an object.
#[derive(Default)]
enum Asked<T> {
    #[default]
    NotYet,
    Missing,
    Found(T),
}

impl<T> From<Option<T>> for Asked<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Missing, Self::Found)
    }
}

impl Shared {
    async fn run(self: &Arc<Self>, health: &Health, workers: usize, stop: CancellationToken) {
        let (scopes, scope) = channel::channel(Scopes::default());
        let private = Signal::new(health, "private cluster");
        private.expects(["runs", "pipelines", "configuration"].map(str::to_owned));
        // Known from the start, so that nobody takes us for ready before the requests are listed.
        let signals: Vec<Signal> = self
            .remotes
            .iter()
            .map(|remote| Signal::new(health, &format!("remote {}", remote.name)))
            .collect();
        let names: Vec<Arc<str>> = self.remotes.iter().map(|remote| Arc::clone(&remote.name)).collect();
        let local: Vec<BoxFuture<'_, ()>> = vec![
            self.local
                .watch_runs(&names, |change| self.run_changed(&private.heard(change, "runs")), stop.clone())
                .boxed(),
            self.local
                .watch_pipelines(|change| drop(private.heard(change, "pipelines")), stop.clone())
                .boxed(),
            self.local
                .watch_config(
                    scopes,
                    |change| self.config_changed(&private.heard(change, "configuration")),
                    stop.clone(),
                )
                .boxed(),
        ];
        let remote = async {
            // Requests are judged by what is on this side, so this side is known first.
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.local.listed() => {}
            }
            self.count_runs();
            let watches = self.remotes.iter().zip(&signals).map(|(remote, signal)| {
                let scope = scope.clone();
                let stop = stop.clone();
                async move {
                    self.adopt_all(remote, &stop).await;
                    let ledger = Ledger::new(self.local.client.clone(), &self.local.namespace, &remote.name);
                    let before = Before { ledger, runs: self.asking(remote) };
                    remote.watch(scope, before, signal, self.as_ref(), stop).await;
                }
            });
            let shared = Arc::clone(self);
            let work = self.queue.run(workers, stop.clone(), move |work| Arc::clone(&shared).look(work));
            tokio::join!(join_all(watches), work);
        };
        tokio::join!(join_all(local), remote);
        self.aside.close();
        self.aside.wait().await;
    }

    /// Counts the runs that are there from before, so that limits hold after a restart too.
    fn count_runs(&self) {
        let going = self.local.runs.select(|_, _, run| {
            run.serves
                .clone()
                .filter(|_| run.ending.is_none() && !run.deleting)
                .map(|key| (key, run.offer.clone()))
        });
        let mut turns = self.turns();
        for (key, offer) in going {
            turns.hold(&key, &offer);
        }
        drop(turns);
        self.measure();
    }

    /// The namespaces of a remote whose requests have a run.
    fn asking(&self, remote: &RemoteSide) -> BTreeSet<String> {
        let of = |key: &Key| (key.remote == remote.name).then(|| key.namespace.clone());
        let mut found: BTreeSet<String> =
            self.local.runs.select(|_, _, run| run.serves.as_ref().and_then(of)).into_iter().collect();
        found.extend(self.adopted.keys().iter().filter_map(of));
        found
    }

    async fn look(self: Arc<Self>, work: Work) -> Outcome {
        let outcome = match &work {
            Work::Request(key) => self.reconcile(key).await,
            Work::Stray(run) => self.stray(run).await,
        };
        self.metrics.depth(self.queue.depth());
        match outcome {
            Ok(outcome) => {
                self.metrics.reconciled("success");
                outcome
            }
            Err(error) => {
                self.metrics.reconciled("error");
                tracing::warn!(work = ?work, cause = %error.cause(), error = %error, "A step failed and is tried again.");
                Outcome::Failed
            }
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, JobError> {
        let Some(remote) = self.remote(key) else { return Ok(Outcome::Done) };
        let mut look = Look::default();
        for _ in 0..STEPS {
            let Some(request) = remote.requests.get(&key.namespace, &key.name) else {
                self.unseen(key);
                return Ok(Outcome::Done);
            };
            if matches!(look.run, Asked::NotYet) && !request.phase.is_final() {
                look.run = self.unseen_adopted(&request).await?;
            }
            let step = self.next(&request, &look);
            if request.phase.is_final() || request.deleting {
                self.release(key);
            }
            if step == Step::Rest {
                return Ok(Outcome::Done);
            }
            self.reached(&format!("before {}", name(&step)));
            match self.take(remote, &request, step.clone(), &mut look).await {
                Ok(()) => self.reached(&format!("after {}", name(&step))),
                Err(error) if error.is_conflict() => {
                    // What we knew is old: look at the request itself, then choose again.
                    look = Look::default();
                    match remote.read(&key.namespace, &key.name).await? {
                        Some(now) => remote.requests.refresh(&key.namespace, &key.name, now),
                        None => return Ok(Outcome::Again(Duration::from_secs(1))),
                    }
                }
                Err(error) if error.is_forbidden() && remote.leaves(&key.namespace) => {
                    let name = self.adopted.run_name(&request);
                    return match self.local.runs.get(&self.local.namespace, &name).filter(|run| run.kept) {
                        Some(run) => self.unheard(&run, key).await,
                        None => Ok(Outcome::Again(UNHEARD)),
                    };
                }
                // The watch will say so too.
                Err(JobError::Gone) => return Ok(Outcome::Again(Duration::from_secs(1))),
                Err(error) => return Err(error),
            }
        }
        Ok(Outcome::Again(Duration::from_secs(1)))
    }

    /// A request that is not seen has no turn, unless its run goes on: then the run decides.
    fn unseen(&self, key: &Key) {
        let knows = self.turns().knows(key);
        let of = |run: &Arc<Run>| run.kept && run.serves.as_ref() == Some(key);
        let runs = || self.local.runs.select(|_, name, run| of(run).then(|| name.to_owned()));
        match knows.then(runs).unwrap_or_default().pop() {
            // Not at once: the watch may be about to show the request.
            Some(run) => self.queue.add_after(Work::Stray(run), Duration::from_secs(1)),
            None => self.release(key),
        }
    }

    /// An adopted run that the watch has not shown yet: without it another one would be made.
    async fn unseen_adopted(&self, request: &Request) -> Result<Asked<Arc<Run>>, JobError> {
        let Some(name) = self.adopted.of(request) else { return Ok(Asked::NotYet) };
        if self.local.runs.get(&self.local.namespace, &name).is_some() {
            return Ok(Asked::NotYet);
        }
        Ok(self.local.run(&name).await?.map(Arc::new).into())
    }

    fn next(&self, request: &Request, look: &Look) -> Step {
        let seen = self.local.runs.get(&self.local.namespace, &self.adopted.run_name(request));
        let run = match (&look.run, &seen) {
            (Asked::Found(run), _) | (Asked::NotYet, Some(run)) => RunSight::Present(run),
            (Asked::Missing, _) => RunSight::Absent,
            (Asked::NotYet, None) => RunSight::Unseen,
        };
        if let RunSight::Present(run) = run
            && run.is_of(request)
            && !request.phase.is_final()
        {
            self.ran().insert(request.key.clone(), request.uid.clone());
        }
        if let RunSight::Present(run) = run
            && run.ending.is_none()
            && !request.phase.is_final()
        {
            self.turns().hold(&request.key, &run.offer);
        }
        let pipeline = match &look.pipeline {
            Asked::NotYet => PipelineSight::Unread,
            Asked::Missing => PipelineSight::Missing,
            Asked::Found(declared) => PipelineSight::Declares(declared),
        };
        let known = Known {
            leaving: self.remote(&request.key).is_some_and(|remote| remote.leaves(&request.key.namespace)),
            begun: self.begun(request),
            ran: self.ran().get(&request.key).is_some_and(|uid| *uid == request.uid),
        };
        plan(&Sight { request, run, config: look.config.as_deref(), pipeline, turn: look.turn, known })
    }

    /// Whether the status of a request names the run that is ours to make.
    fn begun(&self, request: &Request) -> bool {
        request.run.as_ref().is_some_and(|run| *run == self.run_of(request))
    }

    async fn take(
        &self,
        remote: &RemoteSide,
        request: &Request,
        step: Step,
        look: &mut Look,
    ) -> Result<(), JobError> {
        let run_name = self.adopted.run_name(request);
        let known = match &look.run {
            Asked::Found(run) => Some(Arc::clone(run)),
            Asked::Missing => None,
            Asked::NotYet => self.local.runs.get(&self.local.namespace, &run_name),
        };
        match step {
            Step::ReadConfig => look.config = Some(self.local.config().await?),
            Step::ReadPipeline(name) => look.pipeline = self.local.pipeline(&name).await?.into(),
            Step::ReadRun => look.run = self.local.run(&run_name).await?.map(Arc::new).into(),
            Step::AskTurn(order) => {
                let created = request.created.map_or(0, jiff::Timestamp::as_second);
                let turn =
                    self.turns().ask(&request.key, &order.offer, &request.tenant(), created, order.limit);
                look.turn = Some(turn);
                self.measure();
            }
            Step::Hold => self.hold(remote, request).await?,
            Step::Create(order) => {
                let declared = match &look.pipeline {
                    Asked::Found(declared) => Some(declared.as_slice()),
                    Asked::NotYet | Asked::Missing => None,
                };
                let config = look.config.clone().unwrap_or_default();
                let run = self.create(remote, request, &order, declared, &config).await?;
                look.run = run.map_or(Asked::NotYet, |run| Asked::Found(Arc::new(run)));
            }
            Step::MarkQueued(position) => self.mark_queued(remote, request, position).await?,
            Step::MarkRunning => self.mark_running(remote, request).await?,
            Step::End(ending) => self.end(remote, request, known.as_deref(), &ending).await?,
            Step::Reject(message) => self.reject(remote, request, &message).await?,
            Step::Dismiss => {
                if let Some(run) = known {
                    self.dismiss(&run).await?;
                }
                look.run = Asked::Missing;
            }
            Step::Leave => {
                self.leave(&run_name).await?;
                look.run = Asked::Missing;
            }
            Step::Cancel => {
                if let Some(run) = known {
                    self.cancel(&run).await?;
                }
                look.run = Asked::Missing;
            }
            Step::LetGo => {
                if request.deleting {
                    self.forget_log(request).await?;
                }
                self.let_go(remote, request).await?;
            }
            Step::Rest => {}
        }
        Ok(())
    }

    /// Ends a run whose request is gone for certain.
    async fn stray(&self, name: &str) -> Result<Outcome, JobError> {
        let Some(run) = self.local.runs.get(&self.local.namespace, name) else { return Ok(Outcome::Done) };
        let Some(key) = &run.serves else { return Ok(Outcome::Done) };
        let Some(remote) = self.remote(key) else { return Ok(Outcome::Done) };
        if !run.kept {
            // It was left to the administrators, or never was ours.
            return Ok(Outcome::Done);
        }
        // What the watch has not shown is no proof: only the cluster itself can say that it is gone.
        let request = match remote.read(&key.namespace, &key.name).await {
            Err(error) if error.is_forbidden() && remote.leaves(&key.namespace) => {
                return self.unheard(&run, key).await;
            }
            read => read?,
        };
        if request.is_some_and(|request| request.uid == run.request_uid) {
            self.queue.add(Work::Request(key.clone()));
            return Ok(Outcome::Done);
        }
        tracing::info!(run = name, request = %key, "The request of this run is gone.");
        self.cancel(&run).await?;
        self.logs.forget(name).await.map_err(|error| JobError::Local("remove the kept log", error))?;
        self.release(key);
        Ok(Outcome::Done)
    }

    /// A run whose request we may not see any more, in a namespace that is no longer allowed: there is
    /// nobody to tell how it ended.
    async fn unheard(&self, run: &Run, key: &Key) -> Result<Outcome, JobError> {
        if run.ending.is_none() && !run.deleting {
            return Ok(Outcome::Again(UNHEARD));
        }
        tracing::warn!(run = %run.name, request = %key, "The end of this run cannot be told for want of rights.");
        self.cancel(run).await?;
        self.release(key);
        Ok(Outcome::Done)
    }

    fn release(&self, key: &Key) {
        self.ran().remove(key);
        let next = self.turns().release(key);
        for key in next {
            self.queue.add(Work::Request(key));
        }
        self.measure();
    }

    fn measure(&self) {
        // Told under the lock: of two who tell, the later one is right.
        let turns = self.turns();
        self.metrics.line(turns.running(), turns.waiting_count());
    }

    pub(crate) fn reached(&self, point: &str) {
        (self.reached)(point);
    }

    pub(crate) fn remote_names(&self) -> impl Iterator<Item = &str> {
        self.remotes.iter().map(|remote| remote.name.as_ref())
    }

    pub(crate) fn remote_count(&self) -> usize {
        self.remotes.len()
    }

    fn remote(&self, key: &Key) -> Option<&RemoteSide> {
        self.remotes.iter().find(|remote| remote.name == key.remote)
    }

    fn turns(&self) -> MutexGuard<'_, Turns<Key>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ran(&self) -> MutexGuard<'_, HashMap<Key, String>> {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner for Shared {
    fn told(&self, remote: &RemoteSide, change: Change<Request>) {
        self.request_changed(remote, &change);
    }

    fn needs_us(&self, request: &Request) -> bool {
        match request.phase {
            Phase::Queued | Phase::Running => self.begun(request) || (request.held && request.deleting),
            _ => request.held,
        }
    }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::ReadConfig => "read config",
        Step::ReadPipeline(_) => "read pipeline",
        Step::ReadRun => "read run",
        Step::AskTurn(_) => "ask turn",
        Step::Hold => "hold",
        Step::Create(_) => "create",
        Step::MarkQueued(_) => "mark queued",
        Step::MarkRunning => "mark running",
        Step::End(_) => "end",
        Step::Reject(_) => "reject",
        Step::Dismiss => "dismiss",
        Step::Leave => "leave",
        Step::Cancel => "cancel",
        Step::LetGo => "let go",
        Step::Rest => "rest",
    }
}
