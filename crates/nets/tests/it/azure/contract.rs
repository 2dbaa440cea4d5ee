//! Holds requests against the contract that was derived from Azure's own SDK.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

static CONTRACT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("contract.json")).expect("contract.json is JSON"));

/// What the contract says against a request.
pub(super) fn check(
    method: &str,
    path: &str,
    query: &[(String, String)],
    body: &Value,
) -> Result<(), String> {
    let version = query.iter().find(|(name, _)| name == "api-version").map(|(_, value)| value.as_str());
    let operations = CONTRACT["operations"].as_array().unwrap();
    let operation = operations
        .iter()
        .find(|operation| operation["verb"] == method && fits(operation["path"].as_str().unwrap(), path))
        .ok_or_else(|| format!("the SDK has no {method} {path}"))?;
    if operation["apiVersion"].as_str() != version {
        return Err(format!("api-version {version:?} instead of {}", operation["apiVersion"]));
    }
    // Marks of pages are the service's own.
    let own = |name: &str| matches!(name, "api-version" | "$skiptoken");
    let known = |name: &str| operation["query"].as_array().into_iter().flatten().any(|known| *known == *name);
    if let Some((name, _)) = query.iter().find(|(name, _)| !own(name) && !known(name)) {
        return Err(format!("the SDK has no parameter {name} there"));
    }
    match operation["body"].as_str() {
        Some(name) => validate(&serde_json::json!({ "$ref": name }), body, "body"),
        None if body.is_null() => Ok(()),
        None => Err("a body where none belongs".into()),
    }
}

/// Whether a path is of a template; the words of Azure's paths have no case.
fn fits(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template.iter().zip(&path).all(|(wanted, found)| {
            if wanted.starts_with('{') { !found.is_empty() } else { wanted.eq_ignore_ascii_case(found) }
        })
}

fn validate(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{at}: {what}"));
    if let Some(name) = schema["$ref"].as_str() {
        return validate(&CONTRACT["schemas"][name], value, at);
    }
    if schema["readOnly"] == true {
        return wrong("is read-only".into());
    }
    let sound = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => return wrong(format!("the contract has the unknown type {other}")),
    };
    if !sound {
        return wrong(format!("{value} is not of type {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        return wrong(format!("{value} is none of {allowed:?}"));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !Regex::new(pattern).is_ok_and(|regex| regex.is_match(text))
    {
        return wrong(format!("`{text}` does not match {pattern}"));
    }
    let length = value.as_str().map(|text| text.chars().count()).or(value.as_array().map(Vec::len));
    let number = value.as_f64();
    for (bound, found, above) in [
        ("minimum", number, false),
        ("maximum", number, true),
        ("minLength", length.map(|n| n as f64), false),
        ("maxLength", length.map(|n| n as f64), true),
        ("minItems", length.map(|n| n as f64), false),
        ("maxItems", length.map(|n| n as f64), true),
    ] {
        if let (Some(bound_at), Some(found)) = (schema[bound].as_f64(), found)
            && ((above && found > bound_at) || (!above && found < bound_at))
        {
            return wrong(format!("{bound} is {bound_at}, not {found}"));
        }
    }
    if let Some(items) = value.as_array() {
        for (index, item) in items.iter().enumerate() {
            validate(&schema["items"], item, &format!("{at}[{index}]"))?;
        }
    }
    if let Some(fields) = value.as_object() {
        for required in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(required.as_str().unwrap()) {
                return wrong(format!("lacks {required}"));
            }
        }
        for (name, value) in fields {
            let at = format!("{at}.{name}");
            match (schema["properties"].get(name), &schema["additionalProperties"]) {
                (Some(schema), _) => validate(schema, value, &at)?,
                (None, Value::Bool(false)) => return Err(format!("{at}: Azure knows no such field")),
                (None, more @ Value::Object(_)) => validate(more, value, &at)?,
                (None, _) => {}
            }
        }
    }
    Ok(())
}

#[test]
fn the_contract_can_refuse() {
    use serde_json::json;
    let vnet = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v";
    let version = |version: &str| vec![("api-version".to_owned(), version.to_owned())];
    let put = |body: Value| check("PUT", vnet, &version("2023-05-01"), &body);
    assert_eq!(
        put(
            json!({ "location": "x", "properties": { "addressSpace": { "addressPrefixes": ["10.0.0.0/16"] } } })
        ),
        Ok(())
    );
    for bad in [
        json!({ "location": 1 }),
        json!({ "loction": "x" }),
        json!({ "properties": { "addressSpace": { "addressPrefixes": "10.0.0.0/16" } } }),
        json!({ "properties": { "provisioningState": "Succeeded" } }),
        json!({ "properties": { "subnets": [{ "properties": { "privateEndpointNetworkPolicies": "Perhaps" } }] } }),
    ] {
        assert!(put(bad.clone()).is_err(), "{bad}");
    }
    assert!(check("PUT", vnet, &version("2020-01-01"), &json!({})).is_err());
    assert!(check("POST", vnet, &version("2023-05-01"), &json!({})).is_err());
    let mut asked = version("2023-05-01");
    asked.push(("syncRemoteAddressSpace".into(), "true".into()));
    assert!(check("PUT", vnet, &asked, &json!({ "location": "x" })).is_err());
    let half = format!("{vnet}/virtualNetworkPeerings/p");
    assert_eq!(check("PUT", &half, &asked, &json!({})), Ok(()));

    let cluster = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c";
    let put = |properties: Value| {
        check("PUT", cluster, &version("2024-01-01"), &json!({ "location": "x", "properties": properties }))
    };
    assert_eq!(put(json!({ "agentPoolProfiles": [{ "name": "pool", "count": 1 }] })), Ok(()));
    for bad in [
        json!({ "agentPoolProfiles": [{ "count": 1 }] }),
        json!({ "agentPoolProfiles": [{ "name": "Pool" }] }),
        json!({ "networkProfile": { "serviceCidr": "10.0.0.0/33" } }),
        json!({ "networkProfile": { "networkPlugin": "calico" } }),
        json!({ "fqdn": "x" }),
    ] {
        assert!(put(bad.clone()).is_err(), "{bad}");
    }
}
