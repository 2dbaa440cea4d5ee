//! Rules as the rules of a security group: one for each target, and nothing else.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::{Ibm, is_there, text};
use crate::clouds::rest::Call;
use crate::error::Error;
use crate::model::{ANY, Direction, Rule};
use crate::plan::{rule, target};

/// What IBM called `all` until the API of 2025-12-09, and what the original means by it. The newer `any` is
/// wider, and IBM warns that rules with it break clusters of the same network.
const ALL: &str = "icmp_tcp_udp";
const PROTOCOLS: [(i32, &str); 4] = [(ANY, ALL), (1, "icmp"), (6, "tcp"), (17, "udp")];

/// What a security group holds for a rule; nothing for the way back, because groups let replies pass and
/// know no source ports.
pub(super) fn compile(permission: &Rule) -> Result<Vec<Value>, Error> {
    let wrong = |field: &str, message: &str| Error::invalid(format!("{}.{field}", permission.name), message);
    let protocol = PROTOCOLS.iter().find(|(number, _)| *number == permission.protocol).map(|(_, name)| *name);
    let protocol = protocol.ok_or_else(|| wrong("protocol", "this cloud filters -1, 1, 6 and 17 only"))?;
    let way_back = rule::is_way_back(permission);
    if permission.src_port > 0 && !way_back {
        return Err(wrong("src_port", "this cloud's security groups know no source ports; use -1"));
    }
    let ported = permission.dst_port != ANY && matches!(permission.protocol, 6 | 17);
    if permission.dst_port > 0 && !ported {
        return Err(wrong("protocol", "this cloud wants a protocol with a port; name 6 or 17"));
    }
    let direction = match permission.direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    let targets = rule::targets(permission)?;
    if targets.iter().any(|target| target.addr().is_ipv6()) {
        return Err(wrong("targets", "this cloud's security groups are for IPv4"));
    }
    if way_back {
        return Ok(Vec::new());
    }
    Ok(targets
        .iter()
        .map(|target| {
            let mut made = json!({
                "direction": direction, "protocol": protocol, "ip_version": "ipv4",
                "remote": { "cidr_block": target.to_string() },
            });
            if ported {
                made["port_min"] = json!(permission.dst_port);
                made["port_max"] = json!(permission.dst_port);
            }
            made
        })
        .collect())
}

/// What a rule of a group permits, named by its contents; nothing if no rule can say it.
pub(super) fn read(made: &Value) -> Option<Rule> {
    let protocol = match text(made, "protocol") {
        "all" | "any" => ANY,
        word => PROTOCOLS.iter().find(|(_, name)| *name == word).map(|(number, _)| *number)?,
    };
    let remote = made["remote"]["cidr_block"].as_str().or_else(|| made["remote"]["address"].as_str())?;
    let dst_port = match (made["port_min"].as_i64(), made["port_max"].as_i64()) {
        (None, None) | (Some(1), Some(65535)) => ANY,
        (Some(least), Some(most)) if least == most => i32::try_from(least).ok()?,
        _ => return None,
    };
    let direction = match text(made, "direction") {
        "inbound" => Direction::Inbound,
        "outbound" => Direction::Outbound,
        _ => return None,
    };
    let targets = vec![target::parse(remote)?.to_string()];
    let rule = Rule { targets, direction, src_port: ANY, dst_port, protocol, ..Rule::default() };
    Some(Rule { name: rule::name_of_contents(&rule), ..rule })
}

/// What makes two of a group's rules the same, however the cloud tells them.
fn key(made: &Value) -> String {
    let remote = &made["remote"];
    let remote = remote["cidr_block"].as_str().map(str::to_owned);
    let remote =
        remote.or_else(|| Some(format!("{}/32", made["remote"]["address"].as_str()?))).unwrap_or_default();
    let port = |field: &str| made[field].as_u64().map_or_else(String::new, |port| port.to_string());
    let protocol = match text(made, "protocol") {
        "all" => ALL,
        word => word,
    };
    format!("{} {protocol} {} {} {remote}", text(made, "direction"), port("port_min"), port("port_max"))
}

/// What to add and what to remove, so that a group holds what it should, each once.
pub(super) fn difference(wanted: &[Value], found: &[Value]) -> (Vec<Value>, Vec<String>) {
    let mut missing: BTreeMap<String, Value> = wanted.iter().map(|made| (key(made), made.clone())).collect();
    let mut surplus = Vec::new();
    for made in found {
        if missing.remove(&key(made)).is_none() {
            surplus.push(text(made, "id").to_owned());
        }
    }
    (missing.into_values().collect(), surplus)
}

impl Ibm {
    /// The rules of a machine, as they were last wanted; nothing if none ever were.
    pub(super) async fn kept(&self, namespace: &str, id: &str) -> Result<Option<Vec<Rule>>, Error> {
        match self.controller.get_value(namespace, &self.name, &format!("rules-{id}")).await {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| Error::Internal(format!("the rules of {id} cannot be read: {error}"))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The rules that others put into a group, under the names that the original keeps by their ids, else by
    /// their contents.
    pub(super) async fn found(&self, namespace: &str, region: &str, group: &str) -> Result<Vec<Rule>, Error> {
        let path = format!("security_groups/{group}/rules");
        let made = self.get(region, &path).await?.unwrap_or_default();
        let mut rules: Vec<Rule> = Vec::new();
        for made in made["rules"].as_array().into_iter().flatten() {
            let Some(mut rule) = read(made) else {
                let message = format!("the security group {group} holds what no rule can say: {made}");
                return Err(Error::Unsupported(message));
            };
            match self.controller.get_value(namespace, &self.name, text(made, "id")).await {
                Ok(name) if rules.iter().all(|known| known.name != name) => rule.name = name,
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            rules.push(rule);
        }
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rules)
    }

    /// Writes down what is wanted, then makes it so.
    pub(super) async fn keep(&self, namespace: &str, id: &str, rules: &[Rule]) -> Result<(), Error> {
        let text = serde_json::to_string(rules).map_err(|error| Error::Internal(error.to_string()))?;
        self.controller.set_value(namespace, &self.name, &format!("rules-{id}"), &text).await
    }

    /// Brings a group in line with rules; how many differences there were. Only counts if told so.
    pub(super) async fn align(
        &self,
        region: &str,
        group: &str,
        rules: &[Rule],
        repair: bool,
    ) -> Result<usize, Error> {
        let wanted = rules.iter().map(compile).collect::<Result<Vec<_>, _>>()?.concat();
        let path = format!("security_groups/{group}/rules");
        let found = self.get(region, &path).await?.unwrap_or_default();
        let found = found["rules"].as_array().cloned().unwrap_or_default();
        let (missing, surplus) = difference(&wanted, &found);
        let count = missing.len() + surplus.len();
        if !repair {
            return Ok(count);
        }
        for made in missing {
            let call = Call::new(Method::POST, self.vpc_url(region, &path)?).json(made);
            let answer = self.rest.call(&call).await?;
            if !answer.status.is_success() && !is_there(&answer) {
                return Err(self.rest.refusal(&call, &answer));
            }
        }
        for id in surplus {
            self.remove(self.vpc_url(region, &format!("{path}/{id}"))?).await?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::plan::verdict::{Packet, matches};
    use rand::{Rng, SeedableRng};

    fn sample() -> Rule {
        Rule {
            name: "web".into(),
            targets: vec!["10.0.0.5".into(), "10.1.0.0/16".into()],
            direction: Direction::Inbound,
            src_port: ANY,
            dst_port: 443,
            protocol: 6,
            tags: vec!["t".into()],
        }
    }

    #[test]
    fn groups_hold_each_once_and_what_cannot_be_said_is_refused() {
        let wanted = compile(&sample()).unwrap();
        assert_eq!(wanted.len(), 2);
        assert_eq!(difference(&wanted, &wanted), (vec![], vec![]));
        let told = json!({ "id": "a", "direction": "inbound", "protocol": "tcp", "port_min": 443, "port_max": 443, "remote": { "address": "10.0.0.5" } });
        let doubled = [told.clone(), told];
        let (missing, surplus) = difference(&wanted, &doubled);
        assert_eq!((missing.len(), surplus), (1, vec!["a".to_owned()]));
        assert_eq!(compile(&Rule { src_port: 22, dst_port: ANY, ..sample() }).unwrap(), Vec::<Value>::new());
        for bad in [
            Rule { src_port: 22, ..sample() },
            Rule { protocol: 50, dst_port: ANY, ..sample() },
            Rule { protocol: ANY, ..sample() },
            Rule { targets: vec!["fd00::1".into()], ..sample() },
        ] {
            assert!(compile(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_others_put_into_a_group_is_read_or_refused() {
        for made in compile(&sample()).unwrap() {
            let read = read(&made).unwrap();
            assert_eq!((read.dst_port, read.protocol, compile(&read).unwrap()), (443, 6, vec![made]));
        }
        for word in ["all", "icmp_tcp_udp", "any"] {
            let all =
                json!({ "direction": "outbound", "protocol": word, "remote": { "address": "10.0.0.5" } });
            let rule = read(&all).unwrap();
            assert_eq!((rule.protocol, &*rule.targets[0]), (ANY, "10.0.0.5/32"));
            // What the original wrote is left as it is; what lets more pass than a rule can say is not.
            let changed = difference(&compile(&rule).unwrap(), std::slice::from_ref(&all));
            assert_eq!(
                (changed.0.is_empty(), changed.1.is_empty()),
                (word != "any", word != "any"),
                "{word}"
            );
        }
        for bad in [
            json!({ "direction": "inbound", "protocol": "tcp", "port_min": 1, "port_max": 9, "remote": { "cidr_block": "10.0.0.0/8" } }),
            json!({ "direction": "inbound", "protocol": "all", "remote": { "id": "another-group" } }),
        ] {
            assert!(read(&bad).is_none(), "{bad}");
        }
    }

    /// The verdict of the cloud, by its documentation: what no rule names is denied.
    fn passes(group: &[Value], packet: &Packet, outbound: bool) -> bool {
        let peer = if outbound { packet.destination } else { packet.source };
        group.iter().any(|made| {
            let range: ipnet::IpNet = made["remote"]["cidr_block"].as_str().unwrap().parse().unwrap();
            let protocol = match made["protocol"].as_str().unwrap() {
                "icmp_tcp_udp" => matches!(packet.protocol, 1 | 6 | 17),
                "icmp" => packet.protocol == 1,
                "tcp" => packet.protocol == 6,
                "udp" => packet.protocol == 17,
                other => panic!("{other}"),
            };
            let port = u64::from(packet.destination_port);
            let ports = made["port_min"].as_u64().is_none_or(|min| min <= port)
                && made["port_max"].as_u64().is_none_or(|max| port <= max);
            made["direction"] == if outbound { "outbound" } else { "inbound" }
                && range.contains(&peer)
                && protocol
                && ports
        })
    }

    #[test]
    fn the_cloud_judges_packets_as_the_reference_does() {
        let effort = tarbet_testbed::effort();
        let mut dice = rand::rngs::StdRng::seed_from_u64(11);
        let address = |dice: &mut rand::rngs::StdRng| {
            Ipv4Addr::new(10, 0, dice.random_range(0..4), dice.random_range(0..8))
        };
        let (mut passed, mut judged, mut back) = (0, 0, 0);
        for _ in 0..200 * effort {
            let rules: Vec<Rule> = (0..dice.random_range(0..6))
                .map(|index| {
                    let protocol = [ANY, 1, 6, 17][dice.random_range(0..4)];
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
                        ..sample()
                    }
                })
                .collect();
            let group = rules.iter().flat_map(|rule| compile(rule).unwrap()).collect::<Vec<_>>();
            for _ in 0..500 {
                let outbound = dice.random();
                let packet = Packet {
                    source: address(&mut dice).into(),
                    destination: address(&mut dice).into(),
                    protocol: [1, 6, 17, 50][dice.random_range(0..4)],
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
                // themselves. Protocols beside ICMP, TCP and UDP are never let through.
                let begins = |rule: &&Rule| !rule::is_way_back(rule);
                let reference =
                    packet.protocol != 50 && rules.iter().filter(begins).any(|rule| permits(&rule));
                assert_eq!(passes(&group, &packet, outbound), reference, "{packet:?} {rules:?}");
                judged += 1;
                passed += usize::from(reference);
                back += usize::from(!reference && rules.iter().any(|rule| permits(&rule) && !begins(&rule)));
            }
        }
        assert!(passed * 20 > judged && passed < judged, "{passed} of {judged} is no test");
        assert!(back * 1000 > judged, "ways back alone named {back} of {judged}");
    }
}
