//! The tokens of kas and GitLab: who signs what for whom, and for how long.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Algorithm, BadSecret, Claims, SharedSecrets, Signer, Verifier, VerifierPolicy, VerifyingKey};
use crate::secret::Secret;

const GITLAB: &str = "gitlab";
const KAS: &str = "gitlab-kas";

/// The receiver's clock may be this far behind.
const NOT_BEFORE: SignedDuration = SignedDuration::from_secs(5);

/// Whether the external API looks at `iss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerCheck {
    /// Only `gitlab`.
    Gitlab,
    /// Whoever holds the secret, as the original has it.
    Any,
}

/// For the external API: GitLab calls kas. HS256, HS384 or HS512, audience `gitlab-kas`.
pub fn external_api(secret: impl Into<SharedSecrets>, issuer: IssuerCheck) -> Result<Verifier, BadSecret> {
    let issuer = match issuer {
        IssuerCheck::Gitlab => Some(GITLAB.to_owned()),
        IssuerCheck::Any => None,
    };
    verifier(secret, VerifierPolicy { issuer, ..VerifierPolicy::new(KAS, Algorithm::HMAC) })
}

/// For the private API: kas calls kas. Issuer and audience `gitlab-kas`.
pub fn private_api(secret: impl Into<SharedSecrets>) -> Result<Verifier, BadSecret> {
    let issuer = Some(KAS.to_owned());
    verifier(secret, VerifierPolicy { issuer, ..VerifierPolicy::new(KAS, Algorithm::HMAC) })
}

fn verifier(secret: impl Into<SharedSecrets>, policy: VerifierPolicy) -> Result<Verifier, BadSecret> {
    VerifyingKey::shared(secret).map(|key| Verifier::shared(policy, key))
}

/// Signs the tokens we present.
#[derive(Clone, Debug)]
pub struct KasSigner {
    signer: Signer,
    audience: &'static str,
    lifetime: Duration,
}

impl KasSigner {
    /// For another kas's private API: five seconds of life.
    pub fn private_api(secret: impl Into<SharedSecrets>) -> Self {
        Self { signer: Signer::shared(secret), audience: KAS, lifetime: Duration::from_secs(5) }
    }

    /// For GitLab's internal API: thirty seconds of life.
    pub fn gitlab(secret: impl Into<SharedSecrets>) -> Self {
        Self { signer: Signer::shared(secret), audience: GITLAB, lifetime: Duration::from_secs(30) }
    }

    /// A token for use at once.
    pub fn token(&self, now: Timestamp) -> Secret {
        // Saturates only at the end of representable time.
        let expires = now.checked_add(self.lifetime).unwrap_or(Timestamp::MAX);
        self.signer.sign(&Claims {
            issuer: Some(KAS.to_owned()),
            audience: vec![self.audience.to_owned()],
            issued_at: Some(now),
            not_before: Some(now.checked_sub(NOT_BEFORE).unwrap_or(Timestamp::MIN)),
            ..Claims::expiring(expires)
        })
    }
}
