//! Hours in small: the same work again and again, with agents that come and go, and nothing that grows.

use std::fs;
use std::time::{Duration, Instant};

use tarbet_reach::client::Client;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{eventually, verified};

use super::asking::{self, add_site, name};

/// How long it goes on: `make verify` sets two hours.
fn length() -> Duration {
    let seconds = std::env::var("SOAK").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// An agent keeps two, even with one gateway.
const LINKS_OF_A_SITE: u64 = 2;

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    kibibytes: u64,
    descriptors: u64,
    threads: u64,
}

impl Held {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        Self { kibibytes: field("VmRSS:"), descriptors, threads: field("Threads:") }
    }
}

struct World {
    product: Product,
    gateway: Gateway,
    stays: Agent,
}

impl World {
    async fn new() -> Self {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
        let store = format!("{{kind: redb, path: {}}}", product.folder().path().join("store.redb").display());
        let gateway = product.gateway("gateway", &store, &[]).await.unwrap();
        let token = add_site(&product, &gateway, "stays").await.unwrap();
        let stays = product.agent("stays", &token, &[&gateway], &[]).await.unwrap();
        Self { product, gateway, stays }
    }

    /// One round: a guest joins, both sites are asked, the guest leaves.
    async fn round(&self, client: &Client, guest: &str) -> usize {
        let mut guest = self.product.agent("guest", guest, &[&self.gateway], &[]).await.unwrap();
        let mut asked = 0;
        for _ in 0..50 {
            for site in ["stays", "guest"] {
                assert_eq!(name(&client.site(site.parse().unwrap())).await.unwrap(), site);
                asked += 1;
            }
        }
        guest.process.stop().await.unwrap();
        asked
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows_however_long_it_goes_on() {
    let world = World::new().await;
    let client = asking::client(&world.product, &world.gateway);
    let guest = add_site(&world.product, &world.gateway, "guest").await.unwrap();
    let pids = [world.gateway.process.pid(), world.stays.process.pid()];
    let (begun, mut samples, mut asked) = (Instant::now(), Vec::new(), 0);
    // Caches, pools and arenas have their size after the first rounds.
    while samples.len() < 9 || begun.elapsed() < length() {
        asked += world.round(&client, &guest).await;
        let left = || async { gauge(&world.gateway, "tarbet_links ").await == Some(LINKS_OF_A_SITE) };
        eventually(Duration::from_mins(1), "the guest to be gone", left).await.unwrap();
        samples.push(pids.map(Held::of));
    }
    let (early, late) = (&samples[samples.len() / 3], &samples[samples.len() - 1]);
    for (role, (early, late)) in ["gateway", "agent"].iter().zip(early.iter().zip(late)) {
        let said = format!("{role}: {early:?}, then {late:?} after {asked} requests");
        assert!(late.kibibytes <= early.kibibytes + early.kibibytes / 10 + 4096, "{said}");
        assert!(late.descriptors <= early.descriptors + 8, "{said}");
        assert!(late.threads <= early.threads + 4, "{said}");
    }
    let minutes = length().as_secs().div_ceil(60);
    verified("requests of a soak in which nothing grows", asked);
    verified("minutes of that soak", usize::try_from(minutes).unwrap());
}

async fn gauge(gateway: &Gateway, name: &str) -> Option<u64> {
    let page = reqwest::get(format!("{}/metrics", gateway.observability())).await.ok()?.text().await.ok()?;
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
