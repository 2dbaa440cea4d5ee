//! What can go wrong on a link: which hop broke, and whether repeating the request is safe.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use crate::handshake::Refusal;

/// Any error of the caller's own making.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How far a request had come when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// It never reached the agent: any request may be sent again.
    No,
    /// It had been handed to the connection, and no answer came.
    Unknown,
    /// The agent had it.
    Yes,
}

/// The part of the path that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// The end that called: the request itself or its body.
    Caller,
    /// The connection between gateway and agent.
    Link,
    /// The agent.
    Agent,
    /// The plain network between this process and what it dialled.
    Network,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "caller",
            Self::Link => "gateway → agent",
            Self::Agent => "agent",
            Self::Network => "this process → target",
        })
    }
}

/// Why a link ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// It was drained, and the last request on it finished.
    #[error("the link was drained")]
    Drained,
    /// This end closed it.
    #[error("this end closed the link")]
    Local,
    /// The other end closed it without a word.
    #[error("the other end closed the connection")]
    PeerClosed,
    /// The other end did not answer for this long.
    #[error("the other end was silent for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection broke ({0})")]
    Broken(String),
    /// One end broke the protocol.
    #[error("the protocol was broken ({0})")]
    Protocol(String),
    /// The gateway ended it and said why.
    #[error("the gateway ended the link: {0}")]
    Dismissed(Refusal),
}

/// Why a call or an open did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The link is being drained.
    #[error("the link is draining and takes no new requests")]
    Draining,
    /// As many streams are open as may be.
    #[error("the link has {limit} streams open, the most it takes")]
    Busy {
        /// The limit that was met.
        limit: usize,
    },
    /// The link ended.
    #[error("the link to the agent ended")]
    Closed {
        /// Why, when it is known already.
        #[source]
        reason: CloseReason,
        /// How far the request had come.
        reached: Reached,
    },
    /// The agent gave up this one request.
    #[error("the agent reset the request ({reason})")]
    Reset {
        /// The HTTP/2 reason.
        reason: String,
        /// How far the request had come.
        reached: Reached,
    },
    /// The agent, or something behind it, said no.
    #[error(transparent)]
    Denied(Box<Denial>),
    /// The request cannot be carried at all.
    #[error("the request cannot be sent over a link: {0}")]
    Request(Cow<'static, str>),
    /// The caller's own body failed while it was being sent.
    #[error("the request's body failed while it was being sent")]
    RequestBody(#[source] BodyError),
    /// This kind of link or dialer cannot do that.
    #[error("{0}")]
    Unsupported(Cow<'static, str>),
    /// A plain connection could not be made.
    #[error("cannot connect to {target}")]
    Connect {
        /// What was dialled.
        target: String,
        /// What the network said.
        #[source]
        source: io::Error,
    },
}

impl LinkError {
    /// How far the request had come.
    pub fn reached(&self) -> Reached {
        match self {
            Self::Draining
            | Self::Busy { .. }
            | Self::Request(_)
            | Self::Unsupported(_)
            | Self::Connect { .. } => Reached::No,
            Self::Closed { reached, .. } | Self::Reset { reached, .. } => *reached,
            Self::Denied(denial) if denial.untouched => Reached::No,
            Self::Denied(_) => Reached::Yes,
            Self::RequestBody(_) => Reached::Unknown,
        }
    }

    /// Whether the same request may be sent on another link whatever it does.
    ///
    /// A request that is harmless to repeat may also be repeated when it had reached the agent;
    /// that is for the caller to know.
    pub fn safe_to_retry(&self) -> bool {
        match self {
            Self::Draining | Self::Busy { .. } | Self::Connect { .. } => true,
            Self::Closed { reached, .. } | Self::Reset { reached, .. } => *reached == Reached::No,
            Self::Denied(denial) => denial.untouched,
            Self::Request(_) | Self::RequestBody(_) | Self::Unsupported(_) => false,
        }
    }

    /// The part of the path that failed; a [`Denial`] names its own hop more exactly.
    pub fn hop(&self) -> Hop {
        match self {
            Self::Draining | Self::Busy { .. } | Self::Closed { .. } => Hop::Link,
            Self::Reset { .. } | Self::Denied(_) | Self::Unsupported(_) => Hop::Agent,
            Self::Request(_) | Self::RequestBody(_) => Hop::Caller,
            Self::Connect { .. } => Hop::Network,
        }
    }
}

impl From<LinkError> for io::Error {
    fn from(error: LinkError) -> Self {
        let kind = match &error {
            LinkError::Denied(_) => io::ErrorKind::ConnectionRefused,
            LinkError::Reset { .. } => io::ErrorKind::ConnectionReset,
            LinkError::Connect { source, .. } => source.kind(),
            LinkError::Closed { .. } => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// A refusal by the agent or by something behind it, as it crosses the link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code}; {hop})")]
pub struct Denial {
    /// The HTTP status for it.
    pub status: StatusCode,
    /// Stable code, `TB-` and four digits.
    pub code: String,
    /// Where on the path it was refused.
    pub hop: String,
    /// One sentence.
    pub message: String,
    /// Nothing behind the agent was touched: the request may be sent again elsewhere.
    pub untouched: bool,
}

impl Denial {
    /// A refusal with this code, said by the agent.
    pub fn new(status: StatusCode, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), hop: "agent".into(), message: message.into(), untouched: false }
    }

    /// Names the hop.
    #[must_use]
    pub fn at(mut self, hop: impl Into<String>) -> Self {
        self.hop = hop.into();
        self
    }

    /// Says that another link may be tried with the same request.
    #[must_use]
    pub fn untouched(mut self) -> Self {
        self.untouched = true;
        self
    }
}

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The other end gave up the stream.
    #[error("the other end of the link reset the stream ({reason})")]
    Reset {
        /// The HTTP/2 reason.
        reason: String,
    },
    /// This stream was not read for too long while the link had too much unread.
    #[error("the stream was reset here: it had stalled while the link held too many unread bytes")]
    Stalled,
    /// The link ended.
    #[error("the link ended before the body did")]
    LinkClosed {
        /// Why.
        #[source]
        reason: CloseReason,
    },
    /// The source of the body failed.
    #[error("the source of the body failed")]
    Source(#[source] BoxError),
}

impl From<BodyError> for io::Error {
    fn from(error: BodyError) -> Self {
        let kind = match &error {
            BodyError::Reset { .. } | BodyError::Stalled => io::ErrorKind::ConnectionReset,
            BodyError::LinkClosed { .. } => io::ErrorKind::ConnectionAborted,
            BodyError::Source(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_reached_the_agent_is_safe_to_retry() {
        let lost = |reached| LinkError::Closed { reason: CloseReason::PeerClosed, reached };
        assert!(lost(Reached::No).safe_to_retry());
        assert!(!lost(Reached::Unknown).safe_to_retry());
        assert!(LinkError::Draining.safe_to_retry());
        let denial = Denial::new(StatusCode::FORBIDDEN, "TB-1201", "No.");
        assert!(!LinkError::Denied(Box::new(denial.clone())).safe_to_retry());
        assert!(LinkError::Denied(Box::new(denial.untouched())).safe_to_retry());
    }

    #[test]
    fn an_io_error_still_holds_the_link_error() {
        let error = io::Error::from(LinkError::Draining);
        assert!(error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<LinkError>));
    }
}
