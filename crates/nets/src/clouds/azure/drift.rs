//! Comparing Azure with what Tarbet would have made.

use serde_json::{Value, json};

use super::arm::holds;
use super::cloud::called;
use super::cluster::subnet_of;
use super::detach::attached_to;
use super::machine::{nic_body, subnet_of_nic};
use super::names::{self, Group, Names};
use super::network::{self, id, namespace_of};
use super::peering::{Passage, halves, is_in_step, remote};
use super::{Azure, rules};
use crate::error::Error;

/// A rule that is in no permit list, in words.
fn stranger(nsg: &Value, rule: &Value) -> String {
    let name = rule["name"].as_str().unwrap_or_default();
    format!("the rule {name} of {} is in no permit list: {}", called(nsg), rules::said(rule))
}

impl Azure {
    /// One sentence for each difference in a namespace; mended if told to. What belongs to nothing is
    /// told and left: it may be in the making.
    pub(super) async fn differences(
        &self,
        group: &Group,
        namespace: &str,
        repair: bool,
    ) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        let ours = |object: &&Value| namespace_of(object) == Some(namespace);
        for nic in nics.iter().filter(ours) {
            if nic["properties"]["virtualMachine"]["id"].as_str().is_none() {
                found.push(format!("the network interface {} belongs to no machine", called(nic)));
            }
            let nsg = group.network(&format!("networkSecurityGroups/{}", names::nsg(called(nic))));
            let attached = nic["properties"]["networkSecurityGroup"]["id"].as_str();
            if !attached.is_some_and(|attached| attached.eq_ignore_ascii_case(&nsg)) {
                found.push(format!("{} is not behind its packet filter", called(nic)));
                if repair {
                    self.put_behind(group, namespace, nic, &nsg).await?;
                }
            }
        }
        let vnets = self.vnets(group, namespace).await?;
        let clusters = self.clusters(group, namespace, &vnets).await?;
        let filters = self.arm.list(&group.network("networkSecurityGroups")).await?;
        for nsg in filters.iter().filter(|nsg| attached_to(nsg) == Some(namespace)) {
            found.extend(self.guest_differences(nsg, repair).await?);
        }
        for nsg in filters.iter().filter(ours) {
            let of = names::of_nsg(called(nsg));
            if !names::is_nic(of) {
                let cluster = clusters.iter().find(|cluster| called(cluster).eq_ignore_ascii_case(of));
                found.extend(self.cluster_differences(group, namespace, nsg, cluster, repair).await?);
                continue;
            }
            found.extend(self.rule_differences(nsg, &rules::deny_all(), repair).await?);
            if !nics.iter().any(|found| called(found) == of) {
                found.push(format!("the packet filter {} belongs to no machine", called(nsg)));
            }
        }
        found.extend(self.peering_differences(group, namespace, &vnets, repair).await?);
        Ok(found)
    }

    /// What became of a cluster's packet filter. One whose cluster is being made is not finished.
    async fn cluster_differences(
        &self,
        group: &Group,
        namespace: &str,
        nsg: &Value,
        cluster: Option<&Value>,
        repair: bool,
    ) -> Result<Vec<String>, Error> {
        let Some(cluster) = cluster else {
            return Ok(vec![format!("the packet filter {} belongs to no cluster", called(nsg))]);
        };
        if cluster["properties"]["provisioningState"] != "Succeeded" {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let place = subnet_of(cluster).unwrap_or_default();
        let subnet = self.arm.settled(place).await?.unwrap_or_default();
        let attached = subnet["properties"]["networkSecurityGroup"]["id"].as_str();
        let local: Vec<Value> = network::range(&subnet).map(rules::local).into_iter().flatten().collect();
        found
            .extend(self.rule_differences(nsg, &[local, rules::deny_all().to_vec()].concat(), repair).await?);
        if !attached.is_some_and(|attached| attached.eq_ignore_ascii_case(id(nsg))) {
            found.push(format!("{} is not behind its packet filter", called(&subnet)));
            if repair {
                // What others say of the subnet meanwhile is said again.
                let _turn = self.shape(group, namespace).await;
                if let Some(subnet) = self.arm.settled(place).await? {
                    self.put_subnet_behind(subnet, id(nsg)).await?;
                }
            }
        }
        Ok(found)
    }

    async fn put_behind(&self, group: &Group, namespace: &str, nic: &Value, nsg: &str) -> Result<(), Error> {
        let location = nic["location"].as_str().unwrap_or_default();
        if self.arm.settled(nsg).await?.is_none() {
            let body = json!({
                "location": location,
                "tags": { names::NAMESPACE_TAG: namespace },
                "properties": { "securityRules": rules::deny_all() },
            });
            self.arm.put(nsg, &body).await?;
        }
        let subnet = subnet_of_nic(nic).unwrap_or_default();
        let body = nic_body(location, namespace, subnet, nsg);
        self.arm.put(&group.network(&format!("networkInterfaces/{}", called(nic))), &body).await.map(drop)
    }

    /// What became of a packet filter of others: what it lets pass beside the permit list, which is theirs to
    /// change, and whether it still denies the rest.
    async fn guest_differences(&self, nsg: &Value, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let actual = nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
        for rule in actual.iter().filter(|rule| rules::is_stranger(rule, &rules::deny_all())) {
            if rule["properties"]["access"] == "Allow" && !rules::is_built_in_rule(rule) {
                found.push(stranger(nsg, rule));
            }
        }
        for deny in rules::deny_all() {
            let direction = &deny["properties"]["direction"];
            let same = |rule: &&Value| rule["properties"]["direction"] == *direction;
            if actual.iter().filter(same).any(rules::denies_all) {
                continue;
            }
            let word = direction.as_str().unwrap_or_default();
            found.push(format!("{} no longer denies what no rule allows {word}", called(nsg)));
            let last = &deny["properties"]["priority"];
            let free = !actual.iter().filter(same).any(|rule| rule["properties"]["priority"] == *last);
            if repair && free {
                self.ensure_rule(nsg, &deny).await?;
            }
        }
        Ok(found)
    }

    async fn rule_differences(&self, nsg: &Value, all: &[Value], repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let actual = nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
        for wanted in all {
            if actual.iter().any(|rule| holds(rule, wanted)) {
                continue;
            }
            let name = wanted["name"].as_str().unwrap_or_default();
            found.push(format!("the rule {name} of {} is missing or was changed", called(nsg)));
            if repair {
                let body = json!({ "properties": wanted["properties"] });
                self.arm.put(&format!("{}/securityRules/{name}", id(nsg)), &body).await?;
            }
        }
        for rule in actual.iter().filter(|rule| rules::is_stranger(rule, all)) {
            found.push(stranger(nsg, rule));
            // A denial lets nothing pass: whoever wrote it may have had a reason.
            if repair && rule["properties"]["access"] == "Allow" {
                let name = rule["name"].as_str().unwrap_or_default();
                self.arm.delete(&format!("{}/securityRules/{name}", id(nsg))).await?;
            }
        }
        Ok(found)
    }

    async fn peering_differences(
        &self,
        group: &Group,
        namespace: &str,
        vnets: &[Value],
        repair: bool,
    ) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let hub = group.network(&format!("virtualNetworks/{}", Names(namespace).gateway_vnet()));
        for vnet in vnets {
            let joined = halves(vnet).filter_map(remote).any(|other| other.eq_ignore_ascii_case(&hub));
            if !joined {
                found.push(format!("{} is not peered with the gateway's network", called(vnet)));
            }
            let is_connected = |half: &&Value| half["properties"]["peeringState"] == "Connected";
            let mut broken = Vec::new();
            for half in halves(vnet).filter(|half| !is_connected(half)) {
                let Some(other) = remote(half) else { continue };
                found.push(format!("the peering of {} with {} is broken", called(vnet), names::last(other)));
                // One of others is theirs to mend, and Azure has only one between two networks.
                if repair && self.made_peering(id(vnet), half).await? {
                    broken.push(other);
                }
            }
            let behind = |half: &&Value| is_connected(half) && !is_in_step(half);
            for other in halves(vnet).filter(behind).filter_map(remote) {
                let other = names::last(other);
                found.push(format!("the peering of {} with {other} does not know every space", called(vnet)));
            }
            if repair && (!joined || broken.iter().any(|other| other.eq_ignore_ascii_case(&hub))) {
                self.join_gateway(group, namespace, vnet).await?;
            }
            for other in broken.iter().filter(|other| !other.eq_ignore_ascii_case(&hub)) {
                self.peer(id(vnet), other, Passage::Plain).await?;
            }
            if repair {
                self.tell_peers(vnet).await?;
            }
        }
        Ok(found)
    }
}
