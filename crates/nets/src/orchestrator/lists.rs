//! Which permit lists a change of tags touches, and how: seen before anything is changed.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::Inner;
use super::needed::Connections;
use super::operation::digest_of;
use super::request::Target;
use super::rules::RuleSet;
use crate::error::Error;
use crate::model::{Rule, Subscriber};
use crate::plan::tags::{Graph, TagError, WhatIf, Write};

/// Permit lists that are read at once.
const AT_ONCE: usize = 32;

/// What a permit list is to be told, as it was seen when that was planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTargets {
    /// Whose.
    pub subscriber: String,
    /// The rules with other targets than before; none if its rules could not be looked at.
    pub rules: Vec<NewTarget>,
}

/// A rule with other targets than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTarget {
    /// Its name.
    pub rule: String,
    /// How many targets come.
    pub more: usize,
    /// How many go.
    pub fewer: usize,
    /// Stands for all of them: a list may be long, and is told to many.
    pub targets: String,
}

impl fmt::Display for NewTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cloud, uri) = match Subscriber::parse(&self.subscriber) {
            Some(subscriber) => (subscriber.cloud, subscriber.uri),
            None => (String::new(), self.subscriber.clone()),
        };
        if self.rules.is_empty() {
            return write!(f, "{cloud}: AddPermitListRules to {uri}, whose rules cannot be looked at now");
        }
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        write!(f, "{cloud}: AddPermitListRules {} to {uri}", rules.join(", "))
    }
}

impl fmt::Display for NewTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, more, fewer, .. } = self;
        match (more, fewer) {
            (more, 0) => write!(f, "{rule} (+{more})"),
            (0, fewer) => write!(f, "{rule} (-{fewer})"),
            (more, fewer) => write!(f, "{rule} (+{more} -{fewer})"),
        }
    }
}

/// What a change of tags takes beside the change.
#[derive(Default)]
pub(super) struct After {
    pub(super) lists: Vec<NewTargets>,
    pub(super) connections: Connections,
}

/// A permit list that changes, with what comes to each rule.
struct Changing<'a> {
    set: Option<&'a RuleSet>,
    told: NewTargets,
    comes: Vec<Rule>,
}

impl Inner {
    /// Who follows a tag or any tag above it: by the tag service, or because its rules name one.
    pub(super) fn affected(&self, tag: &str) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        for name in self.tags.names_above(tag) {
            affected.extend(self.tags.subscribers(&name));
            affected.append(&mut self.rules.naming(&name));
        }
        affected
    }

    /// What the permit lists of these come to after a change of tags. What could never work is refused here,
    /// before anything is changed; what goes is never refused.
    pub(super) async fn lists_after(
        &self,
        followers: &BTreeSet<String>,
        change: impl Fn(&Graph) -> Result<Vec<Write>, TagError>,
    ) -> Result<After, Error> {
        let read = |name: String| async move {
            let target: Target = Subscriber::parse(&name)?.into();
            match self.permit_list(&target).await {
                Ok(set) => Some((name, Some(set))),
                Err(error) if error.is_not_found() => None,
                // Whoever then tries to change it learns why.
                Err(_) => Some((name, None)),
            }
        };
        let sets: Vec<(String, Option<RuleSet>)> = futures::stream::iter(followers.iter().cloned().map(read))
            .buffered(AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
        let named: BTreeSet<String> =
            sets.iter().filter_map(|(_, set)| set.as_ref()).flat_map(RuleSet::tags).collect();
        self.tags.look(&Vec::from_iter(named)).await?;
        let changing = self.tags.what_if(change, |then| changing(&sets, then))?;
        let mut after = After::default();
        let coming = changing.iter().any(|list| !list.comes.is_empty());
        // Clouds that do not tell their networks are told the rules all the same, and decide.
        let known = coming && self.spaces.map(&self.places).await.is_ok();
        for Changing { set, told, comes } in changing {
            if let Some(set) = set.filter(|_| known && !comes.is_empty()) {
                let resource = self.located(&set.target());
                drop(after.connections.merge(self.connections_for(&resource, &comes).await?));
            }
            after.lists.push(told);
        }
        Ok(after)
    }
}

/// The permit lists whose rules would have other targets.
fn changing<'a>(sets: &'a [(String, Option<RuleSet>)], then: &WhatIf<'_>) -> Vec<Changing<'a>> {
    let mut known: HashMap<&str, Vec<String>> = HashMap::new();
    let mut found = Vec::new();
    for (subscriber, set) in sets {
        let mut list = Changing {
            set: set.as_ref(),
            told: NewTargets { subscriber: subscriber.clone(), rules: Vec::new() },
            comes: Vec::new(),
        };
        // Some clouds keep no tags: what such a rule stood for is not known here.
        for rule in set.iter().flat_map(RuleSet::staying).filter(|rule| !rule.tags.is_empty()) {
            let mut targets: BTreeSet<&String> = BTreeSet::new();
            for tag in &rule.tags {
                known.entry(tag).or_insert_with(|| then.addresses(tag));
            }
            targets.extend(rule.tags.iter().filter_map(|tag| known.get(tag.as_str())).flatten());
            let before: BTreeSet<&String> = rule.targets.iter().collect();
            if targets == before {
                continue;
            }
            let more: Vec<String> = targets.difference(&before).map(ToString::to_string).collect();
            let all: Vec<&str> = targets.iter().map(|target| target.as_str()).collect();
            list.told.rules.push(NewTarget {
                rule: rule.name.clone(),
                more: more.len(),
                fewer: before.difference(&targets).count(),
                targets: digest_of(&all.join(" ")),
            });
            if !more.is_empty() {
                list.comes.push(Rule { targets: more, ..rule.clone() });
            }
        }
        if set.is_none() || !list.told.rules.is_empty() {
            found.push(list);
        }
    }
    found
}
