//! Permit lists through the orchestrator to a remembered cloud, tags that many follow, and large plans.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use ipnet::{IpNet, Ipv4Net};
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::wire::tags::{SetTagRequest, TagMapping};
use tarbet_testbed::product::Product;

use super::in_turn;
use super::world::World;
use crate::figure::{Figure, Mark, Section, median};
use crate::growth::{Growth, SIZES};
use crate::{Bench, cpu};

const CALLS: usize = 200;
const FOLLOWERS: usize = 100;
const AT_ONCE: usize = 64;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let product = Product::new(&bench.binary)?;
    Ok(vec![changes(bench, &product).await?, plan(bench, &product).await?])
}

async fn changes(bench: &Bench, product: &Product) -> Result<Section> {
    let path = product.folder().path().join("rules.redb");
    let stores = [("memory", json!({ "kind": "memory" })), ("redb", json!({ "kind": "redb", "path": path }))];
    let mut worlds = Vec::new();
    for (name, store) in &stores {
        let world = World::remembered(product, &format!("rules-{name}"), store, Vec::new()).await?;
        for number in 0..FOLLOWERS + 2 {
            world.create("east", &format!("vm{number}")).await?;
        }
        world.join("clients", "default.east.vm100").await?;
        for number in 0..FOLLOWERS {
            world.permit("east", &format!("vm{number}"), "follow", "clients").await?;
        }
        worlds.push(world);
    }
    let (mut add, mut follow) = (vec![Vec::new(); stores.len()], vec![Vec::new(); stores.len()]);
    for round in 0..bench.scale.rounds {
        for ((world, add), follow) in worlds.iter().zip(&mut add).zip(&mut follow) {
            let rule = |number| format!("rule-{round}-{number}");
            // A resource of its own each, so that permit lists stay short, as people's are.
            let one = |number: usize| async move {
                world
                    .permit("east", &format!("vm{}", number % FOLLOWERS), &rule(number), "default.east.vm101")
                    .await
            };
            add.push(in_turn(CALLS, one).await?);
            world.join("clients", "default.east.vm101").await?;
            let mut times = Vec::new();
            for _ in 0..5 {
                world.leave("clients", "default.east.vm101").await?;
                let begun = Instant::now();
                world.join("clients", "default.east.vm101").await?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            follow.push(median(&times));
        }
    }
    let note = format!(
        "A person's request over REST, until it is answered; the plugin is another process that remembers rules \
         and makes nothing. The new member of the tag is in {FOLLOWERS} permit lists when the answer comes. The \
         original takes 3 to 3.5 ms for a rule, and 280 to 340 ms for a tag with {FOLLOWERS} subscribers."
    );
    let mut section = Section::new("Permit lists through the orchestrator", &note);
    for ((name, _), runs) in stores.iter().zip(add) {
        section.push(Figure::new(format!("one rule, {name}"), "ms", runs).mark(Mark::AtMost(0.6)));
    }
    for ((name, _), runs) in stores.iter().zip(follow) {
        let what = format!("tag with {FOLLOWERS} subscribers, {name}");
        section.push(Figure::new(what, "ms", runs).mark(Mark::AtMost(30.0)));
    }
    Ok(section)
}

/// A plan over a large estate: the rule goes to half of the endpoints.
async fn plan(bench: &Bench, product: &Product) -> Result<Section> {
    const NETWORKS: u32 = 1_000;
    const RULES: u32 = 50_000;
    let endpoints: u32 = 100_000;
    let networks = (0..NETWORKS).map(network).collect();
    let world = World::remembered(product, "plan", &json!({ "kind": "memory" }), networks).await?;
    let client = world.tags().await?;
    let set = |tag: TagMapping| {
        let mut client = client.clone();
        async move {
            client.set_tag(SetTagRequest { tag: Some(tag) }).await?;
            anyhow::Ok(())
        }
    };
    let name = |number: u32| format!("default.east.e{number}");
    stream::iter(0..endpoints)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |number| {
            let ip = network(number % NETWORKS).hosts().nth((number / NETWORKS) as usize + 4);
            let (uri, ip) = (Some(format!("memory/east/default/e{number}")), ip.map(|ip| ip.to_string()));
            set(TagMapping { name: name(number), child_tags: Vec::new(), uri, ip })
        })
        .await?;
    let some = SIZES.into_iter().map(|size| (format!("servers-{size}"), 0..size as u32));
    let all = [
        ("servers".to_owned(), 0..RULES),
        ("everything".to_owned(), 0..endpoints),
        ("clients".to_owned(), RULES..RULES + 20),
    ];
    for (name_of_tag, members) in some.chain(all) {
        let child_tags = members.map(name).collect();
        set(TagMapping { name: name_of_tag, child_tags, uri: None, ip: None }).await?;
    }
    let rule =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["clients"] }]);
    let (mut times, mut resident) = (Vec::new(), Vec::new());
    let mut growth =
        Growth::new("a rule of so many that are planned at once, 20 targets each, 100,000 endpoints", "µs");
    for _ in 0..bench.scale.rounds {
        for size in SIZES {
            let seconds = planned(&world, &format!("servers-{size}"), size, &rule).await?;
            growth.at(size, seconds * 1e6 / size as f64);
        }
        times.push(planned(&world, "servers", RULES as usize, &rule).await?);
        resident.push(cpu::resident_mib(world.process.process.pid())?);
    }
    // After the memory of the others was looked at.
    let everything = planned(&world, "everything", endpoints as usize, &rule).await?;
    let note = "A rule for every resource of a tag, planned: 1,000 networks, 100,000 endpoints, 50,000 rules with 20 \
                targets each. The answer names every call.";
    let mut section = Section::new("A large plan", note);
    section.growth.push(growth);
    section.push(Figure::new("planned and told", "s", times).mark(Mark::AtMost(5.0)));
    section.push(Figure::new("memory of the orchestrator", "MiB", resident).mark(Mark::AtMost(500.0)));
    section.push(Figure::new("100,000 rules, planned and told", "s", [everything]));
    Ok(section)
}

/// Seconds of a plan that gives a rule to every member of this tag.
async fn planned(world: &World, tag: &str, members: usize, rule: &Value) -> Result<f64> {
    let begun = Instant::now();
    let plan = world.rest(Method::POST, &format!("/tags/{tag}/rules?plan=true"), Some(rule)).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let calls = plan["calls"].as_array().map_or(0, Vec::len);
    ensure!(calls >= members, "only {calls} calls are planned: {}", short(&plan));
    Ok(seconds)
}

fn network(number: u32) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert((0x0a00_0000 + (number << 10)).into(), 22))
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}
