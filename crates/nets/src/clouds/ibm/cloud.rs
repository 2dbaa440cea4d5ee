//! IBM Cloud as a cloud.

use std::net::Ipv4Addr;
use std::sync::PoisonError;

use async_trait::async_trait;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::network::Place;
use super::{Ibm, group, is_id, legal, region_of, rules, text};
use crate::cloud::{Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections, tell_idle_flags};
use crate::clouds::tell_ways_back;
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;
use crate::plan::target;

/// What a description must leave to us.
const NETWORK_WORDS: &[&str] = &[
    "vpc",
    "primary_network_interface",
    "network_interfaces",
    "primary_network_attachment",
    "network_attachments",
    "resource_group",
    "name",
];

/// `/resourcegroup/RG/zone/Z/instance/ID`.
struct Name<'a> {
    group: &'a str,
    zone: &'a str,
    id: &'a str,
}

fn parse(uri: &str) -> Option<Name<'_>> {
    let parts: Vec<&str> = uri.split('/').collect();
    match parts.as_slice() {
        ["", "resourcegroup", group, "zone", zone, "instance", id]
            if is_id(group) && is_id(id) && region_of(zone).is_ok() =>
        {
            Some(Name { group, zone, id })
        }
        _ => None,
    }
}

/// A machine to be made: its zone and all but its network.
pub(super) fn described(description: &str) -> Result<(String, Value), Error> {
    let wrong = |error: serde_json::Error| Error::invalid("description", format!("is not JSON: {error}"));
    let mut instance: Value = serde_json::from_str(description).map_err(wrong)?;
    // The original takes the options of its SDK, in which the machine is wrapped; a name in there does not count.
    if let Some(prototype) = instance.get_mut("InstancePrototype").map(Value::take) {
        instance = prototype;
        instance.as_object_mut().map(|fields| fields.remove("name"));
    }
    let fields = instance.as_object().ok_or_else(|| Error::invalid("description", "is not an object"))?;
    if let Some(field) = NETWORK_WORDS.iter().find(|word| fields.contains_key(**word)) {
        return Err(Error::invalid(format!("description.{field}"), "is chosen for you; leave it out"));
    }
    for field in ["image", "profile"] {
        if !fields.contains_key(field) {
            return Err(Error::invalid(
                format!("description.{field}"),
                "is missing; only machines from images are offered",
            ));
        }
    }
    let zone = instance["zone"]["name"].as_str();
    let zone =
        zone.ok_or_else(|| Error::invalid("description.zone", "is missing: {\"name\": ZONE}"))?.to_owned();
    region_of(&zone)?;
    Ok((zone, instance))
}

/// Deployment and name of a machine that is to be made; the name may be in the description alone.
pub(super) fn place_of(id: &str, description: &str) -> Result<(String, String), Error> {
    let wrong = || {
        let id = id.escape_debug();
        Error::invalid("id", format!("`{id}` is not /resourcegroup/RG[/zone/Z][/instance/NAME]"))
    };
    let rest = id.trim_end_matches('/').strip_prefix("/resourcegroup/").ok_or_else(wrong)?;
    let (group, name) = match rest.split('/').collect::<Vec<_>>().as_slice() {
        [group] | [group, "zone", _] => (*group, None),
        [group, name]
        | [group, "zone", _, name]
        | [group, "instance", name]
        | [group, "zone", _, "instance", name] => (*group, Some(*name)),
        _ => return Err(wrong()),
    };
    let name = if let Some(name) = name {
        name.to_owned()
    } else {
        let description: Value = serde_json::from_str(description).unwrap_or_default();
        let name = description["InstancePrototype"]["name"].as_str();
        let missing =
            || Error::invalid("description.InstancePrototype.name", "is missing, in the id and here");
        name.ok_or_else(missing)?.to_owned()
    };
    Ok((format!("/resourcegroup/{group}"), name))
}

/// A machine as the cloud has it.
struct Machine {
    /// Whether this plugin made its network.
    ours: bool,
    vpc: String,
    group: String,
    security_group: String,
    space: Option<IpNet>,
}

impl Ibm {
    async fn machine(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let name = parse(uri).ok_or_else(unknown)?;
        let region = region_of(name.zone)?;
        let instance = self.get(region, &format!("instances/{}", name.id)).await?.ok_or_else(unknown)?;
        let place = Place { group: name.group, namespace, region };
        let ours = place.made(&instance["vpc"]);
        if !ours {
            let path = format!("vpcs/{}", text(&instance["vpc"], "id"));
            let vpc = self.get(region, &path).await?.unwrap_or_default();
            if !self.tagged(&vpc, place).await? {
                return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
            }
        }
        let interface = &instance["primary_network_interface"];
        let path = format!("instances/{}/network_interfaces/{}", name.id, text(interface, "id"));
        let interface_there = self.get(region, &path).await?.unwrap_or_default();
        let subnet = self
            .get(region, &format!("subnets/{}", text(&interface["subnet"], "id")))
            .await?
            .unwrap_or_default();
        Ok(Machine {
            ours,
            vpc: text(&instance["vpc"], "id").into(),
            group: name.group.into(),
            security_group: text(&interface_there["security_groups"][0], "id").into(),
            space: target::parse(text(&subnet, "ipv4_cidr_block")),
        })
    }

    fn remember(&self, deployments: &[Deployment]) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(deployments.iter().cloned());
    }

    fn remembered(&self, namespace: &str) -> Vec<Deployment> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|one| namespace.is_empty() || one.namespace == namespace).cloned().collect()
    }

    /// The rules of a machine as they were last wanted. One that others made has those that its group holds,
    /// until it gets some here.
    async fn wanted(&self, namespace: &str, uri: &str, machine: &Machine) -> Result<Vec<Rule>, Error> {
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        match self.kept(namespace, name.id).await? {
            Some(rules) => Ok(rules),
            None if machine.ours => Ok(Vec::new()),
            None => self.found(namespace, region_of(name.zone)?, &machine.security_group).await,
        }
    }

    /// Changes what is wanted of a machine, and makes it so.
    async fn set_rules(
        &self,
        namespace: &str,
        uri: &str,
        machine: &Machine,
        change: impl FnOnce(&mut Vec<Rule>) + Send,
    ) -> Result<(), Error> {
        let _turn = self.turns.turn(uri).await;
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        let mut all = self.wanted(namespace, uri, machine).await?;
        let before = all.clone();
        change(&mut all);
        if all != before {
            self.keep(namespace, name.id, &all).await?;
        }
        self.align(region_of(name.zone)?, &machine.security_group, &all, true).await.map(drop)
    }
}

#[async_trait]
impl Cloud for Ibm {
    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        self.remember(deployments);
        let mut mappings = Vec::new();
        for deployment in deployments {
            for (_, _, spaces) in self.spaces(deployment).await? {
                if !spaces.is_empty() {
                    mappings.push(Mapping {
                        spaces,
                        cloud: self.name.clone(),
                        namespace: deployment.namespace.clone(),
                        deployment: Some(deployment.id.clone()),
                    });
                }
            }
        }
        Ok(mappings)
    }

    async fn used_asns(&self, _: &[Deployment]) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }

    async fn used_bgp_addresses(&self, _: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        Ok(Vec::new())
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        let resource_group = group(&new.deployment.id)?;
        legal("name", &new.name)?;
        legal("namespace", &new.deployment.namespace)?;
        let (zone, mut instance) = described(&new.description)?;
        let place =
            Place { group: resource_group, namespace: &new.deployment.namespace, region: region_of(&zone)? };
        if !self.config.regions.iter().any(|region| region == place.region) {
            let message = format!("the region {} is not among cloud.ibm.regions", place.region);
            return Err(Error::invalid("description.zone", message));
        }
        self.remember(std::slice::from_ref(&new.deployment));
        let (vpc, subnet) = self.subnet(place, &zone).await?;
        let owner = json!({ "id": resource_group });
        let body = json!({
            "name": place.name("sg", &[&zone, &new.name]), "vpc": { "id": vpc["id"] }, "resource_group": owner,
        });
        // Empty: everything is denied both ways.
        let filter =
            self.make(&self.vpc_url(place.region, "security_groups")?, "security_groups", body).await?;
        instance["name"] = json!(place.name(&new.name, &[&zone]));
        instance["vpc"] = json!({ "id": vpc["id"] });
        instance["resource_group"] = owner;
        instance["primary_network_interface"] =
            json!({ "subnet": { "id": subnet["id"] }, "security_groups": [{ "id": filter["id"] }] });
        let made = self.make(&self.vpc_url(place.region, "instances")?, "instances", instance).await?;
        let id = text(&made, "id").to_owned();
        let made = self
            .until(&self.vpc_url(place.region, &format!("instances/{id}"))?, "status", &["running"])
            .await?;
        self.attach_tags(text(&filter, "crn"), &["pg", place.namespace, text(&vpc, "id"), &id]).await?;
        self.attach_tags(text(&made, "crn"), &["pg", place.namespace, text(&vpc, "id")]).await?;
        let ip = text(&made["primary_network_interface"]["primary_ip"], "address").to_owned();
        let uri = format!("/resourcegroup/{resource_group}/zone/{zone}/instance/{id}");
        Ok(Created { name: new.name, uri, ip })
    }

    fn deployment_of(&self, uri: &str) -> Option<String> {
        let group = uri.strip_prefix("/resourcegroup/")?.split('/').next()?;
        Some(format!("/resourcegroup/{group}"))
    }

    fn place_of(&self, id: &str, description: &str) -> Result<(String, String), Error> {
        place_of(id, description)
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let machine = self.machine(namespace, uri).await?;
        self.wanted(namespace, uri, &machine).await
    }

    async fn add_rules(&self, namespace: &str, uri: &str, new: Vec<Rule>) -> Result<(), Error> {
        rule::check_call(&new).map_err(Error::Invalid)?;
        // Everything that can be refused is refused before anything is made.
        for permission in &new {
            rules::compile(permission)?;
        }
        let machine = self.machine(namespace, uri).await?;
        let space = machine.space.ok_or_else(|| self.strange("a machine without a subnet"))?;
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        let place = Place { group: &machine.group, namespace, region: region_of(name.zone)? };
        tell_ways_back(&self.name, &new);
        self.provide(place, &machine.vpc, space, &new).await?;
        let change = |all: &mut Vec<Rule>| {
            all.retain(|old| !new.iter().any(|rule| rule.name == old.name));
            all.extend(new);
            all.sort_by(|a, b| a.name.cmp(&b.name));
        };
        self.set_rules(namespace, uri, &machine, change).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let machine = self.machine(namespace, uri).await?;
        self.set_rules(namespace, uri, &machine, |all| all.retain(|rule| !names.contains(&rule.name))).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        self.make_gateway(new).await
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        self.make_connections(new).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let all = self.spaces(deployment).await?;
        let found = all.into_iter().find(|(_, _, spaces)| spaces.iter().any(|own| own.contains(&space)));
        Ok(found.map(|(_, _, spaces)| spaces).unwrap_or_default())
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        tell_idle_flags(&self.name, flags, &[]);
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for deployment in self.remembered(namespace) {
            let resource_group = group(&deployment.id)?;
            for (region, vpc, _) in self.spaces(&deployment).await? {
                let mut url = self.vpc_url(&region, "instances")?;
                url.query_pairs_mut().append_pair("vpc.id", text(&vpc, "id"));
                for instance in self.all(&url, "instances").await? {
                    let zone = text(&instance["zone"], "name");
                    let full = text(&instance, "name");
                    let name = full.strip_prefix("paraglider-").and_then(|rest| rest.rsplit_once('-'));
                    let interface = &instance["primary_network_interface"];
                    held.push(Held {
                        namespace: deployment.namespace.clone(),
                        name: name.map_or(full, |(name, _)| name).to_owned(),
                        uri: format!(
                            "/resourcegroup/{resource_group}/zone/{zone}/instance/{}",
                            text(&instance, "id")
                        ),
                        ip: text(&interface["primary_ip"], "address").to_owned(),
                        network: text(&vpc, "name").to_owned(),
                    });
                }
            }
        }
        Ok(held)
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let name = parse(uri).ok_or_else(unknown)?;
        let region = region_of(name.zone)?;
        let place = Place { group: name.group, namespace, region };
        match self.machine(namespace, uri).await {
            Ok(_) => self.remove(self.vpc_url(region, &format!("instances/{}", name.id))?).await?,
            // Gone already; what was around it may not be.
            Err(Error::Resource { .. }) => {}
            Err(error) => return Err(error),
        }
        self.controller.delete_value(namespace, &self.name, &format!("rules-{}", name.id)).await?;
        // Security groups without a machine are of machines that are gone.
        if let Some(vpc) = self.vpc(place).await? {
            let _turn = self.shape.lock().await;
            let mut url = self.vpc_url(region, "security_groups")?;
            url.query_pairs_mut().append_pair("vpc.id", text(&vpc, "id"));
            for filter in self.all(&url, "security_groups").await? {
                let idle = filter["targets"].as_array().is_none_or(Vec::is_empty);
                if idle && text(&filter, "name").starts_with("paraglider-sg-") {
                    self.remove(self.vpc_url(region, &format!("security_groups/{}", text(&filter, "id")))?)
                        .await?;
                }
            }
        }
        self.tidy(place).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        self.remove_connections(&old).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for held in self.list_resources(namespace).await? {
            let machine = self.machine(&held.namespace, &held.uri).await?;
            let Some(name) = parse(&held.uri) else { continue };
            let kept = self.wanted(&held.namespace, &held.uri, &machine).await?;
            let count = self.align(region_of(name.zone)?, &machine.security_group, &kept, repair).await?;
            if count > 0 {
                found.push(format!(
                    "{}: {count} of its security group's rules are not as they should be",
                    held.name
                ));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_first_generation_may_leave_out_the_name() {
        let description = r#"{"InstancePrototype":{"name":"vm"}}"#;
        let vm = ("/resourcegroup/rg".to_owned(), "vm".to_owned());
        for id in ["", "/zone/us-south-1", "/vm", "/zone/us-south-1/vm", "/zone/us-south-1/instance/vm"] {
            assert_eq!(place_of(&format!("/resourcegroup/rg{id}"), description).unwrap(), vm, "{id}");
        }
        for bad in ["", "rg", "/resourcegroup/rg/a/b/c"] {
            assert!(place_of(bad, description).is_err(), "{bad}");
        }
        assert!(place_of("/resourcegroup/rg", "{}").is_err());
    }

    #[test]
    fn descriptions_and_uris_are_judged() {
        let field = |text: &str| match described(text) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(
            described(r#"{"image":{},"profile":{},"zone":{"name":"us-south-1"}}"#).unwrap().0,
            "us-south-1"
        );
        // As the original's examples write it: wrapped, and a name in there does not count.
        let wrapped =
            r#"{"InstancePrototype":{"name":"x","image":{},"profile":{},"zone":{"name":"us-south-1"}}}"#;
        let wanted = json!({ "image": {}, "profile": {}, "zone": { "name": "us-south-1" } });
        assert_eq!(described(wrapped).unwrap(), ("us-south-1".to_owned(), wanted));
        assert_eq!(field(r#"{"InstancePrototype":{"vpc":{}}}"#), "description.vpc");
        assert_eq!(field("[]"), "description");
        assert_eq!(field(r#"{"vpc":{}}"#), "description.vpc");
        assert_eq!(field(r#"{"primary_network_interface":{}}"#), "description.primary_network_interface");
        assert_eq!(field(r#"{"profile":{}}"#), "description.image");
        assert_eq!(field(r#"{"image":{},"profile":{}}"#), "description.zone");
        assert!(parse("/resourcegroup/rg/zone/us-south-1/instance/a_b-c").is_some());
        assert!(parse("/resourcegroup/rg/zone/us-south-1/instance/..").is_none());
    }
}
