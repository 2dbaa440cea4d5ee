//! Whatever a page shows to be typed is run, or says why it is not.

use std::fs;

use super::frame::{blocks, root};

/// Words with which a line is a command.
const PROGRAMS: [&str; 9] =
    ["tarbet", "kubectl", "helm", "docker", "curl", "sudo", "istioctl", "systemctl", "redis-cli"];

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let mut pages: Vec<_> =
        fs::read_dir(root().join("docs/guides")).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.push(root().join("README.md"));
    let mut wrong = Vec::new();
    for path in pages {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = fs::read_to_string(&path).unwrap();
        for (kind, block) in blocks(&page) {
            let command = block.iter().find(|line| {
                let first = line.trim_start().trim_start_matches("$ ").split_whitespace().next();
                first.is_some_and(|word| PROGRAMS.contains(&word))
            });
            let excused = kind.strip_prefix("sh not run: ").is_some_and(|reason| reason.len() > 10);
            match command {
                Some(line) if kind != "console" && !excused => wrong.push(format!("{name}: `{line}`")),
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
