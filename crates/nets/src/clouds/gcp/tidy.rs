//! What nobody needs any more is removed, in an order that a stop anywhere can be followed by the same again.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use super::cloud::is_node;
use super::firewall::{network_tag, prefix, short_id};
use super::network::network_path;
use super::{Gcp, Outcome, cluster, last, n, texts};
use crate::clouds::pages::Pages;
use crate::error::Error;

impl Gcp {
    /// All machines in a namespace's network.
    pub(super) async fn machines(&self, project: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let network = format!("{}-vpc", n(namespace));
        let mut found = Vec::new();
        let path = format!("projects/{project}/aggregated/instances");
        let mut pages = Pages::of(&self.name, &path);
        let mut page = String::new();
        loop {
            let mut url = self.at(&path)?;
            if !page.is_empty() {
                url.query_pairs_mut().append_pair("pageToken", &page);
            }
            let list = self.rest.get(url).await?.unwrap_or_default();
            let zones = list["items"].as_object().into_iter().flatten();
            let instances =
                zones.flat_map(|(_, zone)| zone["instances"].as_array().cloned().unwrap_or_default());
            found.extend(instances.filter(|instance| {
                last(instance["networkInterfaces"][0]["network"].as_str().unwrap_or_default()) == network
            }));
            match list["nextPageToken"].as_str().filter(|mark| !mark.is_empty()) {
                Some(next) => {
                    pages.turn(next)?;
                    next.clone_into(&mut page);
                }
                None => return Ok(found),
            }
        }
    }

    /// Removes subnets without machines, and the network with the last of them.
    pub(super) async fn tidy(&self, project: &str, namespace: &str) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let path = network_path(project, namespace);
        let Some(network) = self.get(&path).await? else { return Ok(()) };
        let machines = self.machines(project, namespace).await?;
        let used: BTreeSet<&str> = machines
            .iter()
            .filter_map(|machine| machine["networkInterfaces"][0]["subnetwork"].as_str().map(last))
            .collect();
        let mut left = 0;
        for subnet in texts(&network["subnetworks"]) {
            let region =
                subnet.split("regions/").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
            let ours = last(subnet) == format!("{}-{region}-subnet", n(namespace));
            if !ours || used.contains(last(subnet)) {
                left += 1;
                continue;
            }
            // A cluster has ranges of its own there even while it has no nodes.
            let now = self.get(subnet).await?.unwrap_or_default();
            if now["secondaryIpRanges"].as_array().is_some_and(|ranges| !ranges.is_empty()) {
                left += 1;
                continue;
            }
            // Before the subnet, which is how it is found.
            self.remove_nat(project, namespace, region).await?;
            left += usize::from(self.remove(subnet).await? == Outcome::InUse);
        }
        let gateway = format!("{}/vpnGateways/{}-vpn-gw", self.region(project), n(namespace));
        if left > 0 || self.get(&gateway).await?.is_some() {
            return Ok(());
        }
        self.unpeer(project, namespace, true).await?;
        let firewalls = format!("projects/{project}/global/firewalls");
        let mut ours = self.firewalls(project, namespace, &format!("{}-", n(namespace))).await?;
        ours.extend(self.control_planes(project, namespace).await?);
        for firewall in ours {
            if let Some(name) = firewall["name"].as_str() {
                self.remove(&format!("{firewalls}/{name}")).await?;
            }
        }
        self.remove(&path).await.map(drop)
    }

    async fn remove_nat(&self, project: &str, namespace: &str, region: &str) -> Result<(), Error> {
        let _turn = self.router.lock().await;
        let path = format!("projects/{project}/regions/{region}/routers/{}-router", n(namespace));
        let Some(router) = self.get(&path).await? else { return Ok(()) };
        let has = |list: &str| router[list].as_array().is_some_and(|list| !list.is_empty());
        if !has("interfaces") {
            return self.remove(&path).await.map(drop);
        }
        if has("nats") {
            self.change(Method::PATCH, &path, Some(json!({ "nats": [] }))).await?;
        }
        Ok(())
    }

    /// What is not as it should be in a namespace; mended if told to.
    pub(super) async fn differences(
        &self,
        project: &str,
        namespace: &str,
        repair: bool,
    ) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        if self.get(&network_path(project, namespace)).await?.is_none() {
            return Ok(found);
        }
        let firewalls = format!("projects/{project}/global/firewalls");
        let deny = format!("{}-deny-all-egress", n(namespace));
        if self.get(&format!("{firewalls}/{deny}")).await?.is_none() {
            found.push(format!("{deny} is missing: egress without a rule is allowed"));
            if repair {
                self.deny(project, namespace).await?;
            }
        }
        let mut known = BTreeSet::new();
        for machine in self.machines(project, namespace).await?.into_iter().filter(|one| !is_node(one)) {
            let Some(short) = short_id(&machine) else { continue };
            let tag = network_tag(namespace, &short);
            let name = machine["name"].as_str().unwrap_or_default().to_owned();
            if !texts(&machine["tags"]["items"]).contains(&tag.as_str()) {
                found.push(format!("{name} has lost the network tag {tag}: none of its rules works"));
                if repair {
                    let zone = last(machine["zone"].as_str().unwrap_or_default()).to_owned();
                    self.tag(&format!("projects/{project}/zones/{zone}/instances/{name}"), namespace).await?;
                }
            }
            known.insert(short);
        }
        let walls = self.firewalls(project, namespace, &format!("{}-fw-", n(namespace))).await?;
        if walls.iter().any(|wall| !belongs(wall, namespace, &known)) {
            known.extend(self.all_clusters(project, namespace).await?.iter().filter_map(cluster::short_id));
        }
        for wall in walls.iter().filter(|wall| !belongs(wall, namespace, &known)) {
            let name = wall["name"].as_str().unwrap_or_default();
            found.push(format!("{name} is a rule of a machine that is gone"));
            if repair {
                self.remove(&format!("{firewalls}/{name}")).await?;
            }
        }
        Ok(found)
    }
}

/// Whether a firewall is a rule of one of these.
fn belongs(wall: &Value, namespace: &str, known: &BTreeSet<String>) -> bool {
    let name = wall["name"].as_str().unwrap_or_default();
    known.iter().any(|short| name.starts_with(&prefix(namespace, short)))
}
