//! Errors over gRPC and back, and listeners that stop.

use std::convert::Infallible;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tarbet_telemetry::codes::nets;
use tarbet_telemetry::intake::{self, Limits};
use tarbet_telemetry::{Code, Coded, Problem};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Status, metadata::MetadataValue};
use tower::Service;

use crate::error::Error;
use crate::trust::Gate;

/// Where the whole problem travels beside the status, for those who understand it.
const HEADER: &str = "tarbet-problem";

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let problem = error.problem();
        if problem.status().is_server_error() {
            tracing::warn!(code = %problem.code, error = %tarbet_telemetry::problem::chain(&error), cause = %problem.cause, "A call failed.");
        }
        status(&problem)
    }
}

/// A problem as a gRPC status. Programs of other origin see the sentence and the cause.
pub fn status(problem: &Problem) -> Status {
    let code = match problem.row().http {
        400 => tonic::Code::InvalidArgument,
        401 => tonic::Code::Unauthenticated,
        403 => tonic::Code::PermissionDenied,
        404 => tonic::Code::NotFound,
        409 => tonic::Code::FailedPrecondition,
        501 => tonic::Code::Unimplemented,
        502 | 503 => tonic::Code::Unavailable,
        504 => tonic::Code::DeadlineExceeded,
        _ => tonic::Code::Internal,
    };
    let mut status = Status::new(code, format!("{} ({}; {})", problem.message, problem.code, problem.cause));
    let json = serde_json::to_vec(problem).unwrap_or_default();
    if let Ok(value) = MetadataValue::try_from(STANDARD.encode(json)) {
        status.metadata_mut().insert(HEADER, value);
    }
    status
}

/// What a status from the far side means here. `unreachable` is the code for when nobody answered.
pub fn told(status: &Status, hop: &str, unreachable: &'static Code) -> Error {
    let carried = status
        .metadata()
        .get(HEADER)
        .and_then(|value| STANDARD.decode(value.as_bytes()).ok())
        .and_then(|json| serde_json::from_slice::<Problem>(&json).ok());
    if let Some(problem) = carried {
        return problem.into();
    }
    // What never came to an answer has a cause of its own: the connection.
    let broken = std::error::Error::source(status).is_some();
    let code = match status.code() {
        _ if broken => unreachable,
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => unreachable,
        tonic::Code::Unimplemented => &nets::UNSUPPORTED,
        tonic::Code::InvalidArgument => &nets::INVALID,
        tonic::Code::NotFound => &nets::RESOURCE_UNKNOWN,
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => &nets::PLUGIN_REFUSED,
        _ => &nets::CLOUD_FAILED,
    };
    let said =
        if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    Problem::new(code, format!("{hop} did not do what was asked.")).at(hop).because(said).into()
}

/// What can be served: a service by itself, to which no way has to be found for every call, or routes to several.
pub trait Rpc:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Rpc for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Serves a service on a bound listener until `stop`, letting running calls finish.
/// Nothing is asked of callers, so it is for loopback.
pub async fn serve(listener: TcpListener, service: impl Rpc, stop: CancellationToken) -> Result<(), Error> {
    serve_behind(&Gate::open(), listener, service, stop).await
}

/// The same for those who get through the gate.
pub(crate) async fn serve_behind(
    gate: &Gate,
    listener: TcpListener,
    service: impl Rpc,
    stop: CancellationToken,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Internal(format!("a gRPC listener failed: {error}"));
    let callers = gate.connections(listener, stop.clone()).map_err(failed)?;
    intake::serve_rpc(callers, gate.rpc(service), Limits::default(), stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_survives_the_wire() {
        let error = Error::Foreign { namespace: "a".into(), resource: "b".into() };
        let before = error.problem();
        let status = Status::from(error);
        assert_eq!(status.code(), tonic::Code::PermissionDenied);
        let after = told(&status, "orchestrator → cloud x", &nets::PLUGIN_UNREACHABLE).problem();
        assert_eq!(after, before);
    }

    #[test]
    fn a_stranger_is_quoted() {
        let told =
            told(&Status::unknown("quota exceeded"), "orchestrator → cloud x", &nets::PLUGIN_UNREACHABLE);
        let problem = told.problem();
        assert_eq!((problem.code.as_str(), problem.cause.as_str()), ("TB-4203", "quota exceeded"));
        assert_eq!(problem.hop, "orchestrator → cloud x");
    }
}
