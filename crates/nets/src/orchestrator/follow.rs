//! Permit lists follow tags: at a request, and whenever one is found behind.
//!
//! [`Orchestrator::keep_in_line`] is the task that hears of tags which others changed (over the tag service's
//! own gRPC, or in a store that is shared), tries again what failed, and compares everything once when this
//! orchestrator begins to act.

use std::collections::BTreeMap;

use futures::StreamExt;
use tarbet_store::Commit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::operation::Call;
use super::owed::Due;
use super::rules::RuleSet;
use super::{Inner, Orchestrator};
use crate::error::Error;
use crate::model::{Rule, Subscriber};
use crate::tags::Touched;

/// Permit lists that are looked at at once.
const AT_ONCE: usize = 32;

/// The store failed while everything was compared: after this it is tried again.
const REVIEW_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

impl Inner {
    /// Brings permit lists in line with the tags. One that fails does not keep the others back, and is tried
    /// again later whatever comes of the request.
    pub(super) async fn propagate(
        &self,
        subscribers: Vec<String>,
        tag: &str,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let follow = |name: &String| {
            let name = name.clone();
            async move {
                let outcome = match Subscriber::parse(&name) {
                    Some(subscriber) => self.follow(&subscriber).await,
                    // Somebody else's subscriber: not ours to update.
                    None => Ok(()),
                };
                match &outcome {
                    Ok(()) => self.owed.settled(&name, Instant::now()),
                    Err(_) => self.owed.failed(&name, tag, Instant::now()),
                }
                outcome
            }
        };
        // Each cloud has a queue of its own: a slow one keeps no other waiting.
        let mut by_cloud: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for name in &subscribers {
            let cloud = Subscriber::parse(name).map(|subscriber| subscriber.cloud).unwrap_or_default();
            by_cloud.entry(cloud).or_default().push(name);
        }
        let mut outcomes = futures::stream::select_all(by_cloud.into_iter().map(|(cloud, names)| {
            let at_once = self.places.cloud(&cloud).map_or(AT_ONCE, |cloud| cloud.at_once());
            futures::stream::iter(names.into_iter().map(&follow)).buffer_unordered(at_once).boxed()
        }));
        let mut first = None;
        while let Some(outcome) = outcomes.next().await {
            if let Err(error) = outcome {
                first.get_or_insert(error);
            }
            if cancel.is_cancelled() {
                self.owed.let_go(&subscribers, Instant::now());
                return Err(Error::Cancelled("while permit lists were updated".into()));
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Resolves the tags of a resource's rules again, and tells its cloud if that changes anything.
    async fn follow(&self, subscriber: &Subscriber) -> Result<(), Error> {
        let target = subscriber.clone().into();
        let name = subscriber.to_string();
        let _turn = self.turns.turn(&name).await;
        let mut known = self.rules.of(&target).await?;
        if known.is_leaving() {
            let Some(left) = self.make_deletions(&target, known).await? else { return Ok(()) };
            known = left;
        }
        let set = match self.or_as_told(&target, known).await {
            // Gone, with its permit list: nothing follows the tag any more.
            Err(error) if error.is_not_found() => return Ok(()),
            outcome => outcome?,
        };
        let changed = self.renewed(&set).await?;
        // The tag service may have forgotten it when a tag was deleted that is there again.
        for tag in
            set.tags().iter().filter(|tag| self.tags.exists(tag) && !self.tags.is_subscribed(tag, &name))
        {
            self.tags.subscribe(tag, &name).await?;
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.metrics.propagated.inc();
        let write = self.give_rules_in_turn(&target, &name, changed).await?;
        self.lead.commit(Commit::new().with(write)).await
    }

    /// The rules of a permit list that are not what their tags stand for, as they should be.
    pub(super) async fn renewed(&self, set: &RuleSet) -> Result<Vec<Rule>, Error> {
        let tags: Vec<&String> = set.staying().flat_map(|rule| &rule.tags).collect();
        self.tags.look(&tags).await?;
        let renew = |rule: &Rule| {
            // Some clouds keep no tags: what such a rule stood for is not known here.
            let targets = if rule.tags.is_empty() { rule.targets.clone() } else { self.targets(rule) };
            (targets != rule.targets).then(|| Rule { targets, ..rule.clone() })
        };
        Ok(set.staying().filter_map(renew).collect())
    }

    /// The addresses a rule's tags stand for now. A tag that is gone stands for nothing.
    pub(super) fn targets(&self, rule: &Rule) -> Vec<String> {
        let all: std::collections::BTreeSet<String> =
            rule.tags.iter().flat_map(|tag| self.tags.addresses(tag)).collect();
        all.into_iter().collect()
    }

    /// Those of them whose permit list is not what its tags stand for. One that cannot be looked at counts:
    /// whoever then tries to mend it learns why.
    pub(super) async fn behind(&self, subscribers: impl IntoIterator<Item = String>) -> Vec<String> {
        let look = |name: String| async move {
            let target = Subscriber::parse(&name)?.into();
            let behind = match self.rules.of(&target).await {
                Ok(known) if known.is_leaving() => true,
                Ok(known) => match self.or_as_told(&target, known).await {
                    Ok(set) => self.renewed(&set).await.map_or(true, |rules| !rules.is_empty()),
                    Err(error) => !error.is_not_found(),
                },
                Err(_) => true,
            };
            behind.then_some(name)
        };
        let looked = futures::stream::iter(subscribers.into_iter().map(look)).buffered(AT_ONCE);
        looked.filter_map(std::future::ready).collect().await
    }
}

impl Orchestrator {
    /// Brings permit lists in line that are found behind their tags, until `stop`.
    pub(crate) async fn keep_in_line(&self, stop: CancellationToken) {
        let owed = &self.0.owed;
        let mut review_at = None;
        loop {
            let next = [owed.next(), review_at].into_iter().flatten().min();
            tokio::select! {
                () = stop.cancelled() => return,
                touched = self.0.tags.heard() => self.hear(touched),
                () = owed.more() => {}
                () = until(next) => {}
            }
            // Whoever leads hears of the same changes, and compares everything when it begins.
            if self.0.lead.check().is_err() {
                continue;
            }
            let again = review_at.take_if(|at| *at <= Instant::now()).is_some();
            if (owed.take_review() || again)
                && let Err(error) = self.review().await
            {
                tracing::warn!(error = %tarbet_telemetry::problem::chain(&error), "Permit lists could not be compared with their tags; they are compared again.");
                review_at = Some(Instant::now() + REVIEW_AGAIN);
            }
            let due = owed.take_due(Instant::now());
            if !due.is_empty() {
                self.bring_in_line(due);
            }
        }
    }

    /// Notes whose permit lists a change may touch.
    fn hear(&self, touched: Touched) {
        match touched {
            Touched::Tags(names) => {
                for name in names {
                    self.0.owed.add(self.0.affected(&name), &name, Instant::now());
                }
            }
            Touched::Everything => self.0.owed.begin_anew(),
        }
    }

    /// Compares every remembered permit list with its tags. No cloud is asked.
    async fn review(&self) -> Result<(), Error> {
        for set in self.0.rules.list().await? {
            if set.is_leaving() || !self.0.renewed(&set).await?.is_empty() {
                let subscriber = set.target().subscriber().to_string();
                self.0.owed.add([subscriber], "", Instant::now());
            }
        }
        Ok(())
    }

    /// Works on those that are due, beside whatever else goes on.
    fn bring_in_line(&self, due: Vec<Due>) {
        let orchestrator = self.clone();
        self.0.tasks.spawn(async move {
            let (again, new): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|due| due.failed);
            tokio::join!(orchestrator.follow_news(names(new)), orchestrator.try_again(names(again)));
        });
    }

    /// As an operation, for people to see.
    async fn follow_news(&self, subscribers: Vec<String>) {
        let inner = &self.0;
        let behind = inner.behind(subscribers.iter().cloned()).await;
        for settled in subscribers.iter().filter(|subscriber| !behind.contains(subscriber)) {
            inner.owed.settled(settled, Instant::now());
        }
        if behind.is_empty() {
            return;
        }
        let title = format!("bring {} permit lists in line with their tags", behind.len());
        let (tag, lists) = (String::new(), Vec::new());
        let call = Call::Propagate { tag, subscribers: behind.clone(), lists };
        let outcome = match inner.operations.begin(title, vec![call], Vec::new()).await {
            // What it cannot do is said in its record and tried again.
            Ok(operation) => self.spawn(operation).await.map_err(|error| Error::Internal(error.to_string())),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            for subscriber in &behind {
                inner.owed.failed(subscriber, "", Instant::now());
            }
            tracing::warn!(error = %tarbet_telemetry::problem::chain(&error), "Permit lists could not follow their tags; they are tried again.");
        }
    }

    /// What failed once has its record already.
    async fn try_again(&self, subscribers: Vec<String>) {
        let Ok(tenure) = self.0.lead.tenure() else { return };
        let count = subscribers.len();
        if count == 0 {
            return;
        }
        let (cancel, work) = (CancellationToken::new(), subscribers);
        let outcome = tokio::select! {
            biased;
            () = tenure.cancelled() => return,
            outcome = self.0.propagate(work, "", &cancel) => outcome,
        };
        match outcome {
            Ok(()) => tracing::info!(count, "Permit lists that were behind their tags are in line again."),
            Err(error) => {
                tracing::warn!(count, error = %tarbet_telemetry::problem::chain(&error), "Permit lists are still behind their tags; they are tried again.");
            }
        }
    }
}

fn names(due: Vec<Due>) -> Vec<String> {
    due.into_iter().map(|due| due.subscriber).collect()
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
