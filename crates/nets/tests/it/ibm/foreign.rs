//! Networks of others in a resource group: seen, kept clear of, left alone.

use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;

use super::super::import::{column, import};
use super::super::sim::Faults;
use super::{World, deployment, machine};

#[tokio::test]
async fn networks_of_others_are_seen_and_left_alone() {
    let world = World::start().await;
    let ibm = world.ibm();
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    assert!(made.ip.starts_with("10.0."), "{made:?}");
    world.sim.with(|cloud| {
        let of = |name: &str| json!({ "name": name, "resource_group": { "id": "rg" } });
        for (id, name) in [("v1", "legacy"), ("v2", "older"), ("v3", "paraglider-vpc-0badcafe")] {
            cloud.put("vpcs", id, &[], of(name));
        }
        cloud.put("vpcs", "v4", &[], json!({ "name": "far", "resource_group": { "id": "another" } }));
        cloud.put(
            "vpcs/v1/address_prefixes",
            "p1",
            &[],
            json!({ "cidr": "10.1.0.0/16", "zone": { "name": "us-south-1" } }),
        );
        let within = |name: &str, vpc: &str| {
            let mut body = of(name);
            body["vpc"] = json!({ "id": vpc });
            body
        };
        for (id, vpc, range) in [("s1", "v1", "10.1.8.0/24"), ("s2", "v2", "10.2.0.0/20")] {
            let mut subnet = within(id, vpc);
            subnet["ipv4_cidr_block"] = json!(range);
            cloud.put("subnets", id, &[], subnet);
        }
        cloud.put("instances", "i1", &[], within("theirs", "v1"));
    });
    let before = world.sim.with(|cloud| (cloud.state(), cloud.tags.clone()));

    world.sim.faults(Faults::default());
    let found = ibm.foreign_networks(&[deployment("default"), deployment("other")]).await.unwrap();
    let told: Vec<(&str, String, Option<u32>, Option<u32>)> = found
        .iter()
        .map(|one| {
            let spaces: Vec<String> = one.spaces.iter().map(ToString::to_string).collect();
            (one.name.as_str(), spaces.join(" "), one.subnets, one.machines)
        })
        .collect();
    let others = [
        ("legacy", "10.1.0.0/16".to_owned(), Some(1), Some(1)),
        ("older", "10.2.0.0/20".to_owned(), Some(1), Some(0)),
        ("paraglider-vpc-0badcafe", String::new(), Some(0), Some(0)),
    ];
    assert_eq!(told, others);
    let seen = world.sim.seen();
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.method == http::Method::GET), "{seen:?}");

    let told = import(&world.running.rest, "ibm", "").await;
    assert_eq!(column(&told["networks"], "name"), ["legacy", "older", "paraglider-vpc-0badcafe"]);
    assert_eq!(told["overlaps"], Value::Array(Vec::new()));
    assert_eq!(
        world.sim.with(|cloud| (cloud.state(), cloud.tags.clone())),
        before,
        "nothing changed in the cloud"
    );
    assert_eq!(world.sim.changes(), Vec::<String>::new());
    let made = ibm.create_resource(machine("other", "vm-2")).await.unwrap();
    assert!(made.ip.starts_with("10.3."), "{made:?}");
    world.sim.assert_sound();
}
