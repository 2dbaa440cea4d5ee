//! The panel of networks: the picture live, questions and permit lists on demand, changes for administrators.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tarbet_console::Panel;
use tarbet_nets::Orchestrator;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem};

use super::answer;
use super::rights::Rights;

/// A picture with more arrows says nothing.
const MOST_FLOWS: usize = 400;

/// The panel.
pub(super) fn panel(orchestrator: Orchestrator, rights: Rights) -> Panel {
    let routes = routes(orchestrator.router(), rights);
    Panel::live("nets", move || {
        let orchestrator = orchestrator.clone();
        async move {
            let mut topology = orchestrator.topology().await.map_err(|error| error.problem())?;
            let open = topology.flows.len();
            topology.flows.truncate(MOST_FLOWS);
            let mut value = serde_json::to_value(&topology).map_err(|error| {
                Problem::new(&ground::INTERNAL, "The networks cannot be shown.").because(error.to_string())
            })?;
            value["open"] = open.into();
            value["tags"] = orchestrator.tags().list().len().into();
            Ok(value)
        }
    })
    .routes(routes)
}

fn routes(rest: Router, rights: Rights) -> Router {
    let pass = async move |request: Request| -> Response {
        let (mut parts, body) = request.into_parts();
        let Ok(uri) = parts.uri.to_string().parse::<Uri>() else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let reads = [Method::GET, Method::HEAD].contains(&parts.method);
        let wants = format!("nets {} {}", parts.method, uri.path());
        let headers = parts.headers.clone();
        parts.uri = uri;
        parts.extensions.clear();
        parts.headers.remove(header::AUTHORIZATION);
        let work = answer(&rest, Request::from_parts(parts, body));
        if reads { work.await } else { rights.change(&headers, wants, work).await }
    };
    Router::new().route("/{*rest}", any(pass))
}
