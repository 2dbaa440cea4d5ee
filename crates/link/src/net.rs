//! The plain network as a dialer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use crate::duplex::{ByteStream, Duplex, forward_io, take_into};
use crate::error::LinkError;
use crate::shapes::Dialer;
use crate::target::Target;

/// What a stream reads at once that does not fill it: most carry little.
const FIRST_READ: usize = 16 * 1024;
/// Room in the reader's own buffer from which on nothing is read ahead for it.
const AMPLE: usize = 32 * 1024;
/// A stream that keeps filling its buffer reads this much at once.
const LARGEST_READ: usize = 256 * 1024;

/// Opens TCP connections from this process.
#[derive(Debug, Clone)]
pub struct NetDialer {
    /// How long a connection may take to be made, all addresses of a name together.
    pub timeout: Duration,
}

impl Default for NetDialer {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10) }
    }
}

impl NetDialer {
    async fn connect(&self, target: Target, first: Bytes) -> Result<ByteStream, LinkError> {
        let Some(address) = target.address() else {
            let text = format!("`{target}` has no address, and the plain network knows no services");
            return Err(LinkError::Unsupported(text.into()));
        };
        let failed = |source| LinkError::Connect { target: address.to_string(), source };
        let connect = async {
            let mut socket = TcpStream::connect((address.host(), address.port())).await?;
            socket.set_nodelay(true)?;
            socket.write_all(&first).await?;
            Ok(socket)
        };
        match tokio::time::timeout(self.timeout, connect).await {
            Ok(Ok(socket)) => Ok(tcp(socket)),
            Ok(Err(source)) => Err(failed(source)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl Dialer for NetDialer {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        self.connect(target, first).boxed()
    }
}

/// A TCP socket as a byte stream that reads large chunks and holds no buffer while it waits.
///
/// Readers with little room of their own, such as TLS, are read ahead for: few large reads of the
/// socket cost much less than many small ones.
pub fn tcp(socket: TcpStream) -> ByteStream {
    ByteStream::from_duplex(Tcp { socket, buffer: BytesMut::new(), size: FIRST_READ, ahead: Bytes::new() })
}

thread_local! {
    // Where such reads land. What came is then copied into as much memory as it needs, which is most often a few
    // hundred bytes: taking and giving back a large buffer for each would cost more than the copy.
    static LANDING: RefCell<Vec<u8>> = RefCell::new(vec![0; FIRST_READ]);
}

struct Tcp {
    socket: TcpStream,
    buffer: BytesMut,
    size: usize,
    // Read and not yet handed over.
    ahead: Bytes,
}

forward_io!(@write Tcp, socket);

impl Tcp {
    /// Reads what there is, if it is not much, and has it taken; `None` at the end.
    fn poll_little<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<Option<T>>> {
        LANDING.with_borrow_mut(|landing| {
            let mut target = ReadBuf::new(landing);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut target))?;
            if target.remaining() == 0 {
                self.size = FIRST_READ * 2;
            }
            let read = target.filled();
            Poll::Ready(Ok((!read.is_empty()).then(|| take(read))))
        })
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.size == FIRST_READ {
            return self.poll_little(cx, Bytes::copy_from_slice);
        }
        // Asked first, so that a stream that waits needs no buffer for the question.
        if self.socket.poll_read_ready(cx)?.is_pending() {
            return self.rest();
        }
        if self.buffer.capacity() < FIRST_READ / 4 {
            // Takes the old memory again if nobody holds what was read into it.
            self.buffer.reserve(self.size);
        }
        let room = self.buffer.capacity();
        // Knows without asking the kernel again that a read which left room has emptied the socket.
        let Poll::Ready(count) = poll_read_buf(Pin::new(&mut self.socket), cx, &mut self.buffer)? else {
            return self.rest();
        };
        if count == 0 {
            return Poll::Ready(Ok(None));
        }
        if count == room {
            self.size = (self.size * 2).min(LARGEST_READ);
        }
        Poll::Ready(Ok(Some(self.buffer.split().freeze())))
    }

    // A stream that is busy again soon reads half as much at first.
    fn rest<T>(&mut self) -> Poll<T> {
        self.buffer = BytesMut::new();
        self.size = (self.size / 2).max(FIRST_READ);
        Poll::Pending
    }
}

impl AsyncRead for Tcp {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            if buf.remaining() >= AMPLE {
                return Pin::new(&mut this.socket).poll_read(cx, buf);
            }
            if this.size == FIRST_READ {
                let split = |read: &[u8]| {
                    let (fits, rest) = read.split_at(read.len().min(buf.remaining()));
                    buf.put_slice(fits);
                    Bytes::copy_from_slice(rest)
                };
                this.ahead = ready!(this.poll_little(cx, split))?.unwrap_or_default();
                return Poll::Ready(Ok(()));
            }
            match ready!(this.poll_fill(cx))? {
                Some(chunk) => this.ahead = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        take_into(&mut this.ahead, buf);
        Poll::Ready(Ok(()))
    }
}

impl Duplex for Tcp {
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.ahead.is_empty() {
            self.poll_fill(cx)
        } else {
            Poll::Ready(Ok(Some(std::mem::take(&mut self.ahead))))
        }
    }

    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(cx, chunk))?;
        chunk.advance(written);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, ByteStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (far, tcp(listener.accept().await.unwrap().0))
    }

    #[tokio::test]
    async fn small_reads_and_chunks_lose_nothing_between_them() {
        let (mut far, mut near) = pair().await;
        let sent: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
        let copy = sent.clone();
        let writing = tokio::spawn(async move { far.write_all(&copy).await });
        let (mut got, mut turn) = (Vec::new(), 0usize);
        while got.len() < sent.len() {
            turn += 1;
            // A little, a lot and a chunk in turn.
            match turn % 3 {
                0 => {
                    let chunk = std::future::poll_fn(|cx| near.poll_read_chunk(cx)).await.unwrap();
                    got.extend_from_slice(&chunk.unwrap());
                }
                kind => {
                    let mut buffer = vec![0; if kind == 1 { 100 } else { 2 * AMPLE }];
                    let count = near.read(&mut buffer).await.unwrap();
                    got.extend_from_slice(&buffer[..count]);
                }
            }
        }
        writing.await.unwrap().unwrap();
        assert!(got == sent, "bytes were lost, doubled or moved");
        assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 0, "the end");
        assert!(std::future::poll_fn(|cx| near.poll_read_chunk(cx)).await.unwrap().is_none());
    }
}
