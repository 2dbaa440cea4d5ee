//! Names that are checked once, where they come in.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a site: a DNS label, so that it can stand in URLs, kubeconfig contexts and metrics.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SiteName(Arc<str>);

/// The text is no name for a site.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a site name: 1 to 63 lower-case letters, digits or `-`, not beginning or ending in `-`"
)]
pub struct NotASiteName(String);

impl SiteName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SiteName {
    type Err = NotASiteName;

    fn from_str(text: &str) -> Result<Self, NotASiteName> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let sound = (1..=63).contains(&text.len())
            && text.bytes().all(legal)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if sound { Ok(Self(text.into())) } else { Err(NotASiteName(text.chars().take(80).collect())) }
    }
}

impl TryFrom<String> for SiteName {
    type Error = NotASiteName;

    fn try_from(text: String) -> Result<Self, NotASiteName> {
        text.parse()
    }
}

impl From<SiteName> for String {
    fn from(name: SiteName) -> Self {
        name.0.to_string()
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_names() {
        for good in ["a", "lab-1", "0", &"x".repeat(63)] {
            assert_eq!(good.parse::<SiteName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "a b", "ä", "..", &"x".repeat(64)] {
            assert!(bad.parse::<SiteName>().is_err(), "{bad}");
        }
    }
}
