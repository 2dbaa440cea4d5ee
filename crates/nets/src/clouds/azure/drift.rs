//! Comparing Azure with what Tarbet would have made.

use serde_json::{Value, json};

use super::arm::holds;
use super::cloud::called;
use super::names::{self, Group, Names};
use super::network::{Passage, id, namespace_of};
use super::{Azure, rules};
use crate::error::Error;

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
        for nsg in self.arm.list(&group.network("networkSecurityGroups")).await?.iter().filter(ours) {
            found.extend(self.deny_differences(nsg, repair).await?);
            let nic = called(nsg).strip_suffix("-default-nsg").unwrap_or_default();
            if !nics.iter().any(|found| called(found) == nic) {
                found.push(format!("the packet filter {} belongs to no machine", called(nsg)));
            }
        }
        found.extend(self.peering_differences(group, namespace, repair).await?);
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
        let subnet =
            nic.pointer("/properties/ipConfigurations/0/properties/subnet/id").and_then(Value::as_str);
        let subnet = subnet.unwrap_or_default();
        let body = super::machine::nic_body(location, namespace, subnet, nsg);
        self.arm.put(&group.network(&format!("networkInterfaces/{}", called(nic))), &body).await.map(drop)
    }

    async fn deny_differences(&self, nsg: &Value, repair: bool) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let actual = nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
        for deny in rules::deny_all() {
            if actual.iter().any(|rule| holds(rule, &deny)) {
                continue;
            }
            let name = deny["name"].as_str().unwrap_or_default();
            found.push(format!("the rule {name} of {} is missing or was changed", called(nsg)));
            if repair {
                let body = json!({ "properties": deny["properties"] });
                self.arm.put(&format!("{}/securityRules/{name}", id(nsg)), &body).await?;
            }
        }
        Ok(found)
    }

    async fn peering_differences(
        &self,
        group: &Group,
        namespace: &str,
        repair: bool,
    ) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let hub = group.network(&format!("virtualNetworks/{}", Names(namespace).gateway_vnet()));
        for vnet in self.vnets(group, namespace).await? {
            let halves = vnet["properties"]["virtualNetworkPeerings"].as_array().cloned().unwrap_or_default();
            let to =
                |half: &Value| half["properties"]["remoteVirtualNetwork"]["id"].as_str().map(str::to_owned);
            let joined = halves.iter().filter_map(to).any(|other| other.eq_ignore_ascii_case(&hub));
            if !joined {
                found.push(format!("{} is not peered with the gateway's network", called(&vnet)));
            }
            let broken: Vec<String> = halves
                .iter()
                .filter(|half| half["properties"]["peeringState"] != "Connected")
                .filter_map(to)
                .collect();
            for other in &broken {
                found.push(format!("the peering of {} with {} is broken", called(&vnet), names::last(other)));
            }
            if repair && (!joined || broken.iter().any(|other| other.eq_ignore_ascii_case(&hub))) {
                self.join_gateway(group, namespace, &vnet).await?;
            }
            for other in broken.iter().filter(|other| repair && !other.eq_ignore_ascii_case(&hub)) {
                self.peer(id(&vnet), other, Passage::Plain).await?;
            }
        }
        Ok(found)
    }
}
