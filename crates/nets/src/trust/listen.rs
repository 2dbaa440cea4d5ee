//! The listener's end: connections that passed the handshake, and calls that brought a token.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use futures::FutureExt as _;
use futures::future::ready;
use jiff::Timestamp;
use tarbet_identity::tls::{Acceptor, TlsStream};
use tarbet_telemetry::intake::Answer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;

use super::vigil::Vigil;
use super::{Tokens, stranger};
use crate::grpc::{self, Rpc};
use crate::refusal;

/// How often the files of the certificates are looked at.
const FOLLOW_CERTIFICATES: Duration = Duration::from_secs(10);
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
        let (tls, following) = (self.tls.clone(), self.tls.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = accept(listener, tls, sender, stop) => {}
                () = follow(following) => {}
            }
        });
        Ok(Connections { local, incoming })
    }

    /// The same REST routes for callers with a token only.
    pub(crate) fn rest(&self, router: Router) -> Router {
        let Some(tokens) = self.tokens.clone() else { return router };
        router.layer(from_fn(move |request: Request, next: Next| check(tokens.clone(), request, next)))
    }

    /// The same gRPC service for callers with a token only. It is always ready.
    pub(crate) fn rpc(&self, service: impl Rpc) -> Answer {
        let tokens = self.tokens.clone();
        Arc::new(move |request: http::Request<Body>| match &tokens {
            Some(tokens) if !tokens.accepts(request.headers()) => {
                ready(grpc::status(&stranger()).into_http()).boxed()
            }
            _ => service.clone().call(request).map(|Ok(answer)| answer).boxed(),
        })
    }
}

async fn check(tokens: Arc<Tokens>, request: Request, next: Next) -> Response {
    if tokens.accepts(request.headers()) { next.run(request).await } else { refusal::answer(&stranger()) }
}

/// Reads certificates again when their files change.
async fn follow(tls: Option<Acceptor>) {
    match tls {
        Some(tls) => tls.follow(tokio::time::interval(FOLLOW_CERTIFICATES), Timestamp::now).await,
        None => std::future::pending().await,
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Acceptor>,
    ready: mpsc::Sender<(Caller, SocketAddr)>,
    stop: CancellationToken,
) {
    let (slots, vigil) = (Arc::new(Semaphore::new(HANDSHAKES)), Vigil::new());
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
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A connection that waits for the other's acknowledgement is slower, not wrong.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls.clone() else {
            let caller = Caller { way: Way::Plain(stream), vigil: Arc::clone(&vigil) };
            if ready.send((caller, from)).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (ready, vigil) = (ready.clone(), Arc::clone(&vigil));
        tokio::spawn(async move {
            let _slot = slot;
            match tls.accept(stream).await {
                // The listener may have ended meanwhile.
                Ok(stream) => {
                    let caller = Caller { way: Way::Tls(Box::new(stream)), vigil };
                    drop(ready.send((caller, from)).await);
                }
                Err(error) => tracing::info!(%from, %error, "A caller did not get through the handshake."),
            }
        });
    }
}

/// Connections of a listener.
pub(crate) struct Connections {
    local: SocketAddr,
    incoming: mpsc::Receiver<(Caller, SocketAddr)>,
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
pub(crate) struct Caller {
    way: Way,
    vigil: Arc<Vigil>,
}

enum Way {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Caller {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let caller = self.get_mut();
        let read = match &mut caller.way {
            Way::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Way::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        };
        if read.is_ready() {
            caller.vigil.came();
        }
        read
    }
}

impl AsyncWrite for Caller {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let caller = self.get_mut();
        caller.vigil.went();
        match &mut caller.way {
            Way::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Way::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let caller = self.get_mut();
        caller.vigil.went();
        match &mut caller.way {
            Way::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Way::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.way {
            Way::Plain(stream) => stream.is_write_vectored(),
            Way::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_flush(context),
            Way::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Way::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
