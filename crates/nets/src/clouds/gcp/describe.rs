//! What people say of a resource that is to be made, and how URIs name one that is.

use serde_json::Value;

use super::{PREFIX, is_project, last, legal};
use crate::clouds::taken;
use crate::error::Error;

/// What the original's URIs of clusters begin with, and what the API's own begin with.
pub(super) const CLUSTER_PREFIX: &str = "https://container.googleapis.com/v1beta1/";
const CLUSTER_PREFIXES: [&str; 2] = [CLUSTER_PREFIX, "https://container.googleapis.com/v1/"];

/// A resource as a URI names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) project: &'a str,
    pub(super) kind: Kind,
    /// A machine's zone; a cluster's zone or region; an endpoint's region, or [`GLOBAL`].
    pub(super) place: &'a str,
    pub(super) name: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Machine,
    Cluster,
    /// Of Private Service Connect; a forwarding rule to the cloud.
    Endpoint,
}

/// Where endpoints are that belong to no region.
pub(super) const GLOBAL: &str = "global";
/// The sets of Google's own APIs that an endpoint may lead to.
const BUNDLES: [&str; 2] = ["all-apis", "vpc-sc"];

impl<'a> Named<'a> {
    /// `projects/P/zones/Z/instances/I`, `projects/P/locations/L/clusters/C`, or the forwarding rule of an
    /// endpoint, with or without the prefixes.
    pub(super) fn parse(uri: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path_of(uri).split('/').collect();
        let (project, kind, place, name) = match parts.as_slice() {
            ["projects", project, "zones", zone, "instances", name] => (project, Kind::Machine, zone, name),
            ["projects", project, "locations", place, "clusters", name] => {
                (project, Kind::Cluster, place, name)
            }
            ["projects", project, "regions", place, "forwardingRules", name] => {
                (project, Kind::Endpoint, place, name)
            }
            ["projects", project, "global", "forwardingRules", name] => {
                (project, Kind::Endpoint, &GLOBAL, name)
            }
            _ => return None,
        };
        let sound = |name: &str| legal("uri", name.to_owned()).is_ok();
        (is_project(project) && sound(place) && sound(name)).then_some(Self { project, kind, place, name })
    }

    /// As the API's paths name it.
    pub(super) fn path(&self) -> String {
        let Self { project, kind, place, name } = self;
        match kind {
            Kind::Machine => format!("projects/{project}/zones/{place}/instances/{name}"),
            Kind::Cluster => format!("projects/{project}/locations/{place}/clusters/{name}"),
            Kind::Endpoint => format!("{}/forwardingRules/{name}", scope_of(project, place)),
        }
    }

    /// As the original names it.
    pub(super) fn uri(&self) -> String {
        match self.kind {
            Kind::Machine | Kind::Endpoint => format!("{PREFIX}{}", self.path()),
            Kind::Cluster => format!("{CLUSTER_PREFIX}{}", self.path()),
        }
    }
}

/// Where the parts of an endpoint are.
pub(super) fn scope_of(project: &str, place: &str) -> String {
    if place == GLOBAL {
        format!("projects/{project}/global")
    } else {
        format!("projects/{project}/regions/{place}")
    }
}

/// A URI without what it begins with.
pub(super) fn path_of(uri: &str) -> &str {
    let cluster = || CLUSTER_PREFIXES.iter().find_map(|prefix| uri.strip_prefix(prefix));
    uri.strip_prefix(PREFIX).or_else(cluster).unwrap_or(uri)
}

/// A resource to be made, but for its network.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct New {
    pub(super) kind: Kind,
    pub(super) place: String,
    pub(super) body: Value,
}

/// `us-west1-a` is in `us-west1`, and so is `us-west1`.
pub(super) fn region_of(place: &str, field: &str) -> Result<String, Error> {
    let parts: Vec<&str> = place.split('-').collect();
    match parts.as_slice() {
        [continent, part] | [continent, part, _] => legal(field, format!("{continent}-{part}")),
        _ => Err(Error::invalid(field, format!("`{}` is not a place of this cloud", place.escape_debug()))),
    }
}

/// Users of the original write fields as its messages name them, `machine_type`; the cloud's own API says
/// `machineType`. What people named themselves stays as it is.
fn camel_case(value: Value) -> Value {
    let of = |name: &str| {
        let mut words = name.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |name, word| {
            let mut letters = word.chars();
            name + &letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
                .collect::<String>()
        })
    };
    match value {
        Value::Array(all) => all.into_iter().map(camel_case).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| {
                let name = of(&name);
                let own = ["labels", "metadata", "resourceLabels", "resourceManagerTags"].contains(&&*name);
                (name, if own { value } else { camel_case(value) })
            })
            .collect(),
        plain => plain,
    }
}

/// A resource to be made: its place and all but its network.
pub(super) fn described(description: &str) -> Result<New, Error> {
    let wrong = |error: serde_json::Error| Error::invalid("description", format!("is not JSON: {error}"));
    let mut description: Value = serde_json::from_str(description).map_err(wrong)?;
    if is_endpoint(&description) {
        return endpoint(&description);
    }
    if description.get("cluster").is_some() {
        return cluster(&mut description);
    }
    let instance = camel_case(taken(&mut description, "instance_resource"));
    refuse(&instance, "instance_resource", &["networkInterfaces", "network", "subnetwork"])?;
    let zone =
        description["zone"].as_str().ok_or_else(|| Error::invalid("description.zone", "is missing"))?;
    let place = legal("description.zone", zone.into())?;
    region_of(&place, "description.zone")?;
    Ok(New { kind: Kind::Machine, place, body: instance })
}

fn is_endpoint(description: &Value) -> bool {
    description.get("url").is_some() || description.get("bundle").is_some()
}

/// An endpoint: `url` names the service attachment it leads to, or `bundle` a set of Google's own APIs.
fn endpoint(description: &Value) -> Result<New, Error> {
    // What is empty is not said.
    let said: Vec<(&String, &Value)> =
        description.as_object().into_iter().flatten().filter(|(_, value)| *value != "").collect();
    if let Some((other, _)) = said.iter().find(|(name, _)| !matches!(name.as_str(), "url" | "bundle")) {
        let message = "an endpoint is url or bundle alone: the network is chosen for you; leave it out";
        return Err(Error::invalid(format!("description.{other}"), message));
    }
    let (place, target) = match said.as_slice() {
        [(name, Value::String(bundle))] if *name == "bundle" => {
            if !BUNDLES.contains(&bundle.as_str()) {
                let message = format!("is none of {}", BUNDLES.join(" and "));
                return Err(Error::invalid("description.bundle", message));
            }
            (GLOBAL.to_owned(), bundle.clone())
        }
        [(name, Value::String(url))] if *name == "url" => {
            let path = url.find("projects/").map_or(url.as_str(), |at| &url[at..]);
            match path.split('/').collect::<Vec<_>>().as_slice() {
                ["projects", project, "regions", region, "serviceAttachments", name]
                    if is_project(project)
                        && legal("url", (*name).into()).is_ok()
                        && region_of(region, "url").is_ok_and(|of| of == *region) =>
                {
                    ((*region).to_owned(), format!("{PREFIX}{path}"))
                }
                _ => {
                    let message =
                        "is no service attachment: give projects/P/regions/R/serviceAttachments/NAME";
                    return Err(Error::invalid("description.url", message));
                }
            }
        }
        [] => return Err(Error::invalid("description.url", "is empty, and so is bundle")),
        [_] => return Err(Error::invalid("description", "url and bundle are texts")),
        _ => return Err(Error::invalid("description.bundle", "an endpoint has either url or bundle")),
    };
    Ok(New { kind: Kind::Endpoint, place, body: Value::String(target) })
}

/// What a forwarding rule leads to, and the project that has it; nothing if it is no endpoint's.
fn leads_to(rule: &Value) -> Option<(&str, &str)> {
    let target = rule["target"].as_str()?;
    if BUNDLES.contains(&target) {
        return Some(("", target));
    }
    let (before, _) = target.split_once("/regions/").filter(|_| target.contains("/serviceAttachments/"))?;
    Some((last(before), &target[before.len()..]))
}

/// Whether a forwarding rule is an endpoint's: load balancers have some too.
pub(super) fn is_endpoints(rule: &Value) -> bool {
    leads_to(rule).is_some()
}

/// Whether two forwarding rules lead to the same. The cloud tells a project by its id or by its number as it likes,
/// so these two cannot be told apart.
pub(super) fn lead_alike(one: &Value, other: &Value) -> bool {
    let is_number = |project: &str| project.bytes().all(|b| b.is_ascii_digit());
    match (leads_to(one), leads_to(other)) {
        (Some((a, one)), Some((b, other))) => one == other && (a == b || is_number(a) != is_number(b)),
        _ => false,
    }
}

/// A cluster: `parent` says where, and the network is chosen for it.
fn cluster(description: &mut Value) -> Result<New, Error> {
    const CHOSEN: [&str; 5] =
        ["network", "subnetwork", "clusterIpv4Cidr", "servicesIpv4Cidr", "ipAllocationPolicy"];
    let cluster = camel_case(taken(description, "cluster"));
    refuse(&cluster, "cluster", &CHOSEN)?;
    refuse_in(
        &cluster["privateClusterConfig"],
        "cluster.privateClusterConfig",
        &["masterIpv4CidrBlock", "privateEndpointSubnetwork"],
    )?;
    let parent = description["parent"].as_str().unwrap_or_default();
    let place = match parent.split('/').collect::<Vec<_>>().as_slice() {
        ["projects", _, "locations", place] => legal("description.parent", (*place).into())?,
        _ => return Err(Error::invalid("description.parent", "is missing: give projects/P/locations/PLACE")),
    };
    region_of(&place, "description.parent")?;
    Ok(New { kind: Kind::Cluster, place, body: cluster })
}

/// An object that says nothing of the network.
fn refuse(body: &Value, field: &str, chosen: &[&str]) -> Result<(), Error> {
    if !body.is_object() {
        let message = "is missing: say what it is, as the cloud's own API does";
        return Err(Error::invalid(format!("description.{field}"), message));
    }
    refuse_in(body, field, chosen)
}

fn refuse_in(body: &Value, field: &str, chosen: &[&str]) -> Result<(), Error> {
    match chosen.iter().find(|name| body.get(**name).is_some()) {
        Some(name) => {
            let message = "the network is chosen for you; leave it out";
            Err(Error::invalid(format!("description.{field}.{name}"), message))
        }
        None => Ok(()),
    }
}

/// Project and name of a resource that is to be made. What the id leaves out is in the description, which has
/// fields for both.
pub(super) fn place_of(id: &str, description: &str) -> Result<(String, String), Error> {
    let description: Value = serde_json::from_str(description).unwrap_or_default();
    let of_description = |value: &Value, field: &str| {
        let found = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        found.ok_or_else(|| Error::invalid(field, "is missing, in the id and here"))
    };
    let is_cluster = description.get("cluster").is_some();
    let is_endpoint = is_endpoint(&description);
    let parent = description["parent"].as_str().unwrap_or_default();
    let project = || match parent.split('/').collect::<Vec<_>>().as_slice() {
        ["projects", project, ..] if is_cluster => Ok((*project).to_owned()),
        _ => of_description(&description["project"], "description.project"),
    };
    let kind = if is_cluster { "cluster" } else { "instance_resource" };
    let name = || of_description(&description[kind]["name"], &format!("description.{kind}.name"));
    let path = path_of(id).trim_end_matches('/');
    let (project, name) = match path.split('/').collect::<Vec<_>>().as_slice() {
        ["projects", project, name] => ((*project).to_owned(), (*name).to_owned()),
        _ if is_endpoint => {
            let of = |named: &Named<'_>| endpoint(&description).is_ok_and(|new| new.place == named.place);
            let named = Named::parse(path).filter(|named| named.kind == Kind::Endpoint && of(named));
            let message = "give projects/P/NAME: the place is that of what it leads to";
            let named = named.ok_or_else(|| Error::invalid("id", message))?;
            (named.project.to_owned(), named.name.to_owned())
        }
        [""] => (project()?, name()?),
        ["projects", project] => ((*project).to_owned(), name()?),
        ["projects", project, "zones", zone, "instances", name]
            if !is_cluster && !is_endpoint && description["zone"] == **zone =>
        {
            ((*project).to_owned(), (*name).to_owned())
        }
        ["projects", project, "locations", place, "clusters", name]
            if is_cluster && parent.ends_with(&format!("/{place}")) =>
        {
            ((*project).to_owned(), (*name).to_owned())
        }
        _ => {
            let id = id.escape_debug();
            let message = format!(
                "`{id}` is not projects/P/zones/Z/instances/NAME with the zone of the description, nor \
                 projects/P/locations/L/clusters/NAME with the place of its parent"
            );
            return Err(Error::invalid("id", message));
        }
    };
    Ok((format!("projects/{project}"), name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_may_be_named_as_in_the_originals_examples() {
        let given = json!({ "zone": "us-west1-a", "instance_resource": {
            "machine_type": "zones/us-west1-a/machineTypes/f1-micro",
            "disks": [{ "auto_delete": true, "initialize_params": { "disk_size_gb": 10, "sourceImage": "debian" } }],
            "labels": { "cost_centre": "a_b" }, "metadata": { "items": [{ "key": "enable_x", "value": "a_b" }] },
        } });
        let wanted = json!({
            "machineType": "zones/us-west1-a/machineTypes/f1-micro",
            "disks": [{ "autoDelete": true, "initializeParams": { "diskSizeGb": 10, "sourceImage": "debian" } }],
            "labels": { "cost_centre": "a_b" }, "metadata": { "items": [{ "key": "enable_x", "value": "a_b" }] },
        });
        let new = described(&given.to_string()).unwrap();
        assert_eq!(new, New { kind: Kind::Machine, place: "us-west1-a".into(), body: wanted });
    }

    #[test]
    fn ids_of_the_first_generation_may_leave_out_what_the_description_says() {
        let description =
            json!({ "project": "p", "zone": "us-west1-a", "instance_resource": { "name": "vm" } });
        let of = |id: &str| place_of(id, &description.to_string()).map_err(|error| error.to_string());
        let vm = Ok(("projects/p".to_owned(), "vm".to_owned()));
        assert_eq!(of(""), vm);
        assert_eq!(of("projects/p"), vm);
        assert_eq!(of("projects/p/vm"), vm);
        assert_eq!(of("projects/p/zones/us-west1-a/instances/vm"), vm);
        assert_eq!(of(&format!("{PREFIX}projects/p/zones/us-west1-a/instances/vm")), vm);
        assert!(of("projects/p/zones/us-west1-b/instances/vm").is_err(), "two zones");
        assert!(of("vm").is_err());
        let field = |text: &str| match place_of("", text) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(field(r#"{"instance_resource":{"name":"vm"}}"#), "description.project");
        assert_eq!(field(r#"{"project":"p"}"#), "description.instance_resource.name");
        assert_eq!(field("{"), "description.project");
    }

    #[test]
    fn descriptions_are_of_machines_without_networks() {
        let field = |text: &str| match described(text) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let new = described(r#"{"zone":"us-west1-a","instance_resource":{"machineType":"x"}}"#).unwrap();
        assert_eq!((new.place.as_str(), &new.body), ("us-west1-a", &json!({ "machineType": "x" })));
        assert_eq!(field("{"), "description");
        assert_eq!(field(r#"{"zone":"a-b"}"#), "description.instance_resource");
        assert_eq!(field(r#"{"instance_resource":{}}"#), "description.zone");
        assert_eq!(field(r#"{"zone":"../x","instance_resource":{}}"#), "description.zone");
        let network = r#"{"zone":"a-b","instance_resource":{"networkInterfaces":[]}}"#;
        assert_eq!(field(network), "description.instance_resource.networkInterfaces");
        assert!(Named::parse("projects/p/zones/z/instances/i").is_some());
        assert!(Named::parse("projects/p/zones/z/instances/i?x").is_none());
        assert!(Named::parse("projects/p/zones/../instances/i").is_none());
        assert!(Named::parse("projects/../zones/z/instances/i").is_none());
    }

    #[test]
    fn clusters_are_described_without_networks() {
        let of = |cluster: Value, parent: &str| {
            described(&json!({ "cluster": cluster, "parent": parent }).to_string())
        };
        let field = |cluster: Value, parent: &str| match of(cluster, parent) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{other:?}"),
        };
        let zone = "projects/p/locations/us-west1-a";
        let given = json!({ "initial_node_count": 1, "resource_labels": { "cost_centre": "a" } });
        let wanted = json!({ "initialNodeCount": 1, "resourceLabels": { "cost_centre": "a" } });
        let new = New { kind: Kind::Cluster, place: "us-west1-a".into(), body: wanted };
        assert_eq!(of(given, zone).unwrap(), new);
        for chosen in
            ["network", "subnetwork", "cluster_ipv4_cidr", "services_ipv4_cidr", "ip_allocation_policy"]
        {
            assert!(field(json!({ chosen: "x" }), zone).starts_with("description.cluster."), "{chosen}");
        }
        let private = json!({ "private_cluster_config": { "master_ipv4_cidr_block": "10.0.0.0/28" } });
        assert_eq!(field(private, zone), "description.cluster.privateClusterConfig.masterIpv4CidrBlock");
        assert_eq!(field(json!("x"), zone), "description.cluster");
        for parent in ["", "projects/p", "projects/p/locations/..", "projects/p/locations/a"] {
            assert_eq!(field(json!({}), parent), "description.parent", "{parent}");
        }
        assert_eq!(region_of("us-west1", "x").unwrap(), "us-west1");
        assert_eq!(region_of("us-west1-a", "x").unwrap(), "us-west1");

        let path = "projects/p/locations/us-west1-a/clusters/c";
        let named = Named::parse(path).unwrap();
        assert_eq!((named.kind, named.place, named.name), (Kind::Cluster, "us-west1-a", "c"));
        for prefix in CLUSTER_PREFIXES {
            assert_eq!(Named::parse(&format!("{prefix}{path}")), Some(named));
        }
        assert_eq!(named.uri(), format!("{CLUSTER_PREFIX}{path}"));
        let description = json!({ "parent": zone, "cluster": { "name": "c" } }).to_string();
        for id in ["", "projects/p", path, &named.uri()] {
            assert_eq!(place_of(id, &description).unwrap(), ("projects/p".into(), "c".into()), "{id}");
        }
        assert!(place_of("projects/p/locations/us-west1-b/clusters/c", &description).is_err(), "two places");
    }

    #[test]
    fn endpoints_are_described_by_what_they_lead_to_alone() {
        let field = |text: Value| match described(&text.to_string()) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let path = "projects/p/regions/us-west1/serviceAttachments/s";
        let whole = format!("{PREFIX}{path}");
        for url in [path, &whole, &format!("https://compute.googleapis.com/compute/v1/{path}")] {
            let new = described(&json!({ "url": url, "bundle": "" }).to_string()).unwrap();
            assert_eq!((new.kind, &*new.place, &new.body), (Kind::Endpoint, "us-west1", &json!(whole)));
        }
        let new = described(r#"{"bundle":"all-apis"}"#).unwrap();
        assert_eq!((new.kind, &*new.place, &new.body), (Kind::Endpoint, GLOBAL, &json!("all-apis")));
        for bad in [
            "",
            "x",
            "projects/p/regions/../serviceAttachments/s",
            "projects/p/regions/us-west1-a/serviceAttachments/s",
        ] {
            assert_eq!(field(json!({ "url": bad })), "description.url", "{bad}");
        }
        assert_eq!(field(json!({ "url": 1 })), "description");
        assert_eq!(field(json!({ "bundle": "some-apis" })), "description.bundle");
        assert_eq!(field(json!({ "bundle": "all-apis", "url": path })), "description.bundle");
        for chosen in ["network", "subnetwork", "IPAddress", "instance_resource"] {
            assert_eq!(field(json!({ "url": path, chosen: "x" })), format!("description.{chosen}"));
        }

        let (near, far) =
            ("projects/p/regions/us-west1/forwardingRules/e", "projects/p/global/forwardingRules/e");
        let parsed = |path: &'static str| Named::parse(path).unwrap();
        assert_eq!((parsed(near).place, parsed(far).place), ("us-west1", GLOBAL));
        for path in [near, far] {
            assert_eq!((parsed(path).kind, parsed(path).path()), (Kind::Endpoint, path.to_owned()));
            assert_eq!(parsed(path).uri(), format!("{PREFIX}{path}"));
        }
        let of = |id: &str, said: Value| place_of(id, &said.to_string()).ok();
        let e = Some(("projects/p".to_owned(), "e".to_owned()));
        assert_eq!(
            (of("projects/p/e", json!({ "url": path })), of(near, json!({ "url": path }))),
            (e.clone(), e.clone())
        );
        assert_eq!(
            (of(far, json!({ "bundle": "vpc-sc" })), of(far, json!({ "url": path }))),
            (e, None),
            "two places"
        );
        let to = |target: &str| json!({ "target": target });
        let of = |project: &str| to(&format!("https://x/projects/{project}/regions/r/serviceAttachments/s"));
        assert!(is_endpoints(&to(&whole)) && is_endpoints(&to("vpc-sc")));
        assert!(!is_endpoints(&to("https://x/regions/r/targetPools/t")));
        assert!(lead_alike(&of("theirs"), &of("theirs")) && lead_alike(&of("theirs"), &of("1234")));
        assert!(!lead_alike(&of("theirs"), &of("others")) && !lead_alike(&of("1234"), &of("5678")));
        assert!(lead_alike(&to("vpc-sc"), &to("vpc-sc")) && !lead_alike(&to("vpc-sc"), &to("all-apis")));
    }
}
