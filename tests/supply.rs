//! What comes into the build: its licences, where it comes from, and the list of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        // A machine that has built nothing else has the libraries of its own platform only.
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The list under a key of deny.toml that holds strings, one a line.
fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = text.split("\nallow = [").nth(1).unwrap().split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression can be met: any side of an OR, both sides of an AND.
fn met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let text = expression.replace(" / ", " OR ").replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    let holds = either(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "`{expression}` is not understood");
    holds
}

fn either(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut holds = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        let other = both(words, at, allowed);
        holds |= other;
    }
    holds
}

fn both(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut holds = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        let other = one(words, at, allowed);
        holds &= other;
    }
    holds
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let word = words[*at];
    *at += 1;
    if word == "(" {
        let holds = either(words, at, allowed);
        assert_eq!(words.get(*at), Some(&")"));
        *at += 1;
        return holds;
    }
    if words.get(*at) == Some(&"WITH") {
        let whole = format!("{word} WITH {}", words[*at + 1]);
        *at += 2;
        return allowed.contains(&whole);
    }
    allowed.contains(word)
}

#[test]
fn licences_can_be_met_and_everything_comes_from_the_registry() {
    let allowed = allowed();
    assert!(
        allowed.contains("MIT") && !met("GPL-3.0", &allowed) && met("(GPL-3.0 OR MIT) AND ISC", &allowed)
    );
    assert!(!met("GPL-3.0 AND MIT", &allowed));
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 200);
    for package in packages {
        let name = package["name"].as_str().unwrap();
        match package["source"].as_str() {
            None => assert!(
                package["manifest_path"].as_str().unwrap().starts_with(root().to_str().unwrap()),
                "{name}"
            ),
            Some(source) => {
                assert!(source.starts_with("registry+"), "{name} comes from {source}");
                let licence = package["license"].as_str().unwrap_or_default();
                assert!(
                    met(licence, &allowed),
                    "{name} is under `{licence}`, which deny.toml does not allow"
                );
            }
        }
    }
}

#[test]
fn the_bill_of_materials_lists_what_is_linked_and_no_more() {
    let out = tempfile::tempdir().unwrap();
    let made = Command::new(root().join("tools/package"))
        .arg("sbom")
        .env("OUT", out.path())
        .env("CARGO_NET_OFFLINE", "true")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = std::fs::read(out.path().join("tarbet.cdx.json")).unwrap();
    let bill: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((bill["bomFormat"].as_str(), bill["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    let names: BTreeSet<&str> =
        bill["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    for linked in ["rustls", "tokio", "tarbet-reach", "redb"] {
        assert!(names.contains(linked), "{linked} is missing");
    }
    // The last is what a feature of a library could bring in, and none of ours does.
    for foreign in ["proptest", "insta", "tarbet-testbed", "ring"] {
        assert!(!names.contains(foreign), "{foreign} is not part of the program");
    }
}
