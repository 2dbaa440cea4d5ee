//! The part of a plan that follows from imports, taken over while nothing that it has to do with changes.
//!
//! Most changes in a cluster are of services that no peer offers too, and of their pods: then what is imported stays as
//! it is, object by object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tarbet_link::Address;

use super::{merge, objects};
use crate::model::{Key, Offer};
use crate::plan::export::{Alias, Exported};
use crate::plan::memo::{Asked, Terms};
use crate::plan::{Draft, Plan, World, clusterset, egress};
use crate::still::{Mark, Still};

/// Such a part, and what it was made from.
#[derive(Debug)]
pub(in crate::plan) struct Part {
    terms: Terms,
    peers: BTreeMap<String, Mark<Vec<Arc<Offer>>>>,
    foreign_hosts: Still<BTreeSet<String>>,
    resolved: BTreeMap<String, Vec<IpAddr>>,
    discovery: BTreeMap<String, Address>,
    /// The Services it has to do with, and the names.
    asked: Asked,
    /// Whether it has to do with any Service that may select the same pods.
    kin: bool,
    plan: Arc<Plan>,
}

/// What follows from imports; names that we export too are added to the alias.
pub(in crate::plan) fn part(
    draft: &mut Draft<'_>,
    exported: &[Arc<Exported>],
    aliases: &mut BTreeMap<String, Alias>,
) -> Arc<Plan> {
    let changed = draft.memo.chosen.changed();
    if let Some(part) = draft.memo.part.take_if(|part| part.stands(draft.world, &changed, aliases)) {
        let plan = Arc::clone(&part.plan);
        draft.memo.rest();
        draft.memo.part = Some(part);
        return plan;
    }
    let mut imported = merge(draft);
    let met = imported.iter().any(|one| aliases.contains_key(one.host));
    objects(draft, &mut imported, aliases);
    egress::objects(draft, &imported);
    clusterset::objects(draft, exported, &imported);
    draft.memo.end();
    let kin = imported.iter().any(|one| !one.apart);
    for one in &imported {
        draft.asked.note((one.host, ""));
    }
    let mut plan = std::mem::take(&mut draft.plan);
    plan.objects.sort_by(|a, b| a.place().cmp(&b.place()));
    let (plan, asked) = (Arc::new(plan), std::mem::take(&mut draft.asked));
    let world = draft.world;
    // What has to do with what is exported is not worth its own comparison.
    let alone = !met && !draft.rules.service_imports && !draft.is_original();
    draft.memo.part = Terms::of(world).filter(|_| alone).map(|terms| Part {
        terms,
        peers: world.peers.iter().map(|(mesh, offers)| (mesh.clone(), offers.mark())).collect(),
        foreign_hosts: world.foreign_hosts.clone(),
        resolved: world.resolved.clone(),
        discovery: world.discovery.clone(),
        asked,
        kin,
        plan: Arc::clone(&plan),
    });
    plan
}

impl Part {
    /// Whether the same would follow from this world, where these Services have changed.
    fn stands(&self, world: &World, changed: &[Key], aliases: &BTreeMap<String, Alias>) -> bool {
        let said = |(mesh, mark): (&String, &Mark<Vec<Arc<Offer>>>)| {
            world.peers.get(mesh).is_some_and(|offers| offers.is(mark))
        };
        self.terms.are_of(world)
            && self.peers.len() == world.peers.len()
            && self.peers.iter().all(said)
            && self.foreign_hosts == world.foreign_hosts
            && self.resolved == world.resolved
            && self.discovery == world.discovery
            && (changed.is_empty() || !self.kin)
            && !changed.iter().any(|(namespace, name)| self.asked.has((namespace, name)))
            && !aliases.keys().any(|host| self.asked.has((host, "")))
    }
}
