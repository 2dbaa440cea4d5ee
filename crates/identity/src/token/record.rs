//! What is kept of a token, and the one decision about it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Token, TokenHash, TokenKind, hash_opaque};
use crate::secret::Secret;

/// A token as the store knows it: everything but the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What it is good for.
    pub kind: TokenKind,
    /// SHA-256 of its text.
    pub hash: TokenHash,
    /// Whom it speaks for: a site's name (join, agent) or a user's (user).
    pub subject: String,
    /// When it was made.
    pub created: Timestamp,
    /// The first moment at which it is refused; never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// How often it may still be redeemed; without limit, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_left: Option<u32>,
    /// When it was revoked, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

/// Why a token was not accepted. The difference is for logs; see [`Refusal::PUBLIC`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The record belongs to another token.
    #[error("the token does not match its record")]
    Mismatch,
    /// The right token in the wrong place, such as a user's token at the agents' door.
    #[error("the token is good for something else")]
    WrongKind,
    /// Taken back.
    #[error("the token was revoked at {0}")]
    Revoked(Timestamp),
    /// Too late.
    #[error("the token expired at {0}")]
    Expired(Timestamp),
    /// All uses are gone.
    #[error("the token has been used as often as it may be")]
    UsedUp,
}

impl Refusal {
    /// What the bearer is told, whatever the reason: a probe learns nothing from it.
    pub const PUBLIC: &str = "the token is not valid here; ask for a new one";
}

impl TokenRecord {
    /// The record of a token of ours: no expiry, no limit on uses.
    pub fn new(token: &Token, subject: impl Into<String>, created: Timestamp) -> Self {
        Self::with_hash(token.kind(), token.hash(), subject.into(), created)
    }

    /// The record of a token that another system made up, such as a GitLab agent token.
    pub fn opaque(kind: TokenKind, text: &Secret, subject: impl Into<String>, created: Timestamp) -> Self {
        Self::with_hash(kind, hash_opaque(text.expose()), subject.into(), created)
    }

    fn with_hash(kind: TokenKind, hash: TokenHash, subject: String, created: Timestamp) -> Self {
        Self { kind, hash, subject, created, expires: None, uses_left: None, revoked: None }
    }

    /// Refused from this moment on.
    #[must_use]
    pub fn expiring(self, expires: Timestamp) -> Self {
        Self { expires: Some(expires), ..self }
    }

    /// Redeemed at most this often.
    #[must_use]
    pub fn limited(self, uses: u32) -> Self {
        Self { uses_left: Some(uses), ..self }
    }

    /// Taken back. The first moment is kept if it was so already.
    #[must_use]
    pub fn revoke(self, now: Timestamp) -> Self {
        Self { revoked: self.revoked.or(Some(now)), ..self }
    }

    /// The name it is stored under.
    pub fn id(&self) -> String {
        self.hash.id()
    }

    /// Accepts or refuses a presented token; accepted, gives the record as it must be from now on.
    ///
    /// Pure: the caller stores the result in a compare-and-set against the record it passed in, and
    /// only when that succeeds is the token redeemed. A record that comes back equal needs no write.
    pub fn redeem(&self, kind: TokenKind, presented: &str, now: Timestamp) -> Result<Self, Refusal> {
        // The match comes first: only the bearer of the very token may learn what became of it.
        if hash_opaque(presented) != self.hash {
            return Err(Refusal::Mismatch);
        }
        if self.kind != kind {
            return Err(Refusal::WrongKind);
        }
        if let Some(at) = self.revoked {
            return Err(Refusal::Revoked(at));
        }
        if let Some(at) = self.expires.filter(|at| now >= *at) {
            return Err(Refusal::Expired(at));
        }
        let uses_left = match self.uses_left {
            Some(left) => Some(left.checked_sub(1).ok_or(Refusal::UsedUp)?),
            None => None,
        };
        Ok(Self { uses_left, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn token() -> Token {
        Token::from_random(TokenKind::Join, &[42; 32])
    }

    /// One of several gateways that read a record, decide, and write it back if it has not moved.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Read(usize),
        Commit(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![(0..4usize).prop_map(Step::Read), (0..4usize).prop_map(Step::Commit)]
    }

    proptest! {
        #![proptest_config(crate::effort::cases())]

        #[test]
        fn never_more_uses_than_granted(uses in 0u32..5, steps in prop::collection::vec(any_step(), 0..200)) {
            let token = token();
            let mut stored = (0u64, TokenRecord::new(&token, "paris", at(0)).limited(uses));
            let mut hands: [Option<(u64, TokenRecord)>; 4] = Default::default();
            let mut accepted = 0;
            for step in steps {
                match step {
                    Step::Read(who) => {
                        let decision = stored.1.redeem(TokenKind::Join, token.text().expose(), at(1));
                        hands[who] = decision.ok().map(|next| (stored.0, next));
                    }
                    Step::Commit(who) => {
                        if let Some((revision, next)) = hands[who].take().filter(|(seen, _)| *seen == stored.0) {
                            stored = (revision + 1, next);
                            accepted += 1;
                        }
                    }
                }
            }
            prop_assert!(accepted <= uses);
            prop_assert_eq!(stored.1.uses_left, Some(uses - accepted));
        }

        #[test]
        fn any_other_text_is_refused(other in ".*", flip in 0usize..60) {
            let token = token();
            let record = TokenRecord::new(&token, "paris", at(0));
            prop_assume!(other != token.text().expose());
            prop_assert_eq!(record.redeem(TokenKind::Join, &other, at(1)), Err(Refusal::Mismatch));
            let mut text = token.text().expose().as_bytes().to_vec();
            text[flip] ^= 1;
            let text = String::from_utf8(text).unwrap();
            prop_assert_eq!(record.redeem(TokenKind::Join, &text, at(1)), Err(Refusal::Mismatch));
        }

        #[test]
        fn expiry_is_the_first_refused_moment(expires in 1i64..1_000_000, nanos in 1i32..1_000_000_000) {
            let token = token();
            let record = TokenRecord::new(&token, "paris", at(0)).expiring(at(expires));
            let just_before = Timestamp::new(expires - 1, nanos).unwrap();
            prop_assert!(record.redeem(TokenKind::Join, token.text().expose(), just_before).is_ok());
            for late in [at(expires), at(expires + 1), Timestamp::MAX] {
                let refused = record.redeem(TokenKind::Join, token.text().expose(), late);
                prop_assert_eq!(refused, Err(Refusal::Expired(at(expires))));
            }
        }
    }

    #[test]
    fn revoked_stays_revoked() {
        let token = token();
        let record = TokenRecord::new(&token, "paris", at(0)).revoke(at(5)).revoke(at(9));
        assert_eq!(
            record.redeem(TokenKind::Join, token.text().expose(), at(1)),
            Err(Refusal::Revoked(at(5)))
        );
        assert_eq!(record.redeem(TokenKind::Join, "guess", at(1)), Err(Refusal::Mismatch));
    }

    #[test]
    fn long_lived_tokens_do_not_change_and_kinds_do_not_mix() {
        let token = Token::from_random(TokenKind::Agent, &[1; 32]);
        let record = TokenRecord::new(&token, "paris", at(0));
        assert_eq!(record.redeem(TokenKind::Agent, token.text().expose(), at(1)).as_ref(), Ok(&record));
        assert_eq!(record.redeem(TokenKind::User, token.text().expose(), at(1)), Err(Refusal::WrongKind));
        let foreign = TokenRecord::opaque(TokenKind::Agent, &Secret::from("glagent-xyz"), "paris", at(0));
        assert!(foreign.redeem(TokenKind::Agent, "glagent-xyz", at(1)).is_ok());
    }

    #[test]
    fn the_record_holds_no_token_and_round_trips() {
        let token = token();
        let record = TokenRecord::new(&token, "paris", at(0)).expiring(at(9)).limited(3);
        let json = serde_json::to_string(&record).unwrap();
        assert!(!json.contains(&token.text().expose()[4..20]));
        assert_eq!(serde_json::from_str::<TokenRecord>(&json).unwrap(), record);
        assert_eq!(record.id().len(), 24);
        assert!(serde_json::from_str::<TokenRecord>(&json.replace("\"join\"", "\"root\"")).is_err());
    }
}
