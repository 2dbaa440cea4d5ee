//! Looks after running containers: asks what their pods want asked, and does what their hooks say.
//!
//! [`Cared`] stands in front of any [`Runner`] and is one itself. For each pod with probes or hooks
//! one task looks every second; all others pass untouched. What a probe finds changes only what is
//! told of a container, or ends it: whether it begins again is its restart policy's affair.

mod ask;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use k8s_openapi::api::core::v1::ContainerStatus;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::RunError;
use crate::plan::Container;
use crate::plan::probe::{Check, Finding, Hooks, Probe, Probes, Tally};
use crate::runner::{Known, LogStream, Runner, Session};
use crate::wire::{
    CreateReply, ExecRequest, LogRequest, PingReply, PodStatus, PodUsage, RetrievedPod, SystemInfo,
};

/// How often a pod is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What a hook may take where nothing else limits it.
const HOOK: Duration = Duration::from_secs(30);
const CHANGES: usize = 1024;

/// A runner whose containers are looked after.
pub struct Cared {
    inner: Arc<dyn Runner>,
    /// What was found, by UID and container.
    found: Mutex<HashMap<(String, String), Care>>,
    /// Pods that have a task of their own.
    tended: Mutex<HashMap<String, CancellationToken>>,
    changes: broadcast::Sender<String>,
    stop: CancellationToken,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    id: Option<String>,
    restarts: i32,
    began: Option<i64>,
}

impl Run {
    fn of(status: &ContainerStatus) -> Option<Self> {
        let running = status.state.as_ref()?.running.as_ref()?;
        let began = running.started_at.as_ref().map(|time| time.0.as_second());
        Some(Self { id: status.container_id.clone(), restarts: status.restart_count, began })
    }
}

/// What is known of one run.
#[derive(Debug, Clone)]
struct Care {
    run: Run,
    since: Instant,
    up: bool,
    ready: bool,
    asked: [(Option<Instant>, Tally); 3],
}

const STARTUP: usize = 0;
const READINESS: usize = 1;
const LIVENESS: usize = 2;

impl Care {
    fn new(run: Run, container: &Container) -> Self {
        let probes = &container.probes;
        Self {
            run,
            since: Instant::now(),
            up: probes.startup.is_none(),
            ready: probes.readiness.is_none() && probes.startup.is_none(),
            asked: Default::default(),
        }
    }

    /// The probes whose time has come.
    fn due<'a>(&mut self, container: &'a Container, now: Instant) -> Vec<(usize, &'a Probe)> {
        let probes = &container.probes;
        let all = [
            (STARTUP, probes.startup.as_ref().filter(|_| !self.up)),
            (READINESS, probes.readiness.as_ref().filter(|_| self.up)),
            (LIVENESS, probes.liveness.as_ref().filter(|_| self.up)),
        ];
        let mut due = Vec::new();
        for (which, probe) in all {
            let Some(probe) = probe.filter(|probe| now >= self.since + probe.delay) else { continue };
            let last = &mut self.asked[which].0;
            if last.is_none_or(|last| now >= last + probe.period) {
                *last = Some(now);
                due.push((which, probe));
            }
        }
        due
    }

    /// Takes an answer over; true if the container has to end.
    fn take(&mut self, which: usize, good: bool, probe: &Probe, serves_when_up: bool) -> bool {
        match (which, self.asked[which].1.count(good, probe)) {
            (_, Finding::Open) | (LIVENESS, Finding::Good) => false,
            (READINESS, found) => {
                self.ready = found == Finding::Good;
                false
            }
            (STARTUP, Finding::Good) => {
                self.up = true;
                self.ready = serves_when_up;
                false
            }
            _ => true,
        }
    }
}

impl Cared {
    /// Looks after the pods of `inner`, those it has and those to come.
    pub fn new(inner: Arc<dyn Runner>, stop: CancellationToken) -> Arc<Self> {
        let (changes, _) = broadcast::channel(CHANGES);
        let cared =
            Arc::new(Self { inner, found: Mutex::default(), tended: Mutex::default(), changes, stop });
        tokio::spawn(Arc::clone(&cared).follow());
        cared
    }

    fn found(&self) -> MutexGuard<'_, HashMap<(String, String), Care>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tended(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.tended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes changes on, and begins to tend pods as they appear.
    async fn follow(self: Arc<Self>) {
        let mut changes = self.inner.changes();
        // Those that were there before us: their hooks have run.
        for pod in self.inner.list().await.unwrap_or_default() {
            self.tend(&pod.uid, true);
        }
        loop {
            let change = tokio::select! {
                () = self.stop.cancelled() => return,
                change = changes.recv() => change,
            };
            let uid = match change {
                Ok(uid) => uid,
                Err(broadcast::error::RecvError::Lagged(_)) => String::new(),
                Err(broadcast::error::RecvError::Closed) => return,
            };
            let _ = self.changes.send(uid);
        }
    }

    fn tend(self: &Arc<Self>, uid: &str, before_us: bool) {
        let Some(known) = self.inner.known(uid) else { return };
        let wants = |container: &Container| {
            container.probes != Probes::default() || container.hooks != Hooks::default()
        };
        if !known.plan.all().any(wants) {
            return;
        }
        let end = self.stop.child_token();
        let mut tended = self.tended();
        if tended.contains_key(uid) {
            return;
        }
        tended.insert(uid.to_owned(), end.clone());
        drop(tended);
        let (cared, uid) = (Arc::clone(self), uid.to_owned());
        tokio::spawn(async move {
            let mut first = before_us;
            let mut tick = tokio::time::interval(LOOK);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = end.cancelled() => break,
                    _ = tick.tick() => {}
                }
                if !cared.look(&uid, first).await {
                    break;
                }
                first = false;
            }
            cared.forget(&uid);
        });
    }

    fn forget(&self, uid: &str) {
        if let Some(end) = self.tended().remove(uid) {
            end.cancel();
        }
        self.found().retain(|(of, _), _| of != uid);
    }

    /// One look at a pod; false once it is gone.
    async fn look(&self, uid: &str, before_us: bool) -> bool {
        let Some(known) = self.inner.known(uid) else { return false };
        let Ok(states) = self.inner.status(std::slice::from_ref(&uid.to_owned())).await else { return true };
        let Some(state) = states.into_iter().next() else { return true };
        // What is old says nothing about now.
        if state.stale_seconds > 0 {
            return true;
        }
        let statuses: Vec<&ContainerStatus> = state.init_containers.iter().chain(&state.containers).collect();
        let looks = known.plan.all().filter_map(|container| {
            let status = statuses.iter().find(|status| status.name == container.name)?;
            Some(self.look_at(&known, uid, container, Run::of(status)?, before_us))
        });
        join_all(looks).await;
        true
    }

    async fn look_at(&self, known: &Known, uid: &str, container: &Container, run: Run, before_us: bool) {
        let key = (uid.to_owned(), container.name.clone());
        let fresh = self.found().get(&key).is_none_or(|care| care.run != run);
        if fresh {
            self.found().insert(key.clone(), Care::new(run.clone(), container));
            let _ = self.changes.send(uid.to_owned());
            if let Some(hook) = container.hooks.post_start.as_ref().filter(|_| !before_us)
                && let Err(reason) = self.ask(uid, container, hook, HOOK).await
            {
                tracing::warn!(pod = %known.plan.id, container = %container.name, reason, "A postStart hook failed.");
                self.end_container(known, container).await;
                return;
            }
        }
        let due = match self.found().get_mut(&key) {
            Some(care) => care.due(container, Instant::now()),
            None => return,
        };
        let answers = join_all(due.into_iter().map(|(which, probe)| async move {
            (which, probe, self.ask(uid, container, &probe.check, probe.timeout).await)
        }))
        .await;
        for (which, probe, answer) in answers {
            let (before, over, after) = {
                let mut found = self.found();
                let Some(care) = found.get_mut(&key).filter(|care| care.run == run) else { return };
                let before = (care.ready, care.up);
                let over = care.take(which, answer.is_ok(), probe, container.probes.readiness.is_none());
                (before, over, (care.ready, care.up))
            };
            if before != after {
                let _ = self.changes.send(uid.to_owned());
            }
            if over {
                let reason = answer.err().unwrap_or_default();
                tracing::info!(pod = %known.plan.id, container = %container.name, reason, "A container does not answer its probe and is ended.");
                self.end_container(known, container).await;
                return;
            }
        }
    }

    async fn end_container(&self, known: &Known, container: &Container) {
        let (id, grace) = (&known.plan.id, known.plan.grace);
        if let Err(error) = self.inner.end(&id.uid, &container.name, grace).await {
            tracing::warn!(pod = %id, container = %container.name, error = %error, "A container could not be ended.");
        }
    }

    /// Runs the hooks of the end, as far as the grace lasts; gives what is left of it.
    async fn before_end(&self, uid: &str, grace: Option<Duration>) -> Option<Duration> {
        let known = self.inner.known(uid)?;
        let grace = grace.unwrap_or(known.plan.grace);
        let until = Instant::now() + grace;
        let states = self.inner.status(std::slice::from_ref(&uid.to_owned())).await.unwrap_or_default();
        let running: Vec<String> = states
            .iter()
            .flat_map(|state| state.init_containers.iter().chain(&state.containers))
            .filter(|status| Run::of(status).is_some())
            .map(|status| status.name.clone())
            .collect();
        let hooks = known.plan.all().filter(|container| running.contains(&container.name));
        let hooks = hooks.filter_map(|container| Some((container, container.hooks.pre_stop.as_ref()?)));
        join_all(hooks.map(|(container, hook)| async move {
            if let Err(reason) = self.ask(uid, container, hook, grace).await {
                tracing::warn!(uid, container = %container.name, reason, "A preStop hook failed.");
            }
        }))
        .await;
        // Kubernetes gives two seconds more where hooks took everything.
        Some(until.saturating_duration_since(Instant::now()).max(Duration::from_secs(2).min(grace)))
    }

    /// What was found of a pod, over what its runner tells.
    fn overlay(&self, mut state: PodStatus) -> PodStatus {
        let found = self.found();
        for status in state.init_containers.iter_mut().chain(&mut state.containers) {
            let known = self.inner.known(&state.uid);
            let Some(container) = known.as_ref().and_then(|known| known.plan.container(&status.name)) else {
                continue;
            };
            if container.probes.startup.is_none() && container.probes.readiness.is_none() {
                continue;
            }
            let run = Run::of(status);
            let care = found
                .get(&(state.uid.clone(), status.name.clone()))
                .filter(|care| Some(&care.run) == run.as_ref());
            // A run that was not looked at yet is not ready yet.
            status.ready &= care.is_some_and(|care| care.up && care.ready);
            status.started = Some(
                run.is_some() && (container.probes.startup.is_none() || care.is_some_and(|care| care.up)),
            );
        }
        state
    }

    async fn ask(
        &self,
        uid: &str,
        container: &Container,
        check: &Check,
        patience: Duration,
    ) -> Result<(), String> {
        let address = match check {
            Check::Connect(_) | Check::Page { .. } => self.inner.address(uid).await,
            Check::Command(_) | Check::Sleep(_) => None,
        };
        let asked = ask::ask(&*self.inner, uid, &container.name, check, address);
        tokio::time::timeout(patience, asked)
            .await
            .unwrap_or_else(|_| Err(format!("no answer in {} s", patience.as_secs())))
    }
}

/// The same runner for calls that need it shared.
#[async_trait]
impl Runner for Arc<Cared> {
    async fn start(&self, pod: RetrievedPod) -> Result<CreateReply, RunError> {
        let reply = self.inner.start(pod).await?;
        self.tend(&reply.pod_uid, false);
        Ok(reply)
    }

    async fn status(&self, uids: &[String]) -> Result<Vec<PodStatus>, RunError> {
        let states = self.inner.status(uids).await?;
        Ok(states.into_iter().map(|state| self.overlay(state)).collect())
    }

    async fn list(&self) -> Result<Vec<PodStatus>, RunError> {
        let states = self.inner.list().await?;
        Ok(states.into_iter().map(|state| self.overlay(state)).collect())
    }

    async fn logs(&self, request: LogRequest) -> Result<LogStream, RunError> {
        self.inner.logs(request).await
    }

    async fn exec(&self, request: ExecRequest) -> Result<Session, RunError> {
        self.inner.exec(request).await
    }

    async fn delete(&self, uid: &str, grace: Option<Duration>) -> Result<(), RunError> {
        let left = if self.tended().contains_key(uid) { self.before_end(uid, grace).await } else { grace };
        self.forget(uid);
        self.inner.delete(uid, left).await
    }

    async fn update(&self, pod: RetrievedPod) -> Result<(), RunError> {
        self.inner.update(pod).await
    }

    async fn end(&self, uid: &str, container: &str, grace: Duration) -> Result<(), RunError> {
        self.inner.end(uid, container, grace).await
    }

    async fn usage(&self) -> Result<Vec<PodUsage>, RunError> {
        self.inner.usage().await
    }

    async fn address(&self, uid: &str) -> Option<IpAddr> {
        self.inner.address(uid).await
    }

    async fn system_info(&self) -> Option<SystemInfo> {
        self.inner.system_info().await
    }

    fn known(&self, uid: &str) -> Option<Arc<Known>> {
        self.inner.known(uid)
    }

    async fn ping(&self) -> PingReply {
        self.inner.ping().await
    }

    fn changes(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }
}
