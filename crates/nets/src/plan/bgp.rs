//! Addresses of the two ends inside each tunnel.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

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
}
