//! The decision: from what is declared, running and offered to the objects that must exist.
//!
//! [`plan`] is a pure function of a [`World`]. It knows nothing of what exists already; making the
//! cluster so, with as few writes as possible, is the business of `apply`.

pub(crate) mod clusterset;
mod discovery;
mod egress;
mod export;
mod import;
mod memo;
mod object;
mod owners;
mod spec;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use memo::Asked;
pub use memo::Memo;
pub use object::{Flavour, Kind, MANAGED_BY, MESH_LABEL, ORIGINAL_LABEL, Object, Owner};
pub use owners::Owners;
pub use spec::{Print, Spec};

use tarbet_link::Address;

use crate::crd::{FederationServiceRulesSpec, MeshFederationSpec, Refusal, Remote};
use crate::model::{Backends, Key, Labels, Offer, Service};
use crate::names::Names;
use crate::still::Still;

/// The port of discovery.
pub const DISCOVERY_PORT: u16 = 15080;
/// Refusals that are told one by one; of the others only the number is.
const REFUSALS: usize = 10;

/// Everything a decision is made from.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// How objects are named and which are made.
    pub flavour: Flavour,
    /// The namespace of the controller, of its discovery Service and of the rules.
    pub controller_namespace: String,
    /// This mesh and its remotes.
    pub federation: Option<Arc<MeshFederationSpec>>,
    /// What is exported and imported.
    pub rules: Option<Arc<FederationServiceRulesSpec>>,
    /// The Services of the cluster.
    pub services: Still<BTreeMap<Key, Arc<Service>>>,
    /// The labels of its namespaces.
    pub namespaces: Still<BTreeMap<String, Arc<Labels>>>,
    /// Services that have a ServiceExport of the Multi-Cluster Services API, whether they exist or not.
    pub service_exports: Still<BTreeSet<Key>>,
    /// The pods behind its Services.
    pub backends: Still<BTreeMap<Key, Arc<Backends>>>,
    /// What each peer offers.
    pub peers: BTreeMap<String, Still<Vec<Arc<Offer>>>>,
    /// The addresses of remotes that are known by a host name.
    pub resolved: BTreeMap<String, Vec<IpAddr>>,
    /// Where the discovery of a remote is, if neither behind its ingress nor at a site.
    pub discovery: BTreeMap<String, Address>,
    /// Ports of the controller that carry what callers and services say to each other.
    pub carrying: BTreeSet<u16>,
    /// Hosts that ServiceEntries of others declare.
    pub foreign_hosts: Still<BTreeSet<String>>,
}

/// What must be so.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The objects, in the order in which they are written.
    pub objects: Vec<Arc<Object>>,
    /// The host of each ImportedService, by its namespace and name.
    pub imports: Still<BTreeMap<Key, String>>,
    /// The meshes behind each ServiceImport, by its namespace and name.
    pub clusters: BTreeMap<Key, Vec<String>>,
    /// What peers are told.
    pub exports: Vec<Arc<Offer>>,
    /// What people must know.
    pub findings: Vec<Finding>,
    /// What became of each peer's offers.
    pub remotes: BTreeMap<String, RemoteView>,
    /// Meshes whose host name has not been resolved yet: their WorkloadEntries stay as they are.
    pub unresolved: BTreeSet<String>,
    /// ServiceEntries that stay as they are for the same reason, by namespace and name.
    pub held: BTreeSet<Key>,
}

impl Plan {
    /// This part of a plan, which follows from exports, and the one that follows from imports.
    fn with(self, imported: &Self) -> Self {
        // All fields by name: one that is added must be thought of here.
        let Self { mut objects, mut findings, imports, clusters, exports, remotes, unresolved, held } = self;
        debug_assert!(
            imports.is_empty() && clusters.is_empty() && remotes.is_empty(),
            "only imports tell these"
        );
        debug_assert!(unresolved.is_empty() && held.is_empty(), "only imports tell these");
        debug_assert!(imported.exports.is_empty(), "imports tell of no exports");
        objects.extend(imported.objects.iter().cloned());
        findings.extend(imported.findings.iter().cloned());
        Self {
            objects,
            findings,
            exports,
            imports: imported.imports.clone(),
            clusters: imported.clusters.clone(),
            remotes: imported.remotes.clone(),
            unresolved: imported.unresolved.clone(),
            held: imported.held.clone(),
        }
    }
}

/// What became of the offers of one peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteView {
    /// How many there are.
    pub offered: usize,
    /// How many are imported.
    pub imported: usize,
    /// How many were refused.
    pub refused: usize,
    /// The first of those.
    pub refusals: Vec<Refusal>,
}

/// Something that is not as its author may think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whose condition tells it.
    pub about: About,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, in words.
    pub message: String,
}

/// Whose condition tells a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// The MeshFederation.
    Federation,
    /// The FederationServiceRules.
    Rules,
    /// The ImportedService of this host.
    Imported(String),
    /// The ServiceExport of this Service.
    Export(Key),
}

/// The reasons of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Two services want one name; the older has it.
    NameTaken,
    /// A Service that cannot be exported.
    NotExportable,
    /// A ServiceExport without a Service of its name.
    NoService,
    /// A mesh in the rules that the federation does not know.
    UnknownMesh,
    /// A mesh offers the same name with other ports, labels, identities or ingress.
    Differs,
    /// The local Service cannot be joined.
    NotJoined,
    /// A remote has no way in.
    NoAddress,
    /// Part of an import does not go through the egress gateway.
    NotThroughEgress,
    /// Who may answer is not known of all that may.
    NoIdentities,
    /// Something that is read and has no effect.
    Ignored,
}

impl Reason {
    /// As a condition writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::NameTaken => "NameTaken",
            Self::NotExportable => "NotExportable",
            Self::NoService => "NoService",
            Self::UnknownMesh => "UnknownMesh",
            Self::Differs => "MeshesDiffer",
            Self::NotJoined => "LocalServiceNotJoined",
            Self::NoAddress => "NoAddress",
            Self::NotThroughEgress => "NotThroughEgress",
            Self::NoIdentities => "NoIdentities",
            Self::Ignored => "Ignored",
        }
    }

    /// Whether it is a conflict between services rather than a mistake in a declaration.
    pub fn is_conflict(self) -> bool {
        matches!(self, Self::NameTaken | Self::Differs | Self::NotJoined)
    }
}

/// What the parts of a plan are built with.
struct Draft<'a> {
    world: &'a World,
    federation: &'a MeshFederationSpec,
    rules: &'a FederationServiceRulesSpec,
    names: Names,
    memo: &'a mut Memo,
    /// The Services that imports have to do with.
    asked: Asked,
    plan: Plan,
}

impl<'a> Draft<'a> {
    fn new(
        world: &'a World,
        federation: &'a MeshFederationSpec,
        rules: &'a FederationServiceRulesSpec,
        memo: &'a mut Memo,
    ) -> Self {
        Self {
            world,
            federation,
            rules,
            names: Names::default(),
            memo,
            asked: Asked::default(),
            plan: Plan::default(),
        }
    }

    /// The namespace of objects for the whole mesh.
    fn control_plane(&self) -> String {
        self.federation.local.control_plane.namespace.clone()
    }

    fn push(&mut self, object: Object) {
        self.plan.objects.push(Arc::new(object));
    }

    fn find(&mut self, about: About, reason: Reason, message: String) {
        self.plan.findings.push(Finding { about, reason, message });
    }

    fn is_original(&self) -> bool {
        self.world.flavour == Flavour::Original
    }
}

/// The remotes that the rules import from, in the order of the federation; no others are asked.
pub fn subscribed<'a>(
    federation: &'a MeshFederationSpec,
    rules: &FederationServiceRulesSpec,
) -> Vec<&'a Remote> {
    let listed = |remote: &&Remote| rules.import.iter().any(|import| import.mesh_id == remote.id);
    federation.remote.iter().filter(listed).collect()
}

/// Decides what must exist. Without a federation or without rules, nothing.
pub fn plan(world: &World) -> Plan {
    plan_again(world, &mut Memo::default())
}

/// The same with what was found for an earlier plan; the outcome does not depend on it.
pub fn plan_again(world: &World, memo: &mut Memo) -> Plan {
    let (Some(federation), Some(rules)) = (&world.federation, &world.rules) else { return Plan::default() };
    memo.begin(federation);
    let mut draft = Draft::new(world, federation, rules, memo);
    let exported = export::select(&mut draft);
    discovery::objects(&mut draft);
    let mut aliases = export::objects(&mut draft, &exported);
    let own = std::mem::take(&mut draft.plan);
    let taken = import::part(&mut draft, &exported, &mut aliases);
    let mut plan = own.with(&taken);
    plan.objects.extend(aliases.into_values().map(|alias| Arc::new(alias.object)));
    plan.exports = export::offers(&exported);
    // Owners come before what they own.
    plan.objects.sort_by(|a, b| a.place().cmp(&b.place()));
    plan
}

/// What peers are told, without the rest of the plan.
pub fn exports(world: &World) -> Vec<Arc<Offer>> {
    exports_again(world, &mut Memo::default())
}

/// The same with what was found before; the outcome does not depend on it.
pub fn exports_again(world: &World, memo: &mut Memo) -> Vec<Arc<Offer>> {
    let (Some(federation), Some(rules)) = (&world.federation, &world.rules) else { return Vec::new() };
    // A plan would not hear of what changes here.
    memo.part = None;
    let mut draft = Draft::new(world, federation, rules, memo);
    let exported = export::select(&mut draft);
    // Nobody asks here which services changed: they would pile up.
    drop(draft.memo.chosen.changed());
    export::offers(&exported)
}
