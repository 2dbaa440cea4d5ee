//! Why a node cannot do its work.

use std::path::PathBuf;

use tarbet_telemetry::codes::{cluster, ground, pods};
use tarbet_telemetry::{Coded, Problem, problem};

use super::interlink::InterlinkError;

/// A node that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file of settings cannot be used.
    #[error("the file {} cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A variable cannot be used.
    #[error("the variable {name} has the value `{value}`, which cannot be used")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Settings that make no sense.
    #[error("the node's settings cannot be used: {0}")]
    Settings(String),
    /// Certificates that cannot be used.
    #[error("the certificates for {what} cannot be used")]
    Tls {
        /// What they are for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address of the kubelet API is taken.
    #[error("the kubelet API cannot listen at {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The cluster refused something the node needs.
    #[error("the cluster does not let the node {what}")]
    Cluster {
        /// What it needs.
        what: &'static str,
        /// What the API said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The service account for interLink is not there, or is not ours to use.
    #[error("the cluster gives no token of the service account `{account}`, which interLink needs")]
    Account {
        /// Its namespace and name.
        account: String,
        /// What the API said.
        #[source]
        source: Box<kube::Error>,
    },
    /// interLink refused the service account.
    #[error("interLink did not take the service account")]
    ServiceAccount(#[source] InterlinkError),
}

impl Coded for NodeError {
    fn problem(&self) -> Problem {
        let message = format!("The node cannot run: {self}.");
        let cause = std::error::Error::source(self).map(problem::chain);
        let told = match self {
            Self::File { reason, .. } => {
                Problem::new(&ground::CONFIG_INVALID, message).because(reason.clone())
            }
            Self::Variable { .. } | Self::Settings(_) | Self::Tls { .. } => {
                Problem::new(&ground::CONFIG_INVALID, message)
            }
            Self::Listen { .. } => Problem::new(&ground::ADDRESS_IN_USE, message),
            Self::Cluster { .. } => Problem::new(&cluster::CLUSTER_REFUSED, message),
            Self::Account { .. } => Problem::new(&cluster::CLUSTER_REFUSED, message).advising(
                "create the account, let the node create `serviceaccounts/token`, or remove ServiceAccount",
            ),
            Self::ServiceAccount(_) => Problem::new(&pods::KUBECONFIG_REFUSED, message),
        };
        match cause {
            Some(cause) => told.because(cause),
            None => told,
        }
    }
}
