//! Hours in small: the same work again and again, with agents, pods and networks that come and go, and nothing that grows.

mod jobs;
mod mesh;
mod node;

use std::fs;
use std::time::{Duration, Instant};

use tarbet_reach::client::Client;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{eventually, verified};

use super::asking::{self, add_site, name};
use super::up::Machine;

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
    tasks: u64,
}

impl Held {
    async fn of(process: &Process) -> Self {
        let pid = process.pid;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        let tasks = gauge(&process.observability, "tarbet_tasks ").await.unwrap();
        Self { kibibytes: field("VmRSS:"), descriptors, threads: field("Threads:"), tasks }
    }
}

/// A process that is looked at.
struct Process {
    role: &'static str,
    pid: u32,
    observability: String,
}

/// Processes that are looked at after each round.
struct Watched {
    begun: Instant,
    length: Duration,
    processes: Vec<Process>,
    looks: Vec<Vec<Held>>,
}

impl Watched {
    fn new(processes: Vec<Process>) -> Self {
        Self { begun: Instant::now(), length: length(), processes, looks: Vec::new() }
    }

    /// For a quarter of the time, where much else is kept waiting.
    fn briefly(processes: Vec<Process>) -> Self {
        Self { length: length() / 4, ..Self::new(processes) }
    }

    /// Whether there is another round. Caches, pools and arenas have their size only after some.
    fn goes_on(&self) -> bool {
        self.looks.len() < 9 || self.begun.elapsed() < self.length
    }

    async fn look(&mut self) {
        self.looks.push(futures::future::join_all(self.processes.iter().map(Held::of)).await);
    }

    /// Nothing has grown since the first third.
    fn judge(&self, after: &str) {
        let (early, late) = (&self.looks[self.looks.len() / 3], &self.looks[self.looks.len() - 1]);
        for (Process { role, .. }, (early, late)) in self.processes.iter().zip(early.iter().zip(late)) {
            let said = format!("{role}: {early:?}, then {late:?} after {after}");
            assert!(late.kibibytes <= early.kibibytes + early.kibibytes / 10 + 4096, "{said}");
            assert!(late.descriptors <= early.descriptors + 8, "{said}");
            assert!(late.threads <= early.threads + 4, "{said}");
            assert!(late.tasks <= early.tasks + 16, "{said}");
        }
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
    let gateway = Process {
        role: "gateway",
        pid: world.gateway.process.pid(),
        observability: world.gateway.observability(),
    };
    let agent = Process {
        role: "agent",
        pid: world.stays.process.pid(),
        observability: format!("http://127.0.0.1:{}", world.stays.probes()),
    };
    let (mut watched, mut asked) = (Watched::new(vec![gateway, agent]), 0);
    while watched.goes_on() {
        asked += world.round(&client, &guest).await;
        let gateway = world.gateway.observability();
        let left = || async { gauge(&gateway, "tarbet_links ").await == Some(LINKS_OF_A_SITE) };
        eventually(Duration::from_mins(1), "the guest to be gone", left).await.unwrap();
        watched.look().await;
    }
    watched.judge(&format!("{asked} requests"));
    let minutes = length().as_secs().div_ceil(60);
    verified("requests of a soak in which nothing grows", asked);
    verified("minutes of that soak", usize::try_from(minutes).unwrap());
}

/// Pods, machines of the local cloud, permit lists and tags that are made and removed, in one `tarbet up`.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_and_removed_leaves_nothing_in_a_process() {
    let machine = Machine::new().await;
    let mut up = machine.start();
    machine.ready().await;
    let file = |name, text| machine.folder.write(name, text).unwrap().display().to_string();
    let (description, rules) = (
        file("web.json", "{}"),
        file(
            "in.json",
            r#"[{"name": "in", "direction": "inbound", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["guests"]}]"#,
        ),
    );
    let process = Process { role: "up", pid: up.pid(), observability: machine.observability() };
    let (mut watched, mut rounds) = (Watched::new(vec![process]), 0);
    while watched.goes_on() {
        assert_eq!(machine.say(&["pods", "run", "none", "--", "echo", "across"]).await.trim(), "across");
        for words in [
            &["glide", "resource", "create", "local", "web", &description][..],
            &["glide", "tag", "set", "guests", "--children", "192.0.2.7"],
            &["glide", "rule", "add", "local", "web", "--rulefile", &rules],
            &["glide", "tag", "set", "guests", "--children", "192.0.2.8"],
            &["glide", "rule", "delete", "local", "web", "--rules", "in"],
            &["glide", "resource", "delete", "local", "web"],
            &["glide", "tag", "delete", "guests"],
            &["site", "add", "lab"],
            &["site", "remove", "lab"],
            &["topology"],
        ] {
            machine.say(words).await;
        }
        rounds += 1;
        watched.look().await;
    }
    watched.judge(&format!("{rounds} rounds"));
    machine.say(&["down"]).await;
    up.stop().await.unwrap();
    verified("rounds of pods, machines and tags made and removed after which nothing has grown", rounds);
}

async fn gauge(observability: &str, name: &str) -> Option<u64> {
    let page = reqwest::get(format!("{observability}/metrics")).await.ok()?.text().await.ok()?;
    page.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().parse::<f64>().ok()? as u64))
}
