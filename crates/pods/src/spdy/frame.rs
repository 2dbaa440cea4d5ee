//! The frames of SPDY/3.1, without a socket.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::header::{Headers, Packer, Unpacker};

/// No control frame of Kubernetes comes near this.
const MAX_CONTROL: usize = 64 * 1024;
/// A frame of data may say up to this much in its length.
pub(super) const MAX_DATA: usize = 0xff_ffff;
const HEAD: usize = 8;
const VERSION: u16 = 3;
const FIN: u8 = 1;

/// Reasons to reset a stream.
pub mod reset {
    /// Something is wrong with its frames.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// Not now, or not like this.
    pub const REFUSED_STREAM: u32 = 3;
    /// Not wanted any more.
    pub const CANCEL: u32 = 5;
}

/// What travels. Long frames of data are handed out in pieces as they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// Odd from the one who dialled.
        stream: u32,
        /// Nothing more comes from the opener.
        fin: bool,
        /// What it is for.
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply {
        /// Which.
        stream: u32,
        /// Nothing more comes from the one who accepts.
        fin: bool,
        /// The answer.
        headers: Headers,
    },
    /// Ends a stream at once.
    RstStream {
        /// Which.
        stream: u32,
        /// Why, see [`reset`].
        status: u32,
    },
    /// Told about the connection; nothing in it matters here.
    Settings,
    /// To be sent back.
    Ping(u32),
    /// No further streams.
    GoAway {
        /// The last stream that was taken.
        last: u32,
        /// 0 when all is well.
        status: u32,
    },
    /// More names and values of a stream.
    Headers {
        /// Which.
        stream: u32,
        /// Nothing more comes.
        fin: bool,
        /// What is added.
        headers: Headers,
    },
    /// Never waited for.
    WindowUpdate,
    /// Content.
    Data {
        /// Of which stream.
        stream: u32,
        /// Nothing more comes.
        fin: bool,
        /// A piece of it.
        content: Bytes,
    },
}

/// Bytes that are not SPDY/3.1 as it is spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Another version of the protocol.
    #[error("a frame of version {0} instead of 3")]
    Version(u16),
    /// Too long, or too short for what it is.
    #[error("a frame of kind {kind} with {length} bytes")]
    Length {
        /// The kind of frame.
        kind: u16,
        /// Its length.
        length: usize,
    },
    /// A block of names and values that cannot be unpacked.
    #[error("a block of headers that cannot be read")]
    Headers,
}

/// Reads the frames of one direction.
#[derive(Default)]
pub struct Decoder {
    unpacker: Unpacker,
    /// What is left of a frame of data.
    data: Option<(u32, usize, bool)>,
}

impl Decoder {
    /// Takes the next frame off `from`; `None` until there is more.
    pub fn read(&mut self, from: &mut BytesMut) -> Result<Option<Frame>, BadFrame> {
        loop {
            if let Some((stream, left, fin)) = self.data {
                if from.is_empty() && left > 0 {
                    return Ok(None);
                }
                let content = from.split_to(left.min(from.len())).freeze();
                let left = left - content.len();
                self.data = (left > 0).then_some((stream, left, fin));
                return Ok(Some(Frame::Data { stream, fin: fin && left == 0, content }));
            }
            if from.len() < HEAD {
                return Ok(None);
            }
            let first = u32::from_be_bytes([from[0], from[1], from[2], from[3]]);
            let (flags, length) = (from[4], u32::from_be_bytes([0, from[5], from[6], from[7]]) as usize);
            if first >> 31 == 0 {
                from.advance(HEAD);
                self.data = Some((first, length, flags & FIN != 0));
                continue;
            }
            let (version, kind) = ((first >> 16) as u16 & 0x7fff, first as u16);
            if version != VERSION {
                return Err(BadFrame::Version(version));
            }
            if length > MAX_CONTROL {
                return Err(BadFrame::Length { kind, length });
            }
            if from.len() < HEAD + length {
                return Ok(None);
            }
            from.advance(HEAD);
            let body = from.split_to(length).freeze();
            if let Some(frame) = self.control(kind, flags, body)? {
                return Ok(Some(frame));
            }
        }
    }

    fn control(&mut self, kind: u16, flags: u8, mut body: Bytes) -> Result<Option<Frame>, BadFrame> {
        let length = body.len();
        let need =
            |bytes: usize| if length < bytes { Err(BadFrame::Length { kind, length }) } else { Ok(()) };
        let fin = flags & FIN != 0;
        let id = |body: &mut Bytes| body.get_u32() & 0x7fff_ffff;
        let frame = match kind {
            1 => {
                need(10)?;
                let stream = id(&mut body);
                body.advance(6);
                Frame::SynStream { stream, fin, headers: self.unpacker.unpack(&body)? }
            }
            2 => {
                need(4)?;
                let stream = id(&mut body);
                Frame::SynReply { stream, fin, headers: self.unpacker.unpack(&body)? }
            }
            3 => {
                need(8)?;
                Frame::RstStream { stream: id(&mut body), status: body.get_u32() }
            }
            4 => Frame::Settings,
            6 => {
                need(4)?;
                Frame::Ping(body.get_u32())
            }
            7 => {
                need(8)?;
                Frame::GoAway { last: id(&mut body), status: body.get_u32() }
            }
            8 => {
                need(4)?;
                let stream = id(&mut body);
                Frame::Headers { stream, fin, headers: self.unpacker.unpack(&body)? }
            }
            9 => Frame::WindowUpdate,
            // What is not known is passed over, as the standard asks.
            _ => return Ok(None),
        };
        Ok(Some(frame))
    }
}

/// Writes the frames of one direction.
#[derive(Default)]
pub struct Encoder {
    packer: Packer,
}

impl Encoder {
    /// Appends a frame to `out`.
    pub fn write(&mut self, frame: &Frame, out: &mut BytesMut) -> Result<(), BadFrame> {
        fn head(out: &mut BytesMut, kind: u16, fin: bool, length: usize) {
            out.put_u32((1 << 31) | (u32::from(VERSION) << 16) | u32::from(kind));
            out.put_u32((u32::from(fin) << 24) | length as u32);
        }
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                let block = self.packer.pack(headers)?;
                head(out, 1, *fin, 10 + block.len());
                out.put_u32(*stream);
                out.put_u32(0);
                out.put_u16(0);
                out.put(block);
            }
            Frame::SynReply { stream, fin, headers } | Frame::Headers { stream, fin, headers } => {
                let kind = if matches!(frame, Frame::SynReply { .. }) { 2 } else { 8 };
                let block = self.packer.pack(headers)?;
                head(out, kind, *fin, 4 + block.len());
                out.put_u32(*stream);
                out.put(block);
            }
            Frame::RstStream { stream, status } => {
                head(out, 3, false, 8);
                out.put_u32(*stream);
                out.put_u32(*status);
            }
            Frame::Ping(id) => {
                head(out, 6, false, 4);
                out.put_u32(*id);
            }
            Frame::GoAway { last, status } => {
                head(out, 7, false, 8);
                out.put_u32(*last);
                out.put_u32(*status);
            }
            // Never said by us.
            Frame::Settings | Frame::WindowUpdate => {}
            Frame::Data { stream, fin, content } => {
                let mut pieces = content.chunks(MAX_DATA).peekable();
                if pieces.peek().is_none() {
                    out.put_u32(*stream);
                    out.put_u32(u32::from(*fin) << 24);
                }
                while let Some(piece) = pieces.next() {
                    let last = *fin && pieces.peek().is_none();
                    out.reserve(HEAD + piece.len());
                    out.put_u32(*stream);
                    out.put_u32((u32::from(last) << 24) | piece.len() as u32);
                    out.put_slice(piece);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let headers = || proptest::collection::vec(("[a-z]{1,10}", "[ -~]{0,40}"), 0..4);
        let id = || 0u32..=0x7fff_ffff;
        prop_oneof![
            (id(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynStream {
                stream,
                fin,
                headers
            }),
            (id(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynReply {
                stream,
                fin,
                headers
            }),
            (id(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::Headers {
                stream,
                fin,
                headers
            }),
            (id(), any::<u32>()).prop_map(|(stream, status)| Frame::RstStream { stream, status }),
            any::<u32>().prop_map(Frame::Ping),
            (id(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (id(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(stream, fin, content)| Frame::Data { stream, fin, content: content.into() }),
        ]
    }

    /// Pieces of data put together again.
    fn whole(frames: Vec<Frame>) -> Vec<Frame> {
        let mut out: Vec<Frame> = Vec::new();
        let mut open = false;
        for frame in frames {
            match (frame, out.last_mut()) {
                (
                    Frame::Data { stream, fin, content },
                    Some(Frame::Data { stream: known, fin: last, content: before }),
                ) if open && *known == stream => {
                    *before = [&before[..], &content[..]].concat().into();
                    *last = fin;
                }
                (frame, _) => {
                    open = matches!(frame, Frame::Data { .. });
                    out.push(frame);
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(frames in proptest::collection::vec(frame(), 1..8), cut in 1usize..90) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            let mut wire = BytesMut::new();
            for frame in &frames {
                encoder.write(frame, &mut wire).unwrap();
            }
            let (mut arrived, mut read) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                arrived.extend_from_slice(piece);
                while let Some(frame) = decoder.read(&mut arrived).unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(whole(read), whole(frames));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut wire = BytesMut::from(&bytes[..]);
            let mut decoder = Decoder::default();
            while let Ok(Some(_)) = decoder.read(&mut wire) {}
        }
    }

    #[test]
    fn what_is_not_known_is_passed_over_and_what_is_too_long_refused() {
        let mut wire =
            BytesMut::from(&[0x80, 3, 0, 77, 0, 0, 0, 2, 1, 2, 0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 9][..]);
        assert_eq!(Decoder::default().read(&mut wire), Ok(Some(Frame::Ping(9))));
        let mut wire = BytesMut::from(&[0x80, 3, 0, 1, 0, 0xff, 0, 0][..]);
        assert!(matches!(Decoder::default().read(&mut wire), Err(BadFrame::Length { .. })));
        let mut wire = BytesMut::from(&[0x80, 2, 0, 1, 0, 0, 0, 0][..]);
        assert_eq!(Decoder::default().read(&mut wire), Err(BadFrame::Version(2)));
    }
}
