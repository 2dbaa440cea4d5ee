//! The envelope: three parts of base64url with dots between them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::{JwtError, json};

/// An OIDC token with hundreds of groups fits; a header that could hurt does not.
pub(super) const MAX_SIZE: usize = 16 * 1024;

/// A token taken apart, nothing about it verified.
pub(crate) struct Compact<'a> {
    pub(super) header: Header,
    /// The bytes that the signature covers.
    pub(super) signed: &'a str,
    claims: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

impl Compact<'_> {
    pub(super) fn claims(&self) -> &[u8] {
        &self.claims
    }
}

/// What we look at in a header. Keys and addresses of keys that it may offer are not among it.
pub(super) struct Header {
    pub(super) algorithm: String,
    pub(super) key_id: Option<String>,
    pub(super) kind: Option<String>,
}

/// Takes a token apart.
pub(crate) fn split(token: &str) -> Result<Compact<'_>, JwtError> {
    if token.len() > MAX_SIZE {
        return Err(JwtError::TooLarge);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::NotCompact)?;
    let (header, claims) = signed.split_once('.').ok_or(JwtError::NotCompact)?;
    let header = Header::parse(&decode(header)?)?;
    Ok(Compact { header, signed, claims: decode(claims)?, signature: decode(signature)? })
}

/// Strict: no padding, no white space, no bits left over, so that each part has one spelling.
fn decode(part: &str) -> Result<Vec<u8>, JwtError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::NotCompact)
}

pub(super) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, JwtError> {
        let mut members =
            json::object(bytes).ok_or(JwtError::Header("not a JSON object without duplicate members"))?;
        if members.contains_key("crit") {
            return Err(JwtError::Header("it has critical extensions"));
        }
        let mut text = |name, problem| match members.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(JwtError::Header(problem)),
        };
        Ok(Self {
            algorithm: text("alg", "`alg` is not text")?.ok_or(JwtError::Header("`alg` is missing"))?,
            key_id: text("kid", "`kid` is not text")?,
            kind: text("typ", "`typ` is not text")?,
        })
    }
}
