//! Reads the filter of a network as nft does and judges packets by it, to hold it against the reference.
//! A word that it does not know is a failure: nothing is skipped.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rand::{Rng, SeedableRng};

use super::{Machine, network};
use crate::model::{ANY, Direction, Rule};
use crate::plan::rule;
use crate::plan::verdict::{Endpoint, Packet, Policy};

#[derive(Debug, Clone, PartialEq)]
enum Word {
    Plain(String),
    Set(Vec<String>),
}

#[derive(Default)]
struct Chain {
    /// What happens at the end of a chain that the kernel calls; nothing for one that only others name.
    policy: Option<bool>,
    rules: Vec<Vec<Word>>,
}

/// The forward hook of the table `inet tarbet`.
#[derive(Default)]
struct Filter {
    chains: HashMap<String, Chain>,
    maps: HashMap<String, HashMap<IpAddr, Vec<Word>>>,
}

/// What a rule comes to.
enum Said {
    Nothing,
    Verdict(bool),
    Goto(String),
}

fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (word, more) = if let Some(inside) = rest.strip_prefix('{') {
            let (inside, more) = inside.split_once('}').expect("a set ends");
            (Word::Set(inside.split(',').map(|item| item.trim().to_owned()).collect()), more)
        } else if let Some(inside) = rest.strip_prefix('"') {
            let (inside, more) = inside.split_once('"').expect("a text ends");
            (Word::Plain(inside.to_owned()), more)
        } else {
            let (word, more) = rest.split_once(' ').unwrap_or((rest, ""));
            (Word::Plain(word.to_owned()), more)
        };
        words.push(word);
        rest = more.trim_start();
    }
    words
}

impl Filter {
    fn read(text: &str) -> Self {
        let mut filter = Self::default();
        for line in text.lines() {
            let parts: Vec<&str> = line.splitn(6, ' ').collect();
            match parts.as_slice() {
                ["add" | "delete", "table", ..] => {
                    if parts[2..] == ["inet", "tarbet"] {
                        filter = Self::default();
                    }
                }
                // Who a machine may say it is is no matter of rules.
                [_, _, "bridge", ..] => {}
                ["add", "map", "inet", "tarbet", name, _] => {
                    filter.maps.insert((*name).to_owned(), HashMap::new());
                }
                ["add", "chain", "inet", "tarbet", name, kind @ ..] => {
                    let chain = filter.chains.entry((*name).to_owned()).or_default();
                    if let [kind] = kind {
                        chain.policy = Some(!kind.contains("policy drop"));
                    }
                }
                ["flush", "chain", "inet", "tarbet", name] => {
                    filter.chains.get_mut(*name).unwrap().rules.clear();
                }
                ["add", "rule", "inet", "tarbet", name, rule] => {
                    filter.chains.get_mut(*name).unwrap().rules.push(words(rule));
                }
                ["add", "element", "inet", "tarbet", name, element] => {
                    let inside = element.trim_matches(['{', '}', ' ']);
                    let (key, verdict) = inside.split_once(" : ").unwrap();
                    let map = filter.maps.get_mut(*name).unwrap();
                    map.insert(key.parse().unwrap(), words(verdict));
                }
                _ => panic!("what is `{line}`?"),
            }
        }
        filter
    }

    /// Whether the first packet of a flow is let through to where it goes.
    fn forwards(&self, packet: &Packet, from: &str) -> bool {
        let mut chain = "fwd0".to_owned();
        let base = &self.chains[&chain];
        'chain: loop {
            for rule in &self.chains[&chain].rules {
                match self.say(rule, packet, from) {
                    Said::Nothing => {}
                    Said::Verdict(passes) => return passes,
                    Said::Goto(next) => {
                        chain = next;
                        continue 'chain;
                    }
                }
            }
            return base.policy.expect("the kernel calls it");
        }
    }

    fn say(&self, rule: &[Word], packet: &Packet, from: &str) -> Said {
        let plain: Vec<&str> = rule
            .iter()
            .map(|word| match word {
                Word::Plain(text) => text.as_str(),
                Word::Set(_) => "{}",
            })
            .collect();
        let set = |at: usize| match &rule[at] {
            Word::Set(items) => items.clone(),
            Word::Plain(item) => vec![item.clone()],
        };
        let has_ports = rule::has_ports(i32::from(packet.protocol));
        let mut at = 0;
        while at < rule.len() {
            let (holds, used) = match &plain[at..] {
                [family @ ("ip" | "ip6"), field @ ("saddr" | "daddr"), rest @ ..] => {
                    let address = if *field == "saddr" { packet.source } else { packet.destination };
                    let same = address.is_ipv4() == (*family == "ip");
                    if let ["vmap", map, ..] = rest {
                        let found = self.maps[map.trim_start_matches('@')].get(&address);
                        return found
                            .filter(|_| same)
                            .map_or(Said::Nothing, |verdict| self.say(verdict, packet, from));
                    }
                    let within = |item: &String| item.parse::<IpNet>().unwrap().contains(&address);
                    (same && set(at + 2).iter().any(within), 3)
                }
                // Packets of neighbours and replies are not tried here.
                ["ip6", "hoplimit", "255", ..]
                | ["icmpv6", "type", ..]
                | ["ct", "direction", "reply", ..] => (false, 3),
                ["ct", "state", states, ..] => (states.split(',').any(|state| state == "new"), 3),
                ["iifname", name, ..] => (*name == from, 2),
                ["meta", "l4proto", ..] => (set(at + 2).contains(&packet.protocol.to_string()), 3),
                ["th", end @ ("sport" | "dport"), port, ..] => {
                    assert!(has_ports, "the ports of a packet that has none are read: {plain:?}");
                    let own = if *end == "sport" { packet.source_port } else { packet.destination_port };
                    (port.parse::<u16>().unwrap() == own, 3)
                }
                ["counter", ..] => (true, 1),
                ["comment", _, ..] => (true, 2),
                ["accept", ..] => return Said::Verdict(true),
                ["drop", ..] => return Said::Verdict(false),
                ["goto", chain, ..] => return Said::Goto((*chain).to_owned()),
                other => panic!("what is {other:?}?"),
            };
            if !holds {
                return Said::Nothing;
            }
            at += used;
        }
        Said::Nothing
    }
}

type Dice = rand::rngs::StdRng;

fn is_own(address: IpAddr) -> bool {
    ["10.0.0.0/16", "fd00::/32"].iter().any(|net| net.parse::<IpNet>().unwrap().contains(&address))
}

fn pick<T: Copy>(dice: &mut Dice, from: &[T]) -> T {
    from[dice.random_range(0..from.len())]
}

/// Few addresses, so that rules and packets meet: the first hosts of three networks, in both families.
fn address(dice: &mut Dice) -> IpAddr {
    let (net, host) = (dice.random_range(0..3_u8), dice.random_range(0..8_u8));
    if dice.random() {
        Ipv4Addr::new(10, net, 0, host).into()
    } else {
        Ipv6Addr::new(0xfd00, u16::from(net), 0, 0, 0, 0, 0, u16::from(host)).into()
    }
}

fn some_rule(dice: &mut Dice, index: usize) -> Rule {
    let protocol = pick(dice, &[ANY, ANY, 1, 6, 17, 50, 132]);
    let port = |dice: &mut Dice| {
        if rule::has_ports(protocol) { pick(dice, &[ANY, ANY, ANY, 22, 80]) } else { pick(dice, &[ANY, 0]) }
    };
    let targets = (0..dice.random_range(0..5)).map(|_| {
        let address = address(dice);
        let length = if address.is_ipv4() {
            pick(dice, &[8, 16, 16, 29, 32])
        } else {
            pick(dice, &[16, 32, 32, 126, 128])
        };
        format!("{address}/{length}")
    });
    let targets = targets.collect();
    Rule {
        name: format!("r{index}"),
        targets,
        direction: if dice.random() { Direction::Inbound } else { Direction::Outbound },
        src_port: port(dice),
        dst_port: port(dice),
        protocol,
        tags: vec!["t".into()],
    }
}

#[test]
fn the_filter_judges_packets_as_the_reference_does() {
    const SETS: usize = 200;
    const PACKETS: usize = 500;
    let mut dice = Dice::seed_from_u64(11);
    let (mut passed, mut judged) = (0, 0);
    for _ in 0..SETS * tarbet_testbed::effort() {
        // Three machines of the network 10.0.0.0/16, each with rules of its own.
        let machines: Vec<Machine> = (4..7_u8)
            .map(|host| {
                let rules: BTreeMap<String, Rule> = (0..dice.random_range(0..10))
                    .map(|index| some_rule(&mut dice, index))
                    .map(|rule| (rule.name.clone(), rule))
                    .collect();
                rule::check_request(&rules.values().cloned().collect::<Vec<_>>()).unwrap();
                let ip6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host));
                Machine { ip: Ipv4Addr::new(10, 0, 0, host), ip6: Some(ip6), port: u32::from(host), rules }
            })
            .collect();
        let filter = Filter::read(&network(machines.iter()));
        let mut policy = Policy::default();
        for machine in &machines {
            let rules: Vec<Rule> = machine.rules.values().cloned().collect();
            let both = [Some(IpAddr::V4(machine.ip)), machine.ip6.map(IpAddr::V6)];
            for address in both.into_iter().flatten() {
                policy.insert(address, Endpoint { name: address.to_string(), rules: rules.clone() });
            }
        }
        for _ in 0..PACKETS {
            let (source, destination) = loop {
                let (source, destination) = (address(&mut dice), address(&mut dice));
                // What the network's own addresses send comes from machines: the bridge drops everything else.
                let nobody = is_own(source) && !policy.endpoints().contains_key(&source);
                let ours = [source, destination].iter().any(|end| policy.endpoints().contains_key(end));
                // One in eight is between others, and none of ours.
                if source.is_ipv4() == destination.is_ipv4() && !nobody && (ours || dice.random_ratio(1, 8)) {
                    break (source, destination);
                }
            };
            let packet = Packet {
                source,
                destination,
                protocol: pick(&mut dice, &[1, 6, 17, 47, 50, 132]),
                source_port: pick(&mut dice, &[22, 80, 40000]),
                destination_port: pick(&mut dice, &[22, 80, 8080]),
            };
            let from = if is_own(source) { "br0" } else { "up0" };
            let reference = policy.judge(&packet).allowed;
            assert_eq!(filter.forwards(&packet, from), reference, "{packet:?} {machines:?}");
            judged += 1;
            passed += usize::from(reference);
        }
    }
    assert!(passed * 50 > judged && passed * 2 < judged, "{passed} of {judged} is no test");
    tarbet_testbed::verified(
        "a packet is judged alike by the local cloud's filter and by the reference",
        judged,
    );
}
