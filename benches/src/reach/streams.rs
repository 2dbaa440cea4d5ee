//! Connections that are open at once through one agent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tarbet_testbed::eventually;

use super::world::World;
use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::peers::Tunnel;
use crate::{Bench, cpu};

/// Those whose memory is compared: the most used, and the one that is nearest in rate.
const BESIDE: [&str; 2] = ["frp", "rathole"];

struct Row {
    name: &'static str,
    seconds: f64,
    alive: f64,
    /// KiB for each stream, the public side first.
    memory: Vec<f64>,
}

pub(super) async fn measure(bench: &Bench, world: &World, peers: &[Tunnel]) -> Result<Section> {
    // Load and backend share one process, and each of its descriptors is one end of a stream.
    let count = if bench.scale.is_quick() { 2_000 } else { 9_500 };
    let pids = vec![world.holder.process.pid(), world.agent.process.pid()];
    let mut rows = vec![row("tarbet", Aim::get(world.port(false), "/version", ""), pids, count).await?];
    for peer in peers.iter().filter(|peer| BESIDE.contains(&peer.name)) {
        let aim = Aim::get(peer.address, "/version", "");
        rows.push(row(peer.name, aim, peer.pids.clone(), count).await.context(peer.name)?);
    }

    let mut section = Section::new(
        "Open streams",
        "TCP connections through one port, one gateway and one agent, each opened, proven by a request, kept, and asked \
         again at the end.",
    );
    let figure = |what: &str, unit: &str, of: fn(&Row) -> f64| {
        let others = rows[1..].iter();
        others.fold(Figure::new(what, unit, [of(&rows[0])]), |figure, row| figure.beside(row.name, [of(row)]))
    };
    let alive = figure(&format!("{count} streams, of which alive"), "streams", |row| row.alive);
    section.push(alive.mark(Mark::AtLeast(count as f64)));
    section.push(figure("opened in", "s", |row| row.seconds).mark(Mark::AtMost(2.0)));
    section.push(figure("each, at the gateway", "KiB", |row| row.memory[0]).mark(Mark::AtMost(8.0)));
    section.push(figure("each, at the agent", "KiB", |row| row.memory[1]));
    Ok(section)
}

async fn row(name: &'static str, aim: Aim, pids: Vec<u32>, count: usize) -> Result<Row> {
    let resident = move || pids.iter().map(|pid| cpu::resident_mib(*pid)).collect::<Result<Vec<f64>>>();
    let (before, free) = (resident()?, cpu::descriptors()?);
    let (held, after) = load::hold(&aim, count, resident).await?;
    let each = |(after, before): (&f64, &f64)| (after - before) * 1024.0 / count as f64;
    let memory = after.iter().zip(&before).map(each).collect();
    // The next one needs the descriptors that the backend still has.
    eventually(Duration::from_mins(1), "the backend's connections", || async {
        ensure!(cpu::descriptors()? <= free + 100, "they are still open");
        anyhow::Ok(())
    })
    .await?;
    Ok(Row { name, seconds: held.opened_in.as_secs_f64(), alive: held.alive as f64, memory })
}
