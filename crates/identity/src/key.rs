//! Ed25519 keys of our own ends: they sign tokens and, self-certified, open pinned TLS.
//!
//! Ed25519 because nobody but us has to accept these keys, and it is small, quick and has no
//! parameters to get wrong. Certificates that strangers must accept are P-256; see
//! [`authority`](crate::authority).

mod pin;

pub use pin::{Pin, PinSet};

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::PrivateKeyDer;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::pem::{self, PemError};
use crate::random::NoEntropy;
use crate::secret::{Secret, SecretBytes, SecretError};

/// DER of an Ed25519 SubjectPublicKeyInfo up to the key itself (RFC 8410).
const SPKI_START: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why a key could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key's file could not be read.
    #[error("cannot load the private key")]
    Load(#[from] SecretError),
    /// The key's file could not be written.
    #[error("cannot save the private key to {}; check that the folder may be written", path.display())]
    Save {
        /// Where it should have gone.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The text is not PEM.
    #[error("cannot read the private key as PEM")]
    Pem(#[from] PemError),
    /// PEM, but another kind of key.
    #[error(
        "the private key is not an Ed25519 key in PKCS#8; make one with `openssl genpkey -algorithm ed25519`"
    )]
    NotEd25519,
    /// No randomness for a new one.
    #[error("cannot make a private key")]
    Generate(#[from] NoEntropy),
}

/// A private key. Clones share it; it is never printed.
#[derive(Clone)]
pub struct PrivateKey {
    pair: Arc<Ed25519KeyPair>,
    pkcs8: SecretBytes,
}

impl PrivateKey {
    /// A fresh key, in memory only.
    pub fn generate() -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| NoEntropy)?;
        let document = pair.to_pkcs8v1().map_err(|_| NoEntropy)?;
        Ok(Self { pair: Arc::new(pair), pkcs8: SecretBytes::new(document.as_ref().to_vec()) })
    }

    /// Reads PKCS#8 PEM.
    pub fn from_pem(pem: &Secret) -> Result<Self, KeyError> {
        let PrivateKeyDer::Pkcs8(der) = pem::private_key(pem.expose().as_bytes())? else {
            return Err(KeyError::NotEd25519);
        };
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .map_err(|_| KeyError::NotEd25519)?;
        Ok(Self { pair: Arc::new(pair), pkcs8: SecretBytes::new(der.secret_pkcs8_der().to_vec()) })
    }

    /// Loads the key at `path`, or makes one there, readable by the owner alone.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let save = |source| KeyError::Save { path: path.to_owned(), source };
        if !path.try_exists().map_err(save)? {
            let key = Self::generate()?;
            if let Some(folder) = path.parent() {
                files::private_folder(folder).map_err(save)?;
            }
            // Lost the race to another process: its key is the key.
            if files::create(path, key.to_pem().expose().as_bytes(), files::PRIVATE).map_err(save)? {
                return Ok(key);
            }
        }
        Self::from_pem(&Secret::from_file(path)?)
    }

    /// PKCS#8 PEM.
    pub fn to_pem(&self) -> Secret {
        Secret::new(pem::encode("PRIVATE KEY", self.pkcs8.expose()))
    }

    /// The half that others may know.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(bytes)
    }

    pub(crate) fn sign(&self, message: &[u8]) -> impl AsRef<[u8]> + use<> {
        self.pair.sign(message)
    }

    pub(crate) fn pkcs8(&self) -> &SecretBytes {
        &self.pkcs8
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(redacted, of {})", self.public())
    }
}

/// A public key, printed as `ed25519:` and unpadded base64url.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// The text is not a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a public key: `ed25519:` and 43 characters of base64url")]
pub struct NotAPublicKey;

impl PublicKey {
    /// Takes the 32 bytes as they are in a JWK or a certificate.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The name by which peers pin this key in TLS.
    pub fn pin(&self) -> Pin {
        let mut spki = [0; 44];
        let (start, key) = spki.split_at_mut(SPKI_START.len());
        start.copy_from_slice(&SPKI_START);
        key.copy_from_slice(&self.0);
        Pin::of_public_key_info(&spki)
    }

    /// A short name for the key, as the `kid` of the tokens it signs.
    pub fn id(&self) -> String {
        hex::encode(&self.pin().as_bytes()[..8])
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ed25519:{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = NotAPublicKey;

    fn from_str(text: &str) -> Result<Self, NotAPublicKey> {
        let encoded = text.strip_prefix("ed25519:").filter(|rest| rest.len() == 43).ok_or(NotAPublicKey)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| NotAPublicKey)?;
        bytes.try_into().map(Self).map_err(|_| NotAPublicKey)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = NotAPublicKey;

    fn try_from(text: String) -> Result<Self, NotAPublicKey> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_twice_is_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys/site.pem");
        let first = PrivateKey::open(&path).unwrap();
        let again = PrivateKey::open(&path).unwrap();
        assert_eq!(first.public(), again.public());
        let signature = first.sign(b"hello");
        assert!(again.public().verify(b"hello", signature.as_ref()));
        assert!(!again.public().verify(b"hellO", signature.as_ref()));
    }

    #[test]
    fn texts_round_trip() {
        let public = PrivateKey::generate().unwrap().public();
        assert_eq!(public.to_string().parse(), Ok(public));
        let json = serde_json::to_string(&public).unwrap();
        assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), public);
        for bad in ["", "ed25519:", "ed25519:AAAA", &public.to_string()[8..], &format!("{public}=")] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn other_keys_are_refused() {
        let p256 = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert!(matches!(PrivateKey::from_pem(&Secret::from(p256)), Err(KeyError::NotEd25519)));
        assert!(matches!(PrivateKey::from_pem(&Secret::from("x")), Err(KeyError::Pem(PemError::NoKey))));
    }

    #[test]
    fn the_pin_is_that_of_the_standard_encoding() {
        let key = PrivateKey::generate().unwrap();
        let pair = rcgen::KeyPair::from_pem(key.to_pem().expose()).unwrap();
        let spki = rcgen::PublicKeyData::subject_public_key_info(&pair);
        assert_eq!(key.public().pin(), Pin::of_public_key_info(&spki));
    }
}
