//! A certificate with its private key, and where such a pair comes from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::live::FileSet;
use super::{PeerIdentity, TlsError, provider};
use crate::authority::{Authority, Issued, Leaf, renewal_due};
use crate::key::PrivateKey;
use crate::pem;
use crate::secret::Secret;

/// A certificate chain and the key that belongs to it.
#[derive(Clone)]
pub struct Credential {
    pub(super) key: Arc<CertifiedKey>,
    identity: PeerIdentity,
}

impl Credential {
    /// From PEM texts: the chain, leaf first, and an unencrypted key.
    pub fn from_pem(certificates: &[u8], key: &Secret) -> Result<Self, TlsError> {
        Self::parse(certificates, "the given text", key.expose().as_bytes(), "the given text")
    }

    /// A certificate that a key of ours writes for itself, for peers that pin the key.
    pub fn self_signed(key: &PrivateKey) -> Result<Self, TlsError> {
        let certificate = crate::authority::self_certificate(key).map_err(TlsError::Issue)?;
        let key = PrivatePkcs8KeyDer::from(key.pkcs8().expose().to_vec());
        Self::join(vec![certificate], key.into())
    }

    fn parse(
        certificates: &[u8],
        certificates_from: &str,
        key: &[u8],
        key_from: &str,
    ) -> Result<Self, TlsError> {
        let chain = pem::certificates(certificates)
            .map_err(|source| TlsError::Certificates { origin: certificates_from.to_owned(), source })?;
        let key =
            pem::private_key(key).map_err(|source| TlsError::Key { origin: key_from.to_owned(), source })?;
        Self::join(chain, key)
    }

    fn join(
        chain: Vec<rustls_pki_types::CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, TlsError> {
        let identity = chain.first().and_then(|leaf| PeerIdentity::of_certificate(leaf));
        let identity = identity.ok_or(TlsError::NotX509)?;
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(TlsError::Pair)?;
        Ok(Self { key: Arc::new(key), identity })
    }

    /// What the certificate says.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Where the certificate of a listener or a client comes from.
#[derive(Clone, Debug)]
pub enum CredentialSource {
    /// A pair that never changes.
    Fixed(Credential),
    /// Two PEM files (or one, named twice), read again when they change.
    Files {
        /// The chain, leaf first.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// The built-in authority, asked again before the certificate ends.
    Issued {
        /// Who signs.
        authority: Arc<Authority>,
        /// What for.
        leaf: Leaf,
    },
}

impl CredentialSource {
    pub(super) fn files(&self) -> Vec<&Path> {
        match self {
            Self::Files { certificate, key } => vec![certificate, key],
            Self::Fixed(_) | Self::Issued { .. } => Vec::new(),
        }
    }

    /// The pair as of now, and when to ask again even if no file changes.
    pub(super) fn load(
        &self,
        files: &FileSet,
        now: Timestamp,
    ) -> Result<(Credential, Option<Timestamp>), TlsError> {
        match self {
            Self::Fixed(credential) => Ok((credential.clone(), None)),
            Self::Files { certificate, key } => {
                let names = [certificate, key].map(|path| path.display().to_string());
                let credential =
                    Credential::parse(files.get(certificate)?, &names[0], files.get(key)?, &names[1])?;
                let expired = credential.identity.expires;
                if now > expired {
                    return Err(TlsError::Expired { origin: certificate.display().to_string(), expired });
                }
                Ok((credential, None))
            }
            Self::Issued { authority, leaf } => {
                let Issued { certificate_pem, key_pem, not_before, not_after } =
                    authority.issue(leaf, now).map_err(TlsError::Issue)?;
                let credential = Credential::from_pem(certificate_pem.as_bytes(), &key_pem)?;
                Ok((credential, Some(renewal_due(not_before, not_after))))
            }
        }
    }
}
