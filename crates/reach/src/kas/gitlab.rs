//! GitLab as the one who knows agents and callers.
//!
//! [`GitlabClient`] asks its REST API who holds a token, [`Credential`] reads what a Kubernetes client
//! presented, and [`Access`] turns GitLab's answer into the identity a request goes to the site with.

mod cache;
mod client;
mod credential;
mod identity;
mod model;
mod modules;

use tonic::Status;

pub use client::{GitlabClient, GitlabSettings, GitlabSettingsError};
pub use credential::{BadCredential, Credential, strip_credential_query};
pub(crate) use modules::{ForModules, Module};

pub use identity::{Access, access_of_job, access_of_user};
pub use model::{
    AccessAs, AgentInfo, AllowedAgent, AllowedAgents, Configuration, Environment, ExtraValue, Id,
    ImpersonateAs, JobAccess, Project, ProxyUser, Roles, User, UserAccess,
};

/// Why GitLab gave no answer that can be used. Cheap to clone: answers are shared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitlabError {
    /// It said no.
    #[error("gateway → GitLab: it answered {status} to {path}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What was asked.
        path: &'static str,
    },
    /// It could not be asked, or answered with a failure of its own.
    #[error("gateway → GitLab: no answer to {path} ({cause}); check `gitlab.address` and the network to it")]
    Unavailable {
        /// What was asked.
        path: &'static str,
        /// What happened.
        cause: String,
    },
    /// It answered something else than was asked for.
    #[error(
        "gateway → GitLab: the answer to {path} cannot be used ({what}); check that `gitlab.address` is a GitLab"
    )]
    Malformed {
        /// What was asked.
        path: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

impl GitlabError {
    /// Whether asking again soon may help.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Refused { status: 401 | 403 | 404, .. })
    }
}

impl From<GitlabError> for Status {
    fn from(error: GitlabError) -> Self {
        match &error {
            GitlabError::Refused { status: 401, .. } => Self::unauthenticated(
                "agent → gateway: GitLab does not know the token; it may have been revoked",
            ),
            GitlabError::Refused { status: 403, .. } => {
                Self::permission_denied("agent → gateway: GitLab does not allow it")
            }
            GitlabError::Refused { status: 404, .. } => Self::not_found("agent not found"),
            _ => Self::unavailable(error.to_string()),
        }
    }
}
