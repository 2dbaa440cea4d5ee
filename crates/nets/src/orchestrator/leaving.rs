//! Deletions that a cloud could not be told yet: written down with the permit list, and made once it answers.
//!
//! Until then the rules of a resource stay known, because they are in force; nobody follows tags for them any
//! more. A resource that goes has lost its tag already, so that nobody else permits it.

use std::collections::BTreeSet;

use tarbet_store::Commit;
use tarbet_telemetry::Coded;
use tokio::time::Instant;

use super::Inner;
use super::apply::{Made, ignore_missing};
use super::operation::Call;
use super::request::Target;
use super::rules::{MadeFrom, RuleSet};
use crate::error::Error;
use crate::model::{Rule, Subscriber};

impl Inner {
    /// Has the cloud remove rules, or writes down that it is to.
    pub(super) async fn take_rules(&self, target: &Target, names: &[String]) -> Result<Made, Error> {
        let subscriber = target.subscriber().to_string();
        let turn = self.turns.turn(&subscriber).await;
        let cloud = self.places.cloud(&target.cloud)?;
        let told = cloud.delete_rules(&target.namespace, &target.uri, names.to_vec()).await;
        let mut set = self.rules.of(target).await?;
        let behind = self.later(&subscriber, told)?;
        if behind.is_some() {
            set.going.extend(names.iter().cloned());
        } else {
            set.forget(names);
        }
        Ok(Made { writes: vec![self.rules.put_op(&subscriber, &set)?], behind, _turn: Some(turn) })
    }

    /// Has the cloud remove a resource, or writes down that it is to.
    pub(super) async fn remove(&self, target: &Target) -> Result<Made, Error> {
        let subscriber = target.subscriber().to_string();
        let cloud = self.places.cloud(&target.cloud)?;
        let told = ignore_missing(cloud.delete_resource(&target.namespace, &target.uri).await);
        self.spaces.outdated();
        let behind = self.later(&subscriber, told)?;
        let turn = self.turns.turn(&subscriber).await;
        let mut set = self.rules.of(target).await?;
        let was = set.deleted.take();
        if behind.is_some() {
            let prefix = format!("{}.{}.", target.namespace, target.cloud);
            let tag = was.or_else(|| Some(self.tags.leaf_of(&prefix, &target.uri)?.name));
            set.deleted = Some(tag.unwrap_or_default());
        } else if was.is_none() {
            return Ok(Made::default());
        }
        Ok(Made { writes: vec![self.rules.put_op(&subscriber, &set)?], behind, _turn: Some(turn) })
    }

    /// Forgets a resource and its tag, but for what its cloud has yet to be told.
    pub(super) async fn unregister(&self, tag: &str, subscriber: &str) -> Result<Made, Error> {
        let set = self.rules.get(subscriber).await?;
        for followed in set.rules.values().flat_map(|rule| &rule.tags) {
            self.tags.unsubscribe(followed, subscriber).await?;
        }
        ignore_missing(self.tags.delete(tag).await.map(drop))?;
        let writes = if set.deleted.is_some() {
            let going = MadeFrom { description: String::new(), going: Some(subscriber.to_owned()) };
            vec![self.made.put_op(&tag.to_owned(), &going)?]
        } else {
            vec![self.rules.put_op(subscriber, &RuleSet::default())?, self.made.delete_op(&tag.to_owned())]
        };
        Ok(Made { writes, ..Made::default() })
    }

    /// What a cloud that may answer later could not be told is owed to it.
    fn later(&self, subscriber: &str, told: Result<(), Error>) -> Result<Option<Error>, Error> {
        match told {
            Ok(()) => Ok(None),
            Err(error) if error.may_pass() => {
                self.owed.failed(subscriber, "", Instant::now());
                let advice = "nothing: the deletion is written down and made once the cloud answers; \
                              `tarbet glide drift` tells what is left";
                Ok(Some(error.problem().advising(advice).into()))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the deletions that are left, for who holds the turn, and tells what stays; nothing if it is gone.
    pub(super) async fn make_deletions(
        &self,
        target: &Target,
        set: RuleSet,
    ) -> Result<Option<RuleSet>, Error> {
        if let Some(tag) = &set.deleted {
            let (cloud, subscriber) = (self.places.cloud(&target.cloud)?, target.subscriber().to_string());
            ignore_missing(cloud.delete_resource(&target.namespace, &target.uri).await)?;
            self.spaces.outdated();
            let gone = self.rules.put_op(&subscriber, &RuleSet::default())?;
            self.lead.commit(Commit::new().with(gone).with(self.made.delete_op(tag))).await?;
            return Ok(None);
        }
        let names: Vec<String> = set.going.iter().cloned().collect();
        self.make_deletions_of(target, set, &names).await.map(Some)
    }

    /// Makes the deletions of these rules, for who holds the turn, and tells what stays.
    pub(super) async fn make_deletions_of(
        &self,
        target: &Target,
        mut set: RuleSet,
        names: &[String],
    ) -> Result<RuleSet, Error> {
        let cloud = self.places.cloud(&target.cloud)?;
        ignore_missing(cloud.delete_rules(&target.namespace, &target.uri, names.to_vec()).await)?;
        set.forget(names);
        let write = self.rules.put_op(&target.subscriber().to_string(), &set)?;
        self.lead.commit(Commit::new().with(write)).await?;
        Ok(set)
    }

    /// Whose removal under this tag is left, if it is.
    pub(super) async fn still_going(&self, tag: &str) -> Result<Option<Subscriber>, Error> {
        let made = self.made.get(&tag.to_owned()).await?;
        Ok(made.and_then(|made| Subscriber::parse(&made.value.going?)))
    }

    /// Refuses a tag whose last resource its cloud has yet to remove: that removal would take the new one's record.
    pub(super) async fn is_free(&self, tag: &str) -> Result<(), Error> {
        if self.still_going(tag).await?.is_none() {
            return Ok(());
        }
        let left = format!("the last `{tag}` is deleted and its cloud has yet to remove it");
        Err(Error::invalid("name", left))
    }

    /// Refuses a resource whose own removal is left: once its cloud answers, it would be removed all the same.
    pub(super) async fn stays(&self, resource: &Target) -> Result<(), Error> {
        if self.rules.of(resource).await?.deleted.is_none() {
            return Ok(());
        }
        let left = format!("{} is deleted and its cloud has yet to remove it", resource.uri);
        Err(Error::invalid("id", left))
    }

    /// The calls that remove what is left of a resource.
    pub(super) async fn plan_removal(&self, tag: &str, left: Subscriber) -> Result<Vec<Call>, Error> {
        let subscriber = left.to_string();
        let Subscriber { namespace, cloud, uri } = left;
        let mut calls = vec![
            Call::DeleteResource { cloud, namespace, uri },
            Call::Unregister { tag: tag.to_owned(), subscriber },
        ];
        calls.extend(self.plan_behind(tag, self.owed.because_of(tag)).await?);
        Ok(calls)
    }
}

impl RuleSet {
    /// Whether its cloud has yet to be told of a deletion.
    pub(super) fn is_leaving(&self) -> bool {
        self.deleted.is_some() || !self.going.is_empty()
    }

    /// Its rules that stay.
    pub(super) fn staying(&self) -> impl Iterator<Item = &Rule> {
        let stay = self.deleted.is_none();
        self.rules.values().filter(move |rule| stay && !self.going.contains(&rule.name))
    }

    fn forget(&mut self, names: &[String]) {
        self.rules.retain(|name, _| !names.contains(name));
        self.going.retain(|name| !names.contains(name));
    }

    /// What its cloud has yet to be told, in words.
    pub(super) fn leaves(&self) -> Vec<String> {
        let Self { uri, going, deleted, .. } = self;
        match deleted {
            Some(_) => vec![format!("{uri} is deleted and its cloud has not heard it")],
            None => going
                .iter()
                .map(|name| format!("rule {name} of {uri} is deleted and its cloud has not heard it"))
                .collect(),
        }
    }

    /// Those of its deletions that new rules of the same names leave standing.
    pub(super) fn going_beside(&self, given: &[Rule]) -> BTreeSet<String> {
        let again = |name: &&String| given.iter().any(|rule| rule.name == **name);
        self.going.iter().filter(|name| !again(name)).cloned().collect()
    }
}
