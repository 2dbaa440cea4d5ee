//! What the targets of rules need before traffic can flow: a peering, a VPN, a public gateway.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::model::Rule;
use crate::plan::rule;
use crate::plan::target::{Map, Owner, Place};

/// What a rule needs beside the permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The networks are in one cloud.
    Peering(Owner),
    /// The networks are in two clouds.
    Vpn(Owner),
    /// The target is public.
    Public,
}

/// The needs of all rules of a resource in the network `own`, each once. A private target that is in
/// no known network is an error: nothing could ever carry its packets.
pub fn needs(rules: &[Rule], own: &Owner, map: &Map) -> Result<BTreeSet<Need>, Error> {
    let mut found = BTreeSet::new();
    for permission in rules {
        for target in rule::targets(permission)? {
            // The most common case needs no map at all.
            if own.space.contains(&target) {
                continue;
            }
            match map.place(&target) {
                Place::Public => {
                    found.insert(Need::Public);
                }
                Place::Unknown => {
                    let why = map.foreign(&target).map_or_else(
                        || "is private, and some of it is in no known network".to_owned(),
                        |name| {
                            format!(
                                "is in {name}, which others made: it is read-only and connected to nothing"
                            )
                        },
                    );
                    return Err(Error::invalid(
                        format!("{}.targets", permission.name),
                        format!("{target} {why}"),
                    ));
                }
                Place::Known(owners) => {
                    if target.addr().is_ipv6() && owners.iter().any(|owner| owner.cloud != own.cloud) {
                        return Err(Error::invalid(
                            format!("{}.targets", permission.name),
                            format!("{target} is IPv6 in another cloud, and VPNs carry IPv4 only"),
                        ));
                    }
                    found.extend(owners.into_iter().filter(|owner| owner.space != own.space).map(|owner| {
                        let need = if owner.cloud == own.cloud { Need::Peering } else { Need::Vpn };
                        need(owner.clone())
                    }));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mapping;

    fn owner(cloud: &str, space: &str) -> Owner {
        Owner {
            cloud: cloud.into(),
            namespace: "default".into(),
            deployment: None,
            space: space.parse().unwrap(),
        }
    }

    #[test]
    fn each_place_has_its_need() {
        let spaces = [
            ("east", "10.0.0.0/16"),
            ("east", "10.1.0.0/16"),
            ("west", "10.2.0.0/16"),
            ("west", "fd00:1::/64"),
            ("east", "fd00:2::/64"),
        ];
        let mappings = spaces.map(|(cloud, space)| Mapping {
            spaces: vec![space.parse().unwrap()],
            cloud: cloud.into(),
            namespace: "default".into(),
            deployment: None,
        });
        let map = Map::new(&mappings);
        let own = owner("east", "10.0.0.0/16");
        let rule = |targets: &[&str]| Rule {
            name: "r".into(),
            targets: targets.iter().map(ToString::to_string).collect(),
            ..Rule::default()
        };
        let of = |targets: &[&str]| {
            needs(&[rule(targets)], &own, &map).map(|needs| needs.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(of(&["10.0.3.4"]).unwrap(), []);
        assert_eq!(of(&["10.1.0.4", "10.1.0.5"]).unwrap(), [Need::Peering(owner("east", "10.1.0.0/16"))]);
        assert_eq!(
            of(&["10.2.0.4", "8.8.8.8"]).unwrap(),
            [Need::Vpn(owner("west", "10.2.0.0/16")), Need::Public]
        );
        assert!(of(&["10.3.0.1"]).is_err());
        assert_eq!(of(&["fd00:2::4"]).unwrap(), [Need::Peering(owner("east", "fd00:2::/64"))]);
        assert!(of(&["fd00:1::4"]).is_err(), "no VPN carries IPv6");
        assert!(of(&[]).unwrap().is_empty());
    }
}
