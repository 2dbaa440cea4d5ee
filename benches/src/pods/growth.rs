//! States of pods while a plugin knows more and more of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Slurm, SlurmOptions};

use super::calls::{Edge, pod, request};
use crate::Bench;
use crate::growth::{Growth, SIZES};
use crate::load::{Aim, keep_alive};

const AT_ONCE: usize = 16;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Growth>> {
    // One job runs and all others wait: what they would do is not what is measured.
    let slurm = Slurm::start_with(SlurmOptions { cpus: 1, ..SlurmOptions::default() }).await?;
    let product = Product::new(&bench.binary)?;
    let mut edge = Edge::slurm(&product, &slurm, &[]).await?;

    let mut create = Growth::new("another pod sent to Slurm, of so many", "ms");
    let mut cold = Growth::new("the state of each of so many pods, asked for at once, cold", "µs");
    let mut cached = Growth::new("the state of one pod of so many, cached, p50", "µs");
    let (most, mut pods) = (if bench.scale.is_quick() { 100 } else { 10_000 }, Vec::new());
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        let there = pods.len();
        pods.extend((there..size).map(|number| pod(number, "none", "sleep 3600")));
        let begun = Instant::now();
        edge.create(&pods[there..], AT_ONCE).await?;
        create.at(size, begun.elapsed().as_secs_f64() * 1e3 / (size - there) as f64);
        let one = serde_json::to_string(&pods[..1])?;
        for _ in 0..bench.scale.rounds {
            // An API server that has just begun remembers nothing.
            edge.api.process.restart().await?;
            edge.api.ready().await?;
            let begun = Instant::now();
            let states = edge.states(&pods).await?;
            cold.at(size, begun.elapsed().as_secs_f64() * 1e6 / size as f64);
            ensure!(states.len() == size, "{} states of {size}", states.len());
            let aim = Aim { address: edge.address, request: request("/status", &one, "").into() };
            cached.at(size, keep_alive(&aim, 1, Duration::from_millis(500)).await?.p50);
        }
    }
    Ok(vec![create, cold, cached])
}
