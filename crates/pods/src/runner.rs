//! What runs pods: the one shape that Docker, Slurm and plain processes have.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use tokio::sync::{broadcast, mpsc};

use crate::error::RunError;
use crate::plan::{Container, Plan, PodId, Restart};
use crate::wire::{
    CreateReply, ExecRequest, Frame, LogRequest, PingReply, PodStatus, PodUsage, RetrievedPod, SystemInfo,
};

/// Runs pods somewhere. All calls may come at the same time and again after a crash.
#[async_trait]
pub trait Runner: Send + Sync + 'static {
    /// Makes sure that the pod is being run, and says by which id. A pod that is known already is
    /// left as it is: a second call never starts anything twice.
    async fn start(&self, pod: RetrievedPod) -> Result<CreateReply, RunError>;

    /// How the pods with these UIDs are, in this order, without those that are unknown.
    async fn status(&self, uids: &[String]) -> Result<Vec<PodStatus>, RunError>;

    /// How all pods are.
    async fn list(&self) -> Result<Vec<PodStatus>, RunError>;

    /// A container's log, from what was asked for; it ends with the container if it is followed.
    async fn logs(&self, request: LogRequest) -> Result<LogStream, RunError>;

    /// Runs a command in a container.
    async fn exec(&self, request: ExecRequest) -> Result<Session, RunError>;

    /// Ends the pod within `grace` (its own if `None`) and removes all that was made for it.
    /// A pod that is unknown is gone already.
    async fn delete(&self, uid: &str, grace: Option<Duration>) -> Result<(), RunError>;

    /// Takes over a changed pod: contents and downward files are rewritten, containers whose
    /// image changed are replaced once.
    async fn update(&self, pod: RetrievedPod) -> Result<(), RunError>;

    /// Ends one container of a pod within `grace`; what comes after is its restart policy's affair.
    async fn end(&self, uid: &str, container: &str, grace: Duration) -> Result<(), RunError>;

    /// What pods use at the moment, without those of which it is not known.
    async fn usage(&self) -> Result<Vec<PodUsage>, RunError>;

    /// The address at which this machine reaches a pod, where there is one.
    async fn address(&self, _uid: &str) -> Option<IpAddr> {
        None
    }

    /// How its scheduler is, where it has one.
    async fn system_info(&self) -> Option<SystemInfo> {
        None
    }

    /// A pod that it runs.
    fn known(&self, uid: &str) -> Option<Arc<Known>>;

    /// How it is itself, and what it can take.
    async fn ping(&self) -> PingReply;

    /// The UIDs of pods whose state changed, as it happens; some may be missed, so read
    /// everything again after a lag.
    fn changes(&self) -> broadcast::Receiver<String>;
}

/// Whether a container's turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It has.
    Now,
    /// An init container before it has not ended yet.
    Later,
    /// An init container before it failed for good. The container then counts as ended, since
    /// nodes of interLink wait for all of them.
    Never,
}

impl Turn {
    /// The turn of those after an init container that ended with `code`, or has not ended.
    #[must_use]
    pub fn after(self, code: Option<i64>, restart: Restart) -> Self {
        match (self, code) {
            (Self::Now, Some(0)) => Self::Now,
            (Self::Now, Some(_)) if restart == Restart::Never => Self::Never,
            (Self::Now, _) => Self::Later,
            (later, _) => later,
        }
    }

    /// The same for any init container: a sidecar lets the others begin once it has begun.
    #[must_use]
    pub fn after_init(self, init: &Container, begun: bool, code: Option<i64>, restart: Restart) -> Self {
        match (self, init.sidecar) {
            (Self::Now, true) if begun => Self::Now,
            (Self::Now, true) => Self::Later,
            _ => self.after(code, restart),
        }
    }

    /// The state of a container that never gets its turn.
    pub fn never() -> ContainerStateTerminated {
        ContainerStateTerminated {
            exit_code: 125,
            reason: Some("InitContainerFailed".into()),
            message: Some("it never ran, since an init container before it failed".into()),
            ..Default::default()
        }
    }
}

/// A log as it is read.
pub type LogStream = BoxStream<'static, Result<Bytes, RunError>>;

/// A command that runs in a container.
pub struct Session {
    /// To the command: [`Frame::Stdin`] and [`Frame::Resize`].
    pub input: mpsc::Sender<Frame>,
    /// From the command; the last is [`Frame::Exit`] or [`Frame::Failed`].
    pub output: mpsc::Receiver<Frame>,
}

/// A pod with its plan, as runners keep it.
#[derive(Debug, Clone)]
pub struct Known {
    /// What was sent.
    pub retrieved: RetrievedPod,
    /// What it means.
    pub plan: Plan,
}

impl Known {
    /// Who it is.
    pub fn id(&self) -> &PodId {
        &self.plan.id
    }
}
