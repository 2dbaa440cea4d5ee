//! Connections that are open at once through one agent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use tarbet_testbed::eventually;

use super::world::World;
use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::peers::Tunnel;
use crate::{Bench, cpu};

/// Those whose memory is compared: the most used, and the one that is nearest in rate.
const BESIDE: [&str; 2] = ["frp", "rathole"];
const ROUNDS: usize = 3;

/// What each round gave.
struct Row {
    name: &'static str,
    rounds: Vec<Round>,
}

struct Round {
    seconds: f64,
    alive: f64,
    /// KiB for each stream, the public side first.
    memory: Vec<f64>,
}

pub(super) async fn measure(bench: &Bench, world: &World, peers: &[Tunnel]) -> Result<Section> {
    // Load and backend share one process, and each of its descriptors is one end of a stream.
    let count = if bench.scale.is_quick() { 2_000 } else { 9_500 };
    let pids = vec![world.holder.process.pid(), world.agent.process.pid()];
    let mut rows = vec![("tarbet", Aim::get(world.port(false), "/version", ""), pids)];
    rows.extend(
        peers
            .iter()
            .filter(|peer| BESIDE.contains(&peer.name))
            .map(|peer| (peer.name, Aim::get(peer.address, "/version", ""), peer.pids.clone())),
    );
    let rows: Vec<Row> = futures::stream::iter(rows)
        .then(|(name, aim, pids)| async move {
            let before = resident(&pids)?;
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                rounds.push(round(&aim, &pids, &before, count).await.context(name)?);
            }
            anyhow::Ok(Row { name, rounds })
        })
        .try_collect()
        .await?;

    let mut section = Section::new(
        "Open streams",
        "TCP connections through one port, one gateway and one agent, each opened, proven by a request, kept, and asked \
         again at the end.",
    );
    let figure = |what: &str, unit: &str, of: fn(&Round) -> f64| {
        let runs = |row: &Row| row.rounds.iter().map(of).collect::<Vec<_>>();
        let ours = Figure::new(what, unit, runs(&rows[0]));
        rows[1..].iter().fold(ours, |figure, row| figure.beside(row.name, runs(row)))
    };
    let alive = figure(&format!("{count} streams, of which alive"), "streams", |round| round.alive);
    section.push(alive.mark(Mark::AtLeast(count as f64)));
    section.push(figure("opened in", "s", |round| round.seconds).mark(Mark::AtMost(2.0)));
    section.push(figure("each, at the gateway", "KiB", |round| round.memory[0]).mark(Mark::AtMost(8.0)));
    section.push(figure("each, at the agent", "KiB", |round| round.memory[1]));
    Ok(section)
}

fn resident(pids: &[u32]) -> Result<Vec<f64>> {
    pids.iter().map(|pid| cpu::resident_mib(*pid)).collect()
}

/// One round. Memory is told beside what there was before the first: what was used once is not given back at once.
async fn round(aim: &Aim, pids: &[u32], before: &[f64], count: usize) -> Result<Round> {
    let (free, watched) = (cpu::descriptors()?, pids.to_vec());
    let (held, after) = load::hold(aim, count, move || resident(&watched)).await?;
    let each = |(after, before): (&f64, &f64)| (after - before) * 1024.0 / count as f64;
    let memory = after.iter().zip(before).map(each).collect();
    // The next one needs the descriptors that the backend still has.
    eventually(Duration::from_mins(1), "the backend's connections", || async {
        ensure!(cpu::descriptors()? <= free + 100, "they are still open");
        anyhow::Ok(())
    })
    .await?;
    Ok(Round { seconds: held.opened_in.as_secs_f64(), alive: held.alive as f64, memory })
}
