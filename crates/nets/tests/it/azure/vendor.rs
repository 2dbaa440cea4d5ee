//! A stand-in for Azure's Resource Manager: its objects, what they need of each other, its operations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use http::Method;
use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};
use tarbet_nets::clouds::pace::Clock as _;

use super::super::sim::{Reply, Seen, SimClock, Vendor};
use super::contract;
use super::refuse;

/// The token that the stand-in gives out and wants to see.
pub(crate) const TOKEN: &str = "token-of-the-stand-in";
/// The token of a client that is never disturbed.
const OTHER: &str = "token-of-the-other";
const PAGE: usize = 2;

#[derive(Default)]
pub(crate) struct AzureSim {
    /// By id in small letters.
    pub(super) objects: BTreeMap<String, Value>,
    /// When each is done with what was asked of it.
    ready: BTreeMap<String, Duration>,
    operations: Vec<Duration>,
    pub(super) keys: BTreeMap<String, String>,
    /// Halves of peerings that were connected once.
    pub(super) met: BTreeSet<String>,
    /// Those that could not be made, until they are asked for again.
    pub(crate) failed: BTreeSet<String>,
    url: String,
    /// Any client may call, and nothing takes real time: for the vendor's SDK.
    open: bool,
    public: u8,
    /// Tokens asked for, and how.
    pub(crate) tokens: Vec<&'static str>,
    /// Changes whose answers are lost, each once.
    pub(crate) to_cut: BTreeSet<String>,
}

impl AzureSim {
    /// One for the vendor's SDK.
    pub(crate) fn open() -> Self {
        Self { open: true, ..Self::default() }
    }

    /// What is there: kinds and names.
    pub(crate) fn inventory(&self) -> Vec<String> {
        let short = |id: &String| id.split("/providers/").nth(1).unwrap_or_default().to_owned();
        self.objects.keys().map(short).collect()
    }

    /// Everything there is, but for what differs from run to run, and the keys of tunnels.
    pub(crate) fn state(&self) -> (BTreeMap<String, Value>, BTreeMap<String, String>) {
        let plain = |(id, object): (&String, &Value)| {
            let mut object = object.clone();
            object.as_object_mut().unwrap().remove("etag");
            (id.clone(), object)
        };
        (self.objects.iter().map(plain).collect(), self.keys.clone())
    }

    pub(crate) fn object(&self, id: &str) -> Option<Value> {
        self.objects.contains_key(&id.to_lowercase()).then(|| self.view(&id.to_lowercase(), Duration::MAX))
    }

    pub(crate) fn key(&self, connection: &str) -> Option<String> {
        self.keys.get(&connection.to_lowercase()).cloned()
    }

    /// Somebody else removes an object.
    pub(crate) fn remove(&mut self, id: &str) {
        self.objects.remove(&id.to_lowercase());
    }

    /// Somebody else makes an object.
    pub(crate) fn insert(&mut self, id: &str, mut body: Value) {
        body["id"] = json!(id);
        body["name"] = json!(id.rsplit('/').next());
        self.objects.insert(id.to_lowercase(), body);
    }

    fn children<'a>(&'a self, id: &str, kind: &str) -> impl Iterator<Item = &'a String> {
        let prefix = format!("{id}/{}/", kind.to_lowercase());
        self.objects
            .keys()
            .filter(move |key| key.strip_prefix(&prefix).is_some_and(|name| !name.contains('/')))
    }

    /// An object as Azure shows it.
    fn view(&self, id: &str, now: Duration) -> Value {
        let mut value = self.objects[id].clone();
        let moving = self.ready.get(id).is_some_and(|ready| now < *ready);
        let failed = self.failed.contains(id);
        value["properties"]["provisioningState"] = json!(match (moving, failed) {
            (true, _) => "Updating",
            (false, true) => "Failed",
            (false, false) => "Succeeded",
        });
        for (kind, field) in [
            ("subnets", "subnets"),
            ("virtualNetworkPeerings", "virtualNetworkPeerings"),
            ("securityRules", "securityRules"),
        ] {
            let children: Vec<Value> = self.children(id, kind).map(|child| self.view(child, now)).collect();
            let own = (id.contains("/virtualnetworks/") && kind != "securityRules")
                || (id.contains("/networksecuritygroups/") && kind == "securityRules");
            if own && id.split('/').count() == 9 {
                value["properties"][field] = json!(children);
            }
        }
        if let Some(half) = refuse::reverse(self, id, &value) {
            let state = if !self.met.contains(id) {
                "Initiated"
            } else if self.objects.contains_key(&half) && self.met.contains(&half) {
                "Connected"
            } else {
                "Disconnected"
            };
            value["properties"]["peeringState"] = json!(state);
            let knows = |half: &str, vnet: &str| match (self.objects.get(half), self.objects.get(vnet)) {
                (Some(half), Some(vnet)) => {
                    half["properties"]["remoteAddressSpace"] == vnet["properties"]["addressSpace"]
                }
                _ => true,
            };
            let remote = value["properties"]["remoteVirtualNetwork"]["id"].as_str().unwrap().to_lowercase();
            let own = id.split_once("/virtualnetworkpeerings/").unwrap().0;
            value["properties"]["peeringSyncLevel"] = json!(match (knows(id, &remote), knows(&half, own)) {
                (true, true) => "FullyInSync",
                (false, true) => "LocalNotInSync",
                (true, false) => "RemoteNotInSync",
                (false, false) => "LocalAndRemoteNotInSync",
            });
        }
        if id.contains("/networksecuritygroups/") && id.split('/').count() == 9 {
            for (kind, part) in [("networkInterfaces", "/networkinterfaces/"), ("subnets", "/subnets/")] {
                let behind = self.objects.iter().filter(|(key, other)| {
                    let filter = other.pointer("/properties/networkSecurityGroup/id").and_then(Value::as_str);
                    key.contains(part) && filter.is_some_and(|filter| filter.to_lowercase() == id)
                });
                let behind: Vec<Value> = behind.map(|(_, other)| json!({ "id": other["id"] })).collect();
                if !behind.is_empty() {
                    value["properties"][kind] = json!(behind);
                }
            }
        }
        if id.contains("/networkinterfaces/") {
            let user = self.objects.iter().find(|(key, vm)| {
                key.contains("/virtualmachines/")
                    && vm
                        .pointer("/properties/networkProfile/networkInterfaces/0/id")
                        .and_then(Value::as_str)
                        .is_some_and(|nic| nic.to_lowercase() == id)
            });
            if let Some((_, vm)) = user {
                value["properties"]["virtualMachine"] = json!({ "id": vm["id"] });
            }
        }
        value
    }

    fn duration(id: &str) -> Duration {
        let seconds = match id.split('/').nth(7).unwrap_or_default() {
            "virtualnetworkgateways" => 25 * 60,
            "managedclusters" => 8 * 60,
            "virtualmachines" => 90,
            "connections" => 30,
            "virtualnetworks" if id.split('/').count() == 9 => 5,
            "networksecuritygroups" if id.split('/').count() == 9 => 3,
            _ => 0,
        };
        Duration::from_secs(seconds)
    }

    fn operation(&mut self, clock: &SimClock, id: &str) -> Option<String> {
        let takes = Self::duration(id);
        if takes.is_zero() {
            return None;
        }
        self.operations.push(clock.now() + takes);
        Some(format!("{}/operations/{}?api-version=2023-05-01", self.url, self.operations.len() - 1))
    }

    fn begun(&self, reply: Reply, operation: Option<String>, header: &'static str) -> Reply {
        match operation {
            Some(url) => reply.header(header, url).header("retry-after", if self.open { "0" } else { "10" }),
            None => reply,
        }
    }

    fn put(&mut self, seen: &Seen, clock: &SimClock) -> Reply {
        let id = seen.path.to_lowercase();
        if let Some(connection) = id.strip_suffix("/sharedkey") {
            self.keys.insert(connection.into(), seen.body["value"].as_str().unwrap_or_default().into());
            return Reply::new(200, seen.body.clone());
        }
        if self.ready.get(&id).is_some_and(|ready| clock.now() < *ready) {
            return Reply::new(409, error("AnotherOperationInProgress", "another operation is in progress"));
        }
        if let Err((code, message)) = refuse::put(self, &id, &seen.body, clock.now()) {
            return Reply::new(400, error(code, &message));
        }
        let existed = self.objects.contains_key(&id);
        self.failed.remove(&id);
        let mut body = seen.body.clone();
        body["id"] = json!(seen.path);
        body["name"] = json!(seen.path.rsplit('/').next());
        self.fill(&id, &mut body);
        if refuse::reverse(self, &id, &body).is_some() {
            // A half learns the spaces of the other network when it is made, and when it is told to.
            let remote = body["properties"]["remoteVirtualNetwork"]["id"].as_str().unwrap().to_lowercase();
            let known = self.objects.get(&id).filter(|_| seen.parameter("syncRemoteAddressSpace").is_none());
            body["properties"]["remoteAddressSpace"] = match known {
                Some(half) => half["properties"]["remoteAddressSpace"].clone(),
                None => self.objects[&remote]["properties"]["addressSpace"].clone(),
            };
        }
        let children: Vec<(&str, Value)> = ["subnets", "securityRules"]
            .into_iter()
            .map(|kind| {
                (kind, body["properties"].as_object_mut().and_then(|p| p.remove(kind)).unwrap_or_default())
            })
            .collect();
        self.objects.insert(id.clone(), body);
        for (kind, list) in children {
            let Value::Array(list) = list else { continue };
            // A list replaces all that was there.
            let old: Vec<String> = self.children(&id, kind).cloned().collect();
            for child in old {
                self.objects.remove(&child);
            }
            for mut child in list {
                let path = format!("{}/{kind}/{}", seen.path, child["name"].as_str().unwrap());
                child["id"] = json!(path);
                self.objects.insert(path.to_lowercase(), child);
            }
        }
        if let Some(half) = refuse::reverse(self, &id, &seen.body)
            && self.objects.contains_key(&half)
        {
            self.met.extend([id.clone(), half]);
        }
        self.ready.insert(id.clone(), clock.now() + Self::duration(&id));
        let operation = self.operation(clock, &id);
        let reply = Reply::new(if existed { 200 } else { 201 }, self.view(&id, clock.now()));
        self.begun(reply, operation, "azure-asyncoperation")
    }

    /// What Azure chooses.
    fn fill(&mut self, id: &str, body: &mut Value) {
        body["etag"] = json!(format!("W/\"{}\"", self.operations.len()));
        let kind = id.split('/').nth(7).unwrap_or_default();
        if kind == "publicipaddresses" {
            let known = self.objects.get(id).map(|found| found["properties"]["ipAddress"].clone());
            body["properties"]["ipAddress"] = known.unwrap_or_else(|| {
                self.public += 1;
                json!(format!("20.1.0.{}", self.public))
            });
        }
        if kind == "networkinterfaces" {
            let known = self.objects.get(id).and_then(|found| {
                found.pointer("/properties/ipConfigurations/0/properties/privateIPAddress").cloned()
            });
            let subnet = body
                .pointer("/properties/ipConfigurations/0/properties/subnet/id")
                .and_then(Value::as_str)
                .unwrap()
                .to_lowercase();
            let net: Ipv4Net =
                self.objects[&subnet]["properties"]["addressPrefix"].as_str().unwrap().parse().unwrap();
            let taken: Vec<Ipv4Addr> = self
                .objects
                .iter()
                .filter(|(key, _)| key.contains("/networkinterfaces/"))
                .filter_map(|(_, nic)| {
                    nic.pointer("/properties/ipConfigurations/0/properties/privateIPAddress")?
                        .as_str()?
                        .parse()
                        .ok()
                })
                .collect();
            // Azure keeps the first four addresses for itself.
            let free = net.hosts().skip(3).find(|ip| !taken.contains(ip)).unwrap();
            body["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"] =
                known.unwrap_or(json!(free.to_string()));
        }
        if kind == "connections"
            && let Some(key) = body["properties"].as_object_mut().and_then(|p| p.remove("sharedKey"))
        {
            self.keys.insert(id.into(), key.as_str().unwrap_or_default().into());
        }
    }

    fn delete(&mut self, seen: &Seen, clock: &SimClock) -> Reply {
        let id = seen.path.to_lowercase();
        if !self.objects.contains_key(&id) {
            return Reply::new(204, Value::Null);
        }
        if let Some((code, message)) = refuse::delete(self, &id) {
            return Reply::new(400, error(code, &message));
        }
        let inner = format!("{id}/");
        self.objects.retain(|key, _| *key != id && !key.starts_with(&inner));
        self.keys.remove(&id);
        self.ready.remove(&id);
        self.met.retain(|key| self.objects.contains_key(key));
        let operation = self.operation(clock, &id);
        let status = if operation.is_some() { 202 } else { 200 };
        self.begun(Reply::new(status, Value::Null), operation, "location")
    }

    fn get(&self, seen: &Seen, clock: &SimClock) -> Reply {
        let id = seen.path.to_lowercase();
        if let Some(connection) = id.strip_suffix("/sharedkey") {
            return match self.keys.get(connection) {
                Some(key) => Reply::new(200, json!({ "value": key })),
                None => Reply::new(404, error("ResourceNotFound", "no such connection")),
            };
        }
        // Lists end in the name of a kind.
        if matches!(id.split('/').count(), 8 | 10) {
            let (parent, kind) = id.rsplit_once('/').unwrap();
            let all: Vec<Value> =
                self.children(parent, kind).map(|child| self.view(child, clock.now())).collect();
            let from: usize = seen.parameter("$skiptoken").map_or(0, |text| text.parse().unwrap());
            let mut page = json!({ "value": all.iter().skip(from).take(PAGE).collect::<Vec<_>>() });
            if from + PAGE < all.len() {
                let version = seen.parameter("api-version").unwrap();
                page["nextLink"] = json!(format!(
                    "{}{}?api-version={version}&$skiptoken={}",
                    self.url,
                    seen.path,
                    from + PAGE
                ));
            }
            return Reply::new(200, page);
        }
        if self.objects.contains_key(&id) {
            Reply::new(200, self.view(&id, clock.now()))
        } else {
            Reply::new(404, error("ResourceNotFound", "there is no such resource"))
        }
    }

    fn token(&mut self, how: &'static str) -> Reply {
        self.tokens.push(how);
        Reply::new(200, json!({ "access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer" }))
    }

    fn is_other(seen: &Seen) -> bool {
        let bearer = seen.headers.get("authorization").and_then(|value| value.to_str().ok());
        bearer == Some(&format!("Bearer {OTHER}")) || seen.text.contains("secret-of-the-other")
    }
}

pub(super) fn error(code: &str, message: &str) -> Value {
    json!({ "error": { "code": code, "message": message } })
}

impl Vendor for AzureSim {
    fn check(&self, seen: &Seen) -> Result<(), String> {
        if !seen.path.to_lowercase().starts_with("/subscriptions/") {
            return Ok(());
        }
        let body = if seen.text.is_empty() { &Value::Null } else { &seen.body };
        contract::check(seen.method.as_str(), &seen.path, &seen.query, body)
    }

    fn answer(&mut self, seen: &Seen, clock: &SimClock) -> Reply {
        if let Some(host) = seen.headers.get("host") {
            self.url = format!("http://{}", host.to_str().unwrap());
        }
        if seen.path == "/tenant/oauth2/v2.0/token" {
            let form: BTreeMap<String, String> =
                url::form_urlencoded::parse(seen.text.as_bytes()).into_owned().collect();
            let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
            let sound = field("grant_type") == "client_credentials"
                && field("client_id") == "client"
                && field("scope") == format!("{}/.default", self.url);
            return match (sound, field("client_secret"), field("client_assertion")) {
                (true, "s3cret-of-ours", _) => self.token("secret"),
                (true, "secret-of-the-other", _) => {
                    Reply::new(200, json!({ "access_token": OTHER, "expires_in": 3600 }))
                }
                (true, "", "assertion") => self.token("assertion"),
                _ => Reply::new(
                    401,
                    json!({ "error": "invalid_client", "error_description": format!("bad secret {}", field("client_secret")) }),
                ),
            };
        }
        if seen.path == "/msi/token" {
            let sound = seen.headers.get("x-identity-header").is_some_and(|value| value == "handshake")
                && seen.parameter("resource") == Some(&format!("{}/", self.url));
            return if sound { self.token("managed") } else { Reply::new(400, json!({ "message": "no" })) };
        }
        let bearer = seen.headers.get("authorization").and_then(|value| value.to_str().ok());
        if !self.open && !Self::is_other(seen) && bearer != Some(&format!("Bearer {TOKEN}")) {
            return Reply::new(401, error("AuthenticationFailed", "the access token is not valid"));
        }
        if let Some(number) = seen.path.strip_prefix("/operations/") {
            if self.open {
                clock.pass(Duration::from_mins(10));
            }
            let done = clock.now() >= self.operations[number.parse::<usize>().unwrap()];
            let reply = Reply::new(200, json!({ "status": if done { "Succeeded" } else { "InProgress" } }));
            return if done {
                reply
            } else {
                reply.header("retry-after", if self.open { "0" } else { "10" })
            };
        }
        match seen.method {
            Method::PUT => self.put(seen, clock),
            Method::DELETE => self.delete(seen, clock),
            Method::PATCH => {
                let id = seen.path.to_lowercase();
                match self.objects.get_mut(&id) {
                    Some(object) => object["tags"] = seen.body["tags"].clone(),
                    None => return Reply::new(404, error("ResourceNotFound", "there is no such resource")),
                }
                Reply::new(200, self.view(&id, clock.now()))
            }
            _ => self.get(seen, clock),
        }
    }

    fn changes(&self, seen: &Seen) -> bool {
        seen.method != Method::GET && seen.path.starts_with("/subscriptions/")
    }

    fn counts(&self, seen: &Seen) -> bool {
        !Self::is_other(seen)
    }

    fn cuts(&mut self, seen: &Seen) -> bool {
        !Self::is_other(seen) && self.to_cut.remove(&seen.named())
    }

    fn error(&self, status: u16, message: &str) -> Value {
        error(if status == 429 { "TooManyRequests" } else { "InternalServerError" }, message)
    }
}

/// The spaces of a network.
pub(super) fn spaces(vnet: &Value) -> Vec<IpNet> {
    let prefixes = vnet["properties"]["addressSpace"]["addressPrefixes"].as_array().into_iter().flatten();
    prefixes.map(|prefix| prefix.as_str().unwrap().parse().unwrap()).collect()
}

impl AzureSim {
    pub(super) fn is_ready(&self, id: &str, now: Duration) -> bool {
        self.objects.contains_key(id) && self.ready.get(id).is_none_or(|ready| now >= *ready)
    }
}
