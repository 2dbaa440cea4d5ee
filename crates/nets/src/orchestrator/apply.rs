//! Making the calls of an operation, one after another, each written down when it was made.

use std::collections::BTreeSet;
use std::sync::Arc;

use tarbet_store::{Commit, Operation as Write};
use tarbet_telemetry::{Coded, Problem};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::mend::Planned;
use super::operation::{Call, Operation, State};
use super::partly;
use super::request::Target;
use super::rules::{MadeFrom, RuleSet};
use crate::error::Error;
use crate::model::{Created, Rule};
use crate::plan::tags::Mapping;

/// What a call left to be written down together with the word that it was made.
#[derive(Default)]
pub(super) struct Made {
    pub(super) writes: Vec<Write>,
    /// Why it is left to be done later, without keeping the next call back.
    pub(super) behind: Option<Error>,
    /// Held until it is written: the next one reads it.
    pub(super) _turn: Option<OwnedMutexGuard<()>>,
}

impl Inner {
    /// Makes what is left of an operation for as long as this process leads.
    pub(super) async fn carry_out(self: Arc<Self>, mut operation: Operation) -> Result<Operation, Error> {
        let tenure = self.lead.tenure().inspect_err(|_| self.operations.ended(operation.id))?;
        let outcome = tokio::select! {
            biased;
            // Cut off between two words, as by a crash: whoever leads now goes on with it.
            () = tenure.cancelled() => Err(Error::Standby { leader: String::new() }),
            outcome = self.run(&mut operation) => outcome,
        };
        self.operations.ended(operation.id);
        outcome.map(|()| operation)
    }

    /// Makes what is left of an operation.
    pub(super) async fn run(&self, operation: &mut Operation) -> Result<(), Error> {
        let cancel = self.operations.started(operation.id);
        let outcome = self.run_calls(operation, &cancel).await;
        self.operations.ended(operation.id);
        match &outcome {
            Ok(()) => {
                tracing::info!(operation = %operation.id, title = %operation.title, calls = operation.calls.len(), "Operation done.");
                return Ok(());
            }
            // Whoever leads now goes on with it.
            Err(Error::Standby { .. }) => {}
            Err(error) => {
                operation.state = match error {
                    Error::Cancelled(_) => State::Cancelled,
                    error => State::Failed(error.problem()),
                };
                // Without this last word the operation is looked at again at start.
                if let Err(error) = self.operations.save(operation, Vec::new()).await {
                    tracing::warn!(operation = %operation.id, %error, "The end of an operation could not be written down.");
                }
            }
        }
        if let Err(error) = &outcome {
            tracing::warn!(operation = %operation.id, title = %operation.title, done = operation.done, error = %tarbet_telemetry::problem::chain(error), "Operation ended early.");
        }
        outcome
    }

    async fn run_calls(&self, operation: &mut Operation, cancel: &CancellationToken) -> Result<(), Error> {
        while let Some(call) = operation.calls.get(operation.done).cloned() {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled(operation.id.to_string()));
            }
            let mut writes_more = !call.is_own_record();
            let made = match self.make(&call, operation, cancel).await {
                Ok(made) => made,
                Err(error) => {
                    let failed = partly::failed(&operation.calls, operation.done, &error);
                    let Some((failure, last)) = failed else { return Err(error) };
                    tracing::warn!(
                        operation = %operation.id, cloud = failure.cloud, resource = failure.uri,
                        error = %tarbet_telemetry::problem::chain(&error),
                        "A resource was not given its rules; the operation goes on with the others."
                    );
                    operation.failures.push(failure);
                    operation.done = last;
                    writes_more = true;
                    Made::default()
                }
            };
            operation.done += 1;
            if let Some(error) = made.behind {
                operation.behind.get_or_insert_with(|| error.problem());
            }
            let over = operation.done == operation.calls.len();
            if over {
                operation.state = left_of(operation).map_or(State::Done, State::Failed);
            }
            if over || writes_more {
                self.operations.save(operation, made.writes).await?;
            }
        }
        left_of(operation).map_or(Ok(()), |problem| Err(problem.into()))
    }

    async fn make(
        &self,
        call: &Call,
        operation: &mut Operation,
        cancel: &CancellationToken,
    ) -> Result<Made, Error> {
        match call {
            Call::CreateResource { cloud, new } => {
                self.greet_again(cloud).await;
                let created = self.places.cloud(cloud)?.create_resource(new.clone()).await?;
                // A cloud may have a name of its own for it; here it is called what was asked for.
                operation.created = Some(Created { name: new.name.clone(), ..created });
                self.spaces.outdated();
            }
            Call::AttachResource { cloud, namespace, uri } => {
                self.greet_again(cloud).await;
                operation.created = Some(self.places.cloud(cloud)?.attach_resource(namespace, uri).await?);
                self.spaces.outdated();
            }
            Call::Register { cloud, namespace, description } => {
                let created = operation.created.as_ref();
                let created = created
                    .ok_or_else(|| Error::Internal("nothing was made that could be registered".into()))?;
                let name = format!("{namespace}.{cloud}.{}", created.name);
                self.tags.look(&[&name]).await?;
                self.is_free(&name).await?;
                self.may_be_called(&name, &created.uri)?;
                let (uri, ip) =
                    (Some(created.uri.clone()), Some(created.ip.clone()).filter(|ip| !ip.is_empty()));
                let from = MadeFrom { description: description.clone(), going: None };
                self.lead.commit(Commit::new().with(self.made.put_op(&name, &from)?)).await?;
                let tag = Mapping { name, child_tags: vec![], uri, ip };
                self.tags.set(&tag).await?;
                self.propagate(self.affected(&tag.name).into_iter().collect(), &tag.name, cancel).await?;
            }
            Call::DeleteResource { cloud, namespace, uri } => {
                let target =
                    Target { namespace: namespace.clone(), cloud: cloud.clone(), uri: uri.clone(), ip: None };
                return self.remove(&target).await;
            }
            Call::Unregister { tag, subscriber } => return self.unregister(tag, subscriber).await,
            Call::Connect(request) => self.connect(request, cancel).await?,
            Call::Rekey { link } => self.rekey(link, cancel).await?,
            Call::Disconnect { link } => self.disconnect(link).await?,
            Call::Subscribe { tag, subscriber } => drop(self.tags.subscribe(tag, subscriber).await?),
            Call::Unsubscribe { tag, subscriber } => drop(self.tags.unsubscribe(tag, subscriber).await?),
            Call::AddRules { cloud, namespace, uri, ip, rules } => {
                let target =
                    Target { namespace: namespace.clone(), cloud: cloud.clone(), uri: uri.clone(), ip: *ip };
                return self.give_rules(&target, rules).await;
            }
            Call::DeleteRules { cloud, namespace, uri, names } => {
                let target =
                    Target { namespace: namespace.clone(), cloud: cloud.clone(), uri: uri.clone(), ip: None };
                return self.take_rules(&target, names).await;
            }
            Call::SetTag { tag } => drop(self.tags.set(tag).await?),
            Call::DeleteTag { tag } => ignore_missing(self.tags.delete(tag).await.map(drop))?,
            Call::DeleteMember { parent, child } => {
                ignore_missing(self.tags.delete_member(parent, child).await.map(drop))?;
            }
            Call::ForgetSubscribers { tag } => drop(self.tags.forget_subscribers(tag).await?),
            Call::MendCloud { cloud, namespace, differences } => {
                return self.mend_cloud(cloud, namespace, differences).await;
            }
            Call::MendList { subscriber, add, delete } => {
                return self.mend_list(subscriber, &Planned { add, delete }).await;
            }
            Call::Propagate { tag, subscribers, .. } => {
                let mut all: BTreeSet<String> = subscribers.iter().cloned().collect();
                // Some may have come since this was planned.
                all.extend(self.affected(tag));
                self.propagate(all.into_iter().collect(), tag, cancel).await?;
            }
        }
        Ok(Made::default())
    }

    async fn give_rules(&self, target: &Target, rules: &[Rule]) -> Result<Made, Error> {
        let subscriber = target.subscriber().to_string();
        let turn = self.turns.turn(&subscriber).await;
        let tags: Vec<&String> = rules.iter().flat_map(|rule| &rule.tags).collect();
        self.tags.look(&tags).await?;
        // A tag may have changed since this was planned, when nobody knew yet that this follows it.
        let renew = |rule: &Rule| {
            let targets = if rule.tags.is_empty() { rule.targets.clone() } else { self.targets(rule) };
            Rule { targets, ..rule.clone() }
        };
        let rules = rules.iter().map(renew).collect();
        let write = self.give_rules_in_turn(target, &subscriber, rules).await?;
        Ok(Made { writes: vec![write], behind: None, _turn: Some(turn) })
    }

    /// Only for who holds the turn of the subscriber: a rule that is being removed must not come back.
    /// What is returned is to be written down within the turn.
    pub(super) async fn give_rules_in_turn(
        &self,
        target: &Target,
        subscriber: &str,
        rules: Vec<Rule>,
    ) -> Result<Write, Error> {
        self.places.cloud(&target.cloud)?.add_rules(&target.namespace, &target.uri, rules.clone()).await?;
        let mut set = self.rules.get(subscriber).await?;
        let first = set.rules.is_empty();
        let going = set.going_beside(&rules);
        let mut new = RuleSet::new(target, rules);
        set.rules.append(&mut new.rules);
        let (ip, deleted) = (new.ip.or(set.ip), set.deleted);
        let mut set = RuleSet { rules: set.rules, ip, going, deleted, ..new };
        if first {
            // From here on we look after all of its rules, also those that another orchestrator gave.
            self.add_foreign(target, &mut set).await?;
        }
        self.rules.put_op(subscriber, &set)
    }
}

/// What an operation whose calls were all made could not do.
fn left_of(operation: &Operation) -> Option<Problem> {
    let failed = partly::told(&operation.failures, &operation.calls).map(|error| error.problem());
    failed.or_else(|| operation.behind.clone())
}

/// What is to be removed and is not there is as wanted.
pub(super) fn ignore_missing(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}
