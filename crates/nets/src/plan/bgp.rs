//! Addresses of the two ends inside each tunnel.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Azure takes only these link-local addresses for BGP.
const AZURE: (u32, u32) = (0xa9fe_1500, 0xa9fe_16fc);
const OTHERS: (u32, u32) = (0xa9fe_0000, 0xa9fe_fffc);
/// Every cloud serves instance metadata at 169.254.169.254.
const METADATA: u32 = 0xa9fe_a9fc;

/// One tunnel: a network of four addresses, of which the two in the middle are the ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ends {
    /// The first host, which the first cloud gets.
    pub a: Ipv4Addr,
    /// The second host.
    pub b: Ipv4Addr,
}

/// The lowest networks of four that hold no used address, one for each tunnel.
pub fn unused(tunnels: usize, azure: bool, used: &BTreeSet<Ipv4Addr>) -> Option<Vec<Ends>> {
    let (first, last) = if azure { AZURE } else { OTHERS };
    let free = |base: &u32| {
        let (low, high) = (Ipv4Addr::from(*base), Ipv4Addr::from(base + 3));
        *base != METADATA && used.range(low..=high).next().is_none()
    };
    let ends: Vec<Ends> = (first..=last)
        .step_by(4)
        .filter(free)
        .take(tunnels)
        .map(|base| Ends { a: Ipv4Addr::from(base + 1), b: Ipv4Addr::from(base + 2) })
        .collect();
    (ends.len() == tunnels).then_some(ends)
}

/// How many tunnels the first generation makes. It asks for a gateway before it says for whom, so there is one
/// number for all; the originals' gateways have two halves.
pub const TUNNELS_AGREED: usize = 2;
/// What the originals' plugins of Azure and Google Cloud take for each other.
const AZURE_AND_GCP: [u32; TUNNELS_AGREED] = [0xa9fe_1500, 0xa9fe_1600];

/// The first generation's way: both ends reckon the same networks of four from their names, and one takes the
/// first host of each. Neither is told the other's namespace, so it does not count.
pub fn agreed(own: &str, other: &str) -> Vec<Ipv4Addr> {
    // As everywhere: the first host is always AWS's, then Azure's.
    let rank = |name: &str| (name != "aws", name != "azure", name.to_owned());
    let (low, high) = if rank(own) <= rank(other) { (own, other) } else { (other, own) };
    let networks: Vec<u32> = if (low, high) == ("azure", "gcp") {
        AZURE_AND_GCP.to_vec()
    } else {
        let narrow = [low, high].iter().any(|name| ["aws", "azure"].contains(name));
        let (first, last) = if narrow { AZURE } else { OTHERS };
        let free = |base: &u32| *base != METADATA && !AZURE_AND_GCP.contains(base);
        let all: Vec<u32> = (first..=last).step_by(4).filter(free).collect();
        let hash = Sha256::digest(format!("{low} {high}").as_bytes());
        let start = usize::from(u16::from_be_bytes([hash[0], hash[1]])) % all.len();
        all.into_iter().cycle().skip(start).take(TUNNELS_AGREED).collect()
    };
    let host = if low == own { 1 } else { 2 };
    networks.into_iter().map(|base| Ipv4Addr::from(base + host)).collect()
}

/// The tunnels of two ends of which at least one chose its own addresses; the other takes the other host of
/// each network of four. Nothing if the two do not meet.
pub fn meeting(a: Option<&[Ipv4Addr]>, b: Option<&[Ipv4Addr]>) -> Option<Vec<Ends>> {
    let across = |address: &Ipv4Addr| {
        let number = u32::from(*address);
        matches!(number & 3, 1 | 2).then(|| Ipv4Addr::from(number ^ 3))
    };
    let derived = |chosen: &[Ipv4Addr]| chosen.iter().map(across).collect::<Option<Vec<_>>>();
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a.to_vec(), b.to_vec()),
        (Some(a), None) => (a.to_vec(), derived(a)?),
        (None, Some(b)) => (derived(b)?, b.to_vec()),
        (None, None) => return None,
    };
    let meet = a.len() == b.len() && !a.is_empty() && a.iter().zip(&b).all(|(a, b)| across(a) == Some(*b));
    meet.then(|| a.into_iter().zip(b).map(|(a, b)| Ends { a, b }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn passes_over_what_either_cloud_uses() {
        let used = BTreeSet::from([address("169.254.0.2"), address("169.254.0.4")]);
        let ends = unused(2, false, &used).unwrap();
        assert_eq!(ends[0], Ends { a: address("169.254.0.9"), b: address("169.254.0.10") });
        assert_eq!(ends[1].a, address("169.254.0.13"));
    }

    #[test]
    fn azure_has_a_narrow_range() {
        let ends = unused(1, true, &BTreeSet::new()).unwrap();
        assert_eq!(ends, [Ends { a: address("169.254.21.1"), b: address("169.254.21.2") }]);
        assert_eq!(unused(128, true, &BTreeSet::new()).unwrap()[127].b, address("169.254.22.254"));
        assert!(unused(129, true, &BTreeSet::new()).is_none());
    }

    #[test]
    fn the_metadata_address_is_left_alone() {
        let all = unused(16383, false, &BTreeSet::new()).unwrap();
        assert!(
            all.iter().all(|ends| !ends.a.to_string().starts_with("169.254.169.25")
                || ends.a < address("169.254.169.252"))
        );
        assert!(unused(16384, false, &BTreeSet::new()).is_none());
    }

    #[test]
    fn two_ends_meet_in_networks_of_four() {
        let (azure, gcp) = (agreed("azure", "gcp"), agreed("gcp", "azure"));
        let ends = meeting(Some(&azure), Some(&gcp)).unwrap();
        assert_eq!(ends[1], Ends { a: address("169.254.22.1"), b: address("169.254.22.2") });
        assert_eq!(meeting(Some(&azure), None).unwrap(), ends);
        assert_eq!(meeting(None, Some(&gcp)).unwrap(), ends);
        assert!(meeting(Some(&azure), Some(&gcp[..1])).is_none(), "not as many");
        assert!(meeting(Some(&azure), Some(&azure)).is_none(), "the same end twice");
        assert!(meeting(Some(&[]), None).is_none() && meeting(None, None).is_none());
        assert!(meeting(Some(&[address("169.254.21.4")]), None).is_none(), "no host");
    }

    #[test]
    fn both_ends_reckon_the_same() {
        for (a, b) in
            [("east", "west"), ("azure", "local"), ("gcp", "azure"), ("acme", "aws"), ("azure", "aws")]
        {
            let (near, far) = (agreed(a, b), agreed(b, a));
            assert_eq!((near.len(), far.len()), (TUNNELS_AGREED, TUNNELS_AGREED));
            for (near, far) in near.iter().zip(&far) {
                assert_eq!((u32::from(*near) ^ u32::from(*far)), 3, "the two middle hosts of one network");
            }
        }
        let azure = agreed("azure", "local");
        assert!(azure.iter().all(|ip| (AZURE.0..AZURE.1 + 4).contains(&u32::from(*ip))), "{azure:?}");
        assert!(agreed("aws", "acme").iter().all(|ip| u32::from(*ip) & 3 == 1), "the first host is AWS's");
    }

    #[test]
    fn azure_and_google_have_the_originals_addresses() {
        assert_eq!(agreed("azure", "gcp"), [address("169.254.21.1"), address("169.254.22.1")]);
        assert_eq!(agreed("gcp", "azure"), [address("169.254.21.2"), address("169.254.22.2")]);
        // Nobody else has them beside.
        for other in (0..500).map(|number| format!("c{number}")) {
            assert!(agreed("azure", &other).iter().all(|ip| !AZURE_AND_GCP.contains(&(u32::from(*ip) & !3))));
        }
    }
}
