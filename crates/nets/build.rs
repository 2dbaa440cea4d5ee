//! Compiles the messages of `proto/` without `protoc`.
//!
//! Two passes, because both generations of the tag service have the same package and message names.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let today = [
        "invisinetspb/invisinets.proto",
        "paragliderpb/paraglider.proto",
        "tagservicepb/tagservice.proto",
        "tagservicepb/kvstore.proto",
        "tarbet/nets/v1/nets.proto",
    ];
    compile(&root, &today, "today")?;
    compile(&root, &["tagservicepb-seed/tagservice.proto"], "seed")
}

fn compile(root: &Path, files: &[&str], name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join(name);
    std::fs::create_dir_all(&out)?;
    let files: Vec<PathBuf> = files.iter().map(|file| root.join(file)).collect();
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [root])?;
    tonic_prost_build::configure().out_dir(out).compile_fds(descriptors)?;
    Ok(())
}
