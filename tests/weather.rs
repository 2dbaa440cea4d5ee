//! Lines that are slow and break: what is answered was done once, and nothing is done twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Relay, effort, eventually, verified};

use super::asking;
use super::smuggling::strict::Server;

const SOON: Duration = Duration::from_mins(1);
const CALLERS: usize = 8;

/// A site behind a bad line.
struct World {
    product: Product,
    gateway: Gateway,
    line: Relay,
    server: Server,
    _agent: Agent,
}

impl World {
    async fn start() -> Result<Self> {
        let (product, server) = (Product::new(env!("CARGO_BIN_EXE_tarbet"))?, Server::start().await?);
        // A caller is told soon that the site is away.
        let extra = ["--set", "gateway.kubernetes.tls=null", "--set", "gateway.max_wait=2s"];
        let gateway = product.gateway("gateway", "{kind: memory}", &extra).await?;
        let token = asking::add_site(&product, &gateway, "lab").await?;
        let token = product.folder().write("lab.token", &token)?.display().to_string();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{}", server.port) } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let kubeconfig = product.folder().write("lab.kubeconfig", &kubeconfig.to_string())?;
        let (kubeconfig, authority) =
            (kubeconfig.display().to_string(), product.authority().display().to_string());
        let place = gateway.agents();
        let line = Relay::to(place.split_once("://").context("a URL")?.1.parse()?).await?;
        let dialled = format!("grpcs://{}", line.address());
        let args = ["agent", "--name", "lab", "--token-file", &token, "--ca-file", &authority];
        let args = [&args[..], &["--gateway", &dialled, "--kubeconfig", &kubeconfig]].concat();
        let agent = product.role("lab", &args, &[]).await?;
        Ok(Self { product, gateway, line, server, _agent: agent })
    }
}

/// Someone who has things done at the site.
#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    url: String,
    bearer: String,
}

impl Caller {
    fn of(world: &World) -> Result<Self> {
        let bearer = std::fs::read_to_string(world.product.admin_token())?.trim().to_owned();
        let url = world.gateway.kubernetes().replace("https:", "http:");
        Ok(Self { http: reqwest::Client::new(), url, bearer })
    }

    /// Has a thing done once. Whether it was, where that is certain.
    async fn does(&self, id: &str) -> Result<bool> {
        let request = self.http.post(format!("{}/sites/lab/api/v1/{id}", self.url));
        let answer = request.bearer_auth(&self.bearer).body(id.to_owned()).send().await?;
        let (status, said) = (answer.status(), answer.text().await?);
        if status.is_success() {
            ensure!(said == "ok", "{id}: {said}");
            return Ok(true);
        }
        ensure!(said.contains("TB-"), "{id}: {status} {said}");
        Ok(false)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_slow_and_breaks_has_nothing_done_twice() -> Result<()> {
    let world = World::start().await?;
    let caller = Caller::of(&world)?;
    ensure!(caller.does("first").await?, "a slow line alone carries everything");
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (caller, over, count) = (caller.clone(), Arc::clone(&over), Arc::clone(&count));
            tokio::spawn(async move {
                let mut told = BTreeMap::new();
                while !over.load(SeqCst) {
                    let id = format!("thing-{}", count.fetch_add(1, SeqCst));
                    let done = caller.does(&id).await?;
                    told.insert(id, done);
                }
                anyhow::Ok(told)
            })
        })
        .collect();
    // An agent waits longer after each.
    let cuts = 6 * effort().min(5);
    world.line.rain(true);
    while world.line.cuts() < cuts {
        let before = world.line.cuts();
        eventually(SOON, "the line to break again", || async { world.line.cuts() > before }).await?;
    }
    world.line.rain(false);
    // All of them are served again, over links that stay.
    let before = count.load(SeqCst);
    eventually(SOON, "things to be done again", || async { count.load(SeqCst) > before + 5 * CALLERS })
        .await?;
    over.store(true, SeqCst);
    let mut told = BTreeMap::from([("first".to_owned(), true)]);
    for caller in callers {
        told.extend(caller.await??);
    }
    ensure!(caller.does("last").await?, "the line is well again");
    told.insert("last".into(), true);

    let mut done = BTreeMap::<String, usize>::new();
    for request in world.server.take() {
        ensure!(request.fault.is_none(), "{request:?}");
        let id = String::from_utf8(request.body.clone())?;
        ensure!(request.line == format!("POST /api/v1/{id} HTTP/1.1"), "whole, or not at all: {request:?}");
        *done.entry(id).or_default() += 1;
    }
    for (id, times) in &done {
        ensure!(*times == 1 && told.contains_key(id), "{id} was done {times} times");
    }
    for (id, _) in told.iter().filter(|(_, done)| **done) {
        ensure!(done.contains_key(id), "{id} was answered and never done");
    }
    let broken = told.values().filter(|done| !**done).count();
    ensure!(broken > 0, "a line that breaks is noticed by somebody");
    verified("connections of a slow line that break between agent and gateway", world.line.cuts());
    verified("writes over a slow line that breaks: none lost that was answered, none done twice", told.len());
    Ok(())
}
