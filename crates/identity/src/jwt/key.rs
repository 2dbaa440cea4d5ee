//! Keys that check signatures, each bound to the algorithms it is made for.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::ParsedPublicKey;

use super::{Algorithm, SharedSecrets};
use crate::key::PublicKey;
use crate::secret::SecretError;

/// A shared secret that is no good.
#[derive(Debug, thiserror::Error)]
pub enum BadSecret {
    /// The file could not be read.
    #[error("cannot load the shared secret")]
    Load(#[from] SecretError),
    /// Not base64.
    #[error("the shared secret is not base64; make one with `head -c 32 /dev/urandom | base64`")]
    NotBase64,
    /// Too few bytes.
    #[error("the shared secret has fewer than 32 bytes; make one with `head -c 32 /dev/urandom | base64`")]
    TooShort,
}

/// A key that checks signatures.
#[derive(Clone)]
pub struct VerifyingKey(Material);

#[derive(Clone)]
enum Material {
    Shared(SharedSecrets),
    Ed25519(PublicKey),
    Parsed(Algorithm, ParsedPublicKey),
}

impl VerifyingKey {
    /// Secrets shared with the issuer, for HS256, HS384 and HS512.
    pub fn shared(secrets: impl Into<SharedSecrets>) -> Result<Self, BadSecret> {
        Ok(Self(Material::Shared(secrets.into().checked()?)))
    }

    /// A public key, for EdDSA.
    pub fn ed25519(key: PublicKey) -> Self {
        Self(Material::Ed25519(key))
    }

    pub(super) fn parsed(algorithm: Algorithm, key: ParsedPublicKey) -> Self {
        Self(Material::Parsed(algorithm, key))
    }

    /// Whether the key is made for the algorithm. A public key is never an HMAC secret.
    pub(super) fn fits(&self, algorithm: Algorithm) -> bool {
        match &self.0 {
            Material::Shared(_) => algorithm.hmac().is_some(),
            Material::Ed25519(_) => algorithm == Algorithm::EdDsa,
            Material::Parsed(own, _) => algorithm == *own,
        }
    }

    pub(super) fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (&self.0, algorithm.hmac()) {
            (Material::Shared(secrets), Some(hmac)) => secrets.any(|secret| {
                hmac::verify(&hmac::Key::new(hmac, secret.expose()), message, signature).is_ok()
            }),
            (Material::Ed25519(key), None) => algorithm == Algorithm::EdDsa && key.verify(message, signature),
            (Material::Parsed(own, key), None) => {
                algorithm == *own && key.verify_sig(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Material::Shared(_) => f.write_str("VerifyingKey(shared, redacted)"),
            Material::Ed25519(key) => write!(f, "VerifyingKey({key})"),
            Material::Parsed(algorithm, _) => write!(f, "VerifyingKey({})", algorithm.name()),
        }
    }
}
