//! Ways that are there for rules alone: peerings, NAT and public gateways.
//!
//! A way is made before the rule that needs it, and goes after the last such rule. So nobody takes one away while
//! somebody else adds rules: the one who added last does it then.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard as StdMutexGuard, PoisonError};

use tarbet_telemetry::problem::chain;
use tokio::sync::{Mutex as Turn, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::Error;
use crate::model::Rule;
use crate::plan::rule;

/// Tells of ways that could not be taken away for somebody else: whoever comes next tries again.
fn tell_left(cloud: &str, error: &Error) {
    tracing::warn!(%cloud, error = %chain(error), "A way that no rule needs any more could not be taken away; it is tried again with the next change of rules.");
}

/// Whether a rule that replaces another has fewer targets, so that nobody may need the way to one any more.
pub(super) fn loses(old: &Rule, new: &Rule) -> bool {
    let targets = |of: &Rule| rule::targets(of).unwrap_or_default().into_iter().collect::<BTreeSet<_>>();
    !targets(old).is_subset(&targets(new))
}

/// A cloud that makes ways for rules.
pub(super) trait HasWays: Sync {
    /// What names a network.
    type Network: Ord + Clone + Send + Sync;

    fn ways(&self) -> &Ways<Self::Network>;

    /// What the cloud is called.
    fn called(&self) -> &str;

    /// Takes away ways of a network that no rule needs any more.
    fn take_ways_of(&self, network: &Self::Network) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes away ways that no rule needs any more: those of this network, and what others left to be taken.
    /// Somebody who adds rules now does it afterwards. Only this network's failure is the caller's.
    fn take_ways(&self, more: Option<Self::Network>) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            let Some(mut leave) = self.ways().leave(more.clone()).await else { return Ok(()) };
            let mut own = Ok(());
            while let Some(network) = leave.next() {
                match self.take_ways_of(&network).await {
                    Ok(()) => leave.done(),
                    Err(error) if more.as_ref() == Some(&network) => own = Err(error),
                    Err(error) => tell_left(self.called(), &error),
                }
            }
            own
        }
    }

    /// What is left to do once rules of a network were written, which says whether one of them lost targets, or
    /// could not be: the way that was made for it leads nowhere then. Others left theirs to whoever adds.
    fn after_adding(
        &self,
        network: Self::Network,
        written: Result<bool, Error>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            let idle = !matches!(written, Ok(false));
            let taken = self.take_ways(idle.then_some(network)).await;
            written.and(taken)
        }
    }
}

/// What to look at when rules went; `K` names a network.
pub(super) struct Ways<K> {
    rules: RwLock<()>,
    turn: Turn<()>,
    owed: Mutex<BTreeSet<K>>,
}

/// Leave to take ways away. Nobody adds rules meanwhile. What is not done when this goes, because it failed or was
/// cut off, is owed again.
pub(super) struct Leave<'a, K: Ord> {
    ways: &'a Ways<K>,
    left: BTreeSet<K>,
    /// The one that is being looked at.
    current: Option<K>,
    failed: BTreeSet<K>,
    _turn: MutexGuard<'a, ()>,
    _rules: RwLockWriteGuard<'a, ()>,
}

impl<K: Ord + Clone> Leave<'_, K> {
    /// The next network to look at. One that failed keeps no other waiting.
    pub(super) fn next(&mut self) -> Option<K> {
        self.failed.extend(self.current.take());
        self.current = self.left.pop_first();
        self.current.clone()
    }

    /// That network has no idle ways any more.
    pub(super) fn done(&mut self) {
        self.current = None;
    }
}

impl<K: Ord> Drop for Leave<'_, K> {
    fn drop(&mut self) {
        let mut owed = self.ways.owed();
        owed.append(&mut self.left);
        owed.append(&mut self.failed);
        owed.extend(self.current.take());
    }
}

impl<K: Ord> Default for Ways<K> {
    fn default() -> Self {
        Self { rules: RwLock::default(), turn: Turn::default(), owed: Mutex::default() }
    }
}

impl<K: Ord> Ways<K> {
    /// Held from before ways are made until the rules that need them are written.
    pub(super) async fn adding(&self) -> RwLockReadGuard<'_, ()> {
        self.rules.read().await
    }

    /// Has these looked at with the next change, whoever makes it. What was owed when a process ended is not known
    /// to the next one, so comparing begins with all networks.
    pub(super) fn owe(&self, networks: impl IntoIterator<Item = K>) {
        self.owed().extend(networks);
    }

    fn owed(&self) -> StdMutexGuard<'_, BTreeSet<K>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which networks to look at now; none while rules are being added, which leaves them to whoever adds.
    pub(super) async fn leave(&self, more: Option<K>) -> Option<Leave<'_, K>> {
        // Before the question: who adds rules looks here after they are written.
        self.owed().extend(more);
        if self.owed().is_empty() {
            return None;
        }
        let turn = self.turn.lock().await;
        let rules = self.rules.try_write().ok()?;
        let left = std::mem::take(&mut *self.owed());
        if left.is_empty() {
            return None;
        }
        let failed = BTreeSet::new();
        Some(Leave { ways: self, left, current: None, failed, _turn: turn, _rules: rules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_adds_last_takes_away_what_others_left() {
        let ways = Ways::default();
        assert!(ways.leave(None::<&str>).await.is_none(), "nothing is owed");
        let (first, second) = (ways.adding().await, ways.adding().await);
        assert!(ways.leave(Some("a")).await.is_none(), "rules are being added");
        drop(first);
        assert!(ways.leave(None).await.is_none());
        drop(second);
        let mut leave = ways.leave(Some("b")).await.unwrap();
        assert!(ways.rules.try_read().is_err(), "nobody adds meanwhile");
        for network in ["a", "b"] {
            assert_eq!(leave.next(), Some(network));
            leave.done();
        }
        assert_eq!(leave.next(), None);
        drop(leave);
        assert!(ways.leave(None).await.is_none() && ways.rules.try_read().is_ok());
    }

    #[test]
    fn a_rule_that_lost_a_target_is_known_however_it_is_spelt() {
        let of = |targets: &[&str]| Rule {
            targets: targets.iter().map(ToString::to_string).collect(),
            ..Rule::default()
        };
        assert!(!loses(&of(&["10.0.0.1/32"]), &of(&["8.8.8.8", "10.0.0.1"])));
        assert!(loses(&of(&["8.8.8.8", "10.0.0.1"]), &of(&["10.0.0.1"])) && !loses(&of(&[]), &of(&[])));
    }

    /// A cloud that takes every way, unless it fails.
    #[derive(Default)]
    struct Taking {
        ways: Ways<&'static str>,
        taken: Mutex<Vec<&'static str>>,
    }

    impl HasWays for Taking {
        type Network = &'static str;

        fn ways(&self) -> &Ways<&'static str> {
            &self.ways
        }

        fn called(&self) -> &'static str {
            "taking"
        }

        async fn take_ways_of(&self, network: &&'static str) -> Result<(), Error> {
            self.taken.lock().unwrap().push(network);
            if *network == "broken" { Err(Error::Internal("broken".into())) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn ways_go_after_rules_that_lost_targets_or_were_not_written() {
        let cloud = Taking::default();
        let taken = || std::mem::take(&mut *cloud.taken.lock().unwrap());
        cloud.after_adding("a", Ok(false)).await.unwrap();
        assert!(taken().is_empty(), "each is as it was, or needs more");
        cloud.after_adding("a", Ok(true)).await.unwrap();
        assert_eq!(taken(), ["a"]);
        let failed = cloud.after_adding("a", Err(Error::Internal("no".into()))).await.unwrap_err();
        assert!(taken() == ["a"] && failed.to_string().contains("no"), "{failed}");
        // Of what others owe a failure is told and tried again.
        cloud.ways.owe(["b", "broken"]);
        cloud.after_adding("a", Ok(false)).await.unwrap();
        assert_eq!(taken(), ["b", "broken"]);
        assert!(cloud.after_adding("broken", Ok(true)).await.is_err());
        assert_eq!(*cloud.ways.owed(), BTreeSet::from(["broken"]));
    }

    #[tokio::test]
    async fn what_was_not_done_is_owed_again() {
        let ways = Ways::default();
        ways.owed().extend(["a", "b", "c", "d"]);
        let mut leave = ways.leave(None).await.unwrap();
        assert_eq!(leave.next(), Some("a"));
        // That one failed; the next is done; the third is cut off.
        assert_eq!(leave.next(), Some("b"));
        leave.done();
        assert_eq!(leave.next(), Some("c"));
        drop(leave);
        assert_eq!(*ways.owed(), BTreeSet::from(["a", "c", "d"]));
    }
}
