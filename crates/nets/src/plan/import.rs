//! Networks that others made: what an import changes in the record of them, and where they meet ours.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;
use serde::Serialize;

use super::target::{Map, Owner};
use crate::model::ForeignNetwork;

/// What becomes of a network in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It was not recorded.
    New,
    /// It was recorded otherwise.
    Changed,
    /// It is recorded so.
    Same,
}

/// A network as it is found now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// What becomes of it in the record.
    pub change: Change,
    /// The network.
    #[serde(flatten)]
    pub network: ForeignNetwork,
}

/// What is there, against what is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// What there is now, by region and name.
    pub networks: Vec<Found>,
    /// What is recorded and not there any more.
    pub gone: Vec<ForeignNetwork>,
}

impl Comparison {
    /// What is to be written down.
    pub fn news(&self) -> impl Iterator<Item = &Found> {
        self.networks.iter().filter(|found| found.change != Change::Same)
    }

    /// Whether nothing is to be written down.
    pub fn is_settled(&self) -> bool {
        self.gone.is_empty() && self.news().next().is_none()
    }
}

/// Compares what a cloud has now with what is recorded of it. A network that is told twice counts once.
pub fn compare(recorded: Vec<ForeignNetwork>, now: Vec<ForeignNetwork>) -> Comparison {
    let mut recorded: BTreeMap<String, ForeignNetwork> =
        recorded.into_iter().map(|network| (network.id.clone(), network)).collect();
    let now: BTreeMap<String, ForeignNetwork> =
        now.into_iter().map(|network| (network.id.clone(), settled(network))).collect();
    let mut networks: Vec<Found> = now
        .into_iter()
        .map(|(id, network)| {
            let change = match recorded.remove(&id) {
                None => Change::New,
                Some(before) if before == network => Change::Same,
                Some(_) => Change::Changed,
            };
            Found { change, network }
        })
        .collect();
    networks.sort_by(|a, b| {
        let key = |found: &Found| (found.network.region.clone(), found.network.name.clone());
        key(a).cmp(&key(b))
    });
    Comparison { networks, gone: recorded.into_values().collect() }
}

/// Clouds tell spaces in any order, and some twice.
fn settled(mut network: ForeignNetwork) -> ForeignNetwork {
    network.spaces = network.spaces.iter().map(IpNet::trunc).collect();
    network.spaces.sort_unstable();
    network.spaces.dedup();
    network
}

/// A network of others that has addresses in common with one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The cloud of the network of others.
    pub cloud: String,
    /// What that is called.
    pub name: String,
    /// Its space.
    pub space: IpNet,
    /// Ours.
    pub ours: Owner,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cloud, name, space, ours } = self;
        write!(
            f,
            "{space} of {name} in {cloud} overlaps {} of the namespace {} in {}",
            ours.space, ours.namespace, ours.cloud
        )
    }
}

/// Where networks of others meet those of ours: neither can reach the other there, whoever connects them.
pub fn overlaps<'a>(
    cloud: &str,
    networks: impl IntoIterator<Item = &'a ForeignNetwork>,
    ours: &Map,
) -> Vec<Overlap> {
    let of = |network: &ForeignNetwork| {
        let met = network.spaces.iter().flat_map(|space| {
            ours.meeting(space).into_iter().map(|owner| (*space, owner.clone())).collect::<Vec<_>>()
        });
        met.map(|(space, ours)| Overlap { cloud: cloud.into(), name: network.name.clone(), space, ours })
            .collect::<Vec<_>>()
    };
    networks.into_iter().flat_map(of).collect()
}

/// Why a network that was named cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unclear {
    /// None is called so.
    Unknown,
    /// Several are; these are their ids.
    Several(Vec<String>),
}

/// The network that a person means by its id or its name.
pub fn named<'a>(networks: &'a [ForeignNetwork], wanted: &str) -> Result<&'a ForeignNetwork, Unclear> {
    if let Some(network) = networks.iter().find(|network| network.id == wanted) {
        return Ok(network);
    }
    let found: Vec<&ForeignNetwork> = networks.iter().filter(|network| network.name == wanted).collect();
    match found.as_slice() {
        [] => Err(Unclear::Unknown),
        [one] => Ok(one),
        several => Err(Unclear::Several(several.iter().map(|network| network.id.clone()).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mapping;
    use proptest::prelude::*;

    fn network(id: &str, spaces: &[&str]) -> ForeignNetwork {
        ForeignNetwork {
            id: format!("id/{id}"),
            name: id.into(),
            region: "r".into(),
            deployment: "d".into(),
            spaces: spaces.iter().map(|space| space.parse().unwrap()).collect(),
            subnets: Some(1),
            machines: None,
        }
    }

    fn changes(comparison: &Comparison) -> Vec<(Change, &str)> {
        comparison.networks.iter().map(|found| (found.change, found.network.name.as_str())).collect()
    }

    #[test]
    fn only_what_differs_is_to_be_written_down() {
        let recorded = vec![network("a", &["10.0.0.0/16"]), network("b", &["10.1.0.0/16"])];
        let now = vec![
            network("c", &[]),
            network("b", &["10.1.0.0/16", "10.3.0.0/24"]),
            network("b", &["10.1.0.0/16", "10.2.0.0/16", "10.1.0.9/16"]),
        ];
        let first = compare(recorded, now);
        assert_eq!(changes(&first), [(Change::Changed, "b"), (Change::New, "c")], "the last word counts");
        assert_eq!(first.networks[0].network.spaces.len(), 2, "one space told twice is one");
        assert_eq!(first.gone, [network("a", &["10.0.0.0/16"])]);
        let again: Vec<ForeignNetwork> = first.networks.into_iter().map(|found| found.network).collect();
        let second = compare(again.clone(), again);
        assert!(second.is_settled(), "{second:?}");
        assert_eq!(changes(&second), [(Change::Same, "b"), (Change::Same, "c")]);
    }

    #[test]
    fn both_sides_of_an_overlap_are_named() {
        let ours = Map::new(&[Mapping {
            spaces: vec!["10.0.0.0/16".parse().unwrap(), "10.9.0.0/16".parse().unwrap()],
            cloud: "gcp".into(),
            namespace: "default".into(),
            deployment: None,
        }]);
        let theirs = [
            network("inside", &["10.0.4.0/24"]),
            network("around", &["10.8.0.0/14"]),
            network("away", &["10.1.0.0/16", "172.16.0.0/12"]),
        ];
        let told: Vec<String> = overlaps("azure", &theirs, &ours).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "10.0.4.0/24 of inside in azure overlaps 10.0.0.0/16 of the namespace default in gcp",
                "10.8.0.0/14 of around in azure overlaps 10.9.0.0/16 of the namespace default in gcp",
            ]
        );
    }

    #[test]
    fn a_name_that_several_have_is_not_guessed() {
        let mut twin = network("a", &[]);
        twin.id = "id/other".into();
        let all = [network("a", &[]), twin, network("b", &[])];
        assert_eq!(named(&all, "b"), Ok(&all[2]));
        assert_eq!(named(&all, "id/other"), Ok(&all[1]));
        assert_eq!(named(&all, "c"), Err(Unclear::Unknown));
        assert_eq!(named(&all, "a"), Err(Unclear::Several(vec!["id/a".into(), "id/other".into()])));
    }

    proptest! {
        #[test]
        fn writing_down_what_differs_leaves_nothing_to_write(
            before in prop::collection::btree_map("[a-e]", 0_u8..3, 0..5),
            after in prop::collection::btree_map("[a-e]", 0_u8..3, 0..5),
        ) {
            let make = |all: &BTreeMap<String, u8>| -> Vec<ForeignNetwork> {
                all.iter().map(|(id, octet)| network(id, &[&format!("10.{octet}.0.0/16")])).collect()
            };
            let (before, after) = (make(&before), make(&after));
            let comparison = compare(before.clone(), after.clone());
            let mut record: BTreeMap<String, ForeignNetwork> =
                before.into_iter().map(|network| (network.id.clone(), network)).collect();
            for gone in &comparison.gone {
                record.remove(&gone.id);
            }
            record.extend(comparison.news().map(|found| (found.network.id.clone(), found.network.clone())));
            prop_assert_eq!(record.values().cloned().collect::<Vec<_>>(), after.clone());
            prop_assert!(compare(record.into_values().collect(), after).is_settled());
        }
    }
}
