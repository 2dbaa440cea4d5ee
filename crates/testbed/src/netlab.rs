//! Network namespaces with names of their own, sockets inside them, and their removal.
//!
//! A lab makes no namespaces itself: the code under test does, with the lab's prefix. The lab
//! opens sockets in them to see which packets pass, and removes whatever carries the prefix
//! when it is dropped, or at the next start if its owner died.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::Path,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::{
    process::{Pid, Signal, getuid, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{Folder, tools};

const NETNS: &str = "/run/netns";

/// A prefix that nobody else uses, and a folder for the files of VPNs.
#[derive(Debug)]
pub struct Netlab {
    prefix: String,
    folder: Folder,
}

impl Netlab {
    /// A lab, once the programs are there. It needs root.
    pub async fn start() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        ensure!(getuid().is_root(), "network namespaces need root: run the tests as root");
        for program in ["ip", "nft", "bird", "swanctl"] {
            tools::netlab(program).await?;
        }
        sweep();
        let prefix = format!("lab{}x{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(Self { prefix, folder: Folder::new("netlab")? })
    }

    /// What the names of all namespaces of this lab must begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A folder for the files of what runs in the lab.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The namespaces of this lab that there are.
    pub fn namespaces(&self) -> Vec<String> {
        namespaces(&self.prefix)
    }

    /// Runs `ip` in a namespace of this lab, for faults.
    pub fn ip(&self, netns: &str, args: &[&str]) -> Result<()> {
        ensure!(netns.starts_with(&self.prefix), "{netns} is not of this lab");
        let status = Command::new("ip").args(["-n", netns]).args(args).status().context("run ip")?;
        ensure!(status.success(), "ip -n {netns} {} failed", args.join(" "));
        Ok(())
    }

    /// Ends every process inside a namespace of this lab, as a crash would.
    pub fn kill_inside(&self, netns: &str) -> Result<usize> {
        ensure!(netns.starts_with(&self.prefix), "{netns} is not of this lab");
        Ok(kill_inside(netns))
    }

    /// Answers every connection to `address` inside a namespace, for as long as the process lives or
    /// the namespace exists.
    pub fn answer(&self, netns: &str, address: SocketAddr) -> Result<()> {
        let listener = self.listen(netns, address)?;
        let work = move || {
            for stream in listener.incoming().flatten() {
                let _ = io::Write::write_all(&mut &stream, b"hello");
            }
        };
        thread::Builder::new().name(format!("answer {address}")).spawn(work).context("start a thread")?;
        Ok(())
    }

    /// Whether a connection from inside a namespace to `address` is made and answered within `patience`.
    pub async fn reaches(&self, netns: &str, address: SocketAddr, patience: Duration) -> Result<bool> {
        let netns = netns.to_owned();
        let attempt = move || {
            inside(&netns, move || {
                let mut stream = TcpStream::connect_timeout(&address, patience)?;
                stream.set_read_timeout(Some(patience))?;
                io::Read::read_exact(&mut stream, &mut [0; 5])
            })
        };
        let outcome = tokio::task::spawn_blocking(attempt).await.context("the attempt panicked")??;
        Ok(outcome.is_ok())
    }

    /// An open connection from inside a namespace, to see whether it survives a change.
    pub fn connect(&self, netns: &str, address: SocketAddr, patience: Duration) -> Result<TcpStream> {
        inside(netns, move || TcpStream::connect_timeout(&address, patience))?
            .with_context(|| format!("connect to {address} from {netns}"))
    }

    /// A listening socket inside a namespace; it may be served from anywhere.
    pub fn listen(&self, netns: &str, address: SocketAddr) -> Result<TcpListener> {
        inside(netns, move || TcpListener::bind(address))?
            .with_context(|| format!("listen at {address} in {netns}"))
    }

    /// A UDP socket inside a namespace.
    pub fn udp(&self, netns: &str, address: SocketAddr) -> Result<UdpSocket> {
        inside(netns, move || UdpSocket::bind(address))?.with_context(|| format!("bind {address} in {netns}"))
    }
}

/// A connection from inside a namespace, for tasks that outlive a borrow of the lab.
pub(crate) async fn dial(
    netns: &str,
    address: SocketAddr,
    patience: Duration,
) -> Result<tokio::net::TcpStream> {
    let name = netns.to_owned();
    let attempt = move || inside(&name, move || TcpStream::connect_timeout(&address, patience));
    let stream = tokio::task::spawn_blocking(attempt).await.context("the attempt panicked")??;
    let stream = stream.with_context(|| format!("connect to {address} from {netns}"))?;
    stream.set_nonblocking(true)?;
    Ok(tokio::net::TcpStream::from_std(stream)?)
}

impl Drop for Netlab {
    fn drop(&mut self) {
        remove(&self.prefix);
    }
}

/// Does something on a thread that lives in a namespace; sockets made there stay there.
fn inside<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let name = netns.to_owned();
    let thread = thread::spawn(move || -> Result<T> {
        let file =
            File::open(Path::new(NETNS).join(&name)).with_context(|| format!("open the namespace {name}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("enter the namespace {name}"))?;
        Ok(work())
    });
    thread.join().map_err(|_| anyhow!("the thread in {netns} panicked"))?
}

fn namespaces(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(NETNS).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    names
}

fn remove(prefix: &str) {
    for netns in namespaces(prefix) {
        kill_inside(&netns);
        let _ = Command::new("ip").args(["netns", "del", &netns]).status();
    }
}

fn kill_inside(netns: &str) -> usize {
    let output = Command::new("ip").args(["netns", "pids", netns]).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw);
    pids.filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count()
}

/// Removes the namespaces of labs whose process is gone.
fn sweep() {
    for netns in namespaces("lab") {
        let owner = netns
            .strip_prefix("lab")
            .and_then(|rest| rest.split_once('x'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&netns);
        }
    }
}
