//! Whose an address is: decides between nothing to do, a peering, a VPN and a public gateway.

use std::collections::{BTreeMap, btree_map};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::model::Mapping;

/// Reads an address or a prefix; a bare address is a prefix of one.
pub fn parse(text: &str) -> Option<IpNet> {
    match text.parse::<IpNet>() {
        Ok(net) => Some(net.trunc()),
        Err(_) => text.parse::<IpAddr>().ok().map(IpNet::from),
    }
}

const PRIVATE4: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(100, 64, 0, 0), 10),
];
const PRIVATE6: Ipv6Net = Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);

/// Whether the whole prefix is private.
pub fn is_private(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => PRIVATE4.iter().any(|private| private.contains(net)),
        IpNet::V6(net) => PRIVATE6.contains(net),
    }
}

/// A network that somebody deployed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Its cloud.
    pub cloud: String,
    /// Its namespace.
    pub namespace: String,
    /// Its deployment, where known.
    pub deployment: Option<String>,
    /// Its space.
    pub space: IpNet,
}

/// Whose a target is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place<'a> {
    /// Not private: reached through a public gateway.
    Public,
    /// In these networks, in address order.
    Known(Vec<&'a Owner>),
    /// Private, and some of it in no known network.
    Unknown,
}

/// All spaces in use, ready to be asked whose an address is.
#[derive(Debug, Clone, Default)]
pub struct Map {
    /// By family, first address and length. Spaces of different clouds may overlap where they were
    /// not given out by us.
    owners: BTreeMap<(bool, IpAddr, u8), Vec<Counted>>,
    /// How many places above have a family and a length: only those lengths need to be looked for.
    lengths: BTreeMap<(bool, u8), usize>,
    /// Spaces of networks that others made, and what those are called: known, and never connected to.
    foreign: Vec<(IpNet, String)>,
}

/// An owner, and how often it was told.
#[derive(Debug, Clone)]
struct Counted {
    owner: Owner,
    times: usize,
}

fn owner(mapping: &Mapping, space: IpNet) -> Owner {
    Owner {
        cloud: mapping.cloud.clone(),
        namespace: mapping.namespace.clone(),
        deployment: mapping.deployment.clone(),
        space: space.trunc(),
    }
}

impl Map {
    /// Sorts the reports.
    pub fn new(mappings: &[Mapping]) -> Self {
        let mut map = Self::default();
        for mapping in mappings {
            for space in &mapping.spaces {
                map.insert(mapping, *space);
            }
        }
        map
    }

    /// Notes the spaces of others and what their networks are called, in place of those before.
    pub fn set_foreign(&mut self, foreign: Vec<(IpNet, String)>) {
        self.foreign = foreign;
    }

    /// What the network of others is called that holds all of `target`.
    pub fn foreign(&self, target: &IpNet) -> Option<&str> {
        self.foreign.iter().find(|(space, _)| space.contains(target)).map(|(_, name)| name.as_str())
    }

    /// Notes one space of a report.
    pub fn insert(&mut self, mapping: &Mapping, space: IpNet) {
        let owner = owner(mapping, space);
        let place = key(&owner.space);
        let owners = self.owners.entry(place).or_default();
        if owners.is_empty() {
            *self.lengths.entry((place.0, place.2)).or_default() += 1;
        }
        match owners.iter_mut().find(|counted| counted.owner == owner) {
            Some(counted) => counted.times += 1,
            None => owners.push(Counted { owner, times: 1 }),
        }
    }

    /// Takes one space of a report back.
    pub fn remove(&mut self, mapping: &Mapping, space: IpNet) {
        let owner = owner(mapping, space);
        let place = key(&owner.space);
        let Some(owners) = self.owners.get_mut(&place) else { return };
        for counted in owners.iter_mut().filter(|counted| counted.owner == owner) {
            counted.times -= 1;
        }
        owners.retain(|counted| counted.times > 0);
        if owners.is_empty() {
            self.owners.remove(&place);
            if let btree_map::Entry::Occupied(mut places) = self.lengths.entry((place.0, place.2)) {
                *places.get_mut() -= 1;
                if *places.get() == 0 {
                    places.remove();
                }
            }
        }
    }

    /// All known networks, in address order.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.owners.values().flatten().map(|counted| &counted.owner)
    }

    /// The networks that have an address in common with `target`, the largest first where they are in each other.
    pub fn meeting(&self, target: &IpNet) -> Vec<&Owner> {
        let (family, first, length) = key(target);
        let around = self.lengths.range((family, 0)..(family, length)).filter_map(|(&(_, length), _)| {
            let net = IpNet::new(target.addr(), length).ok()?;
            self.owners.get(&key(&net))
        });
        let inside = self.owners.range((family, first, length)..=(family, target.broadcast(), u8::MAX));
        // A shorter prefix may begin at the same address: it was found around the target already.
        let inside = inside.filter(|((_, _, found), _)| *found >= length).map(|(_, owners)| owners);
        around.chain(inside).flatten().map(|counted| &counted.owner).collect()
    }

    /// Whose `target` is. All of it counts, not only its first address.
    pub fn place(&self, target: &IpNet) -> Place<'_> {
        let found = self.meeting(target);
        if found.is_empty() {
            return if is_private(target) { Place::Unknown } else { Place::Public };
        }
        // Most targets are in one network; several may hold one together.
        let whole = found.iter().any(|owner| owner.space.contains(target)) || {
            let spaces: Vec<IpNet> = found.iter().map(|owner| owner.space).collect();
            IpNet::aggregate(&spaces).iter().any(|space| space.contains(target))
        };
        if whole { Place::Known(found) } else { Place::Unknown }
    }
}

fn key(net: &IpNet) -> (bool, IpAddr, u8) {
    (net.addr().is_ipv6(), net.network(), net.prefix_len())
}

/// The address of a resource, or the first of those of a cluster's pods.
pub fn first_address(text: &str) -> Option<IpAddr> {
    parse(text).map(|net| net.addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        parse(text).unwrap()
    }

    fn map(spaces: &[(&str, &str)]) -> Map {
        let mappings: Vec<Mapping> = spaces
            .iter()
            .map(|&(space, cloud)| Mapping {
                spaces: vec![net(space)],
                cloud: cloud.into(),
                namespace: "default".into(),
                deployment: None,
            })
            .collect();
        Map::new(&mappings)
    }

    #[test]
    fn an_address_belongs_to_the_network_that_holds_it() {
        let map = map(&[("10.1.0.0/16", "b"), ("10.0.0.0/16", "a"), ("8.8.0.0/16", "c")]);
        let cloud = |target: &str| match map.place(&net(target)) {
            Place::Known(owners) => {
                owners.iter().map(|owner| owner.cloud.clone()).collect::<Vec<_>>().join(",")
            }
            other => format!("{other:?}"),
        };
        assert_eq!(cloud("10.0.3.4"), "a");
        assert_eq!(cloud("10.1.255.255"), "b");
        assert_eq!(cloud("10.0.0.0/15"), "a,b");
        assert_eq!(cloud("8.8.8.8"), "c", "a network may have public addresses");
        assert_eq!(cloud("10.2.0.1"), "Unknown");
        assert_eq!(cloud("10.0.0.0/8"), "Unknown", "only part of it is known");
        assert_eq!(cloud("1.1.1.1"), "Public");
        assert_eq!(cloud("100.64.0.1"), "Unknown");
        assert_eq!(cloud("fd00::1"), "Unknown");
        assert_eq!(cloud("2001:db8::1"), "Public");
    }

    proptest! {
        #[test]
        fn agrees_with_looking_at_every_network(
            used in prop::collection::btree_set(0_u8..32, 0..12), at in any::<u8>(), length in 24_u8..=32,
        ) {
            let spaces: Vec<(String, String)> =
                used.iter().map(|n| (format!("10.0.0.{}/29", n * 8), format!("cloud{n}"))).collect();
            let spaces: Vec<(&str, &str)> = spaces.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let target = net(&format!("10.0.0.{at}/{length}"));
            let expected: Vec<String> = spaces
                .iter()
                .filter(|(space, _)| net(space).contains(&target) || target.contains(&net(space)))
                .map(|(_, cloud)| (*cloud).to_owned())
                .collect();
            let whole = target.prefix_len() >= 29 || expected.len() == 1 << (29 - target.prefix_len());
            match map(&spaces).place(&target) {
                Place::Known(owners) => {
                    let clouds: Vec<String> = owners.into_iter().map(|owner| owner.cloud.clone()).collect();
                    prop_assert_eq!(clouds, expected);
                    prop_assert!(whole);
                }
                Place::Unknown => prop_assert!(expected.is_empty() || !whole),
                Place::Public => prop_assert!(false, "10/8 is private"),
            }
        }
    }
}
