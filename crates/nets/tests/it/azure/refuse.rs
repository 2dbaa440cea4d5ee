//! What Azure refuses although it is well formed.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::vendor::{AzureSim, spaces};

type No = (&'static str, String);

/// The network at the other end of half of a peering.
fn remote(body: &Value) -> Option<String> {
    body["properties"]["remoteVirtualNetwork"]["id"].as_str().map(str::to_lowercase)
}

/// The half of a network's peering with another, whatever it is called.
fn half_between<'a>(sim: &'a AzureSim, own: &str, other: &str) -> Option<&'a String> {
    let halves = format!("{own}/virtualnetworkpeerings/");
    let all = sim.objects.iter().filter(|(key, _)| key.starts_with(&halves));
    all.filter(|(_, half)| remote(half).as_deref() == Some(other)).map(|(key, _)| key).next()
}

/// The other half of a peering, empty while it is not there; nothing if it is no peering.
pub(super) fn reverse(sim: &AzureSim, id: &str, body: &Value) -> Option<String> {
    let (vnet, _) = id.split_once("/virtualnetworkpeerings/")?;
    Some(half_between(sim, &remote(body)?, vnet).cloned().unwrap_or_default())
}

/// Every id that an object names.
fn named(body: &Value, found: &mut Vec<String>) {
    match body {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "id" || name == "vnetSubnetID" => {
                        found.push(text.to_lowercase());
                    }
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
            reshaped(sim, id, body, &own)
        }
        ("virtualnetworks", Some("virtualnetworkpeerings")) => peering(sim, id, body, now),
        ("virtualnetworks", Some(_)) => {
            let used = body["properties"]["natGateway"]["id"].as_str().map(str::to_lowercase);
            let own = parts[..9].join("/");
            let other = sim.objects.iter().find(|(key, subnet)| {
                let same = subnet.pointer("/properties/natGateway/id").and_then(Value::as_str);
                key.contains("/subnets/")
                    && !key.starts_with(&format!("{own}/"))
                    && used.is_some()
                    && same.map(str::to_lowercase) == used
            });
            match other {
                Some((key, _)) => {
                    no("NatGatewayCannotBeUsedBySubnetsBelongingToDifferentVirtualNetworks", key.clone())
                }
                None => Ok(()),
            }
        }
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
        ("managedclusters", _) => cluster(sim, id, body),
        ("virtualnetworkgateways", _) => gateway(body, &ids),
        ("connections", _) => {
            let key = body["properties"]["sharedKey"].as_str().unwrap_or_default();
            if key.is_empty() { no("SharedKeyMissing", "a connection needs a key".into()) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn overlap(a: &[IpNet], b: &[IpNet]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.contains(b) || b.contains(a)))
}

/// A network that is there is written again: what is used stays, and peers keep their own spaces.
fn reshaped(sim: &AzureSim, id: &str, body: &Value, own: &[IpNet]) -> Result<(), No> {
    let subnets = body["properties"]["subnets"].as_array().cloned().unwrap_or_default();
    let named = |key: &str| {
        subnets
            .iter()
            .find(|subnet| format!("{id}/subnets/{}", subnet["name"].as_str().unwrap()).to_lowercase() == key)
    };
    let prefix = format!("{id}/subnets/");
    for (key, old) in sim.objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        let same = |new: &Value| new["properties"]["addressPrefix"] == old["properties"]["addressPrefix"];
        let user = sim.objects.keys().find(|user| !user.starts_with(id) && uses(sim, user, key));
        if let Some(user) = user.filter(|_| !named(key).is_some_and(same)) {
            return Err(("InUseSubnetCannotBeDeleted", format!("{key} is used by {user}")));
        }
    }
    let halves = format!("{id}/virtualnetworkpeerings/");
    for (_, half) in sim.objects.iter().filter(|(key, _)| key.starts_with(&halves)) {
        let other = half["properties"]["remoteVirtualNetwork"]["id"].as_str().unwrap().to_lowercase();
        if sim.objects.get(&other).is_some_and(|vnet| overlap(own, &spaces(vnet))) {
            return Err(("VnetAddressSpacesOverlap", format!("the spaces overlap with those of {other}")));
        }
    }
    Ok(())
}

fn cluster(sim: &AzureSim, id: &str, body: &Value) -> Result<(), No> {
    let no = |code: &'static str, message: &str| Err((code, message.to_owned()));
    let pools = body["properties"]["agentPoolProfiles"].as_array().cloned().unwrap_or_default();
    let Some(subnet) = pools.first().and_then(|pool| pool["vnetSubnetID"].as_str()) else {
        return no("InvalidParameter", "this stand-in only knows clusters in a subnet that is given");
    };
    let subnet = subnet.to_lowercase();
    let Some(place) = sim.objects.get(&subnet) else { return no("InvalidResourceReference", &subnet) };
    let profile = &body["properties"]["networkProfile"];
    let net = |field: &str| profile[field].as_str().and_then(|text| text.parse::<IpNet>().ok());
    let Some(services) = net("serviceCidr") else { return no("ServiceCidrMissing", "serviceCidr") };
    let dns = profile["dnsServiceIP"].as_str().and_then(|text| text.parse::<Ipv4Addr>().ok());
    if !dns.is_some_and(|dns| services.contains(&std::net::IpAddr::from(dns))) {
        return no("DnsServiceIpOutOfServiceCidr", "dnsServiceIP is not of serviceCidr");
    }
    let vnet = subnet.split_once("/subnets/").unwrap().0;
    if sim.objects.values().any(|vnet| overlap(&[services], &spaces(vnet))) {
        return no("ServiceCidrOverlapExistingSubnetsCidr", "serviceCidr is taken");
    }
    if sim.objects[vnet]["location"] != body["location"] {
        return no("VnetLocationMismatch", "a cluster is where its network is");
    }
    if let Some(known) = sim.objects.get(id) {
        let before = &known["properties"]["networkProfile"]["serviceCidr"];
        let same = *before == profile["serviceCidr"];
        return if same { Ok(()) } else { no("PropertyChangeNotAllowed", "networkProfile.serviceCidr") };
    }
    // Nodes load what they run before they are nodes.
    let filter =
        place["properties"]["networkSecurityGroup"]["id"].as_str().unwrap_or_default().to_lowercase();
    let rules = format!("{filter}/securityrules/");
    let shut = sim.objects.iter().any(|(key, rule)| {
        let rule = &rule["properties"];
        key.starts_with(&rules) && rule["access"] == "Deny" && rule["direction"] == "Outbound"
    });
    if shut { no("VMExtensionError_OutboundConnFail", "nodes cannot reach what they need") } else { Ok(()) }
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
    if overlap(&near, &far) {
        return no("VnetAddressSpacesOverlap", "the spaces overlap");
    }
    if half_between(sim, own, &other).is_some_and(|half| half != id) {
        return no("AnotherPeeringAlreadyReferencesRemoteVnet", "the two are peered already");
    }
    let half = reverse(sim, id, body).unwrap();
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
