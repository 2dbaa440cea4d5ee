//! The life of a process: named tasks, started once, stopped in order.
//!
//! Tasks belong to a [`Stage`]. On the first signal, or when a task ends by itself, the stages are
//! stopped one after another: each stage's token is cancelled and its tasks awaited before the
//! next stage is touched. One deadline bounds the whole. A second signal ends the wait at once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::codes::ground;
use crate::problem::Problem;

/// When a task is stopped, first to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// What brings new work in: listeners and watches.
    Intake,
    /// What does the work: connections, requests, controllers.
    Work,
    /// What keeps records elsewhere true: registry entries, leases.
    Upkeep,
    /// What lets people look: metrics and probes stay up to the end.
    Observe,
}

const STAGES: [Stage; 4] = [Stage::Intake, Stage::Work, Stage::Upkeep, Stage::Observe];

#[derive(Default)]
struct Group {
    stop: CancellationToken,
    tasks: TaskTracker,
}

struct Shared {
    groups: [Group; 4],
    // The first failure of a task while it should have gone on.
    failure: watch::Sender<Option<Problem>>,
    stop: CancellationToken,
    // Ends what is left after the deadline.
    cut: CancellationToken,
}

/// Owns the tasks of a process. Cheap to clone; all clones are the same supervisor.
#[derive(Clone)]
pub struct Supervisor(Arc<Shared>);

impl Default for Supervisor {
    fn default() -> Self {
        Self(Arc::new(Shared {
            groups: Default::default(),
            failure: watch::Sender::new(None),
            stop: CancellationToken::new(),
            cut: CancellationToken::new(),
        }))
    }
}

impl Supervisor {
    /// Starts a task. It gets the token that tells it to finish, and must then end by itself;
    /// ending earlier stops the process.
    pub fn spawn<F, T>(&self, stage: Stage, name: impl Into<String>, task: F)
    where
        F: FnOnce(CancellationToken) -> T,
        T: Future<Output = Result<(), Problem>> + Send + 'static,
    {
        let name = name.into();
        let Group { stop, tasks } = &self.0.groups[stage as usize];
        let work = tokio::spawn(task(stop.clone()).instrument(tracing::info_span!("task", task = %name)));
        let (stop, shared) = (stop.clone(), Arc::clone(&self.0));
        tasks.spawn(async move {
            let abort = work.abort_handle();
            let failure = tokio::select! {
                ended = work => match ended {
                    Ok(Ok(())) if stop.is_cancelled() => None,
                    Ok(Ok(())) => Some(Problem::new(&ground::TASK_FAILED, format!("The task `{name}` ended although it should go on."))),
                    Ok(Err(problem)) => Some(problem),
                    Err(panic) => Some(
                        Problem::new(&ground::TASK_FAILED, format!("The task `{name}` panicked.")).because(panic.to_string()),
                    ),
                },
                () = shared.cut.cancelled() => {
                    abort.abort();
                    None
                }
            };
            if let Some(problem) = failure {
                tracing::error!(task = %name, code = %problem.code, cause = %problem.cause, problem = %problem.message, "Task failed.");
                shared.failure.send_if_modified(|first| first.is_none() && first.replace(problem).is_none());
            }
        });
    }

    /// The token that tells tasks of this stage to finish.
    pub fn stopping(&self, stage: Stage) -> CancellationToken {
        self.0.groups[stage as usize].stop.clone()
    }

    /// Begins the ordered stop, as a signal would.
    pub fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Runs until a signal or a failing task, then stops in order within `deadline`.
    ///
    /// `signal` is awaited once to begin and once more to end at once.
    pub async fn run<S, F>(&self, deadline: Duration, mut signal: S) -> Result<(), Problem>
    where
        S: FnMut() -> F,
        F: Future<Output = ()>,
    {
        let mut failure = self.0.failure.subscribe();
        tokio::select! {
            () = signal() => {}
            () = self.0.stop.cancelled() => {}
            _ = failure.wait_for(Option::is_some) => {}
        }
        tracing::info!(deadline_seconds = deadline.as_secs(), "Stopping in order.");
        let stopped = tokio::select! {
            stopped = self.stop_in_order(Instant::now() + deadline) => stopped,
            () = signal() => Err(Problem::new(&ground::SHUTDOWN_DEADLINE, "A second signal ended the process at once.")
                .because("the shutdown was interrupted")),
        };
        self.0.cut.cancel();
        let failed = self.0.failure.borrow().clone();
        failed.map_or(stopped, Err)
    }

    async fn stop_in_order(&self, end: Instant) -> Result<(), Problem> {
        for stage in STAGES {
            let Group { stop, tasks } = &self.0.groups[stage as usize];
            stop.cancel();
            tasks.close();
            if tokio::time::timeout_at(end, tasks.wait()).await.is_err() {
                let message = format!(
                    "{} tasks of the stage {stage:?} were cut off at the shutdown deadline.",
                    tasks.len()
                );
                return Err(Problem::new(&ground::SHUTDOWN_DEADLINE, message));
            }
            tracing::debug!(?stage, "Stage stopped.");
        }
        Ok(())
    }
}

/// SIGTERM and SIGINT, heard from the moment this is made. Cheap to clone.
#[derive(Clone)]
pub struct Signals(Arc<Notify>);

impl Signals {
    /// Begins to listen. Make it before anything else, so that no signal is missed or kills.
    pub fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let heard = Arc::new(Notify::new());
        let bell = Arc::clone(&heard);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                bell.notify_one();
            }
        });
        Ok(Self(heard))
    }

    /// Waits for the next one.
    pub async fn next(self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::Mutex;

    type Order = Arc<Mutex<Vec<&'static str>>>;

    fn record(supervisor: &Supervisor, stage: Stage, name: &'static str, order: &Order) {
        let order = Arc::clone(order);
        supervisor.spawn(stage, name, |stop| async move {
            stop.cancelled().await;
            // A task that needs time to finish must still end before the next stage is touched.
            tokio::time::sleep(Duration::from_secs(1)).await;
            order.lock().unwrap().push(name);
            Ok(())
        });
    }

    #[tokio::test(start_paused = true)]
    async fn stages_stop_one_after_another() {
        let (supervisor, order) = (Supervisor::default(), Order::default());
        record(&supervisor, Stage::Observe, "probes", &order);
        record(&supervisor, Stage::Upkeep, "registry", &order);
        record(&supervisor, Stage::Intake, "listener", &order);
        record(&supervisor, Stage::Work, "requests", &order);
        supervisor.stop();
        supervisor.run(Duration::from_secs(10), pending).await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["listener", "requests", "registry", "probes"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_cuts_off_what_hangs() {
        let supervisor = Supervisor::default();
        supervisor.spawn(Stage::Work, "hangs", |_| pending());
        supervisor.stop();
        let problem = supervisor.run(Duration::from_secs(3), pending).await.unwrap_err();
        assert_eq!((problem.code.as_str(), problem.exit_code()), ("TB-0203", 5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_at_once() {
        let supervisor = Supervisor::default();
        supervisor.spawn(Stage::Work, "hangs", |_| pending());
        let begun = Instant::now();
        let problem = supervisor.run(Duration::from_hours(1), || async {}).await.unwrap_err();
        assert_eq!(problem.cause, "the shutdown was interrupted");
        assert!(begun.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_panics_or_fails_stops_the_others() {
        for (how, expected) in [("ends", "ended"), ("panics", "panicked"), ("fails", "because it may")] {
            let (supervisor, order) = (Supervisor::default(), Order::default());
            record(&supervisor, Stage::Work, "requests", &order);
            supervisor.spawn(Stage::Intake, "listener", move |_| async move {
                match how {
                    "panics" => panic!("boom"),
                    "fails" => Err(Problem::new(&ground::INTERNAL, "It failed because it may.")),
                    _ => Ok(()),
                }
            });
            let problem = supervisor.run(Duration::from_secs(10), pending).await.unwrap_err();
            assert!(problem.message.contains(expected), "{how}: {}", problem.message);
            assert_eq!(*order.lock().unwrap(), ["requests"], "{how}");
        }
    }
}
