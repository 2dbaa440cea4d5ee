//! Google Cloud: one global network for each namespace, a subnet for each region, firewalls as permit lists.
//!
//! Ingress is denied by the cloud itself, egress by a rule of ours at the lowest priority. A machine carries a
//! network tag of its own, and each of its rules is one firewall that names this tag; so do the nodes of a cluster.
//! Endpoints of Private Service Connect have an address instead, and their rules name it.
//! Not offered: rules with both ports.

mod cloud;
mod cluster;
mod credentials;
mod describe;
mod endpoint;
mod firewall;
mod foreign;
mod network;
mod tidy;
mod vpn;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use uuid::Uuid;

use super::auth::{Authorize, Bearer, TokenFile};
use super::pace::{Clock, System};
use super::pages::Pages;
use super::rest::{Answer, Call, Rest, client, endpoint};
use super::taken;
use super::ways::Ways;
use crate::cloud::Policy;
use crate::controller::Controller;
use crate::error::Error;
use crate::model::{Deployment, Flags};
use credentials::Google;

/// What URIs begin with, whatever endpoint is called.
const PREFIX: &str = "https://www.googleapis.com/compute/v1/";
/// The cloud's own limit.
const NAME_MAX: usize = 63;
/// A wait holds up to two minutes by itself.
const BETWEEN_WAITS: Duration = Duration::from_secs(1);

/// Settings of the Google Cloud plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct GcpConfig {
    /// The Compute Engine API.
    pub endpoint: String,
    /// The Kubernetes Engine API, which only clusters need.
    pub container_endpoint: String,
    /// Where tokens are fetched; what the credentials say if absent.
    pub token_endpoint: Option<String>,
    /// The metadata server, for a machine's own account.
    pub metadata: String,
    /// A key file or a login of gcloud; the machine's own account if absent.
    pub credentials_file: Option<PathBuf>,
    /// Instead: a file in which somebody keeps a fresh token.
    pub token_file: Option<PathBuf>,
    /// The region of VPN gateways.
    pub vpn_region: String,
    /// What this cloud does for anybody.
    pub policy: Policy,
}

impl Default for GcpConfig {
    fn default() -> Self {
        Self {
            endpoint: "https://compute.googleapis.com/compute/v1".into(),
            container_endpoint: "https://container.googleapis.com/v1".into(),
            token_endpoint: None,
            metadata: "http://metadata.google.internal".into(),
            credentials_file: None,
            token_file: None,
            vpn_region: "us-west1".into(),
            policy: Policy::default(),
        }
    }
}

/// Fills in where Google's own tools look for credentials: `GOOGLE_APPLICATION_CREDENTIALS`, then the file
/// that `gcloud auth application-default login` leaves.
pub fn default_credentials(mut config: GcpConfig, environment: impl Fn(&str) -> Option<String>) -> GcpConfig {
    let login = || {
        let home = PathBuf::from(environment("HOME")?);
        Some(home.join(".config/gcloud/application_default_credentials.json")).filter(|file| file.is_file())
    };
    let named = || environment("GOOGLE_APPLICATION_CREDENTIALS").filter(|file| !file.is_empty());
    config.credentials_file = config.credentials_file.or_else(|| named().map(PathBuf::from)).or_else(login);
    config
}

/// Google Cloud.
pub struct Gcp {
    name: String,
    vpn_region: String,
    rest: Rest,
    base: Url,
    /// Where clusters are.
    clusters: Url,
    flags: Mutex<Flags>,
    controller: Arc<dyn Controller>,
    /// Routers are read, changed and written back whole, so one at a time.
    router: tokio::sync::Mutex<()>,
    /// Networks and subnets are made and removed one at a time. Readers of spaces never wait for it.
    shape: tokio::sync::Mutex<()>,
    /// Peerings and NAT, by project and namespace.
    ways: Ways<(String, String)>,
    /// Where the orchestrator said it has something: what is listed and compared.
    seen: Mutex<BTreeSet<Deployment>>,
}

/// How a change went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is made now.
    Made,
    /// It was so before.
    Before,
    /// Others need it.
    InUse,
}

impl Gcp {
    /// The plugin. Nothing is asked of the cloud yet.
    pub fn new(name: &str, config: &GcpConfig, controller: Arc<dyn Controller>) -> Result<Self, Error> {
        Self::with_clock(name, config, controller, System::shared())
    }

    /// The same with another time.
    pub fn with_clock(
        name: &str,
        config: &GcpConfig,
        controller: Arc<dyn Controller>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let auth: Arc<dyn Authorize> = if let Some(file) = &config.token_file {
            Arc::new(Bearer::new(TokenFile(file.clone()), clock.clone()))
        } else {
            Arc::new(Bearer::new(Google::new(config, client()?, clock.clone())?, clock.clone()))
        };
        let rest = Rest::new(name, auth, clock)?;
        legal("vpnRegion", config.vpn_region.clone())?;
        Ok(Self {
            name: name.into(),
            vpn_region: config.vpn_region.clone(),
            rest,
            base: endpoint("endpoint", &config.endpoint)?,
            clusters: endpoint("containerEndpoint", &config.container_endpoint)?,
            flags: Mutex::default(),
            controller,
            router: tokio::sync::Mutex::default(),
            shape: tokio::sync::Mutex::default(),
            ways: Ways::default(),
            seen: Mutex::default(),
        })
    }

    fn at(&self, path: &str) -> Result<Url, Error> {
        let wrong = |error| Error::Internal(format!("the path {path} is none: {error}"));
        self.base.join(path.strip_prefix(PREFIX).unwrap_or(path)).map_err(wrong)
    }

    /// An object, or nothing if there is none.
    async fn get(&self, path: &str) -> Result<Option<Value>, Error> {
        self.rest.get(self.at(path)?).await
    }

    /// All objects of a collection whose name matches, page by page.
    async fn list(&self, path: &str, pattern: &str) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        let mut pages = Pages::of(&self.name, path);
        let mut page: Option<String> = None;
        loop {
            let mut call =
                Call::new(Method::GET, self.at(path)?).query("filter", &format!("name eq \"{pattern}\""));
            if let Some(page) = &page {
                call = call.query("pageToken", page);
            }
            let mut list = self.rest.must(&call).await?.body;
            if let Value::Array(items) = taken(&mut list, "items") {
                found.extend(items);
            }
            page = list["nextPageToken"].as_str().filter(|mark| !mark.is_empty()).map(str::to_owned);
            let Some(mark) = &page else { return Ok(found) };
            pages.turn(mark)?;
        }
    }

    /// Makes an object in a collection; one of that name may be there already.
    async fn insert(&self, collection: &str, body: Value) -> Result<Outcome, Error> {
        self.change(Method::POST, collection, Some(body)).await
    }

    /// Removes an object; it may be gone already, or needed.
    async fn remove(&self, path: &str) -> Result<Outcome, Error> {
        self.change(Method::DELETE, path, None).await
    }

    /// A change, waited for.
    async fn change(&self, method: Method, path: &str, body: Option<Value>) -> Result<Outcome, Error> {
        let mut waiting = self.rest.waiting(path);
        loop {
            // The id makes a call that is repeated after a lost answer the same call.
            let id = Uuid::new_v4().to_string();
            let call = Call::new(method.clone(), self.at(path)?).query("requestId", &id);
            let call = match &body {
                Some(body) => call.json(body.clone()),
                None => call,
            };
            let answer = self.rest.call(&call).await?;
            match (answer.status, reason(&answer)) {
                (status, _) if status.is_success() => return self.wait(path, answer.body).await,
                (StatusCode::CONFLICT, _) if method == Method::POST => return Ok(Outcome::Before),
                (StatusCode::NOT_FOUND, _) if method == Method::DELETE => return Ok(Outcome::Before),
                (_, "resourceInUseByAnotherResource") if method == Method::DELETE => {
                    return Ok(Outcome::InUse);
                }
                // Something it refers to is still being made, by us before a stop or by another.
                (_, "resourceNotReady") => waiting.pause(None).await?,
                _ => return Err(self.rest.refusal(&call, &answer)),
            }
        }
    }

    /// Waits for the end of an operation.
    async fn wait(&self, path: &str, mut operation: Value) -> Result<Outcome, Error> {
        let mut waiting = self.rest.waiting(path);
        loop {
            if operation["status"] == "DONE" {
                return ended(&operation).map_err(|said| self.rest.failed(path, &said));
            }
            let name = operation["name"].as_str();
            let name = name.ok_or_else(|| self.rest.failed(path, "the answer is no operation"))?;
            let url = self.at(&format!("{}/operations/{name}/wait", scope(path)))?;
            operation = self.rest.must(&Call::new(Method::POST, url)).await?.body;
            if operation["status"] != "DONE" {
                waiting.pause(Some(BETWEEN_WAITS)).await?;
            }
        }
    }

    fn strange(&self, said: &str) -> Error {
        self.rest.failed("a read", said)
    }
}

/// Reads an answer of the cloud, as fuzzing does.
pub(crate) fn read_answer(answer: &mut Value) {
    drop(ended(answer));
    if let Value::Array(items) = taken(answer, "items") {
        for item in &items {
            drop((firewall::rule(item, "para-fw-ns-vm"), firewall::short_id(item), network::ranges(item)));
            drop((cluster::short_id(item), cluster::pods(item)));
            let alone = std::slice::from_ref(item);
            drop(foreign::told(item, "projects/p", alone, alone, alone));
            let _endpoint =
                (endpoint::space(item), endpoint::is_of(item, "ns"), describe::lead_alike(item, item));
            let _read = (vpn::insides(item).count(), firewall::same(item, item, "para-fw-ns-vm"));
        }
    }
}

/// Reads what is said of a machine to be made, as fuzzing does.
pub(crate) fn read_description(text: &str) {
    drop((describe::described(text), describe::place_of("projects/p", text)));
}

/// How an operation ended. Missing or needed is an answer only for who removes.
fn ended(operation: &Value) -> Result<Outcome, String> {
    let Some(error) = operation["error"]["errors"].get(0) else { return Ok(Outcome::Made) };
    let removing = operation["operationType"] == "delete";
    match error["code"].as_str().unwrap_or_default() {
        "RESOURCE_ALREADY_EXISTS" => Ok(Outcome::Before),
        "RESOURCE_NOT_FOUND" if removing => Ok(Outcome::Before),
        "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" if removing => Ok(Outcome::InUse),
        _ => Err(told(error)),
    }
}

fn told(error: &Value) -> String {
    error["message"].as_str().unwrap_or("the operation failed").to_owned()
}

fn reason(answer: &Answer) -> &str {
    answer.body["error"]["errors"][0]["reason"].as_str().unwrap_or_default()
}

/// The part of a path its operations live in: the project's global ones, a region's or a zone's.
fn scope(path: &str) -> String {
    let parts: Vec<&str> = path.strip_prefix(PREFIX).unwrap_or(path).split('/').collect();
    let upto = if parts.get(2) == Some(&"global") { 3 } else { 4 };
    parts.into_iter().take(upto).collect::<Vec<_>>().join("/")
}

/// What the names of a namespace's things begin with.
fn n(namespace: &str) -> String {
    format!("para-{namespace}")
}

/// A name that the cloud takes, or an error that names the field.
fn legal(field: &str, name: String) -> Result<String, Error> {
    let sound = name.len() <= NAME_MAX
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && !name.ends_with('-');
    if sound {
        return Ok(name);
    }
    let name = name.escape_debug();
    Err(Error::invalid(
        field,
        format!("`{name}` is not a name in this cloud: up to {NAME_MAX} of a-z, 0-9 and -"),
    ))
}

/// The project of a deployment id.
fn project(deployment: &str) -> Result<&str, Error> {
    let name = deployment.strip_prefix("projects/").filter(|name| is_project(name));
    name.ok_or_else(|| Error::invalid("deployment", format!("`{deployment}` is not projects/P")))
}

fn is_project(name: &str) -> bool {
    // Dots alone would lead to another place in a path.
    name.bytes().any(|b| b.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':'))
}

/// The last part of a URL.
fn last(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

fn url(path: &str) -> String {
    format!("{PREFIX}{path}")
}

/// The texts of a list.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_are_found_where_they_live() {
        assert_eq!(scope("projects/p/global/networks"), "projects/p/global");
        assert_eq!(scope("projects/p/regions/r/routers/x"), "projects/p/regions/r");
        assert_eq!(scope(&url("projects/p/zones/z/instances")), "projects/p/zones/z");
    }

    #[test]
    fn names_and_projects_are_judged() {
        assert_eq!(project("projects/p").unwrap(), "p");
        assert!(project("p").is_err() && project("projects/").is_err() && project("projects/../x").is_err());
        assert!(legal("x", "para-default-vpc".into()).is_ok());
        for bad in ["A", "a_b", "a-", "", &"x".repeat(64)] {
            assert!(legal("x", bad.to_string()).is_err(), "{bad}");
        }
    }

    #[test]
    fn ends_of_operations() {
        let ended = |kind: &str, code: &str| {
            ended(
                &json!({ "operationType": kind, "error": { "errors": [{ "code": code, "message": "m" }] } }),
            )
        };
        assert_eq!(super::ended(&json!({ "status": "DONE" })), Ok(Outcome::Made));
        assert_eq!(ended("insert", "RESOURCE_ALREADY_EXISTS"), Ok(Outcome::Before));
        assert_eq!(ended("delete", "RESOURCE_NOT_FOUND"), Ok(Outcome::Before));
        assert_eq!(ended("delete", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"), Ok(Outcome::InUse));
        assert_eq!(ended("insert", "RESOURCE_NOT_FOUND"), Err("m".into()));
        assert_eq!(ended("insert", "QUOTA_EXCEEDED"), Err("m".into()));
    }
}
