//! The gateway's end: takes a connection an agent opened, and becomes the HTTP/2 client on it.

mod link;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
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
    let (mut sender, mut connection) =
        shared.settings.client().handshake(stream).await.map_err(HandshakeError::Http2)?;
    let Some(mut pings) = connection.ping_pong() else {
        return Err(HandshakeError::Http2(h2::Reason::INTERNAL_ERROR.into()));
    };
    // The agent's settings come before its first PONG, so that after it CONNECT is known to work.
    first_ping(&shared, &mut connection, &mut pings).await.map_err(HandshakeError::Http2)?;
    let control = open_control(&mut sender).map_err(HandshakeError::Http2)?;
    let link = Link::new(Arc::clone(&shared), sender, info);
    // Boxed, so that it lies in the driver once and not wherever it passes through.
    Ok((link, drive(shared, Box::new(connection), pings, control)))
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

/// The stream on which the gateway asks the agent to move, and the agent says that it leaves.
struct Control {
    answer: ResponseFuture,
    stream: SendStream<Bytes>,
}

fn open_control(sender: &mut SendRequest<Bytes>) -> Result<Control, h2::Error> {
    let (answer, stream) = sender.send_request(wire::control(), false)?;
    Ok(Control { answer, stream })
}

fn drive<S>(
    shared: Arc<Shared>,
    connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    control: Control,
) -> impl Future<Output = CloseReason> + Send + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Whoever drops the future, even before it ever ran, ends the link.
    let ending = Ending(Arc::clone(&shared));
    async move {
        let reason = run(&shared, connection, pings, control).await;
        ending.finish(reason)
    }
}

async fn run<S>(
    shared: &Arc<Shared>,
    mut connection: Box<Connection<Metered<S>, Bytes>>,
    pings: PingPong,
    control: Control,
) -> CloseReason
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Both are looked at only when they have something to say, not whenever the connection moves.
    let mut beside: FuturesUnordered<BoxFuture<'_, CloseReason>> =
        [watch_over(Arc::clone(shared), pings).boxed(), follow(shared, control).boxed()]
            .into_iter()
            .collect();
    let mut turn = Turn::default();
    let reason = poll_fn(|cx| {
        ready!(turn.poll_last(cx));
        loop {
            let ended = Pin::new(&mut *connection).poll(cx);
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

// Carries orders to the agent and hears when it leaves. Ends when the link has to be cut.
async fn follow(shared: &Shared, control: Control) -> CloseReason {
    let Control { mut answer, mut stream } = control;
    let mut phase = shared.watch();
    let (mut told, mut deaf) = (false, false);
    loop {
        let now = phase.borrow_and_update().clone();
        match now {
            Phase::Moving if !told => {
                told = true;
                tell(
                    &mut stream,
                    Refusal::new(RefusalCode::Draining, "Open another link, then leave this one."),
                );
            }
            Phase::Open | Phase::Moving => {}
            Phase::Draining => break,
            Phase::Closing(reason) | Phase::Closed(reason) => {
                if let (CloseReason::Dismissed(refusal), false) = (&reason, told) {
                    tell(&mut stream, refusal.clone());
                    tokio::time::sleep(LAST_WORD).await;
                }
                return reason;
            }
        }
        tokio::select! {
            biased;
            _ = phase.changed() => {}
            // Whatever the agent answers here, it means that it leaves. An error is none of its
            // words: the connection has ended, and its driver says why.
            answer = &mut answer, if !deaf => match answer {
                Ok(_) => shared.advance(Phase::Draining),
                Err(_) => deaf = true,
            },
        }
    }
    // Without this stream the connection ends by itself when the last request on it has.
    drop((answer, stream));
    let ended = phase.wait_for(|phase| phase.reason().is_some()).await;
    match ended {
        Ok(phase) => phase.reason().cloned().unwrap_or(CloseReason::Local),
        Err(_) => CloseReason::Local,
    }
}

fn tell(stream: &mut SendStream<Bytes>, refusal: Refusal) {
    if let Ok(bytes) = handshake::encode(&Message::Refusal(refusal)) {
        // It fails only on a stream that has ended, and then nobody listens.
        let _ = stream.send_data(bytes.into(), true);
    }
}
