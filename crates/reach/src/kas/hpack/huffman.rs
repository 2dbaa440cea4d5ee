//! The Huffman code of HPACK. It is canonical, so the lengths of the codes are all there is to know.

use bytes::Bytes;

use super::HpackError;

const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
const LONGEST: usize = 30;

/// The length of each symbol's code (RFC 7541, appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

struct Code {
    /// The first code of each length.
    first: [u32; LONGEST + 1],
    /// How many codes have each length.
    count: [u32; LONGEST + 1],
    /// Where the symbols of each length begin below.
    start: [u16; LONGEST + 1],
    /// Symbols by length, then by value.
    symbols: [u16; SYMBOLS],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut code = Code {
        first: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        start: [0; LONGEST + 1],
        symbols: [0; SYMBOLS],
    };
    let mut next = 0;
    let mut placed = 0;
    let mut length = 1;
    while length <= LONGEST {
        next <<= 1;
        code.first[length] = next;
        code.start[length] = placed as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                code.symbols[placed] = symbol as u16;
                placed += 1;
                next += 1;
            }
            symbol += 1;
        }
        code.count[length] = next - code.first[length];
        length += 1;
    }
    code
}

pub(super) fn decode(text: &[u8]) -> Result<Bytes, HpackError> {
    // The shortest code has five bits.
    let mut out = Vec::with_capacity(text.len() * 8 / 5);
    let (mut bits, mut length) = (0u32, 0usize);
    for byte in text {
        for shift in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let rank = bits.wrapping_sub(CODE.first[length]);
            if rank < CODE.count[length] {
                let symbol = CODE.symbols[usize::from(CODE.start[length]) + rank as usize];
                if symbol == END_OF_STRING {
                    return Err(HpackError::Huffman);
                }
                out.push(symbol as u8);
                (bits, length) = (0, 0);
            } else if length == LONGEST {
                return Err(HpackError::Huffman);
            }
        }
    }
    // What is left over is less than a byte of the end's code, which is all ones.
    if length > 7 || bits != (1 << length) - 1 {
        return Err(HpackError::Huffman);
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for symbol in text {
            let length = usize::from(LENGTHS[usize::from(*symbol)]);
            let start = usize::from(CODE.start[length]);
            let rank = CODE.symbols[start..].iter().position(|s| *s == u16::from(*symbol)).unwrap();
            let code = CODE.first[length] + u32::try_from(rank).unwrap();
            bits.extend((0..length).rev().map(|shift| code >> shift & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8).map(|chunk| chunk.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    #[test]
    fn the_code_is_complete() {
        let taken: u64 = LENGTHS.iter().map(|length| 1u64 << (LONGEST - usize::from(*length))).sum();
        assert_eq!(taken, 1 << LONGEST);
    }

    proptest! {
        #[test]
        fn there_and_back_and_as_others_read_it(text in proptest::collection::vec(any::<u8>(), 0..100)) {
            let coded = encode(&text);
            prop_assert_eq!(&decode(&coded).unwrap()[..], &text[..]);
            prop_assert_eq!(loona_hpack::huffman::HuffmanDecoder::new().decode(&coded).unwrap(), text);
        }

        #[test]
        fn noise_is_read_as_others_read_it(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let ours = decode(&bytes).map(|text| text.to_vec()).ok();
            prop_assert_eq!(ours, loona_hpack::huffman::HuffmanDecoder::new().decode(&bytes).ok());
        }
    }
}
