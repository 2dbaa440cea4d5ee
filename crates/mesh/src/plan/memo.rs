//! What was rendered before, so that one change of one service does not render all others again.
//!
//! Only what is whole and expensive is kept: which offers of a peer are good, and the record and the
//! entry of a name that is imported and not here. They follow from the federation and from what was
//! offered, and both are compared by identity: an offer that did not change is the very same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Spec;
use super::import::Imported;
use crate::crd::MeshFederationSpec;
use crate::model::Offer;
use crate::vet::Seen;

/// Specs by host.
#[derive(Debug, Default)]
pub struct Memo {
    federation: Option<Arc<MeshFederationSpec>>,
    made: BTreeMap<String, Made>,
    /// Those of this plan; what is not among them is forgotten.
    kept: BTreeMap<String, Made>,
    /// What was found good of each peer.
    pub(super) seen: BTreeMap<String, Seen>,
    rendered: usize,
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
