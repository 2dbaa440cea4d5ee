//! What differs from what should be, and mending it.

use std::collections::BTreeMap;

use serde::Serialize;
use tarbet_store::Commit;

use super::rules::RuleSet;
use super::{Inner, Orchestrator};
use crate::error::Error;
use crate::model::Rule;

/// A difference between what should be and what is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where.
    pub cloud: String,
    /// What.
    pub what: String,
    /// Whether it was mended.
    pub repaired: bool,
}

impl Orchestrator {
    /// Compares every permit list with its tags and with what its cloud has, and lets each cloud compare itself.
    pub async fn drift(&self, repair: bool) -> Result<Vec<Difference>, Error> {
        if repair {
            self.0.lead.check()?;
        }
        let mut found = Vec::new();
        let mut silent = Silent::default();
        for (name, cloud) in self.0.places.clouds() {
            let mut namespaces: Vec<String> =
                self.0.places.deployments(name).into_iter().map(|deployment| deployment.namespace).collect();
            namespaces.dedup();
            for namespace in namespaces {
                match cloud.drift(&namespace, repair).await {
                    Ok(differences) => found.extend(differences.into_iter().map(|what| Difference {
                        cloud: name.clone(),
                        what,
                        repaired: repair,
                    })),
                    Err(error) if error.is_unsupported() => {}
                    Err(error) => {
                        silent.add(name, error)?;
                        break;
                    }
                }
            }
        }
        for set in self.0.rules.list().await? {
            // What a cloud has yet to be told is known without it.
            let (cloud, leaves) = (set.cloud.clone(), set.leaves());
            let looked = if silent.0.contains_key(&cloud) {
                None
            } else {
                let looked = if repair {
                    self.0.mend(set).await
                } else {
                    self.0.compare(&set).await.map(|wrong| wrong.told(false))
                };
                match looked {
                    Ok(differences) => Some(differences),
                    Err(error) => silent.add(&cloud, error).map(|()| None)?,
                }
            };
            let left = |what| Difference { cloud: cloud.clone(), what, repaired: false };
            found.extend(looked.unwrap_or_else(|| leaves.into_iter().map(left).collect()));
        }
        match silent.0.pop_first() {
            // Whoever wanted it mended must not take it for mended.
            Some((_, error)) if repair => Err(error),
            first => {
                found.extend(first.into_iter().chain(silent.0).map(|(cloud, error)| Difference {
                    cloud,
                    what: format!("not compared: {}", tarbet_telemetry::problem::chain(&error)),
                    repaired: false,
                }));
                Ok(found)
            }
        }
    }
}

/// Clouds that do not answer just now: they keep nothing of the others back.
#[derive(Default)]
struct Silent(BTreeMap<String, Error>);

impl Silent {
    fn add(&mut self, cloud: &str, error: Error) -> Result<(), Error> {
        if !error.may_pass() {
            return Err(error);
        }
        self.0.insert(cloud.to_owned(), error);
        Ok(())
    }
}

/// What is wrong with one permit list.
struct Wrong {
    cloud: String,
    uri: String,
    gone: bool,
    /// Rules whose targets are not what their tags stand for, as they should be.
    behind: Vec<Rule>,
    /// Rules that the cloud does not have so.
    missing: Vec<Rule>,
    /// Rules that only the cloud has.
    foreign: Vec<String>,
    /// Deletions that the cloud has yet to be told.
    leaving: Vec<String>,
}

impl Wrong {
    fn told(&self, repaired: bool) -> Vec<Difference> {
        let Self { cloud, uri, .. } = self;
        let report = |what: String, repaired| Difference { cloud: cloud.clone(), what, repaired };
        let gone = self.gone.then(|| report(format!("{uri} is gone"), false));
        let behind = self.behind.iter().map(|rule| {
            format!("the targets of rule {} of {uri} are not what its tags stand for", rule.name)
        });
        let missing =
            self.missing.iter().map(|rule| format!("rule {} of {uri} is missing or different", rule.name));
        let foreign = self.foreign.iter().map(|name| format!("rule {name} of {uri} is not ours"));
        let leaving = self.leaving.iter().cloned();
        let rules = behind.chain(missing).chain(foreign).chain(leaving).map(|what| report(what, repaired));
        gone.into_iter().chain(rules).collect()
    }
}

impl Inner {
    async fn compare(&self, set: &RuleSet) -> Result<Wrong, Error> {
        let mut wrong = Wrong {
            cloud: set.cloud.clone(),
            uri: set.uri.clone(),
            gone: false,
            behind: Vec::new(),
            missing: Vec::new(),
            foreign: Vec::new(),
            leaving: set.leaves(),
        };
        if set.deleted.is_some() {
            return Ok(wrong);
        }
        let actual = match self.places.cloud(&set.cloud)?.permit_list(&set.namespace, &set.uri).await {
            Ok(rules) => rules,
            Err(error) if error.is_not_found() => {
                wrong.gone = true;
                return Ok(wrong);
            }
            Err(error) => return Err(error),
        };
        let actual: BTreeMap<&str, &Rule> = actual.iter().map(|rule| (rule.name.as_str(), rule)).collect();
        wrong.behind = self.renewed(set).await?;
        let is_behind = |rule: &Rule| wrong.behind.iter().any(|behind| behind.name == rule.name);
        let others = set.staying().filter(|rule| !is_behind(rule));
        wrong.missing =
            others.filter(|rule| differs(actual.get(rule.name.as_str()), rule)).cloned().collect();
        // Of a resource that was given no rules here, all are others'.
        let known =
            |name: &str| set.rules.is_empty() || set.rules.contains_key(name) || set.going.contains(name);
        let foreign = actual.keys().filter(|name| !known(name));
        wrong.foreign = foreign.map(ToString::to_string).collect();
        Ok(wrong)
    }

    /// Compares in turn, so that nothing is mended back to what a request just changed.
    async fn mend(&self, set: RuleSet) -> Result<Vec<Difference>, Error> {
        let target = set.target();
        let subscriber = target.subscriber().to_string();
        let _turn = self.turns.turn(&subscriber).await;
        let set = self.rules.get(&subscriber).await?;
        if set.rules.is_empty() && !set.is_leaving() {
            return Ok(Vec::new());
        }
        let wrong = self.compare(&set).await?;
        if set.is_leaving() && self.make_deletions(&target, set).await?.is_none() {
            return Ok(wrong.told(true));
        }
        let cloud = self.places.cloud(&target.cloud)?;
        if !wrong.missing.is_empty() {
            cloud.add_rules(&target.namespace, &target.uri, wrong.missing.clone()).await?;
        }
        if !wrong.behind.is_empty() {
            let write = self.give_rules_in_turn(&target, &subscriber, wrong.behind.clone()).await?;
            self.lead.commit(Commit::new().with(write)).await?;
        }
        if !wrong.foreign.is_empty() {
            cloud.delete_rules(&target.namespace, &target.uri, wrong.foreign.clone()).await?;
        }
        Ok(wrong.told(true))
    }
}

/// Whether a cloud has a rule otherwise than it should. One without targets permits nothing, and some clouds
/// have no way to write that down.
fn differs(actual: Option<&&Rule>, wanted: &Rule) -> bool {
    actual.map_or(!wanted.targets.is_empty(), |actual| !same(actual, wanted))
}

/// Clouds may tell targets in another order, and some forget tags or source ports.
fn same(actual: &Rule, wanted: &Rule) -> bool {
    let targets = |rule: &Rule| crate::plan::rule::targets(rule).unwrap_or_default();
    (actual.direction, actual.dst_port, actual.protocol)
        == (wanted.direction, wanted.dst_port, wanted.protocol)
        && targets(actual) == targets(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_permits_nothing_may_be_left_out_by_its_cloud() {
        let rule = |targets: &[&str]| Rule {
            name: "web".into(),
            targets: targets.iter().map(ToString::to_string).collect(),
            ..Rule::default()
        };
        assert!(!differs(None, &rule(&[])));
        assert!(differs(None, &rule(&["10.0.0.1"])));
        assert!(differs(Some(&&rule(&["10.0.0.1"])), &rule(&[])), "it permits what it should not");
        assert!(!differs(Some(&&rule(&["10.0.0.2", "10.0.0.1"])), &rule(&["10.0.0.1", "10.0.0.2"])));
    }
}
