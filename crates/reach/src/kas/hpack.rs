//! HPACK (RFC 7541), the reading half, made for input from strangers.
//!
//! Everything is bounded while it is read: a dynamic table of 4096 bytes, which is all that our side of
//! a connection ever allows, and whatever the caller's own count of the list says. Names and values that
//! repeat are shared, not copied, so that a short block cannot be made to cost much.

mod huffman;
mod table;

use bytes::{BufMut, Bytes, BytesMut};

use self::table::Table;

/// A header block that cannot be taken. The connection it came on is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// It ends in the middle of something.
    #[error("the header block is cut short")]
    Truncated,
    /// A number of more than 28 bits.
    #[error("a number in the header block is too large")]
    Integer,
    /// An index into neither table.
    #[error("the header block refers to an entry that does not exist")]
    Index,
    /// Not a Huffman code.
    #[error("a string in the header block is not Huffman coded")]
    Huffman,
    /// A table larger than we allow, or resized in the middle of a block.
    #[error("the header block asks for a table that was not allowed")]
    TableSize,
    /// The caller had enough.
    #[error("the header list is too large")]
    List,
}

/// One header as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name; pseudo headers begin with a colon.
    pub name: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Whether it may never enter a table, on this hop or the next.
    pub sensitive: bool,
}

impl Field {
    /// What it counts for in a list, by the rule of HTTP/2.
    pub fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}

/// Reads the header blocks of one direction of one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    table: Table,
}

impl Decoder {
    /// Reads one whole block. `each` may stop it with `false`, which is an error like any other.
    pub fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field) -> bool) -> Result<(), HpackError> {
        let mut rest = block;
        let mut begun = false;
        while let Some(&first) = rest.first() {
            if first & 0xe0 == 0x20 {
                let size = integer(&mut rest, 5)?;
                if begun || !self.table.resize(size) {
                    return Err(HpackError::TableSize);
                }
                continue;
            }
            begun = true;
            let field = if first & 0x80 != 0 {
                let (name, value) = self.table.get(integer(&mut rest, 7)?).ok_or(HpackError::Index)?;
                Field { name, value, sensitive: false }
            } else {
                let indexed = first & 0x40 != 0;
                let index = integer(&mut rest, if indexed { 6 } else { 4 })?;
                let name = if index == 0 {
                    string(&mut rest)?
                } else {
                    self.table.get(index).ok_or(HpackError::Index)?.0
                };
                let value = string(&mut rest)?;
                if indexed {
                    self.table.insert(name.clone(), value.clone());
                }
                Field { name, value, sensitive: first & 0xf0 == 0x10 }
            };
            if !each(field) {
                return Err(HpackError::List);
            }
        }
        Ok(())
    }
}

/// Writes a header as a plain literal, which leaves every table as it is.
pub fn put_literal(buffer: &mut BytesMut, field: &Field) {
    buffer.put_u8(if field.sensitive { 0x10 } else { 0x00 });
    for text in [&field.name, &field.value] {
        put_integer(buffer, text.len());
        buffer.put_slice(text);
    }
}

/// With a prefix of seven bits, as before every string.
fn put_integer(buffer: &mut BytesMut, value: usize) {
    if value < 0x7f {
        buffer.put_u8(value as u8);
        return;
    }
    buffer.put_u8(0x7f);
    let mut rest = value - 0x7f;
    while rest >= 0x80 {
        buffer.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    buffer.put_u8(rest as u8);
}

fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let (&first, mut rest) = input.split_first().ok_or(HpackError::Truncated)?;
    let mask = (1usize << prefix) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        for shift in [0, 7, 14, 21] {
            let (&byte, after) = rest.split_first().ok_or(HpackError::Truncated)?;
            rest = after;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *input = rest;
                return Ok(value);
            }
        }
        return Err(HpackError::Integer);
    }
    *input = rest;
    Ok(value)
}

fn string(input: &mut &[u8]) -> Result<Bytes, HpackError> {
    let coded = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *input = rest;
    if coded { huffman::decode(text) } else { Ok(Bytes::copy_from_slice(text)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type List = Vec<(Vec<u8>, Vec<u8>)>;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, HpackError> {
        let mut list = Vec::new();
        decoder.decode(block, |field| {
            list.push((field.name.to_vec(), field.value.to_vec()));
            true
        })?;
        Ok(list)
    }

    fn pairs(list: &[(&str, &str)]) -> List {
        list.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// RFC 7541, appendix C.4: three requests on one connection, Huffman coded.
    #[test]
    fn the_examples_of_the_standard() {
        let mut decoder = Decoder::default();
        let first = unhex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff");
        let common =
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
        assert_eq!(decode(&mut decoder, &first).unwrap(), pairs(&common));
        let second = unhex("8286 84be 5886 a8eb 1064 9cbf");
        let mut expected = pairs(&common);
        expected.extend(pairs(&[("cache-control", "no-cache")]));
        assert_eq!(decode(&mut decoder, &second).unwrap(), expected);
        let third = unhex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
        let expected = pairs(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ]);
        assert_eq!(decode(&mut decoder, &third).unwrap(), expected);
    }

    #[test]
    fn refusals() {
        let cases: [(&[u8], HpackError); 9] = [
            (&[0x80], HpackError::Index),
            (&[0xbe], HpackError::Index),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f], HpackError::Integer),
            (&[0xff], HpackError::Truncated),
            (&[0x40], HpackError::Truncated),
            (&[0x00, 0x03, b'a'], HpackError::Truncated),
            (&[0x00, 0x81, 0x00, 0x00], HpackError::Huffman),
            (&[0x3f, 0xe2, 0x1f], HpackError::TableSize),
            (&[0x82, 0x20], HpackError::TableSize),
        ];
        for (block, error) in cases {
            assert_eq!(decode(&mut Decoder::default(), block), Err(error), "{block:x?}");
        }
    }

    #[test]
    fn a_short_block_that_repeats_a_long_value_stops_where_the_caller_says() {
        let mut block = vec![0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
        block.extend([b'y'; 4000]);
        let mut decoder = Decoder::default();
        decode(&mut decoder, &block).unwrap();
        let (mut seen, mut size) = (0, 0);
        let stopped = decoder.decode(&[0xbe; 10_000], |field| {
            seen += 1;
            size += field.size();
            size <= 64 << 10
        });
        assert_eq!((stopped, seen), (Err(HpackError::List), 17));
    }

    fn headers() -> impl Strategy<Value = List> {
        let name = prop_oneof![Just(":path".to_owned()), Just("authorization".to_owned()), "[a-z-]{1,12}"];
        let pair =
            (name, proptest::collection::vec(any::<u8>(), 0..60)).prop_map(|(n, v)| (n.into_bytes(), v));
        proptest::collection::vec(pair, 0..12)
    }

    proptest! {
        /// What another implementation writes, with all its tables, is read back.
        #[test]
        fn reads_what_others_write(blocks in proptest::collection::vec(headers(), 1..8)) {
            let mut encoder = loona_hpack::Encoder::new();
            let mut decoder = Decoder::default();
            for block in blocks {
                let bytes = encoder.encode(block.iter().map(|(n, v)| (&n[..], &v[..])));
                prop_assert_eq!(decode(&mut decoder, &bytes), Ok(block));
            }
        }

        /// What is written here is read by another implementation, and leaves its table empty.
        #[test]
        fn literals_are_read_by_others(block in headers()) {
            let mut bytes = BytesMut::new();
            for (name, value) in &block {
                let sensitive = value.len() % 2 == 0;
                put_literal(&mut bytes, &Field { name: name.clone().into(), value: value.clone().into(), sensitive });
            }
            let mut theirs = loona_hpack::Decoder::new();
            prop_assert_eq!(theirs.decode(&bytes).unwrap(), block);
            prop_assert!(theirs.decode(&[0xbe]).is_err());
        }

        /// On noise the two agree wherever both accept, and nothing panics.
        #[test]
        fn noise_is_read_alike(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6)) {
            let mut theirs = loona_hpack::Decoder::new();
            theirs.set_max_allowed_table_size(4096);
            let mut ours = Decoder::default();
            for block in blocks {
                match (decode(&mut ours, &block), theirs.decode(&block)) {
                    (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
                    _ => break,
                }
            }
        }
    }
}
