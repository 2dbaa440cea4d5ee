//! A stand-in of Google's Compute Engine: objects, what they refer to, and operations that take their time.
//! The Kubernetes Engine is in [`clusters`](super::clusters), Private Service Connect in
//! [`endpoints`](super::endpoints).

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use regex::Regex;
use serde_json::{Value, json};

use super::super::sim::{Reply, Seen, SimClock, Vendor};
use super::contract::Contract;

pub(crate) const PREFIX: &str = "https://www.googleapis.com/compute/v1/";
/// A wait holds no longer.
const HOLD: Duration = Duration::from_mins(2);
/// What an object refers to, by field.
const REFERENCES: &[&str] = &["network", "subnetwork", "vpnGateway", "peerExternalGateway", "router"];

pub(super) struct Object {
    pub(super) body: Value,
    pub(super) ready_at: Duration,
    pub(super) gone_at: Option<Duration>,
}

struct Running {
    ends: Duration,
    kind: &'static str,
}

pub(crate) struct Google {
    compute: Contract,
    clusters: Contract,
    pub(super) objects: BTreeMap<String, Object>,
    operations: BTreeMap<String, Running>,
    requests: BTreeMap<String, String>,
    /// How long every operation takes.
    pub(crate) takes: Duration,
    /// Zones whose clusters cannot be told just now.
    pub(crate) silent: Vec<String>,
}

impl Google {
    pub(crate) fn new() -> Self {
        Self {
            compute: Contract::compute(),
            clusters: Contract::clusters(),
            objects: BTreeMap::new(),
            operations: BTreeMap::new(),
            requests: BTreeMap::new(),
            takes: Duration::from_secs(5),
            silent: Vec::new(),
        }
    }

    /// Everything there is, but for what differs from run to run.
    pub(crate) fn state(&self) -> BTreeMap<String, Value> {
        let plain = |object: &Object| {
            let mut body = object.body.clone();
            self.forget_spaces(&mut body);
            self.forget_addresses(&mut body);
            for field in ["id", "selfLink", "ipCidrRange"] {
                body.as_object_mut().unwrap().remove(field);
            }
            for place in ["/networkInterfaces/0/networkIP", "/tags/fingerprint"] {
                if let Some(value) = body.pointer_mut(place) {
                    *value = Value::Null;
                }
            }
            body
        };
        self.objects.iter().map(|(path, object)| (path.clone(), plain(object))).collect()
    }

    pub(crate) fn object(&self, path: &str) -> &Value {
        &self.objects[path].body
    }

    /// Somebody else makes an object.
    pub(crate) fn put(&mut self, path: &str, body: Value) {
        let object = Object { body, ready_at: Duration::ZERO, gone_at: None };
        self.objects.insert(path.into(), object);
    }

    /// Somebody else changes an object.
    pub(crate) fn change(&mut self, path: &str, change: impl FnOnce(&mut Value)) {
        change(&mut self.objects.get_mut(path).unwrap().body);
    }

    /// Takes an object away behind everybody's back.
    pub(crate) fn lose(&mut self, path: &str) {
        self.objects.remove(path).unwrap();
    }

    fn sweep(&mut self, now: Duration) {
        let gone: Vec<String> = self
            .objects
            .iter()
            .filter(|(_, object)| object.gone_at.is_some_and(|at| at <= now))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.objects.remove(&path);
            self.after_cluster(&path);
            self.after_endpoint(&path);
            for object in self.objects.values_mut() {
                if let Some(list) = object.body["subnetworks"].as_array_mut() {
                    list.retain(|one| one.as_str().unwrap().trim_start_matches(PREFIX) != path);
                }
            }
        }
    }

    /// An operation, the same for a request that comes again.
    pub(super) fn begin(&mut self, seen: &Seen, kind: &'static str, now: Duration) -> Reply {
        let name = format!("operation-{}", self.operations.len());
        self.operations.insert(name.clone(), Running { ends: now + self.takes, kind });
        if let Some(id) = seen.parameter("requestId") {
            self.requests.insert(id.into(), name.clone());
        }
        self.told(&name, now)
    }

    pub(super) fn told(&self, name: &str, now: Duration) -> Reply {
        let running = &self.operations[name];
        let status = if running.ends <= now { "DONE" } else { "RUNNING" };
        Reply::new(
            200,
            json!({ "kind": "compute#operation", "name": name, "status": status, "operationType": running.kind }),
        )
    }

    /// What a body refers to must be there and ready.
    fn refers(&self, body: &Value, now: Duration) -> Result<(), Reply> {
        let interface = &body["networkInterfaces"][0];
        let named = REFERENCES.iter().flat_map(|field| [&body[*field], &interface[*field]]);
        for path in named.filter_map(Value::as_str) {
            match self.objects.get(path.trim_start_matches(PREFIX)) {
                None => {
                    return Err(refuse(404, "notFound", &format!("The resource '{path}' was not found")));
                }
                Some(object) if object.ready_at > now || object.gone_at.is_some() => {
                    return Err(refuse(
                        400,
                        "resourceNotReady",
                        &format!("The resource '{path}' is not ready"),
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn insert(&mut self, seen: &Seen, collection: &str, now: Duration) -> Reply {
        let mut body = seen.body.clone();
        let name = body["name"].as_str().unwrap().to_owned();
        let path = format!("{collection}/{name}");
        if self.objects.contains_key(&path) {
            return refuse(409, "alreadyExists", &format!("The resource '{path}' already exists"));
        }
        if let Err(refused) = self.refers(&body, now) {
            return refused;
        }
        let number = path.bytes().fold(1_u64 << 62, |sum, byte| sum.rotate_left(5) ^ (u64::from(byte) << 20))
            | (1 << 62);
        body["id"] = json!(number.to_string());
        body["selfLink"] = json!(format!("{PREFIX}{path}"));
        match collection.rsplit('/').next().unwrap() {
            "subnetworks" => {
                let range: IpNet = body["ipCidrRange"].as_str().unwrap_or_default().parse().unwrap();
                let others = self.objects.values().filter(|object| object.body["network"] == body["network"]);
                let overlaps = others
                    .filter_map(|object| object.body["ipCidrRange"].as_str()?.parse::<IpNet>().ok())
                    .any(|other| other.contains(&range) || range.contains(&other));
                if overlaps {
                    return refuse(
                        400,
                        "invalid",
                        "Invalid IPCidrRange: it conflicts with an existing subnetwork",
                    );
                }
                let network = body["network"].as_str().unwrap().trim_start_matches(PREFIX).to_owned();
                let network = &mut self.objects.get_mut(&network).unwrap().body;
                let mut list = network["subnetworks"].as_array().cloned().unwrap_or_default();
                list.push(json!(format!("{PREFIX}{path}")));
                network["subnetworks"] = json!(list);
            }
            "instances" => {
                if body.get("machineType").is_none() {
                    return refuse(400, "required", "Required field 'resource.machineType' not specified");
                }
                let subnet =
                    body["networkInterfaces"][0]["subnetwork"].as_str().unwrap().trim_start_matches(PREFIX);
                let range: IpNet =
                    self.objects[subnet].body["ipCidrRange"].as_str().unwrap().parse().unwrap();
                let used = self.objects.keys().filter(|path| path.contains("/instances/")).count();
                body["networkInterfaces"][0]["networkIP"] =
                    json!(range.hosts().nth(1 + used).unwrap().to_string());
                body["tags"]["fingerprint"] =
                    json!(format!("{}==", body["tags"]["items"].as_array().map_or(0, Vec::len)));
                let zone = collection.trim_end_matches("/instances");
                body["zone"] = json!(format!("{PREFIX}{zone}"));
                body["status"] = json!("RUNNING");
            }
            "firewalls" => normalize(&mut body),
            "addresses" => {
                if let Err(refused) = self.reserve(collection, &mut body) {
                    return refused;
                }
            }
            "forwardingRules" => {
                if let Err(refused) = self.forward(collection, &mut body, now) {
                    return refused;
                }
            }
            "vpnGateways" => {
                let address = |id: u8| json!({ "id": id, "ipAddress": format!("203.0.113.{}", id + 1) });
                body["vpnInterfaces"] = json!([address(0), address(1)]);
            }
            "vpnTunnels" => {
                // A secret is never told again.
                body["sharedSecretHash"] = json!("hash");
                body["sharedSecret"] = json!("*************");
            }
            _ => {}
        }
        self.objects.insert(path, Object { body, ready_at: now + self.takes, gone_at: None });
        self.begin(seen, "insert", now)
    }

    fn patch(&mut self, seen: &Seen, path: &str, now: Duration) -> Reply {
        let (Some(object), takes) = (self.objects.get_mut(path), self.takes) else { return missing(path) };
        if object.ready_at > now {
            return refuse(400, "resourceNotReady", "The resource is not ready");
        }
        let mut body = object.body.clone();
        for (key, value) in seen.body.as_object().unwrap() {
            body[key] = value.clone();
        }
        if path.contains("/firewalls/") {
            if body["direction"] != object.body["direction"] || body["network"] != object.body["network"] {
                return refuse(400, "invalid", "direction and network cannot be changed");
            }
            normalize(&mut body);
        }
        for peer in body["bgpPeers"].as_array().into_iter().flatten() {
            let known = body["interfaces"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["name"] == peer["interfaceName"]));
            if !known {
                return refuse(400, "invalid", "a BGP peer names an interface that is not there");
            }
        }
        object.body = body;
        object.ready_at = now + takes;
        self.begin(seen, "patch", now)
    }

    fn delete(&mut self, seen: &Seen, path: &str, now: Duration) -> Reply {
        let full = format!("{PREFIX}{path}");
        let Some(object) = self.objects.get(path) else { return missing(path) };
        if object.ready_at > now || object.gone_at.is_some() {
            return refuse(400, "resourceNotReady", "The resource is not ready");
        }
        let peered = object.body["peerings"].as_array().is_some_and(|list| !list.is_empty());
        let used = self.objects.iter().find(|(by, other)| {
            if by.contains("/clusters/") {
                return object.body["name"] == other.body["subnetwork"] && path.contains("/subnetworks/");
            }
            let interface = &other.body["networkInterfaces"][0];
            let linked = other.body["interfaces"].as_array().into_iter().flatten();
            REFERENCES.iter().any(|field| other.body[*field] == *full || interface[*field] == *full)
                || linked.into_iter().any(|one| one["linkedVpnTunnel"] == *full)
        });
        let held = object.body["users"].as_array().is_some_and(|users| !users.is_empty());
        if let Some(by) = used.map(|(by, _)| by.as_str()).or(held.then_some("a forwarding rule")) {
            let message = format!("The resource '{path}' is already being used by '{by}'");
            return refuse(400, "resourceInUseByAnotherResource", &message);
        }
        if peered {
            return refuse(400, "resourceInUseByAnotherResource", "the network is peered");
        }
        let at = now + self.takes;
        self.objects.get_mut(path).unwrap().gone_at = Some(at);
        self.begin(seen, "delete", now)
    }

    fn peer(&mut self, seen: &Seen, path: &str, add: bool, now: Duration) -> Reply {
        let Some(network) = self.objects.get(path) else { return missing(path) };
        let mut list = network.body["peerings"].as_array().cloned().unwrap_or_default();
        let name = if add { &seen.body["networkPeering"]["name"] } else { &seen.body["name"] };
        let known = list.iter().any(|one| one["name"] == *name);
        if add {
            if known {
                return refuse(409, "alreadyExists", "there is a peering of that name");
            }
            if let Err(refused) = self.refers(&seen.body["networkPeering"], now) {
                return refused;
            }
            list.push(seen.body["networkPeering"].clone());
        } else if known {
            list.retain(|one| one["name"] != *name);
        } else {
            return refuse(400, "invalid", "there is no peering of that name");
        }
        let network = &mut self.objects.get_mut(path).unwrap().body;
        if list.is_empty() {
            network.as_object_mut().unwrap().remove("peerings");
        } else {
            network["peerings"] = json!(list);
        }
        self.begin(seen, if add { "addPeering" } else { "removePeering" }, now)
    }

    fn list(&self, seen: &Seen, collection: &str) -> Reply {
        let pattern = seen.parameter("filter").map(|filter| {
            let literal = filter.strip_prefix("name eq ").expect("the only filter this stand-in knows");
            Regex::new(&format!("^(?:{})$", literal.trim_matches('"'))).unwrap()
        });
        let prefix = format!("{collection}/");
        let all: Vec<Value> = self
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .filter(|(path, _)| {
                pattern.as_ref().is_none_or(|pattern| pattern.is_match(&path[prefix.len()..]))
            })
            .map(|(_, object)| object.body.clone())
            .collect();
        // Two on a page, so that pages are turned.
        let from: usize = seen.parameter("pageToken").map_or(0, |token| token.parse().unwrap());
        let mut reply = json!({ "kind": "list" });
        if from < all.len() {
            reply["items"] = json!(all[from..all.len().min(from + 2)]);
        }
        if from + 2 < all.len() {
            reply["nextPageToken"] = json!((from + 2).to_string());
        }
        Reply::new(200, reply)
    }
}

pub(super) fn refuse(status: u16, reason: &str, message: &str) -> Reply {
    let error =
        json!({ "code": status, "message": message, "errors": [{ "reason": reason, "message": message }] });
    Reply::new(status, json!({ "error": error }))
}

pub(super) fn missing(path: &str) -> Reply {
    refuse(404, "notFound", &format!("The resource '{path}' was not found"))
}

/// A firewall as the cloud tells it.
fn normalize(body: &mut Value) {
    const NAMES: &[(&str, &str)] = &[
        ("1", "icmp"),
        ("6", "tcp"),
        ("17", "udp"),
        ("50", "esp"),
        ("51", "ah"),
        ("94", "ipip"),
        ("132", "sctp"),
    ];
    for list in ["allowed", "denied"] {
        for entry in body[list].as_array_mut().into_iter().flatten() {
            let spelt = entry["IPProtocol"].as_str().unwrap();
            if let Some((_, name)) = NAMES.iter().find(|(number, _)| *number == spelt) {
                entry["IPProtocol"] = json!(name);
            }
        }
        if body[list].is_null() {
            body.as_object_mut().unwrap().remove(list);
        }
    }
    if body["priority"].is_null() {
        body["priority"] = json!(1000);
    }
    // Without ranges a firewall is for everybody.
    let ranges = if body["direction"] == "EGRESS" { "destinationRanges" } else { "sourceRanges" };
    if body[ranges].as_array().is_none_or(Vec::is_empty) {
        body[ranges] = json!(["0.0.0.0/0"]);
    }
}

impl Vendor for Google {
    fn check(&self, seen: &Seen) -> Result<(), String> {
        let api = if self.compute.has(&seen.path) { &self.compute } else { &self.clusters };
        api.check(seen).map(drop)
    }

    fn error(&self, status: u16, message: &str) -> Value {
        json!({ "error": { "code": status, "message": message, "errors": [{ "reason": "backendError" }] } })
    }

    fn changes(&self, seen: &Seen) -> bool {
        seen.method != http::Method::GET && !seen.path.ends_with("/wait")
    }

    fn answer(&mut self, seen: &Seen, clock: &SimClock) -> Reply {
        use tarbet_nets::clouds::pace::Clock as _;
        if seen.headers.get("authorization").and_then(|value| value.to_str().ok()) != Some("Bearer sesame") {
            return refuse(401, "authError", "Invalid Credentials");
        }
        self.sweep(clock.now());
        let now = clock.now();
        if let Some(path) = seen.path.strip_prefix("/v1/") {
            return self.answer_of_clusters(seen, path, clock);
        }
        let path = seen.path.trim_start_matches("/compute/v1/").to_owned();
        if let Some(known) = seen.parameter("requestId").and_then(|id| self.requests.get(id)) {
            return self.told(&known.clone(), now);
        }
        let parts: Vec<&str> = path.split('/').collect();
        match (seen.method.as_str(), parts.as_slice()) {
            ("POST", [.., "operations", name, "wait"]) => {
                let Some(running) = self.operations.get(*name) else { return missing(&path) };
                clock.pass(running.ends.saturating_sub(now).min(HOLD));
                self.sweep(clock.now());
                self.told(name, clock.now())
            }
            ("GET", ["projects", project, "aggregated", kind]) => {
                let mut places = serde_json::Map::new();
                for (path, object) in &self.objects {
                    let parts: Vec<&str> = path.split('/').collect();
                    let place = match parts.as_slice() {
                        ["projects", of, "global", of_kind, _] if of == project && of_kind == kind => {
                            "global".to_owned()
                        }
                        ["projects", of, places, place, of_kind, _] if of == project && of_kind == kind => {
                            format!("{places}/{place}")
                        }
                        _ => continue,
                    };
                    let place = places.entry(place).or_insert_with(|| json!({ *kind: [] }));
                    place[*kind].as_array_mut().unwrap().push(object.body.clone());
                }
                Reply::new(200, json!({ "items": places }))
            }
            ("GET", [.., "networks" | "firewalls" | "vpnTunnels" | "externalVpnGateways"]) => {
                self.list(seen, &path)
            }
            ("GET", _) => self
                .objects
                .get(&path)
                .map_or_else(|| missing(&path), |object| Reply::new(200, object.body.clone())),
            ("POST", [.., "addPeering"]) => self.peer(seen, path.trim_end_matches("/addPeering"), true, now),
            ("POST", [.., "removePeering"]) => {
                self.peer(seen, path.trim_end_matches("/removePeering"), false, now)
            }
            ("POST", [.., "setTags"]) => {
                let Some(object) = self.objects.get_mut(path.trim_end_matches("/setTags")) else {
                    return missing(&path);
                };
                if object.ready_at > now {
                    return refuse(400, "resourceNotReady", "The resource is not ready");
                }
                if object.body["tags"]["fingerprint"] != seen.body["fingerprint"] {
                    return refuse(
                        412,
                        "conditionNotMet",
                        "Supplied fingerprint does not match current fingerprint",
                    );
                }
                let fingerprint = format!("{}==", seen.body["items"].as_array().map_or(0, Vec::len));
                object.body["tags"] = json!({ "items": seen.body["items"], "fingerprint": fingerprint });
                self.begin(seen, "setTags", now)
            }
            ("POST", [.., "setLabels"]) => self.label(seen, path.trim_end_matches("/setLabels"), now),
            ("POST", _) => self.insert(seen, &path, now),
            ("PATCH", _) => self.patch(seen, &path, now),
            ("DELETE", _) => self.delete(seen, &path, now),
            _ => missing(&path),
        }
    }
}
