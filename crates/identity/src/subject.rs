//! Who a certificate or a token is for, written as a SPIFFE-like URI: `spiffe://tarbet/site/NAME`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Leaves room in a DNS label, a Kubernetes name and a URI.
const MAX_NAME: usize = 128;
const START: &str = "spiffe://tarbet/";

/// What kind of party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectKind {
    /// A place that dials in.
    Site,
    /// A replica that agents dial.
    Gateway,
    /// A person or program.
    User,
}

impl SubjectKind {
    const ALL: [Self; 3] = [Self::Site, Self::Gateway, Self::User];

    fn word(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Gateway => "gateway",
            Self::User => "user",
        }
    }
}

/// A party by kind and name. One that exists has a name fit for a URI path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subject {
    kind: SubjectKind,
    name: String,
}

/// The name cannot be part of an identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASubject {
    /// A name with odd characters, none, or too many.
    #[error("a name is 1 to {MAX_NAME} characters from a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..'")]
    Name,
    /// Not one of our URIs.
    #[error("expected {START}KIND/NAME with a kind of site, gateway or user")]
    Uri,
}

impl Subject {
    /// A party of the given kind.
    pub fn new(kind: SubjectKind, name: impl Into<String>) -> Result<Self, NotASubject> {
        let name = name.into();
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if name.is_empty() || name.len() > MAX_NAME || !plain || name == "." || name == ".." {
            return Err(NotASubject::Name);
        }
        Ok(Self { kind, name })
    }

    /// Shorthand for a site.
    pub fn site(name: impl Into<String>) -> Result<Self, NotASubject> {
        Self::new(SubjectKind::Site, name)
    }

    /// Its kind.
    pub fn kind(&self) -> SubjectKind {
        self.kind
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{START}{}/{}", self.kind.word(), self.name)
    }
}

impl FromStr for Subject {
    type Err = NotASubject;

    fn from_str(uri: &str) -> Result<Self, NotASubject> {
        let (word, name) =
            uri.strip_prefix(START).and_then(|path| path.split_once('/')).ok_or(NotASubject::Uri)?;
        let kind = SubjectKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or(NotASubject::Uri)?;
        Self::new(kind, name)
    }
}

impl TryFrom<String> for Subject {
    type Error = NotASubject;

    fn try_from(uri: String) -> Result<Self, NotASubject> {
        uri.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_round_trip_and_odd_names_are_refused() {
        let site = Subject::site("paris-1.lab_a").unwrap();
        assert_eq!(site.to_string(), "spiffe://tarbet/site/paris-1.lab_a");
        assert_eq!(site.to_string().parse(), Ok(site));
        for name in ["", ".", "..", "a/b", "a%2fb", "a b", "é", "a\0", &"a".repeat(129)] {
            assert_eq!(Subject::site(name), Err(NotASubject::Name), "{name:?}");
        }
        for uri in [
            "",
            "spiffe://tarbet/",
            "spiffe://tarbet/site",
            "spiffe://other/site/a",
            "spiffe://tarbet/node/a",
            "Spiffe://tarbet/site/a",
        ] {
            assert_eq!(uri.parse::<Subject>(), Err(NotASubject::Uri), "{uri:?}");
        }
        assert_eq!("spiffe://tarbet/site/a/b".parse::<Subject>(), Err(NotASubject::Name));
    }
}
