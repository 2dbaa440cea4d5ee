//! What can go wrong with a cluster, and what it means for the one who asked.

use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};
use tarbet_telemetry::codes::cluster;
use tarbet_telemetry::{Coded, Problem, problem};

/// A cluster cannot be reached as configured.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig is missing, unreadable or names something it does not hold.
    #[error("the kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig is not written as one.
    #[error("the kubeconfig {} cannot be read{}", path.display(), spot(*place))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line and column of the mistake.
        place: Option<(u64, u64)>,
    },
    /// The process does not run in a pod, or its service account is not mounted.
    #[error("the service account of this pod cannot be used")]
    InCluster(#[source] Box<InClusterError>),
    /// No way to any cluster was named or found.
    #[error("no cluster is configured")]
    Nowhere,
    /// The credentials or certificates in the configuration cannot be used.
    #[error("the client for {url} cannot be built")]
    Build {
        /// The URL of the API.
        url: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
}

fn spot(place: Option<(u64, u64)>) -> String {
    place.map_or_else(String::new, |(line, column)| format!(": line {line}, column {column}"))
}

impl Coded for ClusterError {
    fn problem(&self) -> Problem {
        let told = Problem::new(&cluster::CLUSTER_CONFIG, format!("A cluster cannot be used: {self}."));
        match std::error::Error::source(self) {
            Some(source) => told.because(problem::chain(source)),
            None => told,
        }
    }
}

/// What an answer of the API means for the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The object is not there (any more).
    Missing,
    /// An object of that name is there already.
    Exists,
    /// Somebody else changed the object first: read it again.
    Conflict,
    /// The API understood and said no; asking again changes nothing.
    Refused,
    /// Nothing is known about the request: the network, the server or its load. Ask again.
    Unavailable,
}

/// Sorts an error of the client.
pub fn class(error: &kube::Error) -> Class {
    let kube::Error::Api(status) = error else {
        return Class::Unavailable;
    };
    match status.code {
        404 => Class::Missing,
        409 if status.reason == "AlreadyExists" => Class::Exists,
        409 => Class::Conflict,
        // Credentials may be about to be rotated, so these two heal without a change of the request.
        401 | 408 | 410 | 429 => Class::Unavailable,
        400..=499 => Class::Refused,
        _ => Class::Unavailable,
    }
}

/// The error in words: what the API said, or the chain of what broke on the way to it.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("{} (HTTP status {})", status.reason, status.code),
        other => problem::chain(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn answer(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
    }

    #[test]
    fn answers_are_sorted_by_what_to_do_next() {
        for (code, reason, expected) in [
            (404, "NotFound", Class::Missing),
            (409, "AlreadyExists", Class::Exists),
            (409, "Conflict", Class::Conflict),
            (403, "Forbidden", Class::Refused),
            (422, "Invalid", Class::Refused),
            (413, "RequestEntityTooLarge", Class::Refused),
            (401, "Unauthorized", Class::Unavailable),
            (429, "TooManyRequests", Class::Unavailable),
            (500, "InternalError", Class::Unavailable),
            (504, "Timeout", Class::Unavailable),
        ] {
            assert_eq!(class(&answer(code, reason)), expected, "{code} {reason}");
        }
        assert_eq!(class(&kube::Error::TlsRequired), Class::Unavailable);
    }
}
