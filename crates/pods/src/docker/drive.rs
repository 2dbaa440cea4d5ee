//! Carries a pod forward: what is due is done, and done again later where it failed.

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Api;
use bollard::query_parameters::{
    CreateContainerOptions, LogsOptions, RemoveContainerOptions, StartContainerOptions, StopContainerOptions,
};
use futures::StreamExt;
use futures::future::join_all;

use super::create::{self, Network};
use super::engine::{failed, status};
use super::machine::{Action, Slot, State, next};
use super::pod::Pod;
use super::status::Waiting;
use super::{Docker, image, pause};
use crate::error::RunError;
use crate::folder;
use crate::plan::Plan;

/// The first wait after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(1));
/// Kubernetes takes this much of a log as last message.
const MESSAGE_LINES: &str = "80";
const MESSAGE_BYTES: usize = 2048;

impl Docker {
    /// Drives a pod until it is told to stop.
    pub(super) async fn drive(self: Arc<Self>, pod: Arc<Pod>) {
        let mut wait = BACKOFF.0;
        loop {
            let turn = pod.turn.lock().await;
            if pod.stop.is_cancelled() {
                return;
            }
            let done = self.step(&pod).await;
            drop(turn);
            let retry = match done {
                Ok(()) => {
                    wait = BACKOFF.0;
                    None
                }
                Err(error) => {
                    let delay = wait;
                    wait = (wait * 2).min(BACKOFF.1);
                    tracing::warn!(pod = %pod.id, error = %tarbet_telemetry::problem::chain(&error), "A pod waits.");
                    Some(delay)
                }
            };
            tokio::select! {
                () = pod.stop.cancelled() => return,
                () = pod.wake.notified() => {}
                () = sleep(retry) => {}
            }
        }
    }

    /// Does all that is due now.
    async fn step(&self, pod: &Pod) -> Result<(), RunError> {
        // Without a complete view a container that is there could look as if it were not.
        while self.observed.complete() {
            let known = pod.known();
            let plan = &known.plan;
            self.note_ends(pod, plan);
            let actions = next(plan, |slot| self.state(pod, slot));
            if actions.is_empty() {
                self.collect_messages(pod, plan).await;
                return Ok(());
            }
            let api = self.engine.api().await?;
            let done = join_all(actions.into_iter().map(|action| self.act(&api, pod, plan, action))).await;
            done.into_iter().collect::<Result<Vec<()>, _>>()?;
        }
        Ok(())
    }

    async fn act(&self, api: &Api, pod: &Pod, plan: &Plan, action: Action) -> Result<(), RunError> {
        let (slot, make) = match action {
            Action::Run(slot) => (slot, true),
            Action::Start(slot) => (slot, false),
            Action::Stop(slot) => {
                let name = pod.name_of(&slot);
                self.stop(api, &name, plan.grace).await?;
                return self.observed.look(api, &name).await.map(drop);
            }
        };
        let done = async {
            if make {
                self.fetch(api, plan, &slot).await?;
            }
            // Waiting for an image takes nobody's turn.
            let _turn = self.starts.acquire().await.map_err(|_| RunError::Ending)?;
            if make {
                self.make(api, pod, plan, &slot).await?;
            }
            self.start_slot(api, pod, plan, &slot).await
        };
        let done = done.await;
        if let Slot::Container(name) = &slot {
            match &done {
                Ok(()) => pod.clear_waiting(name),
                Err(Stuck::Image(waiting)) => pod.set_waiting(name, waiting.clone()),
                Err(Stuck::Other(error)) => {
                    let message = tarbet_telemetry::problem::chain(error);
                    pod.set_waiting(name, Waiting { reason: "CreateContainerError", message });
                }
            }
            let _ = self.changes.send(pod.id.uid.clone());
        }
        done.map_err(|stuck| match stuck {
            Stuck::Image(Waiting { reason, message }) => {
                RunError::Refused { runtime: "Docker", what: reason.into(), reason: message }
            }
            Stuck::Other(error) => error,
        })
    }

    /// Has the daemon hold the image of a slot.
    async fn fetch(&self, api: &Api, plan: &Plan, slot: &Slot) -> Result<(), Stuck> {
        match slot {
            Slot::Pause => pause::ensure(api).await.map_err(Stuck::Other),
            Slot::Container(name) => {
                let Some(container) = plan.container(name) else { return Ok(()) };
                let pull = self.config.pull.unwrap_or(container.pull);
                image::ensure(api, container, pull).await.map_err(Stuck::Image)
            }
        }
    }

    async fn make(&self, api: &Api, pod: &Pod, plan: &Plan, slot: &Slot) -> Result<(), Stuck> {
        let network = Network { mode: &self.config.network, dns: &self.config.dns };
        let body = match slot {
            Slot::Pause => create::pause(plan, &self.instance, &network),
            Slot::Container(name) => {
                let Some(container) = plan.container(name) else { return Ok(()) };
                create::container(plan, container, &pod.folder, &self.instance, &network)
                    .map_err(RunError::folder(format!("mount the volumes of `{name}`")))?
            }
        };
        let name = pod.name_of(slot);
        let options = CreateContainerOptions { name: Some(name.clone()), ..Default::default() };
        match api.create_container(Some(options), body).await {
            Ok(_) => {}
            // Made before, by us: the name is the proof that there is only one.
            Err(error) if status(&error) == Some(409) => {}
            Err(error) => return Err(failed(format!("make the container `{name}`"))(error).into()),
        }
        self.reached().at("container made");
        match self.observed.look(api, &name).await? {
            Some(seen) if seen.uid == pod.id.uid => Ok(()),
            _ => Err(RunError::Refused {
                runtime: "Docker",
                what: format!("make the container `{name}`"),
                reason: "the name is taken by a container that is not ours".into(),
            }
            .into()),
        }
    }

    async fn start_slot(&self, api: &Api, pod: &Pod, plan: &Plan, slot: &Slot) -> Result<(), Stuck> {
        let name = pod.name_of(slot);
        // An older container of this name may have been started before we came.
        if let Some(seen) = self.observed.get(&name)
            && !(seen.state == State::Created || (*slot == Slot::Pause && seen.state != State::Running))
        {
            return Ok(());
        }
        if let Slot::Container(container) = slot {
            for mount in plan.container(container).iter().flat_map(|container| &container.mounts) {
                folder::mount_source(&pod.folder, plan, mount)
                    .map_err(RunError::folder(format!("mount the volumes of `{container}`")))?;
            }
            pod.note_started(slot)?;
            self.reached().at("start noted");
        }
        let started = api.start_container(&name, None::<StartContainerOptions>).await;
        self.reached().at("container started");
        let seen = self.observed.look(api, &name).await?;
        match started {
            Ok(()) => Ok(()),
            // Docker keeps the reason, and the container counts as ended.
            Err(_) if seen.is_some_and(|seen| matches!(seen.state, State::Ended(_))) => Ok(()),
            Err(error) => Err(failed(format!("start the container `{name}`"))(error).into()),
        }
    }

    /// The end of the log, for containers that ask for it as their last message.
    async fn collect_messages(&self, pod: &Pod, plan: &Plan) {
        for container in plan.all().filter(|container| container.message_from_log) {
            let slot = Slot::Container(container.name.clone());
            let failed = matches!(self.state(pod, &slot), State::Ended(code) if code != 0);
            if !failed || pod.has_message(&container.name) || !pod.message_file(&container.name).is_empty() {
                continue;
            }
            let Ok(api) = self.engine.api().await else { return };
            let options =
                LogsOptions { stdout: true, stderr: true, tail: MESSAGE_LINES.into(), ..Default::default() };
            let name = pod.name_of(&slot);
            let mut log = std::pin::pin!(api.logs(&name, Some(options)));
            let mut text = Vec::new();
            while let Some(Ok(piece)) = log.next().await {
                text.extend_from_slice(piece.as_ref());
            }
            let tail = &text[text.len().saturating_sub(MESSAGE_BYTES)..];
            pod.set_message(&container.name, String::from_utf8_lossy(tail).into_owned());
            let _ = self.changes.send(pod.id.uid.clone());
        }
    }

    /// Ends and removes one container of a pod.
    pub(super) async fn take_down(&self, api: &Api, name: &str, grace: Duration) -> Result<(), RunError> {
        self.stop(api, name, grace).await?;
        self.reached().at("container stopped");
        let removed =
            api.remove_container(name, Some(RemoveContainerOptions { v: true, ..Default::default() }));
        match removed.await {
            Ok(()) => {}
            // Not there, or being removed by somebody else.
            Err(error) if matches!(status(&error), Some(404 | 409)) => {}
            Err(error) => return Err(failed(format!("remove the container `{name}`"))(error)),
        }
        self.reached().at("container removed");
        self.observed.look(api, name).await.map(drop)
    }

    /// Ends one container for good, whatever its restart policy.
    async fn stop(&self, api: &Api, name: &str, grace: Duration) -> Result<(), RunError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let stopped =
            api.stop_container(name, Some(StopContainerOptions { t: Some(seconds), ..Default::default() }));
        match stopped.await {
            Ok(()) => {}
            // Not running, or not there.
            Err(error) if matches!(status(&error), Some(304 | 404)) => {}
            Err(error) => return Err(failed(format!("stop the container `{name}`"))(error)),
        }
        Ok(())
    }
}

enum Stuck {
    Image(Waiting),
    Other(RunError),
}

impl From<RunError> for Stuck {
    fn from(error: RunError) -> Self {
        Self::Other(error)
    }
}

async fn sleep(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}
