//! Local clouds with real packets: what is denied, what is permitted, and what is left afterwards.

mod foreign;
mod many;
mod six;
mod stream;
mod unloaded;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::NetsConfig;
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::controller::LateController;
use tarbet_nets::local::{Local, LocalConfig};
use tarbet_store::Store;
use tarbet_testbed::{Lease, Netlab, eventually};

use super::bed::{self, rest};
use super::first_vpn::{self, End};
use stream::{Echo, Talk};

/// Long enough for a loaded machine to make a connection that is permitted.
const PATIENCE: Duration = Duration::from_mins(1);
/// A connection that is denied is given up after this: short, since a wrong pass shows at once.
const DENIED: Duration = Duration::from_millis(700);
const PORT: u16 = 8000;

/// Two local clouds, `east` and `west`, under one orchestrator, in a lab.
struct World {
    lab: Netlab,
    store: Store,
    config: NetsConfig,
    running: Option<bed::Running>,
    _ports: Lease,
}

impl World {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    /// With IPv6 below this prefix as well.
    async fn start_with(ipv6: Option<&str>) -> Self {
        let lab = Netlab::start().await.unwrap();
        let ports = Lease::block(4).unwrap();
        let local = json!({
            "prefix": lab.prefix(), "wan": format!("{}-wan", lab.prefix()), "folder": lab.folder(), "ipv6": ipv6,
        });
        let config = json!({
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
            "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
            "cloudPlugins": [{ "name": "east", "local": local }, { "name": "west", "local": local }],
            "namespaces": {
                "default": [{ "name": "east", "deployment": "e" }, { "name": "west", "deployment": "w" }],
                "other": [{ "name": "east", "deployment": "e" }],
            },
        });
        let config: NetsConfig = serde_json::from_value(config).unwrap();
        let store = bed::memory().await;
        let running = Some(bed::orchestrator(&config, &store).await);
        Self { lab, store, config, running, _ports: ports }
    }

    fn url(&self) -> &str {
        &self.running.as_ref().unwrap().rest
    }

    fn resource(&self, namespace: &str, cloud: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/clouds/{cloud}/resources/{name}", self.url())
    }

    /// Makes a machine that answers on a port, and says under which address.
    async fn machine(&self, namespace: &str, cloud: &str, region: &str, name: &str) -> SocketAddr {
        let body = json!({ "description": json!({ "region": region }).to_string() });
        let (status, made) = rest(Method::PUT, self.resource(namespace, cloud, name), body).await;
        assert_eq!(status, 200, "{made}");
        let address = format!("{}:{PORT}", made["ip"].as_str().unwrap()).parse().unwrap();
        self.lab.answer(&self.netns(namespace, cloud, region, name), address).unwrap();
        address
    }

    fn netns(&self, namespace: &str, cloud: &str, region: &str, name: &str) -> String {
        format!("{}-{cloud}.{namespace}.{region}.{name}", self.lab.prefix())
    }

    async fn add(&self, namespace: &str, cloud: &str, name: &str, rules: Value) {
        let url = format!("{}/applyRules", self.resource(namespace, cloud, name));
        let (status, answer) = rest(Method::POST, url, rules).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn tag(&self, name: &str, children: &[&str]) {
        let body = json!({ "name": name, "child_tags": children });
        let (status, answer) =
            rest(Method::POST, format!("{}/tags/{name}/applyMembers", self.url()), body).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn denied(&self, from: &str, to: SocketAddr) {
        assert!(!self.lab.reaches(from, to, DENIED).await.unwrap(), "{from} reaches {to}");
    }

    async fn permitted(&self, from: &str, to: SocketAddr) {
        eventually(PATIENCE, "the flow passes", || async {
            self.lab.reaches(from, to, Duration::from_secs(2)).await.is_ok_and(|reached| reached)
        })
        .await
        .unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
    }
}

fn permit(name: &str, direction: u8, port: i32, tags: &[&str]) -> Value {
    json!({ "name": name, "direction": direction, "src_port": -1, "dst_port": port, "protocol": 6, "tags": tags })
}

#[tokio::test]
async fn nothing_passes_until_it_is_permitted_and_a_tag_opens_exactly_that() {
    let world = World::start().await;
    let a = world.machine("default", "east", "main", "a").await;
    let b = world.machine("default", "east", "main", "b").await;
    let (from_a, from_b) =
        (world.netns("default", "east", "main", "a"), world.netns("default", "east", "main", "b"));
    world.denied(&from_a, b).await;
    world.denied(&from_b, a).await;

    // One end alone is not enough.
    world.tag("clients", &["default.east.b"]).await;
    world.add("default", "east", "a", json!([permit("web", 0, i32::from(PORT), &["clients"])])).await;
    world.denied(&from_b, a).await;
    world.add("default", "east", "b", json!([permit("out", 1, i32::from(PORT), &["default.east.a"])])).await;
    world.permitted(&from_b, a).await;
    world.denied(&from_a, b).await;
    let other_port = SocketAddr::new(a.ip(), PORT + 1);
    world.lab.answer(&from_a, other_port).unwrap();
    world.denied(&from_b, other_port).await;

    // A new member gets through, and an address of somebody else does not help.
    let c = world.machine("default", "east", "main", "c").await;
    let from_c = world.netns("default", "east", "main", "c");
    world.add("default", "east", "c", json!([permit("out", 1, i32::from(PORT), &["default.east.a"])])).await;
    world.denied(&from_c, a).await;
    let asked = Instant::now();
    world.tag("clients", &["default.east.c"]).await;
    world.permitted(&from_c, a).await;
    println!("a new member of a tag got through {:?} after it was asked for", asked.elapsed());
    world.lab.ip(&from_c, &["addr", "add", &format!("{}/16", b.ip()), "dev", "eth0"]).unwrap();
    world.lab.ip(&from_c, &["addr", "del", &format!("{}/16", c.ip()), "dev", "eth0"]).unwrap();
    world.denied(&from_c, a).await;

    // Taking the member out closes what was open, also for connections that exist.
    let echo = SocketAddr::new(a.ip(), PORT + 2);
    for (name, way, tag) in [("a", 0, "clients"), ("b", 1, "default.east.a")] {
        let rule = permit("echo", way, i32::from(PORT + 2), &[tag]);
        world.add("default", "east", name, json!([rule])).await;
    }
    let stream = Echo::open(&world.lab, &from_b, &from_a, echo);
    stream.say(1);
    assert_eq!(stream.hear(PATIENCE).unwrap(), 1);
    let (status, _) =
        rest(Method::DELETE, format!("{}/tags/clients/members/default.east.b", world.url()), Value::Null)
            .await;
    assert_eq!(status, 200);
    world.denied(&from_b, a).await;
    stream.say(2);
    assert!(stream.hear(DENIED).is_err(), "what was open is closed");
    // It was the rule and nothing else: what was said meanwhile arrives once there is one again.
    world.tag("clients", &["default.east.b"]).await;
    assert_eq!(stream.hear(PATIENCE).unwrap(), 2);
    let drift = async |method| rest(method, format!("{}/drift", world.url()), Value::Null).await.1;
    assert_eq!(drift(Method::GET).await, json!([]));

    // Somebody opens the filter behind our back: it is told and mended.
    let network = format!("{}-east.default.main", world.lab.prefix());
    for rule in ["insert rule inet tarbet fwd0 accept", "insert rule inet tarbet i1 accept"] {
        let words = ["netns", "exec", &network, "nft", rule];
        assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
    }
    world.permitted(&from_a, b).await;
    let found = drift(Method::GET).await;
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    for chain in ["chain inet fwd0", "chain inet i1"] {
        assert!(found.to_string().contains(chain), "{found}");
    }
    drift(Method::POST).await;
    world.denied(&from_a, b).await;
    assert_eq!(drift(Method::GET).await, json!([]));
}

#[tokio::test]
async fn networks_are_peered_when_a_rule_needs_it_and_parted_when_none_does() {
    let world = World::start().await;
    let north = world.machine("default", "east", "north", "n").await;
    let south = world.machine("default", "east", "south", "s").await;
    let foreign = world.machine("other", "east", "main", "x").await;
    let from_north = world.netns("default", "east", "north", "n");
    let from_foreign = world.netns("other", "east", "main", "x");
    world.denied(&from_north, south).await;
    world.add("default", "east", "n", json!([permit("out", 1, -1, &["default.east.s"])])).await;
    world.add("default", "east", "s", json!([permit("in", 0, -1, &["default.east.n"])])).await;
    world.permitted(&from_north, south).await;
    // Another namespace is peered only for what both sides permit.
    world.add("other", "east", "x", json!([permit("out", 1, -1, &["default.east.n"])])).await;
    world.denied(&from_foreign, north).await;
    world.add("default", "east", "n", json!([permit("in", 0, -1, &["other.east.x"])])).await;
    world.permitted(&from_foreign, north).await;
    world.denied(&from_foreign, south).await;
    world.denied(&from_north, foreign).await;
    for (name, rule) in [("n", "out"), ("s", "in")] {
        let url = format!("{}/rules/{rule}", world.resource("default", "east", name));
        assert_eq!(rest(Method::DELETE, url, Value::Null).await.0, 200);
    }
    world.denied(&from_north, south).await;
    let network = format!("{}-east.default.south", world.lab.prefix());
    let links =
        std::process::Command::new("ip").args(["-n", &network, "-br", "link"]).output().unwrap().stdout;
    let links = String::from_utf8(links).unwrap();
    assert!(!links.lines().any(|line| line.starts_with('p')), "the peering is gone: {links}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clouds_are_connected_by_a_vpn_that_survives_the_loss_of_a_tunnel() {
    let world = World::start().await;
    let a = world.machine("default", "east", "main", "a").await;
    let b = world.machine("default", "west", "main", "b").await;
    let (from_a, from_b) =
        (world.netns("default", "east", "main", "a"), world.netns("default", "west", "main", "b"));
    world.denied(&from_a, b).await;
    world.add("default", "east", "a", json!([permit("out", 1, i32::from(PORT), &["default.west.b"])])).await;
    world.denied(&from_a, b).await;
    world.add("default", "west", "b", json!([permit("in", 0, i32::from(PORT), &["default.east.a"])])).await;
    world.permitted(&from_a, b).await;
    world.denied(&from_b, a).await;
    let hub = format!("{}-east.default._vpn", world.lab.prefix());
    let routes = || {
        let output =
            std::process::Command::new("ip").args(["-n", &hub, "route", "show", "proto", "bird"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    eventually(PATIENCE, "both tunnels carry a learned route", || async {
        let text = routes();
        if text.contains("dev t0") && text.contains("dev t1") { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();

    // One of the two tunnels dies; traffic goes on by the other, and so does what is open.
    let echo = SocketAddr::new(b.ip(), PORT + 1);
    for (cloud, name, way, tag) in [("east", "a", 1, "default.west.b"), ("west", "b", 0, "default.east.a")] {
        let rule = permit("echo", way, i32::from(PORT + 1), &[tag]);
        world.add("default", cloud, name, json!([rule])).await;
    }
    let talk = Talk::start(Echo::open(&world.lab, &from_a, &from_b, echo));
    talk.goes_on().await;
    assert!(world.lab.kill_inside(&format!("{hub}.t0")).unwrap() > 0);
    eventually(PATIENCE, "the route over the dead tunnel is gone", || async {
        let text = routes();
        if text.contains("dev t1") && !text.contains("dev t0") { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();
    world.permitted(&from_a, b).await;
    talk.goes_on().await;
    let (_, drift) = rest(Method::GET, format!("{}/drift", world.url()), Value::Null).await;
    assert_eq!(drift.as_array().unwrap().len(), 1, "{drift}");
    assert_eq!(rest(Method::POST, format!("{}/drift", world.url()), Value::Null).await.0, 200);
    eventually(PATIENCE, "the repaired tunnel carries its route again", || async {
        routes().contains("dev t0")
    })
    .await
    .unwrap();
    talk.end().await;

    // No rule, no VPN; no machine, nothing at all.
    for (cloud, name) in [("east", "a"), ("west", "b")] {
        assert_eq!(rest(Method::DELETE, world.resource("default", cloud, name), Value::Null).await.0, 200);
    }
    assert_eq!(rest(Method::POST, format!("{}/links/prune", world.url()), Value::Null).await.0, 200);
    assert_eq!(world.lab.namespaces(), Vec::<String>::new());
    let left: Vec<_> =
        std::fs::read_dir(world.lab.folder()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The keys of both tunnels at an end.
fn keys(world: &World, cloud: &str) -> Vec<String> {
    let key = |tunnel: &str| {
        let netns = format!("{}-{cloud}.default._vpn.{tunnel}", world.lab.prefix());
        let conf = std::fs::read_to_string(world.lab.folder().join(netns).join("swanctl.conf")).unwrap();
        conf.lines().find(|line| line.contains("secret =")).unwrap().trim().to_owned()
    };
    vec![key("t0"), key("t1")]
}

/// What strongSwan calls the meeting of the ends of a tunnel: another one has another number.
fn meeting(world: &World, tunnel: &str) -> Result<String, String> {
    let netns = format!("{}-east.default._vpn.{tunnel}", world.lab.prefix());
    let uri = format!("unix://{}", world.lab.folder().join(netns).join("vici").display());
    let output = std::process::Command::new("swanctl").args(["--list-sas", "--uri", &uri]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.contains("ESTABLISHED"));
    line.and_then(|line| line.split(',').next()).map(str::to_owned).ok_or(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_vpn_is_replaced_while_it_is_used_and_what_is_open_stays_open() {
    let world = World::start().await;
    world.machine("default", "east", "main", "a").await;
    let b = world.machine("default", "west", "main", "b").await;
    let from_a = world.netns("default", "east", "main", "a");
    world.add("default", "east", "a", json!([permit("out", 1, -1, &["default.west.b"])])).await;
    world.add("default", "west", "b", json!([permit("in", 0, -1, &["default.east.a"])])).await;
    world.permitted(&from_a, b).await;
    // A stream that sends before, meanwhile and afterwards; nothing of it may be lost.
    let echo = SocketAddr::new(b.ip(), PORT + 1);
    let from_b = world.netns("default", "west", "main", "b");
    let talk = Talk::start(Echo::open(&world.lab, &from_a, &from_b, echo));
    let met = |tunnel: &'static str, other_than: Option<String>| {
        let world = &world;
        eventually(PATIENCE, "the ends to meet", move || {
            let met = meeting(world, tunnel)
                .and_then(|met| if Some(&met) == other_than.as_ref() { Err(met) } else { Ok(met) });
            std::future::ready(met)
        })
    };
    let before = [met("t0", None).await.unwrap(), met("t1", None).await.unwrap()];
    let old = keys(&world, "east");
    assert_eq!(old, keys(&world, "west"));

    let rekey = format!("{}/links/rekey", world.url());
    let (_, plan) = rest(Method::POST, format!("{rekey}?plan=true"), Value::Null).await;
    let steps = ["  make the shared key", "  east: CreateVpnConnections", "  west: CreateVpnConnections"];
    assert_eq!(
        plan["calls"],
        json!(["ReplaceVpnKey default.east-default.west", steps[0], steps[1], steps[2]])
    );
    assert_eq!(keys(&world, "east"), old, "a plan does nothing");
    let (status, answer) = rest(Method::POST, rekey, Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    let new = keys(&world, "east");
    assert_eq!(new, keys(&world, "west"));
    assert!(new[0] == new[1] && !old.contains(&new[0]), "one key for the pair, and another one");
    // The tunnels are those of the new key, and carry what is new and what was open.
    let [first, second] = before;
    met("t0", Some(first)).await.unwrap();
    met("t1", Some(second)).await.unwrap();
    world.permitted(&from_a, b).await;
    talk.end().await;
    let (_, drift) = rest(Method::GET, format!("{}/drift", world.url()), Value::Null).await;
    assert_eq!(drift, json!([]));
}

#[tokio::test]
async fn the_first_generations_order_connects_two_clouds_and_again_with_another_key() {
    let lab = Netlab::start().await.unwrap();
    let config = LocalConfig {
        prefix: lab.prefix().into(),
        wan: format!("{}-wan", lab.prefix()),
        folder: lab.folder().into(),
        ..LocalConfig::default()
    };
    let (store, late, clouds) =
        (bed::memory().await, Arc::new(LateController::default()), bed::clouds(None).await);
    let running = bed::orchestrator(&clouds.config, &store).await;
    late.set(Arc::new(running.orchestrator.clone()));
    let mut ends = Vec::new();
    for name in ["east", "west"] {
        let local = Local::open(name, &config, &store, late.clone()).await.unwrap();
        // Each in a namespace of its own, which the other end is not told.
        let deployment = tarbet_nets::model::Deployment { id: "d".into(), namespace: format!("of-{name}") };
        let new = tarbet_nets::cloud::NewResource {
            deployment: deployment.clone(),
            name: "a".into(),
            description: String::new(),
        };
        local.create_resource(new).await.unwrap();
        let used = local.used_spaces(std::slice::from_ref(&deployment)).await.unwrap();
        let space = used[0].spaces[0].to_string();
        ends.push((space.clone(), End::serve(name, Arc::new(local), deployment, &space).await));
    }
    let (mut west, mut east) = (ends.pop().unwrap(), ends.pop().unwrap());
    let hubs = ["east", "west"].map(|name| format!("{}-{name}.of-{name}._vpn", lab.prefix()));
    for (key, tunnels) in [("key/of+both=", ["t0", "t1"]), ("an-other-key", ["t2", "t3"])] {
        let [near, far] = first_vpn::connect(&mut east.1, &mut west.1, key).await.unwrap();
        assert_eq!((near.inside.len(), far.inside.len(), near.gateways.len()), (2, 2, 2));
        for (hub, space) in [(&hubs[0], &west.0), (&hubs[1], &east.0)] {
            eventually(Duration::from_mins(2), "both tunnels carry a learned route", || async {
                let words = ["-n", hub, "route", "show", "proto", "bird"];
                let output = std::process::Command::new("ip").args(words).output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let carried = tunnels.iter().all(|tunnel| text.contains(&format!("dev {tunnel}")));
                if text.contains(space.as_str()) && carried { Ok(()) } else { Err(text) }
            })
            .await
            .unwrap();
        }
    }
    let ends = lab.namespaces().into_iter().filter(|netns| netns.contains("_vpn.t")).count();
    assert_eq!(ends, 4, "those of before are gone: {:?}", lab.namespaces());
}

#[tokio::test]
async fn a_restart_finds_everything_and_mends_what_was_lost() {
    let mut world = World::start().await;
    let a = world.machine("default", "east", "main", "a").await;
    let b = world.machine("default", "east", "main", "b").await;
    let from_b = world.netns("default", "east", "main", "b");
    world.add("default", "east", "a", json!([permit("in", 0, -1, &["default.east.b"])])).await;
    world.add("default", "east", "b", json!([permit("out", 1, -1, &["default.east.a"])])).await;
    world.permitted(&from_b, a).await;
    world.running = None;
    // While nobody looks: one machine goes, and the filter of the network is flushed.
    let network = format!("{}-east.default.main", world.lab.prefix());
    assert!(std::process::Command::new("ip").args(["netns", "del", &from_b]).status().unwrap().success());
    let flush = ["netns", "exec", &network, "nft", "flush", "ruleset"];
    assert!(std::process::Command::new("ip").args(flush).status().unwrap().success());
    let (local, late) =
        (world.config.cloud_plugins[0].local.clone().unwrap(), Arc::new(LateController::default()));
    let east = eventually(PATIENCE, "the old process let go", || {
        Local::open("east", &local, &world.store, late.clone())
    })
    .await
    .unwrap();
    world.lab.answer(&from_b, b).unwrap();
    world.permitted(&from_b, a).await;
    world.denied(&world.netns("default", "east", "main", "a"), b).await;
    assert_eq!(east.drift("", false).await.unwrap(), Vec::<String>::new());
    assert!(east.permit_list("other", "local/east/default/main/a").await.is_err(), "another namespace");

    // A stray namespace and a lost one are told and mended.
    let stray = format!("{}-east.default.main.stray", world.lab.prefix());
    assert!(std::process::Command::new("ip").args(["netns", "add", &stray]).status().unwrap().success());
    assert!(std::process::Command::new("ip").args(["netns", "del", &from_b]).status().unwrap().success());
    assert_eq!(east.drift("default", false).await.unwrap().len(), 2);
    east.drift("default", true).await.unwrap();
    assert_eq!(east.drift("", false).await.unwrap(), Vec::<String>::new());
    east.remove().await.unwrap();
    assert_eq!(world.lab.namespaces(), Vec::<String>::new());
}

#[tokio::test]
async fn public_targets_are_reached_through_one_address() {
    let world = World::start().await;
    let a = world.machine("default", "east", "main", "a").await;
    let from_a = world.netns("default", "east", "main", "a");
    let public: SocketAddr = "203.0.113.7:8000".parse().unwrap();
    world.add("default", "east", "a", json!([permit("out", 1, -1, &["203.0.113.0/24"])])).await;
    // Somebody on the wide area.
    let (wan, outside) = (format!("{}-wan", world.lab.prefix()), format!("{}-public", world.lab.prefix()));
    assert!(std::process::Command::new("ip").args(["netns", "add", &outside]).status().unwrap().success());
    world
        .lab
        .ip(&wan, &["link", "add", "wpublic", "type", "veth", "peer", "name", "eth0", "netns", &outside])
        .unwrap();
    world.lab.ip(&wan, &["link", "set", "wpublic", "master", "wan0", "up"]).unwrap();
    world.lab.ip(&outside, &["addr", "add", "203.0.113.7/32", "dev", "eth0"]).unwrap();
    world.lab.ip(&outside, &["link", "set", "eth0", "up"]).unwrap();
    world.lab.ip(&outside, &["route", "add", "198.18.0.0/15", "dev", "eth0"]).unwrap();
    world.lab.answer(&outside, public).unwrap();
    world.permitted(&from_a, public).await;
    world.denied(&outside, a).await;
}

#[tokio::test]
async fn refusals_name_the_field() {
    let lab = Netlab::start().await.unwrap();
    let config = LocalConfig {
        prefix: lab.prefix().into(),
        wan: format!("{}-wan", lab.prefix()),
        folder: lab.folder().into(),
        ..LocalConfig::default()
    };
    let store = bed::memory().await;
    let run = LocalConfig { folder: "/run/x".into(), ..config.clone() };
    let late = Arc::new(LateController::default());
    assert!(Local::open("east", &run, &store, late.clone()).await.is_err());
    let east = Local::open("east", &config, &store, late).await.unwrap();
    let new = |name: &str, description: &str| tarbet_nets::cloud::NewResource {
        deployment: tarbet_nets::model::Deployment { id: "e".into(), namespace: "default".into() },
        name: name.into(),
        description: description.into(),
    };
    for (name, description, field) in
        [("vm", r#"{"subnet":"x"}"#, "description.subnet"), ("a.b", "{}", "name")]
    {
        let error = east.create_resource(new(name, description)).await.unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    assert_eq!(lab.namespaces(), Vec::<String>::new());
}
