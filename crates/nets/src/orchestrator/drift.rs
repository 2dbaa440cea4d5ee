//! What differs from what should be: comparing finds pieces, each of which one call mends.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tarbet_telemetry::problem::chain;

use super::operation::Call;
use super::request::Target;
use super::rules::RuleSet;
use super::{Inner, Orchestrator};
use crate::error::Error;
use crate::model::{ResourceTag, Rule};

/// A difference between what should be and what is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where.
    pub cloud: String,
    /// What.
    pub what: String,
    /// Who can mend it.
    pub mend: Mend,
    /// Whether it was mended.
    pub repaired: bool,
}

/// Who can mend a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mend {
    /// A repair, or it is tried by one.
    Repair,
    /// Only a person: what should be there is lost.
    Hand,
    /// Nobody has to: it is only told.
    Nothing,
}

/// What a comparison found. `Request::Repair` mends it.
#[derive(Debug, Clone, Default)]
pub struct Compared(Vec<Piece>);

/// Differences of one cloud, and the call that mends them, if one can.
#[derive(Debug, Clone)]
struct Piece {
    cloud: String,
    differences: Vec<String>,
    mend: Mend,
    call: Option<Call>,
    /// Whether it says that something could not be compared: the call tries it, and does not know what it mends.
    unknown: bool,
}

impl Compared {
    fn add_unknown(&mut self, cloud: &str, what: String, call: Option<Call>) {
        let told = |piece: &Piece| piece.cloud == cloud && piece.differences.first() == Some(&what);
        if !self.0.iter().any(told) {
            let mend = if call.is_some() { Mend::Repair } else { Mend::Nothing };
            let cloud = cloud.to_owned();
            self.0.push(Piece { cloud, differences: vec![what], mend, call, unknown: true });
        }
    }

    fn add(&mut self, cloud: &str, differences: Vec<String>, call: Call) {
        self.push(cloud, differences, Mend::Repair, Some(call));
    }

    /// What no call mends.
    fn add_told(&mut self, cloud: &str, wrong: &Wrong) {
        self.push(cloud, wrong.lost(), Mend::Hand, None);
        self.push(cloud, wrong.stays(), Mend::Nothing, None);
    }

    fn push(&mut self, cloud: &str, differences: Vec<String>, mend: Mend, call: Option<Call>) {
        if !differences.is_empty() {
            self.0.push(Piece { cloud: cloud.to_owned(), differences, mend, call, unknown: false });
        }
    }

    /// The calls that mend it.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.0.iter().filter_map(|piece| piece.call.clone()).collect()
    }

    /// One line for each difference, before anything is mended.
    pub fn told(&self) -> Vec<Difference> {
        self.lines(|_, _| false)
    }

    /// One line for each difference, after what can be mended was; these are left.
    pub(super) fn told_after(&self, left: &Left) -> Vec<Difference> {
        self.lines(|piece, what| {
            let is_left = left.0.contains(&(piece.cloud.clone(), what.to_owned()));
            piece.call.is_some() && !piece.unknown && !is_left
        })
    }

    fn lines(&self, repaired: impl Fn(&Piece, &str) -> bool) -> Vec<Difference> {
        let mut lines = Vec::new();
        for piece in &self.0 {
            lines.extend(piece.differences.iter().map(|what| Difference {
                cloud: piece.cloud.clone(),
                what: what.clone(),
                mend: piece.mend,
                repaired: repaired(piece, what),
            }));
        }
        lines
    }
}

/// What clouds still tell of themselves after they mended what they could: cloud and difference.
#[derive(Debug, Clone, Default)]
pub(super) struct Left(BTreeSet<(String, String)>);

impl Orchestrator {
    /// What is left of what clouds found in themselves: some they only tell, and one that does not answer now may
    /// have mended nothing.
    pub(super) async fn left_of(&self, compared: &Compared) -> Left {
        let mut left = Left::default();
        for piece in compared.0.iter().filter(|piece| !piece.unknown) {
            let Some(Call::MendCloud { cloud, namespace, differences }) = &piece.call else { continue };
            let now = match self.0.places.cloud(cloud) {
                Ok(plugin) => plugin.drift(namespace, false).await,
                Err(error) => Err(error),
            };
            let now = now.unwrap_or_else(|_| differences.clone());
            left.0.extend(now.into_iter().map(|what| (cloud.clone(), what)));
        }
        left
    }

    /// Compares every permit list with its tags and with what its cloud has, and lets each cloud compare itself.
    pub async fn compare(&self) -> Result<Compared, Error> {
        let inner = &self.0;
        // A plugin that was started again learns from this question where its networks are. One that does not
        // answer it is told below.
        inner.spaces.outdated();
        let _ = inner.spaces.update(&inner.places).await;
        let (mut found, mut last, mut silent) = (Compared::default(), Compared::default(), BTreeSet::new());
        for (name, cloud) in inner.places.clouds() {
            let namespaces: BTreeSet<String> =
                inner.places.deployments(name).into_iter().map(|deployment| deployment.namespace).collect();
            for namespace in namespaces {
                let mend = |differences: Vec<String>| Call::MendCloud {
                    cloud: name.clone(),
                    namespace: namespace.clone(),
                    differences,
                };
                match cloud.drift(&namespace, false).await {
                    Ok(differences) => found.add(name, differences.clone(), mend(differences)),
                    Err(error) if error.is_unsupported() => {
                        let what = format!("only its permit lists are compared: {}", chain(&error));
                        last.add_unknown(name, what, None);
                    }
                    Err(error) => {
                        silent.insert(name.clone());
                        let what = unanswered(&error).ok_or(error)?;
                        last.add_unknown(name, what.clone(), Some(mend(vec![what])));
                        break;
                    }
                }
            }
        }
        let mut sets = inner.rules.list().await?;
        inner.add_bare(&mut sets).await?;
        for set in sets {
            let (cloud, subscriber) = (set.cloud.clone(), set.target().subscriber().to_string());
            let wrong = if silent.contains(&cloud) { None } else { Some(inner.compare(&set).await) };
            match wrong {
                // What a cloud has yet to be told is known without it.
                None => {
                    let left = Wrong { leaving: set.leaves(), ..Wrong::of(&set) };
                    found.add(&cloud, left.told(), left.mend(&subscriber));
                }
                Some(Ok(wrong)) => {
                    found.add_told(&cloud, &wrong);
                    found.add(&cloud, wrong.told(), wrong.mend(&subscriber));
                }
                // One list that cannot be read keeps no other back.
                Some(Err(error)) if error.is_unsupported() => {
                    last.add_unknown(&cloud, format!("{} is not compared: {}", set.uri, chain(&error)), None);
                }
                Some(Err(error)) => {
                    silent.insert(cloud.clone());
                    let what = unanswered(&error).ok_or(error)?;
                    let left = Wrong { leaving: set.leaves(), ..Wrong::of(&set) };
                    found.add(&cloud, left.told(), left.mend(&subscriber));
                    let (namespace, differences) = (set.namespace.clone(), vec![what.clone()]);
                    let mend = Call::MendCloud { cloud: cloud.clone(), namespace, differences };
                    last.add_unknown(&cloud, what, Some(mend));
                }
            }
        }
        found.0.append(&mut last.0);
        Ok(found)
    }
}

/// What is told of a cloud that does not answer just now; nothing if that is not why.
fn unanswered(error: &Error) -> Option<String> {
    error.may_pass().then(|| format!("not compared: {}", chain(error)))
}

/// What is wrong with one permit list.
#[derive(Default)]
pub(super) struct Wrong {
    uri: String,
    gone: bool,
    /// Rules whose targets are not what their tags stand for, as they should be.
    pub(super) behind: Vec<Rule>,
    /// Rules that the cloud does not have so.
    pub(super) missing: Vec<Rule>,
    /// Rules that only the cloud has.
    pub(super) foreign: Vec<String>,
    /// Rules of a resource that was given none here: others may have, so they stay.
    others: Vec<String>,
    /// Deletions that the cloud has yet to be told.
    leaving: Vec<String>,
    /// The rules among them; none if the resource itself is to go.
    going: Vec<String>,
}

impl Wrong {
    fn of(set: &RuleSet) -> Self {
        let going = if set.deleted.is_some() { Vec::new() } else { set.going.iter().cloned().collect() };
        Self { uri: set.uri.clone(), going, ..Self::default() }
    }

    /// What can be mended.
    fn told(&self) -> Vec<String> {
        let uri = &self.uri;
        let behind = self.behind.iter().map(|rule| {
            format!("the targets of rule {} of {uri} are not what its tags stand for", rule.name)
        });
        let missing =
            self.missing.iter().map(|rule| format!("rule {} of {uri} is missing or different", rule.name));
        let foreign = self.foreign.iter().map(|name| format!("rule {name} of {uri} is not ours"));
        behind.chain(missing).chain(foreign).chain(self.leaving.iter().cloned()).collect()
    }

    /// What only a person can mend.
    fn lost(&self) -> Vec<String> {
        self.gone.then(|| format!("{} is gone", self.uri)).into_iter().collect()
    }

    /// What is only told.
    fn stays(&self) -> Vec<String> {
        let told = |name: &String| format!("rule {name} of {} was not given here, and stays", self.uri);
        self.others.iter().map(told).collect()
    }

    fn mend(&self, subscriber: &str) -> Call {
        let again = self.missing.iter().chain(&self.behind);
        Call::MendList {
            subscriber: subscriber.to_owned(),
            add: again.map(|rule| rule.name.clone()).collect(),
            delete: self.foreign.iter().chain(&self.going).cloned().collect(),
        }
    }
}

impl Inner {
    /// Adds the resources that were made here and given no rules: nothing is remembered of their permit lists.
    async fn add_bare(&self, sets: &mut Vec<RuleSet>) -> Result<(), Error> {
        self.look_all().await?;
        let known: BTreeSet<String> = sets.iter().map(|set| set.target().subscriber().to_string()).collect();
        for (tag, made) in self.made.list().await?.records {
            let (Some(place), Some(uri)) =
                (ResourceTag::parse(&tag), self.tags.get(&tag).and_then(|tag| tag.uri))
            else {
                continue;
            };
            let target = Target { namespace: place.namespace, cloud: place.cloud, uri, ip: None };
            let is_here = self.places.deployment(&target.namespace, &target.cloud).is_ok();
            if is_here && made.value.going.is_none() && !known.contains(&target.subscriber().to_string()) {
                sets.push(RuleSet::new(&target, Vec::new()));
            }
        }
        Ok(())
    }

    pub(super) async fn compare(&self, set: &RuleSet) -> Result<Wrong, Error> {
        let mut wrong = Wrong { leaving: set.leaves(), ..Wrong::of(set) };
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
        let known = |name: &str| set.rules.contains_key(name) || set.going.contains(name);
        let foreign = actual.keys().filter(|name| !known(name)).map(ToString::to_string).collect();
        // Of a resource that was given no rules here, all are others'.
        if set.rules.is_empty() {
            wrong.others = foreign;
        } else {
            wrong.foreign = foreign;
        }
        Ok(wrong)
    }
}

/// A rule's word for any port.
const ANY_PORT: i32 = -1;

/// Whether a cloud has a rule otherwise than it should. One without targets permits nothing, and some clouds
/// have no way to write that down.
fn differs(actual: Option<&&Rule>, wanted: &Rule) -> bool {
    actual.map_or(!wanted.targets.is_empty(), |actual| !same(actual, wanted))
}

/// Clouds may tell targets in another order, and some forget tags. Those that know no source ports tell any, which
/// is what they were told they could keep of such a rule; a rule for any must be one.
fn same(actual: &Rule, wanted: &Rule) -> bool {
    let targets = |rule: &Rule| crate::plan::rule::targets(rule).unwrap_or_default();
    let from = actual.src_port == wanted.src_port || actual.src_port == ANY_PORT;
    from && (actual.direction, actual.dst_port, actual.protocol)
        == (wanted.direction, wanted.dst_port, wanted.protocol)
        && targets(actual) == targets(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cloud_only_tells_is_not_called_mended() {
        let mut found = Compared::default();
        let both = vec!["open".to_owned(), "theirs".to_owned()];
        let mend = Call::MendCloud { cloud: "a".into(), namespace: "ns".into(), differences: both.clone() };
        found.add("a", both, mend);
        let repaired = |lines: Vec<Difference>| lines.iter().map(|line| line.repaired).collect::<Vec<_>>();
        assert_eq!(repaired(found.told()), [false, false]);
        let left = Left(BTreeSet::from([("a".to_owned(), "theirs".to_owned())]));
        assert_eq!(repaired(found.told_after(&left)), [true, false]);
    }

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

    #[test]
    fn a_source_port_counts_where_the_cloud_tells_it() {
        let from = |src_port| Rule { name: "web".into(), src_port, ..Rule::default() };
        assert!(differs(Some(&&from(22)), &from(-1)), "it permits less than it should");
        assert!(differs(Some(&&from(22)), &from(23)));
        assert!(!differs(Some(&&from(22)), &from(22)));
        assert!(!differs(Some(&&from(-1)), &from(22)), "some clouds have no word for it");
    }
}
