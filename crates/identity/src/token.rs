//! Tokens that people carry: to join a site (`tbj_`), to be its agent (`tba_`), to be a user (`tbu_`).
//!
//! A token is 256 random bits in print, with a checksum that finds any slip of the hand before a
//! network is asked. Only its SHA-256 is kept, in a [`TokenRecord`]. A slow hash would buy nothing: it
//! protects secrets that can be guessed, and 2^256 equally likely ones cannot, however fast the hash;
//! what it would do is let strangers burn our processor with made-up tokens.

mod record;
mod text;

pub use record::{Refusal, TokenRecord};
pub use text::{NotAToken, Token};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hash::sha256;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// Exchanged once (or a few times) for keys, when a site joins.
    Join,
    /// Presented by an agent for as long as it lives.
    Agent,
    /// Presented by a person or program.
    User,
}

impl TokenKind {
    const ALL: [Self; 3] = [Self::Join, Self::Agent, Self::User];

    fn prefix(self) -> &'static str {
        match self {
            Self::Join => "tbj_",
            Self::Agent => "tba_",
            Self::User => "tbu_",
        }
    }
}

/// SHA-256 of a token as it is presented, prefix and all. Safe to store and to show.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenHash([u8; 32]);

/// The text is not a token's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a token's hash: 64 lower-case hexadecimal digits")]
pub struct NotAHash;

/// Hashes any token text, ours or one that another system made up (a GitLab agent token, say).
///
/// For such tokens the strength of the hash is that of their randomness; GitLab's have 50 characters.
pub fn hash_opaque(presented: &str) -> TokenHash {
    TokenHash(sha256(presented.as_bytes()))
}

impl TokenHash {
    /// The token's public name, under which its record is kept: the first 96 bits of the hash.
    pub fn id(&self) -> String {
        hex::encode(&self.0[..12])
    }
}

/// Constant time, so that timing never tells how much of a guess was right.
impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TokenHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let mut bytes = [0; 32];
        if text.contains(|c: char| c.is_ascii_uppercase()) {
            return Err(NotAHash);
        }
        hex::decode_to_slice(text, &mut bytes).map_err(|_| NotAHash)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for TokenHash {
    type Error = NotAHash;

    fn try_from(text: String) -> Result<Self, NotAHash> {
        text.parse()
    }
}

impl From<TokenHash> for String {
    fn from(hash: TokenHash) -> Self {
        hash.to_string()
    }
}
