//! Paths that come from strangers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A path below some folder that cannot leave it: relative, no `..`, no empty parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(String);

/// A path that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a path below a folder: relative, without `..`, empty parts or control characters", .0.escape_debug())]
pub struct BadPath(pub String);

/// The longest name of a file.
const MAX_NAME: usize = 255;
/// The longest path.
const MAX_PATH: usize = 2048;

impl RelPath {
    /// Checks a path. A first part that begins with `..` is refused too: those are ours.
    pub fn new(text: impl Into<String>) -> Result<Self, BadPath> {
        let text = text.into();
        let good = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME;
        let safe = text.len() <= MAX_PATH
            && !text.starts_with("..")
            && !text.contains(char::is_control)
            && text.split('/').all(good);
        if safe { Ok(Self(text)) } else { Err(BadPath(text)) }
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its parts.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The first part.
    pub fn first(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RelPath {
    type Error = BadPath;

    fn try_from(text: String) -> Result<Self, BadPath> {
        Self::new(text)
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

/// A place inside a container: absolute, not the root, without `..` and without `:`, which
/// separates parts of a mount option in several runtimes; so do `,` and `"` in others.
pub fn mount_target(text: &str) -> Result<String, BadPath> {
    let trimmed = text.trim_end_matches('/');
    let inner = trimmed.strip_prefix('/').ok_or_else(|| BadPath(text.to_owned()))?;
    let plain = !inner.contains(|c: char| c.is_control() || [':', ',', '"', '\\'].contains(&c));
    let parts = inner.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME);
    if plain && parts && trimmed.len() <= MAX_PATH {
        Ok(trimmed.to_owned())
    } else {
        Err(BadPath(text.to_owned()))
    }
}

/// A name of a ConfigMap or Secret: a DNS subdomain, safe as the name of a folder.
pub fn is_object_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    !text.is_empty() && text.len() <= 253 && text.bytes().all(inner) && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tricks_are_refused() {
        for bad in
            ["", "/", "/etc", "..", "a/../b", "../x", "..data", "a//b", "a/", "./a", "a/.", "a\0b", "a\nb"]
        {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b.c", "a..b", "a/..b", ".hidden", "ä b", "-x"] {
            assert!(RelPath::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "/", "etc", "/a/../b", "/a:b", "/a//b", "/a\0", "/.", "/a,ro", "/a\"b"] {
            assert!(mount_target(bad).is_err(), "{bad:?}");
        }
        assert_eq!(mount_target("/a/b/").unwrap(), "/a/b");
    }

    proptest! {
        #[test]
        fn what_is_accepted_stays_below(text in "[a./\\x00\n]{0,20}") {
            if let Ok(path) = RelPath::new(text) {
                let mut depth = 0i32;
                for part in path.parts() {
                    depth += if part == ".." { -1 } else { 1 };
                    prop_assert!(depth > 0);
                }
                prop_assert!(!path.as_str().starts_with('/'));
            }
        }
    }
}
