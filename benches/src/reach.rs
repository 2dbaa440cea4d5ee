//! Requests to a site: through one gateway, through two, beside HAProxy with the same hops.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tarbet_testbed::Redis;
use tarbet_testbed::product::{Agent, Gateway, Product};

use crate::load::{self, Aim};
use crate::peers::TwoHaproxies;
use crate::report::{Report, Row, median};
use crate::{Scale, cpu};

/// The columns: keep-alive connections.
const CONNECTIONS: [usize; 3] = [1, 16, 64];

pub(crate) async fn measure(report: &mut Report, binary: &Path, scale: Scale) -> Result<()> {
    let backend = load::backend().await?;
    let haproxy = TwoHaproxies::start(backend).await?;
    let redis = Redis::start().await?;
    let product = Product::new(binary)?;
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let holder = product.gateway("holder", &store, &[]).await?;
    let entry = product.gateway("entry", &store, &[]).await?;
    let agent = agent(&product, &holder, backend).await?;
    report.memory("gateway, idle", cpu::resident_mib(holder.process.pid())?);
    report.memory("agent, idle", cpu::resident_mib(agent.process.pid())?);

    let authority = std::fs::read(product.authority())?;
    let token = std::fs::read_to_string(product.admin_token())?;
    let through = |gateway: &Gateway| -> Result<Aim> {
        let address: SocketAddr = gateway.kubernetes().trim_start_matches("https://").parse()?;
        let headers = format!("Authorization: Bearer {}\r\n", token.trim());
        Aim::get(address, "/sites/bench/version", &headers).trusting(&authority)
    };
    let peers: Vec<u32> = haproxy.processes.iter().map(tarbet_testbed::Process::pid).collect();
    let rows = [
        ("direct", Aim::get(backend, "/version", ""), vec![]),
        ("haproxy, two hops, mTLS between", Aim::get(haproxy.address, "/version", ""), peers),
        (
            "tarbet, one gateway (TLS to it as well)",
            through(&holder)?,
            vec![holder.process.pid(), agent.process.pid()],
        ),
        (
            "tarbet, two gateways",
            through(&entry)?,
            vec![entry.process.pid(), holder.process.pid(), agent.process.pid()],
        ),
    ];

    let mut results: Vec<Vec<Vec<(load::Outcome, f64)>>> = vec![vec![vec![]; CONNECTIONS.len()]; rows.len()];
    for _ in 0..scale.rounds {
        for (row, (name, aim, pids)) in rows.iter().enumerate() {
            for (column, connections) in CONNECTIONS.into_iter().enumerate() {
                let used = || pids.iter().map(|pid| cpu::seconds(*pid)).sum::<Result<f64>>();
                let before = used()?;
                let outcome = load::keep_alive(aim, connections, Duration::from_secs(scale.seconds)).await;
                let outcome = outcome.with_context(|| format!("{name}, {connections} connections"))?;
                let per_100k = (used()? - before) * 100_000.0 / outcome.requests as f64;
                results[row][column].push((outcome, per_100k));
            }
        }
    }
    for ((name, ..), columns) in rows.iter().zip(&results) {
        for (connections, runs) in CONNECTIONS.iter().zip(columns) {
            let of = |pick: fn(&(load::Outcome, f64)) -> f64| median(runs.iter().map(pick));
            report.request(Row {
                name: (*name).to_owned(),
                connections: *connections,
                per_second: of(|run| run.0.per_second),
                p50_micros: of(|run| run.0.p50.as_secs_f64() * 1e6),
                p99_micros: of(|run| run.0.p99.as_secs_f64() * 1e6),
                cpu_per_100k: of(|run| run.1),
            });
        }
    }
    Ok(())
}

/// A site whose API server is the backend.
async fn agent(product: &Product, gateway: &Gateway, backend: SocketAddr) -> Result<Agent> {
    let said = product.run(gateway, &["site", "add", "bench", "-o", "json"]).await?;
    let site: Value = serde_json::from_str(&said)?;
    let token = site["token"]["token"].as_str().context("no token")?.to_owned();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: b\nclusters: [{{name: b, cluster: {{server: 'http://{backend}'}}}}]\n\
         users: [{{name: b, user: {{}}}}]\ncontexts: [{{name: b, context: {{cluster: b, user: b}}}}]\n"
    );
    let file = product.folder().write("backend.kubeconfig", &kubeconfig)?;
    product.agent("bench-agent", &token, &[gateway], &["--kubeconfig", &file.display().to_string()]).await
}
