//! The IBM Cloud plugin against a stand-in that holds every request against IBM's own SDKs, which have driven it too.

mod contract;
mod endpoints;
mod foreign;
mod vendor;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tarbet_nets::cloud::{Cloud, Guarded, NewConnections, NewGateway, NewResource, OldConnections, Policy};
use tarbet_nets::clouds::ibm::{ApiKey, Ibm, IbmConfig};
use tarbet_nets::controller::Controller as _;
use tarbet_nets::model::{Deployment, Direction, Rule, SharedKey};
use tarbet_nets::{Error, NetsConfig};
use tarbet_testbed::{Folder, Lease};

use super::bed::{self, Running};
use super::life::{self, Life};
use super::sim::{Faults, Sim};
use vendor::IbmCloud;

/// The cloud, an orchestrator, and what a plugin needs to be made any number of times.
pub(super) struct World {
    pub(super) sim: Sim<IbmCloud>,
    config: IbmConfig,
    running: Running,
    _folder: Folder,
    _plugin: bed::Listening,
    _ports: Lease,
}

impl World {
    pub(super) async fn start() -> Self {
        let sim = Sim::start(IbmCloud::new()).await;
        let folder = Folder::new("ibm").unwrap();
        let config = IbmConfig {
            endpoint: format!("{}/{{region}}/v1", sim.url),
            transit_endpoint: format!("{}/transit/v1", sim.url),
            tags_endpoint: format!("{}/tags/v3", sim.url),
            iam_endpoint: format!("{}/iam", sim.url),
            api_key_file: Some(folder.write("key", "open-up\n").unwrap()),
            regions: vec!["us-south".into()],
            ..IbmConfig::default()
        };
        // The orchestrator asks a plugin of its own, over the wire, so that it knows the spaces.
        let ports = Lease::block(4).unwrap();
        let late = tarbet_nets::controller::LateController::default();
        let key = ApiKey::find(&config, |_| None).unwrap();
        let plugin =
            Ibm::with_clock("ibm", &config, key, Arc::new(late.clone()), Arc::new(sim.clock.clone()))
                .unwrap();
        let plugin = bed::serve(tarbet_nets::cloud::serve(Arc::new(plugin), "ibm")).await;
        let nets: NetsConfig = serde_json::from_value(json!({
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
            "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
            "cloudPlugins": [{ "name": "ibm", "host": "127.0.0.1", "port": plugin.address.port() }],
            "namespaces": {
                "default": [{ "name": "ibm", "deployment": "/resourcegroup/rg" }],
                "other": [{ "name": "ibm", "deployment": "/resourcegroup/rg" }],
                "far": [{ "name": "ibm", "deployment": "/resourcegroup/rg2" }],
            },
            // A space that was asked for by a plugin that then stopped is given out again.
            "spaceRefresh": "1ms", "spaceReserve": "1ms",
        }))
        .unwrap();
        let running = bed::orchestrator(&nets, &bed::memory().await).await;
        late.set(Arc::new(running.orchestrator.clone()));
        Self { sim, config, running, _folder: folder, _plugin: plugin, _ports: ports }
    }

    /// A plugin that knows nothing of those before it.
    pub(super) fn ibm(&self) -> Ibm {
        let controller = Arc::new(self.running.orchestrator.clone());
        let key = ApiKey::find(&self.config, |_| None).unwrap();
        Ibm::with_clock("ibm", &self.config, key, controller, Arc::new(self.sim.clock.clone())).unwrap()
    }
}

pub(super) fn deployment(namespace: &str) -> Deployment {
    Deployment { id: "/resourcegroup/rg".into(), namespace: namespace.into() }
}

pub(super) fn machine(namespace: &str, name: &str) -> NewResource {
    let description = json!({
        "zone": { "name": "us-south-1" }, "profile": { "name": "bx2-2x8" }, "image": { "id": "image-1" },
    });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

/// The stand-in's ids follow from names.
fn uri(namespace: &str, name: &str) -> String {
    let hash = |text: &str, bytes: usize| hex::encode(&Sha256::digest(text.as_bytes())[..bytes]);
    let name = format!("paraglider-{name}-{}", hash(&format!("rg\n{namespace}\nus-south\nus-south-1"), 4));
    let id = hash(&format!("us-south/v1/instances/\"{name}\""), 8);
    format!("/resourcegroup/rg/zone/us-south-1/instance/{id}")
}

fn rule(name: &str, direction: Direction, target: &str) -> Rule {
    Rule {
        name: name.into(),
        targets: vec![target.into()],
        direction,
        src_port: -1,
        dst_port: 443,
        protocol: 6,
        tags: vec!["clients".into()],
    }
}

fn gateway() -> NewGateway {
    NewGateway {
        deployment: deployment("default"),
        cloud: "azure".into(),
        bgp_addresses: vec![],
        space: None,
    }
}

fn connections() -> NewConnections {
    NewConnections {
        deployment: deployment("default"),
        cloud: "azure".into(),
        asn: 65515,
        gateways: vec!["198.51.100.1".into(), "198.51.100.2".into()],
        bgp_addresses: vec![],
        key: SharedKey::new("secret"),
        remote_spaces: vec!["10.9.0.0/16".into()],
        bgp: false,
        space: None,
    }
}

/// One step of the scenario, which is everything a plugin is asked in the life of two networks.
async fn step(number: usize, ibm: &dyn Cloud) -> Result<(), Error> {
    let near = uri("default", "vm-1");
    match number {
        0 => ibm.create_resource(machine("default", "vm-1")).await.map(drop),
        1 => ibm.create_resource(machine("other", "vm-2")).await.map(drop),
        2 => {
            let two = Rule {
                targets: vec!["10.0.0.9/32".into(), "10.0.3.0/24".into()],
                ..rule("web", Direction::Inbound, "")
            };
            ibm.add_rules("default", &near, vec![two]).await?;
            ibm.add_rules("default", &near, vec![rule("web", Direction::Outbound, "10.0.0.10/32")]).await
        }
        3 => ibm.add_rules("default", &near, vec![rule("out", Direction::Outbound, "203.0.113.9/32")]).await,
        4 => ibm.add_rules("default", &near, vec![rule("peer", Direction::Outbound, "10.1.0.5/32")]).await,
        5 => ibm.create_gateway(gateway()).await.map(drop),
        6 => ibm.create_connections(connections()).await,
        7 => ibm.delete_rules("default", &near, vec!["peer".into(), "out".into(), "never".into()]).await,
        8 => {
            let old = OldConnections {
                deployment: deployment("default"),
                cloud: "azure".into(),
                bgp_addresses: vec![],
            };
            ibm.delete_connections(old).await
        }
        9 => ibm.delete_resource("default", &near).await,
        10 => ibm.delete_resource("other", &uri("other", "vm-2")).await,
        11 => {
            endpoints::allow(ibm).await?;
            ibm.create_resource(endpoints::endpoint("default", "e-1")).await.map(drop)
        }
        12 => {
            let web = rule("web", Direction::Inbound, "10.0.0.9/32");
            ibm.add_rules("default", &endpoints::uri("default", "e-1"), vec![web]).await
        }
        13 => ibm.delete_resource("default", &endpoints::uri("default", "e-1")).await,
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn the_calls_of_a_whole_life() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    sim.faults(Faults::default());
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    assert_eq!((made.uri.clone(), made.name.as_str()), (uri("default", "vm-1"), "vm-1"));
    let changes: Vec<String> = sim.changes();
    let kinds: Vec<&str> = changes.iter().map(|call| call.rsplit('/').next().unwrap()).collect();
    assert_eq!(kinds, ["vpcs", "address_prefixes", "subnets", "security_groups", "instances"]);
    sim.faults(Faults::default());
    assert_eq!(ibm.create_resource(machine("default", "vm-1")).await.unwrap(), made);
    assert_eq!(sim.changes(), Vec::<String>::new(), "the same again changes nothing");
    let held = ibm.list_resources("default").await.unwrap();
    assert_eq!((held.len(), &*held[0].name, &held[0].ip, &held[0].uri), (1, "vm-1", &made.ip, &made.uri));
    sim.with(|cloud| {
        let machine = cloud.tags.iter().find(|(crn, _)| crn.contains("/instances/")).unwrap().1;
        assert!(machine.contains("pg") && machine.contains("default"), "{machine:?}");
    });

    // Refusals touch nothing.
    sim.faults(Faults::default());
    let foreign = ibm.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    for (bad, field) in [
        (Rule { src_port: 22, ..rule("web", Direction::Inbound, "10.0.0.9") }, "src_port"),
        (Rule { protocol: 50, dst_port: -1, ..rule("web", Direction::Inbound, "10.0.0.9") }, "protocol"),
        (rule("web", Direction::Inbound, "10.9.9.9"), "targets"),
    ] {
        let error = ibm.add_rules("default", &made.uri, vec![bad]).await.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    let policy = Policy { no_public_targets: true, ..Policy::default() };
    let guarded = Guarded::new(policy, world.ibm());
    let public = rule("out", Direction::Outbound, "203.0.113.9");
    assert!(matches!(guarded.add_rules("default", &made.uri, vec![public]).await, Err(Error::Policy { .. })));
    assert_eq!(sim.changes(), Vec::<String>::new());

    // Rules: with all their targets, names and tags; known again, changed, emptied, restored.
    let two = Rule {
        targets: vec!["10.0.0.9/32".into(), "10.0.3.0/24".into()],
        ..rule("web", Direction::Inbound, "")
    };
    ibm.add_rules("default", &made.uri, vec![two.clone()]).await.unwrap();
    assert_eq!(ibm.permit_list("default", &made.uri).await.unwrap(), std::slice::from_ref(&two));
    sim.faults(Faults::default());
    ibm.add_rules("default", &made.uri, vec![two.clone()]).await.unwrap();
    assert_eq!(sim.changes(), Vec::<String>::new(), "an equal rule is left alone");
    sim.with(IbmCloud::lose_rules);
    assert_eq!(ibm.drift("default", true).await.unwrap().len(), 1);
    assert_eq!(ibm.drift("default", false).await.unwrap(), Vec::<String>::new());
    let nobody = Rule { targets: vec![], ..two };
    ibm.add_rules("default", &made.uri, vec![nobody]).await.unwrap();
    let left = sim.with(|cloud| cloud.state().keys().filter(|path| path.contains("/rules/")).count());
    assert_eq!(left, 0, "nobody is not everybody");

    let first = ibm.create_gateway(gateway()).await.unwrap();
    assert_eq!((first.asn, first.addresses.len()), (0, 2));
    assert_eq!(ibm.create_gateway(gateway()).await.unwrap(), first);
    ibm.create_connections(connections()).await.unwrap();
    sim.faults(Faults::default());
    ibm.create_connections(connections()).await.unwrap();
    assert_eq!(sim.changes(), Vec::<String>::new(), "connecting again changes nothing");
    for number in 8..10 {
        step(number, &ibm).await.unwrap();
    }
    assert_eq!(sim.with(|cloud| cloud.state()), BTreeMap::default(), "nothing is left");
    sim.assert_sound();
}

impl Life for World {
    type Cloud = IbmCloud;
    const STEPS: usize = 14;

    fn sim(&self) -> &Sim<IbmCloud> {
        &self.sim
    }

    fn plugin(&self) -> impl Cloud {
        self.ibm()
    }

    async fn step(number: usize, plugin: &dyn Cloud) -> Result<(), Error> {
        step(number, plugin).await
    }

    fn state(&self) -> BTreeMap<String, Value> {
        self.sim.with(|cloud| cloud.state())
    }
}

#[tokio::test]
async fn every_cut_point_ends_as_wanted_with_no_orphan() {
    life::is_cut_at_every_request(&World::start().await).await;
}

#[tokio::test]
async fn throttling_failures_and_long_operations_converge() {
    let world = World::start().await;
    world.sim.with(|cloud| cloud.takes = Duration::from_mins(20));
    life::converges_in_trouble(&world).await;
}

#[tokio::test]
async fn the_first_generation_is_served() {
    let world = World::start().await;
    // As its users write it: the name is in the description alone.
    let mut new = machine("default", "vm-1");
    let mut prototype: Value = serde_json::from_str(&new.description).unwrap();
    prototype["name"] = json!("vm-1");
    new.description = json!({ "InstancePrototype": prototype }).to_string();
    let id = "/resourcegroup/rg/zone/us-south-1";
    life::speaks_the_first_generation(world.ibm(), "ibm", id, new, "10.0.0.9/32").await;
    world.sim.assert_sound();
}

/// A network, a machine and its rule as the original makes them: names by chance, and tags that tell.
fn made_by_the_original(cloud: &mut IbmCloud) {
    let (group, zone) = (json!({ "id": "rg" }), json!({ "name": "us-south-1" }));
    let vpc = json!({ "id": "v1", "name": "paraglider-vpc-0a1b2c3d" });
    let of = |name: &str| json!({ "name": name, "vpc": vpc, "zone": zone, "resource_group": group });
    cloud.put(
        "vpcs",
        "v1",
        &["pg", "default", "shared"],
        json!({ "name": "paraglider-vpc-0a1b2c3d", "resource_group": group }),
    );
    let mut subnet = of("paraglider-subnet-11111111");
    subnet["ipv4_cidr_block"] = json!("10.0.0.0/16");
    cloud.put("subnets", "s1", &["pg", "default", "v1"], subnet);
    cloud.put("security_groups", "g1", &["pg", "default", "v1", "i1"], of("paraglider-sg-22222222"));
    let rule = json!({ "direction": "inbound", "protocol": "tcp", "port_min": 22, "port_max": 22, "remote": { "address": "10.0.0.9" } });
    cloud.put("security_groups/g1/rules", "r1", &[], rule);
    // What it wrote with the protocol -1, as IBM tells it today.
    let all =
        json!({ "direction": "outbound", "protocol": "icmp_tcp_udp", "remote": { "address": "10.0.0.8" } });
    cloud.put("security_groups/g1/rules", "r2", &[], all);
    let mut machine = of("paraglider-vm-33333333");
    machine["primary_network_interface"] = json!({
        "id": "n1", "subnet": { "id": "s1" }, "security_groups": [{ "id": "g1" }], "primary_ip": { "address": "10.0.0.4" },
    });
    cloud.put("instances", "i1", &["pg", "default", "v1"], machine);
}

#[tokio::test]
async fn what_the_original_made_is_found_by_its_tags_and_keeps_its_rules() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    sim.with(made_by_the_original);
    let uri = "/resourcegroup/rg/zone/us-south-1/instance/i1";
    let used = ibm.used_spaces(&[deployment("default")]).await.unwrap();
    assert_eq!(used[0].spaces, ["10.0.0.0/16".parse().unwrap()]);
    assert!(ibm.used_spaces(&[deployment("other")]).await.unwrap().is_empty());
    let foreign = ibm.permit_list("other", uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    for (namespace, uri) in
        [("pg", uri), ("shared", uri), ("default", "/resourcegroup/mine/zone/us-south-1/instance/i1")]
    {
        assert!(ibm.permit_list(namespace, uri).await.is_err(), "{namespace} {uri}");
    }

    // Its rule is there, by its contents or by the name that the original kept.
    for (id, name) in [("r1", "ssh"), ("r2", "all")] {
        let found = ibm.permit_list("default", uri).await.unwrap();
        assert!(found.len() == 2 && found.iter().all(|rule| rule.name != name), "{found:?}");
        world.running.orchestrator.set_value("default", "ibm", id, name).await.unwrap();
    }
    let found = ibm.permit_list("default", uri).await.unwrap();
    let told = |rule: &Rule| (rule.name.clone(), rule.protocol, rule.dst_port, rule.targets.concat());
    assert_eq!(
        found.iter().map(told).collect::<Vec<_>>(),
        [("all".into(), -1, -1, "10.0.0.8/32".into()), ("ssh".into(), 6, 22, "10.0.0.9/32".into())]
    );
    assert_eq!(ibm.drift("default", false).await.unwrap(), Vec::<String>::new());

    // One more leaves it alone; it goes by its name.
    let groups = || sim.with(|cloud| cloud.state().keys().filter(|path| path.contains("/g1/rules/")).count());
    sim.faults(Faults::default());
    ibm.add_rules("default", uri, vec![rule("web", Direction::Inbound, "10.0.0.10/32")]).await.unwrap();
    assert_eq!((groups(), sim.changes().len()), (3, 1), "one more, and those before as they were");
    ibm.delete_rules("default", uri, vec!["all".into(), "ssh".into()]).await.unwrap();
    let left = ibm.permit_list("default", uri).await.unwrap();
    assert_eq!((left.len(), left[0].name.as_str(), groups()), (1, "web", 1));

    // A new machine of the namespace comes into its network, which stays when the last of ours goes.
    sim.faults(Faults::default());
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    let changes = sim.changes();
    let kinds: Vec<&str> = changes.iter().map(|call| call.rsplit('/').next().unwrap()).collect();
    assert_eq!(kinds, ["security_groups", "instances"]);
    assert!(made.ip.starts_with("10.0."), "{made:?}");
    ibm.delete_resource("default", &made.uri).await.unwrap();
    ibm.delete_resource("default", uri).await.unwrap();
    assert!(sim.with(|cloud| cloud.state().contains_key("us-south/v1/vpcs/v1")), "it is not ours to remove");
    sim.assert_sound();
}

#[tokio::test]
async fn ways_go_with_the_last_rule_that_needs_them() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    for number in 0..5 {
        step(number, &ibm).await.unwrap();
    }
    let second = ibm.create_resource(machine("default", "vm-3")).await.unwrap();
    ibm.add_rules("default", &second.uri, vec![rule("out", Direction::Outbound, "203.0.113.8/32")])
        .await
        .unwrap();
    let there = |kind: &str| {
        let of = format!("/{kind}/");
        sim.with(|cloud| cloud.state().keys().filter(|path| path.contains(&of)).count())
    };
    assert_eq!((there("public_gateways"), there("connections")), (1, 2));
    // The other network's machine has a rule of its own for the same way.
    let far = uri("other", "vm-2");
    let near = ibm.list_resources("default").await.unwrap()[0].ip.clone();
    ibm.add_rules("other", &far, vec![rule("peer", Direction::Inbound, &near)]).await.unwrap();
    step(7, &ibm).await.unwrap();
    assert_eq!((there("public_gateways"), there("connections")), (1, 2), "others need both");
    ibm.delete_rules("other", &far, vec!["peer".into()]).await.unwrap();
    assert_eq!((there("connections"), there("transit_gateways")), (0, 0));
    ibm.delete_resource("default", &second.uri).await.unwrap();
    assert_eq!(there("public_gateways"), 0, "its machine was the last that used it");
    assert_eq!(there("instances"), 2);
    // And come again.
    step(3, &ibm).await.unwrap();
    assert_eq!(there("public_gateways"), 1);
    sim.assert_sound();
}

#[tokio::test]
async fn one_machine_that_cannot_be_compared_is_named_and_hides_no_other() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    sim.with(made_by_the_original);
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    ibm.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await.unwrap();
    // Somebody takes the rules of both away and writes one that no rule can say.
    sim.with(IbmCloud::lose_rules);
    let odd = json!({ "direction": "inbound", "protocol": "all", "remote": { "id": "another-group" } });
    sim.with(|cloud| cloud.put("security_groups/g1/rules", "r3", &[], odd));
    let found = ibm.drift("default", false).await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().any(|said| said.contains("is not compared: the security group g1")), "{found:?}");
    assert!(found.iter().any(|said| said.starts_with("vm-1: 1 of")), "{found:?}");
    sim.assert_sound();
}

#[tokio::test]
async fn a_machine_that_others_put_into_the_network_keeps_its_rules() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    sim.with(|cloud| {
        let vpc = cloud.state().into_iter().find(|(path, _)| path.contains("/vpcs/")).unwrap().1;
        let theirs = json!({
            "name": "theirs", "vpc": { "id": vpc["id"], "name": vpc["name"] }, "resource_group": { "id": "rg" },
            "zone": { "name": "us-south-1" },
            "primary_network_interface": {
                "id": "n9", "security_groups": [{ "id": "g9" }], "primary_ip": { "address": "10.0.0.99" },
            },
        });
        cloud.put("security_groups", "g9", &[], json!({ "name": "theirs", "vpc": theirs["vpc"] }));
        let rule = json!({ "direction": "inbound", "protocol": "all", "remote": { "address": "10.0.0.9" } });
        cloud.put("security_groups/g9/rules", "r9", &[], rule);
        cloud.put("instances", "i9", &[], theirs);
    });
    assert_eq!(ibm.drift("default", true).await.unwrap(), Vec::<String>::new());
    assert!(sim.with(|cloud| cloud.state().keys().any(|path| path.contains("g9/rules"))), "they are theirs");
    let held = ibm.list_resources("default").await.unwrap();
    assert_eq!(held.iter().map(|held| held.name.as_str()).collect::<Vec<_>>(), ["vm-1"]);
    let theirs = "/resourcegroup/rg/zone/us-south-1/instance/i9";
    let web = vec![rule("web", Direction::Inbound, "10.0.0.9/32")];
    assert!(matches!(ibm.add_rules("default", theirs, web).await, Err(Error::Foreign { .. })));
    assert!(matches!(ibm.delete_resource("default", theirs).await, Err(Error::Foreign { .. })));
    sim.assert_sound();
}

#[tokio::test]
async fn ibms_own_sdks_drive_the_stand_in_to_the_same_state() {
    let python = tarbet_testbed::vendor_python("ibm").await.unwrap();
    let theirs = Sim::start(IbmCloud::new()).await;
    // The SDKs do not wait with our time.
    theirs.with(|cloud| cloud.takes = Duration::ZERO);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/ibm/drive.py");
    let run = tokio::process::Command::new(python).arg(script).arg(&theirs.url).output().await.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    theirs.assert_sound();

    let world = World::start().await;
    let ibm = world.ibm();
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    ibm.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await.unwrap();
    ibm.create_gateway(gateway()).await.unwrap();
    ibm.create_connections(connections()).await.unwrap();
    endpoints::allow(&ibm).await.unwrap();
    let made = ibm.create_resource(endpoints::endpoint("default", "e-1")).await.unwrap();
    ibm.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await.unwrap();
    assert_eq!(theirs.with(|cloud| cloud.state()), world.sim.with(|cloud| cloud.state()));
}
