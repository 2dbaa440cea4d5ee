//! Requests to the API server of a site, over the native link and over the protocol of kas.

use std::time::Duration;

use anyhow::{Context, Result};

use super::world::World;
use crate::figure::{Figure, Mark, Section};
use crate::load;
use crate::{Bench, cpu};

const CONNECTIONS: usize = 16;

#[derive(Default)]
struct Runs {
    rate: Vec<f64>,
    /// Milliseconds of the gateway's CPU for one request.
    gateway: Vec<f64>,
    agent: Vec<f64>,
}

pub(super) async fn measure(bench: &Bench, world: &World) -> Result<Section> {
    let kas = world.join_as_kas_agent().await.context("an agent that speaks the protocol of kas")?;
    let gateway = world.holder.process.pid();
    let rows = [
        (world.kubernetes(&world.holder, "/version")?, world.agent.process.pid()),
        (world.kubernetes_of(&kas.site, &world.holder, "/version")?, kas.agent.process.pid()),
    ];
    let mut runs: [Runs; 2] = Default::default();
    let time = Duration::from_secs(bench.scale.seconds);
    for _ in 0..bench.scale.rounds {
        for ((aim, agent), runs) in rows.iter().zip(&mut runs) {
            let before = (cpu::seconds(gateway)?, cpu::seconds(*agent)?);
            let outcome = load::keep_alive(aim, CONNECTIONS, time).await?;
            let each = |seconds: f64| seconds * 1e3 / outcome.requests as f64;
            runs.rate.push(outcome.per_second);
            runs.gateway.push(each(cpu::seconds(gateway)? - before.0));
            runs.agent.push(each(cpu::seconds(*agent)? - before.1));
        }
    }
    let [native, kas] = runs;
    let mut section = Section::new(
        "Kubernetes API",
        "GET through the Kubernetes listener of one gateway over 16 connections; the API server is the small backend. The \
         gateway authenticates, routes and records each request, the agent judges it by its policy.",
    );
    section.push(
        Figure::new("native link", "req/s", native.rate.clone())
            .beside("kas protocol", kas.rate.clone())
            .mark(Mark::AtLeast(8_000.0)),
    );
    section.push(
        Figure::new("native link, CPU of the gateway", "ms each", native.gateway)
            .beside("kas protocol", kas.gateway.clone()),
    );
    section.push(
        Figure::new("native link, CPU of the agent", "ms each", native.agent)
            .beside("kas protocol", kas.agent.clone()),
    );
    section.push(Figure::new("kas protocol", "req/s", kas.rate).mark(Mark::AtLeast(4_500.0)));
    section.push(
        Figure::new("kas protocol, CPU of the gateway", "ms each", kas.gateway).mark(Mark::AtMost(0.2)),
    );
    Ok(section)
}
