//! Making tokens.

use std::fmt;

use aws_lc_rs::hmac;
use serde_json::json;

use super::{Algorithm, Claims, SharedSecrets, compact};
use crate::key::PrivateKey;
use crate::secret::Secret;

/// Signs claims. The token that comes out is a secret: whoever holds it may use it.
#[derive(Clone)]
pub struct Signer {
    material: Material,
    token_type: String,
}

#[derive(Clone)]
enum Material {
    Shared(SharedSecrets),
    Ed25519(PrivateKey),
}

impl Signer {
    /// HS256 with the first of shared secrets.
    pub fn shared(secrets: impl Into<SharedSecrets>) -> Self {
        Self { material: Material::Shared(secrets.into()), token_type: "JWT".to_owned() }
    }

    /// EdDSA; the key's [`id`](crate::PublicKey::id) goes into the header as `kid`.
    pub fn ed25519(key: PrivateKey) -> Self {
        Self { material: Material::Ed25519(key), token_type: "JWT".to_owned() }
    }

    /// Another `typ` than `JWT`, so that tokens for one purpose do not pass for another.
    #[must_use]
    pub fn typed(self, token_type: impl Into<String>) -> Self {
        Self { token_type: token_type.into(), ..self }
    }

    /// The token.
    pub fn sign(&self, claims: &Claims) -> Secret {
        let header = match &self.material {
            Material::Shared(_) => json!({"alg": Algorithm::Hs256.name(), "typ": self.token_type}),
            Material::Ed25519(key) => {
                json!({"alg": Algorithm::EdDsa.name(), "typ": self.token_type, "kid": key.public().id()})
            }
        };
        let mut token = compact::encode(header.to_string().as_bytes());
        token.push('.');
        token.push_str(&compact::encode(claims.to_json().to_string().as_bytes()));
        let signature = match &self.material {
            Material::Shared(secrets) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secrets.first().expose());
                compact::encode(hmac::sign(&key, token.as_bytes()).as_ref())
            }
            Material::Ed25519(key) => compact::encode(key.sign(token.as_bytes()).as_ref()),
        };
        token.push('.');
        token.push_str(&signature);
        Secret::new(token)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.material {
            Material::Shared(_) => f.write_str("Signer(shared, redacted)"),
            Material::Ed25519(key) => write!(f, "Signer({})", key.public()),
        }
    }
}
