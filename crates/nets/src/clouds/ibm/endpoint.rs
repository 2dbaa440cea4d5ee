//! Endpoint gateways: an address in a subnet that leads to one of IBM's own services, with a security group.
//!
//! The address is reserved before the gateway is made, and given back after it is gone.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::describe::{Kind, plain_name};
use super::network::{Place, space};
use super::{Ibm, PREFIX, group, text};
use crate::cloud::Held;
use crate::error::Error;
use crate::model::{Created, Deployment};

/// What the names of reserved addresses begin with.
const ADDRESS: &str = "paraglider-ip-";

/// The address of a gateway.
pub(super) fn address(gateway: &Value) -> Option<IpAddr> {
    gateway["ips"][0]["address"].as_str()?.parse().ok()
}

/// The group that is ours, should others have added some: what those hold is not ours to change.
pub(super) fn security_group(gateway: &Value) -> Option<&str> {
    let mut groups = gateway["security_groups"].as_array().into_iter().flatten();
    groups.find(|one| text(one, "name").starts_with("paraglider-sg-")).map(|one| text(one, "id"))
}

/// Whether a gateway that is there leads to what is wanted.
fn leads_to(gateway: &Value, wanted: &Value) -> bool {
    let wanted = wanted["target"].as_object();
    wanted.is_some_and(|wanted| wanted.iter().all(|(field, value)| gateway["target"][field] == *value))
}

/// The subnet that holds a gateway's address.
pub(super) fn holding<'a>(subnets: &'a [Value], gateway: &Value) -> Option<&'a Value> {
    let address = address(gateway)?;
    subnets.iter().find(|subnet| space(subnet).is_some_and(|space| space.contains(&address)))
}

impl Ibm {
    /// Makes an endpoint, or what is missing of one.
    pub(super) async fn make_endpoint(
        &self,
        place: Place<'_>,
        zone: &str,
        name: &str,
        mut gateway: Value,
    ) -> Result<Created, Error> {
        let (vpc, subnet) = self.subnet(place, zone).await?;
        let owner = json!({ "id": place.group });
        let body = json!({
            "name": place.name("sg", &[zone, "endpoint", name]), "vpc": { "id": vpc["id"] },
            "resource_group": owner,
        });
        // Until the gateway has both: a group or an address that nothing uses goes with whatever is deleted next.
        let turn = self.shape.lock().await;
        // Empty: everything is denied both ways.
        let filter =
            self.make(&self.vpc_url(place.region, "security_groups")?, "security_groups", body).await?;
        let gateways = self.vpc_url(place.region, "endpoint_gateways")?;
        let full = place.name(name, &[zone]);
        let made = if let Some(found) = self.named(&gateways, "endpoint_gateways", &full).await? {
            if !leads_to(&found, &gateway) {
                let message = format!("there is an endpoint {name}, and it leads elsewhere");
                return Err(Error::invalid("description.target", message));
            }
            found
        } else {
            let path = format!("subnets/{}/reserved_ips", text(&subnet, "id"));
            let body = json!({ "name": place.name("ip", &[zone, name]) });
            let reserved = self.make(&self.vpc_url(place.region, &path)?, "reserved_ips", body).await?;
            gateway["name"] = json!(full);
            gateway["vpc"] = json!({ "id": vpc["id"] });
            gateway["resource_group"] = owner;
            gateway["security_groups"] = json!([{ "id": filter["id"] }]);
            gateway["ips"] = json!([{ "id": reserved["id"] }]);
            self.make(&gateways, "endpoint_gateways", gateway).await?
        };
        drop(turn);
        let id = text(&made, "id").to_owned();
        let at = self.vpc_url(place.region, &format!("endpoint_gateways/{id}"))?;
        let made = self.until(&at, "lifecycle_state", &["stable"]).await?;
        self.attach_tags(text(&filter, "crn"), &["pg", place.namespace, text(&vpc, "id"), &id]).await?;
        self.attach_tags(text(&made, "crn"), &["pg", place.namespace, text(&vpc, "id")]).await?;
        let ip = address(&made).ok_or_else(|| self.strange("an endpoint without an address"))?.to_string();
        Ok(Created { name: name.into(), uri: Kind::Endpoint.uri(place.group, zone, &id), ip })
    }

    /// All endpoints of a network.
    pub(super) async fn endpoints(&self, region: &str, vpc: &str) -> Result<Vec<Value>, Error> {
        let mut url = self.vpc_url(region, "endpoint_gateways")?;
        url.query_pairs_mut().append_pair("vpc.id", vpc);
        self.all(&url, "endpoint_gateways").await
    }

    pub(super) async fn subnet_of(
        &self,
        region: &str,
        vpc: &str,
        gateway: &Value,
    ) -> Result<Option<Value>, Error> {
        Ok(holding(&self.subnets(region, vpc).await?, gateway).cloned())
    }

    pub(super) async fn endpoints_held(
        &self,
        deployment: &Deployment,
        region: &str,
        vpc: &Value,
    ) -> Result<Vec<Held>, Error> {
        let mut gateways = self.endpoints(region, text(vpc, "id")).await?;
        // Those that others made in the network are theirs.
        gateways.retain(|gateway| text(gateway, "name").starts_with(PREFIX));
        if gateways.is_empty() {
            return Ok(Vec::new());
        }
        let subnets = self.subnets(region, text(vpc, "id")).await?;
        let resource_group = group(&deployment.id)?;
        let held = |gateway: &Value| {
            let zone = text(&holding(&subnets, gateway)?["zone"], "name");
            Some(Held {
                namespace: deployment.namespace.clone(),
                name: plain_name(gateway).to_owned(),
                uri: Kind::Endpoint.uri(resource_group, zone, text(gateway, "id")),
                ip: address(gateway)?.to_string(),
                network: text(vpc, "name").to_owned(),
            })
        };
        Ok(gateways.iter().filter_map(held).collect())
    }

    /// Gives back the addresses of a subnet that were reserved for endpoints and lead nowhere.
    pub(super) async fn release(&self, region: &str, subnet: &str) -> Result<(), Error> {
        let path = format!("subnets/{subnet}/reserved_ips");
        for reserved in self.all(&self.vpc_url(region, &path)?, "reserved_ips").await? {
            if text(&reserved, "name").starts_with(ADDRESS) && reserved["target"].is_null() {
                self.remove(self.vpc_url(region, &format!("{path}/{}", text(&reserved, "id")))?).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_group_of_ours_is_an_endpoints_filter() {
        let with = |names: &[&str]| {
            let groups: Vec<Value> = names.iter().map(|name| json!({ "id": name, "name": name })).collect();
            json!({ "security_groups": groups })
        };
        assert_eq!(security_group(&with(&["theirs", "paraglider-sg-1"])), Some("paraglider-sg-1"));
        assert_eq!(security_group(&with(&["the-default-of-the-network"])), None);
    }

    #[test]
    fn an_endpoint_that_is_there_must_lead_to_what_is_wanted() {
        let crn = |crn: &str| json!({ "target": { "resource_type": "provider_cloud_service", "crn": crn } });
        let mut found = crn("crn:a");
        found["target"]["href"] = json!("https://x");
        assert!(leads_to(&found, &crn("crn:a")) && !leads_to(&found, &crn("crn:b")));
        assert!(!leads_to(&json!({}), &crn("crn:a")) && !leads_to(&found, &json!({})));
    }
}
