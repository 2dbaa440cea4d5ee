//! Holds a request against Google's own discovery documents.

use std::collections::BTreeMap;

use http::Method;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::super::sim::Seen;

/// Every method takes these.
const ALWAYS: &[&str] =
    &["alt", "fields", "key", "prettyPrint", "quotaUser", "userIp", "access_token", "$.xgafv"];
/// The document calls `name` required there, and the API's reference tells to give it inside `networkPeering`.
const WAIVED: (&str, &str) = ("NetworksAddPeeringRequest", "name");

#[derive(Deserialize)]
pub(crate) struct Contract {
    base: String,
    methods: BTreeMap<String, Operation>,
    schemas: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Operation {
    verb: String,
    path: String,
    parameters: BTreeMap<String, Value>,
    request: Option<String>,
}

impl Contract {
    pub(crate) fn compute() -> Self {
        serde_json::from_str(include_str!("contract.json")).unwrap()
    }

    pub(crate) fn clusters() -> Self {
        serde_json::from_str(include_str!("clusters.json")).unwrap()
    }

    /// Whether a path is one of this API.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.starts_with(&self.base)
    }

    /// The method of a request, or what is wrong with it.
    pub(crate) fn check(&self, seen: &Seen) -> Result<&str, String> {
        let path = seen.path.strip_prefix(&self.base).ok_or("the path is outside of the API")?;
        let found = self.methods.iter().find_map(|(id, operation)| {
            let values = fit(&operation.path, path)?;
            (operation.verb == seen.method.as_str()).then_some((id, operation, values))
        });
        let (id, operation, values) = found.ok_or("there is no such method")?;
        for (name, value) in values {
            // One API describes parts of its paths together, under another name; its patterns say no more.
            if let Some(schema) = operation.parameters.get(&name) {
                sound(schema, &value).map_err(|why| format!("{name}: {why}"))?;
            }
        }
        for (name, value) in &seen.query {
            let schema = operation.parameters.get(name).filter(|schema| schema["in"] == "query");
            match schema {
                Some(schema) => sound(schema, value).map_err(|why| format!("{name}: {why}"))?,
                None if ALWAYS.contains(&name.as_str()) => {}
                None => return Err(format!("there is no parameter {name}")),
            }
        }
        match (&operation.request, seen.body.is_null()) {
            (Some(name), false) => {
                let writing = seen.method == Method::POST || seen.method == Method::PUT;
                self.fits(&serde_json::json!({ "$ref": name }), &seen.body, id, name, writing)?;
            }
            (Some(_), true) => return Err("the body is missing".into()),
            (None, true) => {}
            (None, false) => return Err("the method takes no body".into()),
        }
        Ok(id)
    }

    fn fits(
        &self,
        schema: &Value,
        value: &Value,
        method: &str,
        at: &str,
        writing: bool,
    ) -> Result<(), String> {
        if let Some(name) = schema["$ref"].as_str() {
            let schema = &self.schemas[name];
            let none = serde_json::Map::new();
            for (field, rules) in schema["properties"].as_object().unwrap_or(&none) {
                let required =
                    rules["required"].as_array().is_some_and(|of| of.iter().any(|one| one == method));
                if required && value.get(field).is_none() && (name, field.as_str()) != WAIVED {
                    return Err(format!("{at}.{field} is required"));
                }
            }
            return self.fits(schema, value, method, at, writing);
        }
        let wrong = |what: &str| Err(format!("{at} is not {what}: {value}"));
        match schema["type"].as_str().unwrap_or("any") {
            "object" => {
                let Some(fields) = value.as_object() else { return wrong("an object") };
                for (name, value) in fields {
                    let at = format!("{at}.{name}");
                    let known = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                    let rules = known.ok_or_else(|| format!("{at} is unknown"))?;
                    if writing && rules["readOnly"] == true {
                        return Err(format!("{at} is only told by the cloud"));
                    }
                    self.fits(rules, value, method, &at, writing)?;
                }
            }
            "array" => {
                let Some(items) = value.as_array() else { return wrong("a list") };
                for item in items {
                    if let (Some(_), Some(text)) = (schema.get("pattern"), item.as_str()) {
                        sound(schema, text).map_err(|why| format!("{at}: {why}"))?;
                    }
                    self.fits(&schema["items"], item, method, at, writing)?;
                }
            }
            "string" => match value {
                Value::String(text) => sound(schema, text).map_err(|why| format!("{at}: {why}"))?,
                // 64 bits may be written as a number.
                Value::Number(_) if schema["format"].as_str().is_some_and(|format| format.contains("64")) => {
                }
                _ => return wrong("text"),
            },
            "integer" => {
                let Some(number) = value.as_i64() else { return wrong("an integer") };
                let least = if schema["format"] == "uint32" { 0 } else { i64::from(i32::MIN) };
                let most =
                    if schema["format"] == "uint32" { i64::from(u32::MAX) } else { i64::from(i32::MAX) };
                if !(least..=most).contains(&number) {
                    return wrong("of 32 bits");
                }
            }
            "boolean" if !value.is_boolean() => return wrong("true or false"),
            "number" if !value.is_number() => return wrong("a number"),
            _ => {}
        }
        Ok(())
    }
}

/// The values of a template's variables, if a path fits it.
fn fit(template: &str, path: &str) -> Option<Vec<(String, String)>> {
    let (wanted, given): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
    if wanted.len() != given.len() {
        return None;
    }
    let mut values = Vec::new();
    for (wanted, given) in wanted.iter().zip(given) {
        match wanted.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => values.push((name.to_owned(), given.to_owned())),
            None if *wanted == given => {}
            None => return None,
        }
    }
    Some(values)
}

fn sound(schema: &Value, text: &str) -> Result<(), String> {
    if let Some(pattern) = schema["pattern"].as_str()
        && !Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(text)
    {
        return Err(format!("`{text}` is not like {pattern}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.iter().any(|word| word == text)
    {
        return Err(format!("`{text}` is none of {}", schema["enum"]));
    }
    Ok(())
}
