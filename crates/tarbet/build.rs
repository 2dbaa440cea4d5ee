//! Tells the linker what the program is made of beside its crates, and how to lay it out.
//!
//! A static program looks names up by itself: `names.c` says where. The schema of the settings is packed: as text it
//! would be a hundred kilobytes of program.
//!
//! A process pays for code by the page, so the one that is shipped is laid out.
//! The kernel maps sixteen pages of a program around each one that is touched, so code that runs but
//! stands scattered makes most of the program resident. `layout.txt` names the functions that roles run,
//! and the linker puts them side by side: a role then holds about what it uses. Names that are no longer
//! there are passed over, so an old list costs memory and never a build; `tools/layout` writes a new one.

#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

use flate2::Compression;
use flate2::read::GzEncoder;

const SCHEMA: &str = "../../docs/reference/settings.schema.json";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={SCHEMA}");
    let packed = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("settings.schema.json.gz");
    let schema = fs::File::open(SCHEMA).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{SCHEMA}: {error}; restore it from git, and let tools/reference write it anew"),
        )
    })?;
    io::copy(&mut GzEncoder::new(schema, Compression::best()), &mut fs::File::create(packed)?)?;
    println!("cargo::rerun-if-changed=names.c");
    println!("cargo::rerun-if-changed=layout.txt");
    println!("cargo::rerun-if-changed=unwind.ld");
    println!("cargo::rerun-if-changed=build.rs");
    if is_linux_gnu() {
        link_names();
    }
    if !is("PROFILE", "release") || !links_with_lld() {
        return Ok(());
    }
    say(concat!("--symbol-ordering-file=", env!("CARGO_MANIFEST_DIR"), "/layout.txt"));
    say("--no-warn-symbol-ordering");
    // Functions that came out alike are kept once.
    say("--icf=all");
    // The tables of the standard library, which can unwind, and of all that it was compiled into.
    say(concat!("-T,", env!("CARGO_MANIFEST_DIR"), "/unwind.ld"));
    say("--no-eh-frame-hdr");
    if loader_takes_packed_relocations() {
        // Bits instead of 24 bytes for each address that is fixed at the start.
        say("-z,pack-relative-relocs");
    }
    Ok(())
}

fn say(option: &str) {
    println!("cargo::rustc-link-arg-bins=-Wl,{option}");
}

fn is(name: &str, value: &str) -> bool {
    env::var(name).is_ok_and(|found| found == value)
}

fn is_linux_gnu() -> bool {
    is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")
}

/// Given to the linker as it is: nothing calls it, so from a library it would not be taken.
fn link_names() {
    let object = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("names.o");
    let compiler = cc::Build::new().opt_level(2).pic(true).get_compiler();
    let made = compiler.to_command().args(["-c", "names.c", "-o"]).arg(&object).status();
    match made {
        Ok(status) if status.success() => println!("cargo::rustc-link-arg-bins={}", object.display()),
        other => {
            let compiler = compiler.path().display();
            println!("cargo::error=names.c could not be compiled with {compiler}: {other:?}");
        }
    }
}

/// Rust's own linker is used here unless somebody chose another; others do not know these options.
fn links_with_lld() -> bool {
    let here = is_linux_gnu() && is("CARGO_CFG_TARGET_ARCH", "x86_64");
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
