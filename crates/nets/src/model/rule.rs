//! Permit-list rules. Every rule allows; what no rule allows is denied.

use serde::{Deserialize, Serialize};

/// Any port, or any protocol.
pub const ANY: i32 = -1;

/// Which way the first packet of a permitted flow goes, seen from the resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "i32", try_from = "Spelling")]
pub enum Direction {
    /// The targets may open flows to the resource.
    #[default]
    Inbound,
    /// The resource may open flows to the targets.
    Outbound,
}

/// The REST API writes numbers; people who write files prefer words.
#[derive(Deserialize)]
#[serde(untagged)]
enum Spelling {
    Number(i32),
    Word(String),
}

impl TryFrom<Spelling> for Direction {
    type Error = String;

    fn try_from(spelling: Spelling) -> Result<Self, Self::Error> {
        match spelling {
            Spelling::Number(0) => Ok(Self::Inbound),
            Spelling::Number(1) => Ok(Self::Outbound),
            Spelling::Word(word) if word.eq_ignore_ascii_case("inbound") => Ok(Self::Inbound),
            Spelling::Word(word) if word.eq_ignore_ascii_case("outbound") => Ok(Self::Outbound),
            Spelling::Number(other) => {
                Err(format!("direction must be 0 (inbound) or 1 (outbound), not {other}"))
            }
            Spelling::Word(other) => Err(format!("direction must be inbound or outbound, not `{other}`")),
        }
    }
}

impl From<Direction> for i32 {
    fn from(direction: Direction) -> Self {
        direction as Self
    }
}

/// One permission. In JSON, zero values are left out, as the wire's own encoder does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Unique for its resource; the same name again replaces it. The first generation says `id`.
    #[serde(alias = "id", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Addresses and prefixes the tags stand for; filled in by the orchestrator only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Which way.
    #[serde(skip_serializing_if = "is_inbound")]
    pub direction: Direction,
    /// Source port of the first packet, or [`ANY`].
    #[serde(skip_serializing_if = "is_zero")]
    pub src_port: i32,
    /// Destination port of the first packet, or [`ANY`].
    #[serde(skip_serializing_if = "is_zero")]
    pub dst_port: i32,
    /// IANA protocol number, or [`ANY`].
    #[serde(skip_serializing_if = "is_zero")]
    pub protocol: i32,
    /// What the person wrote: tags, addresses or prefixes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_inbound(direction: &Direction) -> bool {
    *direction == Direction::Inbound
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_wires_own() {
        let rule = Rule {
            name: "web".into(),
            src_port: ANY,
            dst_port: 443,
            protocol: 6,
            tags: vec!["a".into()],
            ..Rule::default()
        };
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(text, r#"{"name":"web","src_port":-1,"dst_port":443,"protocol":6,"tags":["a"]}"#);
        assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule);
        let out: Rule = serde_json::from_str(r#"{"id":"x","direction":1}"#).unwrap();
        assert_eq!((out.name.as_str(), out.direction), ("x", Direction::Outbound));
        assert_eq!(
            serde_json::from_str::<Rule>(r#"{"direction":"outbound"}"#).unwrap().direction,
            Direction::Outbound
        );
        for bad in [r#"{"direction":2}"#, r#"{"direction":"up"}"#, r#"{"dst_prt":1}"#] {
            assert!(serde_json::from_str::<Rule>(bad).is_err(), "{bad}");
        }
    }
}
