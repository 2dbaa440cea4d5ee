//! Peers known by their key alone, and the one way to trust anybody at all.
//!
//! No authority, no name and no date is looked at, only the key; but the peer must still prove, by the
//! signature over this very handshake, that it holds the key it shows.

use std::fmt;

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DistinguishedName, Error, SupportedProtocolVersion};

use super::provider;
use super::signature::proves_its_key;
use crate::key::{Pin, PinSet};

/// Between our own ends nothing older needs to be spoken.
pub(super) static VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Accepts a peer whose key is in the set, whichever end it is.
pub(super) struct Pinned {
    pins: PinSet,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    pub(super) fn new(pins: PinSet) -> Self {
        Self { pins, algorithms: provider().signature_verification_algorithms }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        if self.pins.contains(&Pin::of_public_key_info(&key)) {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.pins).finish()
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    proves_its_key!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    proves_its_key!();
}

/// Accepts any server. Behind `dangerously_skip_verification` and nowhere else.
#[derive(Debug)]
pub(super) struct Anybody {
    algorithms: WebPkiSupportedAlgorithms,
}

impl Anybody {
    pub(super) fn new() -> Self {
        Self { algorithms: provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    proves_its_key!();
}
