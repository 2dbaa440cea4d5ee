//! The panel of networks: the picture live, questions and permit lists on demand, changes for administrators.

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, http::StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tarbet_console::Panel;
use tarbet_nets::Orchestrator;
use tarbet_reach::audit::{AuditLog, Event};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::{Coded, Problem};

use super::{answer, ask};

/// A picture with more arrows says nothing.
const MOST_FLOWS: usize = 400;

/// The panel. `api` tells who the bearer of a token is.
pub(super) fn panel(orchestrator: Orchestrator, api: Router, audit: AuditLog) -> Panel {
    let routes = routes(orchestrator.router(), api, audit);
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

fn routes(rest: Router, api: Router, audit: AuditLog) -> Router {
    let pass = async move |request: Request| -> Response {
        let (mut parts, body) = request.into_parts();
        let Ok(uri) = parts.uri.to_string().parse::<Uri>() else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let reads = [Method::GET, Method::HEAD].contains(&parts.method);
        let wants = format!("nets {} {}", parts.method, uri.path());
        let mut who = None;
        if !reads {
            match administrator(&api, parts.headers.get(header::AUTHORIZATION)).await {
                Ok(name) => who = Some(name),
                Err(problem) => {
                    let code = Some(problem.code.clone());
                    audit.record(
                        Timestamp::now(),
                        &Event { wants, outcome: "refused".into(), code, ..Event::default() },
                    );
                    return (problem.status(), Json(problem)).into_response();
                }
            }
        }
        parts.uri = uri;
        parts.extensions.clear();
        parts.headers.remove(header::AUTHORIZATION);
        let said = answer(&rest, Request::from_parts(parts, body)).await;
        if !reads {
            let outcome = if said.status().is_success() { "answered" } else { "failed" };
            let status = Some(said.status().as_u16());
            let event = Event { principal: who, wants, outcome: outcome.into(), status, ..Event::default() };
            audit.record(Timestamp::now(), &event);
        }
        said
    };
    Router::new().route("/{*rest}", any(pass))
}

/// The bearer's name, if it is an administrator: networks belong to no site.
async fn administrator(api: &Router, bearer: Option<&header::HeaderValue>) -> Result<String, Problem> {
    let bearer = bearer.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let who: Value = ask(api, "whoami", bearer).await?;
    if who["admin"] != true {
        return Err(Problem::new(&reach::CALLER_REFUSED, "Only an administrator may change networks."));
    }
    Ok(who["name"].as_str().unwrap_or_default().to_owned())
}
