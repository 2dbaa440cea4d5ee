//! The tag service over gRPC on each store, beside bare Redis commands, which is what the original makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::tags::{GetTagRequest, ResolveTagRequest, SetTagRequest, TagMapping};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Lease, Redis};

use super::bare::Bare;
use super::{alone, in_turn};
use crate::figure::{Figure, Mark, Section};
use crate::growth::{Growth, SIZES};
use crate::{Bench, cpu};

const CALLS: usize = 500;
const CLIENTS: usize = 16;
const MEMBERS: usize = 10;
const PEER: &str = "bare Redis";

/// A tag service that runs alone.
struct Service {
    name: &'static str,
    process: Agent,
    ports: Lease,
}

/// One connection to it.
struct Caller(TagServiceClient<Bare>);

impl Service {
    async fn start(product: &Product, name: &'static str, store: &[String]) -> Result<Self> {
        let ports = Lease::block(2)?;
        let at = |index| format!("127.0.0.1:{}", ports.port(index));
        let (tags, values) = (at(0), at(1));
        let mut args = vec!["tags", "--listen", &tags, "--kv-listen", &values];
        for setting in store {
            args.extend(["--set", setting]);
        }
        let process = product.role(&format!("tags-{name}"), &args, &[]).await?;
        Ok(Self { name, process, ports })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.port(0))
    }

    /// GetTag a second with many clients, each with a connection of its own.
    async fn crowd(&self, time: Duration) -> Result<f64> {
        let (count, begun, url) = (Arc::new(AtomicU64::new(0)), Instant::now(), self.url());
        let counted = Arc::clone(&count);
        alone(move || async move {
            let clients = (0..CLIENTS).map(|_| async {
                let caller = Caller::connect(url.clone()).await?;
                while begun.elapsed() < time {
                    caller.get("leaf-0".into()).await?;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
            futures::future::try_join_all(clients).await
        })
        .await?;
        Ok(count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
    }
}

impl Caller {
    async fn connect(url: String) -> Result<Self> {
        let (connection, origin) = Bare::connect(&url).await?;
        Ok(Self(TagServiceClient::with_origin(connection, origin)))
    }

    async fn set(&self, tag: TagMapping) -> Result<()> {
        self.0.clone().set_tag(SetTagRequest { tag: Some(tag) }).await?;
        Ok(())
    }

    async fn get(&self, tag_name: String) -> Result<()> {
        let answer = self.0.clone().get_tag(GetTagRequest { tag_name }).await?;
        ensure!(answer.into_inner().tag.is_some_and(|tag| tag.ip.is_some()), "a tag has no address");
        Ok(())
    }

    async fn resolve(&self, tag_name: String, members: usize) -> Result<()> {
        let answer = self.0.clone().resolve_tag(ResolveTagRequest { tag_name }).await?;
        let found = answer.into_inner().tags.len();
        ensure!(found == members, "a group resolves to {found}");
        Ok(())
    }
}

/// What one client takes for GetTag, SetTag and ResolveTag.
async fn one_client(url: String, round: usize) -> Result<[f64; 3]> {
    let caller = Caller::connect(url).await?;
    let get = in_turn(CALLS, |_| caller.get("leaf-0".into())).await?;
    let set = in_turn(CALLS, |number| caller.set(leaf(format!("new-{round}-{number}"), number))).await?;
    let resolve = in_turn(CALLS, |_| caller.resolve("group".into(), MEMBERS)).await?;
    Ok([get, set, resolve])
}

/// What one client takes for one command of Redis, reading and writing.
async fn one_redis_client(url: String, round: usize) -> Result<[f64; 2]> {
    let bare = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let get = in_turn(CALLS, |number| ask(bare.clone(), "GET", format!("{round}-{number}"))).await?;
    let set = in_turn(CALLS, |number| ask(bare.clone(), "SET", format!("{round}-{number}"))).await?;
    Ok([get, set])
}

fn leaf(name: String, number: usize) -> TagMapping {
    let ip = std::net::Ipv4Addr::from(0x0a00_0000 + (number as u32 % 0xff_ffff));
    let uri = Some(format!("memory/east/default/{name}"));
    TagMapping { name, child_tags: Vec::new(), uri, ip: Some(ip.to_string()) }
}

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let (product, redis) = (Product::new(&bench.binary)?, Redis::start().await?);
    let file = product.folder().path().join("tags.redb").display().to_string();
    let kind = |kind: &str| format!("store.kind={kind}");
    let services = [
        Service::start(&product, "memory", &[kind("memory")]).await?,
        Service::start(&product, "redb", &[kind("redb"), format!("store.path={file}")]).await?,
        Service::start(&product, "Redis", &[kind("redis"), format!("store.url={}", redis.url())]).await?,
    ];
    for service in &services {
        let caller = Caller::connect(service.url()).await?;
        for number in 0..MEMBERS {
            caller.set(leaf(format!("leaf-{number}"), number)).await?;
        }
        let child_tags = (0..MEMBERS).map(|number| format!("leaf-{number}")).collect();
        caller.set(TagMapping { name: "group".into(), child_tags, uri: None, ip: None }).await?;
    }
    let mut times = vec![[const { Vec::new() }; 3]; services.len()];
    let mut peer = [const { Vec::new() }; 2];
    let mut crowd = Vec::new();
    for round in 0..bench.scale.rounds {
        for (service, runs) in services.iter().zip(&mut times) {
            let url = service.url();
            let measured = alone(move || one_client(url, round)).await?;
            runs.iter_mut().zip(measured).for_each(|(runs, time)| runs.push(time));
        }
        let url = redis.url();
        let measured = alone(move || one_redis_client(url, round)).await?;
        peer.iter_mut().zip(measured).for_each(|(runs, time)| runs.push(time));
        crowd.push(services[0].crowd(Duration::from_secs(bench.scale.seconds)).await?);
    }
    let note = format!(
        "One client with a thread and a bare HTTP/2 connection of its own over gRPC, {CALLS} calls one after another; \
         the middle one. ResolveTag is of a group of {MEMBERS}. The peer is one command of a Redis client like it to \
         the same Redis. The original takes 0.3 to 0.4 ms on Redis."
    );
    let mut single = Section::new("Tags: one client", &note);
    for (service, [get, set, resolve]) in services.iter().zip(times) {
        let most = Mark::AtMost(if service.name == "Redis" { 0.2 } else { 0.1 });
        let [got, put] = &peer;
        for (call, runs, peer) in [("GetTag", get, got), ("SetTag", set, put), ("ResolveTag", resolve, got)] {
            let figure = Figure::new(format!("{call}, {}", service.name), "ms", runs);
            single.push(figure.beside(PEER, peer.iter().copied()).mark(most.clone()));
        }
    }
    let mut many = Section::new(
        "Tags: many clients",
        &format!(
            "{CLIENTS} clients like that one, each with a connection of its own, on one thread; one call at a time each. Load \
             and service share the cores."
        ),
    );
    many.push(Figure::new("GetTag", "calls/s", crowd).mark(Mark::AtLeast(30_000.0)));
    drop(services);
    let mut million = million(bench, &product).await?;
    million.growth = growth(bench, &product).await?;
    Ok(vec![single, many, million])
}

async fn ask(mut bare: redis::aio::MultiplexedConnection, command: &str, key: String) -> Result<()> {
    let mut words = redis::cmd(command);
    words.arg(key);
    if command == "SET" {
        words.arg("10.0.0.4");
    }
    let _: redis::Value = words.query_async(&mut bare).await?;
    Ok(())
}

/// As many tags as the service is meant to hold.
async fn million(bench: &Bench, product: &Product) -> Result<Section> {
    const GROUP: usize = 100;
    let count = if bench.scale.rounds > 3 { 1_000_000 } else { 100_000 };
    let service = Service::start(product, "million", &["store.kind=memory".into()]).await?;
    let caller = Caller::connect(service.url()).await?;
    let begun = Instant::now();
    stream::iter(0..count / GROUP)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(64, |group| {
            let caller = &caller;
            async move {
                let names: Vec<String> =
                    (1..GROUP).map(|leaf| format!("default.east.m{group}-{leaf}")).collect();
                for (number, name) in names.iter().enumerate() {
                    caller.set(leaf(name.clone(), group * GROUP + number)).await?;
                }
                let name = format!("group-{group}");
                caller.set(TagMapping { name, child_tags: names, uri: None, ip: None }).await
            }
        })
        .await?;
    let filled = count as f64 / begun.elapsed().as_secs_f64();
    let resident = cpu::resident_mib(service.process.process.pid())?;
    let (mut get, mut resolve) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let pick = move |number: usize| number * 7919 % (count / GROUP);
        let url = service.url();
        let among = move || async move {
            let caller = Caller::connect(url).await?;
            let get = in_turn(CALLS, |n| caller.get(format!("default.east.m{}-1", pick(n)))).await?;
            let all = |n| caller.resolve(format!("group-{}", pick(n)), GROUP - 1);
            Ok((get, in_turn(CALLS, all).await?))
        };
        let measured = alone(among).await?;
        get.push(measured.0);
        resolve.push(measured.1);
    }
    let note =
        format!("{count} tags in groups of {GROUP}, set over gRPC, in a service that keeps them in memory.");
    let mut section = Section::new("Tags: very many", &note);
    section.push(Figure::new("GetTag", "ms", get));
    section.push(Figure::new(format!("ResolveTag of {} members", GROUP - 1), "ms", resolve));
    section.push(Figure::new("tags set", "calls/s", [filled]));
    section.push(Figure::new("memory of the service", "MiB", [resident]));
    Ok(section)
}

/// What a tag costs among more and more of them, and a member in a tag with more and more.
async fn growth(bench: &Bench, product: &Product) -> Result<Vec<Growth>> {
    const RESOLVED: usize = 20;
    let service = Service::start(product, "growth", &["store.kind=memory".into()]).await?;
    let filling = Caller::connect(service.url()).await?;
    let mut get = Growth::new("GetTag among so many tags", "µs");
    let mut set = Growth::new("SetTag among so many tags", "µs");
    let mut resolve = Growth::new("ResolveTag, each of so many members", "µs");
    let (name, mut there) = (|number: usize| format!("default.east.m{number}"), 0);
    for size in SIZES {
        for number in there..size {
            filling.set(leaf(name(number), number)).await?;
        }
        there = size;
        let child_tags = (0..size).map(name).collect();
        filling.set(TagMapping { name: format!("of-{size}"), child_tags, uri: None, ip: None }).await?;
        for _ in 0..bench.scale.rounds {
            let url = service.url();
            let one_client = move || async move {
                let caller = Caller::connect(url).await?;
                let pick = |call: usize| call * 7919 % size;
                let get = in_turn(CALLS, |call| caller.get(name(pick(call)))).await?;
                let set = in_turn(CALLS, |call| caller.set(leaf(name(pick(call)), pick(call)))).await?;
                let all = in_turn(RESOLVED, |_| caller.resolve(format!("of-{size}"), size)).await?;
                Ok([get, set, all / size as f64])
            };
            for (row, millis) in [&mut get, &mut set, &mut resolve].into_iter().zip(alone(one_client).await?)
            {
                row.at(size, millis * 1e3);
            }
        }
    }
    Ok(vec![get, set, resolve])
}
