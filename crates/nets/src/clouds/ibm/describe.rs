//! What people say of a resource that is to be made, and how URIs name one that is.

use serde_json::Value;

use super::{is_id, region_of, text};
use crate::error::Error;

/// What the description of a machine must leave to us.
const NETWORK_WORDS: &[&str] = &[
    "vpc",
    "primary_network_interface",
    "network_interfaces",
    "primary_network_attachment",
    "network_attachments",
    "resource_group",
    "name",
];
/// The same of an endpoint.
const ENDPOINT_WORDS: &[&str] = &["vpc", "ips", "security_groups", "resource_group", "name"];
/// Where the original puts what says no zone.
const USUAL_ZONE: &str = "us-east-1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Instance,
    /// An endpoint gateway.
    Endpoint,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Endpoint => "endpoint",
        }
    }

    pub(super) fn uri(self, group: &str, zone: &str, id: &str) -> String {
        format!("/resourcegroup/{group}/zone/{zone}/{}/{id}", self.word())
    }
}

/// `/resourcegroup/RG/zone/Z/KIND/ID`.
pub(super) struct Name<'a> {
    pub(super) kind: Kind,
    pub(super) group: &'a str,
    pub(super) zone: &'a str,
    pub(super) id: &'a str,
}

impl Name<'_> {
    /// As the API's paths name it.
    pub(super) fn path(&self) -> String {
        match self.kind {
            Kind::Instance => format!("instances/{}", self.id),
            Kind::Endpoint => format!("endpoint_gateways/{}", self.id),
        }
    }
}

pub(super) fn parse(uri: &str) -> Option<Name<'_>> {
    let parts: Vec<&str> = uri.split('/').collect();
    match parts.as_slice() {
        ["", "resourcegroup", group, "zone", zone, word, id]
            if is_id(group) && is_id(id) && region_of(zone).is_ok() =>
        {
            let kind = [Kind::Instance, Kind::Endpoint].into_iter().find(|kind| kind.word() == *word)?;
            Some(Name { kind, group, zone, id })
        }
        _ => None,
    }
}

/// The name that people gave, of which the one in the cloud is made.
pub(super) fn plain_name(object: &Value) -> &str {
    let full = text(object, "name");
    let name = full.strip_prefix("paraglider-").and_then(|rest| rest.rsplit_once('-'));
    name.map_or(full, |(name, _)| name)
}

/// A resource to be made, but for its network.
#[derive(Debug)]
pub(super) struct New {
    pub(super) kind: Kind,
    pub(super) zone: Option<String>,
    pub(super) body: Value,
}

/// The zone of what says none: the deployment's, or the original's.
pub(super) fn usual_zone(deployment: &str) -> &str {
    deployment.split_once("/zone/").map_or(USUAL_ZONE, |(_, zone)| zone)
}

/// A resource to be made: its zone and all but its network.
pub(super) fn described(description: &str) -> Result<New, Error> {
    let wrong = |error: serde_json::Error| Error::invalid("description", format!("is not JSON: {error}"));
    let mut body: Value = serde_json::from_str(description).map_err(wrong)?;
    // The original takes the options of its SDK, in which a machine is wrapped; a name in there does not count.
    if let Some(prototype) = body.get_mut("InstancePrototype").map(Value::take) {
        body = prototype;
        body.as_object_mut().map(|fields| fields.remove("name"));
    }
    let fields = body.as_object_mut().ok_or_else(|| Error::invalid("description", "is not an object"))?;
    if let Some(field) =
        ["workerPool", "worker_pool", "WorkerPool"].iter().find(|word| fields.contains_key(**word))
    {
        let message = "clusters are not offered: give a machine or an endpoint";
        return Err(Error::invalid(format!("description.{field}"), message));
    }
    let kind = if fields.contains_key("target") { Kind::Endpoint } else { Kind::Instance };
    let words = if kind == Kind::Endpoint { ENDPOINT_WORDS } else { NETWORK_WORDS };
    if let Some(field) = words.iter().find(|word| fields.contains_key(**word)) {
        return Err(Error::invalid(format!("description.{field}"), "is chosen for you; leave it out"));
    }
    if kind == Kind::Endpoint {
        if !fields["target"]["resource_type"].is_string() {
            let message = "is missing: provider_cloud_service with a crn, or provider_infrastructure_service with a name";
            return Err(Error::invalid("description.target.resource_type", message));
        }
        // An endpoint has none for the cloud; its address has.
        let zone = fields.remove("zone").map(|zone| zone_of(&zone)).transpose()?;
        return Ok(New { kind, zone, body });
    }
    for field in ["image", "profile"] {
        if !fields.contains_key(field) {
            return Err(Error::invalid(
                format!("description.{field}"),
                "is missing; only machines from images are offered",
            ));
        }
    }
    let zone = zone_of(&body["zone"])?;
    Ok(New { kind, zone: Some(zone), body })
}

fn zone_of(zone: &Value) -> Result<String, Error> {
    let name = zone["name"].as_str();
    let name = name.ok_or_else(|| Error::invalid("description.zone", "is missing: {\"name\": ZONE}"))?;
    region_of(name)?;
    Ok(name.to_owned())
}

/// Deployment and name of a resource that is to be made; a machine's name may be in the description alone.
pub(super) fn place_of(id: &str, description: &str) -> Result<(String, String), Error> {
    let wrong = || {
        let id = id.escape_debug();
        Error::invalid("id", format!("`{id}` is not /resourcegroup/RG[/zone/Z][/instance/NAME]"))
    };
    let rest = id.trim_end_matches('/').strip_prefix("/resourcegroup/").ok_or_else(wrong)?;
    let (group, name) = match rest.split('/').collect::<Vec<_>>().as_slice() {
        [group] | [group, "zone", _] => (*group, None),
        [group, name]
        | [group, "zone", _, name]
        | [group, "instance" | "endpoint", name]
        | [group, "zone", _, "instance" | "endpoint", name] => (*group, Some(*name)),
        _ => return Err(wrong()),
    };
    let name = if let Some(name) = name {
        name.to_owned()
    } else {
        let description: Value = serde_json::from_str(description).unwrap_or_default();
        let name = description["InstancePrototype"]["name"].as_str();
        let missing =
            || Error::invalid("description.InstancePrototype.name", "is missing, in the id and here");
        name.ok_or_else(missing)?.to_owned()
    };
    Ok((format!("/resourcegroup/{group}"), name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_of_the_first_generation_may_leave_out_the_name() {
        let description = r#"{"InstancePrototype":{"name":"vm"}}"#;
        let vm = ("/resourcegroup/rg".to_owned(), "vm".to_owned());
        for id in ["", "/zone/us-south-1", "/vm", "/zone/us-south-1/vm", "/zone/us-south-1/instance/vm"] {
            assert_eq!(place_of(&format!("/resourcegroup/rg{id}"), description).unwrap(), vm, "{id}");
        }
        for bad in ["", "rg", "/resourcegroup/rg/a/b/c"] {
            assert!(place_of(bad, description).is_err(), "{bad}");
        }
        assert!(place_of("/resourcegroup/rg", "{}").is_err());
    }

    #[test]
    fn descriptions_and_uris_are_judged() {
        let field = |text: &str| match described(text) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let plain = described(r#"{"image":{},"profile":{},"zone":{"name":"us-south-1"}}"#).unwrap();
        assert_eq!((plain.kind, plain.zone.as_deref()), (Kind::Instance, Some("us-south-1")));
        // As the original's examples write it: wrapped, and a name in there does not count.
        let wrapped =
            r#"{"InstancePrototype":{"name":"x","image":{},"profile":{},"zone":{"name":"us-south-1"}}}"#;
        let wanted = json!({ "image": {}, "profile": {}, "zone": { "name": "us-south-1" } });
        assert_eq!(described(wrapped).unwrap().body, wanted);
        assert_eq!(field(r#"{"InstancePrototype":{"vpc":{}}}"#), "description.vpc");
        assert_eq!(field("[]"), "description");
        assert_eq!(field(r#"{"vpc":{}}"#), "description.vpc");
        assert_eq!(field(r#"{"primary_network_interface":{}}"#), "description.primary_network_interface");
        assert_eq!(field(r#"{"profile":{}}"#), "description.image");
        assert_eq!(field(r#"{"image":{},"profile":{}}"#), "description.zone");
        assert!(parse("/resourcegroup/rg/zone/us-south-1/instance/a_b-c").is_some());
        assert!(parse("/resourcegroup/rg/zone/us-south-1/instance/..").is_none());
    }

    #[test]
    fn endpoints_are_described_by_what_they_lead_to() {
        let field = |text: Value| match described(&text.to_string()) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            other => panic!("{text}: {other:?}"),
        };
        let target = json!({ "resource_type": "provider_cloud_service", "crn": "crn:v1:x" });
        let new = described(&json!({ "target": target }).to_string()).unwrap();
        assert_eq!((new.kind, new.zone, &new.body), (Kind::Endpoint, None, &json!({ "target": target })));
        let new =
            described(&json!({ "target": target, "zone": { "name": "us-south-2" } }).to_string()).unwrap();
        assert_eq!((new.zone.as_deref(), &new.body), (Some("us-south-2"), &json!({ "target": target })));
        assert_eq!(field(json!({ "target": {} })), "description.target.resource_type");
        for chosen in ["vpc", "ips", "security_groups", "resource_group", "name"] {
            assert_eq!(field(json!({ "target": target, chosen: [] })), format!("description.{chosen}"));
        }
        assert_eq!(field(json!({ "target": target, "zone": { "name": "nowhere" } })), "description.zone");
        assert_eq!(field(json!({ "workerPool": {} })), "description.workerPool");
        assert_eq!(usual_zone("/resourcegroup/rg"), "us-east-1");
        assert_eq!(usual_zone("/resourcegroup/rg/zone/eu-de-1"), "eu-de-1");

        let uri = "/resourcegroup/rg/zone/us-south-1/endpoint/e1";
        let name = parse(uri).unwrap();
        assert_eq!((name.kind, name.path()), (Kind::Endpoint, "endpoint_gateways/e1".to_owned()));
        assert_eq!(name.kind.uri(name.group, name.zone, name.id), uri);
        assert!(parse("/resourcegroup/rg/zone/us-south-1/cluster/c1").is_none());
        let e = ("/resourcegroup/rg".to_owned(), "e".to_owned());
        assert_eq!(place_of("/resourcegroup/rg/zone/us-south-1/endpoint/e", "{}").unwrap(), e);
    }
}
