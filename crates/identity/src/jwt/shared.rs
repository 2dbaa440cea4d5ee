//! Secrets that two sides share, replaced while both go on.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::BadSecret;
use crate::secret::{Secret, SecretBytes};

/// Shorter keys can be found by trying them against one captured token.
const MIN: usize = 32;

/// The first signs and each of them counts, so that one side can change over after the other.
/// Clones follow a replacement.
#[derive(Clone)]
pub struct SharedSecrets(Arc<ArcSwap<Vec<SecretBytes>>>);

impl SharedSecrets {
    /// Reads a file as kas keeps it: 32 bytes or more, in base64. There may be one more on each further line.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, BadSecret> {
        let text = Secret::from_file(path)?;
        let lines = text.expose().lines().map(str::trim).filter(|line| !line.is_empty());
        let read = |line| STANDARD.decode(line).map(SecretBytes::new).map_err(|_| BadSecret::NotBase64);
        let secrets = lines.map(read).collect::<Result<Vec<_>, _>>()?;
        if secrets.is_empty() { Err(BadSecret::TooShort) } else { Self(share(secrets)).checked() }
    }

    /// Refuses what is too short to keep anything.
    pub(super) fn checked(self) -> Result<Self, BadSecret> {
        let is_short = |secret: &SecretBytes| secret.expose().len() < MIN;
        if self.0.load().iter().any(is_short) { Err(BadSecret::TooShort) } else { Ok(self) }
    }

    /// Takes over what `other` holds now; says whether that is something else.
    pub fn become_like(&self, other: &Self) -> bool {
        let (before, after) = (self.0.load_full(), other.0.load_full());
        let same = before.len() == after.len()
            && before.iter().zip(after.iter()).all(|(one, other)| one.matches(other.expose()));
        if !same {
            self.0.store(after);
        }
        !same
    }

    /// Whether one of them is also among the others.
    pub fn meets(&self, other: &Self) -> bool {
        other.0.load().iter().any(|secret| self.matches(secret.expose()))
    }

    /// Whether one of them is this one.
    pub fn matches(&self, presented: impl AsRef<[u8]>) -> bool {
        self.any(|secret| secret.matches(presented.as_ref()))
    }

    pub(super) fn any(&self, judge: impl Fn(&SecretBytes) -> bool) -> bool {
        self.0.load().iter().any(judge)
    }

    /// The one that signs.
    pub(super) fn first(&self) -> SecretBytes {
        // It is made with one at least.
        self.0.load().first().cloned().unwrap_or_else(|| SecretBytes::new(Vec::new()))
    }
}

fn share(secrets: Vec<SecretBytes>) -> Arc<ArcSwap<Vec<SecretBytes>>> {
    Arc::new(ArcSwap::from_pointee(secrets))
}

impl From<SecretBytes> for SharedSecrets {
    fn from(secret: SecretBytes) -> Self {
        Self(share(vec![secret]))
    }
}

impl fmt::Debug for SharedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecrets(redacted)")
    }
}
