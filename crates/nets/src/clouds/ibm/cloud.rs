//! IBM Cloud as a cloud.

use std::net::Ipv4Addr;
use std::sync::PoisonError;

use async_trait::async_trait;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::describe::{self, Kind, described, parse};
use super::network::Place;
use super::ways::Network;
use super::{Ibm, PREFIX, endpoint, group, legal, region_of, rules, text};
use crate::cloud::{Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections, tell_idle_flags};
use crate::clouds::tell_ways_back;
use crate::clouds::ways::{HasWays as _, loses};
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;
use crate::plan::target;

/// A machine or an endpoint as the cloud has it.
struct Machine {
    /// Whether this plugin made its network.
    ours: bool,
    vpc: String,
    group: String,
    /// None if others took ours from it: what is in theirs is not ours to change.
    security_group: Option<String>,
    space: Option<IpNet>,
    /// Whether it may begin to speak; an endpoint only answers.
    asks: bool,
}

impl Machine {
    fn filter(&self) -> Result<&str, Error> {
        let lost =
            || Error::Unsupported("its security group was taken from it: put it back, or delete it".into());
        self.security_group.as_deref().ok_or_else(lost)
    }
}

impl Ibm {
    /// A machine or an endpoint of a namespace.
    async fn machine(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let name = parse(uri).ok_or_else(unknown)?;
        let region = region_of(name.zone)?;
        let instance = self.get(region, &name.path()).await?.ok_or_else(unknown)?;
        let place = Place { group: name.group, namespace, region };
        let ours = place.made(&instance["vpc"]);
        // What others put into a network of ours is theirs, and so are endpoints anywhere.
        let named_here = text(&instance, "name").starts_with(PREFIX);
        if !named_here && (ours || name.kind == Kind::Endpoint) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        if !ours {
            let path = format!("vpcs/{}", text(&instance["vpc"], "id"));
            let vpc = self.get(region, &path).await?.unwrap_or_default();
            if !self.tagged(&vpc, place).await? {
                return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
            }
        }
        if name.kind == Kind::Endpoint {
            let vpc = text(&instance["vpc"], "id");
            let subnet = self.subnet_of(region, vpc, &instance).await?.unwrap_or_default();
            return Ok(Machine {
                ours,
                vpc: vpc.into(),
                group: name.group.into(),
                security_group: endpoint::security_group(&instance).map(str::to_owned),
                space: target::parse(text(&subnet, "ipv4_cidr_block")),
                asks: false,
            });
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
            security_group: interface_there["security_groups"][0]["id"].as_str().map(str::to_owned),
            space: target::parse(text(&subnet, "ipv4_cidr_block")),
            asks: true,
        })
    }

    pub(super) fn flags(&self) -> Flags {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make_machine(
        &self,
        place: Place<'_>,
        zone: &str,
        name: &str,
        mut instance: Value,
    ) -> Result<Created, Error> {
        let (vpc, subnet) = self.subnet(place, zone).await?;
        let owner = json!({ "id": place.group });
        let body = json!({
            "name": place.name("sg", &[zone, name]), "vpc": { "id": vpc["id"] }, "resource_group": owner,
        });
        // Until the machine has it: a group that nothing uses goes with whatever is deleted next.
        let turn = self.shape.lock().await;
        // Empty: everything is denied both ways.
        let filter =
            self.make(&self.vpc_url(place.region, "security_groups")?, "security_groups", body).await?;
        instance["name"] = json!(place.name(name, &[zone]));
        instance["vpc"] = json!({ "id": vpc["id"] });
        instance["resource_group"] = owner;
        instance["primary_network_interface"] =
            json!({ "subnet": { "id": subnet["id"] }, "security_groups": [{ "id": filter["id"] }] });
        let made = self.make(&self.vpc_url(place.region, "instances")?, "instances", instance).await?;
        drop(turn);
        let id = text(&made, "id").to_owned();
        let made = self
            .until(&self.vpc_url(place.region, &format!("instances/{id}"))?, "status", &["running"])
            .await?;
        self.attach_tags(text(&filter, "crn"), &["pg", place.namespace, text(&vpc, "id"), &id]).await?;
        self.attach_tags(text(&made, "crn"), &["pg", place.namespace, text(&vpc, "id")]).await?;
        let ip = text(&made["primary_network_interface"]["primary_ip"], "address").to_owned();
        Ok(Created { name: name.into(), uri: Kind::Instance.uri(place.group, zone, &id), ip })
    }

    fn remember(&self, deployments: &[Deployment]) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(deployments.iter().cloned());
    }

    pub(super) fn remembered(&self, namespace: &str) -> Vec<Deployment> {
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
            None => self.found(namespace, region_of(name.zone)?, machine.filter()?).await,
        }
    }

    /// Changes what is wanted of a machine, and makes it so; whether a rule that was there lost targets.
    async fn set_rules(
        &self,
        namespace: &str,
        uri: &str,
        machine: &Machine,
        change: impl FnOnce(&mut Vec<Rule>) + Send,
    ) -> Result<bool, Error> {
        let _turn = self.turns.turn(uri).await;
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        let mut all = self.wanted(namespace, uri, machine).await?;
        let before = all.clone();
        change(&mut all);
        if all != before {
            self.keep(namespace, name.id, &all).await?;
        }
        self.align(region_of(name.zone)?, machine.filter()?, &all, true).await?;
        Ok(before.iter().any(|old| all.iter().any(|new| new.name == old.name && loses(old, new))))
    }

    /// Makes what rules need and writes them; whether a rule that was there lost targets.
    async fn write_rules(
        &self,
        place: Place<'_>,
        uri: &str,
        machine: &Machine,
        new: Vec<Rule>,
    ) -> Result<bool, Error> {
        let space = machine.space.ok_or_else(|| self.strange("a machine without a subnet"))?;
        // Before anything is made that is paid for.
        machine.filter()?;
        tell_ways_back(&self.name, &new);
        self.provide(place, &machine.vpc, space, &new, machine.asks).await?;
        let change = |all: &mut Vec<Rule>| {
            all.retain(|old| !new.iter().any(|rule| rule.name == old.name));
            all.extend(new);
            all.sort_by(|a, b| a.name.cmp(&b.name));
        };
        self.set_rules(place.namespace, uri, machine, change).await
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
        let described = described(&new.description)?;
        if described.kind == Kind::Endpoint && !self.flags().private_endpoints_enabled {
            let said = "private endpoints are off: set privateEndpointsEnabled";
            return Err(Error::Unsupported(said.into()));
        }
        let zone = described.zone.as_deref().unwrap_or_else(|| describe::usual_zone(&new.deployment.id));
        let place =
            Place { group: resource_group, namespace: &new.deployment.namespace, region: region_of(zone)? };
        if !self.config.regions.iter().any(|region| region == place.region) {
            let message = format!("the region {} is not among cloud.ibm.regions", place.region);
            return Err(Error::invalid("description.zone", message));
        }
        self.remember(std::slice::from_ref(&new.deployment));
        let made = match described.kind {
            Kind::Instance => self.make_machine(place, zone, &new.name, described.body).await?,
            Kind::Endpoint => self.make_endpoint(place, zone, &new.name, described.body).await?,
        };
        Ok(Created { name: new.name, ..made })
    }

    fn deployment_of(&self, uri: &str) -> Option<String> {
        let group = uri.strip_prefix("/resourcegroup/")?.split('/').next()?;
        Some(format!("/resourcegroup/{group}"))
    }

    fn place_of(&self, id: &str, description: &str) -> Result<(String, String), Error> {
        describe::place_of(id, description)
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
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        let place = Place { group: &machine.group, namespace, region: region_of(name.zone)? };
        let written = {
            let _adding = self.ways.adding().await;
            self.write_rules(place, uri, &machine, new).await
        };
        self.after_adding(Network::of(place), written).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let machine = self.machine(namespace, uri).await?;
        let name = parse(uri).ok_or_else(|| self.strange("a machine without a name"))?;
        let place = Place { group: &machine.group, namespace, region: region_of(name.zone)? };
        let gone = |all: &mut Vec<Rule>| all.retain(|rule| !names.contains(&rule.name));
        self.set_rules(namespace, uri, &machine, gone).await?;
        self.take_ways(Some(Network::of(place))).await
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
        tell_idle_flags(&self.name, flags, &["privateEndpointsEnabled"]);
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner) = flags;
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for deployment in self.remembered(namespace) {
            let resource_group = group(&deployment.id)?;
            for (region, vpc, _) in self.spaces(&deployment).await? {
                let mut url = self.vpc_url(&region, "instances")?;
                url.query_pairs_mut().append_pair("vpc.id", text(&vpc, "id"));
                let place =
                    Place { group: resource_group, namespace: &deployment.namespace, region: &region };
                let made = place.made(&vpc);
                for instance in self.all(&url, "instances").await? {
                    // What others put into a network of ours is theirs: nobody gave it rules here.
                    if made && !text(&instance, "name").starts_with(PREFIX) {
                        continue;
                    }
                    let zone = text(&instance["zone"], "name");
                    let interface = &instance["primary_network_interface"];
                    held.push(Held {
                        namespace: deployment.namespace.clone(),
                        name: describe::plain_name(&instance).to_owned(),
                        uri: Kind::Instance.uri(resource_group, zone, text(&instance, "id")),
                        ip: text(&interface["primary_ip"], "address").to_owned(),
                        network: text(&vpc, "name").to_owned(),
                    });
                }
                held.extend(self.endpoints_held(&deployment, &region, &vpc).await?);
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
            Ok(_) => self.remove(self.vpc_url(region, &name.path())?).await?,
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
            if name.kind == Kind::Endpoint {
                for subnet in self.subnets(region, text(&vpc, "id")).await? {
                    self.release(region, text(&subnet, "id")).await?;
                }
            }
        }
        self.tidy(place).await?;
        self.take_ways(Some(Network::of(place))).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        self.remove_connections(&old).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for held in self.list_resources(namespace).await? {
            let machine = self.machine(&held.namespace, &held.uri).await?;
            let Some(name) = parse(&held.uri) else { continue };
            let wanted = self.wanted(&held.namespace, &held.uri, &machine).await;
            let (kept, filter) = match wanted.and_then(|kept| Ok((kept, machine.filter()?))) {
                Ok(both) => both,
                // One that cannot be compared keeps no other from being.
                Err(Error::Unsupported(said)) => {
                    found.push(format!("{} is not compared: {said}", held.name));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let count = self.align(region_of(name.zone)?, filter, &kept, repair).await?;
            if count > 0 {
                found.push(format!(
                    "{}: {count} of its security group's rules are not as they should be",
                    held.name
                ));
            }
        }
        for deployment in self.remembered(namespace).iter().filter(|_| repair) {
            let group = group(&deployment.id)?;
            let place = |region| Place { group, namespace: &deployment.namespace, region };
            self.ways.owe(self.config.regions.iter().map(|region| Network::of(place(region))));
        }
        // A question changes nothing.
        if repair {
            self.take_ways(None).await?;
        }
        Ok(found)
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        self.others(deployments).await
    }
}
