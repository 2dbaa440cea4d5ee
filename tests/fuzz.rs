//! The fuzz targets on a stable compiler: the kept corpus, and small changes of it.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::path::Path;

use tarbet_testbed::{effort, strange_bytes, verified};

#[test]
fn no_input_of_the_corpus_or_near_it_breaks_a_parser() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut counts = Vec::new();
    for (name, parse) in targets::TARGETS {
        let mut tried = 0;
        for input in strange_bytes(&corpus.join(name), 2_000 * effort()).unwrap() {
            let outcome = std::panic::catch_unwind(|| parse(&input));
            assert!(outcome.is_ok(), "{name} broke on {:?}", String::from_utf8_lossy(&input));
            tried += 1;
        }
        counts.push((name, tried));
    }
    for (name, tried) in counts {
        verified(&format!("strange bytes for the parser `{name}`"), tried);
    }
}
