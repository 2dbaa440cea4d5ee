//! The panel of networks: the picture live, questions and permit lists on demand, changes for administrators.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use serde_json::Value;
use tarbet_console::Panel;
use tarbet_nets::Orchestrator;
use tarbet_telemetry::codes::{ground, nets};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};

use super::answer;
use super::rights::Rights;
use crate::cli::endpoint::local_http;

/// A picture with more arrows says nothing.
const MOST_FLOWS: usize = 400;
/// How long another process may take: a change at a real cloud takes its time.
const PATIENCE: Duration = Duration::from_mins(1);
/// A change that a page sends is smaller.
const MAX_BODY: usize = 1024 * 1024;

/// Where networks are known.
#[derive(Clone)]
pub enum Networks {
    /// An orchestrator in this process.
    Here(Orchestrator),
    /// The REST listener of another.
    At(String),
}

impl Networks {
    /// What is drawn, and how many tags there are.
    async fn look(&self) -> Result<(Value, usize), Problem> {
        match self {
            Self::Here(orchestrator) => {
                let topology = orchestrator.topology().await.map_err(|error| error.problem())?;
                let drawn = serde_json::to_value(&topology).map_err(|error| unshown(&error))?;
                Ok((drawn, orchestrator.tags().list().len()))
            }
            Self::At(url) => {
                let (drawn, tags) = futures::try_join!(read(url, "/topology"), read(url, "/tags"))?;
                Ok((drawn, tags.as_array().map_or(0, Vec::len)))
            }
        }
    }

    /// All that can be asked and changed.
    fn rest(&self) -> Router {
        match self {
            Self::Here(orchestrator) => orchestrator.router(),
            Self::At(url) => {
                let url = url.clone();
                Router::new().fallback(async move |request: Request| match pass_on(&url, request).await {
                    Ok(answer) => answer,
                    Err(problem) => (problem.status(), Json(problem)).into_response(),
                })
            }
        }
    }
}

fn unshown(cause: &impl ToString) -> Problem {
    Problem::new(&ground::INTERNAL, "The networks cannot be shown.").because(cause.to_string())
}

fn away(url: &str, error: reqwest::Error) -> Problem {
    let message = format!("The orchestrator at {url} does not answer.");
    Problem::new(&nets::ORCHESTRATOR_UNREACHABLE, message)
        .at(format!("console → orchestrator at {url}"))
        .because(chain(&error.without_url()))
}

async fn read(url: &str, path: &str) -> Result<Value, Problem> {
    let answer = local_http(None, PATIENCE).get(format!("{url}{path}")).send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status).map_err(|error| away(url, error))?;
    answer.json().await.map_err(|error| away(url, error))
}

/// Asks the other process the same, and answers what it does.
async fn pass_on(url: &str, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await.map_err(|error| unshown(&error))?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut asked = local_http(None, PATIENCE).request(parts.method, format!("{url}{path}")).body(body);
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        asked = asked.header(header::CONTENT_TYPE, kind);
    }
    let answer = asked.send().await.map_err(|error| away(url, error))?;
    let status = answer.status();
    let kind = answer.headers().get(header::CONTENT_TYPE).cloned();
    let bytes = answer.bytes().await.map_err(|error| away(url, error))?;
    let mut passed = (status, bytes).into_response();
    if let Some(kind) = kind {
        passed.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(passed)
}

/// The panel.
pub(super) fn panel(networks: Networks, rights: Rights) -> Panel {
    let routes = routes(networks.rest(), rights);
    Panel::live("nets", move || {
        let networks = networks.clone();
        async move {
            let (mut drawn, tags) = networks.look().await?;
            let flows = drawn["flows"].as_array_mut();
            let open = flows.map_or(0, |flows| {
                let open = flows.len();
                flows.truncate(MOST_FLOWS);
                open
            });
            drawn["open"] = open.into();
            drawn["tags"] = tags.into();
            Ok(drawn)
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
