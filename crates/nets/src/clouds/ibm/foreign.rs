//! Networks that others made. They are only looked at.

use ipnet::IpNet;
use serde_json::Value;

use super::network::{Place, space};
use super::{Ibm, group, text};
use crate::cloud::{by_place, count_of};
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};
use crate::plan::target;

/// A network as it is told: its prefixes, from which subnets may be made at any time, and subnets beside them.
pub(super) fn told(
    vpc: &Value,
    region: &str,
    deployment: &str,
    prefixes: &[Value],
    subnets: &[Value],
    machines: &[Value],
) -> ForeignNetwork {
    let mut spaces: Vec<IpNet> =
        prefixes.iter().filter_map(|prefix| target::parse(text(prefix, "cidr"))).collect();
    let beside: Vec<IpNet> = subnets
        .iter()
        .filter_map(space)
        .filter(|subnet| !spaces.iter().any(|prefix| prefix.contains(subnet)))
        .collect();
    spaces.extend(beside);
    ForeignNetwork {
        // Ids are each region's own.
        id: format!("{deployment}/region/{region}/vpc/{}", text(vpc, "id")),
        name: text(vpc, "name").into(),
        region: region.into(),
        deployment: deployment.into(),
        spaces,
        subnets: count_of(subnets),
        machines: count_of(machines),
    }
}

impl Ibm {
    /// The networks of others in the resource groups of these deployments, in the regions that are looked into.
    pub(super) async fn others(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let mut found = Vec::new();
        for (group, here) in by_place(deployments, |deployment| group(&deployment.id))? {
            for region in &self.config.regions {
                found.extend(self.others_in(group, region, &here).await?);
            }
        }
        Ok(found)
    }

    async fn others_in(
        &self,
        group: &str,
        region: &str,
        deployments: &[&Deployment],
    ) -> Result<Vec<ForeignNetwork>, Error> {
        let mut url = self.vpc_url(region, "vpcs")?;
        url.query_pairs_mut().append_pair("resource_group.id", group);
        let mut vpcs = self.all(&url, "vpcs").await?;
        for Deployment { namespace, .. } in deployments {
            if vpcs.is_empty() {
                break;
            }
            // The same question that finds the spaces of a namespace: what is not found so is nobody's here.
            let own = self.vpc(Place { group, namespace, region }).await?.unwrap_or_default();
            vpcs.retain(|vpc| vpc["id"] != own["id"]);
        }
        let mut found = Vec::new();
        for vpc in vpcs {
            let id = text(&vpc, "id");
            let prefixes = self.vpc_url(region, &format!("vpcs/{id}/address_prefixes"))?;
            let prefixes = self.all(&prefixes, "address_prefixes").await?;
            let subnets = self.subnets(region, id).await?;
            let mut machines = self.vpc_url(region, "instances")?;
            machines.query_pairs_mut().append_pair("vpc.id", id);
            let machines = self.all(&machines, "instances").await?;
            let deployment = format!("/resourcegroup/{group}");
            found.push(told(&vpc, region, &deployment, &prefixes, &subnets, &machines));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prefixes_count_and_so_do_subnets_outside_of_them() {
        let vpc = json!({ "id": "r006-1", "name": "legacy" });
        let prefixes = [json!({ "cidr": "10.240.0.0/18" }), json!({})];
        let subnets =
            [json!({ "ipv4_cidr_block": "10.240.1.0/24" }), json!({ "ipv4_cidr_block": "10.9.0.0/24" })];
        let told = told(&vpc, "us-south", "/resourcegroup/rg", &prefixes, &subnets, &[json!({})]);
        let spaces: Vec<String> = told.spaces.iter().map(ToString::to_string).collect();
        assert_eq!(spaces, ["10.240.0.0/18", "10.9.0.0/24"]);
        assert_eq!((told.subnets, told.machines), (Some(2), Some(1)));
        assert_eq!(told.id, "/resourcegroup/rg/region/us-south/vpc/r006-1");
    }
}
