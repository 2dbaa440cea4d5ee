//! The listening end.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Interval;
use tokio_rustls::LazyConfigAcceptor;

use super::live::{self, FileSet, Live, Recipe};
use super::pinned::{self, Pinned};
use super::turns::Turns;
use super::{
    CaSource, CredentialSource, HandshakeError, PeerIdentity, Refresh, TlsError, TlsStream, provider,
};
use crate::key::PinSet;

/// As long as agents and browsers wait; a peer that dawdles longer holds a socket for nothing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is asked of clients.
#[derive(Clone, Debug)]
pub enum ClientCerts {
    /// Nothing.
    NotAsked,
    /// A certificate of these authorities, or none.
    Optional(CaSource),
    /// A certificate of these authorities.
    Required(CaSource),
    /// One of these keys. TLS 1.3 only: both ends are ours.
    Pinned(PinSet),
}

/// The settings of a TLS listener.
#[derive(Clone, Debug)]
pub struct ServerTls {
    credential: CredentialSource,
    clients: ClientCerts,
    alpn: Vec<Vec<u8>>,
    handshake_timeout: Duration,
}

impl ServerTls {
    /// A listener with this certificate that asks nothing of clients.
    pub fn new(credential: CredentialSource) -> Self {
        let handshake_timeout = HANDSHAKE_TIMEOUT;
        Self { credential, clients: ClientCerts::NotAsked, alpn: Vec::new(), handshake_timeout }
    }

    /// What is asked of clients.
    #[must_use]
    pub fn clients(self, clients: ClientCerts) -> Self {
        Self { clients, ..self }
    }

    /// Application protocols in order of preference, such as `h2`.
    #[must_use]
    pub fn alpn<P: AsRef<[u8]>>(self, protocols: impl IntoIterator<Item = P>) -> Self {
        Self { alpn: protocols.into_iter().map(|protocol| protocol.as_ref().to_vec()).collect(), ..self }
    }

    /// How long a handshake may take.
    #[must_use]
    pub fn handshake_timeout(self, handshake_timeout: Duration) -> Self {
        Self { handshake_timeout, ..self }
    }

    /// Loads everything; what cannot be used is an error now and not at the first connection.
    pub fn build(self, now: Timestamp) -> Result<Acceptor, TlsError> {
        let timeout = self.handshake_timeout;
        Ok(Acceptor { live: Arc::new(Live::start(self, now)?), timeout })
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.clients {
            ClientCerts::Pinned(_) => pinned::VERSIONS,
            _ => DEFAULT_VERSIONS,
        }
    }

    fn verifier(&self, files: &FileSet) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let (source, optional) = match &self.clients {
            ClientCerts::NotAsked => return Ok(WebPkiClientVerifier::no_client_auth()),
            ClientCerts::Pinned(pins) => return Ok(Arc::new(Pinned::new(pins.clone()))),
            ClientCerts::Optional(source) => (source, true),
            ClientCerts::Required(source) => (source, false),
        };
        let mut roots = RootCertStore::empty();
        source.add_to(&mut roots, files)?;
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let builder = if optional { builder.allow_unauthenticated() } else { builder };
        builder.build().map_err(|error| TlsError::Settings(error.into()))
    }
}

/// What a handshake needs, and what it shows.
pub(super) struct Ready {
    config: Arc<ServerConfig>,
    identity: PeerIdentity,
}

impl Recipe for ServerTls {
    type Config = Ready;

    fn files(&self) -> Vec<&Path> {
        let mut files = self.credential.files();
        if let ClientCerts::Optional(source) | ClientCerts::Required(source) = &self.clients {
            files.extend(source.file());
        }
        files
    }

    fn make(&self, files: &FileSet, now: Timestamp) -> Result<(Ready, Option<Timestamp>), TlsError> {
        let (credential, renew) = self.credential.load(files, now)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(self.versions())
            .map_err(|error| TlsError::Settings(error.into()))?
            .with_client_cert_verifier(self.verifier(files)?)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&credential.key))));
        config.alpn_protocols.clone_from(&self.alpn);
        if !matches!(self.clients, ClientCerts::NotAsked) {
            // A resumed session skips the client's certificate: one that was since revoked would pass.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok((Ready { config: Arc::new(config), identity: credential.identity().clone() }, renew))
    }
}

/// Turns accepted connections into TLS connections. Clones are one.
#[derive(Clone, Debug)]
pub struct Acceptor {
    live: Arc<Live<ServerTls>>,
    timeout: Duration,
}

impl Acceptor {
    /// The server's part of the handshake, with the certificate of the moment.
    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(&self.live.current().config));
        match tokio::time::timeout(self.timeout, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Ok(TlsStream::new(stream)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(HandshakeError::TimedOut),
        }
    }

    /// The same, in turn with others. Only who has said hello is given a turn: a peer that dials and says nothing
    /// keeps nobody waiting.
    pub async fn accept_in_turn<S>(&self, stream: S, turns: &Turns) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = async {
            let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
            let turn = turns.take().await;
            let mut rest = pin!(hello.into_stream(Arc::clone(&self.live.current().config)));
            if let Ok(done) = tokio::time::timeout(turns.longest(), rest.as_mut()).await {
                done
            } else {
                drop(turn);
                rest.await
            }
        };
        match tokio::time::timeout(self.timeout, handshake).await {
            Ok(Ok(stream)) => Ok(TlsStream::new(stream)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(HandshakeError::TimedOut),
        }
    }

    /// What the certificate of the moment says, such as when it ends.
    pub fn identity(&self) -> PeerIdentity {
        self.live.current().identity.clone()
    }

    /// Looks at the files, and at the clock when the built-in authority issues the certificate.
    pub fn refresh(&self, now: Timestamp) -> Refresh {
        self.live.refresh(now)
    }

    /// Refreshes on every tick, for ever. Drop the future to stop.
    pub async fn follow(&self, timer: Interval, clock: impl Fn() -> Timestamp + Send) {
        live::follow(Arc::clone(&self.live), timer, clock).await;
    }
}
