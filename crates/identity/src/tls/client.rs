//! The dialling end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Interval;

use super::live::{self, FileSet, Live, Recipe};
use super::pinned::{self, Anybody, Pinned};
use super::workload::Workload;
use super::{CaSource, CredentialSource, HandshakeError, Refresh, TlsError, TlsStream, provider, trust};
use crate::key::PinSet;

/// The limit of agentk's handshake, too.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which servers are believed.
#[derive(Clone, Debug)]
enum Trust {
    Authorities { system: bool, added: Vec<CaSource> },
    Workload { authorities: CaSource, identities: Vec<String> },
    Pinned(PinSet),
    Anybody,
}

/// The settings of a TLS client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    trust: Trust,
    credential: Option<CredentialSource>,
    server_name: Option<String>,
    alpn: Vec<Vec<u8>>,
    handshake_timeout: Duration,
}

impl ClientTls {
    /// Trusts what the operating system trusts.
    pub fn new() -> Self {
        Self::trusting(Trust::Authorities { system: true, added: Vec::new() })
    }

    /// Trusts these authorities and not the operating system's.
    pub fn only(authorities: CaSource) -> Self {
        Self::trusting(Trust::Authorities { system: false, added: vec![authorities] })
    }

    /// Trusts whoever holds one of these keys. TLS 1.3 only: both ends are ours.
    pub fn pinned(pins: impl Into<PinSet>) -> Self {
        Self::trusting(Trust::Pinned(pins.into()))
    }

    /// Trusts whom these authorities call by one of these URIs (`spiffe://…`), whatever name is dialled.
    pub fn workload(authorities: CaSource, identities: Vec<String>) -> Self {
        Self::trusting(Trust::Workload { authorities, identities })
    }

    fn trusting(trust: Trust) -> Self {
        let handshake_timeout = HANDSHAKE_TIMEOUT;
        Self { trust, credential: None, server_name: None, alpn: Vec::new(), handshake_timeout }
    }

    /// Trusts these authorities too. Pins stay as they are: they need no authority.
    #[must_use]
    pub fn add_ca(mut self, authorities: CaSource) -> Self {
        if let Trust::Authorities { added, .. } = &mut self.trust {
            added.push(authorities);
        }
        self
    }

    /// Believes any server, so that anybody on the way can read and change everything. For trials.
    #[must_use]
    pub fn dangerously_skip_verification(self) -> Self {
        tracing::warn!("Servers are NOT verified: anybody on the way can read and change everything.");
        Self { trust: Trust::Anybody, ..self }
    }

    /// The certificate to show when asked.
    #[must_use]
    pub fn credential(self, credential: CredentialSource) -> Self {
        Self { credential: Some(credential), ..self }
    }

    /// The name to expect in the server's certificate, instead of the one that is dialled.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Self { server_name: Some(name.into()), ..self }
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
    pub fn build(self, now: Timestamp) -> Result<Connector, TlsError> {
        let timeout = self.handshake_timeout;
        let name = self.server_name.clone().map(ServerName::try_from).transpose();
        let name = name.map_err(|_| TlsError::ServerName)?;
        Ok(Connector { live: Arc::new(Live::start(self, now)?), name, timeout })
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.trust {
            Trust::Pinned(_) => pinned::VERSIONS,
            Trust::Authorities { .. } | Trust::Workload { .. } | Trust::Anybody => DEFAULT_VERSIONS,
        }
    }

    fn verifier(&self, files: &FileSet) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
        let (system, added) = match &self.trust {
            Trust::Pinned(pins) => return Ok(Arc::new(Pinned::new(pins.clone()))),
            Trust::Anybody => return Ok(Arc::new(Anybody::new())),
            Trust::Authorities { system, added } => (*system, added.as_slice()),
            Trust::Workload { authorities, .. } => (false, std::slice::from_ref(authorities)),
        };
        let mut roots = RootCertStore::empty();
        if system {
            trust::add_system(&mut roots);
        }
        for source in added {
            source.add_to(&mut roots, files)?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoRoots);
        }
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = builder.build().map_err(|error| TlsError::Settings(error.into()))?;
        Ok(match &self.trust {
            Trust::Workload { identities, .. } => Arc::new(Workload::new(verifier, identities.clone())),
            _ => verifier,
        })
    }
}

impl Default for ClientTls {
    fn default() -> Self {
        Self::new()
    }
}

impl Recipe for ClientTls {
    type Config = ClientConfig;

    fn files(&self) -> Vec<&Path> {
        let mut files = self.credential.as_ref().map(CredentialSource::files).unwrap_or_default();
        match &self.trust {
            Trust::Authorities { added, .. } => files.extend(added.iter().filter_map(CaSource::file)),
            Trust::Workload { authorities, .. } => files.extend(authorities.file()),
            Trust::Pinned(_) | Trust::Anybody => {}
        }
        files
    }

    fn make(&self, files: &FileSet, now: Timestamp) -> Result<(ClientConfig, Option<Timestamp>), TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(self.versions())
            .map_err(|error| TlsError::Settings(error.into()))?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(files)?);
        let (mut config, renew) = match &self.credential {
            None => (builder.with_no_client_auth(), None),
            Some(source) => {
                let (credential, renew) = source.load(files, now)?;
                let resolver: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(credential.key));
                (builder.with_client_cert_resolver(resolver), renew)
            }
        };
        config.alpn_protocols.clone_from(&self.alpn);
        if matches!(self.trust, Trust::Pinned(_)) {
            // A resumed session skips the server's key: one that is no longer pinned would pass.
            config.resumption = Resumption::disabled();
        }
        Ok((config, renew))
    }
}

/// Turns dialled connections into TLS connections. Clones are one.
#[derive(Clone, Debug)]
pub struct Connector {
    live: Arc<Live<ClientTls>>,
    name: Option<ServerName<'static>>,
    timeout: Duration,
}

impl Connector {
    /// The client's part of the handshake with the server called `name` (a DNS name or an address).
    pub async fn connect<S>(&self, name: &str, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(name.to_owned())
                .map_err(|_| HandshakeError::BadName(name.escape_debug().to_string()))?,
        };
        let connector = tokio_rustls::TlsConnector::from(self.live.current());
        match tokio::time::timeout(self.timeout, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(TlsStream::new(stream)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(HandshakeError::TimedOut),
        }
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
