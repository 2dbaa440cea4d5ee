//! What stops the controller or a command.

use tarbet_telemetry::codes::{cluster, ground, mesh};
use tarbet_telemetry::{Coded, Problem, problem};

use crate::offline::RenderError;

/// What stops the controller or a command.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The listener for peers failed.
    #[error("the listener for peers failed")]
    Serve(#[source] tonic::transport::Error),
    /// The cluster did not do what was asked.
    #[error("the cluster was asked to {what}")]
    Cluster {
        /// What it was asked.
        what: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Coded for MeshError {
    fn problem(&self) -> Problem {
        match self {
            Self::Serve(source) => Problem::new(&ground::TASK_FAILED, "The listener for peers failed.")
                .because(problem::chain(source)),
            Self::Cluster { what, source } => {
                let code = match tarbet_cluster::class(source) {
                    tarbet_cluster::Class::Missing => &mesh::NOT_INSTALLED,
                    tarbet_cluster::Class::Unavailable => &cluster::CLUSTER_UNREACHABLE,
                    _ => &cluster::CLUSTER_REFUSED,
                };
                Problem::new(code, format!("The cluster did not {what}."))
                    .because(tarbet_cluster::describe(source))
            }
        }
    }
}

impl Coded for RenderError {
    fn problem(&self) -> Problem {
        Problem::new(&mesh::RENDER_INPUT, "The files cannot be rendered.").because(problem::chain(self))
    }
}
