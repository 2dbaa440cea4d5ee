//! Why a pod cannot become a plan.

use tarbet_telemetry::codes::pods;
use tarbet_telemetry::{Coded, Problem};

use super::path::BadPath;

/// A pod that is not run, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A name or id that is not of Kubernetes' form.
    #[error("the pod's {field} `{}` is not of the form Kubernetes gives it", .value.escape_debug())]
    Name {
        /// Which one.
        field: &'static str,
        /// What was there.
        value: String,
    },
    /// No containers, or two of the same name.
    #[error("the pod {0}")]
    Shape(String),
    /// A path that could lead elsewhere.
    #[error("{place}: {source}")]
    Path {
        /// Where it was written.
        place: String,
        /// What is wrong with it.
        source: BadPath,
    },
    /// A value that cannot be passed to a program, such as one with a NUL.
    #[error("{0} has a value that no program can be given")]
    Value(String),
    /// A ConfigMap, Secret or key that the pod needs did not come with it.
    #[error("{0} did not come with the pod")]
    Missing(String),
    /// A kind of volume that is not carried.
    #[error("the volume `{0}` is of a kind that is not carried")]
    Volume(String),
    /// The host's policy does not allow it.
    #[error("the host does not allow {what}")]
    Refused {
        /// What was asked.
        what: String,
        /// The setting that would allow it.
        setting: &'static str,
    },
}

impl Coded for PlanError {
    fn problem(&self) -> Problem {
        match self {
            Self::Refused { setting, .. } => Problem::new(&pods::POD_REFUSED, format!("{self}."))
                .advising(format!("ask the administrator of the host whether `{setting}` may name it")),
            _ => Problem::new(&pods::POD_INVALID, format!("{self}.")),
        }
    }
}
