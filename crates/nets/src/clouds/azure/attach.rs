//! Taking in a machine that others made, with the network it is in.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::machine::{address, network};
use super::names::{self, NAMESPACE_TAG};
use super::network::{id, namespace_of, spaces};
use super::{Azure, rules};
use crate::error::Error;
use crate::model::Created;

/// What stands against a packet filter that others wrote: beside allowing rules it may have one
/// that denies everything, below all others.
fn judge(rules: &[Value]) -> Result<(), String> {
    let properties = |rule: &Value| rule["properties"].clone();
    for direction in ["Inbound", "Outbound"] {
        let mut own: Vec<Value> =
            rules.iter().map(properties).filter(|rule| rule["direction"] == direction).collect();
        own.sort_by_key(|rule| rule["priority"].as_u64());
        let everything = |rule: &Value| {
            rule["protocol"] == "*"
                && [
                    "sourceAddressPrefix",
                    "destinationAddressPrefix",
                    "sourcePortRange",
                    "destinationPortRange",
                ]
                .iter()
                .all(|field| rule[*field] == "*")
        };
        let mut denied = false;
        for rule in &own {
            match (rule["access"] == "Deny", denied) {
                (true, _) if everything(rule) => denied = true,
                (true, _) => return Err(format!("its packet filter denies some of what comes {direction}")),
                (false, true) => {
                    return Err(format!(
                        "its packet filter allows below the rule that denies all {direction}"
                    ));
                }
                (false, false) => {}
            }
        }
    }
    Ok(())
}

impl Azure {
    pub(super) async fn attach(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        let group = Self::group_of(namespace, uri)?;
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let (machine, nic) = self.foreign_machine(uri).await?.ok_or_else(unknown)?;
        let refused = |why: &str| Error::invalid("resource", format!("{uri} cannot be taken in: {why}"));
        let ip = address(&nic).ok_or_else(|| refused("it has no address"))?;
        let vnet = self.arm.get(network(&nic).unwrap_or_default()).await?;
        let vnet = vnet.ok_or_else(|| refused("it is in no network"))?;
        let nsg = nic["properties"]["networkSecurityGroup"]["id"].as_str();
        let nsg = nsg.ok_or_else(|| refused("its network interface has no network security group"))?;
        let filter = self.arm.get(nsg).await?.ok_or_else(|| refused("its network security group is gone"))?;
        let existing = filter["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
        judge(&existing).map_err(|why| refused(&why))?;
        match namespace_of(&vnet) {
            Some(of) if of == namespace => {}
            Some(_) => return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() }),
            None => {
                let used = self.controller.used_spaces().await?;
                let overlap = |own: &IpNet| {
                    let all = used.iter().flat_map(|mapping| &mapping.spaces);
                    all.into_iter().any(|other| own.contains(other) || other.contains(own))
                };
                if let Some(space) = spaces(&vnet).iter().find(|space| overlap(space)) {
                    return Err(refused(&format!("{space} of its network is in use elsewhere")));
                }
                let mut tags = vnet["tags"].as_object().cloned().unwrap_or_default();
                tags.insert(NAMESPACE_TAG.into(), json!(namespace));
                self.arm.patch(id(&vnet), &json!({ "tags": tags })).await?;
            }
        }
        for deny in rules::deny_all() {
            let direction = &deny["properties"]["direction"];
            let denied = existing.iter().any(|rule| {
                rule["properties"]["access"] == "Deny" && rule["properties"]["direction"] == *direction
            });
            if !denied {
                let name = deny["name"].as_str().unwrap_or_default();
                self.arm
                    .put(&format!("{nsg}/securityRules/{name}"), &json!({ "properties": deny["properties"] }))
                    .await?;
            }
        }
        let _turn = self.shape(&group, namespace).await;
        self.join_gateway(&group, namespace, &vnet).await?;
        Ok(Created { name: names::last(id(&machine)).into(), uri: uri.into(), ip: ip.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_denial_below_all_permissions() {
        let allow = |priority: u64| {
            json!({ "properties": {
            "access": "Allow", "direction": "Inbound", "priority": priority, "protocol": "Tcp",
        } })
        };
        let denies = rules::deny_all();
        assert!(
            judge(&[]).is_ok() && judge(&denies).is_ok() && judge(&[allow(100), denies[0].clone()]).is_ok()
        );
        let mut early = denies[0].clone();
        early["properties"]["priority"] = json!(200);
        assert!(judge(&[allow(100), early.clone()]).is_ok());
        assert!(judge(&[allow(300), early]).is_err());
        let mut some = denies[0].clone();
        some["properties"]["destinationPortRange"] = json!("22");
        assert!(judge(&[some]).is_err());
    }
}
