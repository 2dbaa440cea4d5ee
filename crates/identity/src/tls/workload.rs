//! Servers known by an identity in their certificate's URI, as in a service mesh, and not by the
//! name that was dialled.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error};

use super::signature::proves_its_key;
use super::{AltName, PeerIdentity, provider};

/// Accepts what the authorities signed for one of these identities.
#[derive(Debug)]
pub(super) struct Workload {
    authorities: Arc<WebPkiServerVerifier>,
    identities: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Workload {
    pub(super) fn new(authorities: Arc<WebPkiServerVerifier>, identities: Vec<String>) -> Self {
        Self { authorities, identities, algorithms: provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Workload {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is looked at last: whoever fails only by it was signed by an authority, in time.
        match self.authorities.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {}
            Err(error) => return Err(error),
        }
        let names = PeerIdentity::of_certificate(end_entity).map(|peer| peer.names).unwrap_or_default();
        let known = names.iter().any(|name| match name {
            AltName::Uri(uri) => self.identities.contains(uri),
            AltName::Dns(_) | AltName::Ip(_) => false,
        });
        if known {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    proves_its_key!();
}
