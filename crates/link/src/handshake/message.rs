//! What gateway and agent tell each other when a link begins.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;
use zeroize::Zeroizing;

/// The versions this build speaks.
pub const VERSIONS: Versions = Versions { lowest: 1, highest: 1 };

/// A range of protocol versions, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub lowest: u16,
    /// The newest.
    pub highest: u16,
}

/// The newest version both sides speak.
pub fn negotiate(ours: Versions, theirs: Versions) -> Option<u16> {
    let newest = ours.highest.min(theirs.highest);
    (newest >= ours.lowest.max(theirs.lowest)).then_some(newest)
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.lowest, self.highest)
    }
}

/// Any message of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Agent to gateway.
    Hello(Hello),
    /// Gateway to agent: yes.
    Welcome(Welcome),
    /// Gateway to agent: no.
    Refusal(Refusal),
}

impl Message {
    /// What kind of message it is.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Welcome(_) => "welcome",
            Self::Refusal(_) => "refusal",
        }
    }
}

/// The first message: who dials, and with what right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The versions the agent speaks.
    pub versions: Versions,
    /// What proves the site; the link does not look inside.
    pub credential: Credential,
    /// Who the agent is.
    pub agent: AgentInfo,
}

/// Who an agent is and what it offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentInfo {
    /// A name for people, such as the host name.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// One process of an agent: two links of the same process share it.
    pub instance: Uuid,
    /// This connection.
    pub connection: Uuid,
    /// The services offered over it.
    pub services: Vec<String>,
    /// What the link is meant for.
    pub purpose: Purpose,
}

/// What a link is meant for; the windows of both ends follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Purpose {
    /// Many requests side by side.
    #[default]
    General,
    /// A few large transfers, perhaps far away.
    Bulk,
}

/// The gateway's yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version to be spoken.
    pub version: u16,
    /// The id of the link, for logs on both sides.
    pub link: Uuid,
    /// A name for the gateway.
    pub gateway: String,
    /// How often the gateway sends a PING on an idle link.
    pub ping_interval: Duration,
}

/// The gateway's no, before the link or while it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// One sentence for the log of the agent.
    pub text: String,
    /// When to come again at the earliest.
    pub retry_after: Option<Duration>,
    /// The versions the gateway speaks, when that is the reason.
    pub versions: Option<Versions>,
}

impl Refusal {
    /// A refusal with a reason, cut to what fits into a message.
    pub fn new(code: RefusalCode, text: impl AsRef<str>) -> Self {
        let text = text.as_ref().chars().filter(|c| !c.is_control()).take(240).collect();
        Self { code, text, retry_after: None, versions: None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.text, self.code)
    }
}

/// Why a gateway says no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// The hello cannot be read.
    Malformed,
    /// No version in common.
    Version,
    /// The credential is unknown, expired or of the wrong kind.
    Credential,
    /// The credential was good once and is revoked.
    Revoked,
    /// The site has as many links as it may have.
    Quota,
    /// The gateway is shutting down, or the link has grown old: open another one.
    Draining,
    /// The gateway cannot tell now; try again.
    Unavailable,
    /// A code of a newer gateway.
    Other(u16),
}

impl RefusalCode {
    const KNOWN: [(u16, Self); 7] = [
        (1, Self::Malformed),
        (2, Self::Version),
        (3, Self::Credential),
        (4, Self::Revoked),
        (5, Self::Quota),
        (6, Self::Draining),
        (7, Self::Unavailable),
    ];

    pub(super) fn to_wire(self) -> u16 {
        match self {
            Self::Other(number) => number,
            known => Self::KNOWN.iter().find(|(_, code)| *code == known).map_or(0, |(number, _)| *number),
        }
    }

    pub(super) fn from_wire(number: u16) -> Self {
        Self::KNOWN.iter().find(|(known, _)| *known == number).map_or(Self::Other(number), |(_, code)| *code)
    }
}

/// The secret a site proves itself with. It cannot be printed and is wiped when dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credential(Zeroizing<Vec<u8>>);

impl Credential {
    /// Takes the bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// The bytes, for the one who checks them.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn versions() -> impl Strategy<Value = Versions> {
        (1u16..20, 0u16..6).prop_map(|(lowest, more)| Versions { lowest, highest: lowest + more })
    }

    proptest! {
        #[test]
        fn both_sides_choose_the_same_newest_version(a in versions(), b in versions()) {
            prop_assert_eq!(negotiate(a, b), negotiate(b, a));
            let common = (1u16..30).rev().find(|v| {
                (a.lowest..=a.highest).contains(v) && (b.lowest..=b.highest).contains(v)
            });
            prop_assert_eq!(negotiate(a, b), common);
        }

        #[test]
        fn a_refusal_code_survives_the_wire(number in any::<u16>()) {
            prop_assert_eq!(RefusalCode::from_wire(number).to_wire(), number);
        }
    }

    #[test]
    fn a_credential_is_never_printed() {
        assert_eq!(format!("{:?}", Credential::new("s3cret")), "Credential(…)");
    }
}
