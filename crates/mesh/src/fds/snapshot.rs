//! Everything a mesh exports at one moment, with a version that can be compared.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use prost_types::Any;
use sha2::{Digest, Sha256};

use super::encode;
use crate::model::Offer;

/// When a state was first seen, and a digest of it.
///
/// The time orders states of one mesh, also across restarts and between replicas; the digest tells
/// that two replicas mean the same state although they saw it at different times. The original
/// has only whole seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Milliseconds since 1970.
    pub millis: u64,
    /// Of all services; empty with the original.
    pub digest: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.digest.is_empty() {
            write!(f, "{}", self.millis / 1000)
        } else {
            write!(f, "{}-{}", self.millis, self.digest)
        }
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once('-') {
            Some((millis, digest)) if digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Ok(Self { millis: millis.parse().map_err(|_| ())?, digest: digest.to_owned() })
            }
            Some(_) => Err(()),
            None => {
                let seconds: u64 = text.parse().map_err(|_| ())?;
                Ok(Self { millis: seconds.saturating_mul(1000), digest: String::new() })
            }
        }
    }
}

/// One service in a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// What it was made from.
    offer: Arc<Offer>,
    pub(crate) version: String,
    pub(crate) resource: Any,
}

/// Everything a mesh exports at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) mesh: String,
    pub(crate) version: Version,
    pub(crate) entries: BTreeMap<String, Arc<Entry>>,
}

/// By its version, in which every service has a part.
impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.mesh == other.mesh && self.version == other.version
    }
}

impl Snapshot {
    /// The snapshot of what `mesh` offers, first seen at `millis`; nothing if it is the `previous` one.
    pub fn after(previous: Option<&Self>, mesh: &str, offers: &[Arc<Offer>], millis: u64) -> Option<Self> {
        let next = Self::build(previous, mesh, offers, millis);
        let same = |previous: &Self| previous.version.digest == next.version.digest && previous.mesh == mesh;
        (!previous.is_some_and(same)).then_some(next)
    }

    /// The snapshot of what `mesh` offers, seen at `millis`, whatever there was before.
    pub fn first(mesh: &str, offers: &[Arc<Offer>], millis: u64) -> Self {
        Self::build(None, mesh, offers, millis)
    }

    fn build(previous: Option<&Self>, mesh: &str, offers: &[Arc<Offer>], millis: u64) -> Self {
        let mut entries = BTreeMap::new();
        for offer in offers {
            let known = previous.and_then(|previous| previous.entries.get(&offer.hostname));
            // What did not change is the same: most often the very same, and nobody needs to look.
            let entry = match known {
                Some(known) if known.offer == *offer => Arc::clone(known),
                _ => {
                    let resource = encode(offer);
                    let version = digest_of(&resource.value);
                    Arc::new(Entry { offer: Arc::clone(offer), version, resource })
                }
            };
            entries.insert(offer.hostname.clone(), entry);
        }
        let digest = digest(entries.iter().map(|(name, entry)| (name.as_str(), entry.version.as_str())));
        // Two changes within one millisecond, or a clock that was set back, still go forward.
        let millis = previous.map_or(millis, |previous| millis.max(previous.version.millis + 1));
        Self { mesh: mesh.to_owned(), version: Version { millis, digest }, entries }
    }

    /// The mesh it is of.
    pub fn mesh(&self) -> &str {
        &self.mesh
    }

    /// Its version.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// How many services it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Sixteen hexadecimal digits of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..8])
}

/// The digest of a whole state from the versions of its services, in the order of their names.
pub(crate) fn digest<'a>(versions: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut hash = Sha256::new();
    for (name, version) in versions {
        hash.update(name);
        hash.update([0]);
        hash.update(version);
        hash.update([0]);
    }
    hex::encode(&hash.finalize()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(names: &[&str]) -> Vec<Arc<Offer>> {
        let offer = |&name: &&str| Arc::new(Offer { hostname: name.to_owned(), ..Offer::default() });
        names.iter().map(offer).collect()
    }

    #[test]
    fn a_version_moves_only_with_the_state_and_only_forward() {
        let first = Snapshot::after(None, "east", &offers(&["a.b"]), 1000).unwrap();
        assert!(Snapshot::after(Some(&first), "east", &offers(&["a.b"]), 2000).is_none());
        let second = Snapshot::after(Some(&first), "east", &offers(&["a.b", "c.d"]), 500).unwrap();
        assert_eq!(second.version.millis, 1001, "a clock that was set back");
        assert!(Arc::ptr_eq(&first.entries["a.b"], &second.entries["a.b"]), "what did not change is shared");
        let elsewhere = Snapshot::after(None, "east", &offers(&["c.d", "a.b"]), 9000).unwrap();
        assert_eq!(elsewhere.version.digest, second.version.digest, "two replicas mean the same");
    }

    #[test]
    fn versions_are_read_in_both_forms() {
        let ours = Version { millis: 1_700_000_000_123, digest: "00ff00ff00ff00ff".into() };
        assert_eq!(ours.to_string().parse(), Ok(ours));
        let original: Version = "1700000000".parse().unwrap();
        assert_eq!((original.millis, original.to_string().as_str()), (1_700_000_000_000, "1700000000"));
        for odd in ["", "x", "1-2", "-", "1-zzzzzzzzzzzzzzzz"] {
            assert!(odd.parse::<Version>().is_err(), "{odd}");
        }
    }
}
