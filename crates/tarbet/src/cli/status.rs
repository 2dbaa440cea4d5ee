//! `tarbet status`: what runs here and how it is, capability by capability.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_reach::gateway::SiteView;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::endpoint::{Endpoint, ServerArgs, local_http, state_folder};
use crate::output::{Format, counted};

pub const EXAMPLES: &str = "Examples:
  tarbet status
  tarbet status -o json
  tarbet status --server https://gateway:8153 --token-file token

The exit code is 1 if something that should work does not.";

/// How long one part may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,
}

/// One line of the table.
struct Row {
    capability: &'static str,
    state: &'static str,
    place: String,
    detail: String,
    next: &'static str,
}

impl Row {
    fn off(capability: &'static str, detail: impl Into<String>, next: &'static str) -> Self {
        Self { capability, state: "off", place: "-".into(), detail: detail.into(), next }
    }
}

pub async fn run(args: StatusArgs, format: Format) -> Result<(), Problem> {
    let local = if args.server.named() { None } else { Endpoint::read(&state_folder()) };
    if local.is_none() && !args.server.named() {
        return Err(Problem::new(&ground::BAD_REQUEST, "Nothing of Tarbet runs here.")
            .at("this machine")
            .because(format!("{} holds no running `tarbet up`", state_folder().display()))
            .advising("start `tarbet up`, or ask another gateway with --server URL --token-file FILE"));
    }
    let http = local_http(local.as_ref(), PATIENCE);
    let mut rows = vec![reach(&args.server).await];
    if let Some(local) = &local {
        let parts = ready(&http, local).await;
        rows.push(process(local, parts.as_ref()));
        rows.extend(["jobs", "mesh", "node"].map(|name| clustered(name, local, parts.as_ref())));
        rows.push(pods(&http, local).await);
        rows.extend(nets(&http, local).await);
        rows.push(console(&http, local).await);
        rows.push(audit(local));
    }
    rows.sort_by_key(|row| ORDER.iter().position(|name| *name == row.capability));
    let failed: Vec<&str> =
        rows.iter().filter(|row| row.state == "failing").map(|row| row.capability).collect();
    let failing = !failed.is_empty();
    let values: Vec<Value> = rows
        .iter()
        .map(|row| json!({ "capability": row.capability, "state": row.state, "where": row.place, "detail": row.detail, "next": row.next }))
        .collect();
    let keys = ["capability", "state", "where", "detail"];
    format.rows(&keys, &keys, &values)?;
    if failing {
        return Err(Problem::new(&ground::UNHEALTHY, format!("Not working: {}.", failed.join(", "))));
    }
    if format == Format::Table {
        let next = rows.iter().find(|row| !row.next.is_empty()).map_or("tarbet check", |row| row.next);
        format.text(&format!("\nNext: {next}"))?;
    }
    Ok(())
}

const ORDER: [&str; 10] =
    ["process", "reach", "jobs", "pods", "node", "nets", "tags", "mesh", "console", "audit"];

async fn reach(server: &ServerArgs) -> Row {
    let asked = async {
        let server = server.connect()?;
        let sites: Vec<SiteView> = server.ask(Method::GET, "/v1/sites", None).await?;
        Ok::<_, Problem>((server.url, sites))
    };
    match asked.await {
        Ok((url, sites)) => {
            let connected = sites.iter().filter(|site| site.connected).count();
            let links: usize = sites.iter().map(|site| site.links.len()).sum();
            let detail = format!(
                "{connected} of {} connected, {}",
                counted(sites.len(), "site"),
                counted(links, "link")
            );
            let next = next_of_sites(&sites);
            Row { capability: "reach", state: "ready", place: url, detail, next }
        }
        Err(problem) => {
            let detail = format!("{} {}; {}", problem.message, problem.cause, problem.remedy);
            failing("reach", &problem.hop, &detail)
        }
    }
}

/// A first site besides this machine; then somebody knows how.
fn next_of_sites(sites: &[SiteView]) -> &'static str {
    if sites.iter().any(|site| site.name.as_str() != "here") { "" } else { "tarbet site add lab" }
}

fn failing(capability: &'static str, place: &str, detail: &str) -> Row {
    Row { capability, state: "failing", place: place.into(), detail: detail.into(), next: "tarbet check" }
}

async fn get(http: &reqwest::Client, url: &str) -> Result<Value, String> {
    let words = |error: reqwest::Error| tarbet_telemetry::problem::chain(&error.without_url());
    let answer = http.get(url).send().await.map_err(words)?;
    let status = answer.status();
    let text = answer.text().await.map_err(words)?;
    let value = serde_json::from_str(&text).unwrap_or(Value::Null);
    // Readiness says 503 and why; that is an answer too.
    if status.is_success() || status.as_u16() == 503 {
        Ok(value)
    } else {
        Err(format!("it answered {status}"))
    }
}

async fn ready(http: &reqwest::Client, local: &Endpoint) -> Option<Value> {
    get(http, &format!("{}/readyz", local.observability.as_ref()?)).await.ok()
}

fn process(local: &Endpoint, parts: Option<&Value>) -> Row {
    let place = format!("pid {}", local.pid);
    let Some(parts) = parts else { return failing("process", &place, "its probe does not answer") };
    let all = parts["parts"].as_object().cloned().unwrap_or_default();
    let bad: Vec<String> = all
        .iter()
        .filter(|(_, part)| part["state"] != "ready")
        .map(|(name, part)| format!("{name}: {}", part["reason"].as_str().unwrap_or("not ready")))
        .collect();
    if bad.is_empty() {
        let detail = format!("{} parts ready", all.len());
        return Row { capability: "process", state: "ready", place, detail, next: "" };
    }
    failing("process", &place, &bad.join("; "))
}

/// What only runs with a cluster.
fn clustered(name: &'static str, local: &Endpoint, parts: Option<&Value>) -> Row {
    let Some(told) = local.parts.get(name) else {
        return Row::off(name, "needs a cluster: tarbet up --kubeconfig FILE", "");
    };
    if told.starts_with("not started") {
        return Row::off(name, told.clone(), "");
    }
    let state = parts.map_or("unknown", |parts| if parts["ready"] == true { "ready" } else { "starting" });
    Row { capability: name, state, place: "this process".into(), detail: told.clone(), next: "" }
}

async fn pods(http: &reqwest::Client, local: &Endpoint) -> Row {
    let Some(url) = &local.interlink else { return Row::off("pods", "left out with --without pods", "") };
    match get(http, &format!("{url}/pinglink")).await {
        Ok(said) => {
            let runtime = said["status"].as_str().unwrap_or("ok");
            let kind =
                local.parts.get("pods").and_then(|told| told.split_once("  ")).map_or("", |(_, kind)| kind);
            let state = if runtime == "ok" { "ready" } else { "failing" };
            let detail = if runtime == "ok" { kind.to_owned() } else { runtime.to_owned() };
            Row {
                capability: "pods",
                state,
                place: url.clone(),
                detail,
                next: "tarbet pods run busybox -- echo hello",
            }
        }
        Err(cause) => failing("pods", url, &cause),
    }
}

async fn nets(http: &reqwest::Client, local: &Endpoint) -> Vec<Row> {
    let Some(url) = &local.nets else {
        return vec![
            Row::off("nets", "left out with --without nets", ""),
            Row::off("tags", "comes with nets", ""),
        ];
    };
    let (picture, tags) =
        match (get(http, &format!("{url}/topology")).await, get(http, &format!("{url}/tags")).await) {
            (Ok(picture), Ok(tags)) => (picture, tags),
            (Err(cause), _) | (_, Err(cause)) => {
                return vec![failing("nets", url, &cause), failing("tags", url, &cause)];
            }
        };
    let count = |value: &Value, one: &str| counted(value.as_array().map_or(0, Vec::len), one);
    let kind = local.parts.get("nets").and_then(|told| told.split_once("  ")).map_or("", |(_, kind)| kind);
    let planning = kind.starts_with("planning");
    let detail = format!(
        "{}, {}, {}, {}; {kind}",
        count(&picture["clouds"], "cloud"),
        count(&picture["resources"], "resource"),
        count(&picture["links"], "VPN"),
        count(&picture["flows"], "open flow"),
    );
    let state = if planning { "planning" } else { "ready" };
    let next = if planning { "" } else { "tarbet glide resource list" };
    let tags = count(&tags, "tag");
    vec![
        Row { capability: "nets", state, place: url.clone(), detail, next },
        Row { capability: "tags", state: "ready", place: url.clone(), detail: tags, next: "" },
    ]
}

async fn console(http: &reqwest::Client, local: &Endpoint) -> Row {
    let url = local.console.clone().unwrap_or_default();
    match get(http, &format!("{url}/api/health")).await {
        Ok(_) => Row {
            capability: "console",
            state: "ready",
            detail: "open it in a browser".into(),
            place: url,
            next: "",
        },
        Err(cause) => failing("console", &url, &cause),
    }
}

fn audit(local: &Endpoint) -> Row {
    let Some(file) = &local.audit_file else { return Row::off("audit", "no record is kept", "") };
    let place = file.display().to_string();
    let read = std::fs::File::open(file).map_err(|error| error.to_string()).and_then(|log| {
        tarbet_reach::audit::verify(std::io::BufReader::new(log), None).map_err(|broken| broken.to_string())
    });
    match read {
        Ok(verified) => Row {
            capability: "audit",
            state: "ready",
            place,
            detail: format!("{}, the chain is whole", counted(verified.records, "record")),
            next: "",
        },
        Err(cause) => failing("audit", &place, &cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_not_suggested() {
        let site = |name: &str| -> SiteView {
            let view = json!({"name": name, "id": 1, "created": "2026-01-01T00:00:00Z", "connected": true, "links": []});
            serde_json::from_value(view).unwrap()
        };
        assert_eq!(next_of_sites(&[]), "tarbet site add lab");
        assert_eq!(next_of_sites(&[site("here")]), "tarbet site add lab");
        assert_eq!(next_of_sites(&[site("lab")]), "");
    }
}
