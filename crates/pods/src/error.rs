//! Why something with a pod did not work.

use std::io;

use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Coded, Problem};

use crate::plan::PlanError;

/// What a [`Runner`](crate::runner::Runner) could not do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The pod cannot be run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No such pod.
    #[error("the pod {0} is not known here")]
    UnknownPod(String),
    /// It was deleted before.
    #[error("the pod {0} was deleted here already")]
    Gone(String),
    /// No such container, or not yet.
    #[error("the pod {pod} has no container `{container}` that has started")]
    UnknownContainer {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// It cannot be done here.
    #[error("{0}")]
    Unsupported(String),
    /// A file of the pod could not be written or read.
    #[error("cannot {what}")]
    Folder {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Docker or Slurm does not answer.
    #[error("{runtime} does not answer: {reason}")]
    Away {
        /// Which.
        runtime: &'static str,
        /// Why.
        reason: String,
    },
    /// Docker or Slurm answered with an error.
    #[error("{runtime} refused to {what}: {reason}")]
    Refused {
        /// Which.
        runtime: &'static str,
        /// What was tried.
        what: String,
        /// Its words.
        reason: String,
    },
    /// The process is ending.
    #[error("the plugin is ending")]
    Ending,
}

impl RunError {
    /// A file operation that failed.
    pub fn folder(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Folder { what, source }
    }
}

impl Coded for RunError {
    fn problem(&self) -> Problem {
        let message = format!("{self}.");
        match self {
            Self::Plan(error) => error.problem(),
            Self::UnknownPod(_) => Problem::new(&pods::POD_UNKNOWN, message),
            Self::Gone(_) => Problem::new(&pods::POD_GONE, message),
            Self::UnknownContainer { .. } => Problem::new(&pods::CONTAINER_UNKNOWN, message),
            Self::Unsupported(_) => Problem::new(&pods::NOT_SUPPORTED, message),
            Self::Folder { source, .. } => {
                Problem::new(&pods::POD_FOLDER, message).because(source.to_string())
            }
            Self::Away { reason, .. } => Problem::new(&pods::RUNTIME_AWAY, message).because(reason.clone()),
            Self::Refused { reason, .. } => {
                Problem::new(&pods::RUNTIME_REFUSED, message).because(reason.clone())
            }
            Self::Ending => Problem::new(&ground::INTERNAL, message).because("it was asked to stop"),
        }
    }
}
