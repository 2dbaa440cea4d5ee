//! Networks of others in a project: seen, kept clear of, left alone.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;

use super::super::import::{column, import};
use super::super::sim::Faults;
use super::vendor::{Object, PREFIX};
use super::{World, deployment, machine};

impl World {
    /// Somebody else makes an object.
    fn theirs(&self, path: &str, mut body: Value) {
        body["name"] = json!(path.rsplit('/').next());
        let object = Object { body, ready_at: Duration::ZERO, gone_at: None };
        self.sim.with(|google| google.objects.insert(path.into(), object));
    }
}

#[tokio::test]
async fn networks_of_others_are_seen_and_left_alone() {
    let world = World::start().await;
    let gcp = world.gcp();
    let made = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    assert!(made.ip.starts_with("10.0."), "{made:?}");
    for name in ["default", "shared", "empty"] {
        world.theirs(&format!("projects/p/global/networks/{name}"), json!({}));
    }
    world.theirs("projects/q/global/networks/far", json!({}));
    let at = |name: &str| format!("{PREFIX}projects/p/global/networks/{name}");
    for (region, name, range) in [
        ("us-west1", "default", "10.1.0.0/20"),
        ("europe-west1", "default", "10.132.0.0/20"),
        ("us-west1", "shared", "10.2.0.0/16"),
    ] {
        let path = format!("projects/p/regions/{region}/subnetworks/{name}");
        world.theirs(&path, json!({ "network": at(name), "ipCidrRange": range }));
    }
    world.theirs(
        "projects/p/global/addresses/services",
        json!({ "network": at("shared"), "address": "10.3.0.0", "prefixLength": 16, "purpose": "VPC_PEERING" }),
    );
    world.theirs(
        "projects/p/zones/us-west1-b/instances/theirs",
        json!({ "networkInterfaces": [{ "network": at("shared") }] }),
    );
    let before = world.sim.with(|google| google.state());

    world.sim.faults(Faults::default());
    let found = gcp.foreign_networks(&[deployment("default"), deployment("other")]).await.unwrap();
    let told: Vec<(&str, String, Option<u32>)> = found
        .iter()
        .map(|one| {
            let spaces: Vec<String> = one.spaces.iter().map(ToString::to_string).collect();
            (one.id.as_str(), spaces.join(" "), one.machines)
        })
        .collect();
    let others = [
        ("projects/p/global/networks/default", "10.132.0.0/20 10.1.0.0/20".to_owned(), Some(0)),
        ("projects/p/global/networks/empty", String::new(), Some(0)),
        ("projects/p/global/networks/shared", "10.2.0.0/16 10.3.0.0/16".to_owned(), Some(1)),
        ("projects/q/global/networks/far", String::new(), Some(0)),
    ];
    assert_eq!(told, others);
    let seen = world.sim.seen();
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.method == Method::GET), "{seen:?}");

    let told = import(&world.running.rest, "gcp", "").await;
    assert_eq!(column(&told["networks"], "name"), ["default", "empty", "far", "shared"]);
    assert_eq!(world.sim.with(|google| google.state()), before, "nothing changed in the cloud");
    assert_eq!(world.sim.changes(), Vec::<String>::new());
    let made = gcp.create_resource(machine("other", "vm-2")).await.unwrap();
    assert!(made.ip.starts_with("10.4."), "{made:?}");
    world.sim.assert_sound();
}
