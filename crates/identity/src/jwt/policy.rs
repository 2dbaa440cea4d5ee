//! What a verifier accepts, and the pure judgement of claims.

use std::time::Duration;

use jiff::Timestamp;

use super::{Algorithm, Claims, JwtError};

/// Clocks further apart than this need mending, not forgiving.
const MAX_SKEW: Duration = Duration::from_mins(2);

/// Everything that is decided before a token is seen.
#[derive(Clone, Debug)]
pub struct VerifierPolicy {
    /// The algorithms taken; at least one, each fitting the keys.
    pub algorithms: Vec<Algorithm>,
    /// The only `iss` taken. `None` takes any, which is right only where the key itself says who signs.
    pub issuer: Option<String>,
    /// Must be among `aud`.
    pub audience: String,
    /// The only `typ` taken, if it matters.
    pub token_type: Option<String>,
    /// How far the issuer's clock may be from ours; at most two minutes.
    pub skew: Duration,
    /// How long ago `iat` may be, whatever `exp` says. Makes `iat` required.
    pub max_age: Option<Duration>,
    /// Claims that must be there besides `exp` and `aud`.
    pub required: Vec<String>,
}

/// A policy that would accept too much, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// No algorithm.
    #[error("a verifier needs at least one algorithm")]
    NoAlgorithm,
    /// No audience.
    #[error("a verifier needs an audience")]
    NoAudience,
    /// Too forgiving.
    #[error("clocks may differ by {} seconds at most", MAX_SKEW.as_secs())]
    Skew,
    /// An algorithm that a key is not made for.
    #[error("a key does not fit any of the algorithms")]
    Keys,
}

impl VerifierPolicy {
    /// The audience, the algorithms, five seconds of skew; no issuer, age or further claims.
    pub fn new(audience: impl Into<String>, algorithms: impl Into<Vec<Algorithm>>) -> Self {
        Self {
            algorithms: algorithms.into(),
            issuer: None,
            audience: audience.into(),
            token_type: None,
            skew: Duration::from_secs(5),
            max_age: None,
            required: Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), BadPolicy> {
        if self.algorithms.is_empty() {
            return Err(BadPolicy::NoAlgorithm);
        }
        if self.audience.is_empty() {
            return Err(BadPolicy::NoAudience);
        }
        if self.skew > MAX_SKEW { Err(BadPolicy::Skew) } else { Ok(()) }
    }

    /// Judges claims whose signature fits. A token lives from `nbf` (included) to `exp` (excluded),
    /// each moved outwards by the skew.
    pub(super) fn judge(&self, claims: &Claims, now: Timestamp) -> Result<(), JwtError> {
        if let Some(missing) = self.required.iter().find(|name| !claims.has(name)) {
            return Err(JwtError::Missing(missing.clone()));
        }
        if self.issuer.is_some() && self.issuer != claims.issuer {
            return Err(JwtError::Issuer);
        }
        if !claims.audience.contains(&self.audience) {
            return Err(JwtError::Audience);
        }
        // In nanoseconds of 128 bits no sum of a date and a duration overflows.
        let (now, skew) = (now.as_nanosecond(), nanos(self.skew));
        if now >= claims.expires.as_nanosecond() + skew {
            return Err(JwtError::Expired(claims.expires));
        }
        if let Some(from) = claims.not_before.filter(|from| now + skew < from.as_nanosecond()) {
            return Err(JwtError::NotYet(from));
        }
        if let Some(max_age) = self.max_age {
            let issued = claims.issued_at.ok_or_else(|| JwtError::Missing("iat".to_owned()))?;
            // Made in the future, it would be young for too long.
            if now + skew < issued.as_nanosecond() {
                return Err(JwtError::NotYet(issued));
            }
            if now >= issued.as_nanosecond() + nanos(max_age) + skew {
                return Err(JwtError::TooOld(issued));
            }
        }
        Ok(())
    }
}

fn nanos(duration: Duration) -> i128 {
    // Not even u64::MAX seconds in nanoseconds come near 127 bits.
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn policy(skew: u64) -> VerifierPolicy {
        VerifierPolicy { skew: Duration::from_secs(skew), ..VerifierPolicy::new("here", [Algorithm::Hs256]) }
    }

    fn claims(expires: i64) -> Claims {
        Claims { audience: vec!["there".into(), "here".into()], ..Claims::expiring(at(expires)) }
    }

    proptest! {
        #![proptest_config(crate::effort::cases())]

        #[test]
        fn boundaries_are_exact(nbf in 1_000i64..2_000, life in 1i64..1_000, skew in 0u64..=120) {
            let policy = policy(skew);
            let exp = nbf + life;
            let claims = Claims { not_before: Some(at(nbf)), ..claims(exp) };
            let skew = skew.cast_signed();
            let last = Timestamp::new(exp + skew - 1, 999_999_999).unwrap();
            let early = Timestamp::new(nbf - skew - 1, 999_999_999).unwrap();
            prop_assert_eq!(policy.judge(&claims, last), Ok(()));
            prop_assert_eq!(policy.judge(&claims, at(exp + skew)), Err(JwtError::Expired(at(exp))));
            prop_assert_eq!(policy.judge(&claims, at(nbf - skew)), Ok(()));
            prop_assert_eq!(policy.judge(&claims, early), Err(JwtError::NotYet(at(nbf))));
        }

        #[test]
        fn age_caps_any_expiry(iat in 0i64..1_000_000, max_age in 0u64..100_000) {
            let policy = VerifierPolicy { max_age: Some(Duration::from_secs(max_age)), ..policy(0) };
            let claims = Claims { issued_at: Some(at(iat)), ..claims(Timestamp::MAX.as_second()) };
            let end = iat + max_age.cast_signed();
            prop_assert_eq!(policy.judge(&claims, at(end)), Err(JwtError::TooOld(at(iat))));
            let last = Timestamp::new(end - 1, 999_999_999).unwrap();
            prop_assert_eq!(policy.judge(&claims, last).is_ok(), max_age > 0);
        }

        #[test]
        fn no_date_overflows(exp: i64, nbf: i64, now: i64) {
            let clamp = |s: i64| at(s.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second()));
            let claims = Claims { not_before: Some(clamp(nbf)), issued_at: Some(clamp(nbf)), ..claims(0) };
            let claims = Claims { expires: clamp(exp), ..claims };
            let policy = VerifierPolicy { max_age: Some(Duration::MAX), ..policy(120) };
            let _ = policy.judge(&claims, clamp(now));
        }
    }

    #[test]
    fn each_condition_has_its_own_answer() {
        let base = VerifierPolicy {
            issuer: Some("us".into()),
            required: vec!["sub".into(), "role".into()],
            max_age: Some(Duration::from_secs(9)),
            ..policy(0)
        };
        let mut claims = claims(100);
        let mut expect = |change: &dyn Fn(&mut Claims), answer| {
            assert_eq!(base.judge(&claims, at(50)), answer);
            change(&mut claims);
        };
        expect(&|c| c.subject = Some("s".into()), Err(JwtError::Missing("sub".into())));
        expect(&|c| drop(c.extra.insert("role".into(), 1.into())), Err(JwtError::Missing("role".into())));
        expect(&|c| c.issuer = Some("them".into()), Err(JwtError::Issuer));
        expect(&|c| c.issuer = Some("us".into()), Err(JwtError::Issuer));
        expect(&|c| c.issued_at = Some(at(45)), Err(JwtError::Missing("iat".into())));
        expect(&|c| c.audience = vec!["Here".into()], Ok(()));
        expect(&|c| c.audience.clear(), Err(JwtError::Audience));
        expect(&|_| (), Err(JwtError::Audience));
    }

    #[test]
    fn careless_policies_are_refused() {
        assert_eq!(VerifierPolicy::new("a", []).check(), Err(BadPolicy::NoAlgorithm));
        assert_eq!(VerifierPolicy::new("", [Algorithm::EdDsa]).check(), Err(BadPolicy::NoAudience));
        assert_eq!(policy(121).check(), Err(BadPolicy::Skew));
    }
}
