//! Many agents at one gateway: what an idle link costs, and how they come back when the gateway dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Response;
use serde_json::Value;
use tarbet_link::{
    Agent, AgentConfig, Body, Connect, Credential, Denial, Handler, Identity, IncomingCall, NetConnector,
    NetDialer,
};
use tarbet_testbed::eventually;
use tarbet_testbed::product::{Gateway, Product};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::{Bench, cpu, say};

const SITE: &str = "herd";
/// Agents that join at once. One process plays them all: if too many began together it would be the bench that
/// cannot finish a handshake in time.
const WAVE: usize = 1_000;
/// How long idle links are watched: as long as each needs to say once that it is there.
const WATCHED: Duration = Duration::from_secs(15);

/// Answers with two bytes.
struct Hello;

impl Handler for Hello {
    fn call(&self, _: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async { Ok(Response::new(Body::from("ok"))) }.boxed()
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
    let (herd_stop, rest_stop) = (CancellationToken::new(), CancellationToken::new());
    let begun = Instant::now();
    for (which, stop) in [(0..herd, &herd_stop), (herd..idle, &rest_stop)] {
        for begin in which.clone().step_by(WAVE) {
            let end = which.end.min(begin + WAVE);
            fleet.start(begin..end, stop);
            links(&gateway, end).await?;
        }
    }
    let joined = begun.elapsed().as_secs_f64();
    say(&format!("reach: {idle} links in {joined:.1} s"));
    let kib = (cpu::resident_mib(pid)? - before) * 1024.0 / idle as f64;
    let used = cpu::seconds(pid)?;
    tokio::time::sleep(WATCHED).await;
    let busy = (cpu::seconds(pid)? - used) * 100.0 / WATCHED.as_secs_f64();
    section.push(Figure::new(format!("{idle} links joined in"), "s", [joined]));
    section.push(Figure::new(format!("{idle} idle links, each"), "KiB", [kib]).mark(Mark::AtMost(30.0)));
    section
        .push(Figure::new(format!("{idle} idle links, CPU"), "% of a core", [busy]).mark(Mark::AtMost(5.0)));

    rest_stop.cancel();
    links(&gateway, herd).await?;
    gateway.process.kill9()?;
    gateway.process.restart().await?;
    let begun = Instant::now();
    gateway.ready().await?;
    let served = Served::watch(&product, &gateway)?;
    links(&gateway, herd).await?;
    let back = begun.elapsed().as_secs_f64();
    section.push(
        Figure::new(format!("{herd} links back after a kill in"), "s", [back]).mark(Mark::AtMost(30.0)),
    );
    let (first, rate) = served.told(begun).await?;
    section.push(Figure::new("the first request served after", "s", [first]).mark(Mark::AtMost(30.0)));
    section.push(Figure::new("requests served meanwhile", "a second", [rate]));
    herd_stop.cancel();
    rest_stop.cancel();
    Ok(section)
}

/// Requests to the site while its agents come back: when the first was answered, and how many followed.
struct Served(tokio::task::JoinHandle<Result<(Instant, f64)>>);

impl Served {
    fn watch(product: &Product, gateway: &Gateway) -> Result<Self> {
        let admin = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
        let address: SocketAddr = gateway.kubernetes().trim_start_matches("https://").parse()?;
        let aim =
            Aim::get(address, &format!("/sites/{SITE}/x"), &format!("Authorization: Bearer {admin}\r\n"));
        Ok(Self(tokio::spawn(async move {
            // The first one waits until an agent is there.
            load::keep_alive(&aim, 1, Duration::from_millis(50)).await?;
            let first = Instant::now();
            Ok((first, load::keep_alive(&aim, 1, Duration::from_secs(1)).await?.per_second))
        })))
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
