//! HTTP and gRPC for whoever connects: a head has to come in time, and only so many connections are held.
//!
//! A listener that waits for ever for the rest of a head can be filled by anybody who sends a byte now and
//! then.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How HTTP/2 begins. Until it is told from HTTP/1 neither of them is waiting for anything.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often a caller of gRPC that says nothing is asked whether it is there.
const CALLERS_ASKED: Duration = Duration::from_secs(20);
/// Calls at once on one connection of gRPC: an orchestrator changes a thousand permit lists at once.
const CALLS: u32 = 4_096;

/// What one listener grants to all who connect.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a head may take, and a connection of HTTP/1 may be kept without a request.
    pub head: Duration,
    /// How many connections are held; further ones are closed.
    pub connections: usize,
}

impl Default for Limits {
    /// Two minutes, because clients keep a connection for a minute and a half and must not meet its end; and a
    /// thousand.
    fn default() -> Self {
        Self { head: Duration::from_mins(2), connections: 1024 }
    }
}

/// What answers a gRPC call.
pub type Answer =
    Arc<dyn Fn(Request<tonic::body::Body>) -> BoxFuture<'static, Response<tonic::body::Body>> + Send + Sync>;

/// Serves pages until `stop`; requests that run then are finished.
pub async fn serve<L: Listener>(listener: L, router: Router, limits: Limits, stop: CancellationToken) {
    take(listener, Served::Pages(router), limits, stop).await;
}

/// The same for gRPC.
pub async fn serve_rpc<L: Listener>(listener: L, answer: Answer, limits: Limits, stop: CancellationToken) {
    take(listener, Served::Rpc(answer), limits, stop).await;
}

async fn take<L: Listener>(mut listener: L, served: Served, limits: Limits, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let connection = Connection { stream: Box::new(stream), head: limits.head, _place: place };
            connection.begin(&tasks, served.clone(), stop.clone());
        } else {
            tracing::warn!(
                most = limits.connections,
                "A connection was closed: there are as many as may be."
            );
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// What a listener serves.
#[derive(Clone)]
enum Served {
    Pages(Router),
    Rpc(Answer),
}

/// Bytes both ways, whatever carries them.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

struct Connection {
    stream: Box<dyn Stream>,
    head: Duration,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Knows no types of whoever listens: what speaks HTTP is here once for all of them, compiled as this crate is.
    fn begin(self, tasks: &TaskTracker, served: Served, stop: CancellationToken) {
        match served {
            Served::Pages(router) => tasks.spawn(self.pages(router, stop)),
            Served::Rpc(answer) => tasks.spawn(self.calls(answer, stop)),
        };
    }

    async fn pages(self, router: Router, stop: CancellationToken) {
        let Self { stream, head, _place } = self;
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(head);
        server.http2().timer(TokioTimer::new()).keep_alive_interval(head).keep_alive_timeout(head);
        let stream = TokioIo::new(Prompt::new(stream, head));
        let connection = server.serve_connection_with_upgrades(stream, TowerToHyperService::new(router));
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "A connection ended early.");
        }
    }

    async fn calls(self, answer: Answer, stop: CancellationToken) {
        let Self { stream, head, _place } = self;
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.timer(TokioTimer::new()).keep_alive_interval(CALLERS_ASKED).max_concurrent_streams(CALLS);
        let stream = TokioIo::new(Prompt::new(stream, head));
        let answer = service_fn(move |request: Request<Incoming>| {
            answer(request.map(tonic::body::Body::new)).map(Ok::<_, Infallible>)
        });
        let connection = server.serve_connection(stream, answer);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "A connection ended early.");
        }
    }
}

/// A stream whose first words have to come in time: before them there is no head that could be late.
pub struct Prompt<S> {
    stream: S,
    /// Absent once it is known what is spoken.
    patience: Option<Pin<Box<Sleep>>>,
    heard: usize,
}

impl<S> Prompt<S> {
    /// Waits so long for them.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience: Some(Box::pin(tokio::time::sleep(patience))), heard: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => {
                let Some(patience) = &mut self.patience else { return Poll::Pending };
                ready!(patience.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(read) => {
                if self.patience.is_some() {
                    let new = &buffer.filled()[before..];
                    let awaited = &PREFACE[self.heard..];
                    self.heard += new.len();
                    if self.heard >= PREFACE.len() || !awaited.starts_with(new) {
                        self.patience = None;
                    }
                }
                Poll::Ready(read)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
