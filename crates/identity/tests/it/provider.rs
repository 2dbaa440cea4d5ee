//! One crypto library.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustls::NamedGroup;
use rustls::crypto::CryptoProvider;

/// What must not be compiled in beside `aws-lc-rs`, on this platform, by any crate of the workspace.
const OTHERS: [&str; 8] = [
    "ring",
    "rustls-ring",
    "rustls-graviola",
    "rustls-openssl",
    "openssl-sys",
    "native-tls",
    "boring-sys",
    "rustls-rustcrypto",
];

#[test]
fn no_second_crypto_library_is_in_the_tree() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()
        .context("cargo tree")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packages = String::from_utf8(output.stdout)?;
    let names: Vec<_> = packages.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"aws-lc-rs"), "the listing has another form than expected");
    for other in OTHERS {
        assert!(
            !names.contains(&other),
            "{other} is compiled in; find who asks for it with `cargo tree -i {other}`"
        );
    }
    Ok(())
}

#[test]
fn the_default_of_the_process_is_ours() {
    tarbet_identity::tls::install_default_provider();
    tarbet_identity::tls::install_default_provider();
    let provider = CryptoProvider::get_default().unwrap();
    // Hybrid post-quantum key exchange comes first; no other provider here offers it.
    assert_eq!(provider.kx_groups[0].name(), NamedGroup::X25519MLKEM768);
    // With two providers compiled in and none chosen this would panic.
    let _ = rustls::ServerConfig::builder();
}
