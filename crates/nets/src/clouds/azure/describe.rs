//! What a person says of a resource to be made: all but its network.

use serde_json::{Map, Value};

use super::names;
use crate::error::Error;

/// A resource as it was described.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Described {
    /// What it is.
    pub(super) kind: Kind,
    /// Where it is to be.
    pub(super) location: String,
    /// The rest, as Azure takes it.
    pub(super) body: Map<String, Value>,
}

/// Kinds of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A virtual machine.
    Machine,
    /// A managed Kubernetes cluster.
    Cluster,
}

/// Reads a description, and refuses one that chooses the network itself.
pub(super) fn read(text: &str) -> Result<Described, Error> {
    let wrong = |message: String| Error::invalid("description", message);
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
    let Value::Object(mut body) = value else { return Err(wrong("is not a JSON object".into())) };
    // Azure's own tools print these; the name is given beside the description.
    for printed in ["id", "name", "type", "etag"] {
        body.remove(printed);
    }
    let place = body.get("location").and_then(Value::as_str).map(names::location).unwrap_or_default();
    if place.is_empty() || !place.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(Error::invalid("description.location", "must name the place, such as westus2"));
    }
    let properties = body.get("properties").cloned().unwrap_or_default();
    let kind = if properties.get("hardwareProfile").is_some() {
        Kind::Machine
    } else if properties.get("agentPoolProfiles").is_some() {
        Kind::Cluster
    } else {
        return Err(Error::invalid(
            "description.properties",
            "has neither hardwareProfile (a virtual machine) nor agentPoolProfiles (a Kubernetes cluster)",
        ));
    };
    let chosen = |field: String| Err(Error::invalid(field, "the network is chosen for you; leave it out"));
    match kind {
        Kind::Machine => {
            if properties.get("networkProfile").is_some() {
                return chosen("description.properties.networkProfile".into());
            }
        }
        Kind::Cluster => {
            let misshapen = |field: &str| {
                let message = "is not what Azure's own API takes there";
                Err(Error::invalid(format!("description.properties.{field}"), message))
            };
            let pools = properties["agentPoolProfiles"].as_array().cloned().unwrap_or_default();
            if pools.is_empty() || !pools.iter().all(Value::is_object) {
                return misshapen("agentPoolProfiles");
            }
            for field in ["networkProfile", "apiServerAccessProfile"] {
                if properties.get(field).is_some_and(|part| !part.is_object()) {
                    return misshapen(field);
                }
            }
            for (index, pool) in pools.iter().enumerate() {
                for field in ["vnetSubnetID", "podSubnetID"] {
                    if pool.get(field).is_some() {
                        return chosen(format!("description.properties.agentPoolProfiles[{index}].{field}"));
                    }
                }
            }
            let profile = properties.get("networkProfile").cloned().unwrap_or_default();
            for field in ["podCidr", "podCidrs", "serviceCidr", "serviceCidrs", "dnsServiceIP"] {
                if profile.get(field).is_some() {
                    return chosen(format!("description.properties.networkProfile.{field}"));
                }
            }
            let plugin = profile.get("networkPlugin").and_then(Value::as_str);
            if plugin.is_some_and(|plugin| plugin != "azure") {
                return Err(Error::invalid(
                    "description.properties.networkProfile.networkPlugin",
                    "must be azure: pods need addresses of the network",
                ));
            }
            if profile.get("networkPluginMode").is_some() {
                return Err(Error::invalid(
                    "description.properties.networkProfile.networkPluginMode",
                    "pods need addresses of the network; leave it out",
                ));
            }
            let families = profile.get("ipFamilies").and_then(Value::as_array);
            if families.into_iter().flatten().any(|family| family != "IPv4") {
                return Err(Error::invalid(
                    "description.properties.networkProfile.ipFamilies",
                    "networks have IPv4 addresses; leave it out",
                ));
            }
            let private = properties.pointer("/apiServerAccessProfile/enablePrivateCluster");
            if private.is_some_and(|private| private != true) {
                return Err(Error::invalid(
                    "description.properties.apiServerAccessProfile.enablePrivateCluster",
                    "must be true: the API server has an address of the network",
                ));
            }
        }
    }
    body.insert("location".into(), place.clone().into());
    Ok(Described { kind, location: place, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_not_the_persons_choice() {
        let machine = read(r#"{"name":"x","location":"West US 2","properties":{"hardwareProfile":{"vmSize":"Standard_B1s"}}}"#).unwrap();
        assert_eq!((machine.kind, machine.location.as_str()), (Kind::Machine, "westus2"));
        assert!(!machine.body.contains_key("name") && machine.body["location"] == "westus2");
        let cluster =
            read(r#"{"location":"eastus","properties":{"agentPoolProfiles":[{"name":"p"}]}}"#).unwrap();
        assert_eq!(cluster.kind, Kind::Cluster);
        for (bad, field) in [
            ("[]", "description"),
            ("{", "description"),
            (r#"{"properties":{"hardwareProfile":{}}}"#, "description.location"),
            (r#"{"location":"a/b","properties":{"hardwareProfile":{}}}"#, "description.location"),
            (r#"{"location":"a"}"#, "description.properties"),
            (
                r#"{"location":"a","properties":{"hardwareProfile":{},"networkProfile":{}}}"#,
                "description.properties.networkProfile",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{},{"vnetSubnetID":"x"}]}}"#,
                "description.properties.agentPoolProfiles[1].vnetSubnetID",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"networkProfile":{"serviceCidr":"10.0.0.0/16"}}}"#,
                "description.properties.networkProfile.serviceCidr",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"networkProfile":{"networkPlugin":"kubenet"}}}"#,
                "description.properties.networkProfile.networkPlugin",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"networkProfile":{"networkPluginMode":"overlay"}}}"#,
                "description.properties.networkProfile.networkPluginMode",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"networkProfile":{"ipFamilies":["IPv4","IPv6"]}}}"#,
                "description.properties.networkProfile.ipFamilies",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"apiServerAccessProfile":{"enablePrivateCluster":false}}}"#,
                "description.properties.apiServerAccessProfile.enablePrivateCluster",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":["x"]}}"#,
                "description.properties.agentPoolProfiles",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[]}}"#,
                "description.properties.agentPoolProfiles",
            ),
            (
                r#"{"location":"a","properties":{"agentPoolProfiles":[{}],"networkProfile":7}}"#,
                "description.properties.networkProfile",
            ),
        ] {
            let Err(Error::Invalid(mistakes)) = read(bad) else { panic!("{bad}") };
            assert_eq!(mistakes[0].field, field);
        }
    }
}
