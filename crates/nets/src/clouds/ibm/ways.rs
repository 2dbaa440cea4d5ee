//! Ways that are there for rules alone: the transit gateway between networks and public gateways. They go with
//! the last rule that needs them.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::network::{Place, space};
use super::{Ibm, group, text};
use crate::clouds::rest::Call;
use crate::clouds::ways::{HasWays, Ways};
use crate::error::Error;
use crate::plan::target;
use http::Method;

/// A network whose ways may be idle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::clouds) struct Network {
    group: String,
    namespace: String,
    region: String,
}

impl Network {
    pub(super) fn of(place: Place<'_>) -> Self {
        Self { group: place.group.into(), namespace: place.namespace.into(), region: place.region.into() }
    }
}

/// What the rules of a network's security groups name.
struct Named {
    target: IpNet,
    /// Whether it is for somebody who may begin to speak; an endpoint only answers.
    asks: bool,
}

/// What rules of groups name that something is behind.
fn named(groups: &[Value]) -> Vec<Named> {
    let mut found = Vec::new();
    for filter in groups {
        let behind = filter["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let asks = behind.iter().any(|one| text(one, "resource_type") != "endpoint_gateway");
        for made in filter["rules"].as_array().into_iter().flatten().filter(|_| !behind.is_empty()) {
            let remote = &made["remote"];
            let remote = remote["cidr_block"].as_str().or_else(|| remote["address"].as_str());
            found.extend(remote.and_then(target::parse).map(|target| Named { target, asks }));
        }
    }
    found
}

/// A network on the transit gateway.
struct Member {
    connection: String,
    spaces: Vec<IpNet>,
    named: Vec<Named>,
}

impl Member {
    fn names(&self, other: &Self) -> bool {
        let touches = |one: &Named| {
            other.spaces.iter().any(|space| space.contains(&one.target) || one.target.contains(space))
        };
        self.named.iter().any(touches)
    }
}

/// Whether a connection of a network is one of ours, which are called as the network is.
fn put_by_us(vpc: &Value, connection: &Value) -> bool {
    text(vpc, "name").starts_with("paraglider-") && vpc["name"] == connection["name"]
}

impl HasWays for Ibm {
    type Network = Network;

    fn ways(&self) -> &Ways<Network> {
        &self.ways
    }

    fn called(&self) -> &str {
        &self.name
    }

    async fn take_ways_of(&self, network: &Network) -> Result<(), Error> {
        let Network { group, namespace, region } = network;
        self.close_public(Place { group, namespace, region }).await?;
        self.leave_idle_transits(group).await
    }
}

impl Ibm {
    async fn groups(&self, region: &str, vpc: &str) -> Result<Vec<Value>, Error> {
        let mut url = self.vpc_url(region, "security_groups")?;
        url.query_pairs_mut().append_pair("vpc.id", vpc);
        self.all(&url, "security_groups").await
    }

    /// Removes the public gateways of a network, if none of its rules has a public target.
    async fn close_public(&self, place: Place<'_>) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        let Some(vpc) = self.vpc(place).await? else { return Ok(()) };
        let vpc = text(&vpc, "id");
        let mut url = self.vpc_url(place.region, "public_gateways")?;
        url.query_pairs_mut().append_pair("resource_group.id", place.group);
        let mut gateways = self.all(&url, "public_gateways").await?;
        gateways.retain(|gateway| {
            let zone = text(&gateway["zone"], "name");
            gateway["vpc"]["id"] == *vpc && gateway["name"] == *place.name("gateway", &[zone])
        });
        if gateways.is_empty() {
            return Ok(());
        }
        let public = |one: &Named| one.asks && !target::is_private(&one.target);
        if named(&self.groups(place.region, vpc).await?).iter().any(public) {
            return Ok(());
        }
        for subnet in self.subnets(place.region, vpc).await? {
            if gateways.iter().any(|gateway| gateway["id"] == subnet["public_gateway"]["id"]) {
                let path = format!("subnets/{}/public_gateway", text(&subnet, "id"));
                self.remove(self.vpc_url(place.region, &path)?).await?;
            }
        }
        for gateway in gateways {
            let path = format!("public_gateways/{}", text(&gateway, "id"));
            self.remove(self.vpc_url(place.region, &path)?).await?;
        }
        Ok(())
    }

    /// A public gateway for each zone, on every subnet.
    pub(super) async fn open_public(&self, place: Place<'_>, vpc: &str) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        for subnet in self.subnets(place.region, vpc).await? {
            if subnet["public_gateway"]["id"].is_string() {
                continue;
            }
            let zone = text(&subnet["zone"], "name");
            let body = json!({
                "name": place.name("gateway", &[zone]), "vpc": { "id": vpc }, "zone": { "name": zone },
                "resource_group": { "id": place.group },
            });
            let made =
                self.make(&self.vpc_url(place.region, "public_gateways")?, "public_gateways", body).await?;
            let url = self.vpc_url(place.region, &format!("public_gateways/{}", text(&made, "id")))?;
            let made = self.until(&url, "status", &["available"]).await?;
            let path = format!("subnets/{}/public_gateway", text(&subnet, "id"));
            let call =
                Call::new(Method::PUT, self.vpc_url(place.region, &path)?).json(json!({ "id": made["id"] }));
            self.rest.must(&call).await?;
        }
        Ok(())
    }

    /// This resource group and all others that are known.
    fn groups_known(&self, own: &str) -> Result<BTreeSet<String>, Error> {
        let mut groups = BTreeSet::from([own.to_owned()]);
        for deployment in self.remembered("") {
            groups.insert(group(&deployment.id)?.to_owned());
        }
        Ok(groups)
    }

    /// The transit gateways that networks of a resource group may be on: each is named after the group whose rule
    /// came first, which may be another.
    pub(super) async fn transits(&self, own: &str) -> Result<Vec<Value>, Error> {
        let names: BTreeSet<String> =
            self.groups_known(own)?.iter().map(|group| Self::transit_name(group)).collect();
        let mut all = self.all(&self.transit_url("transit_gateways")?, "transit_gateways").await?;
        all.retain(|gateway| names.contains(text(gateway, "name")));
        Ok(all)
    }

    async fn leave_idle_transits(&self, own: &str) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        for gateway in self.transits(own).await? {
            self.leave_idle_transit(own, &gateway).await?;
        }
        Ok(())
    }

    /// Takes networks off a transit gateway that no rule connects with another on it; it goes with the last of
    /// them. Nothing happens while it has a connection that cannot be judged.
    async fn leave_idle_transit(&self, own: &str, gateway: &Value) -> Result<(), Error> {
        let path = format!("transit_gateways/{}", text(gateway, "id"));
        let connections = self.all(&self.transit_url(&format!("{path}/connections"))?, "connections").await?;
        let mut members = Vec::new();
        for connection in &connections {
            let Some((region, vpc)) = self.connected(own, connection).await? else {
                return Ok(());
            };
            members.push(Member {
                connection: text(connection, "id").into(),
                spaces: self.subnets(&region, &vpc).await?.iter().filter_map(space).collect(),
                named: named(&self.groups(&region, &vpc).await?),
            });
        }
        let needed = |one: &Member| {
            let others = members.iter().filter(|other| other.connection != one.connection);
            others.into_iter().any(|other| one.names(other) || other.names(one))
        };
        let (stay, go): (Vec<&Member>, Vec<&Member>) = members.iter().partition(|one| needed(one));
        for member in go {
            self.remove(self.transit_url(&format!("{path}/connections/{}", member.connection))?).await?;
        }
        if stay.is_empty() { self.remove(self.transit_url(&path)?).await } else { Ok(()) }
    }

    /// Region and id of a network on the transit gateway, if it is in a deployment that is known and was put there
    /// by us: people may put networks of their own there, too.
    pub(super) async fn connected(
        &self,
        own: &str,
        connection: &Value,
    ) -> Result<Option<(String, String)>, Error> {
        let groups = self.groups_known(own)?;
        for region in &self.config.regions {
            for owner in &groups {
                let mut url = self.vpc_url(region, "vpcs")?;
                url.query_pairs_mut().append_pair("resource_group.id", owner);
                let all = self.all(&url, "vpcs").await?;
                if let Some(vpc) = all.iter().find(|vpc| vpc["crn"] == connection["network_id"]) {
                    return Ok(put_by_us(vpc, connection).then(|| (region.clone(), text(vpc, "id").into())));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_people_is_known_from_ours() {
        let named = |name: &str| json!({ "name": name });
        assert!(put_by_us(&named("paraglider-vpc-1"), &named("paraglider-vpc-1")));
        assert!(!put_by_us(&named("backup"), &named("backup")));
        assert!(!put_by_us(&named("paraglider-vpc-1"), &named("mine")));
    }

    #[test]
    fn only_groups_that_something_is_behind_count() {
        let rules = json!([{ "remote": { "cidr_block": "0.0.0.0/0" } }, { "remote": { "address": "10.0.0.9" } }, { "remote": { "id": "g" } }]);
        let group = |targets: Value| json!({ "targets": targets, "rules": rules });
        assert!(named(&[group(json!([]))]).is_empty(), "such as a network's own default");
        let found = named(&[
            group(json!([{ "resource_type": "network_interface" }])),
            group(json!([{ "resource_type": "endpoint_gateway" }])),
        ]);
        let told: Vec<(String, bool)> = found.iter().map(|one| (one.target.to_string(), one.asks)).collect();
        let of = |asks: bool| [("0.0.0.0/0".to_owned(), asks), ("10.0.0.9/32".to_owned(), asks)];
        assert_eq!(told, [of(true), of(false)].concat());
    }
}
