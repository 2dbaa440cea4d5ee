//! The same in IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Method;
use serde_json::{Value, json};

use super::{PORT, World, permit, rest};

const PREFIX: &str = "fd74:6172::/32";

/// The address beside an IPv4 one, in the network of this number: as the guide tells it.
fn beside(ip: IpAddr) -> SocketAddr {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is not IPv4") };
    let network = u32::from(Ipv4Addr::new(ip.octets()[0], ip.octets()[1], 0, 0));
    let number = (0xfd74_6172_u128 << 96) | (u128::from(network) << 64) | u128::from(u32::from(ip));
    SocketAddr::new(Ipv6Addr::from(number).into(), PORT)
}

impl World {
    /// A machine that answers in both families; its IPv6 address.
    async fn machine6(&self, cloud: &str, region: &str, name: &str) -> SocketAddr {
        let address = beside(self.machine("default", cloud, region, name).await.ip());
        self.lab.answer(&self.netns("default", cloud, region, name), address).unwrap();
        address
    }

    async fn remove(&self, name: &str, rule: &str) {
        let url = format!("{}/rules/{rule}", self.resource("default", "east", name));
        assert_eq!(rest(Method::DELETE, url, Value::Null).await.0, 200);
    }
}

#[tokio::test]
async fn ipv6_is_denied_until_it_is_permitted_and_closed_when_it_is_not() {
    let world = World::start_with(Some(PREFIX)).await;
    let a = world.machine6("east", "main", "a").await;
    let b = world.machine6("east", "main", "b").await;
    let (from_a, from_b) =
        (world.netns("default", "east", "main", "a"), world.netns("default", "east", "main", "b"));
    world.denied(&from_b, a).await;
    // What permits IPv4 permits nothing else.
    world.add("default", "east", "a", json!([permit("in4", 0, -1, &["default.east.b"])])).await;
    world.add("default", "east", "b", json!([permit("out4", 1, -1, &["default.east.a"])])).await;
    world.permitted(&from_b, SocketAddr::new(Ipv4Addr::new(10, 0, 0, 4).into(), PORT)).await;
    world.denied(&from_b, a).await;

    // By a tag at one end and a prefix at the other.
    world.tag("clients", &[&b.ip().to_string()]).await;
    world.add("default", "east", "a", json!([permit("in", 0, i32::from(PORT), &["clients"])])).await;
    world.denied(&from_b, a).await;
    world.add("default", "east", "b", json!([permit("out", 1, -1, &["fd74:6172:a00::/64"])])).await;
    world.permitted(&from_b, a).await;
    world.denied(&from_a, b).await;
    let other_port = SocketAddr::new(a.ip(), PORT + 1);
    world.lab.answer(&from_a, other_port).unwrap();
    world.denied(&from_b, other_port).await;
    let (_, drift) = rest(Method::GET, format!("{}/drift", world.url()), Value::Null).await;
    assert_eq!(drift, json!([]));

    // Nobody helps themselves to another's address, nor answers for it.
    let c = world.machine6("east", "main", "c").await;
    let from_c = world.netns("default", "east", "main", "c");
    world.add("default", "east", "c", json!([permit("out", 1, -1, &[&a.ip().to_string()])])).await;
    world.denied(&from_c, a).await;
    for (word, address) in [("add", b.ip()), ("del", c.ip())] {
        world.lab.ip(&from_c, &["addr", word, &format!("{address}/64"), "dev", "eth0", "nodad"]).unwrap();
    }
    world.denied(&from_c, a).await;
    world.permitted(&from_b, a).await;

    // Closed again, by the tag and by the rule.
    let member = format!("{}/tags/clients/members/{}", world.url(), b.ip());
    assert_eq!(rest(Method::DELETE, member, Value::Null).await.0, 200);
    world.denied(&from_b, a).await;
    world.tag("clients", &[&b.ip().to_string()]).await;
    world.permitted(&from_b, a).await;
    world.remove("a", "in").await;
    world.denied(&from_b, a).await;
}

#[tokio::test]
async fn ipv6_crosses_a_peering_and_what_cannot_be_carried_is_refused() {
    let world = World::start_with(Some(PREFIX)).await;
    let north = world.machine6("east", "north", "n").await;
    let south = world.machine6("east", "south", "s").await;
    let far = world.machine6("west", "main", "w").await;
    let from_north = world.netns("default", "east", "north", "n");
    world.denied(&from_north, south).await;
    world.add("default", "east", "n", json!([permit("out", 1, -1, &[&south.ip().to_string()])])).await;
    world.add("default", "east", "s", json!([permit("in", 0, -1, &[&north.ip().to_string()])])).await;
    world.permitted(&from_north, south).await;
    for (name, rule) in [("n", "out"), ("s", "in")] {
        world.remove(name, rule).await;
    }
    world.denied(&from_north, south).await;
    let network = format!("{}-east.default.south", world.lab.prefix());
    let links = std::process::Command::new("ip").args(["-n", &network, "-br", "link"]).output().unwrap();
    let links = String::from_utf8(links.stdout).unwrap();
    assert!(!links.lines().any(|line| line.starts_with('p')), "the peering is gone: {links}");

    for target in [far.ip().to_string(), "2001:db8::1".into()] {
        let url = format!("{}/applyRules", world.resource("default", "east", "n"));
        let (status, answer) = rest(Method::POST, url, json!([permit("far", 1, -1, &[&target])])).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains("far.targets"), "{answer}");
    }
    let (_, topology) = rest(Method::GET, format!("{}/topology", world.url()), Value::Null).await;
    assert_eq!(topology["links"], json!([]), "no VPN was made for it");
}
