//! Which services are exported, remembered from one plan to the next.
//!
//! What becomes of a service follows from itself, the labels of its namespace, its pods and its ServiceExport, and from
//! the federation and the rules, which are of everybody. As long as these are the very same, it is not looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{By, Exported, Exports, exportable};
use crate::model::{Backends, Key, Labels, Service};
use crate::plan::memo::Terms;
use crate::plan::{About, Draft, Finding, Object, Reason, World};
use crate::still::Mark;

/// What is remembered.
#[derive(Debug, Default)]
pub(in crate::plan) struct Chosen {
    terms: Option<Terms>,
    seen: Seen,
    /// What became of each service, in the order of their keys.
    choices: Vec<Choice>,
    /// All that want to be exported, by the names they want.
    wanted: BTreeSet<Ranked>,
    /// Those of them that are.
    kept: Exports,
    /// What people must know of those that cannot be, and of those whose name is taken.
    refused: Vec<Finding>,
    taken: Vec<Finding>,
    /// What opened these at the gateway.
    pub(super) gateway: Option<(Exports, Arc<Object>)>,
    /// The services of which anything changed since somebody asked.
    changed: Vec<Key>,
    looked: usize,
}

/// The collections that were looked at.
#[derive(Debug, Default)]
struct Seen {
    services: Mark<BTreeMap<Key, Arc<Service>>>,
    namespaces: Mark<BTreeMap<String, Arc<Labels>>>,
    service_exports: Mark<BTreeSet<Key>>,
    backends: Mark<BTreeMap<Key, Arc<Backends>>>,
}

impl Seen {
    fn of(world: &World) -> Self {
        Self {
            services: world.services.mark(),
            namespaces: world.namespaces.mark(),
            service_exports: world.service_exports.mark(),
            backends: world.backends.mark(),
        }
    }

    fn are_of(&self, world: &World) -> bool {
        world.services.is(&self.services)
            && world.namespaces.is(&self.namespaces)
            && world.service_exports.is(&self.service_exports)
            && world.backends.is(&self.backends)
    }
}

/// What became of one service.
#[derive(Debug)]
struct Choice {
    key: Key,
    of: Of,
    exported: Vec<Arc<Exported>>,
    refused: Vec<Finding>,
}

/// What that follows from.
#[derive(Debug, Clone)]
struct Of {
    service: Arc<Service>,
    labels: Option<Arc<Labels>>,
    pods: Option<Arc<Backends>>,
    /// Whether it has a ServiceExport.
    owned: bool,
}

impl Of {
    fn is(&self, other: &Self) -> bool {
        fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
        }
        Arc::ptr_eq(&self.service, &other.service)
            && same(self.labels.as_ref(), other.labels.as_ref())
            && same(self.pods.as_ref(), other.pods.as_ref())
            && self.owned == other.owned
    }
}

/// A service among those that want the same name: the oldest first.
#[derive(Debug)]
struct Ranked(Arc<Exported>);

impl Ranked {
    fn rank(&self) -> (&str, i64, &Key, By) {
        (&self.0.hostname, self.0.created, &self.0.key, self.0.by)
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// Goes through a sorted collection beside another one.
struct Beside<I: Iterator>(std::iter::Peekable<I>);

impl<'a, T: 'a, I: Iterator<Item = (&'a Key, T)>> Beside<I> {
    fn new(items: I) -> Self {
        Self(items.peekable())
    }

    /// What it has of this key; keys are asked for in their order.
    fn at(&mut self, key: &Key) -> Option<T> {
        while self.0.next_if(|(before, _)| *before < key).is_some() {}
        self.0.next_if(|(here, _)| *here == key).map(|(_, item)| item)
    }
}

impl Chosen {
    /// How many services were looked at for the last plan; of the others it was known what becomes of them.
    pub(in crate::plan) fn looked(&self) -> usize {
        self.looked
    }

    /// The services that came, went or changed since this was asked last.
    pub(in crate::plan) fn changed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changed)
    }

    /// How many of them are kept for whoever asks.
    #[cfg(test)]
    pub(in crate::plan) fn pending(&self) -> usize {
        self.changed.len()
    }

    /// Chooses again, and tells what people must know.
    pub(super) fn choose(&mut self, draft: &mut Draft<'_>) -> Exports {
        let world = draft.world;
        self.looked = 0;
        if !self.terms.as_ref().is_some_and(|terms| terms.are_of(world)) {
            *self = Self { terms: Terms::of(world), ..Self::default() };
        }
        if !self.seen.are_of(world) {
            if self.look(draft) {
                self.distinct();
            }
            self.seen = Seen::of(world);
        }
        draft.plan.findings.extend(self.refused.iter().chain(&self.taken).cloned());
        self.kept.clone()
    }

    /// Looks at the services of which something changed. True if others are wanted than before.
    fn look(&mut self, draft: &Draft<'_>) -> bool {
        let world = draft.world;
        let owners_export = draft.rules.export.as_ref().is_some_and(|export| export.service_exports);
        let mut before = std::mem::take(&mut self.choices).into_iter().peekable();
        let mut pods = Beside::new(world.backends.iter());
        let mut owned = Beside::new(world.service_exports.iter().map(|key| (key, ())));
        let mut labels = (None, None);
        let mut changed = false;
        self.refused.clear();
        let mut choices = Vec::with_capacity(world.services.len());
        for (key, service) in &world.services {
            while let Some(gone) = before.next_if(|choice| choice.key < *key) {
                changed |= self.forget(&gone);
            }
            if labels.0 != Some(&key.0) {
                labels = (Some(&key.0), world.namespaces.get(&key.0));
            }
            let of = Of {
                service: Arc::clone(service),
                labels: labels.1.cloned(),
                pods: pods.at(key).cloned(),
                owned: owners_export && owned.at(key).is_some(),
            };
            let known = before.next_if(|choice| choice.key == *key);
            let choice = match known {
                Some(known) if known.of.is(&of) => known,
                known => {
                    match known {
                        Some(known) => changed |= self.forget(&known),
                        None => self.changed.push(key.clone()),
                    }
                    self.looked += 1;
                    let choice = look_at(draft, key, of);
                    changed |= !choice.exported.is_empty();
                    self.wanted.extend(choice.exported.iter().map(|one| Ranked(Arc::clone(one))));
                    choice
                }
            };
            self.refused.extend(choice.refused.iter().cloned());
            choices.push(choice);
        }
        for gone in before {
            changed |= self.forget(&gone);
        }
        self.choices = choices;
        if owners_export {
            for key in world.service_exports.iter().filter(|key| !world.services.contains_key(key)) {
                let message = format!("there is no Service {}/{}", key.0, key.1);
                let (about, reason) = (About::Export(key.clone()), Reason::NoService);
                self.refused.push(Finding { about, reason, message });
            }
        }
        changed
    }

    /// True if it was wanted.
    fn forget(&mut self, choice: &Choice) -> bool {
        self.changed.push(choice.key.clone());
        for exported in &choice.exported {
            self.wanted.remove(&Ranked(Arc::clone(exported)));
        }
        !choice.exported.is_empty()
    }

    /// Of services that want one name the oldest has it: a newcomer must not take over its callers.
    fn distinct(&mut self) {
        let mut kept: Vec<Arc<Exported>> = Vec::with_capacity(self.wanted.len());
        self.taken.clear();
        for Ranked(exported) in &self.wanted {
            match kept.last() {
                // The rules and its owner want the same.
                Some(holder) if holder.hostname == exported.hostname && holder.key == exported.key => {}
                Some(holder) if holder.hostname == exported.hostname => {
                    let ((namespace, name), (held_in, held_by)) = (&exported.key, &holder.key);
                    let host = &exported.hostname;
                    let message = format!(
                        "{namespace}/{name} is not exported: {held_in}/{held_by} is older and has the name {host}; \
                         set dnsSettings.includeNamespace to export both"
                    );
                    self.taken.push(Finding { about: About::Rules, reason: Reason::NameTaken, message });
                }
                _ => kept.push(Arc::clone(exported)),
            }
        }
        self.kept = kept.into();
    }
}

/// What becomes of one service.
fn look_at(draft: &Draft<'_>, key: &Key, of: Of) -> Choice {
    let (world, (namespace, name)) = (draft.world, key);
    let (blank, service) = (Labels::new(), &of.service);
    let mut choice = Choice { key: key.clone(), of: of.clone(), exported: Vec::new(), refused: Vec::new() };
    let Some(export) = &draft.rules.export else { return choice };
    let labels = of.labels.as_deref().unwrap_or(&blank);
    // These two are everywhere, and each cluster has its own.
    let everywhere = (namespace == "default" && name == "kubernetes")
        || (namespace == &world.controller_namespace && name.starts_with("federation-discovery-service-"));
    let named = export.names(namespace, name, &service.labels, labels).then_some(By::Rules);
    let owned = of.owned.then_some(By::Owner);
    let mut refuse = |about: About, why: &str| {
        let message = format!("{namespace}/{name} is not exported: {why}");
        choice.refused.push(Finding { about, reason: Reason::NotExportable, message });
    };
    for by in named.into_iter().chain(owned).filter(|_| !everywhere) {
        match exportable(draft, key, service, of.pods.as_deref(), by) {
            Ok(exported) => choice.exported.push(Arc::new(exported)),
            Err(why) => {
                refuse(if by == By::Rules { About::Rules } else { About::Export(key.clone()) }, &why);
            }
        }
    }
    if everywhere && of.owned {
        refuse(About::Export(key.clone()), "each cluster has its own");
    }
    choice
}
