//! The Google Cloud plugin against a stand-in of the Compute and Kubernetes Engine APIs that holds every request
//! against Google's own discovery documents, and which Google's own client has driven too.

mod clusters;
mod contract;
mod credentials;
mod endpoints;
mod foreign;
mod vendor;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud, Guarded, NewConnections, NewGateway, NewResource, OldConnections, Policy};
use tarbet_nets::clouds::{Gcp, GcpConfig};
use tarbet_nets::model::{Deployment, Direction, Rule, SharedKey};
use tarbet_nets::{Error, NetsConfig};
use tarbet_testbed::{Folder, Lease};

use super::bed::{self, Running};
use super::life::{self, Life};
use super::sim::{Faults, Sim};
use vendor::{Google, PREFIX};

/// The cloud, an orchestrator, and what a plugin needs to be made any number of times.
pub(super) struct World {
    pub(super) sim: Sim<Google>,
    config: GcpConfig,
    running: Running,
    _folder: Folder,
    _plugin: bed::Listening,
    _ports: Lease,
}

impl World {
    pub(super) async fn start() -> Self {
        let sim = Sim::start(Google::new()).await;
        let folder = Folder::new("gcp").unwrap();
        let token_file = Some(folder.write("token", "sesame\n").unwrap());
        let endpoint = format!("{}/compute/v1", sim.url);
        let container_endpoint = format!("{}/v1", sim.url);
        let config = GcpConfig { endpoint, container_endpoint, token_file, ..GcpConfig::default() };
        // The orchestrator asks a plugin of its own, over the wire, so that it knows the spaces.
        let ports = Lease::block(4).unwrap();
        let late = tarbet_nets::controller::LateController::default();
        let plugin =
            Gcp::with_clock("gcp", &config, Arc::new(late.clone()), Arc::new(sim.clock.clone())).unwrap();
        let plugin = bed::serve(tarbet_nets::cloud::serve(Arc::new(plugin), "gcp")).await;
        let nets: NetsConfig = serde_json::from_value(json!({
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
            "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
            "cloudPlugins": [{ "name": "gcp", "host": "127.0.0.1", "port": plugin.address.port() }],
            "namespaces": {
                "default": [{ "name": "gcp", "deployment": "projects/p" }],
                "other": [{ "name": "gcp", "deployment": "projects/q" }],
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
    pub(super) fn gcp(&self) -> Gcp {
        let controller = Arc::new(self.running.orchestrator.clone());
        Gcp::with_clock("gcp", &self.config, controller, Arc::new(self.sim.clock.clone())).unwrap()
    }
}

pub(super) fn deployment(namespace: &str) -> Deployment {
    let project = if namespace == "default" { "p" } else { "q" };
    Deployment { id: format!("projects/{project}"), namespace: namespace.into() }
}

pub(super) fn machine(namespace: &str, name: &str) -> NewResource {
    let description = json!({
        "zone": "us-west1-a", "instance_resource": { "machineType": "zones/us-west1-a/machineTypes/e2-small" },
    });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

fn uri(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{}/zones/us-west1-a/instances/{name}", deployment(namespace).id)
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

fn addresses(host: u8) -> Vec<std::net::Ipv4Addr> {
    (21..23).map(|third| std::net::Ipv4Addr::new(169, 254, third, host)).collect()
}

fn gateway() -> NewGateway {
    NewGateway {
        deployment: deployment("default"),
        cloud: "east".into(),
        bgp_addresses: addresses(2),
        space: None,
    }
}

fn connections() -> NewConnections {
    NewConnections {
        deployment: deployment("default"),
        cloud: "east".into(),
        asn: 65515,
        gateways: vec!["198.51.100.1".into(), "198.51.100.2".into()],
        bgp_addresses: addresses(1),
        key: SharedKey::new("secret"),
        remote_spaces: vec![],
        bgp: true,
        space: None,
    }
}

fn old_connections() -> OldConnections {
    OldConnections { deployment: deployment("default"), cloud: "east".into(), bgp_addresses: addresses(1) }
}

/// One step of the scenario, which is everything a plugin is asked in the life of two networks.
async fn step(number: usize, gcp: &dyn Cloud) -> Result<(), Error> {
    let near = uri("default", "vm-1");
    match number {
        0 => gcp.create_resource(machine("default", "vm-1")).await.map(drop),
        1 => gcp.create_resource(machine("other", "vm-2")).await.map(drop),
        2 => {
            let moved = rule("web", Direction::Outbound, "10.0.0.10/32");
            gcp.add_rules("default", &near, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await?;
            gcp.add_rules("default", &near, vec![moved]).await
        }
        3 => gcp.add_rules("default", &near, vec![rule("out", Direction::Outbound, "203.0.113.9/32")]).await,
        4 => {
            let used = gcp.used_spaces(&[deployment("other")]).await?;
            let far = used[0].spaces[0].hosts().nth(4).unwrap().to_string();
            gcp.add_rules("default", &near, vec![rule("peer", Direction::Outbound, &far)]).await
        }
        5 => gcp.create_gateway(gateway()).await.map(drop),
        6 => gcp.create_connections(connections()).await,
        7 => gcp.delete_rules("default", &near, vec!["peer".into(), "out".into(), "never".into()]).await,
        8 => gcp.delete_connections(old_connections()).await,
        9 => gcp.delete_resource("default", &near).await,
        10 => {
            clusters::allow(gcp).await?;
            gcp.create_resource(clusters::cluster("other", "c-1")).await.map(drop)
        }
        11 => {
            let web = rule("web", Direction::Inbound, "10.0.0.9/32");
            gcp.add_rules("other", &clusters::uri("other", "c-1"), vec![web]).await
        }
        12 => gcp.delete_resource("other", &uri("other", "vm-2")).await,
        13 => gcp.delete_resource("other", &clusters::uri("other", "c-1")).await,
        14 => {
            endpoints::allow(gcp).await?;
            gcp.create_resource(endpoints::service("default", "e-1")).await.map(drop)
        }
        15 => {
            endpoints::allow(gcp).await?;
            gcp.create_resource(endpoints::bundle("default", "apis")).await.map(drop)
        }
        16 => {
            let web = rule("web", Direction::Inbound, &endpoints::address(gcp, "apis").await?);
            gcp.add_rules("default", &endpoints::service_uri("default", "e-1"), vec![web]).await
        }
        17 => gcp.delete_resource("default", &endpoints::service_uri("default", "e-1")).await,
        18 => gcp.delete_resource("default", &endpoints::bundle_uri("default", "apis")).await,
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn the_calls_of_a_whole_life() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    sim.faults(Faults::default());
    let made = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    assert_eq!((made.uri.clone(), made.ip.as_str()), (uri("default", "vm-1"), "10.0.0.2"));
    let calls = [
        "POST /compute/v1/projects/p/global/networks",
        "POST /compute/v1/projects/p/global/firewalls",
        "POST /compute/v1/projects/p/regions/us-west1/subnetworks",
        "POST /compute/v1/projects/p/zones/us-west1-a/instances",
        "POST /compute/v1/projects/p/zones/us-west1-a/instances/vm-1/setTags",
    ];
    assert_eq!(sim.changes(), calls);
    // The same again changes nothing.
    assert_eq!(gcp.create_resource(machine("default", "vm-1")).await.unwrap(), made);
    assert_eq!(sim.changes().len(), calls.len());
    let used = gcp.used_spaces(&[deployment("default")]).await.unwrap();
    assert_eq!(used[0].spaces, ["10.0.0.0/16".parse().unwrap()]);
    let held = gcp.list_resources("default").await.unwrap();
    assert_eq!((held.len(), &held[0].uri, &held[0].ip), (1, &made.uri, &made.ip));

    // Refusals touch nothing.
    sim.faults(Faults::default());
    let foreign = gcp.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    let long = Rule { name: "x".repeat(60), ..rule("", Direction::Inbound, "10.0.0.9") };
    for (bad, field) in [
        (Rule { src_port: 22, ..rule("web", Direction::Inbound, "10.0.0.9") }, "src_port"),
        (long, "name"),
        (rule("web", Direction::Inbound, "10.9.9.9"), "targets"),
    ] {
        let error = gcp.add_rules("default", &made.uri, vec![bad]).await.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    let policy = Policy { no_public_targets: true, ..Policy::default() };
    let guarded = Guarded::new(policy, world.gcp());
    let public = rule("out", Direction::Outbound, "203.0.113.9");
    assert!(matches!(guarded.add_rules("default", &made.uri, vec![public]).await, Err(Error::Policy { .. })));
    assert_eq!(sim.changes(), Vec::<String>::new());

    // Rules: made, known again, changed, emptied.
    let inbound = rule("web", Direction::Inbound, "10.0.0.9/32");
    gcp.add_rules("default", &made.uri, vec![inbound.clone()]).await.unwrap();
    assert_eq!(gcp.permit_list("default", &made.uri).await.unwrap(), std::slice::from_ref(&inbound));
    sim.faults(Faults::default());
    gcp.add_rules("default", &made.uri, vec![inbound.clone()]).await.unwrap();
    assert_eq!(sim.changes(), Vec::<String>::new(), "an equal rule is left alone");
    let moved = Rule { targets: vec!["10.0.0.10/32".into()], ..inbound.clone() };
    gcp.add_rules("default", &made.uri, vec![moved.clone()]).await.unwrap();
    assert!(sim.changes()[0].starts_with("PATCH "), "{:?}", sim.changes());
    assert_eq!(gcp.permit_list("default", &made.uri).await.unwrap(), [moved]);
    gcp.add_rules("default", &made.uri, vec![Rule { targets: vec![], ..inbound }]).await.unwrap();
    assert!(gcp.permit_list("default", &made.uri).await.unwrap().is_empty(), "nobody is not everybody");

    // A router that was made for NAT gets a number, and keeps its NAT.
    step(3, &gcp).await.unwrap();
    let router = "projects/p/regions/us-west1/routers/para-default-router";
    assert_eq!(
        sim.with(|google| google.object(router)["nats"][0]["natIpAllocateOption"].clone()),
        "AUTO_ONLY"
    );
    let first = gcp.create_gateway(gateway()).await.unwrap();
    assert_eq!(first.addresses, ["203.0.113.1", "203.0.113.2"]);
    assert_eq!(gcp.create_gateway(gateway()).await.unwrap(), first);
    gcp.create_connections(connections()).await.unwrap();
    sim.faults(Faults::default());
    gcp.create_connections(connections()).await.unwrap();
    assert_eq!(sim.changes(), Vec::<String>::new(), "connecting again changes nothing");
    sim.with(|google| {
        assert_eq!(google.object(router)["bgp"]["asn"], json!(first.asn));
        assert_eq!(google.object(router)["bgpPeers"][1]["peerAsn"], 65515);
        assert!(google.object(router)["nats"].is_array(), "a change to one list keeps the others");
    });
    assert_eq!(gcp.used_asns(&[deployment("default")]).await.unwrap(), [first.asn]);
    assert_eq!(gcp.used_bgp_addresses(&[deployment("default")]).await.unwrap(), addresses(2));

    // What others break is found, and mended.
    sim.with(|google| google.lose("projects/p/global/firewalls/para-default-deny-all-egress"));
    assert_eq!(gcp.drift("default", true).await.unwrap().len(), 1);
    assert_eq!(gcp.drift("default", false).await.unwrap(), Vec::<String>::new());

    for number in 8..10 {
        step(number, &gcp).await.unwrap();
    }
    assert_eq!(sim.with(|google| google.state()), BTreeMap::default(), "nothing is left");
    sim.assert_sound();
}

#[tokio::test]
async fn nat_goes_with_the_last_rule_that_needs_it() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let mut uris = Vec::new();
    for (name, zone) in [("vm-1", "us-west1-a"), ("vm-2", "us-west1-b"), ("vm-3", "europe-west1-b")] {
        let mut new = machine("default", name);
        new.description = new.description.replace("us-west1-a", zone);
        let made = gcp.create_resource(new).await.unwrap();
        gcp.add_rules("default", &made.uri, vec![rule("out", Direction::Outbound, "203.0.113.9/32")])
            .await
            .unwrap();
        uris.push(made.uri);
    }
    let nats = || {
        let routers = |path: &&String| path.contains("/routers/");
        sim.with(|google| google.state().keys().filter(routers).cloned().collect::<Vec<_>>())
    };
    assert_eq!(nats().len(), 2);
    gcp.delete_rules("default", &uris[0], vec!["out".into()]).await.unwrap();
    assert_eq!(nats().len(), 2, "its neighbour needs it");
    gcp.delete_resource("default", &uris[1]).await.unwrap();
    assert_eq!(nats(), ["projects/p/regions/europe-west1/routers/para-default-router"]);
    gcp.delete_rules("default", &uris[2], vec!["out".into()]).await.unwrap();
    assert_eq!(nats(), Vec::<String>::new());
    // A gateway that is there keeps its router.
    gcp.create_gateway(gateway()).await.unwrap();
    step(3, &gcp).await.unwrap();
    gcp.delete_rules("default", &uris[0], vec!["out".into()]).await.unwrap();
    let router = "projects/p/regions/us-west1/routers/para-default-router";
    sim.with(|google| {
        assert_eq!(google.object(router)["nats"], json!([]));
        assert!(google.object(router)["interfaces"].is_array());
    });
    sim.assert_sound();
}

#[tokio::test]
async fn a_name_that_is_too_long_is_refused_before_anything_is_made() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    step(0, &gcp).await.unwrap();
    sim.faults(Faults::default());
    let cloud = "c".repeat(37);
    let refused = gcp.create_gateway(NewGateway { cloud: cloud.clone(), ..gateway() }).await.unwrap_err();
    assert!(refused.to_string().contains("int-0"), "{refused}");
    assert!(gcp.create_connections(NewConnections { cloud, ..connections() }).await.is_err());
    assert_eq!(sim.changes(), Vec::<String>::new());
    sim.assert_sound();
}

#[tokio::test]
async fn what_others_open_in_a_network_is_found_and_shut() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    step(0, &gcp).await.unwrap();
    let deny = "projects/p/global/firewalls/para-default-deny-all-egress";
    let whole = sim.with(|google| google.object(deny).clone());
    for (field, value) in [
        ("disabled", json!(true)),
        ("priority", json!(65535)),
        ("destinationRanges", json!(["10.0.0.0/8"])),
        ("denied", json!([{ "IPProtocol": "udp" }])),
        ("targetTags", json!(["few"])),
    ] {
        sim.with(|google| google.change(deny, |denial| denial[field] = value.clone()));
        let found = gcp.drift("default", true).await.unwrap();
        assert_eq!(found, ["para-default-deny-all-egress was changed: egress without a rule is allowed"]);
        assert_eq!(gcp.drift("default", false).await.unwrap(), Vec::<String>::new(), "{field}");
    }
    sim.with(|google| {
        google.change(deny, |denial| {
            denial.as_object_mut().unwrap().remove("denied");
            denial["allowed"] = json!([{ "IPProtocol": "all" }]);
        });
    });
    assert_eq!(gcp.drift("default", true).await.unwrap().len(), 1);
    let mended = sim.with(|google| google.object(deny).clone());
    assert_eq!((&mended["denied"], &mended["allowed"]), (&whole["denied"], &Value::Null));

    // A permission, a denial, one of a cluster's and one in another network, all by somebody else.
    sim.with(|google| {
        for (name, network, list) in [
            ("open", "para-default-vpc", "allowed"),
            ("quarantine", "para-default-vpc", "denied"),
            ("k8s-fw-abc", "para-default-vpc", "allowed"),
            ("gkegw1-abc-l7-default", "para-default-vpc", "allowed"),
            ("theirs", "default", "allowed"),
        ] {
            let wall = json!({
                "name": name, "network": format!("{PREFIX}projects/p/global/networks/{network}"),
                "direction": "INGRESS", "priority": 100, "sourceRanges": ["0.0.0.0/0"],
                list: [{ "IPProtocol": "tcp", "ports": ["22"] }],
            });
            google.put(&format!("projects/p/global/firewalls/{name}"), wall);
        }
    });
    let found = gcp.drift("default", true).await.unwrap();
    let told = |name: &str, word: &str| format!("{name} is in no permit list: {word} tcp 22 from 0.0.0.0/0");
    let (cluster, denial) = (told("k8s-fw-abc", "allows"), told("quarantine", "denies"));
    let gateway = told("gkegw1-abc-l7-default", "allows");
    assert_eq!(found, [gateway.clone(), cluster.clone(), told("open", "allows"), denial.clone()]);
    assert_eq!(gcp.drift("default", false).await.unwrap(), [gateway, cluster, denial], "told and left");
    sim.assert_sound();
}

impl Life for World {
    type Cloud = Google;
    const STEPS: usize = 19;

    fn sim(&self) -> &Sim<Google> {
        &self.sim
    }

    fn plugin(&self) -> impl Cloud {
        self.gcp()
    }

    async fn step(number: usize, plugin: &dyn Cloud) -> Result<(), Error> {
        step(number, plugin).await
    }

    fn state(&self) -> BTreeMap<String, Value> {
        self.sim.with(|google| google.state())
    }
}

#[tokio::test]
async fn every_cut_point_ends_as_wanted_with_no_orphan() {
    life::is_cut_at_every_request(&World::start().await).await;
}

#[tokio::test]
async fn throttling_failures_and_long_operations_converge() {
    let world = World::start().await;
    world.sim.with(|google| google.takes = Duration::from_mins(20));
    life::converges_in_trouble(&world).await;
}

#[tokio::test]
async fn the_first_generation_is_served() {
    let world = World::start().await;
    // As its users write it: no id, and both in the description.
    let mut new = machine("default", "vm-1");
    let mut description: Value = serde_json::from_str(&new.description).unwrap();
    description["project"] = json!("p");
    description["instance_resource"]["name"] = json!("vm-1");
    new.description = description.to_string();
    life::speaks_the_first_generation(world.gcp(), "gcp", "", new, "10.0.0.9/32").await;
    world.sim.assert_sound();
}

#[tokio::test]
async fn googles_own_client_drives_the_stand_in_to_the_same_state() {
    let python = tarbet_testbed::vendor_python("gcp").await.unwrap();
    let theirs = Sim::start(Google::new()).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/gcp/drive.py");
    let run = tokio::process::Command::new(python).arg(script).arg(&theirs.url).output().await.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    theirs.assert_sound();

    let world = World::start().await;
    let gcp = world.gcp();
    let made = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    for target in ["10.0.0.9/32", "10.0.0.10/32"] {
        gcp.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, target)]).await.unwrap();
    }
    gcp.create_gateway(gateway()).await.unwrap();
    gcp.create_connections(connections()).await.unwrap();
    clusters::allow(&gcp).await.unwrap();
    gcp.create_resource(clusters::cluster("default", "c-1")).await.unwrap();
    endpoints::allow(&gcp).await.unwrap();
    let made = gcp.create_resource(endpoints::service("default", "e-1")).await.unwrap();
    gcp.create_resource(endpoints::bundle("default", "apis")).await.unwrap();
    gcp.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await.unwrap();
    assert_eq!(theirs.with(|google| google.state()), world.sim.with(|google| google.state()));
}
