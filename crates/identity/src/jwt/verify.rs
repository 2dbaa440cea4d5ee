//! From a token in hand to claims that hold.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Algorithm, BadPolicy, Claims, Jwks, JwtError, VerifierPolicy, VerifyingKey, compact};
use crate::key::PublicKey;

/// The keys a verifier knows.
#[derive(Clone, Debug)]
pub enum KeySet {
    /// One key for everything; a `kid` is not looked at.
    One(VerifyingKey),
    /// Several by name; a token must say which.
    Named(BTreeMap<String, VerifyingKey>),
}

impl KeySet {
    fn select(&self, id: Option<&str>) -> Result<&VerifyingKey, JwtError> {
        match self {
            Self::One(key) => Ok(key),
            Self::Named(keys) => keys.get(id.ok_or(JwtError::NoKeyId)?).ok_or(JwtError::UnknownKey),
        }
    }

    /// Whether the one key is made for all the algorithms. A provider may publish keys that this
    /// verifier has no use for, or none at all: those are refused token by token.
    fn fits(&self, algorithms: &[Algorithm]) -> bool {
        match self {
            Self::One(key) => algorithms.iter().all(|algorithm| key.fits(*algorithm)),
            Self::Named(_) => true,
        }
    }
}

impl From<VerifyingKey> for KeySet {
    fn from(key: VerifyingKey) -> Self {
        Self::One(key)
    }
}

impl From<Jwks> for KeySet {
    fn from(jwks: Jwks) -> Self {
        Self::Named(jwks.keys)
    }
}

/// Ed25519 keys under their own [`PublicKey::id`].
impl FromIterator<PublicKey> for KeySet {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self::Named(keys.into_iter().map(|key| (key.id(), VerifyingKey::ed25519(key))).collect())
    }
}

/// Checks tokens of one kind.
#[derive(Clone, Debug)]
pub struct Verifier {
    policy: VerifierPolicy,
    keys: KeySet,
}

impl Verifier {
    /// Joins a policy and keys, refusing combinations that make no sense.
    pub fn new(policy: VerifierPolicy, keys: impl Into<KeySet>) -> Result<Self, BadPolicy> {
        policy.check()?;
        let keys = keys.into();
        if !keys.fits(&policy.algorithms) {
            return Err(BadPolicy::Keys);
        }
        Ok(Self { policy, keys })
    }

    /// For policies written in this crate, which take HMACs alone.
    pub(super) fn shared(policy: VerifierPolicy, key: VerifyingKey) -> Self {
        Self { policy, keys: KeySet::One(key) }
    }

    /// The claims of a token that is genuine, meant for us, and alive at `now`.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, JwtError> {
        let compact = compact::split(token)?;
        let named = |algorithm: &&Algorithm| algorithm.name() == compact.header.algorithm;
        let algorithm = *self.policy.algorithms.iter().find(named).ok_or(JwtError::Algorithm)?;
        if self.policy.token_type.is_some() && self.policy.token_type != compact.header.kind {
            return Err(JwtError::Type);
        }
        let key = self.keys.select(compact.header.key_id.as_deref())?;
        if !key.fits(algorithm) {
            return Err(JwtError::Algorithm);
        }
        if !key.verify(algorithm, compact.signed.as_bytes(), &compact.signature) {
            return Err(JwtError::Signature);
        }
        let claims = Claims::parse(compact.claims())?;
        self.policy.judge(&claims, now)?;
        Ok(claims)
    }
}
