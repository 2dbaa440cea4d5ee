//! AWS as a cloud.

use std::net::Ipv4Addr;

use async_trait::async_trait;
use ipnet::IpNet;

use super::api::{filter, tag};
use super::machine::{self, Machine};
use super::network::{space, text};
use super::public::needs_public;
use super::{Aws, rules};
use crate::cloud::{
    Cloud, Held, Need, NewConnections, NewGateway, NewResource, OldConnections, needs, tell_idle_flags,
};
use crate::clouds::tell_ways_back;
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::rule;
use crate::plan::target::{Map, Owner};

impl Aws {
    /// Makes what the rules need beside the permission.
    async fn provide(&self, namespace: &str, machine: &Machine, rules: &[Rule]) -> Result<(), Error> {
        let targets = rules.iter().map(rule::targets).collect::<Result<Vec<_>, _>>()?.concat();
        if targets.is_empty() {
            return Ok(());
        }
        let vpc = self.vpc(&machine.region, namespace).await?.unwrap_or_default();
        let unknown = || Error::Internal(format!("the network of {} is not known", machine.ip));
        let own = space(&vpc).ok_or_else(unknown)?;
        if targets.iter().all(|target| own.contains(target)) {
            return Ok(());
        }
        let owner =
            Owner { cloud: self.name.clone(), namespace: namespace.into(), deployment: None, space: own };
        let map = Map::new(&self.controller.used_spaces().await?);
        refuse_ipv6(rules)?;
        for need in needs(rules, &owner, &map)? {
            match need {
                Need::Peering(other) => self.peer(&machine.region, &vpc, &other).await?,
                Need::Public => self.open_public(namespace, machine).await?,
                Need::Vpn(other) => {
                    self.controller.connect(ConnectRequest::between(&owner, &other)).await?;
                    self.route_to_gateway(&machine.region, namespace, &machine.vpc, other.space).await?;
                }
            }
        }
        Ok(())
    }
}

/// Public addresses are given in IPv4, so a permission for other targets would wait for nothing.
fn refuse_ipv6(rules: &[Rule]) -> Result<(), Error> {
    for permission in rules {
        if let Some(target) = rule::targets(permission)?.iter().find(|target| target.addr().is_ipv6()) {
            let message = format!("{target} is IPv6, and networks in AWS have IPv4 only");
            return Err(Error::invalid(format!("{}.targets", permission.name), message));
        }
    }
    Ok(())
}

#[async_trait]
impl Cloud for Aws {
    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let mut mappings = Vec::new();
        for deployment in deployments {
            let mut spaces = Vec::new();
            for region in &self.config.regions {
                let filters = [filter("tag:Namespace", &[&deployment.namespace])];
                spaces.extend(
                    self.find(region, "DescribeVpcs", "vpcSet", &filters).await?.iter().filter_map(space),
                );
            }
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
        self.asns(deployments).await
    }

    /// Those in the middle of tunnels are remembered with the orchestrator's links; AWS tells ranges only.
    async fn used_bgp_addresses(&self, _: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        Ok(Vec::new())
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        rule::name(&new.name).map_err(|message| Error::invalid("name", message))?;
        let (region, fields) = machine::describe(&new.description)?;
        if !self.config.regions.contains(&region) {
            let message =
                format!("{region} is none of the plugin's regions: {}", self.config.regions.join(", "));
            return Err(Error::invalid("description.Region", message));
        }
        self.make_machine(&new.deployment.namespace, &new.name, &region, fields).await
    }

    /// `arn:aws:ec2:REGION:ACCOUNT:instance/ID`.
    fn deployment_of(&self, uri: &str) -> Option<String> {
        uri.strip_prefix("arn:")?.split(':').nth(3).map(str::to_owned)
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let machine = self.machine(namespace, uri).await?;
        self.kept(namespace, &machine.group).await
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        rules::check(&rules)?;
        let machine = self.machine(namespace, uri).await?;
        tell_ways_back(&self.name, &rules);
        self.provide(namespace, &machine, &rules).await?;
        let _turn = self.turns.turn(&machine.group).await;
        let mut kept = self.kept(namespace, &machine.group).await?;
        let before = kept.clone();
        kept.retain(|known| !rules.iter().any(|rule| rule.name == known.name));
        kept.extend(rules);
        kept.sort_by(|a, b| a.name.cmp(&b.name));
        if kept != before {
            self.keep(namespace, &machine.group, &kept).await?;
        }
        self.reconcile(&machine.region, namespace, &machine.group).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, gone: Vec<String>) -> Result<(), Error> {
        let machine = self.machine(namespace, uri).await?;
        {
            let _turn = self.turns.turn(&machine.group).await;
            let mut kept = self.kept(namespace, &machine.group).await?;
            let before = kept.len();
            kept.retain(|known| !gone.contains(&known.name));
            if kept.len() != before {
                self.keep(namespace, &machine.group, &kept).await?;
            }
            self.reconcile(&machine.region, namespace, &machine.group).await?;
            if !needs_public(&kept) {
                self.release(&machine.region, namespace, &machine.called).await?;
            }
        }
        self.prune(&machine.region, &machine.vpc).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        self.make_gateway(new).await
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        self.make_connections(new).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        self.remove_connections(old).await
    }

    async fn network_spaces(&self, deployment: &Deployment, wanted: IpNet) -> Result<Vec<IpNet>, Error> {
        let used = self.used_spaces(std::slice::from_ref(deployment)).await?;
        Ok(used.into_iter().flat_map(|mapping| mapping.spaces).filter(|own| own.contains(&wanted)).collect())
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        tell_idle_flags(&self.name, flags, &[]);
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let mut held = Vec::new();
        for region in &self.config.regions {
            let which = if namespace.is_empty() {
                filter("tag-key", &["Namespace"])
            } else {
                filter("tag:Namespace", &[namespace])
            };
            for machine in self.instances(region, &[which]).await? {
                held.push(Held {
                    namespace: tag(&machine, "Namespace").unwrap_or_default().into(),
                    name: tag(&machine, "Name").unwrap_or_default().into(),
                    uri: Self::uri(region, &machine),
                    ip: text(&machine, "privateIpAddress").into(),
                    network: text(&machine, "vpcId").into(),
                });
            }
        }
        Ok(held)
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        self.remove_machine(namespace, uri).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for held in self.list_resources(namespace).await? {
            let machine = self.machine(&held.namespace, &held.uri).await?;
            let differs = self.compare(&machine, &held.namespace).await?;
            if differs > 0 {
                found.push(format!("{differs} permissions of {} differ from its rules", held.name));
                if repair {
                    self.reconcile(&machine.region, &held.namespace, &machine.group).await?;
                }
            }
        }
        Ok(found)
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        self.others(deployments).await
    }
}
