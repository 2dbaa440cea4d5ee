#![no_main]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (_, parse) = targets::TARGETS.iter().find(|(name, _)| *name == "jwt").expect("a target of this name");
    parse(data);
});
