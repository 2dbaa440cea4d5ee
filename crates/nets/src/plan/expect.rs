//! A file of expectations: who must reach whom, and who must not. Judged without any cloud.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::tags::{Graph, Mapping, TagError};
use super::verdict::{Endpoint, Packet, Policy, Verdict};
use crate::model::Rule;
use crate::plan::rule::{self, Mistake};

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expectations {
    /// Resources by tag, with what they permit. Without any, the orchestrator is asked instead.
    pub resources: BTreeMap<String, Resource>,
    /// Groups of tags.
    pub tags: BTreeMap<String, Vec<String>>,
    /// What must hold.
    pub tests: Vec<Expectation>,
}

/// A resource in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Its address.
    pub ip: IpAddr,
    /// Its rules, as a person writes them.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// One expectation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// A resource's tag, or an address.
    pub from: String,
    /// A resource's tag, or an address.
    pub to: String,
    /// The port, for protocols that have one.
    #[serde(default)]
    pub port: u16,
    /// `tcp`, `udp`, `icmp` or a number.
    #[serde(default)]
    pub protocol: Protocol,
    /// Whether it must pass.
    pub allow: bool,
}

/// A protocol by name or number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Spelling", into = "u8")]
pub struct Protocol(pub u8);

impl Default for Protocol {
    fn default() -> Self {
        Self(6)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Spelling {
    Number(u8),
    Word(String),
}

impl TryFrom<Spelling> for Protocol {
    type Error = String;

    fn try_from(spelling: Spelling) -> Result<Self, String> {
        match spelling {
            Spelling::Number(number) => Ok(Self(number)),
            Spelling::Word(word) => word.parse(),
        }
    }
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self(6)),
            "udp" => Ok(Self(17)),
            "icmp" => Ok(Self(1)),
            "sctp" => Ok(Self(132)),
            other => other
                .parse()
                .map(Self)
                .map_err(|_| format!("`{word}` is not tcp, udp, icmp, sctp or a number")),
        }
    }
}

impl From<Protocol> for u8 {
    fn from(protocol: Protocol) -> Self {
        protocol.0
    }
}

/// Why a file cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpectError {
    /// A rule in it is wrong.
    #[error("{resource}: {mistake}")]
    Rule {
        /// Whose.
        resource: String,
        /// What.
        mistake: Mistake,
    },
    /// A tag in it is wrong.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// A name stands for nothing, or for several.
    #[error("tests[{index}]: `{name}` is neither an address nor a resource of this file")]
    Name {
        /// Which test.
        index: usize,
        /// Which name.
        name: String,
    },
}

/// What came of one expectation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// What was expected.
    pub expectation: Expectation,
    /// What is so.
    pub verdict: Verdict,
    /// Whether they agree.
    pub holds: bool,
}

impl Expectations {
    /// Judges all of it.
    pub fn judge(&self) -> Result<Vec<Judged>, ExpectError> {
        let graph = self.graph()?;
        let mut policy = Policy::default();
        for (name, resource) in &self.resources {
            rule::check_request(&resource.rules).map_err(|mut mistakes| ExpectError::Rule {
                resource: name.clone(),
                mistake: mistakes.remove(0),
            })?;
            let resolved = resource.rules.iter().map(|rule| Rule {
                targets: rule.tags.iter().flat_map(|tag| graph.addresses(tag)).collect(),
                ..rule.clone()
            });
            policy.insert(resource.ip, Endpoint { name: name.clone(), rules: resolved.collect() });
        }
        let address = |index: usize, name: &str| {
            let known = self.resources.get(name).map(|resource| resource.ip);
            known.or_else(|| name.parse().ok()).ok_or_else(|| ExpectError::Name { index, name: name.into() })
        };
        let judge = |(index, expectation): (usize, &Expectation)| {
            let packet = Packet {
                source: address(index, &expectation.from)?,
                destination: address(index, &expectation.to)?,
                protocol: expectation.protocol.0,
                source_port: 49152,
                destination_port: expectation.port,
            };
            let verdict = policy.judge(&packet);
            let holds = verdict.allowed == expectation.allow;
            Ok(Judged { expectation: expectation.clone(), verdict, holds })
        };
        self.tests.iter().enumerate().map(judge).collect()
    }

    fn graph(&self) -> Result<Graph, TagError> {
        let mut graph = Graph::default();
        let leaves = self.resources.iter().map(|(name, resource)| Mapping {
            name: name.clone(),
            ip: Some(resource.ip.to_string()),
            ..Mapping::default()
        });
        let groups = self.tags.iter().map(|(name, children)| Mapping {
            name: name.clone(),
            child_tags: children.clone(),
            ..Mapping::default()
        });
        for tag in leaves.chain(groups) {
            for write in graph.set(&tag)? {
                graph.apply(&write);
            }
        }
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_judged_without_any_cloud() {
        let text = "
tags: {clients: [default.east.a]}
resources:
  default.east.a:
    ip: 10.0.0.4
    rules: [{name: out, direction: outbound, src_port: -1, dst_port: -1, protocol: -1, tags: [default.east.web]}]
  default.east.web:
    ip: 10.0.0.5
    rules: [{name: web, src_port: -1, dst_port: 443, protocol: 6, tags: [clients]}]
tests:
  - {from: default.east.a, to: default.east.web, port: 443, allow: true}
  - {from: default.east.a, to: default.east.web, port: 22, allow: false}
  - {from: default.east.a, to: default.east.web, protocol: udp, port: 443, allow: true}
  - {from: 10.0.0.9, to: default.east.web, port: 443, allow: false}
";
        let file: Expectations = serde_saphyr::from_str(text).unwrap();
        let judged = file.judge().unwrap();
        assert_eq!(judged.iter().map(|one| one.holds).collect::<Vec<_>>(), [true, true, false, true]);
        let mut wrong = file.clone();
        wrong.tests[0].from = "nobody".into();
        assert_eq!(wrong.judge(), Err(ExpectError::Name { index: 0, name: "nobody".into() }));
    }
}
