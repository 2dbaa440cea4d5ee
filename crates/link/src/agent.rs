//! The agent's end: dials, says hello, and serves HTTP/2 on the connection it opened.

mod control;
mod incoming;
mod slots;
mod uplinks;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use h2::PingPong;
use h2::server::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::error::CloseReason;
use crate::handshake::{self, HandshakeError, Hello, Message, Welcome};
use crate::meter::{LinkStats, Metered};
use crate::settings::Settings;
use crate::shared::{Ending, Phase, Shared, Side};
use crate::turn::Turn;
use crate::watch::watch_over;

pub use incoming::{Handler, IncomingCall, IncomingStream, IncomingUpgrade};
pub use uplinks::{Agent, AgentConfig, DialError, Identity, SlotStatus};

/// A gateway cannot talk an agent out of noticing that it is gone.
const LONGEST_INTERVAL: Duration = Duration::from_mins(1);

/// The agent's handle on one of its links. Cheap to clone; dropping it changes nothing.
#[derive(Clone)]
pub struct AgentLink {
    shared: Arc<Shared>,
    welcome: Arc<Welcome>,
}

impl AgentLink {
    /// What the gateway said.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The counters now.
    pub fn stats(&self) -> LinkStats {
        self.shared.meter.read()
    }

    /// Where the link is in its life.
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Changes of the phase.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.shared.watch()
    }

    /// Ready when the link has ended.
    pub async fn closed(&self) -> CloseReason {
        self.shared.closed().await
    }

    /// Leaves: the gateway sends nothing new, requests under way finish, then the link ends.
    pub fn drain(&self) {
        self.shared.advance(Phase::Draining);
    }

    /// Ends the link now; requests under way fail.
    pub fn close(&self) {
        self.shared.advance(Phase::Closing(CloseReason::Local));
    }
}

/// Turns a connection to a gateway into a link.
///
/// The second value drives the link: it must be polled (spawned) for anything to move, and ends
/// with the reason when the link ends. Each request runs in a task of its own.
pub async fn connect<S>(
    mut stream: S,
    hello: Hello,
    mut settings: Settings,
    handler: Arc<dyn Handler>,
) -> Result<(AgentLink, impl Future<Output = CloseReason> + Send + 'static), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let timeout = settings.handshake_timeout;
    let begin = async {
        handshake::send(&mut stream, &Message::Hello(hello)).await?;
        let welcome = match handshake::receive(&mut stream).await? {
            Message::Welcome(welcome) => welcome,
            Message::Refusal(refusal) => return Err(HandshakeError::Refused(refusal)),
            other @ Message::Hello(_) => return Err(HandshakeError::OutOfOrder(other.name())),
        };
        // It rarely PINGs itself as long as it hears the gateway do it.
        let interval = welcome.ping_interval.min(LONGEST_INTERVAL);
        settings.keepalive.interval = settings.keepalive.interval.max(interval);
        let shared = Shared::new(Side::Agent, settings.clone());
        let stream = Metered::new(stream, Arc::clone(&shared.meter));
        let mut connection = settings.server().handshake(stream).await.map_err(HandshakeError::Http2)?;
        let Some(pings) = connection.ping_pong() else {
            return Err(HandshakeError::Http2(h2::Reason::INTERNAL_ERROR.into()));
        };
        let link = AgentLink { shared: Arc::clone(&shared), welcome: Arc::new(welcome) };
        // Boxed, so that it lies in the driver once and not wherever it passes through.
        Ok((link, drive(shared, Box::new(connection), pings, handler)))
    };
    tokio::time::timeout(timeout, begin).await.unwrap_or(Err(HandshakeError::TimedOut))
}

/// Turns a connection to a gateway into a link and serves it to its end.
pub async fn serve<S>(
    stream: S,
    hello: Hello,
    settings: Settings,
    handler: Arc<dyn Handler>,
) -> Result<CloseReason, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (_, driver) = connect(stream, hello, settings, handler).await?;
    Ok(driver.await)
}

fn drive<S>(
    shared: Arc<Shared>,
    connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    handler: Arc<dyn Handler>,
) -> impl Future<Output = CloseReason> + Send + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Whoever drops the future, even before it ever ran, ends the link.
    let ending = Ending(Arc::clone(&shared));
    async move {
        let reason = run(&shared, connection, pings, &handler).await;
        ending.finish(reason)
    }
}

async fn run<S>(
    shared: &Arc<Shared>,
    mut connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    handler: &Arc<dyn Handler>,
) -> CloseReason
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // They are looked at only when they have something to say, not whenever the connection moves.
    let mut beside: FuturesUnordered<BoxFuture<'_, Beside>> = [
        watch_over(Arc::clone(shared), pings).map(Beside::End).boxed(),
        leave(shared).map(|()| Beside::Leave).boxed(),
        cut(shared).map(Beside::End).boxed(),
    ]
    .into_iter()
    .collect();
    let mut turn = Turn::default();
    let reason = poll_fn(|cx| {
        ready!(turn.poll_last(cx));
        loop {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    incoming::dispatch(shared, handler, request, respond);
                    continue;
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(shared.end_of_connection(Err(error))),
                Poll::Ready(None) => return Poll::Ready(shared.end_of_connection(Ok(()))),
                Poll::Pending => {}
            }
            match beside.poll_next_unpin(cx) {
                Poll::Ready(Some(Beside::Leave)) => connection.graceful_shutdown(),
                Poll::Ready(Some(Beside::End(reason))) => return Poll::Ready(reason),
                _ if shared.change_window(|window| connection.set_initial_window_size(window)) => {}
                _ => return Poll::Pending,
            }
        }
    })
    .await;
    drop(beside);
    // Before the connection is dropped, so that whatever fails with it can say why.
    shared.advance(Phase::Closed(reason.clone()));
    reason
}

/// What comes up besides requests.
enum Beside {
    Leave,
    End(CloseReason),
}

// Ready when this end wants to leave.
async fn leave(shared: &Shared) {
    let mut phase = shared.watch();
    let draining = phase.wait_for(|phase| !phase.takes_requests()).await.is_ok();
    if !draining {
        std::future::pending::<()>().await;
    }
}

// Ready when this end wants the link cut, with what is under way.
async fn cut(shared: &Shared) -> CloseReason {
    let mut phase = shared.watch();
    match phase.wait_for(|phase| phase.reason().is_some()).await {
        // What the gateway said last is the reason; it cuts the connection itself.
        Ok(phase) if matches!(&*phase, Phase::Closing(CloseReason::Dismissed(_))) => {}
        Ok(phase) => return phase.reason().cloned().unwrap_or(CloseReason::Local),
        Err(_) => {}
    }
    std::future::pending().await
}
