//! Many agents at one gateway: what an idle link costs, and how they come back when the gateway dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Response};
use serde_json::Value;
use tarbet_link::{
    Agent, AgentConfig, Body, Connect, Credential, Denial, Handler, Identity, IncomingCall, NetConnector,
    NetDialer,
};
use tarbet_testbed::eventually;
use tarbet_testbed::product::{Gateway, Product};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::figure::{Figure, Mark, Section};
use crate::growth::{Growth, SIZES};
use crate::load::{self, Aim};
use crate::{Bench, cpu, say};

const SITE: &str = "herd";
/// Agents that join at once. One process plays them all: if too many began together it would be the bench that
/// cannot finish a handshake in time.
const WAVE: usize = 1_000;
/// How long idle links are watched: as long as each needs to say once that it is there.
const WATCHED: Duration = Duration::from_secs(15);

/// Answers with two bytes, and says so: the load reads no answers in pieces.
struct Hello;

impl Handler for Hello {
    fn call(&self, _: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async {
            let mut answer = Response::new(Body::from("ok"));
            answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("2"));
            Ok(answer)
        }
        .boxed()
    }
}

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let (idle, herd) = if bench.scale.is_quick() { (2_000, 1_000) } else { (10_000, 5_000) };
    let product = Product::new(&bench.binary)?;
    // Tokens are checked again as often as by default; the test bed does it every second.
    let set = [
        "gateway.quotas.site.links=20000",
        "gateway.recheck=20s",
        "gateway.kubernetes.tls=null",
        "log.filter=warn",
    ];
    let set: Vec<&str> = set.into_iter().flat_map(|set| ["--set", set]).collect();
    // Its site must outlive it.
    let store = format!("{{kind: redb, path: {}}}", product.folder().path().join("herd.redb").display());
    let mut gateway = product.gateway("crowded", &store, &set).await?;
    let site: Value =
        serde_json::from_str(&product.run(&gateway, &["site", "add", SITE, "-o", "json"]).await?)?;
    let token = site["token"]["token"].as_str().context("no token")?.to_owned();
    let fleet = Fleet::new(&product, &gateway, token)?;

    let mut section = Section::new(
        "Many agents",
        "Agents of one process, each with one link over TLS to one gateway. The herd: the gateway is killed with -9 and \
         started again under all of them.",
    );
    let pid = gateway.process.pid();
    let before = cpu::resident_mib(pid)?;
    let asked = Asked::new(&product, &gateway)?;
    let mut memory = Growth::new("another link, memory of the gateway that holds so many", "KiB");
    let mut costs = Costs::new(bench.scale.rounds);
    let crowd = Crowd::new(herd, idle);
    let (mut there, mut held, begun) = (0, before, Instant::now());
    for (end, stop) in &crowd.groups {
        let from = there;
        while there < *end {
            let next = (*end).min(there + WAVE);
            fleet.start(there..next, stop);
            links(&gateway, next).await?;
            there = next;
        }
        let now = cpu::resident_mib(pid)?;
        if SIZES.contains(end) {
            memory.at(*end, (now - held) * 1024.0 / (end - from) as f64);
        }
        held = now;
    }
    let joined = begun.elapsed().as_secs_f64();
    say(&format!("reach: {idle} links in {joined:.1} s"));
    let kib = (held - before) * 1024.0 / idle as f64;
    let used = cpu::seconds(pid)?;
    tokio::time::sleep(WATCHED).await;
    let busy = (cpu::seconds(pid)? - used) * 100.0 / WATCHED.as_secs_f64();
    section.push(Figure::new(format!("{idle} links joined in"), "s", [joined]));
    section.push(Figure::new(format!("{idle} idle links, each"), "KiB", [kib]).mark(Mark::AtMost(30.0)));
    section
        .push(Figure::new(format!("{idle} idle links, CPU"), "% of a core", [busy]).mark(Mark::AtMost(5.0)));

    // Not before: what was used once for requests is not given back at once.
    if SIZES.contains(&idle) {
        costs.look(idle, pid, &asked).await?;
    }
    crowd.shrink(herd);
    links(&gateway, herd).await?;
    gateway.process.kill9()?;
    gateway.process.restart().await?;
    let begun = Instant::now();
    gateway.ready().await?;
    let served = Served::watch(&asked);
    links(&gateway, herd).await?;
    let back = begun.elapsed().as_secs_f64();
    section.push(
        Figure::new(format!("{herd} links back after a kill in"), "s", [back]).mark(Mark::AtMost(30.0)),
    );
    let (first, rate) = served.told(begun).await?;
    section.push(Figure::new("the first request served after", "s", [first]).mark(Mark::AtMost(30.0)));
    section.push(Figure::new("requests served meanwhile", "a second", [rate]));
    for size in SIZES.into_iter().rev().filter(|size| *size <= herd) {
        crowd.shrink(size);
        links(&gateway, size).await?;
        costs.look(size, gateway.process.pid(), &asked).await?;
    }
    section.growth = vec![memory, costs.wait, costs.work];
    Ok(section)
}

/// What is asked of the site.
struct Asked(Aim);

impl Asked {
    fn new(product: &Product, gateway: &Gateway) -> Result<Self> {
        let admin = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
        let address: SocketAddr = gateway.kubernetes().trim_start_matches("https://").parse()?;
        let headers = format!("Authorization: Bearer {admin}\r\n");
        Ok(Self(Aim::get(address, &format!("/sites/{SITE}/x"), &headers)))
    }
}

/// Agents in groups, so that there can be fewer of them again.
struct Crowd {
    /// How many there are with each group, and what ends it.
    groups: Vec<(usize, CancellationToken)>,
    _all: DropGuard,
}

impl Crowd {
    fn new(herd: usize, idle: usize) -> Self {
        let all = CancellationToken::new();
        let mut ends: Vec<usize> =
            SIZES.into_iter().filter(|size| *size < idle).chain([herd, idle]).collect();
        ends.sort_unstable();
        ends.dedup();
        let groups = ends.into_iter().map(|end| (end, all.child_token())).collect();
        Self { groups, _all: all.drop_guard() }
    }

    /// Ends all but so many.
    fn shrink(&self, left: usize) {
        for (_, stop) in self.groups.iter().filter(|(end, _)| *end > left) {
            stop.cancel();
        }
    }
}

/// What a request costs while the gateway holds so many links to its site.
struct Costs {
    rounds: usize,
    wait: Growth,
    work: Growth,
}

impl Costs {
    fn new(rounds: usize) -> Self {
        Self {
            rounds,
            wait: Growth::new("a request to a site with so many links, p50", "µs"),
            work: Growth::new("the same, CPU of the gateway", "µs"),
        }
    }

    async fn look(&mut self, links: usize, pid: u32, asked: &Asked) -> Result<()> {
        let second = Duration::from_secs(1);
        // Not counted: links that have just come or gone are still being written down.
        load::keep_alive(&asked.0, 1, second).await?;
        for _ in 0..self.rounds {
            let used = cpu::seconds(pid)?;
            let outcome = load::keep_alive(&asked.0, 1, second).await?;
            self.wait.at(links, outcome.p50);
            self.work.at(links, (cpu::seconds(pid)? - used) * 1e6 / outcome.requests as f64);
        }
        Ok(())
    }
}

/// Requests to the site while its agents come back: when the first was answered, and how many followed.
struct Served(tokio::task::JoinHandle<Result<(Instant, f64)>>);

impl Served {
    fn watch(Asked(aim): &Asked) -> Self {
        let aim = aim.clone();
        Self(tokio::spawn(async move {
            // The first one waits until an agent is there.
            load::keep_alive(&aim, 1, Duration::from_millis(50)).await?;
            let first = Instant::now();
            Ok((first, load::keep_alive(&aim, 1, Duration::from_secs(1)).await?.per_second))
        }))
    }

    async fn told(self, begun: Instant) -> Result<(f64, f64)> {
        let (first, rate) = self.0.await??;
        Ok(((first - begun).as_secs_f64(), rate))
    }
}

/// Agents that share one process and one token.
struct Fleet {
    connector: Arc<dyn Connect>,
    url: tarbet_link::GatewayUrl,
    token: String,
}

impl Fleet {
    fn new(product: &Product, gateway: &Gateway, token: String) -> Result<Self> {
        let tls =
            tarbet_reach::dial::tls(Some(&product.authority())).map_err(|problem| anyhow!("{problem}"))?;
        let net = NetConnector::new(Arc::new(NetDialer::default()));
        let connector = Arc::new(NetConnector { tls: Some(Arc::new(tls)), ..net });
        Ok(Self { connector, url: gateway.agents().parse()?, token })
    }

    fn start(&self, which: std::ops::Range<usize>, stop: &CancellationToken) {
        for seed in which {
            let config = AgentConfig { links: 1, ..AgentConfig::new(vec![self.url.clone()], seed as u64) };
            let token = self.token.clone();
            let identity = move || Identity {
                credential: Credential::new(token.clone()),
                name: "bench".into(),
                version: "0".into(),
                instance: Uuid::from_u128(seed as u128),
                services: vec!["kubernetes".into()],
            };
            let agent = Agent::new(config, Arc::clone(&self.connector), Arc::new(Hello), identity);
            tokio::spawn(agent.run(stop.clone()));
        }
    }
}

/// Waits until the gateway holds so many links.
async fn links(gateway: &Gateway, count: usize) -> Result<()> {
    let wanted = count as f64;
    eventually(Duration::from_mins(4), "all links", || async {
        let held = gateway.metric("tarbet_links ").await?;
        ensure!((held - wanted).abs() < 0.5, "{held} of {wanted} links");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}
