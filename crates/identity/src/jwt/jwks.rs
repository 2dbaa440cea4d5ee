//! The keys that an identity provider publishes, as data: fetching and caching belong to the caller.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256};
use aws_lc_rs::signature::{RsaParameters, RsaPublicKeyComponents};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::{Algorithm, VerifyingKey, json};
use crate::key::PublicKey;

/// Providers publish a handful of keys of a kilobyte or two.
const MAX_SIZE: usize = 256 * 1024;
const MAX_KEYS: usize = 100;
/// Larger exponents are legal and only serve to make us work.
const MAX_EXPONENT: usize = 8;

static RSA: &RsaParameters = &RSA_PKCS1_2048_8192_SHA256;

/// A JSON Web Key Set: RSA (RS256), P-256 (ES256) and Ed25519 (EdDSA) signing keys that have a `kid`.
///
/// Keys of other kinds, for other uses, too small or malformed are passed over, as the standard asks:
/// one odd key must not lock out the users of all others.
#[derive(Clone, Debug, Default)]
pub struct Jwks {
    pub(super) keys: BTreeMap<String, VerifyingKey>,
    malformed: usize,
}

/// Why a key set was refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// Too large or too many.
    #[error("the key set is larger than {MAX_SIZE} bytes or has more than {MAX_KEYS} keys")]
    TooLarge,
    /// Not a key set.
    #[error("the key set is not a JSON object with a list `keys` of objects, without duplicate members")]
    NotAKeySet,
    /// Which of the two?
    #[error("the key set has two keys with one `kid`")]
    SameId,
    /// Somebody published a private or a shared key.
    #[error("the key set holds a key that must not be public; the provider should replace it at once")]
    NotPublic,
}

impl Jwks {
    /// Reads a key set.
    pub fn parse(document: &[u8]) -> Result<Self, JwksError> {
        if document.len() > MAX_SIZE {
            return Err(JwksError::TooLarge);
        }
        let mut members = json::object(document).ok_or(JwksError::NotAKeySet)?;
        let Some(Value::Array(entries)) = members.remove("keys") else { return Err(JwksError::NotAKeySet) };
        if entries.len() > MAX_KEYS {
            return Err(JwksError::TooLarge);
        }
        let mut jwks = Self::default();
        for entry in entries {
            let Value::Object(entry) = entry else { return Err(JwksError::NotAKeySet) };
            if entry.contains_key("d") || entry.contains_key("k") {
                return Err(JwksError::NotPublic);
            }
            let (Some(id), Some(algorithm)) = (text(&entry, "kid"), algorithm_of(&entry)) else { continue };
            let Some(key) = key_of(&entry, algorithm) else {
                jwks.malformed += 1;
                continue;
            };
            if jwks.keys.insert(id.to_owned(), key).is_some() {
                return Err(JwksError::SameId);
            }
        }
        Ok(jwks)
    }

    /// The names of the usable keys.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// How many keys looked like ours and were too small or malformed: worth a warning.
    pub fn malformed(&self) -> usize {
        self.malformed
    }
}

fn text<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    entry.get(name)?.as_str()
}

/// The one algorithm a key serves, from its kind; `None` when it is not for us.
fn algorithm_of(entry: &Map<String, Value>) -> Option<Algorithm> {
    let algorithm = match (text(entry, "kty")?, text(entry, "crv")) {
        ("RSA", None) => Algorithm::Rs256,
        ("EC", Some("P-256")) => Algorithm::Es256,
        ("OKP", Some("Ed25519")) => Algorithm::EdDsa,
        _ => return None,
    };
    let for_signing = entry.get("use").is_none_or(|usage| usage == "sig");
    let for_verifying = entry.get("key_ops").is_none_or(|ops| {
        ops.as_array().is_some_and(|ops| ops.iter().any(|operation| operation == "verify"))
    });
    let declared = entry.get("alg").is_none_or(|name| name == algorithm.name());
    (for_signing && for_verifying && declared).then_some(algorithm)
}

fn key_of(entry: &Map<String, Value>, algorithm: Algorithm) -> Option<VerifyingKey> {
    let bytes = |name| URL_SAFE_NO_PAD.decode(text(entry, name)?).ok();
    match algorithm {
        Algorithm::Rs256 => {
            let (n, e) = (bytes("n")?, bytes("e")?);
            // The exact range of sizes is checked with each signature; this keeps out the absurd.
            let sane = (256..=1024).contains(&n.len()) && e.len() <= MAX_EXPONENT;
            let components = sane.then_some(RsaPublicKeyComponents { n, e })?;
            Some(VerifyingKey::parsed(algorithm, components.to_parsed_public_key(RSA).ok()?))
        }
        Algorithm::Es256 => {
            let (x, y) = (bytes("x")?, bytes("y")?);
            let point = (x.len() == 32 && y.len() == 32).then(|| [&[4][..], &x, &y].concat())?;
            let key = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).ok()?;
            Some(VerifyingKey::parsed(algorithm, key))
        }
        Algorithm::EdDsa => {
            let key: [u8; 32] = bytes("x")?.try_into().ok()?;
            Some(VerifyingKey::ed25519(PublicKey::from_bytes(key)))
        }
        Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str =
        r#"{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;

    fn parse(keys: &[&str]) -> Result<Vec<String>, JwksError> {
        let document = format!(r#"{{"keys":[{}]}}"#, keys.join(","));
        Jwks::parse(document.as_bytes()).map(|jwks| jwks.ids().map(str::to_owned).collect())
    }

    #[test]
    fn keys_for_other_uses_are_passed_over() {
        let unnamed = ED.replace(r#""kid":"a","#, "");
        let encrypting = ED.replace(r#""kid":"a""#, r#""kid":"b","use":"enc""#);
        let signing_only = ED.replace(r#""kid":"a""#, r#""kid":"c","key_ops":["sign"]"#);
        let other = r#"{"kty":"EC","crv":"P-521","kid":"d","x":"","y":""}"#;
        let newer = r#"{"kty":"AKP","alg":"ML-DSA-44","kid":"e","pub":"AA"}"#;
        let mislabelled = ED.replace(r#""kid":"a""#, r#""kid":"f","alg":"HS256""#);
        let keys = parse(&[ED, &unnamed, &encrypting, &signing_only, other, newer, &mislabelled]);
        assert_eq!(keys, Ok(vec!["a".to_owned()]));
        assert_eq!(parse(&[]), Ok(vec![]));
    }

    #[test]
    fn bad_documents_are_refused_whole() {
        assert_eq!(parse(&[ED, ED]), Err(JwksError::SameId));
        assert_eq!(parse(&["1"]), Err(JwksError::NotAKeySet));
        assert_eq!(parse(&[&vec![ED; 101].join(",")]), Err(JwksError::TooLarge));
        assert_eq!(parse(&[r#"{"kty":"oct","kid":"s","k":"AAAA"}"#]), Err(JwksError::NotPublic));
        assert_eq!(parse(&[&ED.replace('{', r#"{"d":"AA","#)]), Err(JwksError::NotPublic));
        assert_eq!(Jwks::parse(br#"{"keys":[],"keys":[]}"#).unwrap_err(), JwksError::NotAKeySet);
        assert_eq!(Jwks::parse(&vec![b' '; MAX_SIZE + 1]).unwrap_err(), JwksError::TooLarge);
    }

    #[test]
    fn malformed_keys_harm_only_themselves() {
        let rsa = |members: &str| format!(r#"{{"kty":"RSA","kid":"r",{members}}}"#);
        let ec = |x: &str| format!(r#"{{"kty":"EC","crv":"P-256","kid":"e","x":"{x}","y":"{x}"}}"#);
        let bad = [
            ED.replace("11q", ""),
            rsa(r#""n":"AQ","e":"AQAB""#),
            rsa(r#""e":"AQAB""#),
            rsa(r#""n":"","e":"""#),
            ec(""),
            ec(&"A".repeat(43)),
        ];
        let entries = [&[ED.to_owned()], &bad[..]].concat().join(",");
        let jwks = Jwks::parse(format!(r#"{{"keys":[{entries}]}}"#).as_bytes()).unwrap();
        assert_eq!(jwks.ids().collect::<Vec<_>>(), ["a"]);
        assert_eq!(jwks.malformed(), bad.len());
    }
}
