//! The rules as they were last given to each cloud: for following tags, for answers, for drift.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tarbet_store::{Operation, Record, Store, Table};

use super::request::Target;
use crate::error::Error;
use crate::model::Rule;
use crate::plan::target;

/// The permit list of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleSet {
    pub(super) namespace: String,
    pub(super) cloud: String,
    pub(super) uri: String,
    /// The resource's own address, where it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ip: Option<IpAddr>,
    pub(super) rules: BTreeMap<String, Rule>,
    /// Rules that are deleted and that its cloud has yet to be told to remove.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) going: BTreeSet<String>,
    /// The tag it had, if the resource itself is deleted and its cloud has yet to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleted: Option<String>,
}

impl Record for RuleSet {
    const KIND: &'static str = "permit-list";
}

impl RuleSet {
    pub(super) fn new(resource: &Target, rules: Vec<Rule>) -> Self {
        Self {
            namespace: resource.namespace.clone(),
            cloud: resource.cloud.clone(),
            uri: resource.uri.clone(),
            ip: resource.ip,
            rules: rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect(),
            going: BTreeSet::new(),
            deleted: None,
        }
    }

    /// Whose it is.
    pub(super) fn target(&self) -> Target {
        let (namespace, cloud, uri) = (self.namespace.clone(), self.cloud.clone(), self.uri.clone());
        Target { namespace, cloud, uri, ip: self.ip }
    }

    /// The tags its rules name that stay, without addresses that stand for themselves.
    pub(super) fn tags(&self) -> BTreeSet<String> {
        let named = self.staying().flat_map(|rule| &rule.tags);
        named.filter(|tag| target::parse(tag).is_none()).cloned().collect()
    }
}

/// What a resource was made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MadeFrom {
    pub(super) description: String,
    /// Who it was, if it is deleted and its cloud has yet to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) going: Option<String>,
}

impl Record for MadeFrom {
    const KIND: &'static str = "resource";
}

/// Whose rules name which tag. The tag service knows it too, but may have forgotten: a tag that is deleted
/// loses its subscribers, and is named by their rules all the same should it be set again.
#[derive(Debug, Default)]
struct Naming {
    by_tag: HashMap<String, BTreeSet<String>>,
    by_subscriber: HashMap<String, BTreeSet<String>>,
}

impl Naming {
    fn note(&mut self, subscriber: &str, tags: BTreeSet<String>) {
        let before = self.by_subscriber.remove(subscriber).unwrap_or_default();
        for tag in before.difference(&tags) {
            if let Some(named_by) = self.by_tag.get_mut(tag) {
                named_by.remove(subscriber);
                if named_by.is_empty() {
                    self.by_tag.remove(tag);
                }
            }
        }
        for tag in tags.difference(&before) {
            self.by_tag.entry(tag.clone()).or_default().insert(subscriber.to_owned());
        }
        if !tags.is_empty() {
            self.by_subscriber.insert(subscriber.to_owned(), tags);
        }
    }
}

pub(super) struct Rules {
    table: Table<String, RuleSet>,
    naming: RwLock<Naming>,
}

impl Rules {
    pub(super) async fn open(store: &Store) -> Result<Self, Error> {
        let rules = Self { table: Table::new(store, "nets-rules")?, naming: RwLock::default() };
        rules.reload().await?;
        Ok(rules)
    }

    /// Reads again what another orchestrator may have written.
    pub(super) async fn reload(&self) -> Result<(), Error> {
        let mut naming = Naming::default();
        for (subscriber, record) in self.table.list().await?.records {
            naming.note(&subscriber, record.value.tags());
        }
        *self.naming.write().unwrap_or_else(PoisonError::into_inner) = naming;
        Ok(())
    }

    pub(super) async fn get(&self, subscriber: &str) -> Result<RuleSet, Error> {
        Ok(self.table.get(&subscriber.to_owned()).await?.map(|record| record.value).unwrap_or_default())
    }

    /// The same for a resource that may have none yet.
    pub(super) async fn of(&self, resource: &Target) -> Result<RuleSet, Error> {
        let known = self.table.get(&resource.subscriber().to_string()).await?;
        Ok(known.map_or_else(|| RuleSet::new(resource, Vec::new()), |record| record.value))
    }

    /// To write a permit list down; an empty one leaves no record.
    pub(super) fn put_op(&self, subscriber: &str, set: &RuleSet) -> Result<Operation, Error> {
        let key = subscriber.to_owned();
        self.naming.write().unwrap_or_else(PoisonError::into_inner).note(subscriber, set.tags());
        if set.rules.is_empty() && !set.is_leaving() {
            Ok(self.table.delete_op(&key))
        } else {
            Ok(self.table.put_op(&key, set)?)
        }
    }

    pub(super) async fn list(&self) -> Result<Vec<RuleSet>, Error> {
        Ok(self.table.list().await?.records.into_iter().map(|(_, record)| record.value).collect())
    }

    /// Whose rules name this very tag.
    pub(super) fn naming(&self, tag: &str) -> BTreeSet<String> {
        let naming = self.naming.read().unwrap_or_else(PoisonError::into_inner);
        naming.by_tag.get(tag).cloned().unwrap_or_default()
    }

    /// All tags that rules name.
    pub(super) fn named(&self) -> Vec<String> {
        self.naming.read().unwrap_or_else(PoisonError::into_inner).by_tag.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_a_tag_is_known_both_ways() {
        let tags = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let mut naming = Naming::default();
        naming.note("s", tags(&["a", "b"]));
        naming.note("t", tags(&["b"]));
        assert_eq!(naming.by_tag["b"], tags(&["s", "t"]));
        naming.note("s", tags(&["c"]));
        assert_eq!((naming.by_tag["b"].clone(), naming.by_tag["c"].clone()), (tags(&["t"]), tags(&["s"])));
        naming.note("s", tags(&[]));
        naming.note("t", tags(&[]));
        assert!(naming.by_tag.is_empty() && naming.by_subscriber.is_empty());
    }
}
