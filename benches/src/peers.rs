//! What people would use instead, each as it is set up by those who use it: TLS between its two ends,
//! plain text towards the user.

mod frp;
mod haproxy;
mod rathole;
mod ssh;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tarbet_testbed::{Folder, Lease, Process, eventually};

/// A tunnel of somebody else's that leads to the backend.
pub(crate) struct Tunnel {
    pub(crate) name: &'static str,
    /// Where users come in.
    pub(crate) address: SocketAddr,
    /// Its processes, the public side first.
    pub(crate) processes: Vec<Process>,
    _kept: (Folder, Lease),
}

impl Tunnel {
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }
}

/// Every peer, with a way to the backend.
pub(crate) async fn all(backend: SocketAddr) -> Result<Vec<Tunnel>> {
    Ok(vec![
        frp::start(frp::Mode::Tcp, backend).await.context("frp")?,
        frp::start(frp::Mode::Http, backend).await.context("frp in HTTP mode")?,
        rathole::start(backend).await.context("rathole")?,
        ssh::start(backend).await.context("ssh -R")?,
        haproxy::start(backend).await.context("haproxy")?,
    ])
}

/// A program that `tools/install` built.
fn built(path: &str) -> Result<PathBuf> {
    let cache = match std::env::var_os("TARBET_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache/tarbet"),
    };
    Ok(cache.join(path))
}

/// Waits until the whole way to the backend works.
async fn working(address: SocketAddr) -> Result<()> {
    let aim = crate::load::Aim::get(address, "/version", "");
    // A tunnel may take a connection before its far end is ready, and never answer that one.
    let patience = Duration::from_secs(2);
    eventually(Duration::from_secs(30), "a peer", || async {
        let look = crate::load::keep_alive(&aim, 1, Duration::from_millis(1));
        tokio::time::timeout(patience, look).await.context("no answer")?.map(drop)
    })
    .await?;
    Ok(())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
