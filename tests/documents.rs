//! What the documents say is so: the tests they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every test of the tree, by its name.
fn tests() -> BTreeSet<String> {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir()
                && path.file_name().is_some_and(|name| name != "target" && name != "node_modules")
            {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.lines().filter_map(|line| {
                    let line = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
                    line.split('(').next().map(str::to_owned)
                });
                found.extend(names);
            }
        }
    }
    let mut found = BTreeSet::new();
    for folder in ["crates", "tests"] {
        walk(&root().join(folder), &mut found);
    }
    found
}

#[test]
fn every_promise_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    let tests = tests();
    let promised: Vec<&str> = page.lines().filter(|line| line.starts_with("| **P")).collect();
    assert_eq!(promised.len(), 7);
    for line in page.lines().filter(|line| line.starts_with("| **P") || line.starts_with("Also proved")) {
        let named: Vec<&str> = line.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        assert!(!named.is_empty(), "{line}");
        for name in named {
            assert!(tests.contains(name), "docs/SECURITY.md names the test `{name}`, which does not exist");
        }
    }
}

#[test]
fn every_place_where_something_is_tried_exists() {
    let page = fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    let (_, table) = page.split_once("| tried | how often | where |").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 30, "{rows:?}");
    for row in rows {
        let places = row.trim_end_matches(" |").rsplit('|').next().unwrap();
        let places: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        assert!(!places.is_empty(), "{row}");
        for place in places {
            assert!(root().join(place).is_file(), "docs/SECURITY.md names {place}, which does not exist");
        }
    }
}
