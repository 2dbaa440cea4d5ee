//! What fails while people use it: gateways killed, the store gone or emptied, everybody waiting.

pub(crate) mod certificates;
mod crowd;
mod failover;
mod kubelet;
mod rotation;
mod standstill;
pub(crate) mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::Value;
use tarbet_identity::Secret;
use tarbet_link::{Address, Dialer, LinkError, Target};
use tarbet_reach::client::Client;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Persistence, Redis, RedisOptions, effort, eventually, verified};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::asking::{self, name};
use crowd::Crowd;
pub(crate) use crowd::Tally;
use rotation::links_at;

const SOON: Duration = Duration::from_mins(1);

struct World {
    product: Product,
    redis: Redis,
}

impl World {
    async fn new() -> Self {
        let options = RedisOptions { persistence: Persistence::AppendOnly, ..RedisOptions::default() };
        let redis = Redis::start_with(options).await.unwrap();
        Self { product: Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), redis }
    }

    async fn gateway(&self, name: &str, extra: &[&str]) -> Gateway {
        let store = format!("{{kind: redis, url: '{}', deadline: 1s}}", self.redis.url());
        self.product.gateway(name, &store, extra).await.unwrap()
    }

    /// A site whose agent, of the same name, dials these gateways.
    async fn site(&self, name: &str, at: &Gateway, gateways: &[&Gateway], extra: &[&str]) -> Agent {
        let token = self.add_site(name, at).await;
        self.product.agent(name, &token, gateways, extra).await.unwrap()
    }

    async fn add_site(&self, name: &str, at: &Gateway) -> String {
        asking::add_site(&self.product, at, name).await.unwrap()
    }

    fn client(&self, gateway: &Gateway) -> Client {
        asking::client(&self.product, gateway)
    }
}

fn code(answer: &Result<String, LinkError>) -> &str {
    match answer {
        Err(LinkError::Denied(denial)) => &denial.code,
        _ => "",
    }
}

async fn gauge(gateway: &Gateway, name: &str) -> Option<u64> {
    let page = reqwest::get(format!("{}/metrics", gateway.observability())).await.ok()?.text().await.ok()?;
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Those who ask may stop.
pub(crate) fn over(tally: &Tally) {
    tally.over.store(true, SeqCst);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_die_under_load_and_nearly_nobody_notices() {
    let world = World::new().await;
    let mut gateways = [world.gateway("one", &[]).await, world.gateway("two", &[]).await];
    let sites: Vec<String> = (0..3 + effort().min(10)).map(|i| format!("site-{i}")).collect();
    let mut agents = Vec::new();
    for site in &sites {
        agents.push(world.site(site, &gateways[0], &[&gateways[0], &gateways[1]], &[]).await);
    }
    // An agent is ready with its first link.
    for gateway in &gateways {
        links_at(gateway, sites.len() as u64).await;
    }
    let crowd = Crowd::start(&world.product, &gateways, &sites);
    for round in 0..2 * effort() {
        crowd.goes_on(300).await;
        let victim = &mut gateways[round % 2];
        victim.process.kill9().unwrap();
        crowd.goes_on(300).await;
        victim.process.restart().await.unwrap();
        victim.ready().await.unwrap();
        links_at(victim, sites.len() as u64).await;
    }
    crowd.goes_on(300).await;
    let asked = crowd.end().await;
    verified("kill -9 of a gateway under load", 2 * effort());
    verified("requests while gateways die, none misrouted, none lost at both gateways", asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_own_sites_go_on_and_others_say_so_until_it_is_back() {
    let mut world = World::new().await;
    let (one, two) = (world.gateway("one", &[]).await, world.gateway("two", &[]).await);
    let _near = world.site("near", &one, &[&one], &[]).await;
    let _far = world.site("far", &one, &[&two], &[]).await;
    let client = world.client(&one);
    let (near, far) = (client.site("near".parse().unwrap()), client.site("far".parse().unwrap()));
    assert_eq!(name(&near).await.unwrap(), "near");
    assert_eq!(name(&far).await.unwrap(), "far");

    let (rounds, mut asked) = (effort().min(10), 0);
    for _ in 0..rounds {
        world.redis.stop().await.unwrap();
        eventually(SOON, "the other gateway's site to be out of reach", || async {
            assert_eq!(name(&near).await.unwrap(), "near");
            let answer = name(&far).await;
            if code(&answer) == "TB-1105" { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await
        .unwrap();
        for _ in 0..20 {
            assert_eq!(name(&near).await.unwrap(), "near");
            asked += 1;
        }

        world.redis.restart().await.unwrap();
        eventually(SOON, "everything to be well again", || async {
            let answer = name(&far).await;
            if answer.as_deref().is_ok_and(|name| name == "far") {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await
        .unwrap();
        assert_eq!(name(&near).await.unwrap(), "near");
    }
    verified("Redis stopped under gateways: own sites go on, others say so and come back", rounds);
    verified("requests for own sites without the store, none lost", asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_was_emptied_fills_itself() {
    let world = World::new().await;
    let (one, two) = (world.gateway("one", &[]).await, world.gateway("two", &[]).await);
    let _far = world.site("far", &one, &[&two], &[]).await;
    let far = world.client(&one).site("far".parse().unwrap());
    assert_eq!(name(&far).await.unwrap(), "far");
    // Only what can be derived again: sites and tokens are records, not the registry's.
    let script = "for _, p in ipairs({'*links*', '*gateways*'}) do for _, k in ipairs(redis.call('KEYS', p)) do redis.call('DEL', k) end end";
    for _ in 0..effort() {
        world.redis.command(&["EVAL", script, "0"]).await.unwrap();
        // It may wait for the next heartbeat, and not longer than a request may wait.
        assert_eq!(name(&far).await.unwrap(), "far");
        // That request may have taken the way known from before; the list knows only what was written again.
        eventually(SOON, "the link to be listed again", || async {
            let listed = world.product.run(&one, &["site", "list", "-o", "json"]).await.unwrap();
            let listed: Value = serde_json::from_str(&listed).unwrap();
            if listed[0]["links"][0]["gateway"] == "two" { Ok(()) } else { Err(listed) }
        })
        .await
        .unwrap();
    }
    verified("the registry of gateways emptied: it fills itself", effort());
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_wait_for_an_absent_site_and_all_are_served() {
    let world = World::new().await;
    let gateway = world.gateway("one", &["--set", "gateway.max_wait=5m"]).await;
    let token = world.add_site("late", &gateway).await;
    let count = 500 * effort().min(10);
    let client = world.client(&gateway);
    let waiting: Vec<_> = (0..count)
        .map(|_| {
            let site = client.site("late".parse().unwrap());
            tokio::spawn(async move { name(&site).await })
        })
        .collect();
    eventually(SOON, "all to wait", || async {
        let waiting = gauge(&gateway, "tarbet_requests_waiting ").await;
        if waiting == Some(count as u64) { Ok(()) } else { Err(format!("{waiting:?} of {count}")) }
    })
    .await
    .unwrap();
    let _agent = world.product.agent("late", &token, &[&gateway], &[]).await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await.unwrap().unwrap(), "late");
    }
    assert_eq!(gauge(&gateway, "tarbet_requests_waiting ").await, Some(0));
    verified("requests that wait for an absent site: all are served when it comes", count);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_told_to_stop_finishes_what_runs_and_cleans_up() {
    let world = World::new().await;
    let one = world.gateway("one", &[]).await;
    let mut two = world.gateway("two", &["--set", "shutdown.deadline=1m"]).await;
    let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = backend.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = backend.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    let rules = format!("services: [info]\ntcp:\n  - {{host: 127.0.0.1, ports: [{}]}}\n", address.port());
    let policy = world.product.folder().write("policy.yaml", &rules).unwrap();
    let _agent = world.site("lab", &one, &[&one, &two], &["--policy", policy.to_str().unwrap()]).await;
    eventually(SOON, "a link at each gateway", || async {
        gauge(&one, "tarbet_links ").await == Some(1) && gauge(&two, "tarbet_links ").await == Some(1)
    })
    .await
    .unwrap();

    // A stream through the one that will leave, and an idle connection to it.
    let idle = world.client(&two);
    assert_eq!(name(&idle.site("lab".parse().unwrap())).await.unwrap(), "lab");
    let target = Target::tcp(Address::new("127.0.0.1", address.port()).unwrap());
    let mut stream = world.client(&two).site("lab".parse().unwrap()).open(target).await.unwrap();
    let mut echo = async |text: &str| {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, text.as_bytes());
    };
    echo("before").await;
    let ready = format!("{}/readyz", two.observability());
    let stopping = tokio::spawn(async move {
        two.process.stop().await.unwrap();
        two.process.log_tail()
    });
    eventually(SOON, "the gateway to say that it leaves", || async {
        reqwest::get(&ready).await.map_or(true, |answer| !answer.status().is_success())
    })
    .await
    .unwrap();
    echo("while it leaves").await;
    assert_eq!(name(&world.client(&one).site("lab".parse().unwrap())).await.unwrap(), "lab");
    drop(stream);
    drop(idle);
    let log = stopping.await.unwrap();
    assert!(log.contains("Stopped.") && !log.contains("cut off"), "{log}");

    let listed = world.product.run(&one, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Vec<BTreeMap<String, Value>> = serde_json::from_str(&listed).unwrap();
    let links = listed[0]["links"].as_array().unwrap();
    assert!(!links.is_empty() && links.iter().all(|link| link["gateway"] == "one"), "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_told_and_recorded_and_a_changed_record_is_noticed() {
    let world = World::new().await;
    let folder = world.product.folder().path().to_owned();
    let (log, site_log) = (folder.join("gateway-audit.log"), folder.join("agent-audit.log"));
    let setting = format!("gateway.audit.file={}", log.display());
    let gateway = world.gateway("one", &["--set", &setting]).await;
    let agent_log = site_log.to_str().unwrap();
    let _agent =
        world.site("lab", &gateway, &[&gateway], &["--audit-file", agent_log, "--site", "lab"]).await;
    let site = world.client(&gateway).site("lab".parse().unwrap());
    for _ in 0..5 {
        assert_eq!(name(&site).await.unwrap(), "lab");
    }
    let newest: Value =
        serde_json::from_str(&world.product.run(&gateway, &["why", "-o", "json"]).await.unwrap()).unwrap();
    let id = newest[0]["id"].as_str().unwrap();
    let story = world.product.run(&gateway, &["why", id]).await.unwrap();
    assert!(story.contains("`admin` asked `lab`") && story.contains("answered with 200"), "{story}");

    // The gateway's also tells of the site that was added.
    for (file, records) in [(&log, "records 6"), (&site_log, "records 5")] {
        let path = file.to_str().unwrap();
        eventually(SOON, "the records to be on disk", || async {
            let said = world.product.run(&gateway, &["audit", "verify", path]).await?;
            // The head follows the records.
            let head = tarbet_reach::audit::read_head(file)?.map_or(0, |head| head.seq);
            if said.contains(records) && head >= 5 { Ok(()) } else { Err(anyhow::anyhow!(said)) }
        })
        .await
        .unwrap();
        let tail = world.product.run(&gateway, &["audit", "tail", path, "-o", "json"]).await.unwrap();
        assert!(tail.contains(id) && tail.contains("\"lab\""), "{tail}");
        let text = std::fs::read_to_string(file).unwrap();
        for changed in [
            text.replacen("info", "spam", 1),
            text.split_inclusive('\n').skip(1).collect(),
            text.split_inclusive('\n').take(4).collect(),
        ] {
            let copy = folder.join("copy.log");
            std::fs::write(&copy, changed).unwrap();
            std::fs::copy(format!("{path}.head"), folder.join("copy.log.head")).unwrap();
            let said =
                world.product.run(&gateway, &["audit", "verify", copy.to_str().unwrap()]).await.unwrap_err();
            assert!(said.to_string().contains("TB-1404"), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_is_sealed_and_knows_its_site_again() {
    let world = World::new().await;
    let gateway = world.gateway("one", &[]).await;
    let rules = "accept_plain: false\nservices: [info]\n";
    let policy = world.product.folder().write("sealed.yaml", rules).unwrap();
    let mut agent = world.site("vault", &gateway, &[&gateway], &["--policy", policy.to_str().unwrap()]).await;
    // What ends at the gateway is refused.
    let plain = world.client(&gateway).site("vault".parse().unwrap());
    assert_eq!(code(&name(&plain).await), "TB-1201");
    let listed = world.product.run(&gateway, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let pin: tarbet_identity::Pin = listed[0]["keys"][0]["pin"].as_str().unwrap().parse().unwrap();
    let pins = tarbet_identity::PinSet::default();
    pins.insert(pin);
    let sealed = plain.clone().sealed(pins.clone(), Arc::new(|| None)).unwrap();
    assert_eq!(name(&sealed).await.unwrap(), "vault");
    // The key survives the agent's end.
    agent.process.restart().await.unwrap();
    agent.ready().await.unwrap();
    let again = plain.sealed(pins, Arc::new(|| None)).unwrap();
    assert_eq!(name(&again).await.unwrap(), "vault");
}
