//! A stand-in of IBM Cloud: networks, machines, gateways and tags, what uses what, and states that take their time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tarbet_nets::clouds::pace::Clock as _;

use super::super::sim::{Reply, Seen, SimClock, Vendor};
use super::contract::Contract;

/// Where each kind tells its state, and the words before and after.
const STATES: &[(&str, &str, &str, &str)] = &[
    ("vpcs", "status", "pending", "available"),
    ("subnets", "status", "pending", "available"),
    ("instances", "status", "starting", "running"),
    ("public_gateways", "status", "pending", "available"),
    ("endpoint_gateways", "lifecycle_state", "pending", "stable"),
    ("vpn_gateways", "lifecycle_state", "pending", "stable"),
    ("transit_gateways", "status", "pending", "available"),
    ("transit_connections", "status", "pending", "attached"),
];

struct Object {
    kind: String,
    body: Value,
    ready_at: Duration,
    gone_at: Option<Duration>,
}

pub(crate) struct IbmCloud {
    contract: Contract,
    objects: BTreeMap<String, Object>,
    pub(crate) tags: BTreeMap<String, BTreeSet<String>>,
    counted: usize,
    /// How long everything takes.
    pub(crate) takes: Duration,
}

fn refuse(status: u16, code: &str, message: &str) -> Reply {
    Reply::new(status, json!({ "errors": [{ "code": code, "message": message }], "trace": "t" }))
}

fn missing() -> Reply {
    refuse(404, "not_found", "The resource was not found")
}

/// The API a path is of, and the path in it.
fn split(path: &str) -> Option<(&'static str, String)> {
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(3, '/').collect();
    match parts.as_slice() {
        ["transit", "v1", rest] => Some(("transit", format!("/{rest}"))),
        ["tags", _, _] => Some(("tags", path.trim_start_matches("/tags").to_owned())),
        [_, "v1", rest] => Some(("vpc", format!("/{rest}"))),
        _ => None,
    }
}

impl IbmCloud {
    pub(crate) fn new() -> Self {
        Self {
            contract: Contract::load(),
            objects: BTreeMap::new(),
            tags: BTreeMap::new(),
            counted: 0,
            takes: Duration::from_secs(5),
        }
    }

    /// Everything there is, but for what differs from run to run.
    pub(crate) fn state(&self) -> BTreeMap<String, Value> {
        let plain = |(path, object): (&String, &Object)| {
            let mut body = object.body.clone();
            for field in ["ipv4_cidr_block", "cidr", "address"] {
                body.as_object_mut().unwrap().remove(field);
            }
            if let Some(ip) = body.pointer_mut("/ips/0/address") {
                *ip = Value::Null;
            }
            if let Some(ip) = body.pointer_mut("/primary_network_interface/primary_ip") {
                *ip = Value::Null;
            }
            if object.kind == "rules" {
                body.as_object_mut().unwrap().remove("id");
                let group = path.rsplit_once('/').unwrap().0;
                return (format!("{group}/{body}"), body);
            }
            (path.clone(), body)
        };
        self.objects.iter().map(plain).collect()
    }

    /// Something that others made, with these tags.
    pub(crate) fn put(&mut self, kind: &str, id: &str, tags: &[&str], mut body: Value) {
        let path = format!("us-south/v1/{kind}/{id}");
        (body["id"], body["crn"]) = (json!(id), json!(format!("crn:{path}")));
        self.tags.insert(format!("crn:{path}"), tags.iter().map(ToString::to_string).collect());
        let kind = kind.rsplit('/').next().unwrap().to_owned();
        self.objects.insert(path, Object { kind, body, ready_at: Duration::ZERO, gone_at: None });
    }

    /// People connect a network with the transit gateway.
    pub(crate) fn connect(&mut self, name: &str, crn: &str) {
        let gateway = self.objects.iter().find(|(_, object)| object.kind == "transit_gateways").unwrap().0;
        let body = json!({
            "id": name, "name": name, "network_type": "vpc", "network_id": crn, "status": "attached",
        });
        let object =
            Object { kind: "transit_connections".into(), body, ready_at: Duration::ZERO, gone_at: None };
        self.objects.insert(format!("{gateway}/connections/{name}"), object);
    }

    /// Takes away the rules of all security groups behind everybody's back.
    pub(crate) fn lose_rules(&mut self) {
        self.objects.retain(|_, object| object.kind != "rules");
    }

    fn sweep(&mut self, now: Duration) {
        let gone: Vec<String> = self
            .objects
            .iter()
            .filter(|(_, object)| object.gone_at.is_some_and(|at| at <= now))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            let id = self.objects[&path].body["id"].clone();
            for object in self.objects.values_mut().filter(|one| one.body["target"]["id"] == id) {
                object.body.as_object_mut().unwrap().remove("target");
            }
            self.forget(&path);
        }
    }

    /// An object and all below it.
    fn forget(&mut self, path: &str) {
        let below = format!("{path}/");
        self.objects.retain(|one, _| one != path && !one.starts_with(&below));
    }

    fn tell(&self, object: &Object, now: Duration) -> Value {
        let mut body = object.body.clone();
        if let Some((_, field, before, after)) = STATES.iter().find(|(kind, ..)| *kind == object.kind) {
            let state = if object.gone_at.is_some() {
                "deleting"
            } else if object.ready_at > now {
                before
            } else {
                after
            };
            body[*field] = json!(state);
        }
        if object.kind == "security_groups" {
            let of = |one: &Object, place: &str| one.body.pointer(place) == Some(&body["id"]);
            let machines = self
                .objects
                .values()
                .filter(|one| of(one, "/primary_network_interface/security_groups/0/id"))
                .map(|one| {
                    let id = &one.body["primary_network_interface"]["id"];
                    json!({ "id": id, "resource_type": "network_interface" })
                });
            let gateways = self
                .objects
                .values()
                .filter(|one| of(one, "/security_groups/0/id"))
                .map(|one| json!({ "id": one.body["id"], "resource_type": "endpoint_gateway" }));
            let own = self.objects.iter().find(|(_, one)| one.kind == object.kind && of(one, "/id"));
            let below = own.map(|(path, _)| format!("{path}/rules/")).unwrap_or_default();
            let rules = self.objects.iter().filter(|(path, _)| path.starts_with(&below) && own.is_some());
            let rules: Value = rules.map(|(_, rule)| rule.body.clone()).collect();
            let targets: Value = machines.chain(gateways).collect();
            (body["rules"], body["targets"]) = (rules, targets);
        }
        body
    }

    fn list(&self, seen: &Seen, path: &str, kind: &str, now: Duration) -> Reply {
        let below = format!("{path}/");
        let fits = |body: &Value| {
            let same = |parameter: &str, field: &str| {
                seen.parameter(parameter).is_none_or(|id| body[field]["id"] == id)
            };
            same("vpc.id", "vpc") && same("resource_group.id", "resource_group")
        };
        let all: Vec<Value> = self
            .objects
            .iter()
            .filter(|(one, object)| {
                one.strip_prefix(&below).is_some_and(|id| !id.contains('/')) && fits(&object.body)
            })
            .map(|(_, object)| self.tell(object, now))
            .collect();
        let field = kind.trim_start_matches("transit_");
        let field = if kind == "transit_gateways" { kind } else { field };
        // Two on a page, so that pages are turned; what has no pages is told at once.
        if kind == "rules" {
            return Reply::new(200, json!({ field: all }));
        }
        let from: usize = seen.parameter("start").map_or(0, |start| start.parse().unwrap());
        let mut reply =
            json!({ "limit": 2, "total_count": all.len(), "first": { "href": "http://127.0.0.1/" } });
        reply[field] = json!(all[from.min(all.len())..all.len().min(from + 2)]);
        if from + 2 < all.len() {
            reply["next"] = json!({ "href": format!("http://127.0.0.1/x?start={}", from + 2) });
        }
        Reply::new(200, reply)
    }

    fn find(&self, id: &Value) -> Option<&Object> {
        self.objects.values().find(|object| object.body["id"] == *id)
    }

    fn create(&mut self, seen: &Seen, path: &str, kind: &str, now: Duration) -> Reply {
        let mut body = seen.body.clone();
        let below = format!("{path}/");
        let siblings: Vec<&Object> = self
            .objects
            .iter()
            .filter(|(one, _)| one.starts_with(&below))
            .map(|(_, object)| object)
            .collect();
        if kind == "rules" {
            let same = |one: &&Object| {
                let mut told = one.body.clone();
                told.as_object_mut().unwrap().remove("id");
                told == body
            };
            if siblings.iter().any(same) {
                return refuse(400, "duplicate_rule", "there is such a rule");
            }
        } else if siblings.iter().any(|one| one.kind == kind && one.body["name"] == body["name"]) {
            return refuse(400, "validation_unique_failed", "Provided Name is not unique");
        }
        for place in [
            "/vpc",
            "/subnet",
            "/primary_network_interface/subnet",
            "/security_groups/0",
            "/ips/0",
            "/next_hop",
            "/ike_policy",
            "/ipsec_policy",
        ] {
            let Some(id) = body.pointer(place).map(|one| one["id"].clone()).filter(Value::is_string) else {
                continue;
            };
            let Some(object) = self.find(&id) else {
                return refuse(400, "not_found", &format!("{place} is not there"));
            };
            if object.ready_at > now || object.gone_at.is_some() {
                return refuse(409, "resource_not_ready", &format!("{place} is not ready"));
            }
            if place == "/vpc" {
                body["vpc"]["name"] = object.body["name"].clone();
            }
        }
        if kind == "subnets" {
            let range: IpNet = body["ipv4_cidr_block"].as_str().unwrap().parse().unwrap();
            let prefixes = self
                .objects
                .values()
                .filter(|one| one.kind == "address_prefixes" && one.body["zone"] == body["zone"]);
            let held = prefixes
                .filter_map(|one| one.body["cidr"].as_str()?.parse::<IpNet>().ok())
                .any(|one| one.contains(&range));
            if !held {
                return refuse(400, "invalid_cidr", "no address prefix of the zone holds the subnet");
            }
        }
        if kind == "endpoint_gateways" {
            let taken = |one: &&Object| one.kind == kind && one.body["target"] == body["target"];
            if self.objects.values().any(|one| taken(&one) && one.body["vpc"] == body["vpc"]) {
                return refuse(400, "target_in_use", "another endpoint gateway of the network leads there");
            }
            let reserved = self.find(&body["ips"][0]["id"]).map(|one| one.body.clone()).unwrap_or_default();
            if reserved["address"].is_null() || reserved["target"].is_object() {
                return refuse(400, "reserved_ip_in_use", "the reserved address is not free");
            }
            body["ips"][0] =
                json!({ "id": reserved["id"], "name": reserved["name"], "address": reserved["address"] });
            let filter = self.find(&body["security_groups"][0]["id"]).unwrap();
            body["security_groups"][0]["name"] = filter.body["name"].clone();
        }
        if kind == "reserved_ips" {
            let Some(subnet) = self.objects.get(path.trim_end_matches("/reserved_ips")) else {
                return missing();
            };
            let range: IpNet = subnet.body["ipv4_cidr_block"].as_str().unwrap().parse().unwrap();
            let used = self.objects.values().filter(|one| one.kind == kind).count();
            body["address"] = json!(range.hosts().nth(100 + used).unwrap().to_string());
            body["auto_delete"] = json!(false);
        }
        self.counted += 1;
        let seed =
            if kind == "rules" { self.counted.to_string() } else { format!("{path}/{}", body["name"]) };
        let id = hex::encode(&Sha256::digest(seed.as_bytes())[..8]);
        body["id"] = json!(id);
        let at = format!("{path}/{id}");
        if kind != "rules" {
            body["crn"] = json!(format!("crn:{at}"));
        }
        if kind == "instances" {
            let subnet = self.find(&body["primary_network_interface"]["subnet"]["id"]).unwrap();
            let range: IpNet = subnet.body["ipv4_cidr_block"].as_str().unwrap().parse().unwrap();
            let used = self.objects.values().filter(|one| one.kind == "instances").count();
            let address = range.hosts().nth(3 + used).unwrap().to_string();
            body["primary_network_interface"]["id"] = json!(format!("nic-{id}"));
            body["primary_network_interface"]["primary_ip"] = json!({ "address": address });
        }
        if kind == "vpn_gateways" {
            let subnet = self.find(&body["subnet"]["id"]).unwrap();
            body["vpc"] = subnet.body["vpc"].clone();
            body["members"] =
                (1..3).map(|last| json!({ "public_ip": { "address": format!("192.0.2.{last}") } })).collect();
        }
        if kind == "endpoint_gateways" {
            let reserved = body["ips"][0]["id"].clone();
            let reserved = self.objects.values_mut().find(|one| one.body["id"] == reserved).unwrap();
            reserved.body["target"] = json!({ "id": id, "resource_type": "endpoint_gateway" });
        }
        if body.get("psk").is_some() {
            body["psk"] = json!("…");
        }
        let takes = if STATES.iter().any(|(one, ..)| *one == kind) { self.takes } else { Duration::ZERO };
        let object = Object { kind: kind.into(), body, ready_at: now + takes, gone_at: None };
        let told = self.tell(&object, now);
        self.objects.insert(at, object);
        Reply::new(201, told)
    }

    fn delete(&mut self, path: &str, now: Duration) -> Reply {
        let Some(object) = self.objects.get(path) else { return missing() };
        if object.gone_at.is_some() {
            return Reply::new(202, Value::Null);
        }
        let (id, crn) = (object.body["id"].clone(), object.body["crn"].clone());
        let uses = |other: &Object| {
            let body = &other.body;
            let named = [
                "/vpc/id",
                "/subnet/id",
                "/public_gateway/id",
                "/next_hop/id",
                "/ike_policy/id",
                "/ipsec_policy/id",
                "/primary_network_interface/subnet/id",
                "/primary_network_interface/security_groups/0/id",
                "/security_groups/0/id",
            ];
            named.iter().any(|place| body.pointer(place) == Some(&id))
                || (crn.is_string() && body["network_id"] == crn)
        };
        let below = format!("{path}/");
        let parts = self.objects.iter().any(|(one, other)| {
            one.starts_with(&below) && !["rules", "address_prefixes"].contains(&other.kind.as_str())
        });
        let bound = object.kind == "reserved_ips" && object.body["target"].is_object();
        if parts || bound || self.objects.values().any(uses) {
            return refuse(409, "in_use", "The resource is in use");
        }
        if STATES.iter().any(|(kind, ..)| *kind == object.kind) {
            let at = now + self.takes;
            self.objects.get_mut(path).unwrap().gone_at = Some(at);
            return Reply::new(202, Value::Null);
        }
        self.forget(path);
        Reply::new(204, Value::Null)
    }
}

impl Vendor for IbmCloud {
    fn check(&self, seen: &Seen) -> Result<(), String> {
        if seen.path == "/iam/identity/token" {
            let form: Vec<(String, String)> =
                url::form_urlencoded::parse(seen.text.as_bytes()).into_owned().collect();
            let wanted = [("grant_type", "urn:ibm:params:oauth:grant-type:apikey"), ("apikey", "open-up")];
            let sound = form.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(wanted);
            return if sound { Ok(()) } else { Err("that is no request for a token".into()) };
        }
        let (api, path) = split(&seen.path).ok_or("the path is of no API")?;
        self.contract.check(api, &path, seen)
    }

    fn error(&self, _: u16, message: &str) -> Value {
        json!({ "errors": [{ "code": "internal_error", "message": message }] })
    }

    fn changes(&self, seen: &Seen) -> bool {
        seen.method != http::Method::GET
            && !seen.path.starts_with("/iam/")
            && !seen.path.starts_with("/tags/")
    }

    fn answer(&mut self, seen: &Seen, clock: &SimClock) -> Reply {
        if seen.path.starts_with("/iam/") {
            return Reply::new(200, json!({ "access_token": "sesame", "expires_in": 3600 }));
        }
        if seen.headers.get("authorization").and_then(|value| value.to_str().ok()) != Some("Bearer sesame") {
            return refuse(401, "not_authorized", "The token is not good");
        }
        let now = clock.now();
        self.sweep(now);
        let path = seen.path.trim_start_matches('/').to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        match (seen.method.as_str(), parts.as_slice()) {
            ("POST", ["tags", ..]) => {
                let names = seen.body["tag_names"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|name| name.as_str().unwrap().to_owned());
                let crn = seen.body["resources"][0]["resource_id"].as_str().unwrap();
                let known = self.objects.values().any(|object| object.body["crn"] == crn);
                if known {
                    self.tags.entry(crn.into()).or_default().extend(names);
                }
                Reply::new(200, json!({ "results": [{ "resource_id": crn, "is_error": !known }] }))
            }
            ("GET", ["tags", ..]) => {
                let crn = seen.parameter("attached_to").unwrap_or_default();
                let names = self.tags.get(crn).cloned().unwrap_or_default();
                let items: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
                let count = items.len();
                Reply::new(200, json!({ "total_count": count, "offset": 0, "limit": 100, "items": items }))
            }
            ("GET", [region, "v1", "regions", _, "zones"]) => {
                let zone = |number: u8| json!({ "name": format!("{region}-{number}") });
                Reply::new(200, json!({ "zones": [zone(1), zone(2), zone(3)] }))
            }
            ("GET", [_, "v1", "vpcs", id, "default_routing_table"]) => {
                Reply::new(200, json!({ "id": format!("rt-{id}") }))
            }
            ("GET", [region, "v1", "instances", id, "network_interfaces", nic]) => {
                let found = self.objects.get(&format!("{region}/v1/instances/{id}"));
                found
                    .map(|object| &object.body["primary_network_interface"])
                    .filter(|one| one["id"] == *nic)
                    .map_or_else(missing, |one| Reply::new(200, one.clone()))
            }
            ("PUT", [region, "v1", "subnets", id, "public_gateway"]) => {
                let Some(object) = self.objects.get_mut(&format!("{region}/v1/subnets/{id}")) else {
                    return missing();
                };
                object.body["public_gateway"] = seen.body.clone();
                Reply::new(201, seen.body.clone())
            }
            (method @ ("GET" | "DELETE"), [region, "v1", "subnets", id, "public_gateway"]) => {
                let subnet = self.objects.get_mut(&format!("{region}/v1/subnets/{id}"));
                let body = subnet.and_then(|subnet| subnet.body.as_object_mut());
                let Some(gateway) = body.as_ref().and_then(|body| body.get("public_gateway")).cloned() else {
                    return missing();
                };
                if method == "GET" {
                    return Reply::new(200, gateway);
                }
                body.unwrap().remove("public_gateway");
                Reply::new(204, Value::Null)
            }
            (method, [.., last]) => {
                let is_kind = [
                    "vpcs",
                    "subnets",
                    "instances",
                    "security_groups",
                    "rules",
                    "address_prefixes",
                    "routes",
                    "public_gateways",
                    "endpoint_gateways",
                    "reserved_ips",
                    "vpn_gateways",
                    "connections",
                    "ike_policies",
                    "ipsec_policies",
                    "transit_gateways",
                ];
                let kind = if path.starts_with("transit/") && *last == "connections" {
                    "transit_connections"
                } else {
                    last
                };
                match (method, is_kind.contains(last)) {
                    ("GET", true) => self.list(seen, &path, kind, now),
                    ("POST", true) => self.create(seen, &path, kind, now),
                    ("GET", false) => self
                        .objects
                        .get(&path)
                        .map_or_else(missing, |object| Reply::new(200, self.tell(object, now))),
                    ("DELETE", false) => self.delete(&path, now),
                    _ => missing(),
                }
            }
            _ => missing(),
        }
    }
}
