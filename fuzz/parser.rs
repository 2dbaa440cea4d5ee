#![no_main]

mod targets;

use std::sync::LazyLock;

/// The parser that the environment names.
static PARSE: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("PARSER").expect("PARSER names what to fuzz, such as PARSER=jwt");
    let (_, parse) = targets::TARGETS.iter().find(|(name, _)| *name == wanted).expect("a parser of targets.rs");
    *parse
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| PARSE(data));
