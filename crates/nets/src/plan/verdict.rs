//! The reference reading of permit lists: may this packet pass, and which rule says so.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::model::{ANY, Direction, Rule};
use crate::plan::rule;

/// The first packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// IANA number.
    pub protocol: u8,
    /// Only for protocols that have ports.
    pub source_port: u16,
    /// Only for protocols that have ports.
    pub destination_port: u16,
}

/// A resource and what it permits.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its tag.
    pub name: String,
    /// Its rules, with targets filled in.
    pub rules: Vec<Rule>,
}

/// All resources by address; one that has many, as a cluster has, by its first.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    endpoints: BTreeMap<IpAddr, Endpoint>,
    /// Those that have many.
    wide: Vec<IpNet>,
}

/// What one end says to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Say {
    /// Which resource.
    pub resource: String,
    /// Which way the packet goes, seen from it.
    pub direction: String,
    /// The rule that permits; nothing means denied.
    pub rule: Option<String>,
}

/// Whether a packet passes, and what each end says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Both ends permit it.
    pub allowed: bool,
    /// Source first.
    pub ends: Vec<Say>,
}

impl Policy {
    /// Adds a resource.
    pub fn insert(&mut self, address: IpAddr, endpoint: Endpoint) {
        self.endpoints.insert(address, endpoint);
    }

    /// Adds a resource that has all of these addresses.
    pub fn insert_all(&mut self, addresses: IpNet, endpoint: Endpoint) {
        if addresses.prefix_len() < addresses.max_prefix_len() {
            self.wide.push(addresses);
        }
        self.insert(addresses.network(), endpoint);
    }

    /// The resource with this address.
    fn at(&self, address: IpAddr) -> Option<&Endpoint> {
        let among = || {
            let around = self.wide.iter().filter(|net| net.contains(&address));
            around.max_by_key(|net| net.prefix_len()).map(IpNet::network)
        };
        self.endpoints.get(&address).or_else(|| self.endpoints.get(&among()?))
    }

    /// The resources by address.
    pub fn endpoints(&self) -> &BTreeMap<IpAddr, Endpoint> {
        &self.endpoints
    }

    /// Judges a packet. An end that is no resource has no say; a packet between two such ends is
    /// none of ours and does not pass.
    pub fn judge(&self, packet: &Packet) -> Verdict {
        let say = |address, peer, direction| {
            self.at(address).map(|endpoint| Say {
                resource: endpoint.name.clone(),
                direction: format!("{direction:?}").to_lowercase(),
                rule: endpoint
                    .rules
                    .iter()
                    .find(|rule| rule.direction == direction && matches(rule, peer, packet))
                    .map(|rule| rule.name.clone()),
            })
        };
        let ends: Vec<Say> = [
            say(packet.source, packet.destination, Direction::Outbound),
            say(packet.destination, packet.source, Direction::Inbound),
        ]
        .into_iter()
        .flatten()
        .collect();
        Verdict { allowed: !ends.is_empty() && ends.iter().all(|say| say.rule.is_some()), ends }
    }
}

/// Whether a rule permits a packet whose other end is `peer`.
pub fn matches(permission: &Rule, peer: IpAddr, packet: &Packet) -> bool {
    let number = i32::from(packet.protocol);
    let protocol = permission.protocol == ANY || permission.protocol == number;
    let port =
        |wanted: i32, seen: u16| wanted == ANY || (rule::has_ports(number) && wanted == i32::from(seen));
    // Protocols without ports are written with 0 or -1 for "none".
    let no_ports = !rule::has_ports(number) && permission.src_port <= 0 && permission.dst_port <= 0;
    let ports = no_ports
        || (port(permission.src_port, packet.source_port)
            && port(permission.dst_port, packet.destination_port));
    protocol
        && ports
        && rule::targets(permission).is_ok_and(|targets| targets.iter().any(|target| target.contains(&peer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, direction: Direction, protocol: i32, dst_port: i32, target: &str) -> Rule {
        Rule {
            name: name.into(),
            direction,
            protocol,
            dst_port,
            src_port: ANY,
            targets: vec![target.into()],
            tags: vec![target.into()],
        }
    }

    fn packet(source: &str, destination: &str, protocol: u8, destination_port: u16) -> Packet {
        Packet {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol,
            source_port: 40000,
            destination_port,
        }
    }

    #[test]
    fn both_ends_must_agree() {
        let mut policy = Policy::default();
        let a =
            Endpoint { name: "a".into(), rules: vec![rule("out", Direction::Outbound, 6, 80, "10.0.0.0/8")] };
        let b = Endpoint { name: "b".into(), rules: vec![rule("in", Direction::Inbound, 6, 80, "10.0.0.1")] };
        policy.insert("10.0.0.1".parse().unwrap(), a);
        policy.insert("10.0.0.2".parse().unwrap(), b);
        let verdict = policy.judge(&packet("10.0.0.1", "10.0.0.2", 6, 80));
        assert!(verdict.allowed, "{verdict:?}");
        assert_eq!(verdict.ends[1].rule.as_deref(), Some("in"));
        assert!(!policy.judge(&packet("10.0.0.1", "10.0.0.2", 6, 81)).allowed, "another port");
        assert!(!policy.judge(&packet("10.0.0.1", "10.0.0.2", 17, 80)).allowed, "another protocol");
        assert!(!policy.judge(&packet("10.0.0.2", "10.0.0.1", 6, 80)).allowed, "the other way");
        assert!(!policy.judge(&packet("10.0.0.3", "10.0.0.2", 6, 80)).allowed, "another source");
        assert!(
            policy.judge(&packet("10.0.0.1", "10.9.9.9", 6, 80)).allowed,
            "the far end is not ours to judge"
        );
        assert!(!policy.judge(&packet("10.8.8.8", "10.9.9.9", 6, 80)).allowed, "neither end is ours");
    }

    #[test]
    fn a_cluster_is_one_end_whichever_of_its_addresses_is_meant() {
        let mut policy = Policy::default();
        let rules = vec![rule("out", Direction::Outbound, 6, 80, "10.0.0.2")];
        policy.insert_all("10.4.0.0/14".parse().unwrap(), Endpoint { name: "cluster".into(), rules });
        let b = rule("in", Direction::Inbound, 6, 80, "10.4.0.0/14");
        policy.insert_all("10.0.0.2/32".parse().unwrap(), Endpoint { name: "b".into(), rules: vec![b] });
        for pod in ["10.4.0.0", "10.5.6.7"] {
            let verdict = policy.judge(&packet(pod, "10.0.0.2", 6, 80));
            assert!(verdict.allowed && verdict.ends[0].resource == "cluster", "{verdict:?}");
        }
        assert!(!policy.judge(&packet("10.5.6.7", "10.0.0.2", 6, 81)).allowed);
        assert!(!policy.judge(&packet("10.8.0.0", "10.0.0.2", 6, 80)).allowed, "beside it");
    }

    #[test]
    fn no_targets_permit_nothing_and_icmp_has_no_ports() {
        let mut nothing = rule("r", Direction::Inbound, ANY, ANY, "10.0.0.0/8");
        let ping = packet("10.0.0.1", "10.0.0.2", 1, 0);
        assert!(matches(&nothing, ping.source, &ping));
        nothing.targets.clear();
        assert!(!matches(&nothing, ping.source, &ping));
        let zero = rule("p", Direction::Inbound, 1, 0, "10.0.0.0/8");
        assert!(matches(&zero, ping.source, &ping));
        let web = rule("w", Direction::Inbound, ANY, 80, "10.0.0.0/8");
        assert!(!matches(&web, ping.source, &ping), "a port names protocols that have ports");
    }
}
