//! The local agent of `tarbet up`: this machine as the site `here`.

use std::fmt::Write as _;
use std::path::Path;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, header};
use tarbet_identity::Secret;
use tarbet_reach::agent::{self, AgentConfig};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Problem, problem::chain};
use tower::ServiceExt;

use crate::cli::endpoint::Endpoint;
use crate::config::Config;
use crate::roles::agent::surroundings;
use crate::roles::process::Process;

/// The name of the site.
pub const SITE: &str = "here";
/// An answer of our own API that is longer is none.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

pub(super) async fn start(
    process: &Process,
    config: &Config,
    folder: &Path,
    api: &Router,
    admin: &Secret,
    endpoint: &Endpoint,
    kubeconfig: Option<&Path>,
) -> Result<String, Problem> {
    let token_file = folder.join("here.token");
    join(api, admin, &token_file).await?;
    let mut settings: AgentConfig = config.agent.clone();
    settings.gateways = vec![endpoint.agents.clone()];
    settings.links = 1;
    settings.token_file = Some(token_file);
    settings.ca_file.clone_from(&endpoint.ca_file);
    settings.site.get_or_insert_with(|| SITE.into());
    settings.kubeconfig = settings.kubeconfig.or_else(|| kubeconfig.map(Path::to_owned));
    if settings.policy_file.is_none() {
        let file = folder.join("here.policy.yaml");
        std::fs::write(&file, policy(endpoint, settings.kubeconfig.is_some()))
            .map_err(|error| failed(&error))?;
        settings.policy_file = Some(file);
    }
    // The gateway of this very process keeps the record of what is asked.
    settings.audit.file = None;
    let _lives_on = agent::start(&settings, surroundings()?, &process.supervisor, &process.health).await?;
    Ok(format!("this machine is the site `{SITE}`"))
}

/// What may be reached here: what this process itself offers on loopback, and nothing else.
fn policy(endpoint: &Endpoint, kubernetes: bool) -> String {
    let ports: Vec<&str> = [&endpoint.interlink, &endpoint.nets]
        .into_iter()
        .flatten()
        .filter_map(|url| url.rsplit(':').next())
        .filter(|port| port.bytes().all(|b| b.is_ascii_digit()))
        .collect();
    let mut text =
        "# Written by `tarbet up` at each start; agent.policy_file names one of your own.\n".to_owned();
    if kubernetes {
        text.push_str("kubernetes: [{}]\n");
    }
    if !ports.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "tcp: [{{host: 127.0.0.1, ports: [{}]}}]", ports.join(", "));
    }
    text
}

/// Adds the site if it is new, and issues another token if its own was lost.
async fn join(api: &Router, admin: &Secret, file: &Path) -> Result<(), Problem> {
    let sites = ask(api, admin, Method::GET, "/v1/sites", Body::empty()).await?;
    let known = sites.as_array().into_iter().flatten().any(|site| site["name"] == SITE);
    if known && file.exists() {
        return Ok(());
    }
    let token = if known {
        ask(api, admin, Method::POST, &format!("/v1/sites/{SITE}/tokens"), Body::from("{}")).await?["token"]
            .clone()
    } else {
        let name = serde_json::json!({ "name": SITE }).to_string();
        ask(api, admin, Method::POST, "/v1/sites", Body::from(name)).await?["token"]["token"].clone()
    };
    if file.exists() {
        // Of an installation whose store is gone.
        std::fs::remove_file(file).map_err(|error| failed(&error))?;
    }
    let token = Secret::new(token.as_str().unwrap_or_default().to_owned());
    token.create_file(file).map(drop).map_err(|error| failed(&error))
}

async fn ask(
    api: &Router,
    admin: &Secret,
    method: Method,
    path: &str,
    body: Body,
) -> Result<serde_json::Value, Problem> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::AUTHORIZATION, format!("Bearer {}", admin.expose()))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|error| failed(&error))?;
    let answer = api.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), MAX_ANSWER).await.map_err(|error| failed(&error))?;
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(|error| failed(&error));
    }
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        Problem::new(&ground::INTERNAL, "The gateway does not take this machine as a site.")
            .because(status.to_string())
    }))
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Problem {
    Problem::new(&ground::INTERNAL, "This machine cannot become a site.").because(chain(error))
}
