//! Where capabilities meet what shows them: the panels of the console.

mod audit;
mod cluster;
mod nets;
mod pods;
mod rights;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde_json::{Map, Value, json};
use tarbet_console::{Console, Panel};
use tarbet_identity::Secret;
use tarbet_reach::audit::AuditLog;
use tarbet_telemetry::codes::{self, Whose, ground};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Metrics, Problem};
use tower::ServiceExt;

pub use cluster::Cluster;
pub use nets::Networks;

use crate::cli::endpoint::Endpoint;

/// An answer of our own API that is longer is none.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// What the page shows of the metrics.
const SHOWN: [&str; 6] = [
    "tarbet_requests_total{outcome=\"success\"}",
    "tarbet_requests_total{outcome=\"failure\"}",
    "tarbet_requests_waiting",
    "tarbet_links",
    "tarbet_links_opened_total",
    "tarbet_links_refused_total",
];

/// What the console shows of a gateway in this process.
pub struct Shown {
    /// The gateway's name.
    pub gateway: String,
    /// Its API, asked without a socket.
    pub api: Router,
    /// Reads on behalf of those who have no token.
    pub reader: Secret,
    /// What is told to people who want to connect something.
    pub endpoint: Endpoint,
    /// Where metrics and probes are.
    pub observability: String,
    /// The parts of this process.
    pub health: Health,
    /// Its numbers.
    pub metrics: Metrics,
    /// Where actions are recorded.
    pub audit: AuditLog,
    /// The networks, if there are any.
    pub nets: Option<Networks>,
    /// Clusters, served from here or not.
    pub clusters: Vec<Cluster>,
}

/// The console of one process.
pub fn console(shown: Shown) -> Console {
    let Shown { gateway, api, reader, endpoint, observability, health, metrics, audit, nets, clusters } =
        shown;
    let rights = rights::Rights { api: api.clone(), audit };
    let mut panels = Vec::new();
    if let Some(url) = &endpoint.interlink {
        match pods::panel(url) {
            Ok(panel) => panels.push(panel),
            Err(problem) => tracing::warn!(cause = %problem.cause, "Pods are not shown."),
        }
    }
    if let Some(nets) = nets {
        panels.push(nets::panel(nets, rights.clone()));
    }
    if let Some(file) = &endpoint.audit_file {
        panels.push(audit::panel(file.clone()));
    }
    if !clusters.is_empty() {
        panels.extend(cluster::panels(&clusters, &rights));
    }
    let about = json!({
        "panels": panels.iter().map(Panel::name).collect::<Vec<_>>(),
        "parts": endpoint.parts,
        "name": gateway,
        "version": env!("CARGO_PKG_VERSION"),
        "agents": endpoint.agents,
        "tokenFile": endpoint.token_file,
        "caFile": endpoint.ca_file,
        "metrics": format!("{observability}/metrics"),
    });
    panels.extend([
        Panel::fixed("gateway", about).routes(actions(api.clone())),
        listing("sites", api.clone(), reader.clone()),
        listing("links", api.clone(), reader.clone()),
        listing("requests", api, reader),
        Panel::live("traffic", move || {
            let page = metrics.render();
            async move {
                let page = page.map_err(|error| {
                    Problem::new(&ground::INTERNAL, "The metrics cannot be read.").because(error.to_string())
                })?;
                Ok(numbers(&page))
            }
        }),
        Panel::live("health", move || {
            let parts = json!({ "ready": health.is_ready(), "parts": health.parts() });
            async move { Ok(parts) }
        }),
        Panel::fixed("codes", codes::all().map(row).collect()),
    ]);
    Console::new(panels)
}

/// The API itself, for callers with a token of their own: it alone judges what they may do.
fn actions(api: Router) -> Router {
    let pass = async move |request: Request| {
        let (mut parts, body) = request.into_parts();
        let Ok(uri) = format!("/v1{}", parts.uri).parse::<Uri>() else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        parts.uri = uri;
        // What the console found in the path must not be taken for what the API finds there.
        parts.extensions.clear();
        answer(&api, Request::from_parts(parts, body)).await
    };
    Router::new().route("/{*rest}", any(pass))
}

async fn answer(api: &Router, request: Request) -> Response {
    api.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// A list of the API as a panel.
fn listing(name: &'static str, api: Router, reader: Secret) -> Panel {
    Panel::live(name, move || {
        let (api, reader) = (api.clone(), reader.clone());
        async move { ask(&api, name, &format!("Bearer {}", reader.expose())).await }
    })
}

/// Asks the API for something, on behalf of whoever brought these credentials.
async fn ask(api: &Router, name: &str, credentials: &str) -> Result<Value, Problem> {
    let request = Request::get(format!("/v1/{name}")).header(header::AUTHORIZATION, credentials);
    let request = request.body(Body::empty()).map_err(|error| odd(name, chain(&error)))?;
    let answer = answer(api, request).await;
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), MAX_ANSWER).await.map_err(|error| odd(name, chain(&error)))?;
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(|error| odd(name, error.to_string()));
    }
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| odd(name, format!("it answered {status}"))))
}

fn odd(name: &str, cause: String) -> Problem {
    Problem::new(&ground::INTERNAL, format!("The gateway does not list its {name}.")).because(cause)
}

/// The shown metrics of a Prometheus page, by their full names.
fn numbers(page: &str) -> Value {
    let found = page.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        SHOWN.contains(&name).then_some((name.to_owned(), value.parse::<f64>().ok()?.into()))
    });
    Value::Object(found.collect::<Map<_, _>>())
}

fn row(code: &codes::Code) -> Value {
    let whose = match code.whose {
        Whose::Caller => "caller",
        Whose::Upstream => "upstream",
        Whose::Ours => "ours",
    };
    json!({
        "code": code.id, "title": code.title, "whose": whose, "retry": code.retry, "http": code.http,
        "hop": code.hop, "cause": code.cause, "try": code.remedy, "page": code.page,
    })
}

#[cfg(test)]
mod tests {
    use axum::extract::Path;

    use super::*;

    #[test]
    fn only_the_shown_numbers_are_taken_from_the_metrics() {
        let page = "# TYPE tarbet_links gauge\ntarbet_links 3\ntarbet_requests_total{outcome=\"success\"} 12\nother 1\n";
        assert_eq!(
            numbers(page),
            json!({ "tarbet_links": 3.0, "tarbet_requests_total{outcome=\"success\"}": 12.0 })
        );
    }

    #[tokio::test]
    async fn actions_reach_the_api_below_its_own_path() {
        let api = Router::new()
            .route("/v1/sites/{site}", axum::routing::delete(async |Path(site): Path<String>| site));
        let request = Request::delete("/sites/far%2Daway").body(Body::empty()).unwrap();
        let said = answer(&actions(api), request).await;
        assert_eq!(to_bytes(said.into_body(), 100).await.unwrap(), "far-away");
    }
}
