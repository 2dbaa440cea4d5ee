//! A stream of bytes in both directions, whatever carries it.
//!
//! Besides the usual reads and writes a stream can hand over and take whole chunks, so that a
//! relay between a socket and a link copies nothing and holds no buffer while it is idle.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::lane::Backlog;

/// How much a stream without its own way of reading chunks reads at once.
const CHUNK: usize = 16 * 1024;

/// Bytes in both directions that can also be moved in chunks.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// The next chunk as it lies in memory, `None` at the end.
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let mut buffer = BytesMut::zeroed(CHUNK);
        let mut target = ReadBuf::new(&mut buffer);
        ready!(Pin::new(&mut *self).poll_read(cx, &mut target))?;
        let filled = target.filled().len();
        buffer.truncate(filled);
        Poll::Ready(Ok((filled > 0).then(|| buffer.freeze())))
    }

    /// What lies at this end of a link unread, if the stream comes over one.
    fn backlog(&self) -> Option<Backlog> {
        None
    }

    /// Writes the beginning of a chunk and takes it off. Pending only if nothing could be written.
    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        let written = ready!(Pin::new(&mut *self).poll_write(cx, chunk))?;
        if written == 0 && !chunk.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        chunk.advance(written);
        Poll::Ready(Ok(()))
    }
}

/// A boxed [`Duplex`]: what a [`Dialer`](crate::Dialer) gives.
///
/// End it with `shutdown` and read to the end for every byte to arrive; dropping it earlier
/// abandons what is under way, in both directions.
pub struct ByteStream(Box<dyn Duplex>);

impl ByteStream {
    /// Wraps any reader and writer.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Box::new(Plain(io)))
    }

    /// Wraps a stream that moves chunks in its own way.
    pub fn from_duplex(io: impl Duplex + 'static) -> Self {
        Self(Box::new(io))
    }
}

impl Duplex for ByteStream {
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        self.0.poll_read_chunk(cx)
    }

    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        self.0.poll_write_chunk(cx, chunk)
    }

    fn backlog(&self) -> Option<Backlog> {
        self.0.backlog()
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByteStream")
    }
}

/// Forwards the reads and writes of a wrapper to the stream inside it.
macro_rules! forward_io {
    ($type:ty, $inner:tt $(, $generic:ident)?) => {
        forward_io!(@read $type, $inner $(, $generic)?);
        forward_io!(@write $type, $inner $(, $generic)?);
    };
    (@read $type:ty, $inner:tt $(, $generic:ident)?) => {
        impl $(<$generic: AsyncRead + Unpin>)? AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.get_mut().$inner).poll_read(cx, buf)
            }
        }
    };
    (@write $type:ty, $inner:tt $(, $generic:ident)?) => {
        impl $(<$generic: AsyncWrite + Unpin>)? AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.get_mut().$inner).poll_write(cx, buf)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.get_mut().$inner).poll_flush(cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.get_mut().$inner).poll_shutdown(cx)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.get_mut().$inner).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.$inner.is_write_vectored()
            }
        }
    };
}
pub(crate) use forward_io;

struct Plain<S>(S);

forward_io!(ByteStream, 0);
forward_io!(Plain<S>, 0, S);

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for Plain<S> {}

/// A stream of which some bytes were read already: they come first.
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: Bytes,
    inner: S,
}

impl<S> Prefixed<S> {
    /// Puts `prefix` back in front of what is still to be read.
    pub fn new(prefix: impl Into<Bytes>, inner: S) -> Self {
        Self { prefix: prefix.into(), inner }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        take_into(&mut this.prefix, buf);
        Poll::Ready(Ok(()))
    }
}

forward_io!(@write Prefixed<S>, inner, S);

/// Moves as much of a chunk as fits.
pub(crate) fn take_into(chunk: &mut Bytes, buf: &mut ReadBuf<'_>) {
    let count = chunk.len().min(buf.remaining());
    buf.put_slice(&chunk[..count]);
    chunk.advance(count);
    if chunk.is_empty() {
        // Lets go of the memory behind it.
        *chunk = Bytes::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn what_was_read_early_comes_first() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b" world").await.unwrap();
        drop(far);
        let mut text = String::new();
        Prefixed::new("hello", near).read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello world");
    }
}
