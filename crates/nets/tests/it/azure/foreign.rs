//! Virtual networks of others: seen, kept clear of, left alone.

use http::Method;
use serde_json::json;
use tarbet_nets::cloud::Cloud as _;

use super::super::import::{column, import};
use super::super::sim::Faults;
use super::{Bed, deployment, machine, network, new_machine};

#[tokio::test]
async fn networks_of_others_are_seen_and_left_alone() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    let made = azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    assert_eq!(made.ip, "10.0.0.4");
    bed.sim.with(|sim| {
        for (name, space) in [("legacy", "10.1.0.0/16"), ("older", "172.16.0.0/24"), ("last", "10.2.0.0/17")] {
            let vnet = network(&format!("virtualNetworks/{name}"));
            let body = json!({ "location": "East US", "properties": { "addressSpace": { "addressPrefixes": [space] } } });
            sim.insert(&vnet, body);
            sim.insert(&format!("{vnet}/subnets/a"), json!({ "properties": { "addressPrefix": space } }));
        }
        let subnet = network("virtualNetworks/legacy/subnets/a");
        sim.insert(&network("networkInterfaces/theirs"), json!({
            "location": "eastus",
            "properties": {
                "virtualMachine": { "id": machine("theirs") },
                "ipConfigurations": [{ "properties": { "privateIPAddress": "10.1.0.4", "subnet": { "id": subnet } } }],
            },
        }));
    });
    let before = bed.sim.with(|sim| sim.objects.clone());

    bed.sim.faults(Faults::default());
    let found = azure.foreign_networks(&[deployment("default"), deployment("other")]).await.unwrap();
    let told: Vec<(&str, &str, Option<u32>, Option<u32>)> =
        found.iter().map(|one| (one.name.as_str(), one.region.as_str(), one.subnets, one.machines)).collect();
    let others = [
        ("last", "eastus", Some(1), Some(0)),
        ("legacy", "eastus", Some(1), Some(1)),
        ("older", "eastus", Some(1), Some(0)),
    ];
    assert_eq!(told, others);
    let seen = bed.sim.seen();
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.method == Method::GET), "{seen:?}");
    // A namespace that is not asked about is somebody else's.
    let beside = azure.foreign_networks(&[deployment("other")]).await.unwrap();
    let mut names: Vec<&str> = beside.iter().map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["last", "legacy", "older", "paraglider-default-westus2-vnet"]);

    let told = import(&bed.running.rest, "azure", "").await;
    assert_eq!(column(&told["networks"], "name"), ["last", "legacy", "older"]);
    assert_eq!(told["overlaps"], json!([]));
    assert_eq!(bed.sim.with(|sim| sim.objects.clone()), before, "nothing changed in the cloud");
    let made = azure.create_resource(new_machine("default", "vm2", "northeurope")).await.unwrap();
    assert_eq!(made.ip, "10.3.0.4");
    bed.sim.assert_sound();
}
