//! An established connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::CommonState;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::PeerIdentity;

/// A TLS connection over `S`, from either end.
pub struct TlsStream<S> {
    inner: tokio_rustls::TlsStream<S>,
    // Boxed: most peers show no certificate, and then it takes no room.
    peer: Option<Box<PeerIdentity>>,
}

impl<S> TlsStream<S> {
    pub(super) fn new(inner: impl Into<tokio_rustls::TlsStream<S>>) -> Self {
        let inner = inner.into();
        let leaf = state(&inner).peer_certificates().and_then(<[_]>::first);
        let peer = leaf.and_then(|certificate| PeerIdentity::of_certificate(certificate)).map(Box::new);
        Self { inner, peer }
    }

    /// Who is at the other end; `None` when it showed no certificate.
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.peer.as_deref()
    }

    /// The application protocol that both ends agreed on.
    pub fn alpn(&self) -> Option<&[u8]> {
        state(&self.inner).alpn_protocol()
    }

    /// What the TLS runs over.
    pub fn get_ref(&self) -> &S {
        self.inner.get_ref().0
    }
}

fn state<S>(stream: &tokio_rustls::TlsStream<S>) -> &CommonState {
    stream.get_ref().1
}

impl<S> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
