//! What Azure refuses although it is well formed.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::vendor::{AzureSim, spaces};

type No = (&'static str, String);

/// The other half of a peering; nothing if it is no peering.
pub(super) fn reverse(id: &str, body: &Value) -> Option<String> {
    let (vnet, _) = id.split_once("/virtualnetworkpeerings/")?;
    let other = body["properties"]["remoteVirtualNetwork"]["id"].as_str()?.to_lowercase();
    let last = |id: &str| id.rsplit('/').next().unwrap().to_owned();
    Some(format!("{other}/virtualnetworkpeerings/{}-to-{}", last(&other), last(vnet)))
}

/// Every id that an object names.
fn named(body: &Value, found: &mut Vec<String>) {
    match body {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "id" => found.push(text.to_lowercase()),
                    value => named(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        _ => {}
    }
}

fn uses(sim: &AzureSim, user: &str, used: &str) -> bool {
    let mut ids = Vec::new();
    let mut body = sim.objects[user].clone();
    body["id"].take();
    named(&body, &mut ids);
    ids.iter().any(|id| id == used || id.starts_with(&format!("{used}/")))
}

pub(super) fn put(sim: &AzureSim, id: &str, body: &Value, now: Duration) -> Result<(), No> {
    let no = |code: &'static str, message: String| Err((code, message));
    let parts: Vec<&str> = id.split('/').collect();
    if parts.len() > 9 && !sim.objects.contains_key(&parts[..9].join("/")) {
        return no("ParentResourceNotFound", format!("the parent of {id} is not there"));
    }
    let mut ids = Vec::new();
    named(body, &mut ids);
    for other in &ids {
        if !sim.objects.contains_key(other) {
            return no("InvalidResourceReference", format!("{other} is not there"));
        }
        if !sim.is_ready(other, now) {
            return no("ReferencedResourceNotProvisioned", format!("{other} is not ready"));
        }
    }
    match (parts[7], parts.get(9).copied()) {
        ("virtualnetworks", None) => {
            let own = spaces(body);
            for subnet in body["properties"]["subnets"].as_array().into_iter().flatten() {
                let prefix: IpNet = subnet["properties"]["addressPrefix"].as_str().unwrap().parse().unwrap();
                if !own.iter().any(|space| space.contains(&prefix)) {
                    return no("NetcfgInvalidSubnet", format!("{prefix} is outside of its network"));
                }
            }
            Ok(())
        }
        ("virtualnetworks", Some("virtualnetworkpeerings")) => peering(sim, id, body, now),
        ("networksecuritygroups", None) => {
            let rules = body["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
            rules.iter().try_for_each(|new| {
                let others = rules.iter().filter(|other| other["name"] != new["name"]);
                rule(new["name"].as_str().unwrap_or_default(), new, others)
            })
        }
        ("networksecuritygroups", Some(_)) => {
            let name = parts[10];
            let prefix = format!("{}/", parts[..10].join("/"));
            let others = sim
                .objects
                .iter()
                .filter(|(key, _)| key.starts_with(&prefix) && **key != *id)
                .map(|(_, value)| value);
            rule(name, body, others)
        }
        ("virtualmachines", _) => {
            let nic = ids.iter().find(|other| other.contains("/networkinterfaces/"));
            let Some(nic) = nic else { return no("NetworkProfileMissing", "no network interface".into()) };
            let taken = sim
                .objects
                .keys()
                .any(|key| key.contains("/virtualmachines/") && key != id && uses(sim, key, nic));
            if taken { no("NicInUse", format!("{nic} is taken")) } else { Ok(()) }
        }
        ("virtualnetworkgateways", _) => gateway(body, &ids),
        ("connections", _) => {
            let key = body["properties"]["sharedKey"].as_str().unwrap_or_default();
            if key.is_empty() { no("SharedKeyMissing", "a connection needs a key".into()) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn rule<'a>(name: &str, body: &Value, mut others: impl Iterator<Item = &'a Value>) -> Result<(), No> {
    let no = |code: &'static str, message: String| Err((code, message));
    let properties = &body["properties"];
    let legal = name.len() <= 80
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !legal {
        return no("InvalidResourceName", format!("`{name}`"));
    }
    for field in ["access", "direction", "protocol", "sourcePortRange", "destinationPortRange"] {
        if properties[field].as_str().is_none() {
            return no("SecurityRuleParameterMissing", field.into());
        }
    }
    for end in ["source", "destination"] {
        let one = properties[format!("{end}AddressPrefix")].is_string();
        let many =
            properties[format!("{end}AddressPrefixes")].as_array().is_some_and(|list| !list.is_empty());
        if one == many {
            return no("SecurityRuleInvalidAddressPrefix", format!("{end} needs a prefix or a list of them"));
        }
    }
    if properties["description"].as_str().is_some_and(|text| text.chars().count() > 140) {
        return no("SecurityRuleDescriptionTooLong", name.into());
    }
    let priority = properties["priority"].as_u64().unwrap_or_default();
    if !(100..=4096).contains(&priority) {
        return no("SecurityRuleInvalidPriority", format!("{priority}"));
    }
    let same = others.any(|other| {
        other["properties"]["priority"] == properties["priority"]
            && other["properties"]["direction"] == properties["direction"]
    });
    if same { no("SecurityRuleConflict", format!("priority {priority} is taken")) } else { Ok(()) }
}

fn peering(sim: &AzureSim, id: &str, body: &Value, now: Duration) -> Result<(), No> {
    let no = |code: &'static str, message: &str| Err((code, message.to_owned()));
    let own = id.split_once("/virtualnetworkpeerings/").unwrap().0;
    let other = body["properties"]["remoteVirtualNetwork"]["id"].as_str().unwrap_or_default().to_lowercase();
    let (near, far) = (spaces(&sim.objects[own]), spaces(&sim.objects[&other]));
    if near.iter().any(|a| far.iter().any(|b| a.contains(b) || b.contains(a))) {
        return no("VnetAddressSpacesOverlap", "the spaces overlap");
    }
    let half = reverse(id, body).unwrap();
    let there = sim.objects.get(&half);
    if there.is_some() && sim.met.contains(&half) && !sim.objects.contains_key(id) {
        return no("RemotePeeringIsDisconnected", "the other half is disconnected");
    }
    let gateway = |vnet: &str| {
        sim.objects.keys().any(|key| {
            key.contains("/virtualnetworkgateways/") && uses(sim, key, vnet) && sim.is_ready(key, now)
        })
    };
    if body["properties"]["useRemoteGateways"] == true {
        if !gateway(&other) {
            return no("RemoteVnetHasNoGateways", "there is no gateway to use");
        }
        if !there.is_some_and(|half| half["properties"]["allowGatewayTransit"] == true) {
            return no("RemotePeeringDoesNotAllowTransit", "the other half does not lend its gateway");
        }
    }
    if body["properties"]["allowGatewayTransit"] == false
        && there.is_some_and(|half| half["properties"]["useRemoteGateways"] == true)
    {
        return no("PeeringGatewayInUse", "the other half uses the gateway");
    }
    Ok(())
}

fn gateway(body: &Value, ids: &[String]) -> Result<(), No> {
    let no = |code: &'static str, message: &str| Err((code, message.to_owned()));
    let halves = body["properties"]["ipConfigurations"].as_array().map_or(0, Vec::len);
    if (body["properties"]["activeActive"] == true) != (halves == 2) {
        return no("ActiveActiveMismatch", "an active-active gateway has two configurations");
    }
    if !ids.iter().any(|id| id.ends_with("/subnets/gatewaysubnet")) {
        return no("GatewaySubnetMissing", "gateways live in GatewaySubnet");
    }
    let all = body.pointer("/properties/bgpSettings/bgpPeeringAddresses").and_then(Value::as_array);
    let custom = all
        .into_iter()
        .flatten()
        .flat_map(|entry| entry["customBgpIpAddresses"].as_array().cloned().unwrap_or_default());
    for address in custom {
        let ip: Ipv4Addr = address.as_str().unwrap().parse().unwrap();
        if !matches!(ip.octets(), [169, 254, 21 | 22, _]) {
            return no("InvalidBgpPeeringAddress", "only 169.254.21.0 to 169.254.22.255");
        }
    }
    Ok(())
}

/// Why an object cannot go.
pub(super) fn delete(sim: &AzureSim, id: &str) -> Option<No> {
    let inner = format!("{id}/");
    // A peering loses its other half; an interface is held by its machine; and so on.
    let user = sim.objects.keys().find(|key| {
        !key.starts_with(&inner)
            && *key != id
            && !key.contains("/virtualnetworkpeerings/")
            && !id.contains("/virtualnetworkpeerings/")
            && uses(sim, key, id)
    });
    if let Some(user) = user {
        return Some(("InUse", format!("{id} is used by {user}")));
    }
    let lends = id.contains("/virtualnetworkgateways/").then(|| {
        sim.objects.iter().find(|(key, half)| {
            let hub =
                half["properties"]["remoteVirtualNetwork"]["id"].as_str().unwrap_or_default().to_lowercase();
            key.contains("/virtualnetworkpeerings/")
                && half["properties"]["useRemoteGateways"] == true
                && !hub.is_empty()
                && uses(sim, id, &hub)
        })
    });
    lends.flatten().map(|(key, _)| ("GatewayInUse", format!("{key} uses the gateway")))
}
