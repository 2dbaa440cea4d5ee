//! Google Cloud as a cloud.

use std::net::Ipv4Addr;
use std::sync::PoisonError;

use async_trait::async_trait;
use http::{Method, StatusCode};
use ipnet::IpNet;
use serde_json::{Value, json};
use uuid::Uuid;

use super::describe::{self, Kind, Named, described, path_of, region_of};
use super::firewall::{self, Scope, network_tag, prefix, short_id};
use super::network::network_path;
use super::{Gcp, cluster, last, legal, n, project, texts, url};
use crate::cloud::{Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections, tell_idle_flags};
use crate::clouds::rest::Call;
use crate::clouds::tell_ways_back;
use crate::clouds::ways::{HasWays as _, loses};
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;

/// What a URI names, as the cloud has it.
pub(super) struct Resource {
    pub(super) project: String,
    pub(super) network: String,
    pub(super) short: String,
    pub(super) site: Site,
    /// Whom its rules are for.
    pub(super) scope: Scope,
}

/// Where a resource is.
pub(super) enum Site {
    /// In a region's subnet, from where it may begin to speak.
    Subnet { region: String, path: String },
    /// At one address, where it answers.
    Address(IpNet),
}

/// Whether a machine is a node of a cluster, by the label that the cloud gives those.
pub(super) fn is_node(machine: &Value) -> bool {
    machine["labels"].get("goog-gke-node").is_some()
}

impl Gcp {
    pub(super) fn flags(&self) -> Flags {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn resource(&self, namespace: &str, uri: &str) -> Result<Resource, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let named = Named::parse(uri).ok_or_else(unknown)?;
        let found = match named.kind {
            Kind::Machine => self.machine(&named, namespace).await?,
            Kind::Cluster => self.cluster_resource(&named, namespace).await?,
            Kind::Endpoint => self.endpoint_resource(&named, namespace).await?,
        };
        found.ok_or_else(unknown)
    }

    async fn machine(&self, named: &Named<'_>, namespace: &str) -> Result<Option<Resource>, Error> {
        let Some(instance) = self.get(&named.path()).await? else { return Ok(None) };
        let interface = &instance["networkInterfaces"][0];
        let network = interface["network"].as_str().unwrap_or_default();
        if last(network) != format!("{}-vpc", n(namespace)) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: named.uri() });
        }
        let short = short_id(&instance).ok_or_else(|| self.strange("an instance without a number"))?;
        Ok(Some(Resource {
            project: named.project.into(),
            network: network.into(),
            site: Site::Subnet {
                region: region_of(named.place, "uri")?,
                path: interface["subnetwork"].as_str().unwrap_or_default().to_owned(),
            },
            scope: Scope::Tags(vec![network_tag(namespace, &short)]),
            short,
        }))
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

    /// Removes all rules of a resource. Before the resource, whose id is how they are found.
    pub(super) async fn remove_rules(
        &self,
        project: &str,
        namespace: &str,
        short: &str,
    ) -> Result<(), Error> {
        for item in self.firewalls(project, namespace, &prefix(namespace, short)).await? {
            let name = item["name"].as_str().unwrap_or_default();
            self.remove(&format!("projects/{project}/global/firewalls/{name}")).await?;
        }
        Ok(())
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

    async fn make_machine(
        &self,
        project: &str,
        namespace: &str,
        name: String,
        described: describe::New,
    ) -> Result<Created, Error> {
        let zone = &described.place;
        let subnet = self.subnet(project, namespace, &region_of(zone, "description.zone")?).await?;
        let instances = format!("projects/{project}/zones/{zone}/instances");
        let path = format!("{instances}/{name}");
        if self.get(&path).await?.is_none() {
            let mut instance = described.body;
            instance["name"] = json!(name);
            let network = url(&network_path(project, namespace));
            instance["networkInterfaces"] = json!([{ "network": network, "subnetwork": url(&subnet) }]);
            self.insert(&instances, instance).await?;
        }
        let ip = self.address(&path, namespace).await?;
        self.tag(&path, namespace).await?;
        Ok(Created { name, uri: url(&path), ip })
    }

    /// Makes what rules need, and those firewalls that are not so yet; whether a rule that was there lost targets.
    async fn write_rules(
        &self,
        namespace: &str,
        resource: &Resource,
        rules: &[Rule],
        wanted: Vec<(String, Option<Value>)>,
    ) -> Result<bool, Error> {
        let prefix = &prefix(namespace, &resource.short);
        self.provide(namespace, resource, rules).await?;
        let found = self.firewalls(&resource.project, namespace, prefix).await?;
        let firewalls = format!("projects/{}/global/firewalls", resource.project);
        let lost = found
            .iter()
            .filter_map(|item| firewall::rule(item, prefix))
            .any(|old| rules.iter().any(|new| new.name == old.name && loses(&old, new)));
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
                (Some(known), Some(body)) if firewall::same(known, &body, prefix) => {}
                (Some(known), Some(body)) if known["direction"] == body["direction"] => {
                    self.change(Method::PATCH, &path, Some(firewall::patch(known, body))).await?;
                }
                // The cloud never turns a firewall round.
                (Some(_), Some(body)) => {
                    self.remove(&path).await?;
                    self.insert(&firewalls, body).await?;
                }
            }
        }
        Ok(lost)
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
        let described = described(&new.description)?;
        self.remember(std::slice::from_ref(&new.deployment));
        match described.kind {
            Kind::Machine => self.make_machine(project, &new.deployment.namespace, name, described).await,
            Kind::Cluster => self.make_cluster(&new, described).await,
            Kind::Endpoint => self.make_endpoint(&new, &described).await,
        }
    }

    fn deployment_of(&self, uri: &str) -> Option<String> {
        let path = path_of(uri).strip_prefix("projects/")?;
        path.split('/').next().map(|project| format!("projects/{project}"))
    }

    fn place_of(&self, id: &str, description: &str) -> Result<(String, String), Error> {
        describe::place_of(id, description)
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let resource = self.resource(namespace, uri).await?;
        let prefix = prefix(namespace, &resource.short);
        let found = self.firewalls(&resource.project, namespace, &prefix).await?;
        Ok(found.iter().filter_map(|item| firewall::rule(item, &prefix)).collect())
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        rule::check_call(&rules).map_err(Error::Invalid)?;
        let resource = self.resource(namespace, uri).await?;
        let prefix = prefix(namespace, &resource.short);
        // Everything that can be refused is refused before anything is made.
        let wanted: Vec<(String, Option<Value>)> = rules
            .iter()
            .map(|rule| {
                let wall = firewall::firewall(rule, &prefix, &resource.scope, &resource.network)?;
                Ok((format!("{prefix}{}", rule.name), wall))
            })
            .collect::<Result<_, Error>>()?;
        tell_ways_back(&self.name, &rules);
        let written = {
            let _adding = self.ways.adding().await;
            self.write_rules(namespace, &resource, &rules, wanted).await
        };
        self.after_adding((resource.project, namespace.into()), written).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let resource = self.resource(namespace, uri).await?;
        let prefix = prefix(namespace, &resource.short);
        for name in names {
            // A name that cannot be there is not there.
            let Ok(name) = legal("rule", format!("{prefix}{name}")) else { continue };
            self.remove(&format!("projects/{}/global/firewalls/{name}", resource.project)).await?;
        }
        self.take_ways(Some((resource.project, namespace.into()))).await
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
        let known = ["kubernetesClustersEnabled", "privateEndpointsEnabled"];
        tell_idle_flags(&self.name, flags, &known);
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner) = flags;
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for deployment in self.remembered(namespace) {
            let project = project(&deployment.id)?;
            for machine in
                self.machines(project, &deployment.namespace).await?.iter().filter(|one| !is_node(one))
            {
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
            held.extend(self.endpoints_held(project, &deployment.namespace).await?);
            if self.control_planes(project, &deployment.namespace).await?.is_empty() {
                continue;
            }
            for found in self.all_clusters(project, &deployment.namespace).await? {
                let text = |field: &str| found[field].as_str().unwrap_or_default();
                let (name, place) = (text("name"), text("location"));
                held.push(Held {
                    namespace: deployment.namespace.clone(),
                    uri: Named { project, kind: Kind::Cluster, place, name }.uri(),
                    name: name.to_owned(),
                    ip: cluster::pods(&found).to_owned(),
                    network: last(text("subnetwork")).to_owned(),
                });
            }
        }
        Ok(held)
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let named = Named::parse(uri).ok_or_else(unknown)?;
        let project = named.project;
        match named.kind {
            Kind::Cluster => self.remove_cluster(&named, namespace).await?,
            Kind::Endpoint => self.remove_endpoint(&named, namespace).await?,
            // Gone already; what was around it may not be.
            Kind::Machine => {
                if let Some(machine) = self.machine(&named, namespace).await? {
                    self.remove_rules(project, namespace, &machine.short).await?;
                    self.remove(&named.path()).await?;
                }
            }
        }
        self.tidy(project, namespace).await?;
        self.take_ways(Some((project.into(), namespace.into()))).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        let project = project(&old.deployment.id)?;
        self.remove_connections(project, &old).await?;
        self.tidy(project, &old.deployment.namespace).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for deployment in self.remembered(namespace) {
            let project = project(&deployment.id)?;
            found.extend(self.differences(project, &deployment.namespace, repair).await?);
            if repair {
                self.ways.owe([(project.to_owned(), deployment.namespace.clone())]);
            }
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
