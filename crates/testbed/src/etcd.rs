//! A one-member etcd on loopback: the memory of the control planes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Folder, Lease, Process, Program, tools};

const READY: Duration = Duration::from_mins(1);

/// A running etcd; it goes when dropped.
#[derive(Debug)]
pub struct Etcd {
    _process: Process,
    lease: Lease,
    _folder: Folder,
}

impl Etcd {
    /// Starts one and waits until it is healthy.
    pub async fn start() -> Result<Self> {
        let folder = Folder::new("etcd")?;
        let lease = Lease::block(2)?;
        let client = format!("http://127.0.0.1:{}", lease.port(0));
        let peer = format!("http://127.0.0.1:{}", lease.port(1));
        let program = Program::new(tools::etcd().await?)
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // Nothing in it outlives the test, so nothing needs to reach the disk.
            .args(["--unsafe-no-fsync", "--log-level", "warn"])
            // Debian marks etcd unsupported on some machines unless it is told otherwise.
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .grace(Duration::from_secs(1));
        let mut process = Process::start(&folder, "etcd", program)?;
        let port = lease.port(0);
        process.ready(READY, || healthy(port)).await?;
        Ok(Self { _process: process, lease, _folder: folder })
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.lease.port(0))
    }
}

async fn healthy(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.context("connect")?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.context("ask for its health")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.context("read its health")?;
    if answer.contains(r#""health":"true""#) { Ok(()) } else { bail!("it says {answer:?}") }
}
