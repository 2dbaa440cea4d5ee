//! Compiles the messages of `proto/` without `protoc`.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let mut files = Vec::new();
    for family in ["gitlab", "google", "plural"] {
        let folder = root.join(family);
        println!("cargo::rerun-if-changed={}", folder.display());
        collect(&folder, &mut files)?;
    }
    files.sort();
    let descriptors = protox::compile(&files, [&root])?;
    prost_build::Config::new()
        // Payloads are slices of what was read, never copies.
        .bytes(["."])
        // Maps are small, and a fixed order makes frames comparable.
        .btree_map(["."])
        .include_file("kas_proto.rs")
        .compile_fds(descriptors)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
