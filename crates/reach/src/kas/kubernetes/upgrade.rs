//! The stream behind a 101, at the gateway: frames that look like a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tarbet_link::Duplex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::Status;

use super::CHUNK;
use super::body::Responses;
use crate::kas::call::CallSend;
use crate::kas::outbox::Gone;
use crate::kas::proto::grpctool;

/// Dropped before both sides have ended, it cancels the call.
pub(super) struct UpgradedCall {
    send: CallSend,
    responses: Responses,
    chunk: Bytes,
    ended: bool,
}

impl UpgradedCall {
    pub(super) fn new(send: CallSend, responses: Responses) -> Self {
        Self { send, responses, chunk: Bytes::new(), ended: false }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        use grpctool::http_response::Message as Kind;
        while self.chunk.is_empty() && !self.ended {
            match ready!(self.responses.poll_frame(cx)) {
                Ok(Some(Kind::UpgradeData(data))) => self.chunk = data.data,
                Ok(None) => self.ended = true,
                Ok(Some(_)) => {
                    self.ended = true;
                    return Poll::Ready(Err(broken(self.responses.refuse("a body after an upgrade"))));
                }
                Err(status) => {
                    self.ended = true;
                    return Poll::Ready(Err(broken(status)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn put(&mut self, data: Bytes) {
        let data = grpctool::http_request::UpgradeData { data };
        let message = Some(grpctool::http_request::Message::UpgradeData(data));
        self.send.push(&grpctool::HttpRequest { message });
        self.send.flush();
    }
}

fn broken(status: Status) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, status)
}

fn gone(_: Gone) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

impl Duplex for UpgradedCall {
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        ready!(self.poll_chunk(cx))?;
        let chunk = std::mem::take(&mut self.chunk);
        Poll::Ready(Ok((!chunk.is_empty()).then_some(chunk)))
    }

    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        ready!(self.send.poll_room(cx)).map_err(gone)?;
        let data = chunk.split_to(chunk.len().min(CHUNK));
        self.put(data);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for UpgradedCall {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_chunk(cx))?;
        let count = this.chunk.len().min(target.remaining());
        target.put_slice(&this.chunk[..count]);
        this.chunk.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedCall {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.send.poll_room(cx)).map_err(gone)?;
        let count = data.len().min(CHUNK);
        this.put(Bytes::copy_from_slice(&data[..count]));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().send.shut();
        Poll::Ready(Ok(()))
    }
}
