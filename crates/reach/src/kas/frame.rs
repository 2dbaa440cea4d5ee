//! gRPC's own framing: a flag, a length, a message. Sans I/O.

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use prost::Message;
use tonic::Status;

use super::gzip::{GunzipError, gunzip};

/// The most one message may hold, packed or unpacked; the limit every gRPC peer has by default.
pub const MAX_MESSAGE: usize = 4 << 20;

const PREFIX: usize = 5;

/// A frame that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("a message of {size} bytes, where {limit} are allowed")]
    TooLarge {
        /// What the prefix claims.
        size: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// The flag is neither 0 nor 1.
    #[error("a message with the unknown flag {0}")]
    Flag(u8),
    /// Flagged as compressed in a stream that announced no compression.
    #[error("a compressed message in a stream without grpc-encoding")]
    Encoding,
    /// It does not unpack.
    #[error(transparent)]
    Gunzip(#[from] GunzipError),
    /// The stream ended inside a message.
    #[error("the stream ended inside a message")]
    Truncated,
    /// An encoding that is not spoken here.
    #[error("the encoding of the stream is neither identity nor gzip")]
    UnknownEncoding,
}

impl From<FrameError> for Status {
    fn from(error: FrameError) -> Self {
        let message = format!("gRPC framing: {error}");
        match error {
            FrameError::TooLarge { .. } | FrameError::Gunzip(GunzipError::TooLarge { .. }) => {
                Self::resource_exhausted(message)
            }
            FrameError::UnknownEncoding => Self::unimplemented(message),
            FrameError::Flag(_) | FrameError::Encoding | FrameError::Gunzip(_) | FrameError::Truncated => {
                Self::internal(message)
            }
        }
    }
}

/// Turns chunks of a body into messages. A message that lies within one chunk is not copied.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    gzip: bool,
    /// What is left of the newest chunk.
    rest: Bytes,
    /// The beginning of something that older chunks did not complete.
    partial: BytesMut,
    /// Flag and length, once the prefix is complete.
    expected: Option<(bool, usize)>,
}

impl Decoder {
    /// For a stream with these headers.
    pub fn new(headers: &HeaderMap) -> Result<Self, FrameError> {
        let gzip = match headers.get("grpc-encoding").map(http::HeaderValue::as_bytes) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return Err(FrameError::UnknownEncoding),
        };
        Ok(Self::with(gzip, MAX_MESSAGE))
    }

    /// With everything said.
    pub fn with(gzip: bool, limit: usize) -> Self {
        Self { limit, gzip, rest: Bytes::new(), partial: BytesMut::new(), expected: None }
    }

    /// The next chunk of the body. All messages must have been taken before.
    pub fn push(&mut self, chunk: Bytes) {
        if !self.rest.is_empty() {
            self.partial.extend_from_slice(&self.rest);
        }
        self.rest = chunk;
    }

    /// The next whole message, unpacked; `None` until more is pushed.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        let (packed, length) = if let Some(expected) = self.expected {
            expected
        } else {
            let Some(prefix) = self.take(PREFIX) else { return Ok(None) };
            let flag = prefix[0];
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            if flag > 1 {
                return Err(FrameError::Flag(flag));
            }
            if flag == 1 && !self.gzip {
                return Err(FrameError::Encoding);
            }
            if length > self.limit {
                return Err(FrameError::TooLarge { size: length, limit: self.limit });
            }
            self.expected = Some((flag == 1, length));
            (flag == 1, length)
        };
        let Some(message) = self.take(length) else { return Ok(None) };
        self.expected = None;
        if packed { Ok(Some(gunzip(&message, self.limit)?)) } else { Ok(Some(message)) }
    }

    /// The body ended; it may do so only between messages.
    pub fn end(&self) -> Result<(), FrameError> {
        if self.expected.is_some() || !self.partial.is_empty() || !self.rest.is_empty() {
            return Err(FrameError::Truncated);
        }
        Ok(())
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        if self.partial.is_empty() {
            if self.rest.len() >= length {
                return Some(self.rest.split_to(length));
            }
        } else if self.partial.len() + self.rest.len() >= length {
            // The prefix may have left the beginning of its message here as well.
            if self.partial.len() > length {
                return Some(self.partial.split_to(length).freeze());
            }
            let missing = self.rest.split_to(length - self.partial.len());
            self.partial.extend_from_slice(&missing);
            return Some(std::mem::take(&mut self.partial).freeze());
        }
        if !self.rest.is_empty() {
            // Not more than what came: a claimed length is no reason to allocate it.
            self.partial.extend_from_slice(&std::mem::take(&mut self.rest));
        }
        None
    }
}

/// Writes one message that is already encoded.
pub fn put_raw(buffer: &mut BytesMut, message: &[u8]) {
    buffer.reserve(PREFIX + message.len());
    put_prefix(buffer, message.len());
    buffer.put_slice(message);
}

/// Writes one message.
pub fn put(buffer: &mut BytesMut, message: &impl Message) {
    let length = message.encoded_len();
    buffer.reserve(PREFIX + length);
    put_prefix(buffer, length);
    message.encode_raw(buffer);
}

/// Writes a message whose field `field` is a message whose only field, number 1, holds `payload`.
///
/// That is the form of every payload frame of the protocol. Writing it in one go saves encoding the
/// payload into a buffer of its own first.
pub fn put_enclosed(buffer: &mut BytesMut, field: u8, payload: &impl Message) {
    const BYTES: u8 = 2;
    let length = payload.encoded_len();
    // As everywhere in proto3, an empty field is not written.
    let inner = if length == 0 { 0 } else { 1 + prost::length_delimiter_len(length) + length };
    let outer = 1 + prost::length_delimiter_len(inner) + inner;
    buffer.reserve(PREFIX + outer);
    put_prefix(buffer, outer);
    buffer.put_u8(field << 3 | BYTES);
    put_length(buffer, inner);
    if length > 0 {
        buffer.put_u8(1 << 3 | BYTES);
        put_length(buffer, length);
        payload.encode_raw(buffer);
    }
}

fn put_prefix(buffer: &mut BytesMut, length: usize) {
    buffer.put_u8(0);
    // Chunks of the protocol are far below what 32 bits hold.
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn put_length(buffer: &mut BytesMut, length: usize) {
    prost::encoding::encode_varint(length as u64, buffer);
}

/// Bytes as they are, where a message is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Raw(pub Bytes);

impl Message for Raw {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        // Only ever written.
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;
    use crate::kas::proto::{kas, reverse_tunnel as tunnel};

    fn framed(message: &[u8], packed: bool) -> Vec<u8> {
        let body = if packed {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(message).unwrap();
            encoder.finish().unwrap()
        } else {
            message.to_vec()
        };
        let mut out = vec![u8::from(packed)];
        out.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        out.extend(body);
        out
    }

    fn all(decoder: &mut Decoder) -> Vec<Bytes> {
        std::iter::from_fn(|| decoder.next_message().unwrap()).collect()
    }

    #[test]
    fn a_message_within_one_chunk_is_a_slice_of_it() {
        let chunk = Bytes::from([framed(b"one", false), framed(b"two", false)].concat());
        let mut decoder = Decoder::with(false, 100);
        decoder.push(chunk.clone());
        let messages = all(&mut decoder);
        assert_eq!(messages, ["one", "two"]);
        let range = chunk.as_ptr_range();
        assert!(messages.iter().all(|message| range.contains(&message.as_ptr())));
    }

    #[test]
    fn refusals() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", "snappy".parse().unwrap());
        let error = Decoder::new(&headers).unwrap_err();
        assert_eq!(Status::from(error).code(), tonic::Code::Unimplemented);

        let cases = [
            (framed(&[0; 101], false), false, tonic::Code::ResourceExhausted),
            (framed(&[0; 101], true), true, tonic::Code::ResourceExhausted),
            (framed(b"x", true), false, tonic::Code::Internal),
            (vec![2, 0, 0, 0, 0], true, tonic::Code::Internal),
            (vec![1, 0, 0, 0, 3, 1, 2, 3], true, tonic::Code::Internal),
        ];
        for (bytes, gzip, code) in cases {
            let mut decoder = Decoder::with(gzip, 100);
            decoder.push(bytes.into());
            assert_eq!(Status::from(decoder.next_message().unwrap_err()).code(), code);
        }
    }

    #[test]
    fn enclosed_payloads_are_what_prost_would_write() {
        for size in [0, 1, 100, 127, 128, 16_000, 40_000] {
            let data = Bytes::from(vec![7u8; size]);
            let (mut ours, mut theirs) = (BytesMut::new(), BytesMut::new());
            put_enclosed(&mut ours, 3, &Raw(data.clone()));
            let msg = tunnel::connect_request::Msg::Message(tunnel::Message { data: data.clone() });
            put(&mut theirs, &tunnel::ConnectRequest { msg: Some(msg) });
            assert_eq!(ours, theirs, "{size}");
            let msg = kas::gateway_kas_response::Msg::Message(kas::gateway_kas_response::Message { data });
            theirs.clear();
            put(&mut theirs, &kas::GatewayKasResponse { msg: Some(msg) });
            assert_eq!(ours, theirs, "{size}");
        }
    }

    proptest! {
        /// However the bytes are cut, the same messages come out.
        #[test]
        fn cuts_do_not_matter(
            messages in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..8),
            cuts in proptest::collection::vec(1usize..50, 1..20),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|(message, packed)| framed(message, *packed)).collect();
            let mut decoder = Decoder::with(true, 1000);
            let (mut out, mut at, mut cut) = (Vec::new(), 0, cuts.iter().cycle());
            while at < bytes.len() {
                let end = bytes.len().min(at + cut.next().unwrap());
                decoder.push(Bytes::copy_from_slice(&bytes[at..end]));
                out.extend(all(&mut decoder));
                at = end;
            }
            prop_assert!(decoder.end().is_ok());
            let expected: Vec<_> = messages.iter().map(|(message, _)| Bytes::copy_from_slice(message)).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn noise_never_panics(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10)) {
            let mut decoder = Decoder::with(true, 64);
            for chunk in chunks {
                decoder.push(chunk.into());
                while let Ok(Some(_)) = decoder.next_message() {}
            }
            let _ = decoder.end();
        }
    }
}
