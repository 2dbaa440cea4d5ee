//! Mending what differs: exactly what was planned, and of that only what differs still.

use tarbet_store::Commit;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::nets;

use super::Inner;
use super::apply::Made;
use super::drift::Wrong;
use super::request::Target;
use crate::error::Error;
use crate::model::Subscriber;

/// What a permit list is to be told, as it was planned.
pub(super) struct Planned<'a> {
    pub(super) add: &'a [String],
    pub(super) delete: &'a [String],
}

impl Planned<'_> {
    /// With neither rules to add nor to delete, the resource itself is to go.
    fn removes(&self) -> bool {
        self.add.is_empty() && self.delete.is_empty()
    }

    /// What is wrong and was planned to be mended. The rest is told by the next comparison.
    fn of(&self, mut wrong: Wrong) -> Wrong {
        wrong.missing.retain(|rule| self.add.contains(&rule.name));
        wrong.behind.retain(|rule| self.add.contains(&rule.name));
        wrong.foreign.retain(|name| self.delete.contains(name));
        wrong
    }
}

impl Inner {
    /// Lets a cloud mend itself, unless more differs there than was planned. What it cannot now keeps no other from
    /// it.
    pub(super) async fn mend_cloud(
        &self,
        cloud: &str,
        namespace: &str,
        planned: &[String],
    ) -> Result<Made, Error> {
        left_behind(self.mend_all_of(cloud, namespace, planned).await)
    }

    async fn mend_all_of(&self, cloud: &str, namespace: &str, planned: &[String]) -> Result<(), Error> {
        let plugin = self.places.cloud(cloud)?;
        let now = plugin.drift(namespace, false).await?;
        let more = unplanned(&now, planned);
        if !more.is_empty() {
            let message = format!("{cloud} differs in more than was planned: {}.", more.join("; "));
            return Err(Problem::new(&nets::PLAN_CHANGED, message)
                .at(format!("orchestrator → {cloud}"))
                .into());
        }
        if !now.is_empty() {
            let mended = plugin.drift(namespace, true).await;
            self.spaces.outdated();
            mended?;
        }
        Ok(())
    }

    /// Compares in turn, so that nothing is mended back to what a request just changed.
    pub(super) async fn mend_list(&self, subscriber: &str, planned: &Planned<'_>) -> Result<Made, Error> {
        let Some(parsed) = Subscriber::parse(subscriber) else { return Ok(Made::default()) };
        let target: Target = parsed.into();
        let _turn = self.turns.turn(subscriber).await;
        left_behind(self.mend(&target, subscriber, planned).await)
    }

    async fn mend(&self, target: &Target, subscriber: &str, planned: &Planned<'_>) -> Result<(), Error> {
        let set = self.rules.get(subscriber).await?;
        if set.deleted.is_some() || planned.removes() {
            // Nothing but its removal makes sense of a resource that goes, and nothing removes one that stays.
            if set.deleted.is_some() && planned.removes() {
                self.make_deletions(target, set).await?;
            }
            return Ok(());
        }
        if set.rules.is_empty() && !set.is_leaving() {
            return Ok(());
        }
        let wrong = planned.of(self.compare(&set).await?);
        let going: Vec<String> =
            set.going.iter().filter(|name| planned.delete.contains(name)).cloned().collect();
        if !going.is_empty() {
            self.make_deletions_of(target, set, &going).await?;
        }
        let cloud = self.places.cloud(&target.cloud)?;
        if !wrong.missing.is_empty() {
            cloud.add_rules(&target.namespace, &target.uri, wrong.missing).await?;
        }
        if !wrong.behind.is_empty() {
            let write = self.give_rules_in_turn(target, subscriber, wrong.behind).await?;
            self.lead.commit(Commit::new().with(write)).await?;
        }
        if !wrong.foreign.is_empty() {
            cloud.delete_rules(&target.namespace, &target.uri, wrong.foreign).await?;
        }
        Ok(())
    }
}

/// What differs now and was not told when it was planned.
fn unplanned<'a>(now: &'a [String], planned: &[String]) -> Vec<&'a str> {
    now.iter().filter(|what| !planned.contains(what)).map(String::as_str).collect()
}

/// A cloud that may answer later, or in which more differs than was planned, keeps the next call from nothing;
/// whoever wanted it mended must not take it for mended all the same.
fn left_behind(mended: Result<(), Error>) -> Result<Made, Error> {
    match mended {
        Err(error) if error.may_pass() || error.is_other_plan() => {
            Ok(Made { behind: Some(error), ..Made::default() })
        }
        mended => mended.map(|()| Made::default()),
    }
}
