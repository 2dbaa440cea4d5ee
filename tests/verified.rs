//! The page of counts is honest about a run that failed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use tarbet_testbed::Folder;

/// Writes the page after a run, and gives it.
fn page(folder: &Folder, commit: &str, tried: &[(&str, usize)], failed: &str, part: &str) -> String {
    let mut lines = String::new();
    for (promise, tried) in tried {
        writeln!(lines, r#"{{"promise": "{promise}", "tried": {tried}}}"#).unwrap();
    }
    let counts = folder.write("counts", &lines).unwrap();
    let failures = folder.write("failures", failed).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/verified.py");
    let words = [script.as_path(), &counts, folder.path(), commit.as_ref(), &failures, part.as_ref()];
    let ran = Command::new("python3").args(words).env("EFFORT", "10").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    std::fs::read_to_string(folder.path().join("VERIFIED.md")).unwrap()
}

fn row<'a>(page: &'a str, promise: &str) -> Option<&'a str> {
    page.lines().find(|line| line.starts_with(&format!("| {promise} |")))
}

#[test]
fn a_row_that_a_failed_run_did_not_renew_says_so() {
    let folder = Folder::new("verified").unwrap();
    let whole = page(&folder, "aaa", &[("kills", 20), ("cuts", 5), ("cuts", 6)], "", "");
    assert!(row(&whole, "Kills").unwrap().starts_with("| Kills | 20 | 0 | 10 | aaa |"), "{whole}");
    assert!(row(&whole, "Cuts").unwrap().starts_with("| Cuts | 11 | 0 | 10 | aaa |"), "{whole}");
    assert!(!whole.contains("failed:"), "{whole}");

    let broken = page(&folder, "bbb-dirty", &[("cuts", 12)], "faults::a_kill_is_survived\n", "");
    let missed = "| Kills | 20 | not renewed by the failed run of bbb-dirty | 10 | aaa |";
    assert!(row(&broken, "Kills").unwrap().starts_with(missed), "{broken}");
    assert!(row(&broken, "Cuts").unwrap().starts_with("| Cuts | 12 | 0 | 10 | bbb-dirty |"), "{broken}");
    assert!(broken.contains("- `faults::a_kill_is_survived` (bbb-dirty, "), "{broken}");

    // A part renews its own rows; what failed elsewhere still did.
    let part = page(&folder, "ccc", &[("cuts", 13)], "", "-p tarbet-store");
    assert!(row(&part, "Kills").unwrap().starts_with(missed), "{part}");
    assert!(row(&part, "Cuts").unwrap().starts_with("| Cuts | 13 | 0 | 10 | ccc |"), "{part}");
    assert!(part.contains("a_kill_is_survived"), "{part}");
    let part = page(&folder, "ddd", &[], "crash\n", "-p tarbet-store");
    assert!(part.contains("- `crash` (ddd, ") && part.contains("a_kill_is_survived"), "{part}");

    // All of it held: nothing is left of what failed, nor of what nobody tries any more.
    let whole = page(&folder, "eee", &[("kills", 21)], "", "");
    assert!(row(&whole, "Kills").unwrap().starts_with("| Kills | 21 | 0 | 10 | eee |"), "{whole}");
    assert!(row(&whole, "Cuts").is_none() && !whole.contains("failed:"), "{whole}");
}
