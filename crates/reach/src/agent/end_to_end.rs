//! The agent's end of connections that a gateway carries and cannot read: TLS with the agent's own
//! key inside a stream, and inside that the same requests and streams as on a link.

use std::sync::Arc;

use jiff::Timestamp;
use tarbet_identity::tls::{Acceptor, Credential, CredentialSource, ServerTls, TlsError};
use tarbet_identity::{Pin, PrivateKey, Secret};
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{ByteStream, Handler};
use tarbet_telemetry::problem::chain;
use tokio_util::sync::CancellationToken;

use super::dispatch::{Dispatcher, Door, Proven};
use crate::peers::receive_peer;

/// The service that a client opens to speak to the agent itself.
pub const SERVICE: &str = "tls";

/// An agent's key in use.
pub struct EndToEnd {
    acceptor: Acceptor,
    pin: Pin,
    name: String,
    leaving: CancellationToken,
}

impl EndToEnd {
    /// With this key, until `leaving`; `name` is what clients are told.
    pub fn new(key: &PrivateKey, name: &str, leaving: CancellationToken) -> Result<Self, TlsError> {
        let credential = CredentialSource::Fixed(Credential::self_signed(key)?);
        let acceptor = ServerTls::new(credential).build(Timestamp::now())?;
        Ok(Self { acceptor, pin: key.public().pin(), name: name.to_owned(), leaving })
    }

    /// The key, as clients pin it.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// Serves one connection to its end.
    pub(super) async fn serve(&self, dispatcher: &Arc<Dispatcher>, stream: ByteStream) {
        let stream = match self.acceptor.accept(stream).await {
            Ok(stream) => ByteStream::new(stream),
            Err(error) => {
                return tracing::debug!(cause = %chain(&error), "An end-to-end connection was not secured.");
            }
        };
        let admit = |hello: Hello| async move { admit(dispatcher, &hello) };
        match receive_peer(stream, &self.name, &self.leaving, admit).await {
            Ok(reason) => tracing::debug!(%reason, "An end-to-end connection ended."),
            Err(error) => tracing::info!(cause = %chain(&error), "An end-to-end connection was refused."),
        }
    }
}

/// A caller need not prove anything; what it claims it must.
fn admit(dispatcher: &Arc<Dispatcher>, hello: &Hello) -> Result<Arc<dyn Handler>, Refusal> {
    let presented = hello.credential.reveal();
    if presented.is_empty() {
        return Ok(Arc::new(Door::end_to_end(Arc::clone(dispatcher), None)));
    }
    let refused = |text: &str| Refusal::new(RefusalCode::Credential, text);
    let token = std::str::from_utf8(presented).map_err(|_| refused("The credential is not text."))?;
    let callers =
        dispatcher.callers().ok_or_else(|| refused("This site knows no issuers of callers' tokens."))?;
    let caller = callers.of_connection(token, Timestamp::now()).map_err(|error| refused(&chain(&error)))?;
    let proven = Proven { caller, token: Secret::new(token.to_owned()), to: callers };
    Ok(Arc::new(Door::end_to_end(Arc::clone(dispatcher), Some(proven))))
}
