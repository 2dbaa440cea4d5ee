//! Naming a peer by its key alone.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::hash::sha256;

/// SHA-256 over a DER SubjectPublicKeyInfo, printed as `sha256:` and hex.
///
/// It names the key and not the certificate, so a peer may renew its self-signed certificate freely.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pin([u8; 32]);

/// The text is not a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a key's fingerprint: `sha256:` and 64 lower-case hexadecimal digits")]
pub struct NotAPin;

impl Pin {
    /// The pin of a key given as DER SubjectPublicKeyInfo.
    pub fn of_public_key_info(der: &[u8]) -> Self {
        Self(sha256(der))
    }

    /// The hash itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = NotAPin;

    fn from_str(text: &str) -> Result<Self, NotAPin> {
        let digits = text.strip_prefix("sha256:").ok_or(NotAPin)?;
        if digits.contains(|c: char| c.is_ascii_uppercase()) {
            return Err(NotAPin);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| NotAPin)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Pin {
    type Error = NotAPin;

    fn try_from(text: String) -> Result<Self, NotAPin> {
        text.parse()
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> Self {
        pin.to_string()
    }
}

/// The keys a TLS end accepts. Clones are one set: a change is seen by the next handshake.
#[derive(Clone, Default)]
pub struct PinSet(Arc<ArcSwap<BTreeSet<Pin>>>);

impl PinSet {
    /// Replaces the whole set.
    pub fn set(&self, pins: impl IntoIterator<Item = Pin>) {
        self.0.store(Arc::new(pins.into_iter().collect()));
    }

    /// Adds one.
    pub fn insert(&self, pin: Pin) {
        self.0.rcu(|pins| BTreeSet::clone(pins).into_iter().chain([pin]).collect::<BTreeSet<_>>());
    }

    /// Removes one. Connections it has opened go on; closing them is their owner's business.
    pub fn remove(&self, pin: &Pin) {
        self.0.rcu(|pins| pins.iter().filter(|held| *held != pin).copied().collect::<BTreeSet<_>>());
    }

    /// Whether the key is accepted now.
    pub fn contains(&self, pin: &Pin) -> bool {
        self.0.load().contains(pin)
    }
}

impl FromIterator<Pin> for PinSet {
    fn from_iter<I: IntoIterator<Item = Pin>>(pins: I) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(pins.into_iter().collect())))
    }
}

impl From<Pin> for PinSet {
    fn from(pin: Pin) -> Self {
        [pin].into_iter().collect()
    }
}

impl fmt::Debug for PinSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.load().iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let pin = Pin::of_public_key_info(b"anything");
        assert_eq!(pin.to_string().parse(), Ok(pin));
        assert_eq!(serde_json::from_value::<Pin>(serde_json::to_value(pin).unwrap()).unwrap(), pin);
        for bad in [
            "",
            "sha256:",
            "sha256:00",
            &pin.to_string()[7..],
            &pin.to_string().replace(['a', 'b', 'c'], "A"),
        ] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn clones_are_one_set() {
        let (a, b) = (Pin::of_public_key_info(b"a"), Pin::of_public_key_info(b"b"));
        let set = PinSet::from(a);
        let seen = set.clone();
        set.insert(b);
        assert!(seen.contains(&a) && seen.contains(&b));
        set.remove(&a);
        assert!(!seen.contains(&a) && seen.contains(&b));
        set.set([]);
        assert!(!seen.contains(&b));
    }
}
