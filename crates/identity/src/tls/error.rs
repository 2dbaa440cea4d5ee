//! What goes wrong with TLS, in words that say what to do.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError};

use crate::authority::AuthorityError;
use crate::pem::PemError;

/// A TLS set-up that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A named file cannot be read.
    #[error("cannot read {}; check that it exists and that this user may read it", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Certificates that are not PEM.
    #[error("cannot use the certificates in {origin}")]
    Certificates {
        /// The file, or where else they came from.
        origin: String,
        /// What is wrong with them.
        #[source]
        source: PemError,
    },
    /// A key that is not PEM.
    #[error("cannot use the private key in {origin}")]
    Key {
        /// The file, or where else it came from.
        origin: String,
        /// What is wrong with it.
        #[source]
        source: PemError,
    },
    /// They are well-formed and do not belong together, or are of a kind that TLS cannot use.
    #[error("the certificate and the private key cannot be used together; do they belong to each other?")]
    Pair(#[source] rustls::Error),
    /// A certificate that has ended.
    #[error("the certificate in {origin} expired at {expired}; renew it")]
    Expired {
        /// The file, or where else it came from.
        origin: String,
        /// When.
        expired: Timestamp,
    },
    /// A certificate that cannot be read.
    #[error("the certificate is not a valid X.509 certificate")]
    NotX509,
    /// A certificate authority that cannot be trusted.
    #[error("a certificate in {origin} cannot serve as an authority")]
    Authority {
        /// The file, or where else it came from.
        origin: String,
        /// What is wrong with it.
        #[source]
        source: rustls::Error,
    },
    /// The built-in authority failed.
    #[error("the built-in authority could not issue a certificate")]
    Issue(#[source] AuthorityError),
    /// Nobody to trust.
    #[error("this machine has no trusted authorities; install ca-certificates or name a CA file")]
    NoRoots,
    /// An override that is no name.
    #[error("the TLS server name is neither a DNS name nor an IP address")]
    ServerName,
    /// rustls refuses the whole.
    #[error("the TLS settings contradict each other")]
    Settings(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A handshake that did not succeed. Each says the cause and what to try; who and where is the caller's.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Nothing, or too little, came in time.
    #[error("the TLS handshake took too long; is the other end alive, and does it speak TLS?")]
    TimedOut,
    /// Hung up half way.
    #[error("the other end closed the connection during the TLS handshake; its log says why")]
    Closed,
    /// Another protocol.
    #[error("the other end does not speak TLS; check the port and the scheme")]
    NotTls,
    /// Unknown authority.
    #[error("the other end's certificate comes from an authority that is not trusted here; add its CA file")]
    UnknownIssuer,
    /// Another name.
    #[error("the other end's certificate is for another name; check the address or set the TLS server name")]
    WrongName,
    /// Ended, or not begun.
    #[error("the other end's certificate is not valid now; renew it, or set the clocks right")]
    NotValidNow,
    /// A key that is not pinned.
    #[error("the other end's key is not the one exchanged at join; if it was replaced, join again")]
    UnknownKey,
    /// No certificate where one is needed.
    #[error("the other end showed no certificate, and one is required here")]
    NoCertificate,
    /// They do not like ours.
    #[error("the other end refused us ({0}); check which certificate is presented and which it trusts")]
    Refused(&'static str),
    /// Nothing in common.
    #[error("the two ends have no TLS version, cipher or application protocol in common")]
    NothingInCommon,
    /// The name to connect to is not one.
    #[error("`{0}` is neither a DNS name nor an IP address")]
    BadName(String),
    /// Anything else.
    #[error("the TLS handshake failed")]
    Other(#[source] io::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    Self::Closed
                }
                _ => Self::Other(error),
            };
        };
        match tls {
            rustls::Error::InvalidCertificate(problem) => {
                Self::of_certificate(problem).unwrap_or(Self::Other(error))
            }
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::AlertReceived(alert) => Self::Refused(alert_name(*alert)),
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol => {
                Self::NothingInCommon
            }
            _ => Self::Other(error),
        }
    }
}

impl HandshakeError {
    fn of_certificate(problem: &CertificateError) -> Option<Self> {
        use CertificateError as C;
        Some(match problem {
            C::UnknownIssuer => Self::UnknownIssuer,
            C::NotValidForName | C::NotValidForNameContext { .. } => Self::WrongName,
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. } => {
                Self::NotValidNow
            }
            C::ApplicationVerificationFailure => Self::UnknownKey,
            _ => return None,
        })
    }
}

fn alert_name(alert: AlertDescription) -> &'static str {
    alert.as_str().unwrap_or("an unknown alert")
}
