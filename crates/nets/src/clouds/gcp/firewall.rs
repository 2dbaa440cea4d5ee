//! Rules as firewalls, and back.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{legal, n, texts};
use crate::error::Error;
use crate::model::{ANY, Direction, Rule};
use crate::plan::rule;

/// What the description begins with; the tags stand behind it.
const MARK: &str = "paraglider rule:[";
/// What stands between the tags and a source port, which no firewall has a field for.
const FROM_PORT: &str = " from port ";
const NAMES: [(&str, i32); 7] =
    [("tcp", 6), ("udp", 17), ("icmp", 1), ("esp", 50), ("ah", 51), ("sctp", 132), ("ipip", 94)];

/// What all firewalls of a machine or a cluster begin with.
pub(super) fn prefix(namespace: &str, machine: &str) -> String {
    format!("{}-fw-{machine}-", n(namespace))
}

/// The network tag of a machine.
pub(super) fn network_tag(namespace: &str, machine: &str) -> String {
    format!("{}-instance-{machine}", n(namespace))
}

/// Whom a rule is for: the two ways in which a firewall can say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// Whoever has one of these network tags.
    Tags(Vec<String>),
    /// Who is at this address; an endpoint can have no tags.
    Address(String),
}

/// A machine's short id: the first eight hexadecimal digits of its number.
pub(super) fn short_id(instance: &Value) -> Option<String> {
    let number: u64 =
        instance["id"].as_str().and_then(|id| id.parse().ok()).or_else(|| instance["id"].as_u64())?;
    Some(format!("{number:x}").chars().take(8).collect())
}

/// A rule as a firewall; nothing if it has no targets, because the cloud would read that as everybody. One for
/// the way back is written down and not enforced: the cloud lets replies pass, and knows no source ports.
pub(super) fn firewall(
    permission: &Rule,
    prefix: &str,
    scope: &Scope,
    network: &str,
) -> Result<Option<Value>, Error> {
    let name = legal(&format!("{}.name", permission.name), format!("{prefix}{}", permission.name))?;
    let way_back = rule::is_way_back(permission);
    if permission.src_port != ANY && rule::has_ports(permission.protocol) && !way_back {
        let message = "this cloud's firewalls know no source ports; use -1";
        return Err(Error::invalid(format!("{}.src_port", permission.name), message));
    }
    let targets = rule::targets(permission)?;
    if targets.iter().any(|target| target.addr().is_ipv4() != targets[0].addr().is_ipv4()) {
        let message = "this cloud takes IPv4 and IPv6 in rules of their own only";
        return Err(Error::invalid(format!("{}.targets", permission.name), message));
    }
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    if targets.is_empty() {
        return Ok(None);
    }
    let protocol =
        if permission.protocol == ANY { "all".to_owned() } else { permission.protocol.to_string() };
    let mut allowed = json!({ "IPProtocol": protocol });
    if permission.dst_port != ANY && rule::has_ports(permission.protocol) {
        if permission.protocol == ANY {
            let message = "this cloud wants a protocol with a port; name 6 or 17";
            return Err(Error::invalid(format!("{}.protocol", permission.name), message));
        }
        allowed["ports"] = json!([permission.dst_port.to_string()]);
    }
    let (direction, ranges, own_ranges) = match permission.direction {
        Direction::Inbound => ("INGRESS", "sourceRanges", "destinationRanges"),
        Direction::Outbound => ("EGRESS", "destinationRanges", "sourceRanges"),
    };
    let mut firewall = json!({
        "name": name, "network": network, "direction": direction, "allowed": [allowed],
        "description": describe(permission),
    });
    firewall[ranges] = json!(targets);
    match scope {
        Scope::Tags(tags) => firewall["targetTags"] = json!(tags),
        Scope::Address(address) => firewall[own_ranges] = json!([address]),
    }
    if way_back {
        firewall["disabled"] = json!(true);
    }
    Ok(Some(firewall))
}

/// Keeps what a firewall has no field for.
fn describe(permission: &Rule) -> String {
    let tags = format!("{MARK}{}]", permission.tags.join(" "));
    if rule::is_way_back(permission) { format!("{tags}{FROM_PORT}{}", permission.src_port) } else { tags }
}

/// The tags and the source port of a description.
fn described(description: &str) -> (&str, i32) {
    let with_port =
        description.rsplit_once(FROM_PORT).and_then(|(tags, port)| Some((tags, port.parse().ok()?)));
    let (tags, port) = with_port.unwrap_or((description, ANY));
    (tags.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(']')).unwrap_or_default(), port)
}

/// A firewall as a rule; nothing if it is none of ours.
pub(super) fn rule(firewall: &Value, prefix: &str) -> Option<Rule> {
    let name = firewall["name"].as_str()?.strip_prefix(prefix)?.to_owned();
    let outbound = firewall["direction"] == "EGRESS";
    let allowed = &firewall["allowed"][0];
    let spelt = allowed["IPProtocol"].as_str()?;
    let named = NAMES.iter().find(|(name, _)| *name == spelt).map(|(_, number)| *number);
    let protocol = if spelt == "all" { ANY } else { named.or_else(|| spelt.parse().ok())? };
    let (tags, src_port) = described(firewall["description"].as_str().unwrap_or_default());
    Some(Rule {
        name,
        targets: texts(&firewall[if outbound { "destinationRanges" } else { "sourceRanges" }])
            .into_iter()
            .map(str::to_owned)
            .collect(),
        direction: if outbound { Direction::Outbound } else { Direction::Inbound },
        src_port,
        dst_port: allowed["ports"][0].as_str().and_then(|port| port.parse().ok()).unwrap_or(ANY),
        protocol,
        tags: tags.split(' ').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
    })
}

/// Fields that say whom a firewall is for, or from whom. Those from whom add to one another.
const ENDS: [&str; 6] = [
    "targetTags",
    "targetServiceAccounts",
    "sourceRanges",
    "sourceTags",
    "sourceServiceAccounts",
    "destinationRanges",
];

/// What makes one firewall into another. A field that is not said stays as it was, so all are said.
pub(super) fn patch(known: &Value, mut body: Value) -> Value {
    for field in ENDS {
        if body[field].is_null() && !texts(&known[field]).is_empty() {
            body[field] = json!([]);
        }
    }
    if known["disabled"] == true && body["disabled"] != true {
        body["disabled"] = json!(false);
    }
    body
}

/// Whether a firewall says the same as another, whatever else the cloud added to it.
pub(super) fn same(whole: &Value, body: &Value, prefix: &str) -> bool {
    match (rule(whole, prefix), rule(body, prefix)) {
        (Some(found), Some(wanted)) => {
            let targets = |of: &Rule| rule::targets(of).unwrap_or_default();
            let disabled = |wall: &Value| wall["disabled"] == true;
            let far_ranges =
                if found.direction == Direction::Inbound { "sourceRanges" } else { "destinationRanges" };
            let scope = |wall: &Value| {
                ENDS.map(|field| if field == far_ranges { "" } else { field })
                    .map(|field| texts(&wall[field]).into_iter().map(str::to_owned).collect::<BTreeSet<_>>())
            };
            // Without tags or ranges of its own a rule would be for everybody in the network.
            disabled(whole) == disabled(body)
                && scope(whole) == scope(body)
                && targets(&found) == targets(&wanted)
                && Rule { targets: vec![], ..found } == Rule { targets: vec![], ..wanted }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::plan::verdict::{Packet, matches};

    /// The firewall of a machine in the namespace `default`.
    fn of(permission: &Rule, machine: &str) -> Result<Option<Value>, Error> {
        let scope = Scope::Tags(vec![network_tag("default", machine)]);
        firewall(permission, &prefix("default", machine), &scope, "net")
    }

    fn sample() -> Rule {
        Rule {
            name: "web".into(),
            targets: vec!["10.0.0.5/32".into()],
            direction: Direction::Inbound,
            src_port: ANY,
            dst_port: 443,
            protocol: 6,
            tags: vec!["clients".into(), "10.0.0.5".into()],
        }
    }

    #[test]
    fn a_rule_goes_there_and_back() {
        let mut made = of(&sample(), "1a2b3c4d").unwrap().unwrap();
        assert_eq!(made["name"], "para-default-fw-1a2b3c4d-web");
        assert_eq!(made["targetTags"], json!(["para-default-instance-1a2b3c4d"]));
        assert_eq!(made["description"], "paraglider rule:[clients 10.0.0.5]");
        assert_eq!(rule(&made, &prefix("default", "1a2b3c4d")), Some(sample()));
        // The cloud answers with the name of a protocol.
        made["allowed"][0]["IPProtocol"] = json!("tcp");
        assert_eq!(rule(&made, &prefix("default", "1a2b3c4d")), Some(sample()));
        assert!(rule(&made, &prefix("other", "1a2b3c4d")).is_none());
    }

    #[test]
    fn what_others_added_to_a_firewall_is_taken_from_it() {
        let own = prefix("default", "1a2b3c4d");
        let made = of(&sample(), "1a2b3c4d").unwrap().unwrap();
        let mut known = made.clone();
        assert_eq!(patch(&known, made.clone()), made);
        known["sourceTags"] = json!(["anybody"]);
        known["destinationRanges"] = json!(["10.9.9.9/32"]);
        known["disabled"] = json!(true);
        assert!(!same(&known, &made, &own));
        let patched = patch(&known, made);
        assert_eq!((&patched["sourceTags"], &patched["destinationRanges"]), (&json!([]), &json!([])));
        assert!(patched["disabled"] == false && patched.get("targetServiceAccounts").is_none());
    }

    #[test]
    fn a_rule_is_for_tags_or_for_an_address() {
        let own = prefix("default", "1a2b3c4d");
        let scope = Scope::Address("10.1.0.0/32".into());
        let at = |permission: &Rule| firewall(permission, &own, &scope, "net").unwrap().unwrap();
        let made = at(&sample());
        assert_eq!(
            (&made["sourceRanges"], &made["destinationRanges"]),
            (&json!(["10.0.0.5/32"]), &json!(["10.1.0.0/32"]))
        );
        assert!(made.get("targetTags").is_none());
        assert_eq!(rule(&made, &own), Some(sample()));
        let out = Rule { direction: Direction::Outbound, ..sample() };
        assert_eq!(
            (&at(&out)["sourceRanges"], &at(&out)["destinationRanges"]),
            (&json!(["10.1.0.0/32"]), &json!(["10.0.0.5/32"]))
        );
        assert_eq!(rule(&at(&out), &own), Some(out));
        // Somebody made them rules for everybody in the network.
        let mut open = made.clone();
        open.as_object_mut().unwrap().remove("destinationRanges");
        assert!(same(&made, &made, &own) && !same(&open, &made, &own));
        let tagged = of(&sample(), "1a2b3c4d").unwrap().unwrap();
        let mut open = tagged.clone();
        open["targetTags"] = json!([]);
        assert!(same(&tagged, &tagged, &own) && !same(&open, &tagged, &own));
    }

    #[test]
    fn what_the_cloud_cannot_say_is_refused_and_nobody_is_not_everybody() {
        let make = |rule: Rule| of(&rule, "1a2b3c4d");
        assert!(make(Rule { targets: vec![], ..sample() }).unwrap().is_none());
        assert!(make(Rule { src_port: 22, ..sample() }).is_err());
        let back =
            Rule { src_port: 22, dst_port: ANY, direction: Direction::Outbound, tags: vec![], ..sample() };
        let made = make(back.clone()).unwrap().unwrap();
        assert_eq!((&made["disabled"], &made["direction"]), (&json!(true), &json!("EGRESS")), "{made}");
        assert_eq!(rule(&made, &prefix("default", "1a2b3c4d")), Some(back));
        let mut open = made.clone();
        open["disabled"] = json!(false);
        assert!(!same(&open, &made, &prefix("default", "1a2b3c4d")), "somebody enforces it");
        assert!(make(Rule { protocol: ANY, ..sample() }).is_err());
        assert!(make(Rule { name: "Web".into(), ..sample() }).is_err());
        let mixed = make(Rule { targets: vec!["10.0.0.5".into(), "2001:db8::5".into()], ..sample() });
        assert!(mixed.unwrap_err().to_string().contains("web.targets"));
        let new = make(Rule { targets: vec!["2001:db8::/64".into()], ..sample() }).unwrap().unwrap();
        assert_eq!(new["sourceRanges"], json!(["2001:db8::/64"]));
        let all = make(Rule { protocol: ANY, dst_port: ANY, direction: Direction::Outbound, ..sample() })
            .unwrap()
            .unwrap();
        assert_eq!(
            (&all["allowed"], &all["destinationRanges"]),
            (&json!([{ "IPProtocol": "all" }]), &json!(["10.0.0.5/32"]))
        );
        assert_eq!(short_id(&json!({ "id": "1234567890123456789" })).unwrap(), "112210f4");
    }

    /// The verdict of the cloud, by its documentation: rules that apply to the machine, the lowest number
    /// first and denial before permission; what no rule names is denied inwards and allowed outwards.
    fn passes(firewalls: &[Value], tag: &str, packet: &Packet, outbound: bool) -> bool {
        let peer = if outbound { packet.destination } else { packet.source };
        let applies = |wall: &&Value| {
            let tags = texts(&wall["targetTags"]);
            let way = wall["direction"] == if outbound { "EGRESS" } else { "INGRESS" };
            let ranges = texts(&wall[if outbound { "destinationRanges" } else { "sourceRanges" }]);
            // An empty list of ranges is everybody.
            let named = ranges.is_empty()
                || ranges.iter().any(|range| range.parse::<ipnet::IpNet>().unwrap().contains(&peer));
            let lists =
                ["allowed", "denied"].map(|list| wall[list].as_array().cloned().unwrap_or_default()).concat();
            let spoken = lists.iter().any(|entry| {
                let ports = texts(&entry["ports"]);
                let port = ports.is_empty() || ports.contains(&packet.destination_port.to_string().as_str());
                let protocol = &entry["IPProtocol"];
                (protocol == "all" || *protocol == packet.protocol.to_string().as_str()) && port
            });
            way && named && spoken && wall["disabled"] != true && (tags.is_empty() || tags.contains(&tag))
        };
        let rank = |wall: &&Value| (wall["priority"].as_i64().unwrap_or(1000), wall.get("denied").is_none());
        firewalls
            .iter()
            .filter(applies)
            .min_by_key(rank)
            .map_or(outbound, |wall| wall.get("allowed").is_some())
    }

    #[test]
    fn the_cloud_judges_packets_as_the_reference_does() {
        use rand::{Rng, SeedableRng};
        let effort = tarbet_testbed::effort();
        let mut dice = rand::rngs::StdRng::seed_from_u64(7);
        let address = |dice: &mut rand::rngs::StdRng| {
            Ipv4Addr::new(10, 0, dice.random_range(0..4), dice.random_range(0..8))
        };
        let (mut passed, mut judged, mut back) = (0, 0, 0);
        for _ in 0..200 * effort {
            let rules: Vec<Rule> = (0..dice.random_range(0..6))
                .map(|index| {
                    let protocol = [ANY, 1, 6, 17, 50][dice.random_range(0..5)];
                    let ported = matches!(protocol, 6 | 17) && dice.random();
                    let way_back = matches!(protocol, 6 | 17) && !ported && dice.random();
                    let targets = (0..dice.random_range(0..3)).map(|_| {
                        format!("{}/{}", address(&mut dice), [8, 22, 24, 30, 32][dice.random_range(0..5)])
                    });
                    Rule {
                        name: format!("r{index}"),
                        targets: targets.collect(),
                        direction: if dice.random() { Direction::Inbound } else { Direction::Outbound },
                        src_port: if way_back { [0, 22, 80][dice.random_range(0..3)] } else { ANY },
                        dst_port: if ported { [22, 80, 443][dice.random_range(0..3)] } else { ANY },
                        protocol,
                        tags: vec!["t".into()],
                    }
                })
                .collect();
            let mut walls: Vec<Value> =
                rules.iter().filter_map(|rule| of(rule, "1a2b3c4d").unwrap()).collect();
            walls.push(json!({
                "direction": "EGRESS", "priority": 65534, "denied": [{ "IPProtocol": "all" }],
                "destinationRanges": ["0.0.0.0/0"],
            }));
            // A neighbour's rule changes nothing.
            let open = Rule { targets: vec!["0.0.0.0/0".into()], protocol: ANY, dst_port: ANY, ..sample() };
            walls.extend(of(&open, "ffffffff").unwrap());
            for _ in 0..500 {
                let outbound = dice.random();
                let packet = Packet {
                    source: address(&mut dice).into(),
                    destination: address(&mut dice).into(),
                    protocol: [1, 6, 17, 50, 47][dice.random_range(0..5)],
                    source_port: [0, 22, 80, 40000][dice.random_range(0..4)],
                    destination_port: [22, 80, 443, 8080][dice.random_range(0..4)],
                };
                let (peer, direction) = if outbound {
                    (packet.destination, Direction::Outbound)
                } else {
                    (packet.source, Direction::Inbound)
                };
                let permits = |rule: &&Rule| rule.direction == direction && matches(rule, peer, &packet);
                // Of a flow only the first packet is judged: the way back begins none, and its replies pass by
                // themselves.
                let begins = |rule: &&Rule| !rule::is_way_back(rule);
                let reference = rules.iter().filter(begins).any(|rule| permits(&rule));
                let tag = network_tag("default", "1a2b3c4d");
                assert_eq!(passes(&walls, &tag, &packet, outbound), reference, "{packet:?} {rules:?}");
                judged += 1;
                passed += usize::from(reference);
                back += usize::from(!reference && rules.iter().any(|rule| permits(&rule) && !begins(&rule)));
            }
        }
        assert!(passed * 20 > judged && passed < judged, "{passed} of {judged} is no test");
        assert!(back * 1000 > judged, "ways back alone named {back} of {judged}");
    }
}
