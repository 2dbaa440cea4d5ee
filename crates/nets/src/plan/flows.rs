//! Which flows are open from end to end, worked out from both ends' rules, for pictures.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use super::rule;
use super::verdict::Endpoint;
use crate::model::{ANY, Direction, Rule};

/// Flows that one resource may open to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Flow {
    /// Who opens them.
    pub from: String,
    /// Who takes them.
    pub to: String,
    /// What passes, such as `tcp/443`, `icmp` or `all`.
    pub what: Vec<String>,
}

/// Every open flow between resources. A flow is open only if the one end permits it out and the
/// other permits it in; what only one end permits is not listed.
pub fn flows(endpoints: &BTreeMap<IpAddr, Endpoint>) -> Vec<Flow> {
    let mut found = Vec::new();
    for (source, from) in endpoints {
        let mut out: BTreeMap<IpAddr, Vec<&Rule>> = BTreeMap::new();
        for permission in from.rules.iter().filter(|rule| rule.direction == Direction::Outbound) {
            for net in rule::targets(permission).unwrap_or_default() {
                // One range of the map a target: a list of hosts does not cost a look at every resource.
                for (&address, _) in endpoints.range(net.network()..=net.broadcast()) {
                    out.entry(address).or_default().push(permission);
                }
            }
        }
        for (destination, permissions) in out {
            let Some(to) = endpoints.get(&destination).filter(|_| destination != *source) else { continue };
            let inbound = to.rules.iter().filter(|rule| rule.direction == Direction::Inbound);
            let mut what: Vec<String> = inbound
                .filter(|rule| {
                    rule::targets(rule).is_ok_and(|nets| nets.iter().any(|net| net.contains(source)))
                })
                .flat_map(|inward| permissions.iter().filter_map(|outward| both(outward, inward)))
                .collect();
            what.sort();
            what.dedup();
            if !what.is_empty() {
                found.push(Flow { from: from.name.clone(), to: to.name.clone(), what });
            }
        }
    }
    found
}

/// What two rules permit together, in words.
fn both(outward: &Rule, inward: &Rule) -> Option<String> {
    let narrower = |a: i32, b: i32| match (a, b) {
        (ANY, other) | (other, ANY) => Some(other),
        (a, b) if a == b => Some(a),
        _ => None,
    };
    let protocol = narrower(outward.protocol, inward.protocol)?;
    let name = match protocol {
        ANY => "all".to_owned(),
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => format!("protocol {other}"),
    };
    if protocol != ANY && !rule::has_ports(protocol) {
        return Some(name);
    }
    narrower(outward.src_port, inward.src_port)?;
    match narrower(outward.dst_port, inward.dst_port)? {
        ANY => Some(name),
        port => Some(format!("{name}/{port}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::verdict::{Packet, Policy};

    fn permit(direction: Direction, protocol: i32, port: i32, target: &str) -> Rule {
        let name = format!("{direction:?}{protocol}{port}");
        let targets = vec![target.into()];
        Rule { name, direction, protocol, src_port: ANY, dst_port: port, targets, tags: Vec::new() }
    }

    fn world(rules: [Vec<Rule>; 2]) -> BTreeMap<IpAddr, Endpoint> {
        let names = [("10.0.0.1", "a"), ("10.0.0.2", "b")];
        let ends = names.into_iter().zip(rules);
        ends.map(|((address, name), rules)| (address.parse().unwrap(), Endpoint { name: name.into(), rules }))
            .collect()
    }

    #[test]
    fn one_end_alone_opens_nothing() {
        let out = permit(Direction::Outbound, 6, 443, "10.0.0.0/8");
        let inward = permit(Direction::Inbound, ANY, ANY, "10.0.0.1");
        assert_eq!(flows(&world([vec![out.clone()], vec![]])), []);
        let open = flows(&world([vec![out], vec![inward]]));
        assert_eq!(open, [Flow { from: "a".into(), to: "b".into(), what: vec!["tcp/443".into()] }]);
    }

    proptest! {
        #[test]
        fn a_flow_is_listed_exactly_if_a_packet_of_it_passes(
            out in prop::collection::vec((prop::sample::select(vec![6, 17]), 1..4_i32, prop::sample::select(vec!["10.0.0.2", "10.0.0.0/24", "10.9.0.0/16"])), 0..4),
            inward in prop::collection::vec((prop::sample::select(vec![6, 17]), 1..4_i32, prop::sample::select(vec!["10.0.0.1", "10.0.0.3"])), 0..4),
        ) {
            let rules = |list: &[(i32, i32, &str)], direction| {
                list.iter().map(|&(protocol, port, target)| permit(direction, protocol, port, target)).collect::<Vec<_>>()
            };
            let ends = world([rules(&out, Direction::Outbound), rules(&inward, Direction::Inbound)]);
            let listed: Vec<String> = flows(&ends).into_iter().flat_map(|flow| flow.what).collect();
            let mut policy = Policy::default();
            for (address, endpoint) in &ends {
                policy.insert(*address, endpoint.clone());
            }
            for (protocol, name) in [(6_u8, "tcp"), (17, "udp")] {
                for port in 1..4_u16 {
                    let packet = Packet {
                        source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(),
                        protocol, source_port: 50000, destination_port: port,
                    };
                    prop_assert_eq!(policy.judge(&packet).allowed, listed.contains(&format!("{name}/{port}")));
                }
            }
        }
    }
}
