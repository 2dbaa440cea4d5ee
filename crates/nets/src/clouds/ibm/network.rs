//! Networks, subnets, the transit gateway between networks, and the way out.

use ipnet::IpNet;
use serde_json::{Value, json};
use url::Url;

use super::{Ibm, endpoint, group, name, text};
use crate::cloud::{Need, needs};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{Deployment, Rule};
use crate::plan::rule;
use crate::plan::target::{self, Map, Owner};

/// Where a network is, and whose.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) group: &'a str,
    pub(super) namespace: &'a str,
    pub(super) region: &'a str,
}

/// The tags of everything, and of networks that all machines of a namespace share.
const UNIVERSAL: &str = "pg";
const SHARED: &str = "shared";

impl Place<'_> {
    /// Whether a network is the one that this plugin made here.
    pub(super) fn made(&self, vpc: &Value) -> bool {
        vpc["name"] == *self.name("vpc", &[])
    }

    pub(super) fn name(&self, kind: &str, more: &[&str]) -> String {
        let mut parts = vec![self.group, self.namespace, self.region];
        parts.extend(more);
        name(kind, &parts)
    }
}

pub(super) fn space(subnet: &Value) -> Option<IpNet> {
    target::parse(text(subnet, "ipv4_cidr_block"))
}

impl Ibm {
    /// The network of a namespace in a region, if there is one.
    pub(super) async fn vpc(&self, place: Place<'_>) -> Result<Option<Value>, Error> {
        let mut url = self.vpc_url(place.region, "vpcs")?;
        url.query_pairs_mut().append_pair("resource_group.id", place.group);
        let all = self.all(&url, "vpcs").await?;
        if let Some(own) = all.iter().find(|vpc| place.made(vpc)) {
            return Ok(Some(own.clone()));
        }
        for vpc in all {
            if text(&vpc, "name").starts_with("paraglider-") && self.tagged(&vpc, place).await? {
                return Ok(Some(vpc));
            }
        }
        Ok(None)
    }

    /// Whether the tags of a network say that it is the namespace's.
    pub(super) async fn tagged(&self, vpc: &Value, place: Place<'_>) -> Result<bool, Error> {
        // These stand on the networks of every namespace.
        if [UNIVERSAL, SHARED].contains(&place.namespace) || vpc["resource_group"]["id"] != *place.group {
            return Ok(false);
        }
        let tags = self.tags_of(text(vpc, "crn")).await?;
        Ok([UNIVERSAL, place.namespace, SHARED].iter().all(|tag| tags.contains(*tag)))
    }

    pub(super) async fn subnets(&self, region: &str, vpc: &str) -> Result<Vec<Value>, Error> {
        let mut url = self.vpc_url(region, "subnets")?;
        url.query_pairs_mut().append_pair("vpc.id", vpc);
        self.all(&url, "subnets").await
    }

    /// All spaces of a namespace, by region and network.
    pub(super) async fn spaces(
        &self,
        deployment: &Deployment,
    ) -> Result<Vec<(String, Value, Vec<IpNet>)>, Error> {
        let mut found = Vec::new();
        for region in &self.config.regions {
            let place = Place { group: group(&deployment.id)?, namespace: &deployment.namespace, region };
            if let Some(vpc) = self.vpc(place).await? {
                let subnets = self.subnets(region, text(&vpc, "id")).await?;
                let spaces = subnets.iter().filter_map(space).collect();
                found.push((region.clone(), vpc, spaces));
            }
        }
        Ok(found)
    }

    /// The network and the subnet of a zone, made if missing.
    pub(super) async fn subnet(&self, place: Place<'_>, zone: &str) -> Result<(Value, Value), Error> {
        let _turn = self.shape.lock().await;
        let owner = json!({ "id": place.group });
        let url = self.vpc_url(place.region, "vpcs")?;
        let body = json!({
            "name": place.name("vpc", &[]), "address_prefix_management": "manual", "resource_group": owner,
        });
        let vpc = match self.vpc(place).await? {
            Some(vpc) => vpc,
            None => self.make(&url, "vpcs", body).await?,
        };
        let id = text(&vpc, "id").to_owned();
        let vpc =
            self.until(&self.vpc_url(place.region, &format!("vpcs/{id}"))?, "status", &["available"]).await?;
        self.attach_tags(text(&vpc, "crn"), &[UNIVERSAL, place.namespace, SHARED]).await?;
        let wanted = place.name("subnet", &[zone]);
        let subnets = self.subnets(place.region, &id).await?;
        // A network of others has one for each zone too, under whatever name.
        let fits = |subnet: &Value| {
            subnet["name"] == *wanted || (!place.made(&vpc) && text(&subnet["zone"], "name") == zone)
        };
        let made = match subnets.into_iter().find(fits) {
            Some(found) => found,
            None => self.make_subnet(place, &id, zone, wanted).await?,
        };
        let at = self.vpc_url(place.region, &format!("subnets/{}", text(&made, "id")))?;
        let made = self.until(&at, "status", &["available"]).await?;
        self.attach_tags(text(&made, "crn"), &["pg", place.namespace, &id]).await?;
        Ok((vpc, made))
    }

    async fn make_subnet(
        &self,
        place: Place<'_>,
        vpc: &str,
        zone: &str,
        wanted: String,
    ) -> Result<Value, Error> {
        let prefixes = self.vpc_url(place.region, &format!("vpcs/{vpc}/address_prefixes"))?;
        let at = json!({ "name": zone });
        let prefix_name = place.name("prefix", &[zone]);
        // A prefix that a call left before it made the subnet is used.
        let prefix = if let Some(prefix) = self.named(&prefixes, "address_prefixes", &prefix_name).await? {
            prefix
        } else {
            let space =
                self.controller.find_spaces(&[0]).await?.into_iter().find(|space| space.addr().is_ipv4());
            let space =
                space.ok_or_else(|| Error::Unsupported("IBM Cloud needs an IPv4 address space".into()))?;
            let body = json!({ "name": prefix_name, "cidr": space.to_string(), "zone": at });
            self.make(&prefixes, "address_prefixes", body).await?
        };
        let body = json!({
            "name": wanted, "vpc": { "id": vpc }, "ipv4_cidr_block": prefix["cidr"], "zone": at,
            "resource_group": { "id": place.group },
        });
        self.make(&self.vpc_url(place.region, "subnets")?, "subnets", body).await
    }

    /// Makes what rules need beside the permission.
    pub(super) async fn provide(
        &self,
        place: Place<'_>,
        vpc: &str,
        own: IpNet,
        rules: &[Rule],
        asks: bool,
    ) -> Result<(), Error> {
        let targets = rules.iter().map(rule::targets).collect::<Result<Vec<_>, _>>()?.concat();
        if targets.iter().all(|target| own.contains(target)) {
            return Ok(());
        }
        let owner = Owner {
            cloud: self.name.clone(),
            namespace: place.namespace.into(),
            deployment: None,
            space: own,
        };
        let map = Map::new(&self.controller.used_spaces().await?);
        let near: Vec<IpNet> = self.subnets(place.region, vpc).await?.iter().filter_map(space).collect();
        for need in needs(rules, &owner, &map)? {
            match need {
                Need::Public if asks => self.open_public(place, vpc).await?,
                Need::Public => {}
                // Zones of one region are one network.
                Need::Peering(other) if near.contains(&other.space) => {}
                Need::Peering(other) => self.transit(place, &other).await?,
                Need::Vpn(other) => {
                    self.controller.connect(ConnectRequest::between(&owner, &other)).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn transit_name(group: &str) -> String {
        name("transit", &[group]).replace("paraglider-transit-", "Paraglider-transit-gw-")
    }

    /// Connects the networks of two ends to the one transit gateway.
    async fn transit(&self, place: Place<'_>, other: &Owner) -> Result<(), Error> {
        let theirs = Deployment {
            id: other.deployment.clone().unwrap_or_else(|| format!("/resourcegroup/{}", place.group)),
            namespace: other.namespace.clone(),
        };
        let far =
            self.spaces(&theirs).await?.into_iter().find(|(_, _, spaces)| spaces.contains(&other.space));
        let (_, far, _) =
            far.ok_or_else(|| Error::Internal(format!("{} is reported as ours and is not", other.space)))?;
        let near = self.vpc(place).await?.unwrap_or_default();
        let _turn = self.shape.lock().await;
        let body = json!({
            "name": Self::transit_name(place.group), "location": place.region, "global": true,
            "resource_group": { "id": place.group },
        });
        let made = self.make(&self.transit_url("transit_gateways")?, "transit_gateways", body).await?;
        let id = text(&made, "id").to_owned();
        self.until(&self.transit_url(&format!("transit_gateways/{id}"))?, "status", &["available"]).await?;
        let url = self.transit_url(&format!("transit_gateways/{id}/connections"))?;
        for vpc in [near, far] {
            let known = self.all(&url, "connections").await?;
            let known = known.into_iter().find(|one| one["network_id"] == vpc["crn"]);
            let connection = if let Some(known) = known {
                known
            } else {
                let body = json!({ "name": vpc["name"], "network_type": "vpc", "network_id": vpc["crn"] });
                self.make(&url, "connections", body).await?
            };
            let at =
                self.transit_url(&format!("transit_gateways/{id}/connections/{}", text(&connection, "id")))?;
            self.until(&at, "status", &["attached"]).await?;
        }
        Ok(())
    }

    /// Takes a network off a transit gateway, which goes with the last of them. Connections that others made stay,
    /// and the gateway with them.
    async fn leave_transit(&self, own: &str, gateway: &Value, crn: &str) -> Result<(), Error> {
        let path = format!("transit_gateways/{}", text(gateway, "id"));
        let url: Url = self.transit_url(&format!("{path}/connections"))?;
        let connections = self.all(&url, "connections").await?;
        let (going, mut left): (Vec<Value>, Vec<Value>) =
            connections.into_iter().partition(|one| text(one, "network_id") == crn);
        if going.is_empty() {
            return Ok(());
        }
        for connection in going {
            self.remove(self.transit_url(&format!("{path}/connections/{}", text(&connection, "id")))?)
                .await?;
        }
        // One network alone has nobody to talk to.
        if let [last] = left.as_slice()
            && self.connected(own, last).await?.is_some()
        {
            self.remove(self.transit_url(&format!("{path}/connections/{}", text(last, "id")))?).await?;
            left.clear();
        }
        if left.is_empty() { self.remove(self.transit_url(&path)?).await } else { Ok(()) }
    }

    /// Removes subnets without machines and endpoints, and the network with the last of them.
    pub(super) async fn tidy(&self, place: Place<'_>) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        // What others made is theirs to remove.
        let Some(vpc) = self.vpc(place).await?.filter(|vpc| place.made(vpc)) else { return Ok(()) };
        let id = text(&vpc, "id").to_owned();
        let mut url = self.vpc_url(place.region, "instances")?;
        url.query_pairs_mut().append_pair("vpc.id", &id);
        let machines = self.all(&url, "instances").await?;
        let endpoints = self.endpoints(place.region, &id).await?;
        let used = |subnet: &Value| {
            machines.iter().any(|one| one["primary_network_interface"]["subnet"]["id"] == subnet["id"])
                || endpoints.iter().any(|one| endpoint::holding(std::slice::from_ref(subnet), one).is_some())
        };
        let gateways = self.gateways(place, &id).await?;
        let mut left = 0;
        for subnet in self.subnets(place.region, &id).await? {
            let zone = text(&subnet["zone"], "name");
            let needed = gateways.iter().any(|gateway| gateway["subnet"]["id"] == subnet["id"]);
            if used(&subnet) || needed || subnet["name"] != *place.name("subnet", &[zone]) {
                left += 1;
                continue;
            }
            self.release(place.region, text(&subnet, "id")).await?;
            self.remove(self.vpc_url(place.region, &format!("subnets/{}", text(&subnet, "id")))?).await?;
        }
        if left > 0 {
            return Ok(());
        }
        let mut url = self.vpc_url(place.region, "public_gateways")?;
        url.query_pairs_mut().append_pair("resource_group.id", place.group);
        for gateway in self.all(&url, "public_gateways").await? {
            if gateway["vpc"]["id"] == *id {
                self.remove(
                    self.vpc_url(place.region, &format!("public_gateways/{}", text(&gateway, "id")))?,
                )
                .await?;
            }
        }
        for gateway in self.transits(place.group).await? {
            self.leave_transit(place.group, &gateway, text(&vpc, "crn")).await?;
        }
        self.remove(self.vpc_url(place.region, &format!("vpcs/{id}"))?).await
    }
}
