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

/// The first generation's way: both ends reckon the same networks of four from their names, and the
/// lower name takes the first host of each.
pub fn agreed(own: &str, other: &str, namespace: &str, tunnels: usize) -> Vec<Ipv4Addr> {
    let (low, high) = if own < other { (own, other) } else { (other, own) };
    let hash = Sha256::digest(format!("{low} {high} {namespace}").as_bytes());
    let number = u32::from(u16::from_be_bytes([hash[0], hash[1]]));
    let (first, last) = if low == "azure" || high == "azure" { AZURE } else { OTHERS };
    // Below the metadata service, which is at the end of the first 10,000.
    let room = ((last - first) / 4 + 1).min(10_000);
    (0..tunnels)
        .filter_map(|tunnel| u32::try_from(tunnel).ok())
        .map(|tunnel| first + (number + tunnel) % room * 4)
        .map(|base| Ipv4Addr::from(base + if low == own { 1 } else { 2 }))
        .collect()
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
    fn both_ends_reckon_the_same() {
        for (a, b) in [("east", "west"), ("azure", "local"), ("gcp", "azure")] {
            let (near, far) = (agreed(a, b, "default", 2), agreed(b, a, "default", 2));
            for (near, far) in near.iter().zip(&far) {
                assert_eq!((u32::from(*near) ^ u32::from(*far)), 3, "the two middle hosts of one network");
            }
        }
        let azure = agreed("azure", "local", "default", 2);
        assert!(azure.iter().all(|ip| (AZURE.0..AZURE.1 + 4).contains(&u32::from(*ip))), "{azure:?}");
    }
}
