//! VPNs with static routes: a route-mode gateway, a connection for each address of the other end.

use http::Method;
use serde_json::{Value, json};

use super::network::Place;
use super::{Ibm, group, is_there, name, text};
use crate::cloud::{NewConnections, NewGateway, OldConnections};
use crate::clouds::rest::Call;
use crate::error::Error;
use crate::model::Deployment;
use crate::plan::connect::Gateway;
use ipnet::IpNet;

/// Priorities of routes.
const PRIORITIES: std::ops::RangeInclusive<u64> = 0..=4;

impl Ibm {
    /// The gateways of a network.
    pub(super) async fn gateways(&self, place: Place<'_>, vpc: &str) -> Result<Vec<Value>, Error> {
        let mut url = self.vpc_url(place.region, "vpn_gateways")?;
        url.query_pairs_mut().append_pair("resource_group.id", place.group);
        let all = self.all(&url, "vpn_gateways").await?;
        Ok(all.into_iter().filter(|gateway| gateway["vpc"]["id"] == vpc).collect())
    }

    /// The region and network that hold a space; the first network if none is named.
    async fn holding(&self, deployment: &Deployment, space: Option<IpNet>) -> Result<(String, Value), Error> {
        let all = self.spaces(deployment).await?;
        let found = all.into_iter().find(|(_, _, spaces)| {
            !spaces.is_empty() && space.is_none_or(|wanted| spaces.iter().any(|one| one.contains(&wanted)))
        });
        let missing = || Error::Place(format!("the namespace {} has no network there", deployment.namespace));
        found.map(|(region, vpc, _)| (region, vpc)).ok_or_else(missing)
    }

    pub(super) async fn make_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let (region, vpc) = self.holding(&new.deployment, new.space).await?;
        let place = Place {
            group: group(&new.deployment.id)?,
            namespace: &new.deployment.namespace,
            region: &region,
        };
        let id = text(&vpc, "id");
        let made = {
            let _turn = self.shape.lock().await;
            let mut subnets = self.subnets(&region, id).await?;
            subnets.sort_by_key(|subnet| text(subnet, "name").to_owned());
            let subnet = subnets.first().ok_or_else(|| self.strange("a network without a subnet"))?;
            let body = json!({
                "name": place.name("vpn", &[]), "mode": "route", "subnet": { "id": subnet["id"] },
                "resource_group": { "id": place.group },
            });
            self.make(&self.vpc_url(&region, "vpn_gateways")?, "vpn_gateways", body).await?
        };
        let url = self.vpc_url(&region, &format!("vpn_gateways/{}", text(&made, "id")))?;
        let made = self.until(&url, "lifecycle_state", &["stable"]).await?;
        self.attach_tags(text(&made, "crn"), &["pg", place.namespace, id]).await?;
        let members = made["members"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut addresses: Vec<String> =
            members.iter().map(|member| text(&member["public_ip"], "address").to_owned()).collect();
        addresses.sort();
        // IBM has no number; the other end is told of none.
        Ok(Gateway { asn: 0, addresses })
    }

    async fn policy(
        &self,
        place: Place<'_>,
        kind: &str,
        cloud: &str,
        mut body: Value,
    ) -> Result<Value, Error> {
        let url = self.vpc_url(place.region, &format!("{kind}_policies"))?;
        body["name"] = json!(format!("{}-{cloud}", place.name(kind, &[])));
        body["resource_group"] = json!({ "id": place.group });
        self.make(&url, &format!("{kind}_policies"), body).await
    }

    pub(super) async fn make_connections(&self, new: NewConnections) -> Result<(), Error> {
        if new.bgp {
            return Err(Error::Unsupported("IBM Cloud is connected with static routes only".into()));
        }
        let (region, vpc) = self.holding(&new.deployment, new.space).await?;
        let place = Place {
            group: group(&new.deployment.id)?,
            namespace: &new.deployment.namespace,
            region: &region,
        };
        let id = text(&vpc, "id");
        let gateways = self.gateways(place, id).await?;
        let gateway = gateways.iter().find(|one| one["name"] == *place.name("vpn", &[]));
        let gateway = gateway
            .ok_or_else(|| Error::Place(format!("the namespace {} has no VPN gateway", place.namespace)))?;
        let _turn = self.shape.lock().await;
        let ike = json!({
            "ike_version": 2, "authentication_algorithm": "sha384", "encryption_algorithm": "aes256", "dh_group": 24,
            "key_lifetime": 27000,
        });
        let ike = self.policy(place, "ike", &new.cloud, ike).await?;
        let ipsec = json!({ "authentication_algorithm": "sha256", "encryption_algorithm": "aes256", "pfs": "disabled" });
        let ipsec = self.policy(place, "ipsec", &new.cloud, ipsec).await?;
        let url = self.vpc_url(&region, &format!("vpn_gateways/{}/connections", text(gateway, "id")))?;
        let mut made = Vec::new();
        for (index, address) in new.gateways.iter().enumerate() {
            let body = json!({
                "name": format!("{}-{}-{index}", place.name("conn", &[]), new.cloud),
                "peer": { "address": address }, "psk": new.key.expose(),
                "ike_policy": { "id": ike["id"] }, "ipsec_policy": { "id": ipsec["id"] },
            });
            made.push(self.make(&url, "connections", body).await?);
        }
        let table = self.get(&region, &format!("vpcs/{id}/default_routing_table")).await?.unwrap_or_default();
        let routes =
            self.vpc_url(&region, &format!("vpcs/{id}/routing_tables/{}/routes", text(&table, "id")))?;
        let zones = self.get(&region, &format!("regions/{region}/zones")).await?.unwrap_or_default();
        for remote in &new.remote_spaces {
            for zone in zones["zones"].as_array().into_iter().flatten() {
                for connection in &made {
                    self.route(&routes, remote, text(zone, "name"), text(connection, "id")).await?;
                }
            }
        }
        Ok(())
    }

    async fn route(
        &self,
        routes: &url::Url,
        remote: &str,
        zone: &str,
        connection: &str,
    ) -> Result<(), Error> {
        let wanted = name("route", &[remote, zone, connection]);
        let all = self.all(routes, "routes").await?;
        if all.iter().any(|route| route["name"] == *wanted) {
            return Ok(());
        }
        let rivals: Vec<u64> = all
            .iter()
            .filter(|route| route["destination"] == remote && route["zone"]["name"] == zone)
            .filter_map(|route| route["priority"].as_u64())
            .collect();
        let full = || self.rest.failed("a route", "all priorities for this prefix are taken");
        let priority = PRIORITIES.clone().find(|priority| !rivals.contains(priority)).ok_or_else(full)?;
        let body = json!({
            "name": wanted, "destination": remote, "zone": { "name": zone }, "action": "deliver",
            "next_hop": { "id": connection }, "priority": priority,
        });
        let call = Call::new(Method::POST, routes.clone()).json(body);
        let answer = self.rest.call(&call).await?;
        if answer.status.is_success() || is_there(&answer) {
            Ok(())
        } else {
            Err(self.rest.refusal(&call, &answer))
        }
    }

    pub(super) async fn remove_connections(&self, old: &OldConnections) -> Result<(), Error> {
        let found = self.spaces(&old.deployment).await?;
        for (region, vpc, _) in found {
            let place = Place {
                group: group(&old.deployment.id)?,
                namespace: &old.deployment.namespace,
                region: &region,
            };
            let id = text(&vpc, "id").to_owned();
            {
                let _turn = self.shape.lock().await;
                self.disconnect(place, &id, &old.cloud).await?;
            }
            self.tidy(place).await?;
        }
        Ok(())
    }

    async fn disconnect(&self, place: Place<'_>, vpc: &str, cloud: &str) -> Result<(), Error> {
        let table =
            self.get(place.region, &format!("vpcs/{vpc}/default_routing_table")).await?.unwrap_or_default();
        let routes = format!("vpcs/{vpc}/routing_tables/{}/routes", text(&table, "id"));
        for gateway in self.gateways(place, vpc).await? {
            if gateway["name"] != *place.name("vpn", &[]) {
                continue;
            }
            let path = format!("vpn_gateways/{}", text(&gateway, "id"));
            let all =
                self.all(&self.vpc_url(place.region, &format!("{path}/connections"))?, "connections").await?;
            let prefix = format!("{}-{cloud}-", place.name("conn", &[]));
            let (gone, left): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|one| text(one, "name").starts_with(&prefix));
            for connection in gone {
                let hop = text(&connection, "id");
                for route in self.all(&self.vpc_url(place.region, &routes)?, "routes").await? {
                    if route["next_hop"]["id"] == hop {
                        self.remove(self.vpc_url(place.region, &format!("{routes}/{}", text(&route, "id")))?)
                            .await?;
                    }
                }
                self.remove(self.vpc_url(place.region, &format!("{path}/connections/{hop}"))?).await?;
            }
            for kind in ["ike", "ipsec"] {
                let policies = self.vpc_url(place.region, &format!("{kind}_policies"))?;
                let wanted = format!("{}-{cloud}", place.name(kind, &[]));
                if let Some(policy) = self.named(&policies, &format!("{kind}_policies"), &wanted).await? {
                    self.remove(
                        self.vpc_url(place.region, &format!("{kind}_policies/{}", text(&policy, "id")))?,
                    )
                    .await?;
                }
            }
            if left.is_empty() {
                self.remove(self.vpc_url(place.region, &path)?).await?;
            }
        }
        Ok(())
    }
}
