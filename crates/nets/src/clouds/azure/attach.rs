//! Taking in a machine or cluster that others made, with the network it is in.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::cluster::{is_cluster, services, subnet_of};
use super::detach::{attached_to, tags_with};
use super::machine::{address, network};
use super::names::{self, Group, NAMESPACE_TAG};
use super::network::{self, id, namespace_of, spaces};
use super::{Azure, rules};
use crate::error::Error;
use crate::model::Created;

/// What stands against a packet filter that others wrote: beside allowing rules it may have one
/// that denies everything, below all others. Permissions of ours, for others behind it, stand against nothing.
fn judge(rules: &[Value]) -> Result<(), String> {
    for direction in ["Inbound", "Outbound"] {
        let mut own: Vec<&Value> = rules
            .iter()
            .filter(|rule| rule["properties"]["direction"] == direction && rules::read(rule).is_none())
            .collect();
        own.sort_by_key(|rule| rule["properties"]["priority"].as_u64());
        let mut denied = false;
        for rule in own {
            match (rule["properties"]["access"] == "Deny", denied) {
                (true, _) if rules::denies_all(rule) => denied = true,
                (true, _) => return Err(format!("its packet filter denies some of what comes {direction}")),
                (false, true) => {
                    return Err(format!(
                        "its packet filter allows below the rule that denies all {direction}"
                    ));
                }
                (false, false) => {}
            }
        }
    }
    Ok(())
}

/// What is to be taken in.
struct Found {
    resource: Value,
    /// Its address, or a cluster's range.
    ip: String,
    vnet: String,
    nsg: String,
    /// The network interface or subnet that is behind its packet filter.
    behind: Value,
    /// What has to stay open where everything is denied.
    local: Vec<Value>,
    /// Spaces it has beside those of its network.
    beside: Vec<IpNet>,
}

impl Azure {
    async fn found_machine(
        &self,
        uri: &str,
        refused: &impl Fn(&str) -> Error,
    ) -> Result<Option<Found>, Error> {
        let Some((resource, nic)) = self.foreign_machine(uri).await? else { return Ok(None) };
        let ip = address(&nic).ok_or_else(|| refused("it has no address"))?.to_owned();
        let vnet = network(&nic).ok_or_else(|| refused("it is in no network"))?.to_owned();
        let nsg = nic["properties"]["networkSecurityGroup"]["id"].as_str();
        let nsg =
            nsg.ok_or_else(|| refused("its network interface has no network security group"))?.to_owned();
        Ok(Some(Found { resource, ip, vnet, nsg, behind: nic, local: Vec::new(), beside: Vec::new() }))
    }

    async fn found_cluster(
        &self,
        uri: &str,
        refused: &impl Fn(&str) -> Error,
    ) -> Result<Option<Found>, Error> {
        self.allow_clusters()?;
        let Some(resource) = self.arm.get(uri).await? else { return Ok(None) };
        let profile = &resource["properties"]["networkProfile"];
        if profile["networkPlugin"] != "azure" || profile["networkPluginMode"] == "overlay" {
            return Err(refused("its pods have no addresses of the network"));
        }
        let subnet =
            subnet_of(&resource).ok_or_else(|| refused("its nodes and pods are not in one subnet"))?;
        let vnet = names::parent(subnet).to_owned();
        let subnet = self.arm.get(subnet).await?.ok_or_else(|| refused("its subnet is gone"))?;
        let range = network::range(&subnet).ok_or_else(|| refused("its subnet has no range"))?;
        let nsg = subnet["properties"]["networkSecurityGroup"]["id"].as_str();
        let nsg = nsg.ok_or_else(|| refused("its subnet has no network security group"))?.to_owned();
        let beside = services(&resource).into_iter().collect();
        let local = rules::local(range).to_vec();
        Ok(Some(Found { ip: range.to_string(), vnet, nsg, behind: subnet, local, beside, resource }))
    }

    /// Only what is in a deployment of the namespace is looked after.
    async fn check_deployment(
        &self,
        namespace: &str,
        group: &Group,
        refused: &impl Fn(&str) -> Error,
    ) -> Result<(), Error> {
        let mut known: Vec<String> = self.places(namespace).into_iter().map(|place| place.id).collect();
        if known.is_empty() {
            // A plugin that just started was not told yet.
            let used = self.controller.used_spaces().await?;
            let here = used.into_iter().filter(|one| one.cloud == self.name && one.namespace == namespace);
            known = here.filter_map(|one| one.deployment).collect();
            known.extend(self.places(namespace).into_iter().map(|place| place.id));
        }
        if known.is_empty() || known.iter().any(|id| id.eq_ignore_ascii_case(group.id())) {
            return Ok(());
        }
        Err(refused(&format!("it is in no deployment of the namespace {namespace}: {}", known.join(", "))))
    }

    pub(super) async fn attach(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        let group = Self::group_of(namespace, uri)?;
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let refused = |why: &str| Error::invalid("resource", format!("{uri} cannot be taken in: {why}"));
        // Tags are of three parts with dots between them.
        if names::last(uri).contains('.') {
            return Err(refused("its name has a dot, which the name of a tag cannot hold"));
        }
        self.check_deployment(namespace, &group, &refused).await?;
        let found = if is_cluster(uri) {
            self.found_cluster(uri, &refused).await?
        } else {
            self.found_machine(uri, &refused).await?
        };
        let Found { resource, ip, vnet, nsg, behind, local, beside } = found.ok_or_else(unknown)?;
        // Only this group is looked through for what was taken in.
        let is_here = |id: &str| Group::of(id).is_some_and(|of| of.id().eq_ignore_ascii_case(group.id()));
        if !is_here(&vnet) || !is_here(&nsg) || !is_here(id(&behind)) {
            return Err(refused("its network, interface or packet filter is in another resource group"));
        }
        // Until all is done: who parts with the last guest of this network has the same turn.
        let _turn = self.shape(&group, namespace).await;
        let vnet = self.arm.get(&vnet).await?.ok_or_else(|| refused("it is in no network"))?;
        let filter =
            self.arm.get(&nsg).await?.ok_or_else(|| refused("its network security group is gone"))?;
        let existing = filter["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
        judge(&existing).map_err(|why| refused(&why))?;
        if attached_to(&filter).is_some_and(|of| of != namespace) {
            return Err(refused("its network security group was taken into another namespace"));
        }
        match namespace_of(&vnet) {
            Some(of) if of == namespace => {}
            Some(_) => return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() }),
            None => {
                let used = self.controller.used_spaces().await?;
                let overlap = |own: &IpNet| {
                    let all = used.iter().flat_map(|mapping| &mapping.spaces);
                    all.into_iter().any(|other| own.contains(other) || other.contains(own))
                };
                if let Some(space) = spaces(&vnet).iter().find(|space| overlap(space)) {
                    return Err(refused(&format!("{space} of its network is in use elsewhere")));
                }
                if let Some(space) = beside.iter().find(|space| overlap(space)) {
                    return Err(refused(&format!("{space} of its Services is in use elsewhere")));
                }
                self.arm.patch(id(&vnet), &tags_with(&vnet, &[NAMESPACE_TAG], namespace)).await?;
            }
        }
        self.mark(&filter, &behind, namespace).await?;
        for deny in rules::deny_all() {
            let direction = &deny["properties"]["direction"];
            let same = |rule: &&Value| rule["properties"]["direction"] == *direction;
            if existing.iter().filter(same).any(rules::denies_all) {
                continue;
            }
            // Before the denial: nodes that do not reach each other are no cluster.
            for rule in local.iter().filter(|rule| rule["properties"]["direction"] == *direction) {
                let mut rule = rule.clone();
                if !existing.iter().any(|found| found["name"] == rule["name"]) {
                    let free = rules::last_free(&existing, direction);
                    rule["properties"]["priority"] =
                        json!(free.ok_or_else(|| refused("its packet filter is full"))?);
                    self.ensure_rule(&filter, &rule).await?;
                }
            }
            self.ensure_rule(&filter, &deny).await?;
        }
        self.join_gateway(&group, namespace, &vnet).await?;
        Ok(Created { name: names::last(id(&resource)).into(), uri: uri.into(), ip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_denial_below_all_permissions() {
        let allow = |priority: u64| {
            json!({ "properties": {
            "access": "Allow", "direction": "Inbound", "priority": priority, "protocol": "Tcp",
        } })
        };
        let denies = rules::deny_all();
        assert!(
            judge(&[]).is_ok() && judge(&denies).is_ok() && judge(&[allow(100), denies[0].clone()]).is_ok()
        );
        let mut early = denies[0].clone();
        early["properties"]["priority"] = json!(200);
        assert!(judge(&[allow(100), early.clone()]).is_ok());
        assert!(judge(&[allow(300), early]).is_err());
        let mut some = denies[0].clone();
        some["properties"]["destinationPortRange"] = json!("22");
        some["name"] = json!("theirs");
        assert!(judge(&[some.clone()]).is_err());
        // A permission whose tags have no members yet is written as a denial for nobody.
        some["name"] = json!("paraglider-web");
        assert!(judge(&[some, denies[0].clone()]).is_ok());
    }
}
