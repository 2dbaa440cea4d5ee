//! Gzip for single gRPC messages: bounded, checked, and without an allocation for the state.

use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Crc, Decompress, FlushDecompress, Status};

/// A compressed message that cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GunzipError {
    /// It is not gzip, or damaged.
    #[error("the gzip data is damaged")]
    Damaged,
    /// It would unpack to more than allowed.
    #[error("it unpacks to more than {limit} bytes")]
    TooLarge {
        /// The most that is allowed.
        limit: usize,
    },
}

thread_local! {
    /// Some 40 KiB of state, which one message after another can use.
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// Unpacks one member, to at most `limit` bytes. Memory grows with what comes out, not with what is claimed.
pub fn gunzip(input: &[u8], limit: usize) -> Result<Bytes, GunzipError> {
    let start = header(input).ok_or(GunzipError::Damaged)?;
    // A cell that is borrowed cannot happen here, but a fresh state is right in any case.
    INFLATE.with(|cell| match cell.try_borrow_mut() {
        Ok(mut inflate) => {
            inflate.reset(false);
            unpack(&mut inflate, &input[start..], limit)
        }
        Err(_) => unpack(&mut Decompress::new(false), &input[start..], limit),
    })
}

fn unpack(inflate: &mut Decompress, input: &[u8], limit: usize) -> Result<Bytes, GunzipError> {
    let mut output: Vec<u8> = Vec::with_capacity(input.len().saturating_mul(2).clamp(64, limit.max(64)));
    loop {
        let consumed = usize::try_from(inflate.total_in()).unwrap_or(usize::MAX).min(input.len());
        let before = output.len();
        let status = inflate
            .decompress_vec(&input[consumed..], &mut output, FlushDecompress::None)
            .map_err(|_| GunzipError::Damaged)?;
        if output.len() > limit {
            return Err(GunzipError::TooLarge { limit });
        }
        match status {
            Status::StreamEnd => break,
            Status::Ok | Status::BufError if output.len() == output.capacity() => {
                // One byte more than allowed is enough to know that it is too much.
                let more = output.len().clamp(64, 1 << 20).min(limit + 1 - output.len());
                output.reserve_exact(more.max(1));
            }
            Status::Ok if output.len() > before => {}
            Status::Ok | Status::BufError => return Err(GunzipError::Damaged),
        }
    }
    let consumed = usize::try_from(inflate.total_in()).unwrap_or(usize::MAX);
    let trailer = input.get(consumed..).and_then(|rest| <[u8; 8]>::try_from(rest).ok());
    let [c0, c1, c2, c3, s0, s1, s2, s3] = trailer.ok_or(GunzipError::Damaged)?;
    let mut crc = Crc::new();
    crc.update(&output);
    if crc.sum() != u32::from_le_bytes([c0, c1, c2, c3])
        || crc.amount() != u32::from_le_bytes([s0, s1, s2, s3])
    {
        return Err(GunzipError::Damaged);
    }
    Ok(output.into())
}

/// The length of a member's header (RFC 1952, section 2.3).
fn header(input: &[u8]) -> Option<usize> {
    const FHCRC: u8 = 2;
    const FEXTRA: u8 = 4;
    const FNAME: u8 = 8;
    const FCOMMENT: u8 = 16;

    let [0x1f, 0x8b, 8, flags, ..] = *input else { return None };
    let mut at = 10;
    if flags & FEXTRA != 0 {
        let length = input.get(at..at + 2)?;
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    for flag in [FNAME, FCOMMENT] {
        if flags & flag != 0 {
            at += input.get(at..)?.iter().position(|byte| *byte == 0)? + 1;
        }
    }
    if flags & FHCRC != 0 {
        at += 2;
    }
    (flags & 0xe0 == 0 && at <= input.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, GzBuilder, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(gunzip(&bomb, 4 << 20), Err(GunzipError::TooLarge { limit: 4 << 20 }));
        let fits = gzip(&vec![7; 4 << 20]);
        assert_eq!(gunzip(&fits, 4 << 20).unwrap().len(), 4 << 20);
        assert_eq!(gunzip(&fits, (4 << 20) - 1), Err(GunzipError::TooLarge { limit: (4 << 20) - 1 }));
    }

    #[test]
    fn long_headers_are_skipped_and_short_ones_refused() {
        let mut encoder = GzBuilder::new()
            .filename("name")
            .comment("comment")
            .extra(vec![1, 2, 3])
            .write(Vec::new(), Compression::fast());
        encoder.write_all(b"hello").unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(&gunzip(&packed, 100).unwrap()[..], b"hello");
        for length in 0..packed.len() {
            assert!(gunzip(&packed[..length], 100).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out(data in proptest::collection::vec(any::<u8>(), 0..5000), runs in 1usize..8) {
            let data = data.repeat(runs);
            prop_assert_eq!(&gunzip(&gzip(&data), 1 << 20).unwrap()[..], &data[..]);
        }

        #[test]
        fn damage_never_passes(data in proptest::collection::vec(any::<u8>(), 1..300), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut packed = gzip(&data);
            let at = at.index(packed.len());
            packed[at] ^= 1 << bit;
            // Some bits carry no meaning: the time in the header, the padding behind the last block.
            if let Ok(out) = gunzip(&packed, 1 << 20) {
                prop_assert_eq!(&out[..], &data[..]);
            }
        }

        #[test]
        fn noise_is_refused_quietly(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = gunzip(&data, 1000);
            let mut framed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0];
            framed.extend(data);
            let _ = gunzip(&framed, 1000);
        }
    }
}
