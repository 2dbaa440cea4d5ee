//! A tag that a thousand machines of two local clouds follow: real namespaces, real packet filters.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tarbet_testbed::Netlab;
use tarbet_testbed::product::Product;
use tokio::process::Command;

use super::world::World;
use crate::figure::{Figure, Mark, Section};
use crate::{Bench, say};

const CLOUDS: [&str; 2] = ["east", "west"];
const PEER: &str = "nft alone";

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let count = if bench.scale.is_quick() { 100 } else { 1_000 };
    let (lab, product) = (Netlab::start().await?, Product::new(&bench.binary)?);
    let local =
        json!({ "prefix": lab.prefix(), "wan": format!("{}-wan", lab.prefix()), "folder": lab.folder() });
    let clouds = CLOUDS.map(|name| json!({ "name": name, "local": local }));
    let path = product.folder().path().join("local.redb");
    let store = json!({ "kind": "redb", "path": path });
    let world = World::with_clouds(&product, "local", &store, &json!(clouds)).await?;
    let begun = Instant::now();
    // The one between them is nobody's target: nft writes neighbours as one prefix, and they could not be counted.
    for name in ["first", "between", "new"] {
        world.create("east", name).await?;
    }
    world.join("clients", "default.east.first").await?;
    futures::future::try_join_all(CLOUDS.map(|cloud| fill(&world, cloud, count / 2))).await?;
    let made = begun.elapsed().as_secs_f64() / count as f64 * 1e3;
    say(&format!("nets: {count} machines are made"));

    let networks = CLOUDS.map(|cloud| format!("{}-{cloud}.default.main", lab.prefix()));
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let begun = Instant::now();
        world.join("clients", "default.east.new").await?;
        ours.push(begun.elapsed().as_secs_f64());
        ensure_all(&networks, count / 2).await?;
        let filters = [ruleset(&networks[0]).await?, ruleset(&networks[1]).await?];
        let begun = Instant::now();
        for (network, filter) in networks.iter().zip(&filters) {
            load(network, filter).await?;
        }
        bare.push(begun.elapsed().as_secs_f64());
        world.leave("clients", "default.east.new").await?;
        ensure_all(&networks, 0).await?;
    }
    drop(world);
    let note = format!(
        "{count} machines in two local clouds that are connected by a VPN; one rule each permits a tag. From the \
         request that gives the tag a new member until it is answered, when the kernel's filters hold it. The peer \
         is the nft program that loads the same filters from a file, with nobody who decides."
    );
    let mut section = Section::new("A tag with many followers in local clouds", &note);
    section
        .push(Figure::new("all permit lists updated", "s", ours).beside(PEER, bare).mark(Mark::AtMost(2.0)));
    section.push(Figure::new("a machine made and permitted, two clouds at once", "ms", [made]));
    Ok(section)
}

/// Makes machines that permit the tag.
async fn fill(world: &World, cloud: &str, count: usize) -> Result<()> {
    for number in 0..count {
        let name = format!("vm{number}");
        world.create(cloud, &name).await?;
        world.permit(cloud, &name, "web", "clients").await?;
    }
    Ok(())
}

/// Whether in each network so many permissions let both members of the tag in.
async fn ensure_all(networks: &[String], wanted: usize) -> Result<()> {
    for network in networks {
        let found = permits(network).await?;
        ensure!(found == wanted, "{found} permit lists of {network} have both members, not {wanted}");
    }
    Ok(())
}

/// How many permissions of a network have two targets.
async fn permits(netns: &str) -> Result<usize> {
    let rules = ruleset(netns).await?;
    Ok(rules.lines().filter(|line| line.contains("comment \"web\"") && line.contains(", ")).count())
}

async fn ruleset(netns: &str) -> Result<String> {
    let output = Command::new("ip").args(["netns", "exec", netns, "nft", "list", "ruleset"]).output().await?;
    ensure!(output.status.success(), "nft in {netns}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Replaces all filters of a namespace by the same.
async fn load(netns: &str, rules: &str) -> Result<()> {
    use tokio::io::AsyncWriteExt;
    let mut nft = Command::new("ip")
        .args(["netns", "exec", netns, "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut pipe = nft.stdin.take().context("nft has no input")?;
    pipe.write_all(format!("flush ruleset\n{rules}").as_bytes()).await?;
    drop(pipe);
    ensure!(nft.wait().await?.success(), "nft in {netns} failed");
    Ok(())
}
