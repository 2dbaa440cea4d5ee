//! Permit lists as packet filter rules.
//!
//! In the namespace of a network, bridged packets pass the ordinary forward hook. A packet from a machine
//! must pass that machine's outbound chain, and a packet to a machine its inbound chain; whatever reaches
//! the end of a chain is dropped, in IPv4 and IPv6 alike. Only replies pass without a look, so a rule that is taken away also ends
//! the flows it had permitted. A table of the bridge family keeps machines to their own addresses, also in
//! what they tell their neighbours about them, which is all that passes without a rule.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use ipnet::IpNet;

use super::state::Machine;
use crate::model::{ANY, Direction, Rule};
use crate::plan::rule;

const TABLE: &str = "inet tarbet";

/// The whole filter of a network with these machines; replaces what was there in one step.
pub(super) fn network<'a>(machines: impl Iterator<Item = &'a Machine>) -> String {
    let mut text = String::from(
        "add table inet tarbet
delete table inet tarbet
add table inet tarbet
add map inet tarbet egress { type ipv4_addr : verdict; }
add map inet tarbet ingress { type ipv4_addr : verdict; }
add map inet tarbet egress6 { type ipv6_addr : verdict; }
add map inet tarbet ingress6 { type ipv6_addr : verdict; }
add chain inet tarbet onward
add rule inet tarbet onward ip daddr vmap @ingress
add rule inet tarbet onward ip6 daddr vmap @ingress6
add rule inet tarbet onward accept
add chain inet tarbet fwd0 { type filter hook forward priority 0; policy drop; }
add rule inet tarbet fwd0 ip6 hoplimit 255 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
add rule inet tarbet fwd0 ct state related accept
add rule inet tarbet fwd0 ct state established ct direction reply accept
add rule inet tarbet fwd0 ct state invalid drop
add rule inet tarbet fwd0 ip saddr vmap @egress
add rule inet tarbet fwd0 ip6 saddr vmap @egress6
add rule inet tarbet fwd0 iifname \"br0\" drop
add rule inet tarbet fwd0 ip daddr vmap @ingress
add rule inet tarbet fwd0 ip6 daddr vmap @ingress6
add chain inet tarbet inp0 { type filter hook input priority 0; policy drop; }
add rule inet tarbet inp0 iifname \"lo\" accept
add rule inet tarbet inp0 ct state established,related accept
add rule inet tarbet inp0 ip6 hoplimit 255 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
add table bridge tarbet
delete table bridge tarbet
add table bridge tarbet
add set bridge tarbet ports { type ifname . ipv4_addr; }
add set bridge tarbet ports6 { type ifname . ipv6_addr; }
add set bridge tarbet neighbours { typeof iifname . @th,64,128; }
add chain bridge tarbet pre0 { type filter hook prerouting priority -300; policy accept; }
add rule bridge tarbet pre0 iifname \"v*\" ether type ip iifname . ip saddr != @ports drop
add rule bridge tarbet pre0 iifname \"v*\" ether type arp iifname . arp saddr ip != @ports drop
add rule bridge tarbet pre0 iifname \"v*\" ether type ip6 iifname . ip6 saddr != @ports6 drop
add rule bridge tarbet pre0 iifname \"v*\" icmpv6 type nd-neighbor-advert iifname . @th,64,128 != @neighbours drop
add rule bridge tarbet pre0 iifname \"v*\" ether type != { ip, ip6, arp } drop
",
    );
    for machine in machines {
        text.push_str(&self::machine(machine));
    }
    text
}

/// Adds a machine, or brings its chains in line; may be repeated.
pub(super) fn machine(machine: &Machine) -> String {
    let Machine { ip, ip6, port, .. } = machine;
    let mut text = String::new();
    for chain in ["e", "i"] {
        let _ = write!(text, "add chain {TABLE} {chain}{port}\nflush chain {TABLE} {chain}{port}\n");
    }
    for permission in machine.rules.values() {
        text.push_str(&permit(permission, *port));
    }
    for chain in ["e", "i"] {
        let _ = writeln!(text, "add rule {TABLE} {chain}{port} counter drop");
    }
    let _ = write!(
        text,
        "add element {TABLE} egress {{ {ip} : goto e{port} }}\nadd element {TABLE} ingress {{ {ip} : goto i{port} }}\n\
         add element bridge tarbet ports {{ \"v{port}\" . {ip} }}\n"
    );
    if let Some(ip) = ip6 {
        let number = u128::from(*ip);
        let _ = write!(
            text,
            "add element {TABLE} egress6 {{ {ip} : goto e{port} }}\nadd element {TABLE} ingress6 {{ {ip} : goto i{port} }}\n\
             add element bridge tarbet ports6 {{ \"v{port}\" . {ip} }}\n\
             add element bridge tarbet neighbours {{ \"v{port}\" . {number:#034x} }}\n"
        );
    }
    text
}

/// One permission. A rule without targets permits nothing and leaves no trace.
fn permit(permission: &Rule, port: u32) -> String {
    let targets = rule::targets(permission).unwrap_or_default();
    let (four, six): (Vec<IpNet>, Vec<IpNet>) =
        targets.into_iter().partition(|target| target.addr().is_ipv4());
    permit_family(permission, port, "ip", &four) + &permit_family(permission, port, "ip6", &six)
}

fn permit_family(permission: &Rule, port: u32, family: &str, targets: &[IpNet]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let (chain, field, verdict) = match permission.direction {
        Direction::Inbound => ("i", "saddr", "accept"),
        Direction::Outbound => ("e", "daddr", "goto onward"),
    };
    let name: String = permission.name.chars().take(100).collect();
    format!(
        "add rule {TABLE} {chain}{port} {family} {field} {{ {} }} {}counter {verdict} comment \"{name}\"\n",
        targets.join(", "),
        transport(permission),
    )
}

fn transport(permission: &Rule) -> String {
    let Rule { protocol, src_port, dst_port, .. } = permission;
    let ports = *src_port > ANY || *dst_port > ANY;
    if !rule::has_ports(*protocol) {
        return format!("meta l4proto {protocol} ");
    }
    let mut text = match (*protocol, ports) {
        (ANY, false) => String::new(),
        // A port names the protocols that have one.
        (ANY, true) => "meta l4proto { 6, 17, 132 } ".to_owned(),
        (number, _) => format!("meta l4proto {number} "),
    };
    for (field, port) in [("sport", src_port), ("dport", dst_port)] {
        if *port > ANY {
            let _ = write!(text, "th {field} {port} ");
        }
    }
    text
}

/// The filter of a hub: between networks and tunnels, and from networks to the outside.
pub(super) fn hub(public: Option<Ipv4Addr>) -> String {
    let mut text = String::from(
        "add table inet tarbet
delete table inet tarbet
add table inet tarbet
add chain inet tarbet fwd0 { type filter hook forward priority 0; policy drop; }
add rule inet tarbet fwd0 tcp flags & (syn | rst) == syn tcp option maxseg size set 1300
add rule inet tarbet fwd0 iifname \"n*\" oifname \"t*\" accept
add rule inet tarbet fwd0 iifname \"t*\" oifname \"n*\" accept
add chain inet tarbet inp0 { type filter hook input priority 0; policy drop; }
add rule inet tarbet inp0 iifname \"lo\" accept
add rule inet tarbet inp0 ct state established,related accept
add rule inet tarbet inp0 iifname \"t*\" tcp dport 179 accept
add rule inet tarbet inp0 iifname \"t*\" udp dport { 3784, 4784 } accept
",
    );
    if let Some(address) = public {
        let _ = write!(
            text,
            "add rule {TABLE} fwd0 iifname \"n*\" oifname \"wan0\" accept\n\
             add rule {TABLE} fwd0 iifname \"wan0\" oifname \"n*\" ct state established,related accept\n\
             add chain {TABLE} nat0 {{ type nat hook postrouting priority 100; policy accept; }}\n\
             add rule {TABLE} nat0 oifname \"wan0\" snat ip to {address}\n"
        );
    }
    text
}

#[cfg(test)]
mod evaluate;
#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn rule(name: &str, direction: Direction, protocol: i32, ports: (i32, i32), targets: &[&str]) -> Rule {
        Rule {
            name: name.into(),
            direction,
            protocol,
            src_port: ports.0,
            dst_port: ports.1,
            targets: targets.iter().map(ToString::to_string).collect(),
            tags: vec![],
        }
    }

    #[test]
    fn a_machine_reads_as_its_permit_list() {
        let rules = [
            rule("web", Direction::Inbound, 6, (ANY, 443), &["10.0.0.5", "10.1.0.0/16"]),
            rule("ping", Direction::Outbound, 1, (ANY, ANY), &["10.0.0.0/8"]),
            rule("any", Direction::Outbound, ANY, (ANY, 53), &["10.0.0.9"]),
            rule("nobody", Direction::Inbound, ANY, (ANY, ANY), &[]),
        ];
        let rules: BTreeMap<String, Rule> = rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect();
        let known = Machine { ip: Ipv4Addr::new(10, 0, 0, 4), ip6: None, port: 7, rules };
        let text = machine(&known);
        let wanted = "add chain inet tarbet e7
flush chain inet tarbet e7
add chain inet tarbet i7
flush chain inet tarbet i7
add rule inet tarbet e7 ip daddr { 10.0.0.9/32 } meta l4proto { 6, 17, 132 } th dport 53 counter goto onward comment \"any\"
add rule inet tarbet e7 ip daddr { 10.0.0.0/8 } meta l4proto 1 counter goto onward comment \"ping\"
add rule inet tarbet i7 ip saddr { 10.0.0.5/32, 10.1.0.0/16 } meta l4proto 6 th dport 443 counter accept comment \"web\"
add rule inet tarbet e7 counter drop
add rule inet tarbet i7 counter drop
add element inet tarbet egress { 10.0.0.4 : goto e7 }
add element inet tarbet ingress { 10.0.0.4 : goto i7 }
add element bridge tarbet ports { \"v7\" . 10.0.0.4 }
";
        assert_eq!(text, wanted);
        let rules = [rule("both", Direction::Inbound, 6, (ANY, 22), &["fd00::/64", "10.0.0.9"])];
        let rules: BTreeMap<String, Rule> = rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect();
        let text = machine(&Machine { ip6: Some("fd00::4".parse().unwrap()), rules, ..known });
        for line in [
            "add rule inet tarbet i7 ip saddr { 10.0.0.9/32 } meta l4proto 6 th dport 22 counter accept comment \"both\"",
            "add rule inet tarbet i7 ip6 saddr { fd00::/64 } meta l4proto 6 th dport 22 counter accept comment \"both\"",
            "add element inet tarbet ingress6 { fd00::4 : goto i7 }",
            "add element bridge tarbet ports6 { \"v7\" . fd00::4 }",
            "add element bridge tarbet neighbours { \"v7\" . 0xfd000000000000000000000000000004 }",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
