//! Compiles the discovery messages of `proto/` without `protoc`.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let files: Vec<PathBuf> = ["envoy/service/discovery/v3/ads.proto", "federation/v1alpha1/service.proto"]
        .iter()
        .map(|file| root.join(file))
        .collect();
    for folder in ["envoy", "federation", "google"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    let descriptors = protox::compile(&files, [&root])?;
    tonic_prost_build::configure()
        // A fixed order makes the bytes of equal services equal.
        .btree_map(".")
        .include_file("discovery.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
