//! What nobody needs any more is removed, in an order that a stop anywhere can be followed by the same again.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use super::cloud::is_node;
use super::describe::region_of;
use super::firewall::{network_tag, prefix, short_id};
use super::network::{denies_egress, network_path};
use super::{Gcp, Outcome, cluster, last, n, texts};
use crate::clouds::pages::Pages;
use crate::clouds::ways::{HasWays, Ways};
use crate::error::Error;
use crate::plan::target;

/// What names of firewalls begin with that the cloud makes for the nodes of a cluster.
const NODES: &str = "gke-";
/// Those that a cluster makes for its Services and Ingresses, its gateways, and those of several clusters.
const SERVICES: &[&str] = &["k8s", "gkegw", "gkemcg"];

impl Gcp {
    /// All machines in a namespace's network.
    pub(super) async fn machines(&self, project: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let network = format!("{}-vpc", n(namespace));
        let mut found = self.everywhere(project, "instances").await?;
        found.retain(|instance| {
            last(instance["networkInterfaces"][0]["network"].as_str().unwrap_or_default()) == network
        });
        Ok(found)
    }

    /// All of a kind in a project, of every region and zone and of none.
    pub(super) async fn everywhere(&self, project: &str, kind: &str) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        let path = format!("projects/{project}/aggregated/{kind}");
        let mut pages = Pages::of(&self.name, &path);
        let mut page = String::new();
        loop {
            let mut url = self.at(&path)?;
            if !page.is_empty() {
                url.query_pairs_mut().append_pair("pageToken", &page);
            }
            let list = self.rest.get(url).await?.unwrap_or_default();
            self.whole(&path, &list["unreachables"])?;
            let places = list["items"].as_object().into_iter().flatten();
            found.extend(places.flat_map(|(_, place)| place[kind].as_array().cloned().unwrap_or_default()));
            match list["nextPageToken"].as_str().filter(|mark| !mark.is_empty()) {
                Some(next) => {
                    pages.turn(next)?;
                    next.clone_into(&mut page);
                }
                None => return Ok(found),
            }
        }
    }

    /// A list that leaves places out is none: what is not in it may be there all the same, and be in use.
    pub(super) fn whole(&self, path: &str, left_out: &Value) -> Result<(), Error> {
        match texts(left_out).as_slice() {
            [] => Ok(()),
            places => Err(self.rest.failed(path, &format!("{} did not answer", places.join(", ")))),
        }
    }

    /// Removes subnets without machines and endpoints, and the network with the last of them.
    pub(super) async fn tidy(&self, project: &str, namespace: &str) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let path = network_path(project, namespace);
        let Some(network) = self.get(&path).await? else { return Ok(()) };
        let machines = self.machines(project, namespace).await?;
        let addresses = self.addresses(project, namespace).await?;
        let used: BTreeSet<&str> = machines
            .iter()
            .map(|machine| &machine["networkInterfaces"][0]["subnetwork"])
            .chain(addresses.iter().map(|address| &address["subnetwork"]))
            .filter_map(|subnet| subnet.as_str().map(last))
            .collect();
        // Those that are in no subnet.
        let mut left = addresses.iter().filter(|address| address["subnetwork"].is_null()).count();
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
            let keep = self.has_gateway(project, namespace, region).await?;
            self.remove_nat(project, namespace, region, keep).await?;
            left += usize::from(self.remove(subnet).await? == Outcome::InUse);
        }
        let gateway = format!("{}/vpnGateways/{}-vpn-gw", self.region(project), n(namespace));
        if left > 0 || self.get(&gateway).await?.is_some() {
            return Ok(());
        }
        let theirs = self.unpeer(project, namespace, true).await?;
        // A network takes its peerings with it, so one that others peered stays for as long as they want.
        if !theirs.is_empty() {
            let (network, peerings) = (last(&path), theirs.join(" "));
            tracing::info!(cloud = %self.name, network, %peerings, "An empty network stays, as others peered it.");
            return Ok(());
        }
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

    /// Removes the NAT of a region, and its router unless a gateway uses that or it is to be kept.
    async fn remove_nat(
        &self,
        project: &str,
        namespace: &str,
        region: &str,
        keep: bool,
    ) -> Result<(), Error> {
        let _turn = self.router.lock().await;
        let path = format!("projects/{project}/regions/{region}/routers/{}-router", n(namespace));
        let Some(router) = self.get(&path).await? else { return Ok(()) };
        let has = |list: &str| router[list].as_array().is_some_and(|list| !list.is_empty());
        if !has("interfaces") && !keep {
            return self.remove(&path).await.map(drop);
        }
        if has("nats") {
            self.change(Method::PATCH, &path, Some(json!({ "nats": [] }))).await?;
        }
        Ok(())
    }

    /// Removes the NAT of a region, if no rule of what is there has a public target.
    async fn close_public(&self, project: &str, namespace: &str, region: &str) -> Result<(), Error> {
        let path = format!("projects/{project}/regions/{region}/routers/{}-router", n(namespace));
        let router = self.get(&path).await?.unwrap_or_default();
        if router["nats"].as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let mut walls = self.firewalls(project, namespace, &format!("{}-fw-", n(namespace))).await?;
        walls.retain(needs_nat);
        if !walls.is_empty() {
            let elsewhere: BTreeSet<String> = self
                .machines(project, namespace)
                .await?
                .iter()
                .filter(|machine| {
                    let zone = last(machine["zone"].as_str().unwrap_or_default());
                    region_of(zone, "zone").is_ok_and(|other| other != region)
                })
                .filter_map(short_id)
                .collect();
            if walls.iter().any(|wall| !belongs(wall, namespace, &elsewhere)) {
                return Ok(());
            }
        }
        let keep = self.has_gateway(project, namespace, region).await?;
        self.remove_nat(project, namespace, region, keep).await
    }

    /// Whether a router is to be kept: a gateway that is being made has one before it has tunnels.
    async fn has_gateway(&self, project: &str, namespace: &str, region: &str) -> Result<bool, Error> {
        let gateway = format!("projects/{project}/regions/{region}/vpnGateways/{}-vpn-gw", n(namespace));
        Ok(self.get(&gateway).await?.is_some())
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
        let denial = self.get(&format!("{firewalls}/{deny}")).await?;
        let wrong = match &denial {
            None => Some("is missing"),
            Some(denial) => (!denies_egress(denial)).then_some("was changed"),
        };
        if let Some(wrong) = wrong {
            found.push(format!("{deny} {wrong}: egress without a rule is allowed"));
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
        let (gone, endpoints) = self.endpoint_differences(project, namespace, repair).await?;
        found.extend(gone);
        known.extend(endpoints);
        let all = self.firewalls(project, namespace, "").await?;
        let own = format!("{}-fw-", n(namespace));
        let (walls, others): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|wall| name_of(wall).starts_with(&own));
        let mut nodes = Vec::new();
        let strangers = walls.iter().any(|wall| !belongs(wall, namespace, &known));
        // Also where none of its rules is ours any more: without what the cloud opens for its nodes no cluster works.
        let of_clusters = |wall: &Value| {
            name_of(wall).starts_with(cluster::CONTROL_PLANE) || name_of(wall).starts_with(NODES)
        };
        if strangers || others.iter().any(of_clusters) {
            for cluster in self.all_clusters(project, namespace).await? {
                known.extend(cluster::short_id(&cluster));
                nodes.push(format!("{NODES}{}-", cluster["name"].as_str().unwrap_or_default()));
                // Only told: new tags make the cloud replace every node of a pool.
                found.extend(cluster::untagged_pools(&cluster, namespace));
            }
        }
        for wall in walls.iter().filter(|wall| !belongs(wall, namespace, &known)) {
            let name = wall["name"].as_str().unwrap_or_default();
            found.push(format!("{name} is a rule of a machine that is gone"));
            if repair {
                self.remove(&format!("{firewalls}/{name}")).await?;
            }
        }
        for wall in others {
            let name = name_of(&wall);
            // The cloud makes some for the nodes of each cluster itself.
            let known = name == deny
                || name.starts_with(cluster::CONTROL_PLANE)
                || nodes.iter().any(|cluster| name.starts_with(cluster));
            if known || wall["disabled"] == true {
                continue;
            }
            found.push(format!("{name} is in no permit list: {}", said(&wall)));
            // A denial lets nothing pass: whoever wrote it may have had a reason. What a cluster opens for its
            // Services and gateways it would open again.
            if repair && wall["allowed"].is_array() && !SERVICES.iter().any(|own| name.starts_with(own)) {
                self.remove(&format!("{firewalls}/{name}")).await?;
            }
        }
        Ok(found)
    }
}

impl HasWays for Gcp {
    /// Project and namespace.
    type Network = (String, String);

    fn ways(&self) -> &Ways<Self::Network> {
        &self.ways
    }

    fn called(&self) -> &str {
        &self.name
    }

    async fn take_ways_of(&self, (project, namespace): &Self::Network) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        self.unpeer(project, namespace, false).await?;
        let Some(network) = self.get(&network_path(project, namespace)).await? else { return Ok(()) };
        for subnet in texts(&network["subnetworks"]) {
            if let Some(region) = subnet.split("regions/").nth(1).and_then(|rest| rest.split('/').next()) {
                self.close_public(project, namespace, region).await?;
            }
        }
        Ok(())
    }
}

/// Whether a rule is for public addresses, and of somebody who may begin to speak: endpoints have no tags.
fn needs_nat(wall: &Value) -> bool {
    let far = if wall["direction"] == "EGRESS" { "destinationRanges" } else { "sourceRanges" };
    let public = |text: &&str| target::parse(text).is_none_or(|net| !target::is_private(&net));
    !texts(&wall["targetTags"]).is_empty() && texts(&wall[far]).iter().any(public)
}

fn name_of(wall: &Value) -> &str {
    wall["name"].as_str().unwrap_or_default()
}

/// A firewall in words.
fn said(wall: &Value) -> String {
    let allows = wall["allowed"].is_array();
    let list = if allows { &wall["allowed"] } else { &wall["denied"] };
    let protocols: Vec<String> = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| {
            let protocol = one["IPProtocol"].as_str().unwrap_or_default();
            format!("{protocol} {}", texts(&one["ports"]).join(",")).trim_end().to_owned()
        })
        .collect();
    let (way, ranges) = match wall["direction"].as_str() {
        Some("EGRESS") => ("to", "destinationRanges"),
        _ => ("from", "sourceRanges"),
    };
    let word = if allows { "allows" } else { "denies" };
    format!("{word} {} {way} {}", protocols.join(" and "), texts(&wall[ranges]).join(" "))
}

/// Whether a firewall is a rule of one of these.
fn belongs(wall: &Value, namespace: &str, known: &BTreeSet<String>) -> bool {
    let name = wall["name"].as_str().unwrap_or_default();
    known.iter().any(|short| name.starts_with(&prefix(namespace, short)))
}
