//! Tells the linker how to lay out the program that is shipped, for a process pays for code by the page.
//!
//! The kernel maps sixteen pages of a program around each one that is touched, so code that runs but
//! stands scattered makes most of the program resident. `layout.txt` names the functions that roles run,
//! and the linker puts them side by side: a role then holds about what it uses. Names that are no longer
//! there are passed over, so an old list costs memory and never a build; `tools/layout` writes a new one.

#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=layout.txt");
    println!("cargo::rerun-if-changed=build.rs");
    if !is("PROFILE", "release") || !links_with_lld() {
        return;
    }
    say(concat!("--symbol-ordering-file=", env!("CARGO_MANIFEST_DIR"), "/layout.txt"));
    say("--no-warn-symbol-ordering");
    // Functions that came out alike are kept once.
    say("--icf=all");
    if loader_takes_packed_relocations() {
        // Bits instead of 24 bytes for each address that is fixed at the start.
        say("-z,pack-relative-relocs");
    }
}

fn say(option: &str) {
    println!("cargo::rustc-link-arg-bins=-Wl,{option}");
}

fn is(name: &str, value: &str) -> bool {
    env::var(name).is_ok_and(|found| found == value)
}

/// Rust's own linker is used here unless somebody chose another; others do not know these options.
fn links_with_lld() -> bool {
    let here = is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_ENV", "gnu");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    here && env::var_os("RUSTC_LINKER").is_none() && !flags.contains("link")
}

/// The C library reads packed relocations since 2.36.
fn loader_takes_packed_relocations() -> bool {
    let Ok(told) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else { return false };
    let version = String::from_utf8_lossy(&told.stdout);
    let mut parts = version.trim().rsplit(' ').next().unwrap_or_default().split('.');
    let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
    (next(), next()) >= (Some(2), Some(36))
}
