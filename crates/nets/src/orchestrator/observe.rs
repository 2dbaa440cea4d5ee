//! Looking: what there is, and what may pass.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use super::{Imported, Inner, Orchestrator, Target};
use crate::config::DeploymentConfig;
use crate::error::Error;
use crate::model::{ResourceTag, Rule};
use crate::plan::connect::Step;
use crate::plan::flows::{Flow, flows};
use crate::plan::target;
use crate::plan::verdict::{Endpoint, Packet, Policy, Verdict};

/// A resource in a picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its tag.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its cloud.
    pub cloud: String,
    /// Its address.
    pub ip: String,
    /// How many rules it has.
    pub rules: usize,
}

/// A connection between two clouds in a picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// One cloud.
    pub from: String,
    /// The other.
    pub to: String,
    /// Whether all of it was made.
    pub complete: bool,
    /// Tunnels side by side.
    pub tunnels: u8,
}

/// The whole network in a picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Clouds by name.
    pub clouds: Vec<String>,
    /// Resources.
    pub resources: Vec<Node>,
    /// Connections between clouds.
    pub links: Vec<Edge>,
    /// What may pass between resources, from end to end.
    pub flows: Vec<Flow>,
    /// Networks that others made, as they were imported.
    pub networks: Vec<Imported>,
}

impl Orchestrator {
    /// Namespaces and their deployments.
    pub fn namespaces(&self) -> &BTreeMap<String, Vec<DeploymentConfig>> {
        self.0.places.namespaces()
    }

    /// The resources of a namespace, by their tags.
    pub async fn resources(&self, namespace: Option<&str>) -> Result<Vec<Node>, Error> {
        self.0.look_all().await?;
        let mut nodes = Vec::new();
        for tag in self.tags().list() {
            let (Some(parts), Some(uri)) = (ResourceTag::parse(&tag.name), &tag.uri) else { continue };
            if namespace.is_some_and(|wanted| wanted != parts.namespace) {
                continue;
            }
            let subscriber = format!("{}>{}>{uri}", parts.namespace, parts.cloud);
            let rules = self.0.rules.get(&subscriber).await?.rules.len();
            nodes.push(Node {
                name: tag.name,
                namespace: parts.namespace,
                cloud: parts.cloud,
                ip: tag.ip.unwrap_or_default(),
                rules,
            });
        }
        Ok(nodes)
    }

    /// The resource with this short name.
    pub async fn target(&self, namespace: &str, cloud: &str, name: &str) -> Result<Target, Error> {
        self.tags().look(&[format!("{namespace}.{cloud}.{name}")]).await?;
        self.0.resource(namespace, cloud, name)
    }

    /// The rules of a resource, as its cloud has them.
    pub async fn rules(&self, namespace: &str, cloud: &str, name: &str) -> Result<Vec<Rule>, Error> {
        let target = self.target(namespace, cloud, name).await?;
        self.0.places.cloud(cloud)?.permit_list(namespace, &target.uri).await
    }

    /// Everything, for a picture.
    pub async fn topology(&self) -> Result<Topology, Error> {
        let links = self.0.links.list().await?.into_iter().map(|link| Edge {
            name: link.name(),
            complete: link.next() == Step::Done,
            from: link.a.cloud,
            to: link.b.cloud,
            tunnels: link.pair.tunnels,
        });
        Ok(Topology {
            clouds: self.0.places.clouds().keys().cloned().collect(),
            resources: self.resources(None).await?,
            links: links.collect(),
            flows: flows(self.policy().await?.endpoints()),
            networks: self.imports().await?,
        })
    }

    /// Whether a packet may pass, by the rules as they are remembered.
    pub async fn can(&self, from: &str, to: &str, protocol: u8, port: u16) -> Result<Verdict, Error> {
        self.tags().look(&[from, to]).await?;
        let packet = Packet {
            source: self.address(from)?,
            destination: self.address(to)?,
            protocol,
            // Any port a client may be given.
            source_port: 49152,
            destination_port: port,
        };
        Ok(self.policy().await?.judge(&packet))
    }

    async fn policy(&self) -> Result<Policy, Error> {
        self.0.look_all().await?;
        let mut policy = Policy::default();
        for tag in self.tags().list() {
            let (Some(parts), Some(uri)) = (ResourceTag::parse(&tag.name), &tag.uri) else { continue };
            let Some(addresses) = tag.ip.as_deref().and_then(target::parse) else { continue };
            let set = self.0.rules.get(&format!("{}>{}>{uri}", parts.namespace, parts.cloud)).await?;
            policy
                .insert_all(addresses, Endpoint { name: tag.name, rules: set.rules.into_values().collect() });
        }
        Ok(policy)
    }

    fn address(&self, name: &str) -> Result<IpAddr, Error> {
        if let Ok(address) = name.parse() {
            return Ok(address);
        }
        // A cluster has many addresses, and one permit list for all of them.
        if let Some(tag) = self.tags().get(name).filter(|tag| tag.uri.is_some())
            && let Some(first) = tag.ip.as_deref().and_then(target::first_address)
        {
            return Ok(first);
        }
        let addresses = self.tags().addresses(name);
        match addresses.as_slice() {
            [one] => {
                one.parse().map_err(|_| Error::invalid(name, "stands for a prefix, not for one address"))
            }
            [] => Err(crate::plan::tags::TagError::Unknown(name.into()).into()),
            several => Err(Error::invalid(
                name,
                format!("stands for {} addresses; name one resource", several.len()),
            )),
        }
    }
}

impl Inner {
    /// Looks at all tags where they are kept elsewhere. Where they cannot be listed, these are the tags of our
    /// resources and those that our rules name.
    pub(super) async fn look_all(&self) -> Result<(), Error> {
        if self.tags.can_list() {
            return self.tags.look_all().await;
        }
        let made = self.made.list().await?.records.into_iter().map(|(tag, _)| tag);
        let names: Vec<String> = made.chain(self.rules.named()).collect();
        self.tags.look(&names).await
    }

    /// Looks at a tag and at all above it that rules may name.
    pub(super) async fn look_above(&self, tag: &str) -> Result<(), Error> {
        if !self.tags.can_list() {
            self.tags.look(&self.rules.named()).await?;
        }
        self.tags.look_above(tag).await
    }
}
