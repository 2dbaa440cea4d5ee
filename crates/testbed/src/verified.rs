//! How often a promise was put to the test, for the page that `make verify` writes.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

/// Notes that a promise was tried so many times and held each time: call it after the last assertion.
///
/// It writes a line to the file that `TARBET_COUNTS` names, and does nothing without one.
///
/// # Panics
/// If the file cannot be written: a count must not get lost.
pub fn verified(promise: &str, tried: usize) {
    let Some(file) = std::env::var_os("TARBET_COUNTS") else { return };
    let line = format!("{}\n", json!({"promise": promise, "tried": tried}));
    let file = OpenOptions::new().create(true).append(true).open(file);
    // One call, so that lines of several programs do not mix.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(written.is_ok(), "the count of `{promise}` cannot be written: {written:?}");
}
