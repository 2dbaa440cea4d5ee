//! The rules of the tree: who may depend on whom, what things may be called, how large files grow.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates from top to bottom. A crate may use those on later lines only; those on one line do
/// not know each other.
const LAYERS: &[&[&str]] = &[
    &["tarbet"],
    &["reach", "jobs", "pods", "nets", "mesh"],
    &["console"],
    &["link"],
    &["store"],
    &["identity"],
    &["cluster"],
    &["telemetry"],
    &["testbed"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn crates() -> Vec<(String, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
}

fn layer(name: &str) -> usize {
    LAYERS
        .iter()
        .position(|names| names.contains(&name))
        .unwrap_or_else(|| panic!("the crate `{name}` has no place in the layers of tests/tree.rs"))
}

/// Our crates that a manifest names in a section such as `dependencies`.
fn edges(manifest: &str, section: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(header) = line.strip_prefix('[') {
            inside = header.trim_end_matches(']') == section;
        } else if let Some(rest) = line.strip_prefix("tarbet-").filter(|_| inside) {
            found.insert(rest.split(['.', ' ', '=']).next().unwrap().to_owned());
        }
    }
    found
}

/// Every source file we wrote.
fn sources() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["target", "node_modules", "dist", ".git"].contains(&name.as_str()) {
                walk(&path, found);
            } else if path
                .extension()
                .is_some_and(|ext| ext == "rs" || ext == "go" || ext == "ts" || ext == "tsx")
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

#[test]
fn crate_edges_point_down_only() {
    for (name, path) in crates() {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        for used in edges(&manifest, "dependencies").union(&edges(&manifest, "build-dependencies")) {
            assert!(layer(&name) < layer(used), "{name} may not depend on {used}");
        }
        for used in edges(&manifest, "dev-dependencies") {
            assert!(layer(&name) < layer(&used), "the tests of {name} may not depend on {used}");
        }
    }
}

#[test]
fn only_the_outermost_crates_use_opaque_errors() {
    for (name, path) in crates() {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        let opaque = dependencies.lines().any(|line| line.starts_with("anyhow"));
        assert!(
            !opaque || ["tarbet", "testbed"].contains(&name.as_str()),
            "{name} is a library: its errors are types"
        );
    }
}

#[test]
fn libraries_that_must_stay_out_are_out() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let used: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(used.contains("aws-lc-rs"), "the list of what is used is not what this test takes it for");
    // One crypto library, one time library, one YAML library.
    for refused in ["ring", "openssl-sys", "native-tls", "chrono", "serde_yaml", "bincode"] {
        assert!(!used.contains(refused), "{refused} came into the build: see `cargo tree -i {refused}`");
    }
}

#[test]
fn each_crate_says_what_it_is_for() {
    let catalogue = fs::read_to_string(root().join("crates/README.md")).unwrap();
    for (name, path) in crates() {
        assert!(catalogue.contains(&format!("| `{name}` |")), "crates/README.md has no line for {name}");
        let main =
            ["src/lib.rs", "src/main.rs"].into_iter().map(|file| path.join(file)).find(|file| file.exists());
        let text = fs::read_to_string(main.unwrap()).unwrap();
        let header = text.lines().take_while(|line| line.starts_with("//!")).count();
        assert!(header >= 3, "{name} has no header that says what it is for");
    }
}

#[test]
fn names_say_something_and_files_stay_readable() {
    for path in sources() {
        let relative = path.strip_prefix(root()).unwrap().to_path_buf();
        for part in relative.with_extension("").components() {
            let part = part.as_os_str().to_string_lossy();
            let empty = ["mod", "common", "util", "utils", "helper", "helpers", "core", "misc"];
            assert!(!empty.contains(&&*part), "{}: `{part}` says nothing", relative.display());
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 800, "{} has {lines} lines: split it by idea", relative.display());
    }
}
