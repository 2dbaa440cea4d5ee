//! Bytes that nobody meant, near those that somebody did.

use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result};

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

/// Nothing, then each file of a folder as it is, then so many small changes of them.
pub fn strange_bytes(folder: &Path, changes: usize) -> Result<impl Iterator<Item = Vec<u8>>> {
    let files = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut files = files.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    let mut seeds: Vec<Vec<u8>> = vec![Vec::new()];
    for file in files {
        seeds.push(fs::read(file)?);
    }
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    Ok((0..seeds.len() + changes).map(move |round| {
        if let Some(seed) = seeds.get(round) {
            return seed.clone();
        }
        let other = &seeds[chance.below(seeds.len())];
        change(&seeds[round % seeds.len()], other, &mut chance)
    }))
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
