//! The listener's end: connections that passed the handshake, and calls that brought a token.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tarbet_identity::tls::{Acceptor, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::server::Connected;

use super::{Tokens, stranger};
use crate::{grpc, refusal};

/// Handshakes at once; whoever comes when all are taken waits.
const HANDSHAKES: usize = 256;

/// What a listener asks of its callers.
#[derive(Clone)]
pub(crate) struct Gate {
    tls: Option<Acceptor>,
    tokens: Option<Arc<Tokens>>,
}

impl Gate {
    pub(super) fn new(tls: Option<Acceptor>, tokens: Option<Arc<Tokens>>) -> Self {
        Self { tls, tokens }
    }

    /// Nothing is asked: for loopback.
    pub(crate) fn open() -> Self {
        Self { tls: None, tokens: None }
    }

    /// Connections in the order they are ready, until `stop`.
    pub(crate) fn connections(
        &self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> io::Result<Connections> {
        let local = listener.local_addr()?;
        let (sender, incoming) = mpsc::channel(64);
        tokio::spawn(accept(listener, self.tls.clone(), sender, stop));
        Ok(Connections { local, incoming })
    }

    /// The same REST routes for callers with a token only.
    pub(crate) fn rest(&self, router: Router) -> Router {
        let Some(tokens) = self.tokens.clone() else { return router };
        let refuse = || refusal::answer(&stranger());
        router
            .layer(from_fn(move |request: Request, next: Next| check(tokens.clone(), request, next, refuse)))
    }

    /// The same gRPC services for callers with a token only.
    pub(crate) fn services(&self, routes: Routes) -> Routes {
        let Some(tokens) = self.tokens.clone() else { return routes };
        let refuse = || grpc::status(&stranger()).into_http();
        let check = move |request: Request, next: Next| check(tokens.clone(), request, next, refuse);
        routes.into_axum_router().layer(from_fn(check)).into()
    }
}

async fn check(tokens: Arc<Tokens>, request: Request, next: Next, refuse: fn() -> Response) -> Response {
    if tokens.accepts(request.headers()) { next.run(request).await } else { refuse() }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Acceptor>,
    ready: mpsc::Sender<(Caller, SocketAddr)>,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: some will come back.
                tracing::warn!(%error, "A connection could not be accepted.");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        // A connection that waits for the other's acknowledgement is slower, not wrong.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls.clone() else {
            if ready.send((Caller::Plain(stream), from)).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let ready = ready.clone();
        tokio::spawn(async move {
            let _slot = slot;
            match tls.accept(stream).await {
                // The listener may have ended meanwhile.
                Ok(stream) => drop(ready.send((Caller::Tls(Box::new(stream)), from)).await),
                Err(error) => tracing::info!(%from, %error, "A caller did not get through the handshake."),
            }
        });
    }
}

/// Connections of a listener, for both kinds of servers.
pub(crate) struct Connections {
    local: SocketAddr,
    incoming: mpsc::Receiver<(Caller, SocketAddr)>,
}

impl Connections {
    pub(crate) fn stream(self) -> impl tokio_stream::Stream<Item = io::Result<Caller>> {
        tokio_stream::wrappers::ReceiverStream::new(self.incoming).map(|(caller, _)| Ok(caller))
    }
}

impl axum::serve::Listener for Connections {
    type Io = Caller;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Caller, SocketAddr) {
        match self.incoming.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }
}

/// A connection to whoever calls.
pub(crate) enum Caller {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Caller {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Caller {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Caller {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
