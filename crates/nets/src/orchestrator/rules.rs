//! The rules as they were last given to each cloud: for following tags, for answers, for drift.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tarbet_store::{Operation, Record, Store, Table};

use super::plan::Target;
use crate::error::Error;
use crate::model::Rule;

/// The permit list of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleSet {
    pub(super) namespace: String,
    pub(super) cloud: String,
    pub(super) uri: String,
    pub(super) rules: BTreeMap<String, Rule>,
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
            rules: rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect(),
        }
    }
}

impl RuleSet {
    /// Whose it is.
    pub(super) fn target(&self) -> Target {
        let (namespace, cloud, uri) = (self.namespace.clone(), self.cloud.clone(), self.uri.clone());
        Target { namespace, cloud, uri, ip: None }
    }
}

/// What a resource was made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MadeFrom {
    pub(super) description: String,
}

impl Record for MadeFrom {
    const KIND: &'static str = "resource";
}

pub(super) struct Rules(Table<String, RuleSet>);

impl Rules {
    pub(super) fn new(store: &Store) -> Result<Self, Error> {
        Ok(Self(Table::new(store, "nets-rules")?))
    }

    pub(super) async fn get(&self, subscriber: &str) -> Result<RuleSet, Error> {
        Ok(self.0.get(&subscriber.to_owned()).await?.map(|record| record.value).unwrap_or_default())
    }

    /// To write a permit list down; an empty one leaves no record.
    pub(super) fn put_op(&self, subscriber: &str, set: &RuleSet) -> Result<Operation, Error> {
        let key = subscriber.to_owned();
        if set.rules.is_empty() { Ok(self.0.delete_op(&key)) } else { Ok(self.0.put_op(&key, set)?) }
    }

    pub(super) async fn list(&self) -> Result<Vec<RuleSet>, Error> {
        Ok(self.0.list().await?.records.into_iter().map(|(_, record)| record.value).collect())
    }
}
