//! The reference pages are made from the program itself: `tools/reference` writes them, this notices when they are stale.

mod commands;
mod schema;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use serde_json::Value;

use super::Cli;
use crate::config::Config;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a page with what it should be, or writes it.
fn keep(name: &str, page: &str) {
    let file = root().join("docs/reference").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, page).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(page.lines()).find(|(kept, new)| kept != new);
    assert!(kept == page, "docs/reference/{name} is stale, first at {differs:?}: run tools/reference");
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[test]
fn the_page_of_commands_is_true() {
    keep("commands.md", &commands::page(&Cli::command()));
}

#[test]
fn the_page_of_settings_is_true() {
    let schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap();
    keep("settings.schema.json", &format!("{}\n", serde_json::to_string_pretty(&schema).unwrap()));
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let mut page = String::from(
        "# Settings\n\nMade from the program by `tools/reference`; do not edit.\n\nOne YAML file (`--config`), then the environment \
         (`TARBET__STORE__PATH` sets `store.path`), then flags (`--set store.path=…`). `tarbet config check` finds every mistake, \
         `tarbet config show` prints what is in use, `tarbet config schema` is this page for editors.\n",
    );
    for (section, shape) in schema::properties(&schema, &schema) {
        let about = schema::description(shape, &schema);
        write!(page, "\n## {section}\n\n{}\n\n", schema::first_upper(&about)).unwrap();
        page.push_str(&schema::table(&section, shape, &schema, defaults.get(&section)));
    }
    keep("settings.md", &page);
}

#[test]
fn the_page_of_codes_is_true() {
    let mut page = String::from(
        "# Error codes\n\nMade from the program by `tools/reference`; do not edit.\n\nEvery failure has a code, the hop where it \
         happened, the cause and what to try. `tarbet explain CODE` prints the same. A code is never given a second meaning.\n",
    );
    for code in tarbet_telemetry::codes::all() {
        let retry = if code.retry { "Repeating may help." } else { "Repeating does not help." };
        write!(
            page,
            "\n## {}: {}\n\n| where | why | try |\n|---|---|---|\n| {} | {} | {} |\n\n{}\n\n{retry} HTTP {}, exit code {}.\n",
            code.id,
            code.title,
            cell(code.hop),
            cell(code.cause),
            cell(code.remedy),
            code.page.replace('<', "&lt;"),
            code.http,
            code.exit
        )
        .unwrap();
    }
    keep("codes.md", &page);
}

#[test]
fn the_page_of_kinds_is_true() {
    let mut files: Vec<_> =
        fs::read_dir(root().join("deploy/crds")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut page = String::from(
        "# Kinds\n\nMade from `deploy/crds` by `tools/reference`; do not edit. Those files are made from the program.\n",
    );
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
        let definition: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let (spec, version) = (&definition["spec"], &definition["spec"]["versions"][0]);
        let shape = &version["schema"]["openAPIV3Schema"];
        write!(
            page,
            "\n## {}\n\n`{}/{}`, {}. File: `deploy/crds/{}`\n",
            spec["names"]["kind"].as_str().unwrap(),
            spec["group"].as_str().unwrap(),
            version["name"].as_str().unwrap(),
            spec["scope"].as_str().unwrap().to_lowercase(),
            file.file_name().unwrap().display()
        )
        .unwrap();
        for part in ["spec", "status"] {
            let inner = &shape["properties"][part];
            if !inner.is_null() {
                write!(page, "\n{}\n\n", schema::first_upper(&schema::description(inner, shape))).unwrap();
                page.push_str(&schema::table(part, inner, shape, None));
            }
        }
    }
    keep("kinds.md", &page);
}
