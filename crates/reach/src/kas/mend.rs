//! Mends the one thing in an agent's HTTP/2 stream that a strict server refuses.
//!
//! An agent that dials through a WebSocket names its whole target, escaped, as `:authority`, such as
//! `wss:%2F%2Fkas.example.org%2F`. That is not an authority, and HTTP/2 servers reset the stream. So the
//! header blocks on the way in are taken apart, an `:authority` that does not parse is replaced, and the
//! block is written again in plain literals, which need no table on the other side. All other frames
//! pass as they are. Sans I/O: bytes in, bytes out.

use bytes::{BufMut, Bytes, BytesMut};

use super::hpack::{Decoder, Field, HpackError, put_literal};

/// What an unusable authority becomes. The name can exist nowhere.
const AUTHORITY: &str = "agent.invalid";

const PREFACE: usize = 24;
const HEAD: usize = 9;
/// What one frame may hold unless a peer allows more.
const FRAME: usize = 16 << 10;
const MAX_BLOCK: usize = 16 << 10;
const MAX_LIST: usize = 64 << 10;
/// More frames than any block within the limit needs; empty ones could go on for ever.
const MAX_CONTINUATIONS: usize = 64;

const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A stream that cannot be mended. Its connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MendError {
    /// The header block is wrong or too large.
    #[error("HTTP/2 headers: {0}")]
    Headers(HpackError),
    /// A frame where it may not be.
    #[error("HTTP/2: a frame of a header block in the wrong place")]
    Order,
    /// A block of more than 16 KiB.
    #[error("HTTP/2: a header block of more than {MAX_BLOCK} bytes")]
    TooLarge,
    /// Padding or priority longer than the frame.
    #[error("HTTP/2: a header frame too short for what it announces")]
    Short,
}

/// The mender of one connection's incoming bytes.
#[derive(Debug)]
pub struct Mender {
    state: State,
    decoder: Decoder,
    /// The block that CONTINUATION frames must complete.
    open: Option<Block>,
}

#[derive(Debug)]
enum State {
    /// Bytes that pass unseen.
    Passing(usize),
    /// The head of a frame, as far as it is there.
    Head { bytes: [u8; HEAD], filled: usize },
    /// A frame of a header block, as far as it is there.
    Fragment { kind: u8, flags: u8, stream: u32, payload: BytesMut, missing: usize },
}

/// A header block in the making.
#[derive(Debug)]
struct Block {
    stream: u32,
    end_stream: bool,
    priority: Option<[u8; 5]>,
    bytes: BytesMut,
    frames: usize,
}

impl Default for Mender {
    fn default() -> Self {
        Self { state: State::Passing(PREFACE), decoder: Decoder::default(), open: None }
    }
}

impl Mender {
    /// Takes bytes as they arrive and appends what is to be read instead.
    pub fn push(&mut self, mut input: &[u8], output: &mut BytesMut) -> Result<(), MendError> {
        while !input.is_empty() {
            match &mut self.state {
                State::Passing(left) => {
                    let (now, later) = input.split_at(input.len().min(*left));
                    output.put_slice(now);
                    *left -= now.len();
                    input = later;
                    if *left == 0 {
                        self.state = State::Head { bytes: [0; HEAD], filled: 0 };
                    }
                }
                State::Head { bytes, filled } => {
                    let (now, later) = input.split_at(input.len().min(HEAD - *filled));
                    bytes[*filled..*filled + now.len()].copy_from_slice(now);
                    *filled += now.len();
                    input = later;
                    if *filled == HEAD {
                        let head = *bytes;
                        self.begin(head, output)?;
                    }
                }
                State::Fragment { payload, missing, .. } => {
                    let (now, later) = input.split_at(input.len().min(*missing));
                    payload.extend_from_slice(now);
                    *missing -= now.len();
                    input = later;
                }
            }
            if let State::Fragment { kind, flags, stream, payload, missing: 0 } = &mut self.state {
                let (kind, flags, stream, payload) = (*kind, *flags, *stream, payload.split().freeze());
                self.state = State::Head { bytes: [0; HEAD], filled: 0 };
                self.fragment(kind, flags, stream, payload, output)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, head: [u8; HEAD], output: &mut BytesMut) -> Result<(), MendError> {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let expected = match &self.open {
            Some(block) => kind == CONTINUATION && stream == block.stream,
            None => kind != CONTINUATION && kind != PUSH_PROMISE,
        };
        if !expected {
            return Err(MendError::Order);
        }
        self.state = if kind == HEADERS || kind == CONTINUATION {
            // A block, its padding and its priority.
            if length > MAX_BLOCK + 1 + 255 + 5 {
                return Err(MendError::TooLarge);
            }
            State::Fragment { kind, flags, stream, payload: BytesMut::new(), missing: length }
        } else {
            output.put_slice(&head);
            if length == 0 { State::Head { bytes: [0; HEAD], filled: 0 } } else { State::Passing(length) }
        };
        Ok(())
    }

    fn fragment(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: Bytes,
        output: &mut BytesMut,
    ) -> Result<(), MendError> {
        let mut block = if kind == HEADERS {
            let (priority, fragment) = unwrap_headers(flags, payload)?;
            let end_stream = flags & END_STREAM != 0;
            Block { stream, end_stream, priority, bytes: BytesMut::from(&fragment[..]), frames: 0 }
        } else {
            let mut block = self.open.take().ok_or(MendError::Order)?;
            block.bytes.extend_from_slice(&payload);
            block.frames += 1;
            block
        };
        if block.bytes.len() > MAX_BLOCK || block.frames > MAX_CONTINUATIONS {
            return Err(MendError::TooLarge);
        }
        if flags & END_HEADERS == 0 {
            self.open = Some(block);
            return Ok(());
        }
        block.bytes = self.rewrite(&block.bytes)?;
        put_block(&block, output);
        Ok(())
    }

    fn rewrite(&mut self, block: &[u8]) -> Result<BytesMut, MendError> {
        let mut plain = BytesMut::with_capacity(block.len() * 2);
        let mut size = 0;
        self.decoder
            .decode(block, |mut field| {
                size += field.size();
                if size > MAX_LIST {
                    return false;
                }
                mend(&mut field);
                put_literal(&mut plain, &field);
                true
            })
            .map_err(MendError::Headers)?;
        Ok(plain)
    }
}

fn mend(field: &mut Field) {
    if &field.name[..] == b":authority" && http::uri::Authority::try_from(&field.value[..]).is_err() {
        field.value = Bytes::from_static(AUTHORITY.as_bytes());
    }
}

/// Priority and fragment of a HEADERS frame.
fn unwrap_headers(flags: u8, mut payload: Bytes) -> Result<(Option<[u8; 5]>, Bytes), MendError> {
    if flags & PADDED != 0 {
        let padding = usize::from(*payload.first().ok_or(MendError::Short)?);
        let end = payload.len().checked_sub(padding).filter(|end| *end >= 1).ok_or(MendError::Short)?;
        payload = payload.slice(1..end);
    }
    let priority = if flags & PRIORITY != 0 {
        let five = payload.get(..5).and_then(|five| five.try_into().ok()).ok_or(MendError::Short)?;
        payload = payload.slice(5..);
        Some(five)
    } else {
        None
    };
    Ok((priority, payload))
}

/// Writes a block as HEADERS and as many CONTINUATION frames as it needs.
fn put_block(block: &Block, output: &mut BytesMut) {
    let lead = block.priority.as_ref().map_or(&[][..], |five| &five[..]);
    let mut rest = &block.bytes[..];
    let mut first = true;
    loop {
        let lead = if first { lead } else { &[] };
        let (now, later) = rest.split_at(rest.len().min(FRAME - lead.len()));
        let mut flags = if later.is_empty() { END_HEADERS } else { 0 };
        if first && block.end_stream {
            flags |= END_STREAM;
        }
        if !lead.is_empty() {
            flags |= PRIORITY;
        }
        let length = lead.len() + now.len();
        output.reserve(HEAD + length);
        output.put_uint(length as u64, 3);
        output.put_u8(if first { HEADERS } else { CONTINUATION });
        output.put_u8(flags);
        output.put_u32(block.stream);
        output.put_slice(lead);
        output.put_slice(now);
        (rest, first) = (later, false);
        if rest.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
