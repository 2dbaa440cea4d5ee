//! What deciding costs while there are more and more services, without clusters: half are exported, half imported.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;
use tarbet_mesh::fds::Snapshot;
use tarbet_mesh::model::{Service, ServicePort};
use tarbet_mesh::plan::{Memo, World, plan, plan_again};

use super::listen::offer;
use crate::Bench;
use crate::growth::{Growth, SIZES};

pub(super) fn measure(bench: &Bench) -> Result<Vec<Growth>> {
    let mut fresh = Growth::new("planning, each of so many services", "µs");
    let mut again = Growth::new("planning again after one of so many services changed", "µs");
    let mut snapshot = Growth::new("telling peers, each of so many services", "µs");
    for size in SIZES {
        let mut world = world(size / 2)?;
        for round in 0..bench.scale.rounds {
            let begun = Instant::now();
            let planned = plan(&world);
            fresh.at(size, micros(begun) / size as f64);
            let (told, taken) = (planned.exports.len(), planned.imports.len());
            ensure!(told + taken == size, "{told} exports and {taken} imports of {size}");

            let mut memo = Memo::default();
            plan_again(&world, &mut memo);
            change(&mut world, round);
            let begun = Instant::now();
            plan_again(&world, &mut memo);
            again.at(size, micros(begun));

            let begun = Instant::now();
            let told = Snapshot::first("east", &planned.exports, 1_000);
            snapshot.at(size, micros(begun) / told.len() as f64);
        }
    }
    Ok(vec![fresh, again, snapshot])
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// A mesh with so many services that are exported, and as many others that a peer offers.
fn world(count: usize) -> Result<World> {
    let federation = json!({
        "local": { "id": "east", "network": "east", "ingress": { "gateway": { "selector": { "app": "gateway" } } } },
        "remote": [{ "id": "west", "network": "west", "ingress": { "addresses": ["192.0.2.1"] } }],
    });
    let rules = json!({ "export": { "serviceList": ["own/*"] }, "import": [{ "meshID": "west" }] });
    let services = (0..count).map(|number| (("own".to_owned(), format!("s{number}")), Arc::new(service(80))));
    let offers = (0..count).map(|number| Arc::new(offer(number, 0, 5))).collect();
    Ok(World {
        controller_namespace: "istio-system".to_owned(),
        federation: Some(Arc::new(serde_json::from_value(federation)?)),
        rules: Some(Arc::new(serde_json::from_value(rules)?)),
        services: services.collect(),
        namespaces: [("own".to_owned(), Arc::default())].into_iter().collect(),
        peers: [("west".to_owned(), offers)].into(),
        ..World::default()
    })
}

fn service(port: u16) -> Service {
    let port = ServicePort { name: "http".into(), number: port, tcp: true, ..ServicePort::default() };
    Service { ports: vec![port], ..Service::default() }
}

/// Gives one service another port.
fn change(world: &mut World, round: usize) {
    if let Some(mut first) = world.services.first_entry() {
        first.insert(Arc::new(service(81 + round as u16)));
    }
}
