//! Calls of interLink in the plainest HTTP, and the parts that answer them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Lease, Slurm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An API server with a plugin behind it.
pub(super) struct Edge {
    pub(super) api: Agent,
    _plugin: Agent,
    pub(super) address: SocketAddr,
    _ports: Lease,
}

impl Edge {
    /// Starts both; `words` chooses the plugin.
    pub(super) async fn start(product: &Product, words: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let ports = Lease::block(2)?;
        let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
        let root = product.folder().path().join("pods").display().to_string();
        let (plugin_at, api_at) = (at(0), at(1));
        let plugin = [words, &["--listen", &plugin_at, "--data-root", &root]].concat();
        let plugin = product.role("plugin", &plugin, variables).await?;
        let api_root = product.folder().path().join("api").display().to_string();
        let sidecar = ports.port(0).to_string();
        let api = ["interlink", "--listen", &api_at, "--data-root", &api_root];
        let api = product
            .role("interlink", &api, &[("SIDECARURL", "http://127.0.0.1"), ("SIDECARPORT", &sidecar)])
            .await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.port(1)));
        Ok(Self { api, _plugin: plugin, address, _ports: ports })
    }

    /// Starts both on a Slurm cluster, where pods are processes that nobody probes.
    pub(super) async fn slurm(product: &Product, slurm: &Slurm, variables: &[(&str, &str)]) -> Result<Self> {
        let config = "ContainerRuntime: process\nSharedFS: true\nEnableProbes: false\n";
        let config = product.folder().write("SlurmConfig.yaml", config)?.display().to_string();
        let conf = slurm.config().display().to_string();
        let variables = [&[("SLURM_CONF", conf.as_str())], variables].concat();
        Self::start(product, &["plugin", "slurm", "--interlink-config", &config], &variables).await
    }

    /// Creates all pods, this many at a time.
    pub(super) async fn create(&self, pods: &[Value], at_once: usize) -> Result<()> {
        let (room, mut calls) = (Arc::new(Semaphore::new(at_once)), JoinSet::new());
        for pod in pods {
            let (room, address) = (Arc::clone(&room), self.address);
            let body = json!({ "pod": pod }).to_string();
            calls.spawn(async move {
                let _turn = room.acquire().await?;
                call(address, "/create", &body).await
            });
        }
        while let Some(done) = calls.join_next().await {
            done??;
        }
        Ok(())
    }

    /// The states of pods.
    pub(super) async fn states(&self, pods: &[Value]) -> Result<Vec<Value>> {
        let text = call(self.address, "/status", &serde_json::to_string(pods)?).await?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// A pod that runs this line.
pub(super) fn pod(number: usize, image: &str, line: &str) -> Value {
    json!({
        "metadata": {"name": format!("pod-{number}"), "namespace": "bench", "uid": format!("{number:08x}-0000-4000-8000-000000000000")},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", line]}],
        },
        "status": {"phase": "Pending"},
    })
}

/// One call on a connection of its own; the text of a good answer.
pub(super) async fn call(address: SocketAddr, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&request(path, body, "Connection: close\r\n")).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{path}: {head}\n{body}");
    }
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Ok(body.to_owned());
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16)?;
        if size == 0 {
            break;
        }
        whole.push_str(after.get(..size).context("a piece was cut")?);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    Ok(whole)
}

/// A call as bytes.
pub(super) fn request(path: &str, body: &str, headers: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
        .into_bytes()
}
