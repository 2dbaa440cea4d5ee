//! A client's connections over any byte stream: the network, or a link.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::Service;

use crate::proxy::tunnel;

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// Opens a stream to the API a URI names. Cheap to clone.
#[derive(Clone)]
pub struct Connect {
    open: Arc<dyn Fn(Uri) -> Opening + Send + Sync>,
    /// Over the network, where a proxy may stand in the way; links know their own way.
    network: bool,
}

impl Connect {
    /// Opens streams with `open`, such as a dialer of a link.
    pub fn new<F, T, S>(open: F) -> Self
    where
        F: Fn(Uri) -> T + Send + Sync + 'static,
        T: Future<Output = io::Result<S>> + Send + 'static,
        S: Stream + 'static,
    {
        let open = move |uri| -> Opening {
            let opening = open(uri);
            Box::pin(async move { Ok(Box::new(opening.await?) as Box<dyn Stream>) })
        };
        Self { open: Arc::new(open), network: false }
    }

    /// Plain TCP with keep-alive, so that a peer that vanished is noticed on an idle watch too.
    pub fn network() -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(5)));
        connector.set_keepalive_retries(Some(3));
        connector.set_connect_timeout(Some(Duration::from_secs(10)));
        let direct = Self::new(move |uri| {
            let opening = connector.clone().call(uri);
            async move { opening.await.map(TokioIo::into_inner).map_err(io::Error::other) }
        });
        Self { network: true, ..direct }
    }

    /// The same through an HTTP proxy, if it goes over the network at all.
    pub(crate) fn via(self, proxy: &Uri) -> Self {
        if !self.network {
            return self;
        }
        let proxy = proxy.clone();
        let open = move |target: Uri| -> Opening {
            let (proxy, connect) = (proxy.clone(), Arc::clone(&self.open));
            Box::pin(async move {
                if proxy.scheme_str().is_some_and(|scheme| scheme != "http") {
                    return Err(io::Error::other("only http proxies can be used for a cluster"));
                }
                let mut stream = connect(proxy.clone()).await?;
                tunnel(&mut stream, &proxy, &target).await?;
                Ok(stream)
            })
        };
        Self { open: Arc::new(open), network: true }
    }
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connect")
    }
}

impl Service<Uri> for Connect {
    type Response = TokioIo<Opened>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let opening = (self.open)(uri);
        Box::pin(async move { Ok(TokioIo::new(Opened(opening.await?))) })
    }
}

/// An opened stream in the form the HTTP client wants.
pub struct Opened(Box<dyn Stream>);

impl Connection for Opened {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Opened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
