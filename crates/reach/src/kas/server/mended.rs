//! [`Mender`] on a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::kas::mend::Mender;

/// Read at once. On the stack, so that an idle connection holds no buffer.
const CHUNK: usize = 16 << 10;

/// A connection whose incoming HTTP/2 is mended on the way.
#[derive(Debug)]
pub struct Mended<S> {
    inner: S,
    mender: Mender,
    ready: BytesMut,
}

impl<S> Mended<S> {
    /// From the first byte of the connection on.
    pub fn new(inner: S) -> Self {
        Self { inner, mender: Mender::default(), ready: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // A chunk may hold only the beginning of a header block, from which nothing comes out yet.
        while this.ready.is_empty() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.mender
                .push(chunk.filled(), &mut this.ready)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        let count = this.ready.len().min(target.remaining());
        target.put_slice(&this.ready[..count]);
        this.ready.advance(count);
        if this.ready.is_empty() {
            this.ready = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
