//! Keys that check signatures, each bound to the algorithms it is made for.

use std::fmt;
use std::path::Path;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::ParsedPublicKey;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Algorithm;
use crate::key::PublicKey;
use crate::secret::{Secret, SecretBytes, SecretError};

/// Shorter keys can be found by trying them against one captured token.
const MIN_HMAC_SECRET: usize = 32;

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
    #[error(
        "the shared secret has fewer than {MIN_HMAC_SECRET} bytes; make one with `head -c 32 /dev/urandom | base64`"
    )]
    TooShort,
}

/// Reads a shared secret as kas keeps it: 32 bytes or more, in base64.
pub fn hmac_secret_from_file(path: impl AsRef<Path>) -> Result<SecretBytes, BadSecret> {
    let text = Secret::from_file(path)?;
    let bytes = STANDARD.decode(text.expose().trim()).map_err(|_| BadSecret::NotBase64)?;
    let secret = SecretBytes::new(bytes);
    if secret.expose().len() < MIN_HMAC_SECRET { Err(BadSecret::TooShort) } else { Ok(secret) }
}

/// A key that checks signatures.
#[derive(Clone)]
pub struct VerifyingKey(Material);

#[derive(Clone)]
enum Material {
    Shared(SecretBytes),
    Ed25519(PublicKey),
    Parsed(Algorithm, ParsedPublicKey),
}

impl VerifyingKey {
    /// A secret shared with the issuer, for HS256, HS384 and HS512.
    pub fn shared(secret: SecretBytes) -> Result<Self, BadSecret> {
        if secret.expose().len() < MIN_HMAC_SECRET {
            return Err(BadSecret::TooShort);
        }
        Ok(Self(Material::Shared(secret)))
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
            (Material::Shared(secret), Some(hmac)) => {
                hmac::verify(&hmac::Key::new(hmac, secret.expose()), message, signature).is_ok()
            }
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
