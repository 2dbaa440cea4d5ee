//! Permit-list rules as rules of a network security group, and back.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::names::PREFIX;
use crate::error::Error;
use crate::model::{ANY, Direction, Rule};
use crate::plan::rule::{self, Mistake};
use crate::plan::target;

/// Priorities that permissions take; lower wins.
const PRIORITIES: std::ops::RangeInclusive<u64> = 100..=4095;
/// Where what a cluster's nodes and pods say to each other is allowed, if nothing stands there.
const LOCAL_PRIORITY: u64 = 4095;
/// Where everything is denied.
const DENY_PRIORITY: u64 = 4096;
/// Azure's longest name of a rule.
const NAME_MAX: usize = 80;
/// Azure's longest description of a rule.
const DESCRIPTION_MAX: usize = 140;
/// A rule whose tags have no members yet permits nothing: Azure wants some prefix, and this one is
/// never an end of a packet.
const NOBODY: &str = "255.255.255.255/32";
const PROTOCOLS: &[(i32, &str)] =
    &[(ANY, "*"), (1, "Icmp"), (6, "Tcp"), (17, "Udp"), (50, "Esp"), (51, "Ah")];

/// The name of a permission in its group.
pub(super) fn name(rule: &str) -> String {
    format!("{PREFIX}-{rule}")
}

fn deny_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "paraglider-deny-all-inbound",
        Direction::Outbound => "paraglider-deny-all-outbound",
    }
}

fn local_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "paraglider-allow-inbound-localsubnet",
        Direction::Outbound => "paraglider-allow-outbound-localsubnet",
    }
}

/// Whether a rule is there with the resource, and is no permission of anybody.
fn is_built_in(name: &str) -> bool {
    [Direction::Inbound, Direction::Outbound]
        .into_iter()
        .any(|direction| name == deny_name(direction) || name == local_name(direction))
}

/// The rule that denies everything in one direction.
pub(super) fn deny(direction: Direction) -> Value {
    json!({
        "name": deny_name(direction),
        "properties": {
            "access": "Deny",
            "description": "paraglider deny rule",
            "destinationAddressPrefix": "*",
            "destinationPortRange": "*",
            "direction": word(direction),
            "priority": DENY_PRIORITY,
            "protocol": "*",
            "sourceAddressPrefix": "*",
            "sourcePortRange": "*",
        },
    })
}

/// The two rules that a machine's group begins with.
pub(super) fn deny_all() -> [Value; 2] {
    [Direction::Inbound, Direction::Outbound].map(deny)
}

/// The two rules by which nodes and pods of one subnet reach each other.
pub(super) fn local(subnet: IpNet) -> [Value; 2] {
    [Direction::Inbound, Direction::Outbound].map(|direction| {
        let (source, destination) = match direction {
            Direction::Inbound => (subnet.to_string(), "*".to_owned()),
            Direction::Outbound => ("*".to_owned(), subnet.to_string()),
        };
        json!({
            "name": local_name(direction),
            "properties": {
                "access": "Allow",
                "description": "paraglider local subnet rule",
                "destinationAddressPrefix": destination,
                "destinationPortRange": "*",
                "direction": word(direction),
                "priority": LOCAL_PRIORITY,
                "protocol": "*",
                "sourceAddressPrefix": source,
                "sourcePortRange": "*",
            },
        })
    })
}

/// The last priority for a permission that nothing of its direction has.
pub(super) fn last_free(existing: &[Value], direction: &Value) -> Option<u64> {
    let same = existing.iter().filter(|found| found["properties"]["direction"] == *direction);
    let taken: BTreeSet<u64> = same.filter_map(|found| found["properties"]["priority"].as_u64()).collect();
    PRIORITIES.clone().rev().find(|priority| !taken.contains(priority))
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "Inbound",
        Direction::Outbound => "Outbound",
    }
}

/// Every reason Azure would have to refuse these rules.
pub(super) fn check(rules: &[Rule]) -> Result<(), Error> {
    let mut mistakes = rule::check_call(rules).err().unwrap_or_default();
    let mut wrong = |index: usize, field: &str, message: String| {
        mistakes.push(Mistake { field: format!("rules[{index}].{field}"), message });
    };
    for (index, rule) in rules.iter().enumerate() {
        let name = name(&rule.name);
        if name.len() > NAME_MAX || !name.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            let most = NAME_MAX - PREFIX.len() - 1;
            wrong(index, "name", format!("Azure takes at most {most} characters, the last no `-` or `.`"));
        } else if is_built_in(&name) {
            wrong(index, "name", format!("`{}` is a rule that resources begin with", rule.name));
        }
        for (field, port) in [("src_port", rule.src_port), ("dst_port", rule.dst_port)] {
            if rule.protocol == ANY && port == 0 {
                wrong(index, field, "port 0 of any protocol means nothing in Azure; use -1".into());
            }
        }
        if !PROTOCOLS.iter().any(|(number, _)| *number == rule.protocol) {
            wrong(index, "protocol", format!("Azure does not filter protocol {}", rule.protocol));
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Error::Invalid(mistakes)) }
}

/// What a description says of a rule's tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tags {
    /// All of them.
    Here(Vec<String>),
    /// They are too long for Azure and kept with the orchestrator.
    Kept,
}

/// The description that keeps the tags; nothing if they are too long for it.
pub(super) fn description(tags: &[String]) -> Option<String> {
    let text = format!("{PREFIX} rule:[{}]", tags.join(" "));
    (text.chars().count() <= DESCRIPTION_MAX).then_some(text)
}

const ELSEWHERE: &str = "paraglider rule: tags kept by the orchestrator";

fn read_description(text: &str) -> Tags {
    if text == ELSEWHERE {
        return Tags::Kept;
    }
    let inner = text.split_once(":[").and_then(|(_, rest)| rest.strip_suffix(']')).unwrap_or_default();
    Tags::Here(inner.split_whitespace().map(str::to_owned).collect())
}

/// A permission for the resource at `local`, as Azure wants it.
pub(super) fn compile(rule: &Rule, local: IpNet, priority: u64) -> Result<Value, Error> {
    let targets = rule::targets(rule)?;
    // A packet has both ends in one family, so such a permission could never let anything pass.
    if let Some(other) = targets.iter().find(|target| target.addr().is_ipv4() != local.addr().is_ipv4()) {
        let message = format!("{other} and the resource, {}, are of different families", local.addr());
        return Err(Error::invalid(format!("{}.targets", rule.name), message));
    }
    let mut targets: Vec<String> = targets.into_iter().map(spell).collect();
    let access = if targets.is_empty() { "Deny" } else { "Allow" };
    if targets.is_empty() {
        targets.push(NOBODY.into());
    }
    let protocol = PROTOCOLS.iter().find(|(number, _)| *number == rule.protocol).map(|(_, word)| *word);
    let protocol = protocol
        .ok_or_else(|| Error::invalid("protocol", format!("Azure does not filter {}", rule.protocol)))?;
    let port = |port: i32| {
        if port == ANY || !rule::has_ports(rule.protocol) { "*".to_owned() } else { port.to_string() }
    };
    let mut properties = json!({
        "access": access,
        "description": description(&rule.tags).unwrap_or_else(|| ELSEWHERE.into()),
        "destinationPortRange": port(rule.dst_port),
        "direction": word(rule.direction),
        "priority": priority,
        "protocol": protocol,
        "sourcePortRange": port(rule.src_port),
    });
    let (here, there) = match rule.direction {
        Direction::Inbound => ("destinationAddressPrefix", "sourceAddressPrefixes"),
        Direction::Outbound => ("sourceAddressPrefix", "destinationAddressPrefixes"),
    };
    properties[here] = json!(spell(local));
    properties[there] = json!(targets);
    Ok(json!({ "properties": properties }))
}

/// A rule of a group that is a permission of ours.
pub(super) fn read(found: &Value) -> Option<(Rule, Tags)> {
    let name = found["name"].as_str()?;
    if is_built_in(name) {
        return None;
    }
    let name = name.strip_prefix(PREFIX)?.strip_prefix('-')?;
    let properties = &found["properties"];
    let direction = match properties["direction"].as_str()? {
        "Inbound" => Direction::Inbound,
        _ => Direction::Outbound,
    };
    let far = if direction == Direction::Inbound { "source" } else { "destination" };
    let protocol = properties["protocol"].as_str()?;
    let protocol = PROTOCOLS.iter().find(|(_, word)| word.eq_ignore_ascii_case(protocol))?.0;
    let port = |field: &str| properties[field].as_str().and_then(|text| text.parse().ok()).unwrap_or(ANY);
    let targets = prefixes(properties, far).into_iter().filter(|prefix| prefix != NOBODY).collect();
    let tags = read_description(properties["description"].as_str().unwrap_or_default());
    let rule = Rule {
        name: name.into(),
        targets,
        direction,
        src_port: port("sourcePortRange"),
        dst_port: port("destinationPortRange"),
        protocol,
        tags: if let Tags::Here(tags) = &tags { tags.clone() } else { Vec::new() },
    };
    Some((rule, tags))
}

/// Whether a rule that is there says just what is wanted.
pub(super) fn is_as(found: &Value, wanted: &Value) -> bool {
    let (found, wanted) = (&found["properties"], &wanted["properties"]);
    let ends = ["source", "destination"];
    ends.iter().all(|end| {
        let set = |rule: &Value| prefixes(rule, end).into_iter().collect::<BTreeSet<_>>();
        set(found) == set(wanted)
    }) && [
        "access",
        "description",
        "direction",
        "priority",
        "protocol",
        "sourcePortRange",
        "destinationPortRange",
    ]
    .iter()
    .all(|field| found[*field] == wanted[*field])
}

/// The prefixes at one end of a rule: Azure gives one of them alone, or a list.
pub(super) fn prefixes(properties: &Value, end: &str) -> Vec<String> {
    let one = properties[format!("{end}AddressPrefix")].as_str();
    let many = properties[format!("{end}AddressPrefixes")].as_array();
    let many = many.into_iter().flatten().filter_map(Value::as_str);
    one.into_iter().chain(many).map(str::to_owned).collect()
}

/// The end of a permission that is its resource's.
pub(super) fn near(found: &Value) -> Option<IpNet> {
    let properties = &found["properties"];
    let end = if properties["direction"] == "Inbound" { "destination" } else { "source" };
    target::parse(prefixes(properties, end).first()?)
}

/// Whether this is a permission of ours that has a public target.
pub(super) fn is_public(found: &Value) -> bool {
    let public = |text: &String| target::parse(text).is_none_or(|net| !target::is_private(&net));
    read(found).is_some_and(|(rule, _)| rule.targets.iter().any(public))
}

/// Whether a rule of a packet filter is nobody's permission here, nor one of those that the filter begins with.
pub(super) fn is_stranger(found: &Value, built_in: &[Value]) -> bool {
    let name = found["name"].as_str().unwrap_or_default();
    read(found).is_none() && !built_in.iter().any(|own| own["name"].as_str() == Some(name))
}

/// Whether a rule is one that was put there with the resource.
pub(super) fn is_built_in_rule(found: &Value) -> bool {
    found["name"].as_str().is_some_and(is_built_in)
}

/// Whether a rule denies all that comes its way.
pub(super) fn denies_all(found: &Value) -> bool {
    let properties = &found["properties"];
    let ends = ["sourceAddressPrefix", "destinationAddressPrefix", "sourcePortRange", "destinationPortRange"];
    properties["access"] == "Deny"
        && properties["protocol"] == "*"
        && ends.iter().all(|field| properties[*field] == "*")
}

/// A rule in words.
pub(super) fn said(found: &Value) -> String {
    let properties = &found["properties"];
    let text = |field: &str| properties[field].as_str().unwrap_or_default().to_owned();
    let ends = |end: &str| prefixes(properties, end).join(" ");
    let port = match text("destinationPortRange") {
        one if one.is_empty() => "several ports".to_owned(),
        one => format!("port {one}"),
    };
    format!(
        "{} {} {} from {} to {}, {port}",
        text("access"),
        text("direction"),
        text("protocol"),
        ends("source"),
        ends("destination")
    )
}

/// The priority of a rule: the one it has, or the lowest that no other rule of its direction has.
pub(super) fn priority(existing: &[Value], rule: &Rule) -> Option<u64> {
    let (name, direction) = (name(&rule.name), word(rule.direction));
    let same = existing.iter().filter(|found| found["properties"]["direction"] == direction);
    let number = |found: &Value| found["properties"]["priority"].as_u64();
    let own = same.clone().find(|found| found["name"].as_str() == Some(&*name));
    own.and_then(number).or_else(|| {
        let taken: BTreeSet<u64> = same.filter_map(number).collect();
        PRIORITIES.clone().find(|priority| !taken.contains(priority))
    })
}

/// Whether any permission here lets packets pass between the two spaces.
pub(super) fn joins(rules: &[Value], a: &[IpNet], b: &[IpNet]) -> bool {
    let touches = |prefixes: Vec<String>, spaces: &[IpNet]| {
        prefixes
            .iter()
            .filter_map(|text| target::parse(text))
            .any(|net| spaces.iter().any(|space| space.contains(&net) || net.contains(space)))
    };
    rules.iter().filter(|rule| read(rule).is_some_and(|(rule, _)| !rule.targets.is_empty())).any(|rule| {
        let properties = &rule["properties"];
        let ends = |end: &str| prefixes(properties, end);
        (touches(ends("source"), a) && touches(ends("destination"), b))
            || (touches(ends("source"), b) && touches(ends("destination"), a))
    })
}

/// A prefix of one is written as an address.
fn spell(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// The prefix of one address.
pub(super) fn host(ip: &str) -> Option<IpNet> {
    ip.parse::<IpAddr>().ok().map(IpNet::from)
}

#[cfg(test)]
mod local_rules {
    use super::*;

    #[test]
    fn nodes_of_one_subnet_reach_each_other() {
        let range: IpNet = "10.2.0.0/16".parse().unwrap();
        let [into, out] = local(range);
        assert_eq!(into["properties"]["sourceAddressPrefix"], "10.2.0.0/16");
        assert_eq!(out["properties"]["destinationAddressPrefix"], "10.2.0.0/16");
        assert!(read(&into).is_none() && read(&out).is_none(), "they are nobody's permissions");
        let named = Rule { name: "allow-inbound-localsubnet".into(), protocol: 6, ..Rule::default() };
        assert!(check(&[named]).unwrap_err().to_string().contains("begin with"));
        let inbound = json!("Inbound");
        assert_eq!(last_free(&[], &inbound), Some(4095));
        assert_eq!(last_free(&[into, out], &inbound), Some(4094));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::verdict::{self, Packet};
    use proptest::prelude::*;

    fn web() -> Rule {
        Rule {
            name: "web".into(),
            targets: vec!["10.1.0.4".into(), "10.2.0.0/16".into()],
            src_port: ANY,
            dst_port: 443,
            protocol: 6,
            tags: vec!["default.gcp.vm".into(), "10.2.0.0/16".into()],
            ..Rule::default()
        }
    }

    fn local() -> IpNet {
        host("10.0.0.4").unwrap()
    }

    #[test]
    fn a_rule_reads_back() {
        let mut body = compile(&web(), local(), 100).unwrap();
        assert_eq!(body["properties"]["description"], "paraglider rule:[default.gcp.vm 10.2.0.0/16]");
        assert_eq!(body["properties"]["destinationAddressPrefix"], "10.0.0.4");
        body["name"] = json!(name("web"));
        let (rule, _) = read(&body).unwrap();
        assert_eq!(rule, web());
        let nobody = Rule { targets: vec![], direction: Direction::Outbound, ..web() };
        let mut body = compile(&nobody, local(), 100).unwrap();
        assert_eq!(body["properties"]["access"], "Deny");
        body["name"] = json!(name("web"));
        assert_eq!(read(&body).unwrap().0, nobody);
        assert!(deny_all().iter().all(|deny| read(deny).is_none()));
        let new = Rule { targets: vec!["2001:db8::/64".into()], ..web() };
        assert!(compile(&new, local(), 100).unwrap_err().to_string().contains("web.targets"));
        let body = compile(&new, host("2001:db8:1::4").unwrap(), 100).unwrap();
        assert_eq!(body["properties"]["sourceAddressPrefixes"], json!(["2001:db8::/64"]));
        let long = Rule { tags: vec!["a".repeat(130)], ..web() };
        let mut body = compile(&long, local(), 100).unwrap();
        body["name"] = json!(name("web"));
        assert_eq!(read(&body).unwrap().1, Tags::Kept);
    }

    #[test]
    fn priorities_are_kept_or_the_lowest_free() {
        let taken = |name: &str, priority: u64, direction: &str| json!({ "name": name, "properties": { "priority": priority, "direction": direction } });
        let existing = [taken("paraglider-a", 100, "Inbound"), taken("paraglider-web", 102, "Inbound")];
        assert_eq!(priority(&existing, &web()), Some(102));
        assert_eq!(priority(&existing[..1], &web()), Some(101));
        assert_eq!(priority(&existing, &Rule { direction: Direction::Outbound, ..web() }), Some(100));
        let full: Vec<Value> = PRIORITIES.map(|p| taken("x", p, "Inbound")).collect();
        assert_eq!(priority(&full, &web()), None);
    }

    #[test]
    fn what_azure_refuses_is_told_before() {
        let field = |rule: Rule| match check(&[rule]) {
            Err(Error::Invalid(mistakes)) => mistakes.into_iter().map(|m| m.field).collect::<Vec<_>>(),
            _ => vec![],
        };
        assert!(field(web()).is_empty());
        assert_eq!(field(Rule { name: "a".repeat(70), ..web() }), ["rules[0].name"]);
        assert_eq!(field(Rule { name: "a-".into(), ..web() }), ["rules[0].name"]);
        assert_eq!(field(Rule { name: "deny-all-inbound".into(), ..web() }), ["rules[0].name"]);
        assert_eq!(field(Rule { protocol: 132, ..web() }), ["rules[0].protocol"]);
        assert_eq!(field(Rule { protocol: ANY, dst_port: 0, ..web() }), ["rules[0].dst_port"]);
    }

    #[test]
    fn joins_are_seen_from_either_side() {
        let mut body = compile(&web(), local(), 100).unwrap();
        body["name"] = json!(name("web"));
        let net = |text: &str| vec![text.parse::<IpNet>().unwrap()];
        assert!(joins(std::slice::from_ref(&body), &net("10.0.0.0/16"), &net("10.1.0.0/16")));
        assert!(joins(std::slice::from_ref(&body), &net("10.2.0.0/16"), &net("10.0.0.0/16")));
        assert!(!joins(std::slice::from_ref(&body), &net("10.1.0.0/16"), &net("10.2.0.0/16")));
        assert!(!joins(&deny_all(), &net("10.1.0.0/16"), &net("10.2.0.0/16")));
    }

    /// Azure's reading of a group: the lowest priority that matches decides; Azure's own defaults come
    /// after 4096 and are never reached.
    fn azure_allows(rules: &[Value], direction: &str, packet: &Packet) -> bool {
        let mut rules: Vec<&Value> =
            rules.iter().filter(|rule| rule["properties"]["direction"] == direction).collect();
        rules.sort_by_key(|rule| rule["properties"]["priority"].as_u64());
        let has_ports = matches!(packet.protocol, 6 | 17 | 132);
        let matched = rules.into_iter().find(|rule| {
            let properties = &rule["properties"];
            let address = |end: &str, address: IpAddr| {
                prefixes(properties, end)
                    .iter()
                    .any(|prefix| prefix == "*" || target::parse(prefix).unwrap().contains(&address))
            };
            let port = |field: &str, port: u16| match properties[field].as_str().unwrap() {
                "*" => true,
                text => has_ports && text == port.to_string(),
            };
            let protocol = match properties["protocol"].as_str().unwrap() {
                "*" => true,
                word => PROTOCOLS.iter().any(|(n, w)| *w == word && *n == i32::from(packet.protocol)),
            };
            protocol
                && address("source", packet.source)
                && address("destination", packet.destination)
                && port("sourcePortRange", packet.source_port)
                && port("destinationPortRange", packet.destination_port)
        });
        matched.expect("the deny rules match all")["properties"]["access"] == "Allow"
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let targets = prop::collection::vec(
            ("10\\.[0-2]\\.0\\.[0-7]", prop::sample::select(vec![8_u8, 16, 29, 30, 32])),
            0..4,
        );
        let port = prop::sample::select(vec![ANY, 0, 22, 80, 443]);
        let protocol = prop::sample::select(vec![ANY, 1, 6, 17, 50]);
        let one = (targets, any::<bool>(), port.clone(), port, protocol).prop_map(
            |(targets, inbound, src, dst, protocol)| {
                let port = |port: i32| match protocol {
                    // Port 0 of any protocol is refused.
                    ANY if port == 0 => ANY,
                    _ if rule::has_ports(protocol) => port,
                    _ => port.min(0),
                };
                Rule {
                    name: String::new(),
                    targets: targets.into_iter().map(|(a, n)| format!("{a}/{n}")).collect(),
                    direction: if inbound { Direction::Inbound } else { Direction::Outbound },
                    src_port: port(src),
                    dst_port: port(dst),
                    protocol,
                    tags: vec!["t".into()],
                }
            },
        );
        prop::collection::vec(one, 0..12).prop_map(|mut rules| {
            rules.iter_mut().enumerate().for_each(|(index, rule)| rule.name = format!("r{index}"));
            rules
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// 200 sets of rules with 500 packets each.
        #[test]
        fn azure_and_the_reference_agree(
            rules in rules(),
            packets in prop::collection::vec((0_u8..3, 0_u8..8, any::<bool>(), prop::sample::select(vec![1_u8, 6, 17, 50, 47]),
                prop::sample::select(vec![0_u16, 22, 80, 443, 9999]), prop::sample::select(vec![0_u16, 22, 80, 443, 9999])), 500),
        ) {
            let mut group: Vec<Value> = deny_all().to_vec();
            for rule in &rules {
                let priority = priority(&group, rule).unwrap();
                let mut body = compile(rule, local(), priority).unwrap();
                body["name"] = json!(name(&rule.name));
                group.push(body);
            }
            let own: IpAddr = local().addr();
            for (net, host, inbound, protocol, source_port, destination_port) in packets {
                let peer: IpAddr = format!("10.{net}.0.{host}").parse().unwrap();
                let (source, destination) = if inbound { (peer, own) } else { (own, peer) };
                let packet = Packet { source, destination, protocol, source_port, destination_port };
                let direction = if inbound { Direction::Inbound } else { Direction::Outbound };
                let expected = rules.iter().any(|rule| rule.direction == direction && verdict::matches(rule, peer, &packet));
                prop_assert_eq!(azure_allows(&group, word(direction), &packet), expected, "{:?}", packet);
            }
        }
    }
}
