//! Connections that this process opens to a gateway: to another gateway's private listener, or as
//! a caller to its API listener.
//!
//! The one who dials says who it is with a `Hello`; after a `Welcome` the roles turn, the gateway
//! serves and the dialler sends. One connection carries everything to one gateway.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tarbet_link::handshake::{
    self, AgentInfo, Credential, HandshakeError, Hello, Message, Progress, Purpose, Refusal, VERSIONS,
    Welcome,
};
use tarbet_link::{Accepted, ByteStream, CloseReason, Handler, Link, Settings};
use tarbet_telemetry::problem::chain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::local::Way;

/// Long enough for a handshake across the world, short enough for a caller who waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Among the services of a gateway that says to another one when a request was taken by an agent; older ones
/// say nothing before they answer.
pub(crate) const SAYS_WHEN_TAKEN: &str = "taken";

/// Why a gateway could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No connection could be made.
    #[error("the connection could not be made")]
    Connect(#[source] std::io::Error),
    /// It was made and went wrong.
    #[error("the handshake failed")]
    Handshake(#[source] HandshakeError),
    /// It was refused.
    #[error("the gateway refused the connection: {0}")]
    Refused(Refusal),
    /// It took too long.
    #[error("the gateway did not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    /// Somebody else tried meanwhile, in vain.
    #[error("another attempt just failed: {0}")]
    Failed(String),
}

/// How a connection to a gateway is made: plain, TLS, or anything else that carries bytes.
pub type Connect = Arc<dyn Fn(String) -> BoxFuture<'static, std::io::Result<ByteStream>> + Send + Sync>;

/// What the dialler says about itself, made anew for each connection.
pub type Introduce = Arc<dyn Fn() -> (String, Credential) + Send + Sync>;

/// The connections to other gateways, one each. Cheap to clone.
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    connect: Connect,
    introduce: Introduce,
    open: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Slot>>>>,
}

#[derive(Default)]
struct Slot {
    link: Option<Link>,
    // The last attempt that failed: those who waited for it share its outcome.
    failed: Option<(Instant, String)>,
}

impl Peers {
    /// Connections made with `connect`, each introduced by `introduce`.
    pub fn new(connect: Connect, introduce: Introduce) -> Self {
        Self(Arc::new(Inner { connect, introduce, open: Mutex::default() }))
    }

    /// The connection to the gateway at this URL, made if there is none.
    pub async fn way(&self, url: &str) -> Result<Arc<dyn Way>, PeerError> {
        let slot = {
            let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(open.entry(url.to_owned()).or_default())
        };
        let asked = Instant::now();
        // Held while connecting: those who come meanwhile share the one connection.
        let mut slot = slot.lock().await;
        if let Some(link) = slot.link.as_ref().filter(|link| link.phase().takes_requests()) {
            return Ok(Arc::new(link.clone()));
        }
        if let Some((_, why)) = slot.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(PeerError::Failed(why.clone()));
        }
        let (name, credential) = (self.0.introduce)();
        let connecting = async {
            let stream = (self.0.connect)(url.to_owned()).await.map_err(PeerError::Connect)?;
            introduce(stream, &name, credential).await
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(PeerError::TimedOut)) {
            Ok((link, driver)) => {
                tokio::spawn(driver);
                *slot = Slot { link: Some(link.clone()), failed: None };
                Ok(Arc::new(link))
            }
            Err(error) => {
                *slot = Slot { link: None, failed: Some((Instant::now(), chain(&error))) };
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

/// Dials in: says who we are, and becomes the one who sends.
pub async fn introduce(
    mut stream: ByteStream,
    name: &str,
    credential: Credential,
) -> Result<(Link, impl Future<Output = CloseReason> + Send + 'static), PeerError> {
    send(&mut stream, &Message::Hello(hello(name, credential))).await.map_err(PeerError::Handshake)?;
    match receive(&mut stream).await.map_err(PeerError::Handshake)? {
        Message::Welcome(_) => {}
        Message::Refusal(refusal) => return Err(PeerError::Refused(refusal)),
        other @ Message::Hello(_) => {
            return Err(PeerError::Handshake(HandshakeError::OutOfOrder(other.name())));
        }
    }
    let gateway = name.to_owned();
    let accepted = tarbet_link::accept(stream, CONNECT_TIMEOUT, |_| async {
        Ok(Accepted { link: Uuid::new_v4(), gateway, settings: Settings::default() })
    });
    accepted.await.map_err(|error| match error {
        tarbet_link::AcceptError::Handshake(error) => PeerError::Handshake(error),
        tarbet_link::AcceptError::Refused(refusal) => PeerError::Refused(refusal),
    })
}

/// Takes in one who dialled: `admit` judges who it is and gives what shall serve it. Runs to the
/// end of the connection; once `leaving` is cancelled it takes nothing new and ends with what runs.
pub async fn receive_peer<A, F>(
    mut stream: ByteStream,
    name: &str,
    leaving: &CancellationToken,
    admit: A,
) -> Result<CloseReason, PeerError>
where
    A: FnOnce(Hello) -> F,
    F: Future<Output = Result<Arc<dyn Handler>, Refusal>>,
{
    let greeting = async {
        match receive(&mut stream).await.map_err(PeerError::Handshake)? {
            Message::Hello(hello) => Ok(hello),
            other => Err(PeerError::Handshake(HandshakeError::OutOfOrder(other.name()))),
        }
    };
    let hello_in =
        tokio::time::timeout(CONNECT_TIMEOUT, greeting).await.unwrap_or(Err(PeerError::TimedOut))?;
    let handler = match admit(hello_in).await {
        Ok(handler) => handler,
        Err(refusal) => {
            // The dialler may be gone already; the refusal stands all the same.
            let _ = send(&mut stream, &Message::Refusal(refusal.clone())).await;
            let _ = stream.shutdown().await;
            return Err(PeerError::Refused(refusal));
        }
    };
    let settings = Settings::default();
    let welcome = Welcome {
        version: VERSIONS.highest,
        link: Uuid::new_v4(),
        gateway: name.to_owned(),
        ping_interval: settings.keepalive.interval,
    };
    send(&mut stream, &Message::Welcome(welcome)).await.map_err(PeerError::Handshake)?;
    let connected = tarbet_link::connect(stream, hello(name, Credential::default()), settings, handler).await;
    let (link, driver) = connected.map_err(PeerError::Handshake)?;
    let mut driver = std::pin::pin!(driver);
    tokio::select! {
        reason = driver.as_mut() => Ok(reason),
        () = leaving.cancelled() => {
            link.drain();
            Ok(driver.await)
        }
    }
}

fn hello(name: &str, credential: Credential) -> Hello {
    Hello {
        versions: VERSIONS,
        credential,
        agent: AgentInfo {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: Uuid::new_v4(),
            connection: Uuid::new_v4(),
            services: vec![SAYS_WHEN_TAKEN.to_owned()],
            purpose: Purpose::General,
        },
    }
}

async fn send(stream: &mut ByteStream, message: &Message) -> Result<(), HandshakeError> {
    let bytes = handshake::encode(message).map_err(HandshakeError::TooLong)?;
    stream.write_all(&bytes).await.map_err(HandshakeError::Io)?;
    stream.flush().await.map_err(HandshakeError::Io)
}

async fn receive(stream: &mut ByteStream) -> Result<Message, HandshakeError> {
    let mut bytes = Vec::with_capacity(512);
    loop {
        match handshake::decode(&bytes).map_err(HandshakeError::Malformed)? {
            Progress::Done(message) => return Ok(message),
            Progress::Need(count) => {
                let begun = bytes.len();
                bytes.resize(begun + count, 0);
                stream.read_exact(&mut bytes[begun..]).await.map_err(HandshakeError::Io)?;
            }
        }
    }
}
