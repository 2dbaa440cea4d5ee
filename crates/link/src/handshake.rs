//! The few bytes that are exchanged before a connection becomes a link.
//!
//! The agent sends a [`Hello`], the gateway answers with a [`Welcome`] or a [`Refusal`]; after a
//! welcome both speak HTTP/2, with the agent as the server. `message` says what is exchanged,
//! `codec` how it looks in bytes, and this file moves it over a stream.

mod codec;
mod message;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use codec::{HEADER, MAGIC, MAX_MESSAGE, Malformed, Progress, decode, encode};
pub use message::{
    AgentInfo, Credential, Hello, Message, Purpose, Refusal, RefusalCode, VERSIONS, Versions, Welcome,
    negotiate,
};

/// Why a handshake failed before either side said no.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke.
    #[error("the connection broke during the handshake")]
    Io(#[source] io::Error),
    /// The other side sent something else.
    #[error("the other side does not speak the link protocol")]
    Malformed(#[source] Malformed),
    /// What this side wants to send is too long.
    #[error("the handshake message is too long to be sent")]
    TooLong(#[source] Malformed),
    /// The other side sent a message that does not belong here.
    #[error("the other side sent a {0} where it does not belong")]
    OutOfOrder(&'static str),
    /// The other side did not answer in time.
    #[error("the other side did not finish the handshake in time")]
    TimedOut,
    /// The gateway said no.
    #[error("the gateway refused the link: {0}")]
    Refused(Refusal),
    /// HTTP/2 did not start.
    #[error("HTTP/2 did not start on the connection")]
    Http2(#[source] h2::Error),
}

pub(crate) async fn send<S>(stream: &mut S, message: &Message) -> Result<(), HandshakeError>
where
    S: AsyncWrite + Unpin,
{
    let bytes = encode(message).map_err(HandshakeError::TooLong)?;
    stream.write_all(&bytes).await.map_err(HandshakeError::Io)?;
    stream.flush().await.map_err(HandshakeError::Io)
}

/// Reads exactly one message: what follows it belongs to HTTP/2.
pub(crate) async fn receive<S>(stream: &mut S) -> Result<Message, HandshakeError>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = Vec::with_capacity(512);
    loop {
        match decode(&bytes).map_err(HandshakeError::Malformed)? {
            Progress::Done(message) => return Ok(message),
            Progress::Need(count) => {
                let wanted = u64::try_from(count).unwrap_or(u64::MAX);
                let read = (&mut *stream).take(wanted).read_to_end(&mut bytes).await;
                if read.map_err(HandshakeError::Io)? < count {
                    return Err(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        }
    }
}
