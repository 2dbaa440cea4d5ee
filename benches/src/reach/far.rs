//! A site that is 40 ms away.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tarbet_testbed::Lease;
use tarbet_testbed::product::Product;

use super::line;
use crate::Bench;
use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::peers::haproxy;

const ONE_WAY: Duration = Duration::from_millis(20);
const SITE: &str = "far";
const PEER: &str = "plain TLS";

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let backend = load::backend().await?;
    let product = Product::new(&bench.binary)?;
    let ports = Lease::block(1)?;
    let user = SocketAddr::from(([127, 0, 0, 1], ports.port(0)));
    let expose = format!("gateway.ports=[{{listen: '{user}', site: {SITE}, target: '{backend}'}}]");
    let gateway =
        product.gateway("near", "{kind: memory}", &["--set", "log.filter=warn", "--set", &expose]).await?;
    let site: Value =
        serde_json::from_str(&product.run(&gateway, &["site", "add", SITE, "-o", "json"]).await?)?;
    let token = site["token"]["token"].as_str().context("no token")?.to_owned();
    let policy = format!("tcp: [{{host: '{}', ports: [{}]}}]\n", backend.ip(), backend.port());
    let policy = product.folder().write("policy.yaml", &policy)?.display().to_string();
    let listener = gateway.agents();
    let listener: SocketAddr = listener.trim_start_matches("grpcs://").parse()?;
    let across = format!("grpcs://{}", line::start(listener, ONE_WAY)?);
    let flags = ["--gateway", &across, "--policy", &policy, "--set", "log.filter=warn"];
    let _agent = product.agent("far-agent", &token, &[], &flags).await?;
    let plain = haproxy::start(backend, Some(&|to| line::start(to, ONE_WAY))).await?;

    let (mut ours, mut theirs, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    let time = Duration::from_secs(bench.scale.seconds);
    for _ in 0..bench.scale.rounds.min(3) {
        // Twice the usual time: windows need some round trips to grow, and whoever waits for them is told so.
        ours.push(load::download(&Aim::get(user, "/bulk", ""), 1, time * 2).await? / 1e6);
        theirs.push(load::download(&Aim::get(plain.address, "/bulk", ""), 1, time * 2).await? / 1e6);
        fresh.push(load::connecting(&Aim::get(user, "/version", ""), 1, time / 2).await?.p50 / 1e3);
    }
    let mut section = Section::new(
        "40 ms away",
        "A relay between agent and gateway holds every byte back for 20 ms in each direction. Plain TLS is HAProxy on both \
         sides with the same relay between, over one connection.",
    );
    section.push(
        Figure::new("one bulk stream", "MB/s", ours)
            .beside(PEER, theirs)
            .mark(Mark::TimesPeer(PEER.into(), 0.8)),
    );
    // One round trip and what the machine takes; two would be 80.
    section.push(
        Figure::new("a new connection and its first answer, p50", "ms", fresh).mark(Mark::AtMost(60.0)),
    );
    Ok(section)
}
