//! Work per hot path, counted by valgrind: it does not depend on how busy a machine is.
//!
//! What was counted before stands in `counts.json`. To take new counts over: `UPDATE=1 cargo test -p tarbet-benches`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tarbet_testbed::Folder;

/// What one turn of a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    instructions: u64,
    allocations: u64,
}

const PATHS: [&str; 6] = ["request", "policy", "job", "pod", "tag", "offer"];
const TURNS: u64 = 200;
/// Compilers and libraries move these a little; people who make a path dearer move them more.
const BAND_PERCENT: u64 = 5;

/// Everything a run takes, by DHAT.
fn run(valgrind: &Path, path: &str, turns: u64, folder: &Path) -> Count {
    let file = folder.join(format!("{path}-{turns}.json"));
    let ran = Command::new(valgrind)
        .arg("--tool=dhat")
        .arg(format!("--dhat-out-file={}", file.display()))
        .args([env!("CARGO_BIN_EXE_hotpath"), path, &turns.to_string()])
        .output()
        .expect("valgrind runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let profile: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let sites = profile["pps"].as_array().unwrap();
    Count {
        instructions: profile["te"].as_u64().unwrap(),
        allocations: sites.iter().map(|site| site["tbk"].as_u64().unwrap()).sum(),
    }
}

fn count(valgrind: &Path, path: &str) -> Count {
    let folder = Folder::new("counts").unwrap();
    let (few, many) =
        (run(valgrind, path, TURNS, folder.path()), run(valgrind, path, 2 * TURNS, folder.path()));
    Count {
        instructions: (many.instructions - few.instructions) / TURNS,
        allocations: (many.allocations - few.allocations) / TURNS,
    }
}

#[tokio::test]
async fn hot_paths_take_no_more_work_than_before() {
    let valgrind = tarbet_testbed::valgrind().await.unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.json");
    let (one, two) = PATHS.split_at(PATHS.len() / 2);
    let counted: BTreeMap<&str, Count> = std::thread::scope(|scope| {
        let halves = [one, two].map(|half| {
            let valgrind = &valgrind;
            scope.spawn(move || half.iter().map(|path| (*path, count(valgrind, path))).collect::<Vec<_>>())
        });
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, serde_json::to_string_pretty(&counted).unwrap() + "\n").unwrap();
        return;
    }
    let before: BTreeMap<String, Count> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut dearer = Vec::new();
    for (path, now) in &counted {
        let before = before[*path];
        let above = |now: u64, before: u64| now * 100 > before * (100 + BAND_PERCENT) + 100;
        if above(now.instructions, before.instructions) || above(now.allocations, before.allocations) {
            dearer.push(format!("{path}: {before:?} before, {now:?} now"));
        }
    }
    assert!(dearer.is_empty(), "dearer than before:\n{}", dearer.join("\n"));
}
