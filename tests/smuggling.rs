//! Requests whose bytes can be read in two ways: the server behind a site sees them once, as they were judged, or not at all.

mod ends;
mod forms;
pub(crate) mod strict;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::verified;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use forms::Form;
use strict::Server;

/// So long that only what never happens misses it.
const PATIENCE: Duration = Duration::from_mins(1);

struct World {
    _product: Product,
    gateway: Gateway,
    _agent: Agent,
    server: Server,
    bearer: String,
}

impl World {
    async fn start() -> Result<Self> {
        let (product, server) = (Product::new(env!("CARGO_BIN_EXE_tarbet"))?, Server::start().await?);
        let plain = ["--set", "gateway.kubernetes.tls=null"];
        let gateway = product.gateway("gateway", "{kind: memory}", &plain).await?;
        let said = product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await?;
        let said: Value = serde_json::from_str(&said)?;
        let token = said["token"]["token"].as_str().context("no token")?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{}", server.port) } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let kubeconfig = product.folder().write("lab.kubeconfig", &kubeconfig.to_string())?;
        let extra = ["--kubeconfig", kubeconfig.to_str().context("a path")?];
        let agent = product.agent("lab", token, &[&gateway], &extra).await?;
        let admin = std::fs::read_to_string(product.admin_token())?;
        let bearer = format!("Bearer {}", admin.trim());
        Ok(Self { _product: product, gateway, _agent: agent, server, bearer })
    }

    async fn send(&self, bytes: &[u8]) -> Result<String> {
        send(&self.gateway.kubernetes(), bytes).await
    }

    fn form<'a>(&'a self, path: &'a str) -> Form<'a> {
        let inner = "GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
        Form { host: "h", path, bearer: &self.bearer, inner }
    }

    fn last(&self) -> String {
        format!(
            "GET /sites/lab/api/v1/last HTTP/1.1\r\nhost: h\r\nauthorization: {}\r\nconnection: close\r\n\r\n",
            self.bearer
        )
    }
}

/// Sends bytes and waits until the listener hangs up; all that it said.
async fn send(url: &str, bytes: &[u8]) -> Result<String> {
    let place = url.split_once("://").context("a URL")?.1;
    let mut stream = TcpStream::connect(place).await?;
    let mut said = Vec::new();
    let talking = async {
        // It may have hung up before it heard all.
        let _cut = stream.write_all(bytes).await;
        let _cut = stream.read_to_end(&mut said).await;
    };
    tokio::time::timeout(PATIENCE, talking).await.context("neither answered nor closed")?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_can_be_read_in_two_ways_reach_no_server_as_another_request() -> Result<()> {
    let world = World::start().await?;
    // What is well formed gets through, and what comes after it on the connection as well.
    let good = forms::good(&world.form("/sites/lab/api/v1/good"));
    let said = world.send(format!("{good}{}", world.last()).as_bytes()).await?;
    ensure!(said.matches("HTTP/1.1 200").count() == 2, "{said}");
    let seen = world.server.take();
    ensure!(seen.len() == 2 && seen[0].line.ends_with("/api/v1/good HTTP/1.1"), "{seen:?}");
    ensure!(seen[0].body == b"hello" && seen.iter().all(|request| request.fault.is_none()), "{seen:?}");

    let forms = forms::all(&world.form("/sites/lab/api/v1/form"));
    ensure!(forms.len() >= 40, "{}", forms.len());
    for (n, (_, form)) in forms.iter().enumerate() {
        let form = form.replace("/api/v1/form", &format!("/api/v1/form-{n}-"));
        world.send(format!("{form}{}", world.last()).as_bytes()).await?;
    }
    // Nothing of it stayed behind in a connection that others use.
    for _ in 0..8 {
        let said = world.send(world.last().as_bytes()).await?;
        ensure!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
    let seen = world.server.take();
    let mut times = BTreeMap::<usize, usize>::new();
    for request in &seen {
        ensure!(request.fault.is_none() && !request.line.contains("smuggled"), "{request:?}");
        ensure!(!request.headers.iter().any(|line| line.contains("mallory")), "{request:?}");
        ensure!(!request.headers.iter().any(|line| line.starts_with("authorization:")), "{request:?}");
        if let Some((_, form)) = request.line.split_once("/api/v1/form-") {
            let n = form.split('-').next().unwrap_or_default().parse().context("a form's number")?;
            *times.entry(n).or_default() += 1;
        } else {
            ensure!(request.line == "GET /api/v1/last HTTP/1.1", "{request:?}");
        }
    }
    for (n, times) in times {
        ensure!(times == 1, "{}: came {times} times", forms[n].0);
    }
    verified("forms of requests that can be read in two ways: none arrives as another", forms.len());
    Ok(())
}
