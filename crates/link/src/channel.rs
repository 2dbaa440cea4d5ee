//! A byte stream over a link.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::duplex::{Duplex, take_into};
use crate::error::{Denial, LinkError};
use crate::lane::{Backlog, Lane};
use crate::wire;

/// The most that is copied out of a writer's buffer at once.
const LARGEST_WRITE: usize = 256 * 1024;

pub(crate) struct Channel {
    lane: Arc<Lane>,
    chunk: Bytes,
    opening: Opening,
}

enum Opening {
    Done,
    // Bytes may be sent before the agent has answered; they cannot be read.
    Waiting(ResponseFuture),
    Refused(Box<Denial>),
}

impl Channel {
    pub(crate) fn open(lane: Arc<Lane>) -> Self {
        Self { lane, chunk: Bytes::new(), opening: Opening::Done }
    }

    pub(crate) fn opening(lane: Arc<Lane>, response: ResponseFuture) -> Self {
        Self { lane, chunk: Bytes::new(), opening: Opening::Waiting(response) }
    }

    /// Ready once the agent has accepted the stream.
    pub(crate) fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match &mut self.opening {
            Opening::Done => Poll::Ready(Ok(())),
            Opening::Refused(denial) => Poll::Ready(Err(LinkError::Denied(denial.clone()))),
            Opening::Waiting(response) => {
                let response = ready!(Pin::new(response).poll(cx))
                    .map_err(|error| self.lane.shared().call_error(&error))?;
                self.opening = match accepted(response) {
                    Ok(stream) => {
                        self.lane.attach_recv(stream);
                        Opening::Done
                    }
                    Err(denial) => {
                        self.lane.reset(h2::Reason::CANCEL);
                        Opening::Refused(Box::new(denial))
                    }
                };
                self.poll_opened(cx)
            }
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        ready!(self.poll_opened(cx))?;
        Poll::Ready(Ok(ready!(self.lane.poll_data(cx)).transpose()?))
    }
}

fn accepted(response: Response<RecvStream>) -> Result<RecvStream, Denial> {
    let (parts, stream) = response.into_parts();
    if parts.status.is_success() {
        return Ok(stream);
    }
    Err(wire::read_denial(&parts).unwrap_or_else(|| {
        Denial::new(
            parts.status,
            tarbet_telemetry::codes::reach::PROTOCOL_VIOLATION.id,
            "The agent gave no reason.",
        )
    }))
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other end of the stream takes no more bytes")
}

impl AsyncRead for Channel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.chunk.is_empty() {
            match ready!(this.poll_chunk(cx))? {
                Some(chunk) => this.chunk = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        take_into(&mut this.chunk, buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let wanted = buf.len().min(LARGEST_WRITE);
        let Some(room) = ready!(self.lane.poll_room(cx, wanted)) else { return Poll::Ready(Err(gone())) };
        let count = room.min(wanted);
        if self.lane.send(Bytes::copy_from_slice(&buf[..count]), false) {
            Poll::Ready(Ok(count))
        } else {
            Poll::Ready(Err(gone()))
        }
    }

    // The driver of the link writes whatever is queued.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream that is gone already needs no end.
        self.lane.send(Bytes::new(), true);
        Poll::Ready(Ok(()))
    }
}

impl Duplex for Channel {
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.chunk.is_empty() {
            self.poll_chunk(cx)
        } else {
            Poll::Ready(Ok(Some(std::mem::take(&mut self.chunk))))
        }
    }

    fn backlog(&self) -> Option<Backlog> {
        Some(Backlog::of(&self.lane))
    }

    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        if chunk.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let Some(room) = ready!(self.lane.poll_room(cx, chunk.len())) else {
            return Poll::Ready(Err(gone()));
        };
        let piece = chunk.split_to(room.min(chunk.len()));
        Poll::Ready(if self.lane.send(piece, false) { Ok(()) } else { Err(gone()) })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.lane.abandon();
    }
}
