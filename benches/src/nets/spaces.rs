//! Finding an unused address space while few or very many are used.

use anyhow::{Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use serde_json::json;
use tarbet_nets::wire::paraglider::FindUnusedAddressSpacesRequest;
use tarbet_testbed::product::Product;

use super::in_turn;
use super::world::World;
use crate::Bench;
use crate::figure::{Figure, Mark, Section};
use crate::growth::Growth;

const CALLS: usize = 200;
const COUNTS: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];
/// Addresses asked for.
const SIZE: i32 = 200;

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let product = Product::new(&bench.binary)?;
    let mut worlds = Vec::new();
    for count in COUNTS {
        let used = (0..count).map(network).collect();
        let name = format!("spaces-{count}");
        let store = json!({ "kind": "redb", "path": product.folder().path().join(format!("{name}.redb")) });
        worlds.push(World::remembered(&product, &name, &store, used).await?);
    }
    let mut times = vec![Vec::new(); COUNTS.len()];
    for _ in 0..bench.scale.rounds {
        for (world, times) in worlds.iter().zip(&mut times) {
            let client = world.controller().await?;
            let find = |_| {
                let mut client = client.clone();
                async move {
                    let request = FindUnusedAddressSpacesRequest { sizes: vec![SIZE] };
                    let found = client.find_unused_address_spaces(request).await?.into_inner();
                    ensure!(found.address_spaces.len() == 1, "{found:?}");
                    Ok(())
                }
            };
            times.push(in_turn(CALLS, find).await?);
        }
    }
    let note = format!(
        "One caller over gRPC, {CALLS} calls one after another, each of which sets a space aside in the default \
         store; the middle one. The spaces are those a cloud reports. The original takes 2 ms with 10 and 34 to \
         174 ms with 1,000, and more with every call."
    );
    let mut section = Section::new("Finding an unused address space", &note);
    let few = times[0].clone();
    let mut growth = Growth::new("finding an unused address space among so many", "µs");
    for (count, runs) in COUNTS.into_iter().zip(&times) {
        for millis in runs {
            growth.at(count as usize, millis * 1e3);
        }
    }
    section.growth.push(growth);
    for (count, runs) in COUNTS.into_iter().zip(times) {
        let figure = Figure::new(format!("{count} used"), "ms", runs).mark(Mark::AtMost(1.0));
        section.push(if count == COUNTS[0] { figure } else { figure.beside("10 used", few.iter().copied()) });
    }
    Ok(section)
}

/// The networks of others fill the pool from below, half a space of the asked size each.
fn network(number: u32) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert((0x0a00_0000 + (number << 7)).into(), 25))
}
