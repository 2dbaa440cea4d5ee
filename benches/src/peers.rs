//! What people would use instead, each as it is set up by those who use it: TLS between its two ends,
//! plain text towards the user.

mod envoy;
mod frp;
pub(crate) mod haproxy;
mod rathole;
mod ssh;

use std::any::Any;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tarbet_testbed::{Process, eventually};

use crate::say;

/// A tunnel of somebody else's that leads to the backend.
pub(crate) struct Tunnel {
    pub(crate) name: &'static str,
    /// Where users come in.
    pub(crate) address: SocketAddr,
    /// Its processes, the public side first.
    pub(crate) pids: Vec<u32>,
    _kept: Box<dyn Any + Send>,
}

impl Tunnel {
    /// A tunnel of these processes, which go before what else they need.
    fn new(name: &'static str, address: SocketAddr, processes: Vec<Process>, kept: impl Any + Send) -> Self {
        let pids = processes.iter().map(Process::pid).collect();
        Self { name, address, pids, _kept: Box::new((processes, kept)) }
    }
}

/// Every peer that can be had here, with a way to the backend. One that does not start is told and left
/// out, and marks that need it are not judged.
pub(crate) async fn all(backend: SocketAddr) -> Vec<Tunnel> {
    let started = [
        ("frp", frp::start(frp::Mode::Tcp, backend).await),
        ("frp in HTTP mode", frp::start(frp::Mode::Http, backend).await),
        ("rathole", rathole::start(backend).await),
        ("ssh -R", ssh::start(backend).await),
        ("haproxy", haproxy::start(backend, None).await),
        ("envoy", envoy::start(backend).await),
    ];
    let mut all = Vec::new();
    for (name, started) in started {
        match started {
            Ok(tunnel) => all.push(tunnel),
            Err(error) => say(&format!("{name} did not start and is left out: {error:#}")),
        }
    }
    all
}

/// A program that `tools/install` built, or its folder.
pub(crate) fn built(path: &str) -> Result<PathBuf> {
    let cache = match std::env::var_os("TARBET_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache/tarbet"),
    };
    Ok(cache.join(path))
}

/// Waits until the whole way to the backend works.
async fn working(address: SocketAddr, processes: &[Process]) -> Result<()> {
    let aim = crate::load::Aim::get(address, "/version", "");
    // A tunnel may take a connection before its far end is ready, and never answer that one.
    let patience = Duration::from_secs(2);
    let waited = eventually(Duration::from_secs(30), "a peer", || async {
        let look = crate::load::keep_alive(&aim, 1, Duration::from_millis(1));
        tokio::time::timeout(patience, look).await.context("no answer")?.map(drop)
    });
    waited.await.with_context(|| {
        let logs: Vec<String> = processes.iter().map(Process::log_tail).collect();
        logs.join("\n")
    })?;
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
