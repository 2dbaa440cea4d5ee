//! A JSON Schema as rows: the path of each setting, what it takes, its default, what it is for.

use std::fmt::Write;

use serde_json::Value;

use super::cell;

/// Settings deeper than this are described by their parents.
const DEEPEST: usize = 7;

/// What a reference, or the one choice beside null, stands for.
fn resolved<'a>(mut shape: &'a Value, root: &'a Value) -> &'a Value {
    loop {
        if let Some(path) = shape["$ref"].as_str() {
            let Some(found) = root.pointer(path.trim_start_matches('#')) else { return shape };
            shape = found;
            continue;
        }
        let choices = shape["anyOf"].as_array().or(shape["allOf"].as_array());
        let mut real = choices.into_iter().flatten().filter(|choice| choice["type"] != "null");
        match (real.next(), real.next()) {
            (Some(only), None) => shape = only,
            _ => return shape,
        }
    }
}

/// The properties of an object, whatever stands between.
pub(super) fn properties<'a>(shape: &'a Value, root: &'a Value) -> Vec<(String, &'a Value)> {
    let shape = resolved(shape, root);
    let named =
        shape["properties"].as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value));
    // Each choice of a tagged kind has settings of its own.
    let choices = shape["oneOf"].as_array().or(shape["anyOf"].as_array()).into_iter().flatten();
    let mut found: Vec<_> = named.collect();
    for choice in choices {
        for (name, value) in properties(choice, root) {
            if !found.iter().any(|(known, _)| *known == name) {
                found.push((name, value));
            }
        }
    }
    found
}

pub(super) fn description(shape: &Value, root: &Value) -> String {
    let own = shape["description"].as_str().or_else(|| resolved(shape, root)["description"].as_str());
    own.unwrap_or_default().trim().to_owned()
}

pub(super) fn first_upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// What a setting takes, in a word.
fn kind(shape: &Value, root: &Value) -> String {
    let shape = resolved(shape, root);
    if let Some(values) = shape["enum"].as_array() {
        return values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let choices: Vec<&str> = shape["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|choice| choice["const"].as_str())
        .collect();
    if !choices.is_empty() {
        return choices.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    let types: Vec<&str> = match &shape["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => {
            several.iter().filter_map(Value::as_str).filter(|one| *one != "null").collect()
        }
        _ => vec![],
    };
    match types.as_slice() {
        ["array"] => format!("list of {}", kind(&shape["items"], root)),
        ["object"] if shape["additionalProperties"].is_object() => {
            format!("map to {}", kind(&shape["additionalProperties"], root))
        }
        [] => "any".into(),
        several => several.join(" or "),
    }
}

/// A table of everything below a shape.
pub(super) fn table(path: &str, shape: &Value, root: &Value, defaults: Option<&Value>) -> String {
    let mut rows = String::from("| setting | takes | default | what |\n|---|---|---|---|\n");
    let none = rows.len();
    below(path, shape, root, defaults, 0, &mut rows);
    if rows.len() == none {
        let default = defaults.map(shown).unwrap_or_default();
        writeln!(
            rows,
            "| `{path}` | {} | {default} | {} |",
            kind(shape, root),
            cell(&description(shape, root))
        )
        .unwrap();
    }
    rows
}

fn below(path: &str, shape: &Value, root: &Value, defaults: Option<&Value>, depth: usize, rows: &mut String) {
    for (name, inner) in properties(shape, root) {
        let path = format!("{path}.{name}");
        let default = defaults.and_then(|all| all.get(&name)).or(inner.get("default"));
        let real = resolved(inner, root);
        let (target, path) = match real["type"].as_str() {
            Some("array") => (&real["items"], format!("{path}[]")),
            _ if real["additionalProperties"].is_object() => {
                (&real["additionalProperties"], format!("{path}.*"))
            }
            _ => (inner, path),
        };
        let deeper = depth < DEEPEST && !properties(target, root).is_empty();
        let about = cell(&description(inner, root));
        let leaf = path.trim_end_matches("[]").trim_end_matches(".*");
        let default_shown = if deeper { String::new() } else { default.map(shown).unwrap_or_default() };
        writeln!(rows, "| `{leaf}` | {} | {default_shown} | {about} |", cell(&kind(inner, root))).unwrap();
        if deeper {
            below(&path, target, root, default, depth + 1, rows);
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{}`", cell(text)),
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        other => format!("`{}`", cell(&other.to_string())),
    }
}
