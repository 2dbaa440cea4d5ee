//! Google Cloud as a cloud.

use std::net::Ipv4Addr;
use std::sync::PoisonError;

use async_trait::async_trait;
use http::{Method, StatusCode};
use ipnet::IpNet;
use serde_json::{Value, json};
use uuid::Uuid;

use super::firewall::{self, network_tag, prefix, short_id};
use super::network::network_path;
use super::{Gcp, PREFIX, is_project, last, legal, n, project, texts, url};
use crate::cloud::{Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections, tell_idle_flags};
use crate::clouds::rest::Call;
use crate::clouds::{taken, tell_ways_back};
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;

/// A machine as a URI names it, and as the cloud has it.
pub(super) struct Machine {
    pub(super) project: String,
    pub(super) region: String,
    pub(super) network: String,
    pub(super) short: String,
    pub(super) subnet: String,
}

/// `projects/P/zones/Z/instances/I`, with or without the cloud's prefix.
fn instance_path(uri: &str) -> Option<(&str, &str, &str)> {
    let path = uri.strip_prefix(PREFIX).unwrap_or(uri);
    let parts: Vec<&str> = path.split('/').collect();
    let sound = |name: &str| legal("uri", name.to_owned()).is_ok();
    match parts.as_slice() {
        ["projects", project, "zones", zone, "instances", name]
            if is_project(project) && sound(zone) && sound(name) =>
        {
            Some((project, zone, name))
        }
        _ => None,
    }
}

/// `us-west1-a` is in `us-west1`.
fn region_of(zone: &str) -> Result<String, Error> {
    let region = zone.rsplit_once('-').map(|(region, _)| region.to_owned());
    let region =
        region.ok_or_else(|| Error::invalid("description.zone", format!("`{zone}` is not a zone")))?;
    legal("description.zone", region)
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
                let own = ["labels", "resourceManagerTags", "resource_manager_tags"].contains(&name.as_str());
                (of(&name), if own { value } else { camel_case(value) })
            })
            .collect(),
        plain => plain,
    }
}

/// A machine to be made: its zone and all but its network.
pub(super) fn described(description: &str) -> Result<(String, Value), Error> {
    let wrong = |error: serde_json::Error| Error::invalid("description", format!("is not JSON: {error}"));
    let mut description: Value = serde_json::from_str(description).map_err(wrong)?;
    for kind in ["cluster", "url", "bundle"] {
        if description.get(kind).is_some() {
            let message = "only machines are offered: give instance_resource and zone";
            return Err(Error::invalid(format!("description.{kind}"), message));
        }
    }
    let instance = camel_case(taken(&mut description, "instance_resource"));
    let Value::Object(fields) = &instance else {
        let message = "is missing: say what machine, as the cloud's own API does";
        return Err(Error::invalid("description.instance_resource", message));
    };
    for field in ["networkInterfaces", "network_interfaces", "network", "subnetwork"] {
        if fields.contains_key(field) {
            let message = "the network is chosen for you; leave it out";
            return Err(Error::invalid(format!("description.instance_resource.{field}"), message));
        }
    }
    let zone =
        description["zone"].as_str().ok_or_else(|| Error::invalid("description.zone", "is missing"))?;
    Ok((legal("description.zone", zone.into())?, instance))
}

/// Project and name of a machine that is to be made. What the id leaves out is in the description, which has
/// fields for both.
pub(super) fn place_of(id: &str, description: &str) -> Result<(String, String), Error> {
    let description: Value = serde_json::from_str(description).unwrap_or_default();
    let of_description = |value: &Value, field: &str| {
        let found = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        found.ok_or_else(|| Error::invalid(field, "is missing, in the id and here"))
    };
    let project = || of_description(&description["project"], "description.project");
    let name =
        || of_description(&description["instance_resource"]["name"], "description.instance_resource.name");
    let path = id.strip_prefix(PREFIX).unwrap_or(id).trim_end_matches('/');
    let (project, name) = match path.split('/').collect::<Vec<_>>().as_slice() {
        [""] => (project()?, name()?),
        ["projects", project] => ((*project).to_owned(), name()?),
        ["projects", project, name] => ((*project).to_owned(), (*name).to_owned()),
        ["projects", project, "zones", zone, "instances", name] if description["zone"] == **zone => {
            ((*project).to_owned(), (*name).to_owned())
        }
        _ => {
            let id = id.escape_debug();
            let message =
                format!("`{id}` is not projects/P/zones/Z/instances/NAME with the zone of the description");
            return Err(Error::invalid("id", message));
        }
    };
    Ok((format!("projects/{project}"), name))
}

impl Gcp {
    async fn machine(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let (project, zone, name) = instance_path(uri).ok_or_else(unknown)?;
        let path = format!("projects/{project}/zones/{zone}/instances/{name}");
        let instance = self.get(&path).await?.ok_or_else(unknown)?;
        let interface = &instance["networkInterfaces"][0];
        let network = interface["network"].as_str().unwrap_or_default();
        if last(network) != format!("{}-vpc", n(namespace)) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        Ok(Machine {
            project: project.into(),
            region: region_of(zone)?,
            network: network.into(),
            short: short_id(&instance).ok_or_else(|| self.strange("an instance without a number"))?,
            subnet: interface["subnetwork"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// Firewalls of a namespace's network whose names begin so.
    pub(super) async fn firewalls(
        &self,
        project: &str,
        namespace: &str,
        prefix: &str,
    ) -> Result<Vec<Value>, Error> {
        let found =
            self.list(&format!("projects/{project}/global/firewalls"), &format!("{prefix}.*")).await?;
        // One namespace's name may begin with another's.
        let network = format!("{}-vpc", n(namespace));
        let of_network = |item: &Value| item["network"].as_str().map(last) == Some(&*network);
        Ok(found.into_iter().filter(of_network).collect())
    }

    /// Gives a machine its network tag.
    pub(super) async fn tag(&self, path: &str, namespace: &str) -> Result<(), Error> {
        let mut waiting = self.rest.waiting(path);
        loop {
            let made = self.get(path).await?;
            let made = made.ok_or_else(|| self.strange("a machine that was made is not there"))?;
            let short = short_id(&made).ok_or_else(|| self.strange("an instance without a number"))?;
            let tag = network_tag(namespace, &short);
            let mut tags = texts(&made["tags"]["items"]);
            if tags.contains(&tag.as_str()) {
                return Ok(());
            }
            tags.push(&tag);
            let call = Call::new(Method::POST, self.at(&format!("{path}/setTags"))?)
                .query("requestId", &Uuid::new_v4().to_string())
                .json(json!({ "items": tags, "fingerprint": made["tags"]["fingerprint"] }));
            let answer = self.rest.call(&call).await?;
            if answer.status.is_success() {
                return self.wait(path, answer.body).await.map(drop);
            }
            // Somebody changed the tags after they were read, or the machine is not ready.
            let passing = answer.status == StatusCode::PRECONDITION_FAILED
                || super::reason(&answer) == "resourceNotReady";
            if !passing {
                return Err(self.rest.refusal(&call, &answer));
            }
            waiting.pause(None).await?;
        }
    }

    /// The address of a machine that was made.
    async fn address(&self, path: &str, namespace: &str) -> Result<String, Error> {
        let mut waiting = self.rest.waiting(path);
        loop {
            let made = self.get(path).await?;
            let made = made.ok_or_else(|| self.strange("a machine that was made is not there"))?;
            let interface = &made["networkInterfaces"][0];
            // A machine of that name may be another's.
            if interface["network"].as_str().map(last) != Some(&*format!("{}-vpc", n(namespace))) {
                return Err(Error::Foreign { namespace: namespace.into(), resource: url(path) });
            }
            if let Some(ip) = interface["networkIP"].as_str() {
                return Ok(ip.to_owned());
            }
            waiting.pause(None).await?;
        }
    }

    fn remember(&self, deployments: &[Deployment]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.extend(deployments.iter().cloned());
    }

    fn remembered(&self, namespace: &str) -> Vec<Deployment> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|one| namespace.is_empty() || one.namespace == namespace).cloned().collect()
    }
}

#[async_trait]
impl Cloud for Gcp {
    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        self.remember(deployments);
        let mut mappings = Vec::new();
        for deployment in deployments {
            let spaces = self.spaces(project(&deployment.id)?, &deployment.namespace).await?;
            if !spaces.is_empty() {
                mappings.push(Mapping {
                    spaces,
                    cloud: self.name.clone(),
                    namespace: deployment.namespace.clone(),
                    deployment: Some(deployment.id.clone()),
                });
            }
        }
        Ok(mappings)
    }

    async fn used_asns(&self, deployments: &[Deployment]) -> Result<Vec<u32>, Error> {
        let mut asns = Vec::new();
        for deployment in deployments {
            let router = self.vpn_router(deployment).await?.unwrap_or_default();
            asns.extend(router["bgp"]["asn"].as_u64().and_then(|asn| u32::try_from(asn).ok()));
        }
        Ok(asns)
    }

    async fn used_bgp_addresses(&self, deployments: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        let mut addresses = Vec::new();
        for deployment in deployments {
            let router = self.vpn_router(deployment).await?.unwrap_or_default();
            addresses.extend(super::vpn::insides(&router).map(|(address, _)| address));
        }
        Ok(addresses)
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        let project = project(&new.deployment.id)?;
        let name = legal("name", new.name.clone())?;
        let (zone, mut instance) = described(&new.description)?;
        let namespace = &new.deployment.namespace;
        self.remember(std::slice::from_ref(&new.deployment));
        let subnet = self.subnet(project, namespace, &region_of(&zone)?).await?;
        let instances = format!("projects/{project}/zones/{zone}/instances");
        let path = format!("{instances}/{name}");
        if self.get(&path).await?.is_none() {
            instance["name"] = json!(name);
            let network = url(&network_path(project, namespace));
            instance["networkInterfaces"] = json!([{ "network": network, "subnetwork": url(&subnet) }]);
            self.insert(&instances, instance).await?;
        }
        let ip = self.address(&path, namespace).await?;
        self.tag(&path, namespace).await?;
        Ok(Created { name, uri: url(&path), ip })
    }

    fn deployment_of(&self, uri: &str) -> Option<String> {
        let path = uri.strip_prefix(PREFIX).unwrap_or(uri).strip_prefix("projects/")?;
        path.split('/').next().map(|project| format!("projects/{project}"))
    }

    fn place_of(&self, id: &str, description: &str) -> Result<(String, String), Error> {
        place_of(id, description)
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let machine = self.machine(namespace, uri).await?;
        let prefix = prefix(namespace, &machine.short);
        let found = self.firewalls(&machine.project, namespace, &prefix).await?;
        Ok(found.iter().filter_map(|item| firewall::rule(item, &prefix)).collect())
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        rule::check_call(&rules).map_err(Error::Invalid)?;
        let machine = self.machine(namespace, uri).await?;
        let prefix = prefix(namespace, &machine.short);
        // Everything that can be refused is refused before anything is made.
        let wanted: Vec<(String, Option<Value>)> = rules
            .iter()
            .map(|rule| {
                let wall = firewall::firewall(rule, namespace, &machine.short, &machine.network)?;
                Ok((format!("{prefix}{}", rule.name), wall))
            })
            .collect::<Result<_, Error>>()?;
        tell_ways_back(&self.name, &rules);
        self.provide(namespace, &machine, &rules).await?;
        let found = self.firewalls(&machine.project, namespace, &prefix).await?;
        let firewalls = format!("projects/{}/global/firewalls", machine.project);
        for (name, body) in wanted {
            let known = found.iter().find(|item| item["name"] == *name);
            let path = format!("{firewalls}/{name}");
            match (known, body) {
                (None, None) => {}
                (None, Some(body)) => {
                    self.insert(&firewalls, body).await?;
                }
                (Some(_), None) => {
                    self.remove(&path).await?;
                }
                (Some(known), Some(body)) if firewall::same(known, &body, &prefix) => {}
                (Some(known), Some(mut body)) if known["direction"] == body["direction"] => {
                    if known["disabled"] == true && body["disabled"] != true {
                        body["disabled"] = json!(false);
                    }
                    self.change(Method::PATCH, &path, Some(body)).await?;
                }
                // The cloud never turns a firewall round.
                (Some(_), Some(body)) => {
                    self.remove(&path).await?;
                    self.insert(&firewalls, body).await?;
                }
            }
        }
        Ok(())
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let machine = self.machine(namespace, uri).await?;
        let prefix = prefix(namespace, &machine.short);
        for name in names {
            // A name that cannot be there is not there.
            let Ok(name) = legal("rule", format!("{prefix}{name}")) else { continue };
            self.remove(&format!("projects/{}/global/firewalls/{name}", machine.project)).await?;
        }
        let _turn = self.shape.lock().await;
        self.unpeer(&machine.project, namespace, false).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        self.make_gateway(new).await
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        self.make_session(deployment, cloud).await
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        self.make_connections(new).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let spaces = self.spaces(project(&deployment.id)?, &deployment.namespace).await?;
        Ok(if spaces.iter().any(|own| own.contains(&space)) { spaces } else { Vec::new() })
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        tell_idle_flags(&self.name, flags, &[]);
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for deployment in self.remembered(namespace) {
            let project = project(&deployment.id)?;
            for machine in self.machines(project, &deployment.namespace).await? {
                let name = machine["name"].as_str().unwrap_or_default().to_owned();
                let zone = last(machine["zone"].as_str().unwrap_or_default());
                let interface = &machine["networkInterfaces"][0];
                held.push(Held {
                    namespace: deployment.namespace.clone(),
                    uri: url(&format!("projects/{project}/zones/{zone}/instances/{name}")),
                    name,
                    ip: interface["networkIP"].as_str().unwrap_or_default().to_owned(),
                    network: last(interface["subnetwork"].as_str().unwrap_or_default()).to_owned(),
                });
            }
        }
        Ok(held)
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let (project, zone, name) = instance_path(uri).ok_or_else(unknown)?;
        match self.machine(namespace, uri).await {
            Ok(machine) => {
                for item in self.firewalls(project, namespace, &prefix(namespace, &machine.short)).await? {
                    let name = item["name"].as_str().unwrap_or_default();
                    self.remove(&format!("projects/{project}/global/firewalls/{name}")).await?;
                }
                self.remove(&format!("projects/{project}/zones/{zone}/instances/{name}")).await?;
            }
            // Gone already; what was around it may not be.
            Err(Error::Resource { .. }) => {}
            Err(error) => return Err(error),
        }
        {
            let _turn = self.shape.lock().await;
            self.unpeer(project, namespace, false).await?;
        }
        self.tidy(project, namespace).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        let project = project(&old.deployment.id)?;
        self.remove_connections(project, &old).await?;
        self.tidy(project, &old.deployment.namespace).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for deployment in self.remembered(namespace) {
            found.extend(self.differences(project(&deployment.id)?, &deployment.namespace, repair).await?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(described(&given.to_string()).unwrap(), ("us-west1-a".to_owned(), wanted));
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
        let (zone, instance) =
            described(r#"{"zone":"us-west1-a","instance_resource":{"machineType":"x"}}"#).unwrap();
        assert_eq!((zone.as_str(), &instance), ("us-west1-a", &json!({ "machineType": "x" })));
        assert_eq!(field("{"), "description");
        assert_eq!(field(r#"{"cluster":{}}"#), "description.cluster");
        assert_eq!(field(r#"{"zone":"a-b"}"#), "description.instance_resource");
        assert_eq!(field(r#"{"instance_resource":{}}"#), "description.zone");
        assert_eq!(field(r#"{"zone":"../x","instance_resource":{}}"#), "description.zone");
        let network = r#"{"zone":"a-b","instance_resource":{"networkInterfaces":[]}}"#;
        assert_eq!(field(network), "description.instance_resource.networkInterfaces");
        assert!(instance_path("projects/p/zones/z/instances/i").is_some());
        assert!(instance_path("projects/p/zones/z/instances/i?x").is_none());
        assert!(instance_path("projects/p/zones/../instances/i").is_none());
    }
}
