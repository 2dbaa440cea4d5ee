//! What was rendered before, so that one change of one service does not render all others again.
//!
//! Whatever is compared is compared by identity: a service or an offer that did not change is the very
//! same one. What is exported is kept service by service, see [`Chosen`]. Everything that follows from
//! imports is kept as a whole and taken over while nothing that it has to do with changes; else, of each
//! name that is imported and not here, the record and the entry.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::export::Chosen;
use super::import::{Imported, Part};
use super::{Flavour, Spec, World};
use crate::crd::{FederationServiceRulesSpec, MeshFederationSpec};
use crate::model::Offer;
use crate::vet::Seen;

/// What was found for the last plan.
#[derive(Debug, Default)]
pub struct Memo {
    pub(super) chosen: Chosen,
    pub(super) part: Option<Part>,
    federation: Option<Arc<MeshFederationSpec>>,
    made: BTreeMap<String, Made>,
    /// Those of this plan; what is not among them is forgotten.
    kept: BTreeMap<String, Made>,
    /// What was found good of each peer.
    pub(super) seen: BTreeMap<String, Seen>,
    rendered: usize,
}

/// What a whole plan is made under.
#[derive(Debug)]
pub(super) struct Terms {
    flavour: Flavour,
    controller_namespace: String,
    federation: Arc<MeshFederationSpec>,
    rules: Arc<FederationServiceRulesSpec>,
}

impl Terms {
    pub(super) fn of(world: &World) -> Option<Self> {
        Some(Self {
            flavour: world.flavour,
            controller_namespace: world.controller_namespace.clone(),
            federation: Arc::clone(world.federation.as_ref()?),
            rules: Arc::clone(world.rules.as_ref()?),
        })
    }

    pub(super) fn are_of(&self, world: &World) -> bool {
        fn same<T: PartialEq>(one: &Arc<T>, other: Option<&Arc<T>>) -> bool {
            other.is_some_and(|other| Arc::ptr_eq(one, other) || one == other)
        }
        self.flavour == world.flavour
            && self.controller_namespace == world.controller_namespace
            && same(&self.federation, world.federation.as_ref())
            && same(&self.rules, world.rules.as_ref())
    }
}

/// Words that something was asked for, as numbers: it may say yes to another one, and never no to one of them.
#[derive(Debug, Default)]
pub(super) struct Asked {
    keys: RandomState,
    known: HashSet<u64>,
}

impl Asked {
    pub(super) fn note(&mut self, words: (&str, &str)) {
        self.known.insert(self.keys.hash_one(words));
    }

    pub(super) fn has(&self, words: (&str, &str)) -> bool {
        self.known.contains(&self.keys.hash_one(words))
    }
}

/// The specs of one name.
#[derive(Debug)]
struct Made {
    from: Vec<(String, Arc<Offer>)>,
    specs: Specs,
}

/// What a name that is imported, and not here, becomes.
#[derive(Debug, Clone)]
pub(super) struct Specs {
    pub(super) record: Spec,
    /// Nothing if there is no endpoint.
    pub(super) entry: Option<Spec>,
}

impl Memo {
    /// How many names were rendered for the last plan; the others were taken over.
    pub fn rendered(&self) -> usize {
        self.rendered
    }

    /// How many offers were looked at for the last plan; of the others it was known what they are.
    pub fn looked(&self) -> usize {
        self.seen.values().map(Seen::looked).sum()
    }

    /// How many services were looked at for the last plan; the others are what they were.
    pub fn chosen(&self) -> usize {
        self.chosen.looked()
    }

    /// Nothing of what is imported had to be looked at.
    pub(super) fn rest(&mut self) {
        self.rendered = 0;
        self.seen.values_mut().for_each(Seen::rest);
    }

    /// Begins a plan.
    pub(super) fn begin(&mut self, federation: &Arc<MeshFederationSpec>) {
        self.rendered = 0;
        let same =
            self.federation.as_ref().is_some_and(|last| Arc::ptr_eq(last, federation) || last == federation);
        if !same {
            self.made.clear();
            self.seen.clear();
            self.federation = Some(Arc::clone(federation));
        }
    }

    /// What was made of the same offers before.
    pub(super) fn take(&mut self, imported: &Imported<'_>) -> Option<Specs> {
        let specs = self.same(imported);
        self.rendered += usize::from(specs.is_none());
        specs
    }

    fn same(&mut self, imported: &Imported<'_>) -> Option<Specs> {
        let made = self.made.remove(imported.host)?;
        let same = made.from.len() == imported.said.len()
            && made
                .from
                .iter()
                .zip(&imported.said)
                .all(|((mesh, offer), (remote, said))| *mesh == remote.id && Arc::ptr_eq(offer, said));
        if !same {
            return None;
        }
        let specs = made.specs.clone();
        self.kept.insert(imported.host.to_owned(), made);
        Some(specs)
    }

    /// Remembers what was made.
    pub(super) fn keep(&mut self, imported: &Imported<'_>, specs: Specs) {
        let from =
            imported.said.iter().map(|(remote, offer)| (remote.id.clone(), Arc::clone(offer))).collect();
        self.kept.insert(imported.host.to_owned(), Made { from, specs });
    }

    /// Ends a plan.
    pub(super) fn end(&mut self) {
        self.made = std::mem::take(&mut self.kept);
    }
}
