//! The gateway's end: takes a connection an agent opened, and becomes the HTTP/2 client on it.

mod link;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::Uuid;

use crate::error::CloseReason;
use crate::handshake::{
    self, AgentInfo, HandshakeError, Hello, Message, Refusal, RefusalCode, VERSIONS, Welcome, negotiate,
};
use crate::meter::Metered;
use crate::settings::Settings;
use crate::shared::{Ending, Phase, Shared, Side};
use crate::turn::Turn;
use crate::watch::watch_over;
use crate::wire;

pub use link::Link;

/// How long a last word to an agent may take to leave before the connection is cut.
const LAST_WORD: Duration = Duration::from_millis(500);

/// What an authenticator grants.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The id the link shall have.
    pub link: Uuid,
    /// The name of this gateway, told to the agent.
    pub gateway: String,
    /// How this end of the link behaves.
    pub settings: Settings,
}

/// Why a connection did not become a link.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// This gateway said no.
    #[error("the agent was refused: {0}")]
    Refused(Refusal),
}

/// What is known of a link from its handshake.
#[derive(Debug, Clone)]
pub struct LinkInfo {
    /// The id of the link.
    pub id: Uuid,
    /// The protocol version spoken.
    pub version: u16,
    /// Who is at the other end.
    pub agent: AgentInfo,
}

/// Turns a connection into a link.
///
/// `authenticate` sees the hello, secret included, and decides. The second value drives the link:
/// it must be polled (spawned) for anything to move, and ends with the reason when the link ends.
pub async fn accept<S, A, F>(
    stream: S,
    timeout: Duration,
    authenticate: A,
) -> Result<(Link, impl Future<Output = CloseReason> + Send + 'static), AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: FnOnce(Hello) -> F,
    F: Future<Output = Result<Accepted, Refusal>>,
{
    let begin = async {
        let (stream, accepted, info) = greet(stream, authenticate).await?;
        Ok(establish(stream, accepted.settings, info).await?)
    };
    tokio::time::timeout(timeout, begin).await.unwrap_or(Err(HandshakeError::TimedOut.into()))
}

async fn greet<S, A, F>(mut stream: S, authenticate: A) -> Result<(S, Accepted, LinkInfo), AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: FnOnce(Hello) -> F,
    F: Future<Output = Result<Accepted, Refusal>>,
{
    let hello = match handshake::receive(&mut stream).await {
        Ok(Message::Hello(hello)) => hello,
        Ok(other) => return Err(HandshakeError::OutOfOrder(other.name()).into()),
        Err(error) => {
            if let HandshakeError::Malformed(reason) = &error {
                let refusal = Refusal::new(RefusalCode::Malformed, reason.to_string());
                let _ = handshake::send(&mut stream, &Message::Refusal(refusal)).await;
            }
            return Err(error.into());
        }
    };
    let agent = hello.agent.clone();
    let verdict = match negotiate(VERSIONS, hello.versions) {
        Some(version) => authenticate(hello).await.map(|accepted| (version, accepted)),
        None => Err(Refusal {
            versions: Some(VERSIONS),
            ..Refusal::new(
                RefusalCode::Version,
                format!(
                    "{}: The agent speaks link versions {}, this gateway {VERSIONS}: upgrade the older side.",
                    tarbet_telemetry::codes::reach::VERSION_MISMATCH.id,
                    hello.versions
                ),
            )
        }),
    };
    match verdict {
        Ok((version, accepted)) => {
            let ping_interval = accepted.settings.keepalive.interval;
            let welcome =
                Welcome { version, link: accepted.link, gateway: accepted.gateway.clone(), ping_interval };
            handshake::send(&mut stream, &Message::Welcome(welcome)).await?;
            let info = LinkInfo { id: accepted.link, version, agent };
            Ok((stream, accepted, info))
        }
        Err(refusal) => {
            // The agent may be gone already; the refusal stands all the same.
            let _ = handshake::send(&mut stream, &Message::Refusal(refusal.clone())).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
            Err(AcceptError::Refused(refusal))
        }
    }
}

async fn establish<S>(
    stream: S,
    settings: Settings,
    info: LinkInfo,
) -> Result<(Link, impl Future<Output = CloseReason> + Send + 'static), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shared = Shared::new(Side::Gateway, settings);
    let stream = Metered::new(stream, Arc::clone(&shared.meter));
    let (sender, mut connection) =
        shared.settings.client().handshake(stream).await.map_err(HandshakeError::Http2)?;
    let Some(mut pings) = connection.ping_pong() else {
        return Err(HandshakeError::Http2(h2::Reason::INTERNAL_ERROR.into()));
    };
    // The agent's settings come before its first PONG, so that after it CONNECT is known to work.
    first_ping(&shared, &mut connection, &mut pings).await.map_err(HandshakeError::Http2)?;
    let link = Link::new(Arc::clone(&shared), sender.clone(), info);
    // Boxed, so that it lies in the driver once and not wherever it passes through.
    Ok((link, drive(shared, Box::new(connection), pings, sender)))
}

async fn first_ping<S>(
    shared: &Shared,
    connection: &mut Connection<Metered<S>, Bytes>,
    pings: &mut PingPong,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let started = tokio::time::Instant::now();
    pings.send_ping(Ping::opaque())?;
    poll_fn(|cx| {
        if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(cx) {
            return Poll::Ready(ended.and(Err(h2::Reason::NO_ERROR.into())));
        }
        pings.poll_pong(cx).map_ok(|_| ())
    })
    .await?;
    shared.meter.round_trip(started.elapsed());
    Ok(())
}

fn drive<S>(
    shared: Arc<Shared>,
    connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    sender: SendRequest<Bytes>,
) -> impl Future<Output = CloseReason> + Send + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Whoever drops the future, even before it ever ran, ends the link.
    let ending = Ending(Arc::clone(&shared));
    async move {
        let reason = run(&shared, connection, pings, sender).await;
        ending.finish(reason)
    }
}

async fn run<S>(
    shared: &Arc<Shared>,
    mut connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    sender: SendRequest<Bytes>,
) -> CloseReason
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Both are looked at only when they have something to say, not whenever the connection moves.
    let mut beside: FuturesUnordered<BoxFuture<'_, CloseReason>> =
        [watch_over(Arc::clone(shared), pings).boxed(), follow(shared, sender.clone()).boxed()]
            .into_iter()
            .collect();
    let mut ear = Some(sender);
    let mut turn = Turn::default();
    let reason = poll_fn(|cx| {
        ready!(turn.poll_last(cx));
        loop {
            let ended = Pin::new(&mut *connection).poll(cx);
            listen(shared, &mut ear, cx);
            // Also when the connection has ended: the agent may have said before that it leaves.
            let given_up = beside.poll_next_unpin(cx);
            match (ended, given_up) {
                (Poll::Ready(ended), _) => return Poll::Ready(shared.end_of_connection(ended)),
                (_, Poll::Ready(Some(reason))) => return Poll::Ready(reason),
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

// Hears that the agent leaves: its GOAWAY says so, and HTTP/2 shows that one only to who wants to send. Nothing is
// kept open for it, which on an idle link would weigh more than the rest of HTTP/2's state.
fn listen(shared: &Shared, ear: &mut Option<SendRequest<Bytes>>, cx: &mut Context<'_>) {
    let Some(sender) = ear else { return };
    let goodbye = match sender.poll_ready(cx) {
        Poll::Ready(Err(error)) => {
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
        }
        _ => false,
    };
    if goodbye {
        shared.advance(Phase::Draining);
    }
    if goodbye || !shared.takes_requests() {
        // Without anybody who could send, the connection ends by itself when the last request on it has.
        *ear = None;
    }
}

// Carries orders to the agent. Ends when the link has to be cut.
async fn follow(shared: &Shared, mut sender: SendRequest<Bytes>) -> CloseReason {
    let mut phase = shared.watch();
    // Kept for as long as the agent may still read it.
    let mut said = None;
    loop {
        let now = phase.borrow_and_update().clone();
        match now {
            Phase::Open => {}
            Phase::Moving if said.is_some() => {}
            Phase::Moving => {
                let text = "Open another link, then leave this one.";
                said = tell(&mut sender, Refusal::new(RefusalCode::Draining, text));
            }
            Phase::Draining => break,
            Phase::Closing(reason) | Phase::Closed(reason) => {
                if let (CloseReason::Dismissed(refusal), None) = (&reason, &said) {
                    said = tell(&mut sender, refusal.clone());
                    tokio::time::sleep(LAST_WORD).await;
                }
                drop(said);
                return reason;
            }
        }
        // The sender of the phases lives in `shared`, so this never fails.
        let _ = phase.changed().await;
    }
    drop((said, sender));
    let ended = phase.wait_for(|phase| phase.reason().is_some()).await;
    match ended {
        Ok(phase) => phase.reason().cloned().unwrap_or(CloseReason::Local),
        Err(_) => CloseReason::Local,
    }
}

/// Opens the stream on which a gateway talks to the agent about the link itself, and says the one thing there is to
/// say. None on a connection that has ended, where nobody listens.
fn tell(sender: &mut SendRequest<Bytes>, refusal: Refusal) -> Option<(ResponseFuture, SendStream<Bytes>)> {
    let bytes = handshake::encode(&Message::Refusal(refusal)).ok()?;
    let (answer, mut stream) = sender.send_request(wire::control(), false).ok()?;
    stream.send_data(bytes.into(), true).ok()?;
    Some((answer, stream))
}
