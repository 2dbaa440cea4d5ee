//! Networks that others made, the one that AWS makes in every region among them. They are only looked at.

use ipnet::IpNet;
use serde_json::Value;

use super::Aws;
use super::api::tag;
use super::network::{space, text};
use crate::cloud::count_of;
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};
use crate::plan::target;

/// Whether a network is of none of these deployments' namespaces.
fn is_foreign(vpc: &Value, deployments: &[Deployment]) -> bool {
    let ours = |namespace: &str| deployments.iter().any(|deployment| deployment.namespace == namespace);
    !tag(vpc, "Namespace").is_some_and(ours)
}

/// All spaces of a network: its first, those that were added, and those of IPv6.
fn spaces(vpc: &Value) -> Vec<IpNet> {
    let added = [
        ("cidrBlockAssociationSet", "cidrBlock", "cidrBlockState"),
        ("ipv6CidrBlockAssociationSet", "ipv6CidrBlock", "ipv6CidrBlockState"),
    ];
    let mut found: Vec<IpNet> = space(vpc).into_iter().collect();
    for (set, field, state) in added {
        for one in vpc[set].as_array().into_iter().flatten() {
            let gone = ["disassociated", "failed"].contains(&text(&one[state], "state"));
            found.extend(target::parse(text(one, field)).filter(|_| !gone));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A network as it is told, with what of a region's subnets and machines is in it.
pub(super) fn told(
    vpc: &Value,
    region: &str,
    deployment: &str,
    subnets: &[Value],
    machines: &[Value],
) -> ForeignNetwork {
    let id = text(vpc, "vpcId");
    let within = |object: &&Value| text(object, "vpcId") == id;
    let name = tag(vpc, "Name").filter(|name| !name.is_empty());
    ForeignNetwork {
        id: format!("arn:aws:ec2:{region}:{}:vpc/{id}", text(vpc, "ownerId")),
        // Nobody names the one that AWS makes.
        name: name.unwrap_or(id).into(),
        region: region.into(),
        deployment: deployment.into(),
        spaces: spaces(vpc),
        subnets: count_of(subnets.iter().filter(within)),
        machines: count_of(machines.iter().filter(within)),
    }
}

impl Aws {
    /// The networks of others in the account, in the regions that are looked into.
    pub(super) async fn others(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        // The account is that of the keys, whatever a deployment is called.
        let Some(account) = deployments.first() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for region in &self.config.regions {
            let mut vpcs = self.find(region, "DescribeVpcs", "vpcSet", &[]).await?;
            vpcs.retain(|vpc| is_foreign(vpc, deployments));
            if vpcs.is_empty() {
                continue;
            }
            let subnets = self.find(region, "DescribeSubnets", "subnetSet", &[]).await?;
            let machines = self.instances(region, &[]).await?;
            found.extend(vpcs.iter().map(|vpc| told(vpc, region, &account.id, &subnets, &machines)));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_network_without_our_tag_is_foreign_with_all_its_spaces() {
        let deployment = Deployment { id: "1".into(), namespace: "default".into() };
        let tagged = |value: &str| json!({ "tagSet": [{ "key": "Namespace", "value": value }] });
        assert!(!is_foreign(&tagged("default"), std::slice::from_ref(&deployment)));
        assert!(is_foreign(&tagged("elsewhere"), std::slice::from_ref(&deployment)));
        let vpc = json!({
            "vpcId": "vpc-1", "ownerId": "123", "cidrBlock": "172.31.0.0/16", "tagSet": null,
            "cidrBlockAssociationSet": [
                { "cidrBlock": "172.31.0.0/16", "cidrBlockState": { "state": "associated" } },
                { "cidrBlock": "10.8.0.0/16", "cidrBlockState": { "state": "associated" } },
                { "cidrBlock": "10.9.0.0/16", "cidrBlockState": { "state": "disassociated" } },
            ],
            "ipv6CidrBlockAssociationSet": [
                { "ipv6CidrBlock": "2600:1f18::/56", "ipv6CidrBlockState": { "state": "associated" } },
            ],
        });
        assert!(is_foreign(&vpc, &[deployment]));
        let inside = json!({ "vpcId": "vpc-1" });
        let told = told(&vpc, "us-east-1", "1", &[inside.clone(), json!({})], &[inside]);
        let spaces: Vec<String> = told.spaces.iter().map(ToString::to_string).collect();
        assert_eq!(spaces, ["10.8.0.0/16", "172.31.0.0/16", "2600:1f18::/56"]);
        assert_eq!((told.name.as_str(), told.subnets, told.machines), ("vpc-1", Some(1), Some(1)));
        assert_eq!(told.id, "arn:aws:ec2:us-east-1:123:vpc/vpc-1");
    }
}
