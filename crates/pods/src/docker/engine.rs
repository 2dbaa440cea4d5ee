//! The connection to a Docker daemon, made when it is needed and again when it was lost.

use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker as Api};
use tokio::sync::RwLock;
use tokio::time::timeout;

use crate::error::RunError;

/// Stopping a container may take its whole grace; nothing else takes nearly as long.
const REQUEST_SECONDS: u64 = 900;
/// A daemon that does not say its version in this time is away.
const CONNECT: Duration = Duration::from_secs(10);

pub(super) struct Engine {
    host: String,
    api: RwLock<Option<Api>>,
}

impl Engine {
    /// `unix:///path`, `/path` or `tcp://address:port`.
    pub(super) fn new(host: String) -> Self {
        Self { host, api: RwLock::new(None) }
    }

    pub(super) async fn api(&self) -> Result<Api, RunError> {
        if let Some(api) = &*self.api.read().await {
            return Ok(api.clone());
        }
        let mut slot = self.api.write().await;
        if let Some(api) = &*slot {
            return Ok(api.clone());
        }
        let connect = || match self.host.strip_prefix("tcp://") {
            Some(address) => Api::connect_with_http(address, REQUEST_SECONDS, API_DEFAULT_VERSION),
            None => Api::connect_with_unix(&self.host, REQUEST_SECONDS, API_DEFAULT_VERSION),
        };
        let away =
            |reason: String| RunError::Away { runtime: "Docker", reason: format!("{}: {reason}", self.host) };
        let api = connect().map_err(|error| away(error.to_string()))?;
        let api = timeout(CONNECT, api.negotiate_version()).await;
        let api = api.map_err(|_| away("no answer".into()))?.map_err(|error| away(error.to_string()))?;
        Ok(slot.insert(api).clone())
    }

    /// Connects anew at the next call: the daemon may be another version after a restart.
    pub(super) async fn forget(&self) {
        *self.api.write().await = None;
    }
}

/// An error of Docker in our words.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(Error) -> RunError {
    let what = what.into();
    move |error| match error {
        Error::DockerResponseServerError { message, .. } => {
            RunError::Refused { runtime: "Docker", what, reason: message }
        }
        Error::DockerStreamError { error } => RunError::Refused { runtime: "Docker", what, reason: error },
        other => RunError::Away { runtime: "Docker", reason: tarbet_telemetry::problem::chain(&other) },
    }
}

/// The HTTP status of an error, if Docker answered at all.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}
