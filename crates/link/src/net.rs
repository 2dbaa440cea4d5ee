//! The plain network as a dialer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::duplex::{ByteStream, Duplex, forward_io};
use crate::error::LinkError;
use crate::shapes::Dialer;
use crate::target::Target;

/// A first read is small: most streams carry little.
const FIRST_READ: usize = 8 * 1024;
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
pub fn tcp(socket: TcpStream) -> ByteStream {
    ByteStream::from_duplex(Tcp { socket, buffer: BytesMut::new(), size: FIRST_READ })
}

struct Tcp {
    socket: TcpStream,
    buffer: BytesMut,
    size: usize,
}

forward_io!(Tcp, socket);

impl Duplex for Tcp {
    fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            if self.socket.poll_read_ready(cx)?.is_pending() {
                self.buffer = BytesMut::new();
                self.size = FIRST_READ;
                return Poll::Pending;
            }
            if self.buffer.capacity() - self.buffer.len() < FIRST_READ / 4 {
                self.buffer = BytesMut::with_capacity(self.size);
            }
            let room = self.buffer.capacity();
            match self.socket.try_read_buf(&mut self.buffer) {
                Ok(0) => return Poll::Ready(Ok(None)),
                Ok(count) => {
                    if count == room {
                        self.size = (self.size * 2).min(LARGEST_READ);
                    }
                    return Poll::Ready(Ok(Some(self.buffer.split().freeze())));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_write_chunk(&mut self, cx: &mut Context<'_>, chunk: &mut Bytes) -> Poll<io::Result<()>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(cx, chunk))?;
        chunk.advance(written);
        Poll::Ready(Ok(()))
    }
}
