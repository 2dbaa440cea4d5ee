//! IPv6 beside IPv4: a network's prefix and a machine's address follow from what they have in IPv4.
//!
//! The orchestrator gives out IPv4 spaces that meet nowhere, so what is made of them meets nowhere either,
//! and nobody has to be asked for another one.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The longest prefix below which every IPv4 space has a place of its own.
const LONGEST: u8 = 32;

/// Whether networks find room below the prefix.
pub(super) fn has_room(prefix: Ipv6Net) -> bool {
    prefix.prefix_len() <= LONGEST
}

/// The prefix of the network with this space: 32 bits of the cloud's, then the space's first address.
pub(super) fn space(prefix: Ipv6Net, space: Ipv4Net) -> Ipv6Net {
    let first = u128::from(u32::from(space.network())) << 64;
    Ipv6Net::new_assert(Ipv6Addr::from(u128::from(prefix.network()) | first), 64)
}

/// The address beside an IPv4 address: it ends in that.
pub(super) fn beside(space: Ipv6Net, address: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(space.network()) | u128::from(u32::from(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_machines_keep_apart() {
        let prefix: Ipv6Net = "fd74:6172::/32".parse().unwrap();
        let east = space(prefix, "10.0.0.0/16".parse().unwrap());
        let west = space(prefix, "10.1.0.0/16".parse().unwrap());
        assert_eq!(east.to_string(), "fd74:6172:a00::/64");
        assert_eq!(west.to_string(), "fd74:6172:a01::/64");
        let machine = beside(east, Ipv4Addr::new(10, 0, 0, 4));
        assert_eq!(machine.to_string(), "fd74:6172:a00::a00:4");
        assert!(east.contains(&machine) && !west.contains(&machine));
        assert!(has_room(prefix) && !has_room("fd74:6172:1::/48".parse().unwrap()));
    }
}
