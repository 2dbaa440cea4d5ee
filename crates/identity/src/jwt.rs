//! JSON Web Tokens, signed and checked with everything pinned beforehand.
//!
//! The token never chooses how it is checked: a [`Verifier`] holds the keys, the algorithms, issuer and
//! audience it accepts, and the header's `alg` and `kid` are only compared with them. A member that
//! occurs twice, a critical extension, a second spelling of the same base64 and anything over 16 KiB
//! are refused; claims are not even parsed before the signature fits. The clock is an argument.
//!
//! The signatures are those of `aws-lc-rs`; only the envelope is read here.

mod algorithm;
mod claims;
mod compact;
mod json;
mod jwks;
pub mod kas;
mod key;
mod policy;
mod shared;
mod sign;
mod verify;

pub use algorithm::Algorithm;
pub use claims::Claims;
pub use jwks::{Jwks, JwksError};
pub use key::{BadSecret, VerifyingKey};
pub use policy::{BadPolicy, VerifierPolicy};
pub use shared::SharedSecrets;
pub use sign::Signer;
pub use verify::{KeySet, Verifier};

use jiff::Timestamp;

/// Why a token was refused. The difference is for logs; see [`JwtError::PUBLIC`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// Beyond any honest token.
    #[error("the token is larger than {} bytes", compact::MAX_SIZE)]
    TooLarge,
    /// Not three parts of unpadded base64url.
    #[error("the token is not three parts of base64url")]
    NotCompact,
    /// The header cannot be understood.
    #[error("the header is malformed: {0}")]
    Header(&'static str),
    /// An algorithm that this verifier does not take, or not with that key.
    #[error("the algorithm is not accepted here")]
    Algorithm,
    /// The header says that it is another kind of token.
    #[error("the token is of another type than is accepted here")]
    Type,
    /// Several keys are known and the token does not say which was used.
    #[error("the token names no key")]
    NoKeyId,
    /// The named key is not known.
    #[error("the token names a key that is not known here")]
    UnknownKey,
    /// Forged, altered, or signed by another key.
    #[error("the signature does not fit")]
    Signature,
    /// The claims cannot be understood.
    #[error("the claims are malformed: {0}")]
    Claims(&'static str),
    /// A claim that this verifier needs is absent.
    #[error("the claim `{0}` is missing")]
    Missing(String),
    /// Too late.
    #[error("the token expired at {0}")]
    Expired(Timestamp),
    /// Too early.
    #[error("the token is not valid before {0}")]
    NotYet(Timestamp),
    /// Issued too long ago, whatever expiry it claims.
    #[error("the token was issued at {0}, longer ago than is accepted here")]
    TooOld(Timestamp),
    /// Issued by another.
    #[error("the token has another issuer than is accepted here")]
    Issuer,
    /// Meant for another.
    #[error("the token is meant for another audience")]
    Audience,
}

impl JwtError {
    /// What the bearer is told, whatever the reason: a probe learns nothing from it.
    pub const PUBLIC: &str = "JWT validation failed";
}

/// Both parsers, on anything: the envelope, and the claims as if a signature had fitted.
pub(crate) fn parse_unverified(data: &[u8]) {
    if let Ok(parts) = compact::split(&String::from_utf8_lossy(data)) {
        drop(Claims::parse(parts.claims()));
    }
    drop(Claims::parse(data));
}
