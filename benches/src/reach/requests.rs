//! Small requests, new connections and bulk, all rows in turn.

use std::time::Duration;

use anyhow::{Context, Result};
use tarbet_testbed::Process;

use super::world::World;
use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::peers::Tunnel;
use crate::{Bench, cpu, say};

/// One way to the backend.
struct Row {
    name: &'static str,
    small: Aim,
    bulk: Aim,
    pids: Vec<u32>,
}

/// What one row gave in each round.
#[derive(Default)]
struct Results {
    one: Vec<load::Outcome>,
    many: Vec<load::Outcome>,
    cpu_per_100k: Vec<f64>,
    fresh: Vec<f64>,
    single: Vec<f64>,
    eight: Vec<f64>,
    cpu_per_gb: Vec<f64>,
}

const PORT: &str = "tarbet";
const PORT_TWO: &str = "tarbet, two gateways";
const KUBE: &str = "tarbet, Kubernetes listener";
const KUBE_TWO: &str = "tarbet, Kubernetes listener, two gateways";

pub(super) async fn measure(bench: &Bench, world: &World, peers: &[Tunnel]) -> Result<Vec<Section>> {
    let rows = rows(world, peers)?;
    let mut results: Vec<Results> = rows.iter().map(|_| Results::default()).collect();
    // There are many rows.
    let time = Duration::from_secs(bench.scale.seconds) * 3 / 4;
    for round in 0..bench.scale.rounds {
        say(&format!("reach: round {} of {}", round + 1, bench.scale.rounds));
        for (row, results) in rows.iter().zip(&mut results) {
            run(row, results, time).await.with_context(|| row.name)?;
        }
    }
    Ok(sections(&rows, &results))
}

fn rows(world: &World, peers: &[Tunnel]) -> Result<Vec<Row>> {
    let World { holder, entry, agent, .. } = world;
    let pid = |process: &Process| process.pid();
    let (holds, enters, serves) = (pid(&holder.process), pid(&entry.process), pid(&agent.process));
    let plain = |name, address, pids| Row {
        name,
        small: Aim::get(address, "/version", ""),
        bulk: Aim::get(address, "/bulk", ""),
        pids,
    };
    let kube = |name, gateway, pids| -> Result<Row> {
        let small = world.kubernetes(gateway, "/version")?;
        Ok(Row { name, small, bulk: world.kubernetes(gateway, "/bulk")?, pids })
    };
    let mut rows = vec![
        plain("direct", world.backend, vec![]),
        plain(PORT, world.port(false), vec![holds, serves]),
        plain(PORT_TWO, world.port(true), vec![enters, holds, serves]),
        kube(KUBE, holder, vec![holds, serves])?,
        kube(KUBE_TWO, entry, vec![enters, holds, serves])?,
    ];
    rows.extend(peers.iter().map(|peer| plain(peer.name, peer.address, peer.pids.clone())));
    Ok(rows)
}

async fn run(row: &Row, results: &mut Results, time: Duration) -> Result<()> {
    let used = || row.pids.iter().map(|pid| cpu::seconds(*pid)).sum::<Result<f64>>();
    results.one.push(load::keep_alive(&row.small, 1, time / 2).await?);
    let before = used()?;
    let many = load::keep_alive(&row.small, 64, time).await?;
    results.cpu_per_100k.push((used()? - before) * 1e5 / many.requests as f64);
    results.many.push(many);
    // Ports that were just used must not run out, so that the run is short.
    results
        .fresh
        .push(load::connecting(&row.small, 16, (time / 2).min(Duration::from_secs(1))).await?.per_second);
    results.single.push(load::download(&row.bulk, 1, time / 2).await? / 1e6);
    let before = used()?;
    let begun = std::time::Instant::now();
    let eight = load::download(&row.bulk, 8, time / 2).await?;
    results.cpu_per_gb.push((used()? - before) * 1e9 / (eight * begun.elapsed().as_secs_f64()));
    results.eight.push(eight / 1e6);
    Ok(())
}

fn sections(rows: &[Row], results: &[Results]) -> Vec<Section> {
    let table = Table { rows, results };
    let many = |of: fn(&load::Outcome) -> f64| move |r: &Results| r.many.iter().map(of).collect::<Vec<_>>();
    let one = |of: fn(&load::Outcome) -> f64| move |r: &Results| r.one.iter().map(of).collect::<Vec<_>>();
    let times = |peer: &str, times| Mark::TimesPeer(peer.to_owned(), times);
    let within = |peer: &str, times| Mark::WithinPeer(peer.to_owned(), times);

    let mut small = Section::new(
        "Small requests",
        "HTTP/1.1 with 15 bytes of body. `tarbet` is a TCP port of a gateway that leads to the backend, which is what frp, \
         rathole and ssh do; the Kubernetes listener authenticates and routes each request and is frp's HTTP mode. Users \
         speak plain text to all of them, links have TLS.",
    );
    let rate = many(|o| o.per_second);
    small.push(
        table
            .figure(
                PORT,
                "64 connections",
                "req/s",
                rate,
                &["direct", "frp", "frp http", "rathole", "ssh -R", "haproxy, two hops", "envoy"],
            )
            .mark(times("rathole", 1.2))
            .mark(times("frp", 1.6))
            .mark(times("frp http", 5.0)),
    );
    small.push(table.figure(
        PORT,
        "64 connections, p50",
        "µs",
        many(|o| o.p50),
        &["frp", "rathole", "ssh -R"],
    ));
    small.push(table.figure(
        PORT,
        "64 connections, p99",
        "µs",
        many(|o| o.p99),
        &["frp", "rathole", "ssh -R"],
    ));
    small.push(table.figure(
        PORT,
        "64 connections, p99.9",
        "µs",
        many(|o| o.p999),
        &["frp", "rathole", "ssh -R"],
    ));
    small.push(
        table
            .figure(
                PORT,
                "64 connections, CPU per 100,000",
                "s",
                |r| r.cpu_per_100k.clone(),
                &["frp", "rathole", "frp http", "envoy"],
            )
            .mark(Mark::AtMost(3.5))
            .mark(within("frp", 1.0))
            .mark(within("rathole", 1.0)),
    );
    small.push(
        table
            .figure(
                PORT,
                "one connection",
                "req/s",
                one(|o| o.per_second),
                &["direct", "frp", "rathole", "ssh -R"],
            )
            .mark(times("frp", 1.2)),
    );
    small.push(
        table
            .figure(PORT, "one connection, p50", "µs", one(|o| o.p50), &["direct", "frp", "rathole"])
            .mark(Mark::OverPeer("direct".into(), 120.0)),
    );
    small.push(
        table
            .figure(PORT_TWO, "two gateways, 64 connections", "req/s", rate, &[PORT, "frp"])
            .mark(times(PORT, 0.6)),
    );
    small.push(
        table
            .figure(PORT_TWO, "two gateways, one connection, p50", "µs", one(|o| o.p50), &[PORT, "frp"])
            .mark(Mark::OverPeer(PORT.into(), 100.0)),
    );
    small.push(
        table
            .figure(
                KUBE,
                "Kubernetes listener, 64 connections",
                "req/s",
                rate,
                &["frp http", "haproxy, two hops", "envoy"],
            )
            .mark(times("frp http", 1.0)),
    );
    small.push(table.figure(
        KUBE,
        "Kubernetes listener, CPU per 100,000",
        "s",
        |r| r.cpu_per_100k.clone(),
        &["frp http", "haproxy, two hops"],
    ));
    small.push(
        table
            .figure(KUBE_TWO, "Kubernetes listener, two gateways", "req/s", rate, &[KUBE])
            .mark(times(KUBE, 0.6)),
    );

    let mut fresh =
        Section::new("New connection for each request", "16 clients that connect, ask once and hang up.");
    fresh.push(
        table
            .figure(
                PORT,
                "connections and requests",
                "a second",
                |r| r.fresh.clone(),
                &["direct", "frp", "rathole", "ssh -R", "envoy"],
            )
            .mark(times("frp", 2.0))
            .mark(times("envoy", 0.95)),
    );

    let mut bulk = Section::new("Bulk", "Downloads without end, in 10^6 bytes a second.");
    let single = |r: &Results| r.single.clone();
    let eight = |r: &Results| r.eight.clone();
    let others = ["direct", "frp", "rathole", "ssh -R", "haproxy, two hops", "envoy"];
    bulk.push(table.figure(PORT, "one stream", "MB/s", single, &others).mark(times("frp", 1.7)));
    bulk.push(table.figure(PORT, "eight streams", "MB/s", eight, &others).mark(times("rathole", 1.1)));
    bulk.push(table.figure(
        PORT,
        "CPU per GB, eight streams",
        "s",
        |r| r.cpu_per_gb.clone(),
        &["frp", "rathole", "envoy"],
    ));
    bulk.push(table.figure(PORT_TWO, "two gateways, eight streams", "MB/s", eight, &[PORT]));
    bulk.push(table.figure(KUBE, "Kubernetes listener, one stream", "MB/s", single, &["frp http"]));
    vec![small, fresh, bulk]
}

struct Table<'a> {
    rows: &'a [Row],
    results: &'a [Results],
}

impl Table<'_> {
    fn figure(
        &self,
        row: &str,
        what: &str,
        unit: &str,
        of: impl Fn(&Results) -> Vec<f64>,
        peers: &[&str],
    ) -> Figure {
        let find = |name: &str| {
            let index = self.rows.iter().position(|row| row.name == name);
            index.map_or_else(Vec::new, |index| of(&self.results[index]))
        };
        peers.iter().fold(Figure::new(what, unit, find(row)), |figure, peer| figure.beside(peer, find(peer)))
    }
}
