//! The commands that make what is missing. Pure: what is there already comes in as [`Seen`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use ipnet::{Ipv4Net, Ipv6Net};

use super::names::Names;
use super::state::{Machine, MachineName, Network, NetworkName, State};
use super::{nft, six};

/// The hub's address towards each network; only ever asked for on that one cable.
pub(super) const HUB: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// Room for the wrapping of IPsec in UDP.
pub(super) const TUNNEL_MTU: &str = "1400";

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// `ip` with these arguments.
    Ip(Vec<String>),
    /// The same, where failing means that there was nothing to do.
    Try(Vec<String>),
    /// A kernel setting of a namespace, relative to `/proc/sys/net`.
    Set { netns: String, key: &'static str, value: &'static str },
    /// `nft -f -` in a namespace.
    Filter { netns: String, rules: String },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(args) => write!(f, "ip {}", args.join(" ")),
            Self::Try(args) => write!(f, "ip {} || true", args.join(" ")),
            Self::Set { netns, key, value } => {
                write!(f, "ip netns exec {netns} sysctl -w net.{}={value}", key.replace('/', "."))
            }
            Self::Filter { netns, rules } => write!(f, "ip netns exec {netns} nft -f - <<END\n{rules}END"),
        }
    }
}

/// What there is: namespaces, and the interfaces in those that were looked into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) netns: BTreeSet<String>,
    pub(super) links: BTreeMap<String, BTreeSet<String>>,
}

impl Seen {
    pub(super) fn has_link(&self, netns: &str, link: &str) -> bool {
        self.links.get(netns).is_some_and(|links| links.contains(link))
    }
}

/// `ip -n NETNS WORDS...`, the words separated by blanks.
pub(super) fn ip(netns: &str, words: &str) -> Step {
    let head = ["-n", netns].map(str::to_owned);
    Step::Ip(head.into_iter().chain(words.split_ascii_whitespace().map(str::to_owned)).collect())
}

/// Removes what is left of a cable whose other end is gone or in a namespace that nobody can name any more.
pub(super) fn unplug(netns: &str, link: &str) -> Step {
    Step::Try(["-n", netns, "link", "del", link].map(str::to_owned).to_vec())
}

/// A namespace with its settings, unless it is there.
pub(super) fn netns(name: &str, routes: bool, seen: &Seen) -> Vec<Step> {
    if seen.netns.contains(name) {
        return Vec::new();
    }
    let mut steps = vec![Step::Ip(vec!["netns".into(), "add".into(), name.into()])];
    let set = |key, value| Step::Set { netns: name.to_owned(), key, value };
    steps.extend([
        set("ipv6/conf/all/disable_ipv6", "1"),
        set("ipv6/conf/default/disable_ipv6", "1"),
        set("ipv4/conf/all/rp_filter", "0"),
        set("ipv4/conf/default/rp_filter", "0"),
    ]);
    if routes {
        steps.extend([
            set("ipv4/ip_forward", "1"),
            set("ipv4/conf/all/send_redirects", "0"),
            set("ipv4/conf/default/send_redirects", "0"),
        ]);
    }
    steps.push(ip(name, "link set lo up"));
    steps
}

/// IPv6 for the interfaces that come into a namespace from now on, with no address but those given to them.
fn speaks_ipv6(netns: &str) -> Vec<Step> {
    let set = |key, value| Step::Set { netns: netns.to_owned(), key, value };
    vec![
        set("ipv6/conf/default/disable_ipv6", "0"),
        set("ipv6/conf/default/addr_gen_mode", "1"),
        set("ipv6/conf/default/accept_ra", "0"),
        set("ipv6/conf/default/accept_redirects", "0"),
    ]
}

/// The address of the network itself.
pub(super) fn gateway(space: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(space.network()) + 1)
}

/// The same in IPv6.
fn gateway6(space: Ipv4Net, space6: Ipv6Net) -> std::net::Ipv6Addr {
    six::beside(space6, gateway(space))
}

/// A network with its filter, which denies everything before the first machine is plugged in. `renew`
/// writes the filter even where there is one, for when it may be out of date.
pub(super) fn network(
    names: &Names,
    name: &NetworkName,
    state: &State,
    renew: bool,
    seen: &Seen,
) -> Vec<Step> {
    let Some(Network { space, space6, .. }) = state.networks.get(name) else { return Vec::new() };
    let here = names.network(name);
    let mut steps = netns(&here, true, seen);
    let new = !seen.has_link(&here, "br0");
    if new {
        steps.push(Step::Set { netns: here.clone(), key: "bridge/bridge-nf-call-iptables", value: "1" });
        if space6.is_some() {
            let set = |key| Step::Set { netns: here.clone(), key, value: "1" };
            steps.extend([set("bridge/bridge-nf-call-ip6tables"), set("ipv6/conf/all/forwarding")]);
            steps.extend(speaks_ipv6(&here));
        }
        // Neighbours are asked by multicast, which a bridge that listens in on groups would keep back.
        steps.push(ip(&here, "link add br0 type bridge mcast_snooping 0"));
    }
    if new || renew || !steps.is_empty() {
        let machines = state.machines_of(name).map(|(_, machine)| machine);
        steps.push(Step::Filter { netns: here.clone(), rules: nft::network(machines) });
    }
    steps.push(ip(&here, &format!("addr replace {}/{} dev br0", gateway(*space), space.prefix_len())));
    if let Some(space6) = space6 {
        steps.push(ip(&here, &format!("addr replace {}/64 dev br0 nodad", gateway6(*space, *space6))));
        // For those who are not here themselves, neighbours are asked from an address of the link.
        steps.push(ip(&here, "addr replace fe80::1/64 dev br0 nodad"));
    }
    steps.push(ip(&here, "link set br0 up"));
    steps
}

/// A machine: its namespace, and a cable to the bridge.
pub(super) fn machine(
    names: &Names,
    name: &MachineName,
    machine: &Machine,
    on: &Network,
    seen: &Seen,
) -> Vec<Step> {
    let (here, network) = (names.machine(name), names.network(&name.network));
    let (space, six) = (on.space, on.space6.zip(machine.ip6));
    let port = format!("v{}", machine.port);
    let mut steps = netns(&here, false, seen);
    if !seen.has_link(&network, &port) || !steps.is_empty() {
        if six.is_some() {
            steps.extend(speaks_ipv6(&here));
        }
        steps.push(unplug(&network, &port));
        steps.push(ip(&network, &format!("link add {port} type veth peer name eth0 netns {here}")));
    }
    steps.extend([
        Step::Filter { netns: network.clone(), rules: nft::machine(machine) },
        ip(&network, &format!("link set {port} master br0 up")),
        ip(&here, &format!("addr replace {}/{} dev eth0", machine.ip, space.prefix_len())),
        ip(&here, "link set eth0 up"),
        ip(&here, &format!("route replace default via {}", gateway(space))),
    ]);
    if let Some((space6, ip6)) = six {
        steps.push(ip(&here, &format!("addr replace {ip6}/64 dev eth0 nodad")));
        steps.push(ip(&here, &format!("route replace default via {} dev eth0", gateway6(space, space6))));
    }
    steps
}

/// A cable between two networks of one cloud, and the routes over it.
pub(super) fn peering(
    names: &Names,
    a: (&NetworkName, &Network),
    b: (&NetworkName, &Network),
    seen: &Seen,
) -> Vec<Step> {
    let (here, there) = (names.network(a.0), names.network(b.0));
    let (to_b, to_a) = (names.peer_port(b.0), names.peer_port(a.0));
    let mut steps = Vec::new();
    if !seen.has_link(&here, &to_b) {
        steps.push(unplug(&there, &to_a));
        steps.push(ip(&here, &format!("link add {to_b} type veth peer name {to_a} netns {there}")));
    }
    for (netns, port, space) in [(&here, &to_b, b.1.space), (&there, &to_a, a.1.space)] {
        steps.push(ip(netns, &format!("link set {port} up")));
        steps.push(ip(netns, &format!("route replace {space} via {} dev {port} onlink", gateway(space))));
    }
    if let (Some(space_a), Some(space_b)) = (a.1.space6, b.1.space6) {
        // Nobody answers here for the address of a bridge, so each end of the cable has one of its own.
        for (netns, port, own, other, space) in
            [(&here, &to_b, "fe80::1", "fe80::2", space_b), (&there, &to_a, "fe80::2", "fe80::1", space_a)]
        {
            steps.push(ip(netns, &format!("addr replace {own}/64 dev {port} nodad")));
            steps.push(ip(netns, &format!("route replace {space} via {other} dev {port}")));
        }
    }
    steps
}

/// Takes a peering away; the other end of the cable goes with this one.
pub(super) fn no_peering(names: &Names, a: &NetworkName, b: &NetworkName, seen: &Seen) -> Vec<Step> {
    let (here, port) = (names.network(a), names.peer_port(b));
    if seen.has_link(&here, &port) { vec![ip(&here, &format!("link del {port}"))] } else { Vec::new() }
}

/// A hub, and a cable from it to each network of its namespace.
pub(super) fn hub(
    names: &Names,
    namespace: &str,
    public: Option<Ipv4Addr>,
    state: &State,
    seen: &Seen,
) -> Vec<Step> {
    let here = names.hub(namespace);
    let mut steps = netns(&here, true, seen);
    steps.push(Step::Filter { netns: here.clone(), rules: nft::hub(public) });
    for (name, network) in state.networks_in(namespace) {
        let (there, port) = (names.network(name), names.hub_port(name));
        if !seen.has_link(&here, &port) {
            steps.push(unplug(&there, "hub0"));
            steps.push(ip(&here, &format!("link add {port} type veth peer name hub0 netns {there}")));
        }
        steps.extend([
            ip(&here, &format!("addr replace {HUB}/32 dev {port}")),
            ip(&here, &format!("link set {port} up")),
            ip(
                &here,
                &format!("route replace {} via {} dev {port} onlink", network.space, gateway(network.space)),
            ),
            ip(&there, "link set hub0 up"),
            ip(&there, &format!("route replace default via {HUB} dev hub0 onlink")),
        ]);
    }
    if public.is_some() {
        steps.push(ip(&here, "route replace default dev wan0"));
    }
    steps
}

/// The namespace of one tunnel: a piece of wire between the hub and the wide area, with IPsec in it.
///
/// Packets from the hub go into the IPsec device, packets out of it go to the hub, and only its own key
/// exchange uses the wide area directly.
pub(super) fn tunnel(
    names: &Names,
    namespace: &str,
    index: u32,
    inside: Ipv4Addr,
    peer: Ipv4Addr,
    seen: &Seen,
) -> Vec<Step> {
    let (hub, here) = (names.hub(namespace), names.tunnel(namespace, index));
    let port = format!("t{index}");
    let mut steps = netns(&here, true, seen);
    if !seen.has_link(&hub, &port) || !seen.has_link(&here, "hub0") {
        steps.push(unplug(&hub, &port));
        steps.push(unplug(&here, "hub0"));
        steps.push(ip(
            &hub,
            &format!("link add {port} address 02:00:00:00:00:01 type veth peer name hub0 address 02:00:00:00:00:02 netns {here}"),
        ));
    }
    steps.extend([
        ip(&hub, &format!("link set {port} mtu {TUNNEL_MTU} up")),
        ip(&here, &format!("link set hub0 mtu {TUNNEL_MTU} up")),
        ip(&hub, &format!("addr replace {inside}/30 dev {port}")),
        ip(&hub, &format!("neigh replace {peer} lladdr 02:00:00:00:00:02 dev {port} nud permanent")),
        ip(&here, &format!("neigh replace {inside} lladdr 02:00:00:00:00:01 dev hub0 nud permanent")),
        ip(&here, &format!("route replace default via {inside} dev hub0 onlink")),
    ]);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Names, NetworkName, State) {
        let name = NetworkName { namespace: "default".into(), region: "r".into() };
        let network = Network {
            space: "10.0.0.0/16".parse().unwrap(),
            space6: None,
            peers: BTreeSet::new(),
            next_port: 1,
        };
        let state = State { networks: BTreeMap::from([(name.clone(), network)]), ..State::default() };
        (Names::new("t", "east"), name, state)
    }

    #[test]
    fn the_filter_is_there_before_the_first_cable() {
        let (names, name, state) = sample();
        let steps = network(&names, &name, &state, false, &Seen::default());
        let at = |wanted: &str| steps.iter().position(|step| step.to_string().contains(wanted)).unwrap();
        assert_eq!(at("ip netns add t-east.default.r"), 0);
        assert!(at("policy drop") < at("link set br0 up"));
        assert!(at("bridge-nf-call-iptables=1") < at("link add br0"));
    }

    #[test]
    fn nothing_is_made_twice() {
        let (names, name, state) = sample();
        let here = names.network(&name);
        let seen = Seen {
            netns: BTreeSet::from([here.clone()]),
            links: BTreeMap::from([(here, BTreeSet::from(["br0".to_owned()]))]),
        };
        let steps = network(&names, &name, &state, false, &seen);
        assert!(steps.iter().all(|step| !step.to_string().contains(" add ")), "{steps:?}");
    }
}
