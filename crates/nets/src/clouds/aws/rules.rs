//! Permit lists as the permissions of a security group.
//!
//! A group holds each permission once, whoever wants it, and has no room for names. So the rules are kept
//! with the orchestrator, and the group is brought in line with all of them together.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::error::Error;
use crate::model::{ANY, Direction, Rule};
use crate::plan::rule::{self, Mistake};

/// Whom a permission is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// Addresses, as every rule says it.
    Net(IpNet),
    /// Whoever is in another group, which only others write.
    Group(String),
    /// What a list of prefixes holds, which only others write.
    List(String),
}

impl Target {
    /// Whether it may be in this space; of groups and lists nobody knows.
    pub(super) fn touches(&self, space: &IpNet) -> bool {
        matches!(self, Self::Net(net) if space.contains(net) || net.contains(space))
    }
}

/// One permission of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Permission {
    pub(super) direction: Direction,
    /// As EC2 spells it: a word, a number, or `-1` for all.
    pub(super) protocol: String,
    /// First and last port, where the protocol has ports.
    pub(super) ports: Option<(i64, i64)>,
    pub(super) target: Target,
}

/// Every reason EC2 would have to refuse these rules, or to let more pass than they say.
pub(super) fn check(rules: &[Rule]) -> Result<(), Error> {
    let mut mistakes = rule::check_call(rules).err().unwrap_or_default();
    for (index, rule) in rules.iter().enumerate() {
        let mut wrong = |field: &str, message: &str| {
            mistakes.push(Mistake { field: format!("rules[{index}].{field}"), message: message.into() });
        };
        let from_port = rule.src_port > 0 || (rule.src_port == 0 && rule::has_ports(rule.protocol));
        if from_port && !rule::is_way_back(rule) {
            wrong("src_port", "AWS does not filter by source port; use -1");
        }
        let filtered = matches!(rule.protocol, 6 | 17);
        if !filtered && rule::has_ports(rule.protocol) && rule.dst_port != ANY {
            wrong("dst_port", "AWS filters ports of TCP and UDP only; name one of them, or use -1");
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Error::Invalid(mistakes)) }
}

/// What a rule permits; nothing for the way back, because groups let replies pass and know no source ports.
pub(super) fn compile(rule: &Rule) -> Result<BTreeSet<Permission>, Error> {
    if rule::is_way_back(rule) {
        return Ok(BTreeSet::new());
    }
    let protocol = match rule.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        1 => "icmp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => other.to_string(),
    };
    let ports = match (rule.protocol, rule.dst_port) {
        (6 | 17, ANY) => Some((0, 65535)),
        (6 | 17, port) => Some((i64::from(port), i64::from(port))),
        // All types of ICMP, and all of its codes.
        (1 | 58, _) => Some((-1, -1)),
        _ => None,
    };
    Ok(rule::targets(rule)?
        .into_iter()
        .map(|target| Permission {
            direction: rule.direction,
            protocol: protocol.clone(),
            ports,
            target: Target::Net(target),
        })
        .collect())
}

impl Permission {
    /// As a parameter of a call.
    pub(super) fn parameter(&self) -> Value {
        let mut value = json!({ "IpProtocol": self.protocol });
        match &self.target {
            Target::Net(IpNet::V4(target)) => value["IpRanges"] = json!([{ "CidrIp": target }]),
            Target::Net(IpNet::V6(target)) => value["Ipv6Ranges"] = json!([{ "CidrIpv6": target }]),
            Target::Group(id) => value["Groups"] = json!([{ "GroupId": id }]),
            Target::List(id) => value["PrefixListIds"] = json!([{ "PrefixListId": id }]),
        }
        if let Some((first, last)) = self.ports {
            value["FromPort"] = json!(first);
            value["ToPort"] = json!(last);
        }
        value
    }
}

/// The permissions that a group has.
pub(super) fn read(group: &Value) -> BTreeSet<Permission> {
    let mut found = BTreeSet::new();
    for (field, direction) in
        [("ipPermissions", Direction::Inbound), ("ipPermissionsEgress", Direction::Outbound)]
    {
        for permission in group[field].as_array().into_iter().flatten() {
            let protocol = permission["ipProtocol"].as_str().unwrap_or_default();
            let port = |field: &str| permission[field].as_str().and_then(|text| text.parse::<i64>().ok());
            let has_ports = matches!(protocol, "tcp" | "udp" | "icmp" | "icmpv6");
            let ports = port("fromPort").zip(port("toPort")).filter(|_| has_ports);
            for (list, field) in [
                ("ipRanges", "cidrIp"),
                ("ipv6Ranges", "cidrIpv6"),
                ("groups", "groupId"),
                ("prefixListIds", "prefixListId"),
            ] {
                let texts = permission[list].as_array().into_iter().flatten();
                for text in texts.filter_map(|found| found[field].as_str()) {
                    let target = match list {
                        "groups" => Target::Group(text.into()),
                        "prefixListIds" => Target::List(text.into()),
                        _ => match text.parse() {
                            Ok(net) => Target::Net(net),
                            Err(_) => continue,
                        },
                    };
                    found.insert(Permission { direction, protocol: protocol.into(), ports, target });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::verdict::{self, Packet};
    use proptest::prelude::*;
    use std::net::IpAddr;

    #[test]
    fn what_a_group_cannot_say_is_refused() {
        let good = Rule {
            name: "r".into(),
            protocol: 6,
            src_port: ANY,
            dst_port: 80,
            tags: vec!["t".into()],
            ..Rule::default()
        };
        let field = |rule: Rule| match check(&[rule]) {
            Err(Error::Invalid(mistakes)) => mistakes[0].field.clone(),
            _ => String::new(),
        };
        assert_eq!(field(good.clone()), "");
        assert_eq!(field(Rule { src_port: 22, ..good.clone() }), "rules[0].src_port");
        let back = Rule { src_port: 22, dst_port: ANY, targets: vec!["10.0.0.9".into()], ..good.clone() };
        assert!(compile(&back).unwrap().is_empty(), "only replies, which pass by themselves");
        assert_eq!(field(back), "");
        assert_eq!(field(Rule { protocol: ANY, ..good.clone() }), "rules[0].dst_port");
        assert_eq!(field(Rule { protocol: 132, ..good }), "rules[0].dst_port");
    }

    #[test]
    fn groups_and_lists_of_others_are_permissions_too() {
        let group = json!({ "ipPermissions": [{
            "ipProtocol": "tcp", "fromPort": "22", "toPort": "22", "ipRanges": [{ "cidrIp": "10.0.0.9/32" }],
            "groups": [{ "groupId": "sg-1", "userId": "1" }], "prefixListIds": [{ "prefixListId": "pl-1" }],
        }] });
        let found: Vec<Permission> = read(&group).into_iter().collect();
        let net: IpNet = "10.0.0.9/32".parse().unwrap();
        let targets: Vec<&Target> = found.iter().map(|permission| &permission.target).collect();
        let wanted = [Target::Net(net), Target::Group("sg-1".into()), Target::List("pl-1".into())];
        assert_eq!(targets, wanted.iter().collect::<Vec<_>>());
        let said: Vec<Value> = found.iter().map(Permission::parameter).collect();
        assert_eq!(said[1]["Groups"], json!([{ "GroupId": "sg-1" }]));
        assert_eq!(said[2]["PrefixListIds"], json!([{ "PrefixListId": "pl-1" }]));
        assert!(targets[0].touches(&"10.0.0.0/8".parse().unwrap()) && !targets[1].touches(&net));
    }

    /// EC2's reading: any permission that matches lets pass, everything else is denied.
    fn aws_allows(group: &BTreeSet<Permission>, direction: Direction, peer: IpAddr, packet: &Packet) -> bool {
        let number = packet.protocol.to_string();
        let word = match packet.protocol {
            6 => "tcp",
            17 => "udp",
            1 => "icmp",
            58 => "icmpv6",
            _ => &number,
        };
        group.iter().any(|permission| {
            let ports = match (permission.protocol.as_str(), permission.ports) {
                ("tcp" | "udp", Some((first, last))) => {
                    (first..=last).contains(&i64::from(packet.destination_port))
                }
                _ => true,
            };
            permission.direction == direction
                && (permission.protocol == "-1" || permission.protocol == word)
                && ports
                && matches!(&permission.target, Target::Net(net) if net.contains(&peer))
        })
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let old = ("10\\.[0-2]\\.0\\.[0-7]", prop::sample::select(vec![8_u8, 16, 29, 32]));
        let new = ("fd00:0:0:[0-2]::[0-7]", prop::sample::select(vec![16_u8, 64, 125, 128]));
        let target = prop_oneof![old, new];
        let one = (
            prop::collection::vec(target, 0..4),
            any::<bool>(),
            prop::sample::select(vec![ANY, 0, 22, 80]),
            prop::sample::select(vec![ANY, 0, 22, 80]),
            prop::sample::select(vec![ANY, 1, 6, 17, 50, 58]),
        );
        let one = one.prop_map(|(targets, inbound, from, port, protocol)| Rule {
            name: "r".into(),
            targets: targets.into_iter().map(|(address, length)| format!("{address}/{length}")).collect(),
            direction: if inbound { Direction::Inbound } else { Direction::Outbound },
            // Only the way back names where flows come from.
            src_port: if matches!(protocol, 6 | 17) && port == ANY { from } else { ANY },
            dst_port: if matches!(protocol, 6 | 17) { port } else { ANY },
            protocol,
            tags: vec!["t".into()],
        });
        prop::collection::vec(one, 0..10)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// 200 sets of rules with 500 packets each.
        #[test]
        fn aws_and_the_reference_agree(
            rules in rules(),
            packets in prop::collection::vec((0_u8..3, 0_u8..8, any::<bool>(), any::<bool>(),
                prop::sample::select(vec![1_u8, 6, 17, 50, 47, 58]), prop::sample::select(vec![0_u16, 22, 80, 4000]),
                prop::sample::select(vec![0_u16, 22, 80, 9999])), 500),
        ) {
            let group: BTreeSet<Permission> = rules.iter().flat_map(|rule| compile(rule).unwrap()).collect();
            for (net, host, old, inbound, protocol, source_port, destination_port) in packets {
                let own: IpAddr = if old { "10.9.0.4" } else { "fd00:0:0:9::4" }.parse().unwrap();
                let peer = if old { format!("10.{net}.0.{host}") } else { format!("fd00:0:0:{net}::{host}") };
                let peer: IpAddr = peer.parse().unwrap();
                let (source, destination) = if inbound { (peer, own) } else { (own, peer) };
                let packet = Packet { source, destination, protocol, source_port, destination_port };
                let direction = if inbound { Direction::Inbound } else { Direction::Outbound };
                // Of a flow only the first packet is judged: the way back begins none, and its replies pass by themselves.
                let begins = |rule: &&Rule| !rule::is_way_back(rule);
                let expected = rules.iter().filter(begins)
                    .any(|rule| rule.direction == direction && verdict::matches(rule, peer, &packet));
                prop_assert_eq!(aws_allows(&group, direction, peer, &packet), expected, "{:?}", packet);
            }
        }
    }
}
