//! Making the calls of an operation, one after another, each written down when it was made.

use futures::StreamExt;
use tarbet_telemetry::Coded;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::operation::{Call, Operation, State};
use super::plan::Target;
use super::rules::{MadeFrom, RuleSet};
use crate::error::Error;
use crate::model::{Rule, Subscriber};
use crate::plan::tags::Mapping;

/// Permit lists that are brought in line at once.
const AT_ONCE: usize = 32;

impl Inner {
    /// Makes what is left of an operation.
    pub(super) async fn run(&self, operation: &mut Operation) -> Result<(), Error> {
        let cancel = self.operations.started(operation.id);
        let outcome = self.run_calls(operation, &cancel).await;
        self.operations.ended(operation.id);
        operation.state = match &outcome {
            Ok(()) => State::Done,
            Err(Error::Cancelled(_)) => State::Cancelled,
            Err(error) => State::Failed(error.problem()),
        };
        // The effect stands even if this last word is lost: the operation is then looked at again at start.
        if let Err(error) = self.operations.save(operation).await {
            tracing::warn!(operation = %operation.id, %error, "The end of an operation could not be written down.");
        }
        match &outcome {
            Ok(()) => {
                tracing::info!(operation = %operation.id, title = %operation.title, calls = operation.calls.len(), "Operation done.");
            }
            Err(error) => {
                tracing::warn!(operation = %operation.id, title = %operation.title, done = operation.done, error = %tarbet_telemetry::problem::chain(error), "Operation ended early.");
            }
        }
        outcome
    }

    async fn run_calls(&self, operation: &mut Operation, cancel: &CancellationToken) -> Result<(), Error> {
        while let Some(call) = operation.calls.get(operation.done).cloned() {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled(operation.id.to_string()));
            }
            self.make(&call, operation, cancel).await?;
            operation.done += 1;
            // The last one is written down together with the end.
            if operation.done < operation.calls.len() {
                self.operations.save(operation).await?;
            }
        }
        Ok(())
    }

    async fn make(
        &self,
        call: &Call,
        operation: &mut Operation,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        match call {
            Call::CreateResource { cloud, new } => {
                let created = self.places.cloud(cloud)?.create_resource(new.clone()).await?;
                operation.created = Some(created);
                self.spaces.outdated();
            }
            Call::AttachResource { cloud, namespace, uri } => {
                operation.created = Some(self.places.cloud(cloud)?.attach_resource(namespace, uri).await?);
                self.spaces.outdated();
            }
            Call::Register { cloud, namespace, description } => {
                let created = operation.created.as_ref();
                let created = created
                    .ok_or_else(|| Error::Internal("nothing was made that could be registered".into()))?;
                let name = format!("{namespace}.{cloud}.{}", created.name);
                let (uri, ip) =
                    (Some(created.uri.clone()), Some(created.ip.clone()).filter(|ip| !ip.is_empty()));
                self.made.put(&name, &MadeFrom { description: description.clone() }).await?;
                let changed = self.tags.set(&Mapping { name, child_tags: vec![], uri, ip }).await?;
                self.propagate(changed.affected.into_iter().collect(), cancel).await?;
            }
            Call::DeleteResource { cloud, namespace, uri } => {
                ignore_missing(self.places.cloud(cloud)?.delete_resource(namespace, uri).await)?;
                self.spaces.outdated();
            }
            Call::Unregister { tag, subscriber } => {
                let set = self.rules.get(subscriber).await?;
                for followed in set.rules.values().flat_map(|rule| &rule.tags) {
                    self.tags.unsubscribe(followed, subscriber).await?;
                }
                self.rules.put(subscriber, &RuleSet::default()).await?;
                ignore_missing(self.tags.delete(tag).await.map(drop))?;
                self.made.delete(tag).await?;
            }
            Call::Connect(request) => self.connect(request, cancel).await?,
            Call::Disconnect { link } => self.disconnect(link).await?,
            Call::Subscribe { tag, subscriber } => drop(self.tags.subscribe(tag, subscriber).await?),
            Call::Unsubscribe { tag, subscriber } => drop(self.tags.unsubscribe(tag, subscriber).await?),
            Call::AddRules { cloud, namespace, uri, rules } => {
                let target =
                    Target { namespace: namespace.clone(), cloud: cloud.clone(), uri: uri.clone(), ip: None };
                self.give_rules(&target, rules.clone()).await?;
            }
            Call::DeleteRules { cloud, namespace, uri, names } => {
                let target =
                    Target { namespace: namespace.clone(), cloud: cloud.clone(), uri: uri.clone(), ip: None };
                self.take_rules(&target, names).await?;
            }
            Call::SetTag { tag } => drop(self.tags.set(tag).await?),
            Call::DeleteTag { tag } => ignore_missing(self.tags.delete(tag).await.map(drop))?,
            Call::DeleteMember { parent, child } => {
                ignore_missing(self.tags.delete_member(parent, child).await.map(drop))?;
            }
            Call::Propagate { subscribers } => self.propagate(subscribers.clone(), cancel).await?,
        }
        Ok(())
    }

    async fn give_rules(&self, target: &Target, rules: Vec<Rule>) -> Result<(), Error> {
        let subscriber = target.subscriber().to_string();
        let _turn = self.turns.turn(&subscriber).await;
        self.give_rules_in_turn(target, &subscriber, rules).await
    }

    /// Only for who holds the turn of the subscriber: a rule that is being removed must not come back.
    async fn give_rules_in_turn(
        &self,
        target: &Target,
        subscriber: &str,
        rules: Vec<Rule>,
    ) -> Result<(), Error> {
        self.places.cloud(&target.cloud)?.add_rules(&target.namespace, &target.uri, rules.clone()).await?;
        let mut set = self.rules.get(subscriber).await?;
        let mut new = RuleSet::new(target, rules);
        set.rules.append(&mut new.rules);
        self.rules.put(subscriber, &RuleSet { rules: set.rules, ..new }).await
    }

    async fn take_rules(&self, target: &Target, names: &[String]) -> Result<(), Error> {
        let subscriber = target.subscriber().to_string();
        let _turn = self.turns.turn(&subscriber).await;
        self.places
            .cloud(&target.cloud)?
            .delete_rules(&target.namespace, &target.uri, names.to_vec())
            .await?;
        let mut set = self.rules.get(&subscriber).await?;
        set.rules.retain(|name, _| !names.contains(name));
        self.rules.put(&subscriber, &set).await
    }

    /// Brings permit lists in line with the tags. One that fails does not keep the others back.
    pub(super) async fn propagate(
        &self,
        subscribers: Vec<String>,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let follow = |text: String| async move {
            match Subscriber::parse(&text) {
                Some(subscriber) => self.follow(&subscriber).await,
                // Somebody else's subscriber: not ours to update.
                None => Ok(()),
            }
        };
        let mut outcomes = futures::stream::iter(subscribers).map(follow).buffer_unordered(AT_ONCE);
        let mut first = None;
        while let Some(outcome) = outcomes.next().await {
            if let Err(error) = outcome {
                first.get_or_insert(error);
            }
            if cancel.is_cancelled() {
                return Err(Error::Cancelled("while permit lists were updated".into()));
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Resolves the tags of a resource's rules again, and tells its cloud if that changes anything.
    async fn follow(&self, subscriber: &Subscriber) -> Result<(), Error> {
        let target = Target {
            namespace: subscriber.namespace.clone(),
            cloud: subscriber.cloud.clone(),
            uri: subscriber.uri.clone(),
            ip: None,
        };
        let name = subscriber.to_string();
        let _turn = self.turns.turn(&name).await;
        let set = match self.permit_list(&target).await {
            // Gone, with its permit list: nothing follows the tag any more.
            Err(error) if error.is_not_found() => return Ok(()),
            outcome => outcome?,
        };
        let renew = |rule: Rule| {
            let targets = self.targets(&rule);
            (targets != rule.targets).then_some(Rule { targets, ..rule })
        };
        let changed: Vec<Rule> = set.rules.into_values().filter_map(renew).collect();
        if changed.is_empty() {
            return Ok(());
        }
        self.metrics.propagated.inc();
        self.give_rules_in_turn(&target, &name, changed).await
    }

    /// The addresses a rule's tags stand for now. A tag that is gone stands for nothing.
    pub(super) fn targets(&self, rule: &Rule) -> Vec<String> {
        let all: std::collections::BTreeSet<String> =
            rule.tags.iter().flat_map(|tag| self.tags.addresses(tag)).collect();
        all.into_iter().collect()
    }
}

/// What is to be removed and is not there is as wanted.
fn ignore_missing(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}
