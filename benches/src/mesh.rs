//! Federation: how soon a change is an object in the other mesh, how fast many are, what a restart
//! and many peers cost. Beside it, in the same run, what the API server does by itself.

mod world;

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt};

use self::world::{Ear, Meshes, percentile};
use crate::figure::{Figure, Mark, Section};
use crate::{Bench, cpu, say};

/// How much there is of everything.
struct Size {
    services: usize,
    changes: usize,
    many: usize,
    peers: usize,
    offered: usize,
}

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let size = if bench.scale.rounds < 5 {
        Size { services: 100, changes: 30, many: 500, peers: 10, offered: 100 }
    } else {
        Size { services: 1000, changes: 200, many: 10_000, peers: 50, offered: 1000 }
    };
    let mut meshes = Meshes::start(&bench.binary).await?;
    let mut section = Section::new(
        "Two meshes",
        "Two control planes that share one etcd, a controller on each; peers are the same API server without us.",
    );
    let change = changes(&mut meshes, &size).await?;
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    let alone = meshes.writes_and_watches(size.changes).await?;
    section.push(
        Figure::new(
            format!("change of an export seen as an object elsewhere, p99 of {} services", size.services),
            "ms",
            [millis(percentile(&change, 99))],
        )
        .beside("write and watch of one object, p99", [millis(percentile(&alone, 99))])
        .mark(Mark::AtMost(300.0)),
    );
    let (seconds, rate) = many(&mut meshes, &size).await?;
    let raw = meshes.raw_writes((size.many / 5).max(100)).await?;
    section.push(
        Figure::new(format!("{} services exported at once, until all is written", size.many), "s", [seconds])
            .mark(Mark::AtMost(60.0)),
    );
    section.push(
        Figure::new("writes while that lasts", "writes/s", [rate])
            .beside("the API server alone", [raw])
            .mark(Mark::TimesPeer("the API server alone".to_owned(), 0.8)),
    );
    let begun = Instant::now();
    let writes = meshes.restart_importer(size.many + size.services).await?;
    section.push(
        Figure::new(
            format!("restart with {} imports", size.many + size.services),
            "s",
            [begun.elapsed().as_secs_f64()],
        )
        .mark(Mark::AtMost(10.0)),
    );
    section.push(Figure::new("writes of that restart", "writes", [writes]).mark(Mark::AtMost(0.0)));
    drop(meshes);
    Ok(vec![section, peers(bench, &size).await?])
}

/// Changes one exported service after another and waits for each to arrive.
async fn changes(meshes: &mut Meshes, size: &Size) -> Result<Vec<Duration>> {
    say("mesh: services of the first mesh");
    meshes.make_services("first", size.services).await?;
    meshes.export("first").await?;
    meshes.imported(size.services).await?;
    let mut watch = meshes.watch_entries().await?;
    let mut times = Vec::new();
    for number in 0..size.changes {
        let (name, port) = (format!("s{}", number % size.services), 2000 + number);
        let begun = Instant::now();
        meshes.change_port("first", &name, port).await?;
        watch.until(&format!("import-{name}-first-svc-cluster-local"), port).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Exports many at once: seconds until the last write, and writes a second.
async fn many(meshes: &mut Meshes, size: &Size) -> Result<(f64, f64)> {
    say("mesh: many services");
    meshes.make_services("second", size.many).await?;
    let before = meshes.writes().await?;
    let begun = Instant::now();
    meshes.export("second").await?;
    meshes.imported(size.services + size.many).await?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, (meshes.writes().await? - before) / seconds))
}

/// One controller with many peers: its memory, and how soon all of them hear of a change.
async fn peers(bench: &Bench, size: &Size) -> Result<Section> {
    say("mesh: many peers");
    let meshes = Meshes::with_peers(&bench.binary, size.peers, size.offered, 5).await?;
    meshes.imported(size.offered).await?;
    let memory = cpu::resident_mib(meshes.pid())?;
    let ears: Vec<Ear> = futures::stream::iter(0..size.peers)
        .then(|peer| Ear::listen(meshes.discovery(), peer))
        .try_collect()
        .await?;
    meshes.make_services("told", 1).await?;
    let mut times = Vec::new();
    for round in 0..10 {
        let begun = Instant::now();
        meshes.export(if round % 2 == 0 { "told" } else { "nothing" }).await?;
        for ear in &ears {
            ear.count(usize::from(round % 2 == 0)).await?;
            times.push(begun.elapsed());
        }
    }
    let title = format!("{} peers with {} services of 5 endpoints", size.peers, size.offered);
    let mut section = Section::new(
        &title,
        "All peers offer the same names, which are merged; subscribers hear one service come and go.",
    );
    section.push(Figure::new("memory of the controller", "MiB", [memory]).mark(Mark::AtMost(300.0)));
    section.push(
        Figure::new("one change heard by all, p99", "ms", [percentile(&times, 99).as_secs_f64() * 1000.0])
            .mark(Mark::AtMost(1000.0)),
    );
    Ok(section)
}
