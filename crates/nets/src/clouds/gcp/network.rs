//! Networks, subnets, peerings and the way out.

use http::Method;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{Gcp, Outcome, endpoint, last, legal, n, project, texts, url};
use crate::cloud::{Need, needs};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Deployment, Rule};
use crate::plan::rule;
use crate::plan::target::{self, Map, Owner};

use super::cloud::{Resource, Site};
use super::cluster::control_spaces;

/// All ranges of a subnet.
pub(super) fn ranges(subnet: &Value) -> Vec<IpNet> {
    let secondary = subnet["secondaryIpRanges"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all =
        std::iter::once(&subnet["ipCidrRange"]).chain(secondary.iter().map(|range| &range["ipCidrRange"]));
    all.filter_map(|range| target::parse(range.as_str()?)).collect()
}

pub(super) fn network_path(project: &str, namespace: &str) -> String {
    format!("projects/{project}/global/networks/{}-vpc", n(namespace))
}

/// Where all egress is denied; permissions come before it.
const DENY_PRIORITY: u16 = 65534;
/// What makes a firewall one for some machines alone.
const NARROWER: [&str; 3] = ["targetTags", "targetServiceAccounts", "sourceRanges"];

/// Whether a firewall denies whatever leaves the network, to everybody in it.
pub(super) fn denies_egress(firewall: &Value) -> bool {
    let denied = firewall["denied"].as_array();
    firewall["direction"] == "EGRESS"
        && firewall["priority"] == DENY_PRIORITY
        && firewall["disabled"] != true
        && denied.into_iter().flatten().any(|one| one["IPProtocol"] == "all")
        && texts(&firewall["destinationRanges"]).contains(&"0.0.0.0/0")
        && NARROWER.iter().all(|field| texts(&firewall[*field]).is_empty())
}

impl Gcp {
    /// The network of a namespace, with all egress denied.
    pub(super) async fn network(&self, project: &str, namespace: &str) -> Result<(), Error> {
        let name = legal("namespace", format!("{}-vpc", n(namespace)))?;
        let path = network_path(project, namespace);
        if self.get(&path).await?.is_none() {
            let body = json!({
                "name": name, "autoCreateSubnetworks": false, "routingConfig": { "routingMode": "GLOBAL" },
            });
            self.insert(&format!("projects/{project}/global/networks"), body).await?;
        }
        // Looked for each time: the call that made the network may have stopped here.
        self.deny(project, namespace).await.map(drop)
    }

    /// Denies all egress, also where a denial was changed; whether it was not denied before.
    pub(super) async fn deny(&self, project: &str, namespace: &str) -> Result<Outcome, Error> {
        let name = legal("namespace", format!("{}-deny-all-egress", n(namespace)))?;
        let firewalls = format!("projects/{project}/global/firewalls");
        let path = format!("{firewalls}/{name}");
        let mut body = json!({
            "name": name, "network": url(&network_path(project, namespace)), "direction": "EGRESS",
            "priority": DENY_PRIORITY, "denied": [{ "IPProtocol": "all" }], "destinationRanges": ["0.0.0.0/0"],
        });
        let Some(found) = self.get(&path).await? else { return self.insert(&firewalls, body).await };
        if denies_egress(&found) {
            return Ok(Outcome::Before);
        }
        // The cloud turns no firewall round, and makes no denial of a permission.
        if found["direction"] != "EGRESS" || !found["denied"].is_array() {
            self.remove(&path).await?;
            return self.insert(&firewalls, body).await;
        }
        body["disabled"] = json!(false);
        for narrower in NARROWER.iter().filter(|field| !found[**field].is_null()) {
            body[*narrower] = json!([]);
        }
        self.change(Method::PATCH, &path, Some(body)).await
    }

    /// The path of a region's subnet; it and the network are made if missing.
    pub(super) async fn subnet(&self, project: &str, namespace: &str, region: &str) -> Result<String, Error> {
        let name = legal("description.zone", format!("{}-{region}-subnet", n(namespace)))?;
        let _turn = self.shape.lock().await;
        self.network(project, namespace).await?;
        let subnets = format!("projects/{project}/regions/{region}/subnetworks");
        let path = format!("{subnets}/{name}");
        if self.get(&path).await?.is_none() {
            let space =
                self.controller.find_spaces(&[0]).await?.into_iter().find(|space| space.addr().is_ipv4());
            let space =
                space.ok_or_else(|| Error::Unsupported("Google Cloud needs an IPv4 address space".into()))?;
            let network = url(&network_path(project, namespace));
            let body = json!({ "name": name, "network": network, "ipCidrRange": space.to_string() });
            self.insert(&subnets, body).await?;
        }
        Ok(path)
    }

    /// All spaces of a namespace's network; nothing if there is no network.
    pub(super) async fn spaces(&self, project: &str, namespace: &str) -> Result<Vec<IpNet>, Error> {
        let Some(network) = self.get(&network_path(project, namespace)).await? else { return Ok(Vec::new()) };
        let mut spaces = Vec::new();
        for path in texts(&network["subnetworks"]) {
            spaces.extend(self.get(path).await?.as_ref().map(ranges).unwrap_or_default());
        }
        // Only clusters make further ranges, and their control planes have some that are in no subnet.
        if spaces.len() > texts(&network["subnetworks"]).len() {
            spaces.extend(control_spaces(&self.control_planes(project, namespace).await?));
        }
        let addresses = self.addresses(project, namespace).await?;
        let outside = addresses.iter().filter_map(endpoint::space);
        let outside: Vec<IpNet> =
            outside.filter(|one| !spaces.iter().any(|space| space.contains(one))).collect();
        spaces.extend(outside);
        Ok(spaces)
    }

    /// Makes what rules need beside the permission.
    pub(super) async fn provide(
        &self,
        namespace: &str,
        resource: &Resource,
        rules: &[Rule],
    ) -> Result<(), Error> {
        let space = match &resource.site {
            Site::Subnet { path, .. } => {
                let subnet = self.get(path).await?.unwrap_or_default();
                let space = subnet["ipCidrRange"].as_str().and_then(target::parse);
                space.ok_or_else(|| self.strange("a machine without a subnet"))?
            }
            Site::Address(address) => *address,
        };
        let targets = rules.iter().map(rule::targets).collect::<Result<Vec<_>, _>>()?.concat();
        if targets.iter().all(|target| space.contains(target)) {
            return Ok(());
        }
        let own = Owner { cloud: self.name.clone(), namespace: namespace.into(), deployment: None, space };
        let map = Map::new(&self.controller.used_spaces().await?);
        let deployment =
            Deployment { id: format!("projects/{}", resource.project), namespace: namespace.into() };
        for need in needs(rules, &own, &map)? {
            match (need, &resource.site) {
                (Need::Public, Site::Subnet { region, .. }) => self.make_nat(&deployment, region).await?,
                // It answers, and never asks.
                (Need::Public, Site::Address(_)) => {}
                // One network spans all regions of a namespace.
                (Need::Peering(owner), _) if owner.namespace == namespace => {}
                (Need::Peering(owner), _) => self.peer(&resource.project, namespace, &owner).await?,
                (Need::Vpn(owner), _) => {
                    self.controller.connect(ConnectRequest::between(&own, &owner)).await?;
                }
            }
        }
        Ok(())
    }

    async fn peer(&self, own_project: &str, namespace: &str, other: &Owner) -> Result<(), Error> {
        let other_project = other.deployment.as_deref().map(project).transpose()?.unwrap_or(own_project);
        let (here, there) = ((own_project, namespace), (other_project, other.namespace.as_str()));
        let _turn = self.shape.lock().await;
        for (from, to) in [(here, there), (there, here)] {
            let path = network_path(from.0, from.1);
            let name = legal("namespace", format!("{}-{}-peering", n(from.1), to.1))?;
            let network = self.get(&path).await?.unwrap_or_default();
            let far = network_path(to.0, to.1);
            // Others may have peered them: the cloud has only one peering between two networks.
            let leads = |peering: &Value| {
                peering["name"] == *name || peering["network"].as_str().is_some_and(|to| to.ends_with(&far))
            };
            if !network["peerings"].as_array().into_iter().flatten().any(leads) {
                let peering = json!({
                    "name": name, "network": url(&far), "exchangeSubnetRoutes": true,
                });
                let body = json!({ "networkPeering": peering });
                self.change(Method::POST, &format!("{path}/addPeering"), Some(body)).await?;
            }
        }
        Ok(())
    }

    /// Takes away the peerings of a namespace's network; all of them, or those no rule at either end needs. Tells
    /// those that others made, which stay.
    pub(super) async fn unpeer(
        &self,
        project: &str,
        namespace: &str,
        all: bool,
    ) -> Result<Vec<String>, Error> {
        let path = network_path(project, namespace);
        let network = self.get(&path).await?.unwrap_or_default();
        let peerings = network["peerings"].as_array().cloned().unwrap_or_default();
        let mut theirs = Vec::new();
        if peerings.is_empty() {
            return Ok(theirs);
        }
        let own = self.spaces(project, namespace).await?;
        for peering in peerings {
            let (Some(name), Some(peer)) = (peering["name"].as_str(), peering["network"].as_str()) else {
                continue;
            };
            let is_ours = |(_, far): &(&str, &str)| name == format!("{}-{far}-peering", n(namespace));
            let Some((peer_project, peer_namespace)) = ours(peer).filter(is_ours) else {
                theirs.push(name.to_owned());
                continue;
            };
            let needed = !all
                && (self
                    .names_any(project, namespace, &self.spaces(peer_project, peer_namespace).await?)
                    .await?
                    || self.names_any(peer_project, peer_namespace, &own).await?);
            if needed {
                continue;
            }
            let far = network_path(peer_project, peer_namespace);
            let far_name = format!("{}-{namespace}-peering", n(peer_namespace));
            // The far end first: the near one is how a call that stopped between finds the way again.
            for (path, name) in [(far.as_str(), far_name.as_str()), (path.as_str(), name)] {
                let there = self.get(path).await?.unwrap_or_default();
                let known = there["peerings"].as_array().into_iter().flatten().any(|one| one["name"] == name);
                if known {
                    self.change(
                        Method::POST,
                        &format!("{path}/removePeering"),
                        Some(json!({ "name": name })),
                    )
                    .await?;
                }
            }
        }
        Ok(theirs)
    }

    /// Whether any rule of a namespace names a target in these spaces.
    async fn names_any(&self, project: &str, namespace: &str, spaces: &[IpNet]) -> Result<bool, Error> {
        let firewalls = self.firewalls(project, namespace, &format!("{}-fw-", n(namespace))).await?;
        let targets = firewalls.iter().flat_map(|item| {
            texts(&item["sourceRanges"])
                .into_iter()
                .chain(texts(&item["destinationRanges"]))
                .filter_map(target::parse)
        });
        let touches =
            |target: IpNet| spaces.iter().any(|space| space.contains(&target) || target.contains(space));
        Ok(targets.into_iter().any(touches))
    }
}

/// Project and namespace of a network of ours.
fn ours(network: &str) -> Option<(&str, &str)> {
    let project = network.split("projects/").nth(1)?.split('/').next()?;
    let namespace = last(network).strip_prefix("para-")?.strip_suffix("-vpc")?;
    Some((project, namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_ours_are_known() {
        assert_eq!(ours(&url(&network_path("p", "default"))), Some(("p", "default")));
        assert_eq!(ours("https://x/projects/p/global/networks/default"), None);
        let subnet =
            json!({ "ipCidrRange": "10.0.0.0/16", "secondaryIpRanges": [{ "ipCidrRange": "10.2.0.0/20" }] });
        assert_eq!(ranges(&subnet).len(), 2);
    }
}
