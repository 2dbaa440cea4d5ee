//! Blocks of names and values, compressed with the dictionary of SPDY/3.
//!
//! All blocks of one direction are one zlib stream: a block that cannot be read spoils the rest, so
//! errors here end the connection.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::BadFrame;

/// A block may unpack to this much; Kubernetes' are below one hundred bytes.
const MAX_BLOCK: usize = 64 * 1024;

/// Names (in lower case) and values.
pub type Headers = Vec<(String, String)>;

/// The value of a header.
pub fn get<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
                    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 \
                    Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service \
                    UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, \
                    Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
                    application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
                    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// What both ends have read before the first byte.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS {
        dictionary.extend_from_slice(&(word.len() as u32).to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(TEXT.as_bytes());
    dictionary
});

/// Unpacks the blocks of one direction.
pub struct Unpacker(Decompress);

impl Default for Unpacker {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Unpacker {
    /// The names and values of the next block.
    pub fn unpack(&mut self, mut block: &[u8]) -> Result<Headers, BadFrame> {
        let mut plain = Vec::with_capacity(1024);
        loop {
            let (in_before, out_before) = (self.0.total_in(), plain.len());
            if plain.capacity() - plain.len() < 256 {
                plain.reserve(4096);
            }
            let outcome = self.0.decompress_vec(block, &mut plain, FlushDecompress::Sync);
            let taken = usize::try_from(self.0.total_in() - in_before).unwrap_or_default();
            block = block.get(taken..).unwrap_or_default();
            match outcome {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|_| BadFrame::Headers)?;
                    continue;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(BadFrame::Headers),
                Ok(Status::Ok | Status::BufError) => {}
            }
            if plain.len() > MAX_BLOCK {
                return Err(BadFrame::Headers);
            }
            // All is out once there was room left and nothing more came.
            let progress = taken > 0 || plain.len() > out_before;
            if !progress || (block.is_empty() && plain.len() < plain.capacity()) {
                break;
            }
        }
        if block.is_empty() { parse(&plain) } else { Err(BadFrame::Headers) }
    }
}

/// Packs the blocks of one direction.
pub struct Packer(Compress);

impl Default for Packer {
    fn default() -> Self {
        let mut compress = Compress::new(Compression::fast(), true);
        // Fails only in the middle of a stream.
        let _ = compress.set_dictionary(&DICTIONARY);
        Self(compress)
    }
}

impl Packer {
    /// The next block.
    pub fn pack(&mut self, headers: &Headers) -> Result<Bytes, BadFrame> {
        let mut plain = BytesMut::new();
        let put = |text: &str, plain: &mut BytesMut| {
            plain.put_u32(text.len() as u32);
            plain.put_slice(text.as_bytes());
        };
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            put(&name.to_ascii_lowercase(), &mut plain);
            put(value, &mut plain);
        }
        let (mut packed, mut rest) = (Vec::with_capacity(plain.len() + 256), &plain[..]);
        loop {
            if packed.capacity() - packed.len() < 64 {
                packed.reserve(1024);
            }
            let (before, room) = (self.0.total_in(), packed.capacity() - packed.len());
            let length = packed.len();
            self.0.compress_vec(rest, &mut packed, FlushCompress::Sync).map_err(|_| BadFrame::Headers)?;
            rest = &rest[usize::try_from(self.0.total_in() - before).unwrap_or_default()..];
            if rest.is_empty() && packed.len() - length < room {
                return Ok(packed.into());
            }
        }
    }
}

fn parse(mut plain: &[u8]) -> Result<Headers, BadFrame> {
    fn number(plain: &mut &[u8]) -> Result<usize, BadFrame> {
        let (head, rest) = plain.split_first_chunk::<4>().ok_or(BadFrame::Headers)?;
        *plain = rest;
        Ok(u32::from_be_bytes(*head) as usize)
    }
    fn text(plain: &mut &[u8]) -> Result<String, BadFrame> {
        let length = number(plain)?;
        let (text, rest) = plain.split_at_checked(length).ok_or(BadFrame::Headers)?;
        *plain = rest;
        String::from_utf8(text.to_vec()).map_err(|_| BadFrame::Headers)
    }
    let count = number(&mut plain)?;
    // Each pair takes eight bytes at least.
    if count > plain.len() / 8 {
        return Err(BadFrame::Headers);
    }
    let headers = (0..count).map(|_| Ok((text(&mut plain)?, text(&mut plain)?))).collect::<Result<_, _>>()?;
    if plain.is_empty() { Ok(headers) } else { Err(BadFrame::Headers) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_the_standards() {
        assert_eq!(DICTIONARY.len(), 1423);
        let sum = Compress::new(Compression::fast(), true).set_dictionary(&DICTIONARY).unwrap();
        assert_eq!(sum, 0xe3c6_a7c2);
    }

    proptest! {
        #[test]
        fn blocks_survive_one_after_another(
            blocks in proptest::collection::vec(
                proptest::collection::vec(("[a-z:]{1,12}", ".{0,300}"), 0..6), 1..6)
        ) {
            let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
            for block in blocks {
                let packed = packer.pack(&block).unwrap();
                prop_assert_eq!(unpacker.unpack(&packed).unwrap(), block);
            }
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Unpacker::default().unpack(&bytes);
        }
    }

    #[test]
    fn a_block_that_unpacks_without_end_is_refused() {
        let headers = vec![("a".to_owned(), "x".repeat(MAX_BLOCK * 16))];
        let packed = Packer::default().pack(&headers).unwrap();
        assert!(packed.len() < MAX_BLOCK);
        assert_eq!(Unpacker::default().unpack(&packed), Err(BadFrame::Headers));
    }
}
