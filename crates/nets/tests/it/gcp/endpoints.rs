//! A stand-in of Google's Private Service Connect, and what the plugin does with it.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Cloud, NewResource};
use tarbet_nets::model::{Direction, Flags, Rule};

use super::super::sim::{Faults, Reply, Seen};
use super::vendor::{Google, PREFIX, missing, refuse};
use super::{World, deployment, machine, rule};

/// Where a path is, as an answer tells it.
fn region(collection: &str) -> Option<&str> {
    collection.split("/regions/").nth(1)?.split('/').next()
}

impl Google {
    /// Takes out which addresses were given, which differs from run to run; that rules name them stays.
    pub(super) fn forget_addresses(&self, body: &mut Value) {
        let reserved = self.objects.iter().filter(|(path, _)| path.contains("/addresses/"));
        let reserved: Vec<(String, &str)> =
            reserved.map(|(path, object)| (path.clone(), object.body["address"].as_str().unwrap())).collect();
        let of = |text: &str| {
            let plain = text.trim_end_matches("/32");
            reserved.iter().find(|(_, address)| *address == plain).map(|(path, _)| json!(path))
        };
        for field in ["address", "IPAddress"] {
            if let Some(path) = body[field].as_str().and_then(of) {
                body[field] = path;
            }
        }
        for field in ["sourceRanges", "destinationRanges"] {
            for range in body[field].as_array_mut().into_iter().flatten() {
                if let Some(path) = range.as_str().and_then(of) {
                    *range = path;
                }
            }
        }
        body.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    }

    /// What goes with a forwarding rule.
    pub(super) fn after_endpoint(&mut self, path: &str) {
        let full = format!("{PREFIX}{path}");
        for object in self.objects.values_mut() {
            if let Some(users) = object.body["users"].as_array_mut() {
                users.retain(|user| *user != *full);
                object.body["status"] = json!("RESERVED");
            }
        }
    }

    /// Reserves an address. Labels are for `setLabels` alone, says the document.
    pub(super) fn reserve(&self, collection: &str, body: &mut Value) -> Result<(), Reply> {
        let invalid = |message: &str| Err(refuse(400, "invalid", message));
        if body["addressType"] != "INTERNAL" {
            return invalid("this stand-in has internal addresses only");
        }
        body.as_object_mut().unwrap().remove("labels");
        body["labelFingerprint"] = json!("AAAB");
        body["status"] = json!("RESERVED");
        let Some(region) = region(collection) else {
            let address: Option<IpAddr> = body["address"].as_str().and_then(|text| text.parse().ok());
            let Some(address) = address.filter(|_| body["purpose"] == "PRIVATE_SERVICE_CONNECT") else {
                return invalid("a global internal address has a purpose and a number");
            };
            let within = |object: &super::vendor::Object| {
                let range = object.body["ipCidrRange"].as_str().and_then(|text| text.parse::<IpNet>().ok());
                object.body["network"] == body["network"]
                    && range.is_some_and(|range| range.contains(&address))
            };
            if body["network"].is_null() || self.objects.values().any(within) {
                return invalid("the address is in a subnetwork");
            }
            return Ok(());
        };
        let Some(subnet) = body["subnetwork"].as_str().map(|url| url.trim_start_matches(PREFIX)) else {
            return invalid("a regional internal address is in a subnetwork");
        };
        let range: IpNet = self.objects[subnet].body["ipCidrRange"].as_str().unwrap().parse().unwrap();
        let taken = self.objects.keys().filter(|path| path.contains("/addresses/")).count();
        body["address"] = json!(range.hosts().nth(200 + taken).unwrap().to_string());
        body["region"] =
            json!(format!("{PREFIX}{}/regions/{region}", collection.split("/regions/").next().unwrap()));
        body["purpose"] = json!("GCE_ENDPOINT");
        Ok(())
    }

    /// Leads from an address to a service.
    pub(super) fn forward(&mut self, collection: &str, body: &mut Value, now: Duration) -> Result<(), Reply> {
        let invalid = |message: &str| Err(refuse(400, "invalid", message));
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let (name, target) = (text("name"), text("target"));
        if body["network"].is_null() {
            return invalid("a network must be provided");
        }
        match region(collection) {
            Some(region) if target.contains(&format!("/regions/{region}/serviceAttachments/")) => {
                body["region"] =
                    json!(format!("{PREFIX}{}", collection.trim_end_matches("/forwardingRules")));
            }
            None if ["all-apis", "vpc-sc"].contains(&target.as_str()) => {
                if name.len() > 20 || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
                    return invalid("the name must be 1-20 lowercase letters and numbers");
                }
            }
            _ => return invalid("the target is not in this place"),
        }
        let path = body["IPAddress"].as_str().unwrap().trim_start_matches(PREFIX).to_owned();
        let Some(address) = self.objects.get_mut(&path) else { return Err(missing(&path)) };
        if address.ready_at > now || address.gone_at.is_some() {
            return Err(refuse(400, "resourceNotReady", &format!("The resource '{path}' is not ready")));
        }
        if address.body["users"].as_array().is_some_and(|users| !users.is_empty()) {
            return Err(refuse(400, "resourceInUseByAnotherResource", "the address is in use"));
        }
        address.body["users"] = json!([format!("{PREFIX}{collection}/{name}")]);
        address.body["status"] = json!("IN_USE");
        body["IPAddress"] = address.body["address"].clone();
        body["pscConnectionStatus"] = json!("ACCEPTED");
        Ok(())
    }

    pub(super) fn label(&mut self, seen: &Seen, path: &str, now: Duration) -> Reply {
        let Some(object) = self.objects.get_mut(path) else { return missing(path) };
        if object.ready_at > now {
            return refuse(400, "resourceNotReady", "The resource is not ready");
        }
        if object.body["labelFingerprint"] != seen.body["labelFingerprint"] {
            return refuse(
                412,
                "conditionNotMet",
                "Labels fingerprint either invalid or resource labels have changed",
            );
        }
        object.body["labels"] = seen.body["labels"].clone();
        object.body["labelFingerprint"] = json!("AAAC");
        self.begin(seen, "setLabels", now)
    }

    /// Changes an object behind everybody's back.
    fn spoil(&mut self, path: &str, field: &str, value: Value) {
        self.objects.get_mut(path).unwrap().body[field] = value;
    }
}

const SERVICE: &str = "projects/elsewhere/regions/us-west1/serviceAttachments/db";

fn endpoint(namespace: &str, name: &str, description: Value) -> NewResource {
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

pub(super) fn service(namespace: &str, name: &str) -> NewResource {
    endpoint(namespace, name, json!({ "url": SERVICE }))
}

pub(super) fn bundle(namespace: &str, name: &str) -> NewResource {
    endpoint(namespace, name, json!({ "bundle": "all-apis" }))
}

pub(super) fn service_uri(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{}/regions/us-west1/forwardingRules/{name}", deployment(namespace).id)
}

pub(super) fn bundle_uri(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{}/global/forwardingRules/{name}", deployment(namespace).id)
}

/// Switches endpoints and clusters on, as the orchestrator does.
pub(super) async fn allow(gcp: &dyn Cloud) -> Result<(), Error> {
    let flags =
        Flags { private_endpoints_enabled: true, kubernetes_clusters_enabled: true, ..Flags::default() };
    gcp.set_flags(flags).await
}

/// The address of an endpoint in the namespace `default`.
pub(super) async fn address(gcp: &dyn Cloud, name: &str) -> Result<String, Error> {
    gcp.used_spaces(&[deployment("default")]).await?;
    let held = gcp.list_resources("default").await?;
    Ok(held.into_iter().find(|one| one.name == name).unwrap().ip)
}

#[tokio::test]
async fn the_calls_of_an_endpoint() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let off = gcp.create_resource(service("default", "e-1")).await.unwrap_err();
    assert!(matches!(&off, Error::Unsupported(said) if said.contains("privateEndpointsEnabled")), "{off}");
    allow(&gcp).await.unwrap();
    for (bad, field) in [
        (endpoint("default", "e-1", json!({ "url": SERVICE, "subnetwork": "x" })), "description.subnetwork"),
        (endpoint("default", "e-1", json!({ "url": "elsewhere" })), "description.url"),
        (endpoint("default", "apis", json!({ "bundle": "some" })), "description.bundle"),
        (bundle("default", "a-pis"), "name"),
        (service("default", &"e".repeat(60)), "name"),
    ] {
        let error = gcp.create_resource(bad).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(mistakes) if mistakes[0].field == field), "{field}: {error}");
    }
    assert_eq!(sim.changes(), Vec::<String>::new(), "refusals touch nothing");

    let made = gcp.create_resource(service("default", "e-1")).await.unwrap();
    assert_eq!((made.uri.as_str(), made.ip.as_str()), (&*service_uri("default", "e-1"), "10.0.0.201"));
    let calls = [
        "POST /compute/v1/projects/p/global/networks",
        "POST /compute/v1/projects/p/global/firewalls",
        "POST /compute/v1/projects/p/regions/us-west1/subnetworks",
        "POST /compute/v1/projects/p/regions/us-west1/addresses",
        "POST /compute/v1/projects/p/regions/us-west1/addresses/para-e-1-address/setLabels",
        "POST /compute/v1/projects/p/regions/us-west1/forwardingRules",
    ];
    assert_eq!(sim.changes(), calls);
    // The same again changes nothing; what leads elsewhere is another one.
    assert_eq!(gcp.create_resource(service("default", "e-1")).await.unwrap(), made);
    let other = endpoint("default", "e-1", json!({ "url": SERVICE.replace("db", "files") }));
    let other = gcp.create_resource(other).await.unwrap_err();
    assert!(matches!(&other, Error::Invalid(mistakes) if mistakes[0].field == "description.url"), "{other}");
    assert_eq!(sim.changes().len(), calls.len());

    sim.faults(Faults::default());
    let apis = gcp.create_resource(bundle("default", "apis")).await.unwrap();
    assert_eq!(apis.uri, bundle_uri("default", "apis"));
    let calls = [
        "POST /compute/v1/projects/p/global/addresses",
        "POST /compute/v1/projects/p/global/addresses/para-apis-address/setLabels",
        "POST /compute/v1/projects/p/global/forwardingRules",
    ];
    assert_eq!(sim.changes(), calls, "no subnet is needed");
    sim.with(|google| {
        let address = google.object("projects/p/global/addresses/para-apis-address");
        assert_eq!(address["labels"], json!({ "paraglider_ns": "default" }));
        let rule = google.object("projects/p/global/forwardingRules/apis");
        assert_eq!((&rule["target"], &rule["IPAddress"]), (&json!("all-apis"), &json!(apis.ip)));
        let rule = google.object("projects/p/regions/us-west1/forwardingRules/e-1");
        assert_eq!(
            (&rule["allowPscGlobalAccess"], &rule["target"]),
            (&json!(true), &json!(format!("{PREFIX}{SERVICE}")))
        );
    });

    // What nobody else may be given: the subnet with one address in it, and the other one.
    let used = gcp.used_spaces(&[deployment("default")]).await.unwrap();
    let own: IpNet = format!("{}/32", apis.ip).parse().unwrap();
    assert_eq!(used[0].spaces, ["10.0.0.0/16".parse().unwrap(), own]);
    assert!(!used[0].spaces[0].contains(&own), "it must be in no subnet");
    let mut held = gcp.list_resources("default").await.unwrap();
    held.sort_by(|a, b| a.name.cmp(&b.name));
    let held: Vec<_> = held.iter().map(|one| (&*one.name, &*one.uri, &*one.ip)).collect();
    assert_eq!(held, [("apis", &*apis.uri, &*apis.ip), ("e-1", &*made.uri, &*made.ip)]);

    // Rules name the endpoint's address, because it has no network tag.
    let foreign = gcp.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    for (uri, ip) in [(&made.uri, &made.ip), (&apis.uri, &apis.ip)] {
        sim.faults(Faults::default());
        let web = rule("web", Direction::Inbound, "10.0.0.2/32");
        let out = rule("out", Direction::Outbound, "203.0.113.9/32");
        gcp.add_rules("default", uri, vec![web.clone(), out.clone()]).await.unwrap();
        assert_eq!(
            sim.changes(),
            vec!["POST /compute/v1/projects/p/global/firewalls"; 2],
            "no way out is made"
        );
        let mut found = gcp.permit_list("default", uri).await.unwrap();
        found.sort_by(|a, b| b.name.cmp(&a.name));
        assert_eq!(found, [web.clone(), out]);
        let (walls, wanted) = sim.with(|google| {
            let walls = google.objects.iter().filter(|(path, _)| path.contains("-fw-"));
            let at = json!([format!("{ip}/32")]);
            let of = walls
                .filter(|(_, wall)| wall.body["destinationRanges"] == at || wall.body["sourceRanges"] == at);
            (of.map(|(_, wall)| wall.body.clone()).collect::<Vec<_>>(), at)
        });
        assert_eq!(walls.len(), 2, "{walls:?}");
        for wall in &walls {
            let own = if wall["direction"] == "INGRESS" { "destinationRanges" } else { "sourceRanges" };
            assert_eq!((&wall[own], wall.get("targetTags")), (&wanted, None));
        }
        // Another's hand made one a rule for everybody; the same again narrows it.
        let wall = walls.iter().find(|wall| wall["direction"] == "INGRESS").unwrap();
        let path = format!("projects/p/global/firewalls/{}", wall["name"].as_str().unwrap());
        sim.with(|google| google.spoil(&path, "destinationRanges", json!([])));
        gcp.add_rules("default", uri, vec![Rule { ..web }]).await.unwrap();
        assert_eq!(sim.with(|google| google.object(&path)["destinationRanges"].clone()), wanted);
        gcp.delete_rules("default", uri, vec!["out".into()]).await.unwrap();
    }

    // What others break is found, and what can be mended is.
    assert_eq!(gcp.drift("default", true).await.unwrap(), Vec::<String>::new(), "its rules are its own");
    let near = "projects/p/regions/us-west1/forwardingRules/e-1";
    sim.with(|google| {
        google.spoil("projects/p/global/addresses/para-apis-address", "labels", json!({}));
        google.spoil(near, "pscConnectionStatus", json!("REJECTED"));
    });
    let found = gcp.drift("default", true).await.unwrap();
    assert!(
        found.len() == 2 && found[0].contains("paraglider_ns") && found[1].contains("REJECTED"),
        "{found:?}"
    );
    assert_eq!(gcp.drift("default", false).await.unwrap().len(), 1);
    assert_eq!(gcp.permit_list("default", &made.uri).await.unwrap().len(), 1, "no rule was taken away");

    // The network stays as long as anything is in it.
    gcp.delete_resource("default", &super::uri("default", "vm-1")).await.unwrap();
    gcp.delete_resource("default", &made.uri).await.unwrap();
    sim.with(|google| {
        let left: Vec<&String> = google.objects.keys().collect();
        assert!(!left.iter().any(|path| path.contains("/regions/")), "{left:?}");
        assert!(left.iter().any(|path| path.ends_with("para-default-deny-all-egress")), "{left:?}");
    });
    gcp.delete_resource("default", &apis.uri).await.unwrap();
    assert_eq!(sim.with(|google| google.state()), std::collections::BTreeMap::default(), "nothing is left");
    gcp.delete_resource("default", &apis.uri).await.unwrap();
    sim.assert_sound();
}

#[tokio::test]
async fn what_belongs_to_others_is_left_alone() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    allow(&gcp).await.unwrap();
    // Two namespaces of one project: names of endpoints are the project's.
    let here = |namespace: &str| {
        let mut new = service(namespace, "e-1");
        new.deployment.id = "projects/p".into();
        new
    };
    let made = gcp.create_resource(here("default")).await.unwrap();
    let foreign = gcp.create_resource(here("other")).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    let foreign = gcp.delete_resource("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    // A load balancer in the network has a forwarding rule, and is no endpoint.
    let path = "projects/p/regions/us-west1/forwardingRules/e-1";
    sim.with(|google| google.spoil(path, "target", json!("https://x/regions/us-west1/targetPools/t")));
    sim.faults(Faults::default());
    let foreign = gcp.delete_resource("default", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    assert_eq!(sim.changes(), Vec::<String>::new());
    // An endpoint that somebody took the rule of is told, and goes with its address.
    sim.with(|google| {
        google.lose(path);
        google.after_endpoint(path);
    });
    gcp.used_spaces(&[deployment("default")]).await.unwrap();
    let found = gcp.drift("default", true).await.unwrap();
    assert!(found.len() == 1 && found[0].contains("no forwarding rule"), "{found:?}");
    assert!(gcp.list_resources("default").await.unwrap().is_empty());
    gcp.delete_resource("default", &made.uri).await.unwrap();
    assert!(
        !sim.with(|google| google.state()).keys().any(|path| path.contains("para-default")),
        "nothing is left"
    );
    sim.assert_sound();
}
