//! What an API server refuses is refused here too: fields that no kind has, and declarations that
//! contradict themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::LazyLock;

use serde_json::Value;

use crate::crd::{GatewayRef, IngressType, MeshFederationSpec, definitions};
use crate::names::is_label;

/// The schemas of our kinds.
static SCHEMAS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let schema = |definition: &_| {
        let definition = serde_json::to_value(definition).unwrap_or_default();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        (kind, definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
    };
    definitions().iter().map(schema).collect()
});

/// Refuses a spec with a field that its kind does not have: it would have no effect.
pub(super) fn fields(kind: &str, document: &Value) -> Result<(), String> {
    let schema = SCHEMAS.iter().find(|(known, _)| known == kind);
    let Some(schema) = schema.map(|(_, schema)| &schema["properties"]["spec"]) else { return Ok(()) };
    known(schema, &document["spec"], "spec")
}

fn known(schema: &Value, value: &Value, path: &str) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, inner)| {
            let path = format!("{path}.{name}");
            match (schema["properties"].get(name), schema.get("additionalProperties")) {
                (Some(schema), _) => known(schema, inner, &path),
                (None, Some(_)) => Ok(()),
                (None, None) => Err(format!("unknown field {path}")),
            }
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| known(&schema["items"], item, &format!("{path}[{index}]"))),
        _ => Ok(()),
    }
}

/// Refuses a federation that contradicts itself, as the rules in its schema do.
pub(super) fn federation(spec: &MeshFederationSpec) -> Result<(), String> {
    let local = &spec.local;
    let selects = |gateway: Option<&GatewayRef>| gateway.is_some_and(|gateway| !gateway.selector.is_empty());
    if let Some(ingress) = &local.ingress
        && ingress.kind == IngressType::Istio
        && !selects(ingress.gateway.as_ref())
    {
        return Err("spec.local.ingress: an ingress of type istio needs gateway.selector".to_owned());
    }
    if local.egress.as_ref().is_some_and(|egress| !selects(Some(&egress.gateway))) {
        return Err("spec.local.egress needs gateway.selector".to_owned());
    }
    let mut seen = BTreeSet::from([local.id.as_str()]);
    for remote in &spec.remote {
        if !seen.insert(&remote.id) {
            return Err(format!("spec.remote: the id `{}` is that of another mesh too", remote.id));
        }
        let addresses = &remote.ingress.addresses;
        if !addresses.is_empty() && remote.network == local.network {
            return Err(format!(
                "spec.remote: `{}` is behind an ingress and must be on another network than this mesh",
                remote.id
            ));
        }
        let numbers = addresses.iter().all(|address| address.parse::<IpAddr>().is_ok());
        let one_name = addresses.len() == 1 && addresses.iter().all(|address| is_name(address));
        if !numbers && !one_name {
            return Err(format!(
                "spec.remote: the addresses of `{}` are neither IP addresses nor exactly one host name",
                remote.id
            ));
        }
    }
    Ok(())
}

/// Whether it is a host name and no mistaken address.
fn is_name(address: &str) -> bool {
    let number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    address.split('.').all(is_label) && !address.rsplit('.').next().is_some_and(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_that_nobody_knows_is_found_wherever_it_is() {
        let rules = |spec: Value| fields("FederationServiceRules", &json!({ "spec": spec }));
        assert_eq!(
            rules(json!({ "export": { "serviceSelector": {} } })).unwrap_err(),
            "unknown field spec.export.serviceSelector"
        );
        assert_eq!(
            rules(json!({ "import": [{ "meshID": "a" }, { "meshId": "b" }] })).unwrap_err(),
            "unknown field spec.import[1].meshId"
        );
        let labels = json!({ "matchLabels": { "any.example/label": "x" } });
        rules(json!({ "export": { "serviceSelectors": [labels] }, "import": [{ "meshID": "a" }] })).unwrap();
        let gateway = json!({ "gateway": { "selector": { "app": "x" }, "port": { "number": 1 } } });
        let federation = json!({ "local": { "id": "a", "network": "b", "ingress": gateway } });
        fields("MeshFederation", &json!({ "spec": federation })).unwrap();
    }

    #[test]
    fn a_federation_that_contradicts_itself_is_refused() {
        let judge = |change: fn(&mut Value)| {
            let mut spec = json!({
                "local": { "id": "east", "network": "east",
                    "ingress": { "gateway": { "selector": { "app": "gw" } } } },
                "remote": [{ "id": "west", "network": "west", "ingress": { "addresses": ["192.0.2.1"] } }],
            });
            change(&mut spec);
            federation(&serde_json::from_value(spec).unwrap())
        };
        judge(|_| {}).unwrap();
        judge(|s| s["remote"][0]["ingress"]["addresses"] = json!(["gw.west.example"])).unwrap();
        judge(|s| s["local"]["ingress"] = json!({ "type": "openshift-router" })).unwrap();
        let wrong: [fn(&mut Value); 7] = [
            |s| s["remote"][0]["id"] = json!("east"),
            |s| s["remote"] = json!([{ "id": "a", "network": "x" }, { "id": "a", "network": "y" }]),
            |s| s["remote"][0]["network"] = json!("east"),
            |s| s["remote"][0]["ingress"]["addresses"] = json!(["a.example", "b.example"]),
            |s| s["remote"][0]["ingress"]["addresses"] = json!(["192.168.1.999"]),
            |s| s["local"]["ingress"] = json!({}),
            |s| s["local"]["egress"] = json!({ "gateway": {} }),
        ];
        for change in wrong {
            judge(change).unwrap_err();
        }
    }
}
