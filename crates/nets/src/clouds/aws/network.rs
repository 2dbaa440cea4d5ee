//! Networks: one VPC with one subnet for each namespace and region, peered where rules need it.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::Aws;
use super::api::{filter, tag, tags};
use super::rules;
use crate::error::Error;
use crate::plan::target::Owner;

/// Names of a namespace's objects in a region.
pub(super) fn vpc_name(namespace: &str, region: &str) -> String {
    format!("para-{namespace}-{region}-vpc")
}

fn subnet_name(namespace: &str, region: &str) -> String {
    format!("para-{namespace}-{region}-subnet")
}

/// The security group of a machine.
pub(super) fn group_name(namespace: &str, machine: &str) -> String {
    format!("para-{namespace}-{machine}-sg")
}

/// What a peering of ours is called.
fn peering_name(from: Option<&str>, to: Option<&str>) -> String {
    format!("{}-to-{}", from.unwrap_or_default(), to.unwrap_or_default())
}

/// Whether we made a peering: its tags are given in the call that makes it.
fn is_ours(peering: &Value) -> bool {
    let named =
        |name: &str| name.starts_with("para-") && name.contains("-vpc-to-para-") && name.ends_with("-vpc");
    tag(peering, "Namespace").is_some() && tag(peering, "Name").is_some_and(named)
}

/// What a route leads over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way<'a> {
    Peering(&'a str),
    Gateway(&'a str),
}

impl Way<'_> {
    fn is_of(self, route: &Value) -> bool {
        match self {
            Self::Peering(id) => text(route, "vpcPeeringConnectionId") == id,
            Self::Gateway(id) => text(route, "gatewayId") == id,
        }
    }
}

/// A field of text.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// The space of a network.
pub(super) fn space(vpc: &Value) -> Option<IpNet> {
    text(vpc, "cidrBlock").parse().ok()
}

/// What AWS says of peerings that are made or on the way.
const STANDING: &[&str] = &["initiating-request", "pending-acceptance", "provisioning", "active"];

/// Those of a network that are made or on the way, each once. They were asked for with filters, but what is taken
/// away because of this should not rest on somebody else's reading of them.
fn standing(mut peerings: Vec<Value>, vpc: &str) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    peerings.retain(|peering| {
        let of = |end: &str| text(&peering[end], "vpcId") == vpc;
        (of("requesterVpcInfo") || of("accepterVpcInfo"))
            && STANDING.contains(&text(&peering["status"], "code"))
            && seen.insert(text(peering, "vpcPeeringConnectionId").to_owned())
    });
    peerings
}

impl Aws {
    /// One at a time changes the networks of a namespace.
    pub(super) async fn shape(&self, namespace: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.turns.turn(&format!("networks {namespace}")).await
    }

    /// The networks of a namespace in a region: one, but for one that was made twice because nobody was told that it
    /// was made. The same of them comes first each time.
    async fn vpcs(&self, region: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let filters =
            [filter("tag:Namespace", &[namespace]), filter("tag:Name", &[&vpc_name(namespace, region)])];
        let mut found = self.find(region, "DescribeVpcs", "vpcSet", &filters).await?;
        found.sort_by(|one, other| text(one, "vpcId").cmp(text(other, "vpcId")));
        Ok(found)
    }

    /// The network of a namespace in a region.
    pub(super) async fn vpc(&self, region: &str, namespace: &str) -> Result<Option<Value>, Error> {
        Ok(self.vpcs(region, namespace).await?.into_iter().next())
    }

    /// The network and subnet of a region, made if there are none.
    pub(super) async fn network_for(&self, region: &str, namespace: &str) -> Result<(Value, String), Error> {
        let vpc = if let Some(vpc) = self.vpc(region, namespace).await? {
            vpc
        } else {
            let found = self.controller.find_spaces(&[0]).await?;
            let space = found.into_iter().find(|space| space.addr().is_ipv4());
            let space = space
                .ok_or_else(|| Error::Unsupported("AWS's networks need an IPv4 address space".into()))?;
            let parameters = json!({
                "CidrBlock": space, "TagSpecification": tags("vpc", namespace, &vpc_name(namespace, region)),
            });
            self.make(region, ("CreateVpc", "vpc"), &parameters, &[], || self.vpc(region, namespace)).await?
        };
        let id = text(&vpc, "vpcId").to_owned();
        let mut wait = self.wait();
        while text(&vpc, "state") == "pending" {
            self.pause(&mut wait, "CreateVpc").await?;
            match self.vpc(region, namespace).await? {
                Some(now) if text(&now, "state") == "pending" => {}
                _ => break,
            }
        }
        let name = subnet_name(namespace, region);
        let parameters = json!({
            "VpcId": id,
            "CidrBlock": text(&vpc, "cidrBlock"),
            "TagSpecification": tags("subnet", namespace, &name),
        });
        let look = || async {
            let filters = [filter("vpc-id", &[&id]), filter("tag:Name", &[&name])];
            Ok(self.find(region, "DescribeSubnets", "subnetSet", &filters).await?.into_iter().next())
        };
        let there = ["InvalidSubnet.Conflict"];
        let subnet = self.make(region, ("CreateSubnet", "subnet"), &parameters, &there, look).await?;
        let subnet = text(&subnet, "subnetId").to_owned();
        Ok((vpc, subnet))
    }

    /// Peerings of a network that are made or on the way.
    pub(super) async fn peerings(&self, region: &str, vpc: &str) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        for side in ["requester-vpc-info.vpc-id", "accepter-vpc-info.vpc-id"] {
            let filters = [filter(side, &[vpc]), filter("status-code", STANDING)];
            found.extend(
                self.find(region, "DescribeVpcPeeringConnections", "vpcPeeringConnectionSet", &filters)
                    .await?,
            );
        }
        Ok(standing(found, vpc))
    }

    /// Peers a network with one that somebody's targets are in, and routes both ways.
    pub(super) async fn peer(&self, region: &str, vpc: &Value, other: &Owner) -> Result<(), Error> {
        let _turn = self.turns.turn("peerings").await;
        let mut peer = None;
        for there in &self.config.regions {
            if let Some(found) = self.vpc(there, &other.namespace).await?
                && space(&found) == Some(other.space)
            {
                peer = Some((there.clone(), found));
                break;
            }
        }
        let Some((there, peer)) = peer else {
            return Err(Error::Internal(format!("{} is reported as ours and is not", other.space)));
        };
        let (own_id, peer_id) = (text(vpc, "vpcId"), text(&peer, "vpcId"));
        let look = || async {
            Ok(self.peerings(region, own_id).await?.into_iter().find(|found| {
                [&found["requesterVpcInfo"], &found["accepterVpcInfo"]]
                    .iter()
                    .any(|end| text(end, "vpcId") == peer_id)
            }))
        };
        let name = peering_name(tag(vpc, "Name"), tag(&peer, "Name"));
        let parameters = json!({
            "VpcId": own_id,
            "PeerVpcId": peer_id,
            "PeerRegion": there,
            "TagSpecification": tags("vpc-peering-connection", tag(vpc, "Namespace").unwrap_or_default(), &name),
        });
        let made = ("CreateVpcPeeringConnection", "vpcPeeringConnection");
        let made = self.make(region, made, &parameters, &["VpcPeeringConnectionAlreadyExists"], look).await?;
        let id = text(&made, "vpcPeeringConnectionId").to_owned();
        if text(&made["status"], "code") != "active" {
            let accepter = text(&made["accepterVpcInfo"], "region");
            let accepter = if accepter.is_empty() { there.as_str() } else { accepter };
            let parameters = json!({ "VpcPeeringConnectionId": id });
            // If nobody was told that it was accepted, it is so by now.
            let accepted = ["InvalidStateTransition"];
            let done = self.try_call(accepter, "AcceptVpcPeeringConnection", &parameters, &accepted).await?;
            if done.is_none()
                && look().await?.is_none_or(|now| text(&now["status"], "code") == "pending-acceptance")
            {
                return Err(self.failed("AcceptVpcPeeringConnection", &format!("{id} cannot be accepted")));
            }
        }
        self.route(region, own_id, text(&peer, "cidrBlock"), Way::Peering(&id)).await?;
        self.route(&there, peer_id, text(vpc, "cidrBlock"), Way::Peering(&id)).await
    }

    pub(super) async fn main_table(&self, region: &str, vpc: &str) -> Result<Value, Error> {
        let filters = [filter("vpc-id", &[vpc]), filter("association.main", &["true"])];
        let tables = self.find(region, "DescribeRouteTables", "routeTableSet", &filters).await?;
        Ok(tables.into_iter().next().unwrap_or_default())
    }

    /// Routes of a network lead to this place over that way.
    pub(super) async fn route(&self, region: &str, vpc: &str, to: &str, way: Way<'_>) -> Result<(), Error> {
        // If nobody was told that it was made, it is there when it is asked for again.
        if self.try_route(region, vpc, to, way).await? || self.try_route(region, vpc, to, way).await? {
            return Ok(());
        }
        Err(self.failed("CreateRoute", &format!("a route to {to} is there, and is not told")))
    }

    /// The same, unless a route came meanwhile.
    async fn try_route(&self, region: &str, vpc: &str, to: &str, way: Way<'_>) -> Result<bool, Error> {
        let table = self.main_table(region, vpc).await?;
        let routes = table["routeSet"].as_array().cloned().unwrap_or_default();
        let known = routes.iter().find(|route| text(route, "destinationCidrBlock") == to);
        let action = match known {
            Some(route) if way.is_of(route) => return Ok(true),
            Some(_) => "ReplaceRoute",
            None => "CreateRoute",
        };
        let mut parameters =
            json!({ "RouteTableId": text(&table, "routeTableId"), "DestinationCidrBlock": to });
        match way {
            Way::Peering(id) => parameters["VpcPeeringConnectionId"] = id.into(),
            Way::Gateway(id) => parameters["GatewayId"] = id.into(),
        }
        let made = self.try_call(region, action, &parameters, &["RouteAlreadyExists"]).await?;
        Ok(made.is_some())
    }

    pub(super) async fn unroute(&self, region: &str, vpc: &str, to: &str) -> Result<(), Error> {
        let table = self.main_table(region, vpc).await?;
        let parameters = json!({ "RouteTableId": text(&table, "routeTableId"), "DestinationCidrBlock": to });
        let gone = ["InvalidRoute.NotFound", "InvalidRouteTableID.NotFound", "InvalidParameterValue"];
        self.try_call(region, "DeleteRoute", &parameters, &gone).await.map(drop)
    }

    /// Takes a peering away, with its routes.
    async fn unpeer(&self, region: &str, peering: &Value) -> Result<(), Error> {
        let (asks, takes) = (&peering["requesterVpcInfo"], &peering["accepterVpcInfo"]);
        for (own, other) in [(asks, takes), (takes, asks)] {
            let at = text(own, "region");
            let at = if at.is_empty() { region } else { at };
            self.unroute(at, text(own, "vpcId"), text(other, "cidrBlock")).await?;
        }
        // The peering goes last: while it is there, it leads to its routes.
        let parameters = json!({ "VpcPeeringConnectionId": text(peering, "vpcPeeringConnectionId") });
        let gone = ["InvalidVpcPeeringConnectionID.NotFound", "InvalidStateTransition"];
        self.try_call(region, "DeleteVpcPeeringConnection", &parameters, &gone).await.map(drop)
    }

    /// Whether we made a peering. Others' are used as they are, and never taken away.
    async fn made_peering(&self, region: &str, peering: &Value) -> Result<bool, Error> {
        // Only the side that asked has the tags.
        let asked = text(&peering["requesterVpcInfo"], "region");
        if asked.is_empty() || asked == region {
            return Ok(is_ours(peering));
        }
        let filters = [filter("vpc-peering-connection-id", &[text(peering, "vpcPeeringConnectionId")])];
        let found = self.find(asked, "DescribeVpcPeeringConnections", "vpcPeeringConnectionSet", &filters);
        Ok(found.await?.iter().any(is_ours))
    }

    /// Takes away peerings that no permission needs any more.
    pub(super) async fn prune(&self, region: &str, vpc: &str) -> Result<(), Error> {
        let _turn = self.turns.turn("peerings").await;
        for peering in self.peerings(region, vpc).await? {
            if !self.made_peering(region, &peering).await? {
                continue;
            }
            let mut needed = false;
            let (asks, takes) = (&peering["requesterVpcInfo"], &peering["accepterVpcInfo"]);
            for (own, other) in [(asks, takes), (takes, asks)] {
                let at = text(own, "region");
                let at = if at.is_empty() { region } else { at };
                let Ok(far) = text(other, "cidrBlock").parse::<IpNet>() else { continue };
                let filters = [filter("vpc-id", &[text(own, "vpcId")])];
                let groups = self.find(at, "DescribeSecurityGroups", "securityGroupInfo", &filters).await?;
                needed |= groups
                    .iter()
                    .filter(|group| tag(group, "Namespace").is_some())
                    .flat_map(rules::read)
                    .any(|permission| permission.target.touches(&far));
            }
            if !needed {
                self.unpeer(region, &peering).await?;
            }
        }
        Ok(())
    }

    /// Removes groups of machines that are gone, and networks when nothing is in them any more.
    pub(super) async fn tidy(&self, region: &str, namespace: &str) -> Result<(), Error> {
        let _turn = self.shape(namespace).await;
        for vpc in self.vpcs(region, namespace).await? {
            self.tidy_network(region, namespace, text(&vpc, "vpcId")).await?;
        }
        Ok(())
    }

    async fn tidy_network(&self, region: &str, namespace: &str, id: &str) -> Result<(), Error> {
        let live = self.instances(region, &[filter("vpc-id", &[id])]).await?;
        let filters = [filter("vpc-id", &[id]), filter("tag:Namespace", &[namespace])];
        for group in self.find(region, "DescribeSecurityGroups", "securityGroupInfo", &filters).await? {
            let used = live.iter().any(|machine| {
                tag(machine, "Name")
                    .is_some_and(|name| group_name(namespace, name) == text(&group, "groupName"))
            });
            if !used {
                // The group goes last: while it is there, it leads to the rest.
                self.release(region, namespace, text(&group, "groupName")).await?;
                let group = text(&group, "groupId");
                self.forget(namespace, group).await?;
                let gone = ["InvalidGroup.NotFound", "InvalidGroupId.NotFound"];
                self.try_call(region, "DeleteSecurityGroup", &json!({ "GroupId": group }), &gone).await?;
            }
        }
        if !live.is_empty() {
            return Ok(());
        }
        let mut theirs = Vec::new();
        for peering in self.peerings(region, id).await? {
            if self.made_peering(region, &peering).await? {
                self.unpeer(region, &peering).await?;
            } else {
                theirs.push(text(&peering, "vpcPeeringConnectionId").to_owned());
            }
        }
        // A network takes its peerings with it, so one that others peered stays for as long as they want.
        if !theirs.is_empty() {
            let peerings = theirs.join(" ");
            tracing::info!(cloud = %self.name, network = id, %peerings, "An empty network stays, as others peered it.");
            return Ok(());
        }
        self.remove_gateways(region, namespace, id).await?;
        for subnet in self.find(region, "DescribeSubnets", "subnetSet", &[filter("vpc-id", &[id])]).await? {
            let parameters = json!({ "SubnetId": text(&subnet, "subnetId") });
            self.try_call(region, "DeleteSubnet", &parameters, &["InvalidSubnetID.NotFound"]).await?;
        }
        self.try_call(region, "DeleteVpc", &json!({ "VpcId": id }), &["InvalidVpcID.NotFound"])
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_standing_peerings_of_the_network_count_and_each_once() {
        let peering = |id: &str, ends: [&str; 2], code: &str| {
            json!({
                "vpcPeeringConnectionId": id, "status": { "code": code },
                "requesterVpcInfo": { "vpcId": ends[0] }, "accepterVpcInfo": { "vpcId": ends[1] },
            })
        };
        let own = [peering("a", ["v", "w"], "active"), peering("b", ["w", "v"], "pending-acceptance")];
        let others = [peering("c", ["v", "w"], "deleted"), peering("d", ["x", "w"], "active")];
        let all = [own.clone(), others, own.clone()].concat();
        assert_eq!(standing(all, "v"), own);
    }

    #[test]
    fn a_peering_is_ours_by_the_tags_it_was_made_with() {
        let tagged = |tags: &[(&str, &str)]| {
            let tags: Vec<Value> =
                tags.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
            json!({ "tagSet": tags })
        };
        let (near, far) = (vpc_name("default", "us-east-1"), vpc_name("other", "us-west-2"));
        let name = peering_name(Some(&near), Some(&far));
        assert!(is_ours(&tagged(&[("Name", &name), ("Namespace", "default")])));
        assert!(!is_ours(&tagged(&[("Name", &name)])) && !is_ours(&json!({})));
        assert!(!is_ours(&tagged(&[("Name", "backup-link"), ("Namespace", "default")])));
    }
}
