//! The fuzz targets on a stable compiler: the kept corpus, and small changes of it.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use tarbet_testbed::verified;

/// A generator whose numbers depend on nothing but its seed, so that a failure happens again.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// One small change: a bit, a byte, a cut, a repetition or a joint with another seed.
fn change(seed: &[u8], other: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=chance.below(3) {
        let at = chance.below(bytes.len() + 1);
        match chance.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
            1 if at < bytes.len() => {
                bytes[at] = [0, 0xff, b'/', b'%', b'.', b'\n', b'"', b'{'][chance.below(8)];
            }
            2 => bytes.truncate(at),
            3 => bytes.insert(at, chance.below(256) as u8),
            4 => bytes.extend_from_within(at.min(bytes.len())..),
            _ => bytes.extend_from_slice(&other[..chance.below(other.len() + 1)]),
        }
    }
    bytes
}

#[test]
fn no_input_of_the_corpus_or_near_it_breaks_a_parser() {
    let effort = tarbet_testbed::effort();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, parse) in targets::TARGETS {
        let mut seeds: Vec<Vec<u8>> = vec![Vec::new()];
        if let Ok(files) = fs::read_dir(corpus.join(name)) {
            let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
            files.sort();
            seeds.extend(files.iter().map(|file| fs::read(file).unwrap()));
        }
        for seed in &seeds {
            parse(seed);
        }
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
        for round in 0..2_000 * effort {
            let other = &seeds[chance.below(seeds.len())];
            let input = change(&seeds[round % seeds.len()], other, &mut chance);
            let outcome = std::panic::catch_unwind(|| parse(&input));
            assert!(outcome.is_ok(), "{name} broke on {:?}", String::from_utf8_lossy(&input));
        }
        verified(&format!("strange bytes for the parser `{name}`"), seeds.len() + 2_000 * effort);
    }
}
