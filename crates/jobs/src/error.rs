//! Why a look at a request could not be finished. Every one is tried again.

use tarbet_cluster::{Class, class};

/// A step that could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// The remote cluster, while doing this.
    #[error("the remote cluster did not {0}")]
    Remote(&'static str, #[source] kube::Error),
    /// The private cluster, while doing this.
    #[error("the private cluster did not {0}")]
    Local(&'static str, #[source] kube::Error),
    /// The request is gone, so nothing needs to be written.
    #[error("the request is gone")]
    Gone,
    /// The configuration object is there and cannot be read.
    #[error("the InternalServicesConfig cannot be read: {0}")]
    Config(String),
}

impl JobError {
    /// Whether somebody merely came first, so that looking again at once helps.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::Remote(_, error) | Self::Local(_, error) => class(error) == Class::Conflict,
            Self::Config(_) | Self::Gone => false,
        }
    }

    /// Whether we lack the rights on the remote cluster.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Remote(_, kube::Error::Api(status)) if status.code == 403)
    }

    /// What the API said, or what broke on the way.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Remote(_, error) | Self::Local(_, error) => tarbet_cluster::describe(error),
            Self::Config(why) => why.clone(),
            Self::Gone => String::new(),
        }
    }
}
