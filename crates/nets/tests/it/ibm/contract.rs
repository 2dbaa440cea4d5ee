//! Holds a request against what IBM's own SDKs would send.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::super::sim::Seen;

#[derive(Deserialize)]
pub(crate) struct Contract {
    operations: BTreeMap<String, Operation>,
    models: BTreeMap<String, Model>,
}

#[derive(Deserialize)]
struct Operation {
    api: String,
    verb: String,
    path: String,
    query: Vec<String>,
    body: Option<Body>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Body {
    Fields(BTreeMap<String, Field>),
    Model(Value),
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    one: Vec<String>,
    fields: Option<BTreeMap<String, Field>>,
}

#[derive(Deserialize)]
struct Field {
    r#type: Value,
    #[serde(default)]
    required: bool,
    r#enum: Option<Vec<Value>>,
}

impl Contract {
    pub(crate) fn load() -> Self {
        serde_json::from_str(include_str!("contract.json")).unwrap()
    }

    pub(crate) fn check(&self, api: &str, path: &str, seen: &Seen) -> Result<(), String> {
        let fits = |template: &str| {
            let (wanted, given): (Vec<&str>, Vec<&str>) =
                (template.split('/').collect(), path.split('/').collect());
            wanted.len() == given.len()
                && wanted.iter().zip(given).all(|(wanted, given)| *wanted == "{}" || *wanted == given)
        };
        let found = self.operations.values().find(|operation| {
            operation.api == api && operation.verb == seen.method.as_str() && fits(&operation.path)
        });
        let operation = found.ok_or("there is no such operation")?;
        for (name, _) in &seen.query {
            if !operation.query.contains(name) {
                return Err(format!("there is no parameter {name}"));
            }
        }
        for name in ["version", "generation"] {
            if operation.query.iter().any(|one| one == name) && seen.parameter(name).is_none() {
                return Err(format!("{name} is missing"));
            }
        }
        match (&operation.body, seen.body.is_null()) {
            (None, true) => Ok(()),
            (None, false) => Err("the operation takes no body".into()),
            (Some(_), true) => Err("the body is missing".into()),
            (Some(Body::Fields(fields)), false) => self.fields(fields, &seen.body, "body"),
            (Some(Body::Model(kind)), false) => self.fits(kind, &seen.body, "body"),
        }
    }

    fn fields(&self, fields: &BTreeMap<String, Field>, value: &Value, at: &str) -> Result<(), String> {
        let given = value.as_object().ok_or_else(|| format!("{at} is not an object"))?;
        for (name, field) in fields {
            if field.required && !given.contains_key(name) {
                return Err(format!("{at}.{name} is required"));
            }
        }
        for (name, value) in given {
            let at = format!("{at}.{name}");
            let field = fields.get(name).ok_or_else(|| format!("{at} is unknown"))?;
            if field.r#enum.as_ref().is_some_and(|words| !words.contains(value)) {
                return Err(format!("{at} cannot be {value}"));
            }
            self.fits(&field.r#type, value, &at)?;
        }
        Ok(())
    }

    fn fits(&self, kind: &Value, value: &Value, at: &str) -> Result<(), String> {
        if let Some([item]) = kind.as_array().map(Vec::as_slice) {
            let items = value.as_array().ok_or_else(|| format!("{at} is not a list"))?;
            return items.iter().try_for_each(|one| self.fits(item, one, at));
        }
        let sound = match kind.as_str().unwrap() {
            "str" => value.is_string(),
            "int" => value.is_i64(),
            "bool" => value.is_boolean(),
            "float" => value.is_number(),
            "any" => true,
            name => return self.model(name, value, at),
        };
        if sound { Ok(()) } else { Err(format!("{at} is not {kind}: {value}")) }
    }

    fn model(&self, name: &str, value: &Value, at: &str) -> Result<(), String> {
        let model = &self.models[name];
        let own = model.fields.as_ref().map(|fields| self.fields(fields, value, at));
        let kinds = model.one.iter().map(|one| self.model(one, value, at));
        let mut reasons = Vec::new();
        for outcome in own.into_iter().chain(kinds) {
            match outcome {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!("{at} is no {name}: {}", reasons.join("; ")))
    }
}
