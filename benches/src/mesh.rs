//! Federation: how soon a change is an object in the other mesh, how fast many are, what a restart
//! and many peers cost. Beside it, in the same run, what the API server does by itself.

mod declare;
mod growth;
mod listen;
mod world;

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt};

use self::listen::Ear;
use self::world::Meshes;
use crate::figure::{Figure, Mark, Section};
use crate::growth::Growth;
use crate::{Bench, cpu, say};

/// How much there is of everything.
struct Size {
    /// Services of the mesh whose exports change.
    services: usize,
    /// Changes, one after another.
    changes: usize,
    /// Services exported at once.
    many: usize,
    /// Peers of one controller.
    peers: usize,
    /// Services of each of them.
    offered: usize,
    /// Objects that are written without us.
    raw: usize,
}

const SMALL: Size = Size { services: 100, changes: 30, many: 1000, peers: 10, offered: 100, raw: 200 };
const WHOLE: Size = Size { services: 1000, changes: 200, many: 10_000, peers: 50, offered: 1000, raw: 2000 };
/// Times that all peers hear one service come or go.
const ROUNDS: usize = 20;
const RESTARTS: usize = 3;
const ALONE: &str = "the API server alone";

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let size = if bench.scale.rounds < 5 { SMALL } else { WHOLE };
    Ok(vec![meshes(bench, &size).await?, peers(bench, &size).await?])
}

async fn meshes(bench: &Bench, size: &Size) -> Result<Section> {
    let mut section = Section::new(
        "Two meshes",
        "Two control planes that share one etcd, a controller on each. Beside them the same writes to the same \
         API server by a bare client with as many writers, before the controllers start.",
    );
    say("mesh: the API server alone");
    let mut meshes = Meshes::prepare(&bench.binary).await?;
    let raw = meshes.raw_writes(size.raw).await?;
    let echo = meshes.writes_and_watches(size.changes).await?;
    meshes.start().await?;

    say("mesh: some services at once");
    let mut written =
        Growth::new("a service exported at once with so many, until all are written elsewhere", "ms");
    let mut there = 0;
    for (namespace, count) in [("few", 10), ("some", 100), ("first", size.services)] {
        meshes.make_services(namespace, count).await?;
        there += count;
        written.at(count, exported(&meshes, namespace, there).await? * 1e3 / count as f64);
    }

    say("mesh: changes of one export");
    let mut late = Vec::new();
    for round in 0..bench.scale.rounds {
        late.push(millis(percentile(&changes(&meshes, size, round).await?, 99)));
    }
    let what = format!("change of an export until the object elsewhere has it, p99 at {there} services");
    section.push(
        Figure::new(what, "ms", late)
            .beside("one write and its watch, p99", [millis(percentile(&echo, 99))])
            .mark(Mark::AtMost(300.0)),
    );

    say("mesh: many services at once");
    meshes.make_services("second", size.many).await?;
    let before = meshes.writes().await?;
    there += size.many;
    let seconds = exported(&meshes, "second", there).await?;
    written.at(size.many, seconds * 1e3 / size.many as f64);
    let rate = (meshes.writes().await? - before) / seconds;
    let what = format!("{} services exported at once, until everything is written elsewhere", size.many);
    section.push(Figure::new(what, "s", [seconds]).mark(Mark::AtMost(60.0)));
    let writes = Figure::new("writes a second while that lasts", "writes/s", [rate]).beside(ALONE, [raw]);
    // Where the API server takes longer than that for so many, its own speed is the mark.
    let slow = seconds > 60.0;
    section.push(if slow { writes.mark(Mark::TimesPeer(ALONE.to_owned(), 0.8)) } else { writes });

    say("mesh: a restart");
    let (mut known, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..RESTARTS {
        let begun = Instant::now();
        // Without a sign before nothing.
        writes.push(meshes.restart_importer(there).await? + 0.0);
        known.push(begun.elapsed().as_secs_f64());
    }
    let what = format!("kill -9 and restart with {there} imports, until all is known again");
    section.push(Figure::new(what, "s", known).mark(Mark::AtMost(10.0)));
    section.push(Figure::new("writes of that restart", "writes", writes).mark(Mark::AtMost(0.0)));
    section.growth = growth::measure(bench)?;
    section.growth.push(written);
    Ok(section)
}

/// Seconds until so many services are written elsewhere after this namespace is exported.
async fn exported(meshes: &Meshes, namespace: &str, all: usize) -> Result<f64> {
    let begun = Instant::now();
    meshes.export(namespace).await?;
    meshes.imported(all).await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Changes one exported service after another and waits for each to arrive.
async fn changes(meshes: &Meshes, size: &Size, round: usize) -> Result<Vec<Duration>> {
    let mut watch = meshes.watch_entries().await?;
    let mut times = Vec::new();
    for number in 0..size.changes {
        let (name, port) = (format!("s{}", number % size.services), 2000 + round * size.changes + number);
        let begun = Instant::now();
        meshes.change_port("first", &name, port).await?;
        watch.until(&format!("import-{name}-first-svc-cluster-local"), port).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// One controller with many peers: its memory, and how soon all of them hear of a change.
async fn peers(bench: &Bench, size: &Size) -> Result<Section> {
    say("mesh: many peers");
    let meshes = Meshes::with_peers(&bench.binary, size.peers, size.offered, 5).await?;
    meshes.imported(size.offered).await?;
    let memory = cpu::resident_mib(meshes.importer())?;
    let ears: Vec<Ear> = futures::stream::iter(0..size.peers)
        .then(|peer| Ear::listen(meshes.discovery(), peer))
        .try_collect()
        .await?;
    meshes.make_services("told", 1).await?;
    let mut late = Vec::new();
    for round in 0..ROUNDS {
        let there = round % 2 == 0;
        let mut times = Vec::new();
        let begun = Instant::now();
        if there {
            meshes.export("told").await?;
        } else {
            meshes.export_nothing().await?;
        }
        for ear in &ears {
            ear.count(usize::from(there)).await?;
            times.push(begun.elapsed());
        }
        late.push(millis(percentile(&times, 99)));
    }
    let mut section = Section::new(
        &format!("{} peers, each with {} services of 5 endpoints", size.peers, size.offered),
        "All peers offer the same names, which are merged into one import each with the endpoints of all; then as \
         many subscribers hear one service of the controller's own come and go.",
    );
    section.push(Figure::new("memory of the controller", "MiB", [memory]).mark(Mark::AtMost(300.0)));
    section.push(Figure::new("one change heard by all, p99", "ms", late).mark(Mark::AtMost(1000.0)));
    Ok(section)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value that this share of a hundred does not exceed.
fn percentile(times: &[Duration], share: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() * share).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default()
}
