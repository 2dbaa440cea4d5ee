//! Networks that others made. They are only looked at.

use ipnet::IpNet;
use serde_json::Value;

use super::network::ranges;
use super::{Gcp, last, n, project};
use crate::cloud::{by_place, count_of};
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};
use crate::plan::target;

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Whether a network is of none of these deployments' namespaces.
fn is_foreign(network: &Value, deployments: &[&Deployment]) -> bool {
    let name = text(network, "name");
    !deployments.iter().any(|deployment| name == format!("{}-vpc", n(&deployment.namespace)))
}

/// A range that is set aside in a network for services of Google or others, who make their machines there.
fn allocated(address: &Value) -> Option<IpNet> {
    let first = text(address, "address").parse().ok()?;
    let length = u8::try_from(address["prefixLength"].as_u64()?).ok()?;
    IpNet::new(first, length).ok().map(|space| space.trunc())
}

/// A network as it is told, with what of the project's subnets, reserved addresses and machines is in it.
pub(super) fn told(
    network: &Value,
    deployment: &str,
    all_subnets: &[Value],
    addresses: &[Value],
    machines: &[Value],
) -> ForeignNetwork {
    let name = text(network, "name");
    let within = |object: &Value| last(text(object, "network")) == name;
    let subnets: Vec<&Value> = all_subnets.iter().filter(|subnet| within(subnet)).collect();
    // A network of the oldest kind has one range and no subnets.
    let mut spaces: Vec<IpNet> = target::parse(text(network, "IPv4Range")).into_iter().collect();
    for subnet in &subnets {
        spaces.extend(ranges(subnet));
        spaces.extend(
            ["ipv6CidrRange", "internalIpv6Prefix"]
                .iter()
                .filter_map(|field| target::parse(text(subnet, field))),
        );
    }
    spaces.extend(addresses.iter().filter(|address| within(address)).filter_map(allocated));
    let has_machine =
        |machine: &&Value| machine["networkInterfaces"].as_array().into_iter().flatten().any(within);
    ForeignNetwork {
        id: format!("{deployment}/global/networks/{name}"),
        name: name.into(),
        region: "global".into(),
        deployment: deployment.into(),
        spaces,
        subnets: count_of(subnets),
        machines: count_of(machines.iter().filter(has_machine)),
    }
}

impl Gcp {
    /// The networks of others in the projects of these deployments.
    pub(super) async fn others(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let mut found = Vec::new();
        for (project, here) in by_place(deployments, |deployment| project(&deployment.id))? {
            let mut networks = self.list(&format!("projects/{project}/global/networks"), ".*").await?;
            networks.retain(|network| is_foreign(network, &here));
            if networks.is_empty() {
                continue;
            }
            let subnets = self.everywhere(project, "subnetworks").await?;
            let addresses = self.everywhere(project, "addresses").await?;
            let machines = self.everywhere(project, "instances").await?;
            let deployment = format!("projects/{project}");
            found.extend(
                networks.iter().map(|network| told(network, &deployment, &subnets, &addresses, &machines)),
            );
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_ranges_of_a_network_of_others_are_told() {
        let deployment = Deployment { id: "projects/p".into(), namespace: "default".into() };
        assert!(!is_foreign(&json!({ "name": "para-default-vpc" }), &[&deployment]));
        assert!(is_foreign(&json!({ "name": "para-other-vpc" }), &[&deployment]));
        let network = json!({ "name": "default" });
        assert!(is_foreign(&network, &[&deployment]));
        let at = |name: &str| json!(format!("https://x/projects/p/global/networks/{name}"));
        let subnets = [
            json!({ "network": at("default"), "ipCidrRange": "10.128.0.0/20", "internalIpv6Prefix": "fd20:1::/64",
                "secondaryIpRanges": [{ "ipCidrRange": "10.4.0.0/14" }] }),
            json!({ "network": at("xdefault"), "ipCidrRange": "10.1.0.0/16" }),
        ];
        let addresses = [
            json!({ "network": at("default"), "address": "10.20.0.0", "prefixLength": 16 }),
            json!({ "network": at("default"), "address": "10.128.0.9" }),
        ];
        let machine =
            |name: &str| json!({ "networkInterfaces": [{ "network": at("x") }, { "network": at(name) }] });
        let told = told(&network, "projects/p", &subnets, &addresses, &[machine("default"), machine("y")]);
        let spaces: Vec<String> = told.spaces.iter().map(ToString::to_string).collect();
        assert_eq!(spaces, ["10.128.0.0/20", "10.4.0.0/14", "fd20:1::/64", "10.20.0.0/16"]);
        assert_eq!((told.subnets, told.machines), (Some(1), Some(1)));
        assert_eq!(told.id, "projects/p/global/networks/default");
    }
}
