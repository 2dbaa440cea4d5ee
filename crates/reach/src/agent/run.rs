//! Running an agent: configuration in, links up, and another configuration when it is read again.

use std::time::Duration;

use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Problem, Stage, Supervisor};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::config::{AgentConfig, Surroundings};
use super::generation::{Generation, Lasting};
use super::parts;
use crate::audit::AuditLog;

/// How often the policy's file is looked at.
const POLICY_CHECK: Duration = Duration::from_secs(2);
/// How long another configuration may take to bring a link up before it is refused.
const PATIENCE: Duration = Duration::from_secs(20);

/// What reading the configuration again brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reloaded {
    /// Links and services are those of the new configuration.
    Replaced,
    /// Nothing but perhaps the policy has changed.
    Unchanged,
}

type Ask = (AgentConfig, oneshot::Sender<Result<Reloaded, Problem>>);

/// An agent that runs.
#[derive(Debug, Clone)]
pub struct Running(mpsc::Sender<Ask>);

impl Running {
    /// Takes over another configuration, or the same one with other files. New links are up before the old
    /// ones are left, and what runs there finishes there. A configuration that cannot be used, or under
    /// which no gateway is reached, changes nothing.
    ///
    /// The agent's own key and the place of its audit log stay as they were at the start.
    pub async fn reload(&self, config: AgentConfig) -> Result<Reloaded, Problem> {
        let stopping = || Problem::new(&ground::INTERNAL, "The agent is stopping.");
        let (tell, told) = oneshot::channel();
        self.0.send((config, tell)).await.map_err(|_| stopping())?;
        told.await.map_err(|_| stopping())?
    }
}

/// Checks everything, then starts the links under the supervisor.
pub async fn start(
    config: &AgentConfig,
    surroundings: Surroundings,
    supervisor: &Supervisor,
    health: &Health,
) -> Result<Running, Problem> {
    let mut lasting = Lasting {
        surroundings,
        key: parts::own_key(config)?,
        audit: None,
        instance: Uuid::new_v4(),
        health: health.clone(),
        tasks: TaskTracker::new(),
    };
    if let Some(file) = &config.audit.file {
        let (log, writer) = AuditLog::open(file).map_err(|error| {
            let text = format!("The audit log {} cannot be used.", file.display());
            Problem::new(&ground::CONFIG_INVALID, text).at("start of the agent").because(chain(&error))
        })?;
        let part = health.part("audit log");
        supervisor.spawn(Stage::Upkeep, "audit log", |stop| async move {
            writer.run(stop, part).await;
            Ok(())
        });
        lasting.audit = Some(log);
    }
    let mut first = Generation::build(config, &lasting, None).await?;
    first.run(&lasting);
    let (ask, asked) = mpsc::channel(1);
    supervisor.spawn(Stage::Work, "links", |stop| async move {
        keep(lasting, first, asked, stop).await;
        Ok(())
    });
    Ok(Running(ask))
}

async fn keep(
    lasting: Lasting,
    mut current: Generation,
    mut asked: mpsc::Receiver<Ask>,
    stop: CancellationToken,
) {
    let mut timer = tokio::time::interval(POLICY_CHECK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = timer.tick() => {
                // It has said what is wrong.
                let _ = current.look_at_policy();
            }
            Some((config, tell)) = asked.recv() => {
                let outcome = tokio::select! {
                    outcome = take_over(&lasting, &mut current, &config) => outcome,
                    () = stop.cancelled() => break,
                };
                // Whoever asked may have left.
                let _ = tell.send(outcome);
            }
        }
    }
    current.leave();
    lasting.tasks.close();
    lasting.tasks.wait().await;
}

async fn take_over(
    lasting: &Lasting,
    current: &mut Generation,
    config: &AgentConfig,
) -> Result<Reloaded, Problem> {
    if current.is_of(config) {
        return current.look_at_policy().map(|()| Reloaded::Unchanged);
    }
    let mut next = Generation::build(config, lasting, Some(current)).await?;
    // However the trial ends but well, it leaves again.
    let trial = next.on_trial();
    next.run(lasting);
    next.up(PATIENCE).await?;
    trial.disarm();
    let before = std::mem::replace(current, next);
    current.succeed(before);
    Ok(Reloaded::Replaced)
}
