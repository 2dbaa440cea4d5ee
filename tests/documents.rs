//! What the documents say is so: commands run, tests exist, files are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tarbet_testbed::Folder;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The blocks of a page that are marked as shell.
fn blocks(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == "```sh" {
            found.push(lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_ten_minutes_go_as_written() {
    let page = fs::read_to_string(root().join("docs/guides/start.md")).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() >= 8, "the page has lost its commands");
    let folder = Folder::new("start").unwrap();
    let mut script =
        "set -euo pipefail\nmount -t tmpfs tmpfs /run\nmkdir -p /run/netns /run/lock\nip link set lo up\n"
            .to_owned();
    for block in blocks {
        script.push_str(&block);
        script.push('\n');
    }
    let script = folder.write("page.sh", &script).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_tarbet")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    // A network, processes and a /run of its own: the page's ports are the usual ones, and all ends with it.
    let mut command = tokio::process::Command::new("unshare");
    command
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"])
        .arg(script)
        .current_dir(folder.path())
        .env("PATH", path)
        .env("HOME", folder.path())
        .env_remove("TARBET_STATE")
        .env_remove("XDG_STATE_HOME")
        .env_remove("TARBET_CONFIG")
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(3), command.output()).await.unwrap().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    for shown in
        ["carried across", "default.local.client ──▶ default.local.web", "tcp/443", "● lab", "Ended process"]
    {
        assert!(said.contains(shown), "{shown} is missing in:\n{said}");
    }
    assert!(!folder.path().join(".local/state/tarbet").exists());
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
fn what_guides_say_can_be_typed_is_understood() {
    // Every `tarbet …` line of every page: its words are commands that have help.
    let mut pages = vec![root().join("README.md")];
    pages.extend(fs::read_dir(root().join("docs/guides")).unwrap().map(|entry| entry.unwrap().path()));
    let mut asked = BTreeSet::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut inside = false;
        for line in text.lines() {
            if line.starts_with("```") {
                inside = !inside;
            }
            let line = line.trim_start().trim_start_matches("sudo ");
            let Some(rest) = line.strip_prefix("tarbet ").filter(|_| inside) else { continue };
            let words: Vec<&str> = rest
                .split_whitespace()
                .take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()))
                .take(2)
                .collect();
            asked.insert((page.clone(), words.join(" ")));
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    for (page, words) in asked {
        // One word fewer if the second was an argument.
        let understood = (1..=words.split(' ').count()).rev().any(|count| {
            let words: Vec<&str> = words.split(' ').take(count).collect();
            let output =
                std::process::Command::new(env!("CARGO_BIN_EXE_tarbet")).args(&words).arg("--help").output();
            output.unwrap().status.success()
        });
        assert!(understood, "{}: `tarbet {words}` is no command", page.display());
    }
}
