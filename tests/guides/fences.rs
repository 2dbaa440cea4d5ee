//! Whatever a page shows to be typed is run, or says why it is not; and whatever it shows to be written is
//! taken by the program, or by the cluster whose kinds we bring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tarbet_testbed::Folder;

use super::frame::{blocks, file_name, root};

/// Words with which a line is a command.
const PROGRAMS: [&str; 9] =
    ["tarbet", "kubectl", "helm", "docker", "curl", "sudo", "istioctl", "systemctl", "redis-cli"];

fn pages() -> Vec<(String, String)> {
    let guides = fs::read_dir(root().join("docs/guides")).unwrap().map(|entry| entry.unwrap().path());
    let pages = guides.chain([root().join("README.md")]);
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).unwrap())
    };
    pages.map(read).collect()
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let mut wrong = Vec::new();
    for (name, page) in pages() {
        for (kind, block) in blocks(&page) {
            let command = block.iter().find(|line| {
                let first = line.trim_start().trim_start_matches("$ ").split_whitespace().next();
                first.is_some_and(|word| PROGRAMS.contains(&word) || word.ends_with("/tarbet"))
            });
            let excused = kind.strip_prefix("sh not run: ").is_some_and(|reason| reason.len() > 10);
            let elsewhere = kind.strip_prefix("sh run: ").is_some_and(|test| taken_by(test, &name));
            match command {
                Some(line) if kind != "console" && !excused && !elsewhere => {
                    wrong.push(format!("{name}: `{line}`"));
                }
                _ => {}
            }
        }
        let has_commands = blocks(&page).iter().any(|(kind, _)| *kind == "console");
        assert!(!has_commands || followed(&name), "{name} has commands, and no test follows it");
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether a test follows the page.
fn followed(page: &str) -> bool {
    let tests = fs::read_dir(root().join("tests/guides")).unwrap();
    let call = format!("Guide::new(\"{page}\")");
    tests.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).any(|text| text.contains(&call))
}

/// Whether there is a test of that name in a file that reads the page.
fn taken_by(test: &str, page: &str) -> bool {
    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut found = Vec::new();
    sources(&root().join("tests"), &mut found);
    found.iter().any(|text| text.contains(&format!("fn {test}(")) && text.contains(page))
}

#[test]
fn every_piece_of_a_file_is_taken_by_what_reads_it() {
    let (folder, kinds) = (Folder::new("pieces").unwrap(), kinds());
    let (mut wrong, mut settings, mut specs) = (Vec::new(), 0, 0);
    for (name, page) in pages() {
        for (kind, block) in blocks(&page).into_iter().filter(|(kind, _)| kind.starts_with("yaml")) {
            let text = block.join("\n") + "\n";
            let told = if file_name(kind, &block).is_some() {
                // The guide uses it by its name.
                vec![]
            } else if kind == "yaml settings" {
                settings += 1;
                mistakes(&folder, &text)
            } else if let Some(kind) = kind.strip_prefix("yaml spec of ") {
                specs += 1;
                let object: Value = serde_saphyr::from_multiple::<Value>(&text).unwrap().swap_remove(0);
                let schema = kinds.iter().find(|(name, _)| name == kind).map(|(_, schema)| schema);
                let spec = object.get("spec").unwrap_or(&object);
                schema.map_or_else(|| vec![format!("no kind {kind}")], |schema| unknown(schema, spec, "spec"))
            } else {
                vec!["neither a file with a name nor `yaml settings` nor `yaml spec of KIND`".to_owned()]
            };
            wrong.extend(told.into_iter().map(|what| format!("{name}: {what}\n{text}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(settings > 3 && specs > 2, "only {settings} and {specs} pieces were found");
}

/// What the program finds wrong with a piece of a configuration.
fn mistakes(folder: &Folder, text: &str) -> Vec<String> {
    let file = folder.write("piece.yaml", text).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tarbet"));
    check.args(["config", "check", "--config"]).arg(&file).current_dir(folder.path());
    let said = check.env("HOME", folder.path()).output().unwrap();
    if said.status.success() { vec![] } else { vec![String::from_utf8_lossy(&said.stderr).into_owned()] }
}

/// The kinds we bring, each with the schema of its `spec`.
fn kinds() -> Vec<(String, Value)> {
    let files = fs::read_dir(root().join("deploy/crds")).unwrap().map(|entry| entry.unwrap().path());
    let definitions = files.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let mut definition: Value = serde_saphyr::from_str(&text).ok()?;
        let kind = definition["spec"]["names"]["kind"].as_str()?.to_owned();
        let schema = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec")?;
        Some((kind, schema.take()))
    };
    definitions.filter_map(read).collect()
}

/// Fields that the schema does not know, and values of another type than it has.
fn unknown(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let free = schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-int-or-string"] == true;
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer" | "number") => value.is_number(),
        _ => true,
    };
    if free || !fits {
        return if fits { vec![] } else { vec![format!("{place} is not of the type {}", schema["type"])] };
    }
    match value {
        Value::Object(fields) => {
            let of = |(name, value): (&String, &Value)| {
                let place = format!("{place}.{name}");
                let inner = schema["properties"].get(name);
                let inner =
                    inner.or_else(|| schema.get("additionalProperties").filter(|any| any.is_object()));
                inner.map_or_else(
                    || vec![format!("{place} is unknown")],
                    |inner| unknown(inner, value, &place),
                )
            };
            fields.iter().flat_map(of).collect()
        }
        Value::Array(items) => {
            let of = |(at, item): (usize, &Value)| unknown(&schema["items"], item, &format!("{place}[{at}]"));
            items.iter().enumerate().flat_map(of).collect()
        }
        _ => vec![],
    }
}

#[test]
fn fields_that_a_kind_does_not_have_are_found() {
    let schema = serde_json::json!({"type": "object", "properties": {
        "names": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    let found = |text: &str| unknown(&schema, &serde_saphyr::from_str(text).unwrap(), "spec");
    assert_eq!(found("{names: [a], labels: {x: z}}"), Vec::<String>::new());
    assert_eq!(found("{name: a}"), ["spec.name is unknown"]);
    assert_eq!(found("{names: [1]}"), ["spec.names[0] is not of the type \"string\""]);
    assert_eq!(found("{labels: {x: [z]}}"), ["spec.labels.x is not of the type \"string\""]);
}
