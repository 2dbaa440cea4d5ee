//! Which connections between clouds rules need.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::Inner;
use super::operation::Call;
use super::request::Target;
use super::rules::RuleSet;
use crate::cloud::{Need, needs};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::Rule;
use crate::plan::connect::{Link, Side, Step};
use crate::plan::rule;
use crate::plan::target::{Map, Owner, Place, first_address};

/// How long a change waits to learn what is only told: which connections it leaves unneeded, and what its rules need
/// inside their clouds.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Connections to be made, each once.
#[derive(Default)]
pub(super) struct Connections(Vec<(bool, ConnectRequest)>);

impl Connections {
    /// One link carries all networks at its ends where they learn of each other by themselves.
    /// Tells whether it is new.
    fn add(&mut self, learned: bool, request: ConnectRequest) -> bool {
        let ends = |request: &ConnectRequest| {
            let (a, b) = (
                (request.cloud_a.clone(), request.namespace_a.clone()),
                (request.cloud_b.clone(), request.namespace_b.clone()),
            );
            if a < b { (a, b) } else { (b, a) }
        };
        let same = |other: &ConnectRequest| *other == request || (learned && ends(other) == ends(&request));
        let new = !self.0.iter().any(|(_, other)| same(other));
        if new {
            self.0.push((learned, request));
        }
        new
    }

    /// Adds more, and tells the calls for those that are new.
    pub(super) fn merge(&mut self, more: Self) -> Vec<Call> {
        let new = more.0.into_iter().filter(|(learned, request)| self.add(*learned, request.clone()));
        new.map(|(_, request)| Call::Connect(request)).collect()
    }

    pub(super) fn calls(self) -> Vec<Call> {
        self.0.into_iter().map(|(_, request)| Call::Connect(request)).collect()
    }
}

/// Something that a plugin makes inside its cloud so that the packets of a network get through.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    /// The network.
    pub(super) own: Owner,
    /// What it needs.
    pub(super) need: Need,
}

impl Inner {
    /// The resource with its address, by its tag where a request did not tell it.
    pub(super) fn located(&self, resource: &Target) -> Target {
        let Target { namespace, cloud, uri, ip } = resource;
        let by_tag = || first_address(&self.tags.leaf_of(&format!("{namespace}.{cloud}."), uri)?.ip?);
        Target { ip: ip.or_else(by_tag), ..resource.clone() }
    }

    /// What must be connected first. A resource whose address is not known is left to its plugin.
    pub(super) async fn connections_for(
        &self,
        resource: &Target,
        rules: &[Rule],
    ) -> Result<Connections, Error> {
        let mut found = Connections::default();
        let Some(own_address) = resource.ip else { return Ok(found) };
        if rules.iter().all(|rule| rule.targets.is_empty()) {
            return Ok(found);
        }
        let map = self.spaces.map(&self.places).await?;
        let Some(own) = network_of(&map, &resource.cloud, own_address) else { return Ok(found) };
        for need in needs(rules, own, &map)? {
            if let Need::Vpn(owner) = need {
                let request = ConnectRequest::between(own, &owner);
                let link = self.link(&request).await?;
                if link.next() != Step::Done {
                    found.add(link.pair.bgp, request);
                }
            }
        }
        Ok(found)
    }

    /// What the rules of each call need inside their cloud: the plugin sees to that when it is given them, and has
    /// some of it already. A way that several need is told with the first of them.
    pub(super) async fn inside(&self, calls: &[Call]) -> Vec<Vec<Way>> {
        let gives = |call: &Call| matches!(call, Call::AddRules { ip: Some(_), .. });
        if !calls.iter().any(gives) {
            return Vec::new();
        }
        // Only told, so a cloud that does not tell its networks just now keeps nothing back.
        let map = tokio::time::timeout(TOLD_WITHIN, self.spaces.map(&self.places)).await;
        let Ok(Ok(map)) = map else { return Vec::new() };
        let (mut looked_at, mut told) = (HashSet::new(), BTreeSet::new());
        let mut all = vec![Vec::new(); calls.len()];
        for (call, ways) in calls.iter().zip(&mut all) {
            let Call::AddRules { cloud, ip: Some(ip), rules, .. } = call else { continue };
            let Some(own) = network_of(&map, cloud, *ip) else { continue };
            // A rule of a tag goes to many resources, and most of them share a network.
            let targets: Vec<&[String]> = rules.iter().map(|rule| rule.targets.as_slice()).collect();
            if !looked_at.insert((&own.cloud, own.space, targets)) {
                continue;
            }
            let needs = needs(rules, own, &map).unwrap_or_default();
            let inside = needs.into_iter().filter(|need| !matches!(need, Need::Vpn(_)));
            let new =
                inside.map(|need| Way { own: own.clone(), need }).filter(|way| told.insert(way.clone()));
            ways.extend(new);
        }
        all
    }

    /// Links that no remembered rule needs.
    pub(super) async fn plan_prune(&self) -> Result<Vec<Call>, Error> {
        let map = self.spaces.map(&self.places).await?;
        let (sets, links) = (self.rules.list().await?, self.links.list().await?);
        let unused = unneeded(&links, &sets, &map);
        Ok(unused.into_iter().map(|link| Call::Disconnect { link }).collect())
    }

    /// Links that are needed now, and by nobody once these calls are made. Only told, so a cloud that does not
    /// tell its networks just now keeps nothing back.
    pub(super) async fn told_freed_by(&self, calls: &[Call]) -> Vec<String> {
        match tokio::time::timeout(TOLD_WITHIN, self.freed_by(calls)).await {
            Ok(Ok(unneeded)) => unneeded,
            Ok(Err(error)) => {
                tracing::warn!(error = %tarbet_telemetry::problem::chain(&error), "It is not known which connections this leaves unneeded.");
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }

    async fn freed_by(&self, calls: &[Call]) -> Result<Vec<String>, Error> {
        let mut gone: BTreeMap<String, Option<&[String]>> = BTreeMap::new();
        for call in calls {
            match call {
                Call::DeleteRules { cloud, namespace, uri, names } => {
                    gone.insert(format!("{namespace}>{cloud}>{uri}"), Some(names));
                }
                Call::Unregister { subscriber, .. } => {
                    gone.insert(subscriber.clone(), None);
                }
                _ => {}
            }
        }
        let links = self.links.list().await?;
        if gone.is_empty() || links.is_empty() {
            return Ok(Vec::new());
        }
        let map = self.spaces.map(&self.places).await?;
        let mut touched = Vec::new();
        for subscriber in gone.keys() {
            touched.push(self.rules.get(subscriber).await?);
        }
        // Most rules need no link, and then nobody else's have to be read.
        if unneeded(&links, &touched, &map).len() == links.len() {
            return Ok(Vec::new());
        }
        let before = self.rules.list().await?;
        let mut after = before.clone();
        for set in &mut after {
            match gone.get(&set.target().subscriber().to_string()) {
                Some(Some(names)) => set.rules.retain(|name, _| !names.contains(name)),
                Some(None) => set.rules.clear(),
                None => {}
            }
        }
        let idle: BTreeSet<String> = unneeded(&links, &before, &map).into_iter().collect();
        let freed = unneeded(&links, &after, &map);
        Ok(freed.into_iter().filter(|link| !idle.contains(link)).collect())
    }
}

/// The network of a cloud that holds an address.
fn network_of<'a>(map: &'a Map, cloud: &str, address: IpAddr) -> Option<&'a Owner> {
    let Place::Known(owners) = map.place(&IpNet::from(address)) else { return None };
    owners.into_iter().find(|owner| owner.cloud == cloud)
}

/// The names of links that none of these permit lists needs.
fn unneeded(links: &[Link], sets: &[RuleSet], map: &Map) -> Vec<String> {
    let mut needed = BTreeSet::new();
    for set in sets {
        for target in set.rules.values().filter_map(|rule| rule::targets(rule).ok()).flatten() {
            if let Place::Known(owners) = map.place(&target) {
                for owner in owners.into_iter().filter(|owner| owner.cloud != set.cloud) {
                    let here = (set.cloud.clone(), set.namespace.clone());
                    let there = (owner.cloud.clone(), owner.namespace.clone());
                    needed.insert((here.clone(), there.clone()));
                    needed.insert((there, here));
                }
            }
        }
    }
    let unused = links.iter().filter(|link| {
        let (a, b) = link.ends(Side::A);
        let ends = ((a.cloud.clone(), a.namespace.clone()), (b.cloud.clone(), b.namespace.clone()));
        !needed.contains(&ends)
    });
    unused.map(Link::name).collect()
}
