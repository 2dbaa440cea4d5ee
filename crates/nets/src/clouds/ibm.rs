//! IBM Cloud: a network for each namespace and region, a subnet for each zone, a security group for each machine.
//!
//! Names are derived from what a thing is for, so that it is found again; the tags that others look for are
//! attached besides. Networks that others made in the original's way, with names by chance, are found by theirs. The rules of a machine are kept with the orchestrator, because security groups have no
//! place for names and tags; what the group holds is a function of them. Endpoint gateways, which lead to IBM's own
//! services, have a group and rules as machines do.
//! Not offered: clusters, rules with both ports, floating addresses, and BGP, which IBM has not.

mod cloud;
mod describe;
mod endpoint;
mod foreign;
mod network;
mod rules;
mod vpn;
mod ways;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::auth::{Bearer, TokenSource, unusable};
use super::pace::{Clock, System};
use super::pages::Pages;
use super::rest::{Answer, Call, Rest, client, endpoint, plain};
use super::taken;
use super::ways::Ways;
use crate::cloud::Policy;
use crate::controller::Controller;
use crate::error::Error;
use crate::model::{Deployment, Flags};
use crate::turns::Turns;

/// The date of the API that is spoken, as in IBM's SDK the contract is taken from.
const VERSION: &str = "2026-10-06";
const TRANSIT_VERSION: &str = "2023-12-05";
/// What all names begin with.
const PREFIX: &str = "paraglider-";

/// Reads an answer of the cloud, as fuzzing does.
pub(crate) fn read_answer(answer: &mut Value) {
    for field in ["rules", "subnets"] {
        let Value::Array(items) = taken(answer, field) else { continue };
        for item in &items {
            drop((rules::read(item), network::space(item), endpoint::address(item)));
        }
        drop(rules::difference(&items, &items));
        drop(foreign::told(&Value::Null, "us-south", "deployment", &items, &items, &items));
    }
}

/// Reads what is said of a machine to be made, as fuzzing does.
pub(crate) fn read_description(text: &str) {
    drop((describe::described(text), describe::place_of("/resourcegroup/g", text)));
}

/// Settings of the IBM Cloud plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct IbmConfig {
    /// The VPC API; `{region}` stands for the region.
    pub endpoint: String,
    /// The API of transit gateways.
    pub transit_endpoint: String,
    /// The API of tags.
    pub tags_endpoint: String,
    /// Where tokens are fetched.
    pub iam_endpoint: String,
    /// A file with the API key; the environment's if absent.
    pub api_key_file: Option<PathBuf>,
    /// Regions that are looked into for networks.
    pub regions: Vec<String>,
    /// What this cloud does for anybody.
    pub policy: Policy,
}

impl Default for IbmConfig {
    fn default() -> Self {
        Self {
            endpoint: "https://{region}.iaas.cloud.ibm.com/v1".into(),
            transit_endpoint: "https://transit.cloud.ibm.com/v1".into(),
            tags_endpoint: "https://tags.global-search-tagging.cloud.ibm.com/v3".into(),
            iam_endpoint: "https://iam.cloud.ibm.com".into(),
            api_key_file: None,
            regions: vec!["us-south".into(), "us-east".into(), "eu-de".into(), "eu-gb".into()],
            policy: Policy::default(),
        }
    }
}

/// An API key. It is never printed.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key in the settings' file, or in `PARAGLIDER_IBM_API_KEY`.
    pub fn find(config: &IbmConfig, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let text = match &config.api_key_file {
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| unusable(&file.display().to_string(), &error.to_string()))?,
            None => environment("PARAGLIDER_IBM_API_KEY").ok_or_else(|| {
                Error::setting("apiKeyFile", "is missing, and PARAGLIDER_IBM_API_KEY is not set")
            })?,
        };
        Ok(Self(text.trim().to_owned()))
    }
}

/// Trades the API key for tokens.
struct Iam {
    key: ApiKey,
    url: Url,
    http: reqwest::Client,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl TokenSource for Iam {
    async fn fetch(&self) -> Result<(String, Duration), Error> {
        let form =
            [("grant_type", "urn:ibm:params:oauth:grant-type:apikey"), ("apikey", self.key.0.as_str())];
        let call = Call::new(Method::POST, self.url.clone()).form(form);
        let answer = plain(&self.http, &*self.clock, &call).await?.body;
        let token = answer["access_token"].as_str();
        let token = token.ok_or_else(|| unusable("IBM", "the answer has no token"))?.to_owned();
        Ok((token, Duration::from_secs(answer["expires_in"].as_u64().unwrap_or(300))))
    }
}

/// IBM Cloud.
pub struct Ibm {
    name: String,
    config: IbmConfig,
    rest: Rest,
    controller: Arc<dyn Controller>,
    /// Networks are made and removed one at a time. Readers of spaces never wait for it.
    shape: tokio::sync::Mutex<()>,
    turns: Turns,
    /// The transit gateway and public gateways.
    ways: Ways<ways::Network>,
    flags: Mutex<Flags>,
    seen: Mutex<BTreeSet<Deployment>>,
}

impl Ibm {
    /// The plugin. Nothing is asked of the cloud yet.
    pub fn new(
        name: &str,
        config: &IbmConfig,
        key: ApiKey,
        controller: Arc<dyn Controller>,
    ) -> Result<Self, Error> {
        Self::with_clock(name, config, key, controller, System::shared())
    }

    /// The same with another time.
    pub fn with_clock(
        name: &str,
        config: &IbmConfig,
        key: ApiKey,
        controller: Arc<dyn Controller>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        endpoint("endpoint", &config.endpoint.replace("{region}", "region"))?;
        endpoint("transitEndpoint", &config.transit_endpoint)?;
        endpoint("tagsEndpoint", &config.tags_endpoint)?;
        for region in &config.regions {
            legal("regions", region)?;
        }
        let url = join(&endpoint("iamEndpoint", &config.iam_endpoint)?, "identity/token")?;
        let iam = Iam { key, url, http: client()?, clock: clock.clone() };
        Ok(Self {
            name: name.into(),
            config: config.clone(),
            rest: Rest::new(name, Arc::new(Bearer::new(iam, clock.clone())), clock)?,
            controller,
            shape: tokio::sync::Mutex::default(),
            turns: Turns::default(),
            ways: Ways::default(),
            flags: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// An address of the VPC API.
    fn vpc_url(&self, region: &str, path: &str) -> Result<Url, Error> {
        let base = endpoint("endpoint", &self.config.endpoint.replace("{region}", region))?;
        let mut url = join(&base, path)?;
        url.query_pairs_mut().append_pair("version", VERSION).append_pair("generation", "2");
        Ok(url)
    }

    fn transit_url(&self, path: &str) -> Result<Url, Error> {
        let mut url = join(&endpoint("transitEndpoint", &self.config.transit_endpoint)?, path)?;
        url.query_pairs_mut().append_pair("version", TRANSIT_VERSION);
        Ok(url)
    }

    async fn get(&self, region: &str, path: &str) -> Result<Option<Value>, Error> {
        self.rest.get(self.vpc_url(region, path)?).await
    }

    /// All of a collection, page by page. `field` is where the answer has it.
    async fn all(&self, url: &Url, field: &str) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        let mut pages = Pages::of(&self.name, url.path());
        let mut start: Option<String> = None;
        loop {
            let mut call = Call::new(Method::GET, url.clone());
            if let Some(start) = &start {
                call = call.query("start", start);
            }
            let mut page = self.rest.must(&call).await?.body;
            if let Value::Array(items) = taken(&mut page, field) {
                found.extend(items);
            }
            let next = page["next"]["href"].as_str().and_then(|href| Url::parse(href).ok());
            let next = next.and_then(|url| {
                url.query_pairs().find(|(key, _)| key == "start").map(|(_, value)| value.into_owned())
            });
            match next {
                Some(next) => {
                    pages.turn(&next)?;
                    start = Some(next);
                }
                None => return Ok(found),
            }
        }
    }

    /// The one of a collection that is called so.
    async fn named(&self, url: &Url, field: &str, name: &str) -> Result<Option<Value>, Error> {
        Ok(self.all(url, field).await?.into_iter().find(|item| item["name"] == name))
    }

    /// Makes the object of that name in a collection, or finds it.
    async fn make(&self, url: &Url, field: &str, body: Value) -> Result<Value, Error> {
        let name = body["name"].as_str().unwrap_or_default().to_owned();
        if let Some(found) = self.named(url, field, &name).await? {
            return Ok(found);
        }
        let call = Call::new(Method::POST, url.clone()).json(body);
        let answer = self.rest.call(&call).await?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        // An answer was lost, or another was faster.
        let found = if is_there(&answer) { self.named(url, field, &name).await? } else { None };
        found.ok_or_else(|| self.rest.refusal(&call, &answer))
    }

    /// Removes an object, and waits until it is gone.
    async fn remove(&self, url: Url) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, url.clone());
        let path = url.path().to_owned();
        let mut waiting = self.rest.waiting(&path);
        loop {
            let answer = self.rest.call(&call).await?;
            match answer.status {
                StatusCode::NOT_FOUND => return Ok(()),
                // Something that uses it is still going.
                StatusCode::CONFLICT => {}
                status if status.is_success() => break,
                _ => return Err(self.rest.refusal(&call, &answer)),
            }
            waiting.pause(None).await?;
        }
        while self.rest.get(url.clone()).await?.is_some() {
            waiting.pause(None).await?;
        }
        Ok(())
    }

    /// Waits until a field of an object says so.
    async fn until(&self, url: &Url, field: &str, wanted: &[&str]) -> Result<Value, Error> {
        let mut waiting = self.rest.waiting(url.path());
        loop {
            let object = self.rest.get(url.clone()).await?.unwrap_or_default();
            let state = object[field].as_str().unwrap_or_default();
            if wanted.contains(&state) {
                return Ok(object);
            }
            if state == "failed" {
                return Err(self.rest.failed(url.path(), &format!("{field} is {state}")));
            }
            waiting.pause(None).await?;
        }
    }

    /// Attaches the tags that others look for.
    async fn attach_tags(&self, crn: &str, tags: &[&str]) -> Result<(), Error> {
        let url = join(&endpoint("tagsEndpoint", &self.config.tags_endpoint)?, "tags/attach")?;
        let body = json!({ "tag_names": tags, "resources": [{ "resource_id": crn }] });
        let call = Call::new(Method::POST, url).json(body);
        let mut waiting = self.rest.waiting("tags");
        loop {
            let answer = self.rest.must(&call).await?.body;
            let failed =
                answer["results"].as_array().into_iter().flatten().any(|one| one["is_error"] == true);
            if !failed {
                return Ok(());
            }
            // What was just made is not known there at once.
            waiting.pause(None).await?;
        }
    }

    /// The tags of an object.
    async fn tags_of(&self, crn: &str) -> Result<BTreeSet<String>, Error> {
        let url = join(&endpoint("tagsEndpoint", &self.config.tags_endpoint)?, "tags")?;
        let call = Call::new(Method::GET, url).query("attached_to", crn);
        let found = self.rest.must(&call).await?.body;
        let items = found["items"].as_array().into_iter().flatten();
        Ok(items.filter_map(|item| item["name"].as_str().map(str::to_owned)).collect())
    }

    fn strange(&self, said: &str) -> Error {
        self.rest.failed("a read", said)
    }
}

fn join(base: &Url, path: &str) -> Result<Url, Error> {
    base.join(path).map_err(|error| Error::Internal(format!("the path {path} is none: {error}")))
}

/// Whether a refusal says that such a thing is there already.
fn is_there(answer: &Answer) -> bool {
    let codes =
        answer.body["errors"].as_array().into_iter().flatten().filter_map(|error| error["code"].as_str());
    let told = ["duplicate", "unique", "exist"];
    codes.into_iter().any(|code| told.iter().any(|word| code.contains(word)))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The name of a thing of ours: the same for the same.
fn name(kind: &str, parts: &[&str]) -> String {
    let hash = Sha256::digest(parts.join("\n").as_bytes());
    format!("{PREFIX}{kind}-{}", hex::encode(&hash[..4]))
}

/// A name that the cloud takes, or an error that names the field.
fn legal(field: &str, name: &str) -> Result<(), Error> {
    let sound = name.len() <= 40
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && !name.ends_with('-');
    if sound {
        return Ok(());
    }
    let name = name.escape_debug();
    Err(Error::invalid(field, format!("`{name}` is not a name in this cloud: up to 40 of a-z, 0-9 and -")))
}

/// Whether an id can be put into a path.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

/// The resource group of a deployment id: `/resourcegroup/RG` or `/resourcegroup/RG/zone/Z`.
fn group(deployment: &str) -> Result<&str, Error> {
    let parts: Vec<&str> = deployment.split('/').collect();
    match parts.as_slice() {
        ["", "resourcegroup", group] | ["", "resourcegroup", group, "zone", _] if is_id(group) => Ok(group),
        _ => Err(Error::invalid("deployment", format!("`{deployment}` is not /resourcegroup/RG[/zone/Z]"))),
    }
}

/// `us-south-1` is in `us-south`.
fn region_of(zone: &str) -> Result<&str, Error> {
    legal("description.zone", zone)?;
    let region = zone.rsplit_once('-').map(|(region, _)| region);
    region.ok_or_else(|| Error::invalid("description.zone", format!("`{zone}` is not a zone")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_groups_are_judged() {
        assert_eq!(name("vpc", &["a", "b"]), name("vpc", &["a", "b"]));
        assert_ne!(name("vpc", &["a", "b"]), name("vpc", &["ab", ""]));
        assert_eq!(name("vpc", &["a"]).len(), "paraglider-vpc-".len() + 8);
        assert_eq!(group("/resourcegroup/rg").unwrap(), "rg");
        assert_eq!(group("/resourcegroup/rg/zone/us-south-1").unwrap(), "rg");
        assert!(group("rg").is_err() && group("/resourcegroup/../x").is_err());
        assert_eq!(region_of("us-south-1").unwrap(), "us-south");
        assert!(region_of("us").is_err() && region_of("../x-1").is_err());
    }
}
