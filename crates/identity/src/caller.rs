//! The proof of who is calling that a site believes: a short token from an issuer whose key it pinned.
//!
//! It travels through gateways that may be in anybody's hands, so it is bound to one site and to a few
//! minutes and, for writes, to the very request. What a gateway may add of its own counts for nothing.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use crate::hash::{sha256, sha256_of_parts};
use crate::jwt::{Algorithm, BadPolicy, Claims, JwtError, KeySet, Signer, Verifier, VerifierPolicy};
use crate::key::{PrivateKey, PublicKey};
use crate::random::{self, NoEntropy};
use crate::secret::Secret;
use crate::subject::Subject;

/// Longest life of a caller's token, whatever its issuer wrote: what is stolen is soon useless.
pub const MAX_LIFETIME: Duration = Duration::from_mins(5);
/// Sites keep their own clocks.
const SKEW: Duration = Duration::from_secs(30);
const TOKEN_TYPE: &str = "tarbet-caller";
const REQUEST: &str = "req";

/// A fingerprint of one request: method, path with query, and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDigest([u8; 32]);

impl RequestDigest {
    /// The fingerprint of a request whose body is at hand. The path is the one that is sent on.
    pub fn new(method: &str, path_and_query: &str, body: &[u8]) -> Self {
        Self::with_body_hash(method, path_and_query, &sha256(body))
    }

    /// The same when only the SHA-256 of the body is known.
    pub fn with_body_hash(method: &str, path_and_query: &str, body_hash: &[u8; 32]) -> Self {
        Self(sha256_of_parts([method.as_bytes(), path_and_query.as_bytes(), body_hash]))
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }
}

/// What a caller's token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who calls.
    pub principal: String,
    /// The one site that may believe it.
    pub site: Subject,
    /// When it was made, to the second.
    pub issued: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// The one request it is good for; any, if absent, except writes.
    pub request: Option<RequestDigest>,
    /// Its own name, different in each token: a site that remembers those it has seen until they end
    /// cannot be shown one twice.
    pub id: String,
}

/// Signs callers' tokens.
#[derive(Clone, Debug)]
pub struct CallerIssuer {
    signer: Signer,
}

impl CallerIssuer {
    /// An issuer with this key; sites pin its public half.
    pub fn new(key: PrivateKey) -> Self {
        Self { signer: Signer::ed25519(key).typed(TOKEN_TYPE) }
    }

    /// A token for `principal` at `site`, good for `lifetime` (at most [`MAX_LIFETIME`]) from `now`.
    pub fn issue(
        &self,
        principal: &str,
        site: &Subject,
        request: Option<&RequestDigest>,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Secret, NoEntropy> {
        let expires = now.checked_add(lifetime.min(MAX_LIFETIME)).unwrap_or(Timestamp::MAX);
        let mut claims = Claims {
            subject: Some(principal.to_owned()),
            audience: vec![site.to_string()],
            issued_at: Some(now),
            id: Some(hex::encode(random::bytes::<16>()?)),
            ..Claims::expiring(expires)
        };
        if let Some(request) = request {
            claims.extra.insert(REQUEST.to_owned(), request.encode().into());
        }
        Ok(self.signer.sign(&claims))
    }
}

/// What the token is presented for.
#[derive(Clone, Copy, Debug)]
pub enum Use<'a> {
    /// A request that changes nothing: bound or not, but if bound, to this one.
    Read(&'a RequestDigest),
    /// A request that changes something: bound to this one.
    Write(&'a RequestDigest),
    /// A stream of bytes without requests: not bound.
    Stream,
}

/// Why a caller was not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// The token itself is no good.
    #[error("the caller's token is not valid")]
    Token(#[from] JwtError),
    /// A write with a token that is good for any request.
    #[error("the caller's token is not bound to a request, and this one writes")]
    NotBound,
    /// Another request than the one the token was made for.
    #[error("the caller's token was made for another request")]
    OtherRequest,
}

/// Checks callers' tokens, at the site.
#[derive(Clone, Debug)]
pub struct CallerVerifier {
    site: Subject,
    verifier: Verifier,
}

impl CallerVerifier {
    /// Believes these issuers, about this site. Without issuers it believes nobody.
    pub fn new(site: Subject, issuers: impl IntoIterator<Item = PublicKey>) -> Result<Self, BadPolicy> {
        let policy = VerifierPolicy {
            token_type: Some(TOKEN_TYPE.to_owned()),
            skew: SKEW,
            max_age: Some(MAX_LIFETIME),
            required: vec!["sub".to_owned(), "jti".to_owned()],
            ..VerifierPolicy::new(site.to_string(), [Algorithm::EdDsa])
        };
        let verifier = Verifier::new(policy, issuers.into_iter().collect::<KeySet>())?;
        Ok(Self { site, verifier })
    }

    /// Who calls, if the token is genuine, alive, for this site and for this use.
    pub fn verify(&self, token: &str, usage: Use<'_>, now: Timestamp) -> Result<Caller, CallerError> {
        let claims = self.verifier.verify(token, now)?;
        let request = match claims.extra.get(REQUEST) {
            None => None,
            Some(_) => Some(decode(&claims.get::<String>(REQUEST)?)?),
        };
        match (usage, &request) {
            (Use::Write(_), None) => return Err(CallerError::NotBound),
            (Use::Read(_) | Use::Stream, None) => (),
            (Use::Read(actual) | Use::Write(actual), Some(bound)) if actual == bound => (),
            (_, Some(_)) => return Err(CallerError::OtherRequest),
        }
        let missing = |name: &str| JwtError::Missing(name.to_owned());
        Ok(Caller {
            principal: claims.subject.ok_or_else(|| missing("sub"))?,
            site: self.site.clone(),
            issued: claims.issued_at.ok_or_else(|| missing("iat"))?,
            expires: claims.expires,
            request,
            id: claims.id.ok_or_else(|| missing("jti"))?,
        })
    }
}

fn decode(text: &str) -> Result<RequestDigest, JwtError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map(RequestDigest).ok_or(JwtError::Claims("`req` is not a request's fingerprint"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn paris() -> Subject {
        Subject::site("paris").unwrap()
    }

    fn parties() -> (CallerIssuer, CallerVerifier) {
        let key = PrivateKey::generate().unwrap();
        let verifier = CallerVerifier::new(paris(), [key.public()]).unwrap();
        (CallerIssuer::new(key), verifier)
    }

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn bound_to_use() {
        let (issuer, verifier) = parties();
        let this = RequestDigest::new("POST", "/api/v1/pods", b"{}");
        let other = RequestDigest::new("POST", "/api/v1/pods", b"{ }");
        let free = issuer.issue("ann", &paris(), None, at(1000), MINUTE).unwrap();
        let bound = issuer.issue("ann", &paris(), Some(&this), at(1000), MINUTE).unwrap();
        let check = |token: &Secret, usage| verifier.verify(token.expose(), usage, at(1010));
        assert_eq!(check(&free, Use::Read(&this)).unwrap().principal, "ann");
        assert!(check(&free, Use::Stream).is_ok());
        assert_eq!(check(&free, Use::Write(&this)), Err(CallerError::NotBound));
        assert_eq!(check(&bound, Use::Write(&this)).unwrap().request, Some(this));
        assert!(check(&bound, Use::Read(&this)).is_ok());
        for usage in [Use::Write(&other), Use::Read(&other), Use::Stream] {
            assert_eq!(check(&bound, usage), Err(CallerError::OtherRequest));
        }
    }

    #[test]
    fn bound_to_site_issuer_kind_and_time() {
        let (issuer, verifier) = parties();
        let (stranger, _) = parties();
        let token = |who: &CallerIssuer, site| who.issue("ann", &site, None, at(1000), MINUTE).unwrap();
        let check = |token: &Secret, now| verifier.verify(token.expose(), Use::Stream, at(now));
        let lyon = Subject::site("lyon").unwrap();
        assert_eq!(check(&token(&issuer, lyon), 1010), Err(JwtError::Audience.into()));
        assert_eq!(check(&token(&stranger, paris()), 1010), Err(JwtError::UnknownKey.into()));
        assert!(check(&token(&issuer, paris()), 1060 + 29).is_ok());
        assert_eq!(check(&token(&issuer, paris()), 1060 + 30), Err(JwtError::Expired(at(1060)).into()));
        assert_eq!(check(&token(&issuer, paris()), 1000 - 31), Err(JwtError::NotYet(at(1000)).into()));
        let long = issuer.issue("ann", &paris(), None, at(1000), Duration::from_secs(1 << 40)).unwrap();
        assert_eq!(check(&long, 1010).unwrap().expires, at(1300));
        let nobody = CallerVerifier::new(paris(), []).unwrap();
        let refused = nobody.verify(token(&issuer, paris()).expose(), Use::Stream, at(1010));
        assert_eq!(refused, Err(JwtError::UnknownKey.into()));
    }

    #[test]
    fn an_ordinary_token_of_the_same_key_is_not_a_callers() {
        let key = PrivateKey::generate().unwrap();
        let verifier = CallerVerifier::new(paris(), [key.public()]).unwrap();
        let claims = Claims {
            subject: Some("ann".into()),
            audience: vec![paris().to_string()],
            issued_at: Some(at(1000)),
            id: Some("1".into()),
            ..Claims::expiring(at(1100))
        };
        let token = Signer::ed25519(key).sign(&claims);
        assert_eq!(verifier.verify(token.expose(), Use::Stream, at(1010)), Err(JwtError::Type.into()));
    }

    proptest! {
        #![proptest_config(crate::effort::cases())]

        #[test]
        fn any_changed_byte_is_refused(at_byte: prop::sample::Index, to: u8) {
            let (issuer, verifier) = parties();
            let token = issuer.issue("ann", &paris(), None, at(1000), MINUTE).unwrap();
            let mut bytes = token.expose().as_bytes().to_vec();
            let index = at_byte.index(bytes.len());
            prop_assume!(bytes[index] != to);
            bytes[index] = to;
            prop_assert!(verifier.verify(&String::from_utf8_lossy(&bytes), Use::Stream, at(1010)).is_err());
        }

        #[test]
        fn different_requests_have_different_digests(a in "[A-Z/a]{0,6}", b in "[A-Z/a]{0,6}", c in "[A-Z/a]{0,6}", d in "[A-Z/a]{0,6}") {
            let same = a == c && b == d;
            prop_assert_eq!(RequestDigest::new(&a, &b, b"") == RequestDigest::new(&c, &d, b""), same);
        }
    }
}
