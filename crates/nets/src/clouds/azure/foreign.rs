//! Virtual networks that others made. They are only looked at.

use serde_json::Value;

use super::Azure;
use super::machine;
use super::names::{self, Group};
use super::network::{id, is_gateway_network, namespace_of, spaces, subnets};
use crate::cloud::{by_place, count_of};
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};

/// Whether a network is of none of these deployments' namespaces. The networks of VPN gateways, whoever has them, are
/// no place for machines, and all have the same space.
fn is_foreign(vnet: &Value, deployments: &[&Deployment]) -> bool {
    let ours = |namespace: &str| deployments.iter().any(|deployment| deployment.namespace == namespace);
    !namespace_of(vnet).is_some_and(ours) && !is_gateway_network(vnet)
}

/// A network as it is told, with the machines that these network interfaces show in it.
pub(super) fn told(vnet: &Value, deployment: &str, nics: &[Value]) -> ForeignNetwork {
    let inside = |nic: &&Value| {
        let of_machine = nic["properties"]["virtualMachine"]["id"].is_string();
        of_machine && machine::network(nic).is_some_and(|network| network.eq_ignore_ascii_case(id(vnet)))
    };
    ForeignNetwork {
        id: id(vnet).into(),
        name: names::last(id(vnet)).into(),
        region: names::location(vnet["location"].as_str().unwrap_or_default()),
        deployment: deployment.into(),
        spaces: spaces(vnet),
        subnets: count_of(subnets(vnet)),
        machines: count_of(nics.iter().filter(inside)),
    }
}

impl Azure {
    /// The networks of others in the resource groups of these deployments.
    pub(super) async fn others(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let spelling = |deployment: &Deployment| {
            Group::parse("deployment", &deployment.id).map(|group| group.id().to_ascii_lowercase())
        };
        let mut found = Vec::new();
        for here in by_place(deployments, spelling)?.into_values() {
            let group = self.group(here[0])?;
            let mut vnets = self.arm.list(&group.network("virtualNetworks")).await?;
            vnets.retain(|vnet| is_foreign(vnet, &here));
            if vnets.is_empty() {
                continue;
            }
            let nics = self.arm.list(&group.network("networkInterfaces")).await?;
            found.extend(vnets.iter().map(|vnet| told(vnet, &here[0].id, &nics)));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_of_no_namespace_of_ours_is_foreign() {
        let deployment = Deployment { id: "g".into(), namespace: "default".into() };
        let vnet = |name: &str, namespace: Option<&str>| {
            let id = format!(
                "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/{name}"
            );
            json!({ "id": id, "name": name, "location": "West US 2", "tags": { "paraglider-namespace": namespace },
                "properties": { "addressSpace": { "addressPrefixes": ["10.7.0.0/16", "fd00::/48", "odd"] }, "subnets": [{}, {}] } })
        };
        for (name, namespace, foreign) in [
            ("theirs", None, true),
            ("paraglider-default-westus2-vnet", Some("default"), false),
            ("taken-in", Some("default"), false),
            ("paraglider-elsewhere-westus2-vnet", Some("elsewhere"), true),
            ("paraglider-elsewhere-vpn-gw-vnet", Some("elsewhere"), false),
        ] {
            assert_eq!(is_foreign(&vnet(name, namespace), &[&deployment]), foreign, "{name}");
        }
        let theirs = vnet("theirs", None);
        let nic = |machine: Value, network: &str| {
            json!({ "properties": { "virtualMachine": machine, "ipConfigurations": [{ "properties": {
                "subnet": { "id": format!("{network}/subnets/a") } } }] } })
        };
        let network = theirs["id"].as_str().unwrap();
        let nics = [
            nic(json!({ "id": "vm" }), &network.to_uppercase().replace("/SUBNETS/", "/subnets/")),
            nic(Value::Null, network),
            nic(json!({ "id": "vm" }), "/other"),
        ];
        let told = told(&theirs, "g", &nics);
        assert_eq!((told.name.as_str(), told.region.as_str()), ("theirs", "westus2"));
        assert_eq!((told.spaces.len(), told.subnets, told.machines), (2, Some(2), Some(1)));
    }
}
