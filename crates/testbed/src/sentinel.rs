//! A Redis that fails over: one master, one replica, and sentinels that watch them.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    Authority, CertificateFiles, Folder, Lease, Process, Program, Redis, RedisOptions, Subject, TlsMode,
    eventually,
    redis::{answers, command, listen},
    tools,
};

/// The name by which sentinels and clients know the master.
const MASTER: &str = "tarbet";
/// A silent master is given up after this long; less would mistake a busy machine for a failure.
const DOWN_AFTER: Duration = Duration::from_secs(5);
/// Sentinels look at servers every 10 s and at each other every 2 s; no test has that long.
const HURRY: [&str; 6] = ["SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "500"];
const READY: Duration = Duration::from_mins(1);

/// How to start [`Sentinels`].
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    /// How many sentinels; a majority of them must agree.
    pub sentinels: u16,
    /// The password of master and replica (the sentinels themselves ask for none).
    pub password: Option<String>,
    /// Whether all of them speak only TLS, with certificates of one authority made on the spot.
    pub tls: bool,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        Self { sentinels: 1, password: None, tls: false }
    }
}

/// The running set; it goes when dropped.
#[derive(Debug)]
pub struct Sentinels {
    // In the order they must go.
    watchers: Vec<Process>,
    nodes: [Redis; 2],
    tls: Option<CertificateFiles>,
    lease: Lease,
    _folder: Folder,
}

impl Sentinels {
    /// One sentinel over a master and a replica.
    pub async fn start() -> Result<Self> {
        Self::start_with(SentinelOptions::default()).await
    }

    /// A set with options, once every sentinel knows the replica and every other sentinel.
    pub async fn start_with(options: SentinelOptions) -> Result<Self> {
        ensure!(options.sentinels > 0, "a set needs at least one sentinel");
        let folder = Folder::new("sentinel")?;
        let lease = Lease::block(options.sentinels)?;
        let tls = if options.tls {
            let authority = Authority::new("Sentinels of the test bed")?;
            Some(authority.issue_files(&Subject::loopback("redis"), folder.path(), "redis")?)
        } else {
            None
        };
        let node = |config: Vec<String>| RedisOptions {
            password: options.password.clone(),
            tls: tls.clone().map_or(TlsMode::Off, TlsMode::Files),
            config,
            ..RedisOptions::default()
        };
        let announce = "replica-announce-ip 127.0.0.1".to_owned();
        // A replica normally waits 5 s for more of them before it is served.
        let eager = "repl-diskless-sync-delay 0".to_owned();
        let master = Redis::start_with(node(vec![announce.clone(), eager.clone()])).await?;
        let follow = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = Redis::start_with(node(vec![announce, eager, follow])).await?;

        let program = tools::redis("redis-sentinel").await?;
        let mut watchers = Vec::new();
        for (index, port) in lease.ports().enumerate() {
            let name = format!("sentinel-{index}");
            let mut config = listen(port, tls.as_ref());
            config.push_str(&watch(master.port(), options.sentinels / 2 + 1, options.password.as_deref()));
            let _ = writeln!(config, "dir \"{}\"", folder.path().display());
            let config = folder.write(&format!("{name}.conf"), &config)?;
            let mut sentinel = Process::start(&folder, &name, Program::new(&program).arg(config))?;
            sentinel.ready(READY, || answers(port, tls.as_ref(), None)).await?;
            command(port, tls.as_ref(), None, &HURRY).await?;
            watchers.push(sentinel);
        }
        let set = Self { watchers, nodes: [master, replica], tls, lease, _folder: folder };
        set.settled().await?;
        Ok(set)
    }

    /// The name of the master, which clients give to a sentinel.
    pub fn master_name(&self) -> &'static str {
        MASTER
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        self.lease.ports().map(|port| format!("{scheme}://127.0.0.1:{port}")).collect()
    }

    /// The certificate and authority of all of them, if they speak TLS.
    pub fn tls(&self) -> Option<&CertificateFiles> {
        self.tls.as_ref()
    }

    /// The two servers, in the order they were started, whatever their roles are now.
    pub fn nodes(&mut self) -> &mut [Redis; 2] {
        &mut self.nodes
    }

    /// The sentinel processes, to pause or kill.
    pub fn sentinels(&mut self) -> &mut [Process] {
        &mut self.watchers
    }

    /// The port of the master as all sentinels see it; an error while they disagree.
    pub async fn master_port(&self) -> Result<u16> {
        let mut seen = None;
        for port in self.lease.ports() {
            let answer = self.ask(port, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await?;
            let master = answer.lines().nth(1).and_then(|line| line.parse().ok());
            let master: u16 =
                master.with_context(|| format!("sentinel {port} knows no master: {answer:?}"))?;
            ensure!(*seen.get_or_insert(master) == master, "the sentinels disagree about the master");
        }
        seen.context("there is no sentinel")
    }

    /// Makes the replica the master, in good order, and waits until all agree and the former
    /// master follows; returns the new master's port.
    pub async fn failover(&self) -> Result<u16> {
        let before = self.master_port().await?;
        let first = self.lease.port(0);
        // Refused while an earlier failover is not over, or the replica's state is stale.
        eventually(READY, "a sentinel to begin a failover", || {
            self.ask(first, &["SENTINEL", "FAILOVER", MASTER])
        })
        .await?;
        let after = self.moved_from(before).await?;
        self.settled().await?;
        Ok(after)
    }

    /// Kills the master as a crash would and waits until the sentinels have replaced it;
    /// returns the new master's port.
    pub async fn kill_master(&mut self) -> Result<u16> {
        let before = self.master_port().await?;
        let node = self.nodes.iter_mut().find(|node| node.port() == before);
        node.with_context(|| format!("no server of this set has port {before}"))?.kill9()?;
        self.moved_from(before).await
    }

    /// Brings back a killed server and waits until it follows the master.
    pub async fn revive(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if node.process().exited()?.is_some() {
                node.restart().await?;
            }
        }
        self.settled().await
    }

    async fn moved_from(&self, before: u16) -> Result<u16> {
        eventually(READY, "another master", || async {
            let now = self.master_port().await?;
            ensure!(now != before, "the master is still on port {before}");
            let node = self.nodes.iter().find(|node| node.port() == now).context("an unknown master")?;
            let role = node.command(&["ROLE"]).await?;
            ensure!(role.starts_with("master"), "port {now} says {role:?}");
            anyhow::Ok(now)
        })
        .await
    }

    /// Waits until every sentinel knows one live replica and all its peers.
    async fn settled(&self) -> Result<()> {
        let peers = (self.watchers.len() - 1).to_string();
        eventually(READY, "the sentinels to know the whole set", || async {
            let master = self.master_port().await?;
            for port in self.lease.ports() {
                let state = self.ask(port, &["SENTINEL", "MASTER", MASTER]).await?;
                let seen = (
                    field(&state, "flags"),
                    field(&state, "num-slaves"),
                    field(&state, "num-other-sentinels"),
                );
                let wanted = (Some("master"), Some("1"), Some(peers.as_str()));
                ensure!(seen == wanted, "sentinel {port} sees {seen:?}");
            }
            for node in self.nodes.iter().filter(|node| node.port() == master) {
                // A replica is sent what is written, and can confirm it, only after its own first word, up to a second
                // after it was called online. Until then nothing of what is told here is confirmed.
                node.command(&["PUBLISH", "settled", ""]).await?;
                let replication = node.command(&["INFO", "replication"]).await?;
                let confirmed = replication.lines().find(|line| line.starts_with("slave0:"));
                ensure!(
                    confirmed.is_some_and(|replica| !replica.contains("offset=0,")),
                    "the master on port {master} has heard nothing of its replica: {confirmed:?}"
                );
            }
            for node in self.nodes.iter().filter(|node| node.port() != master) {
                let replication = node.command(&["INFO", "replication"]).await?;
                let linked = replication.contains(&format!("master_port:{master}"))
                    && replication.contains("master_link_status:up");
                if !linked {
                    bail!("the replica on port {} does not follow yet", node.port());
                }
            }
            anyhow::Ok(())
        })
        .await
    }

    async fn ask(&self, port: u16, words: &[&str]) -> Result<String> {
        command(port, self.tls.as_ref(), None, words).await
    }
}

/// The lines of a sentinel's configuration that name the master.
fn watch(master: u16, quorum: u16, password: Option<&str>) -> String {
    let mut lines = format!(
        "bind 127.0.0.1\nsentinel announce-ip 127.0.0.1\n\
         sentinel monitor {MASTER} 127.0.0.1 {master} {quorum}\n\
         sentinel down-after-milliseconds {MASTER} {}\nsentinel failover-timeout {MASTER} 10000\n",
        DOWN_AFTER.as_millis()
    );
    if let Some(password) = password {
        let _ = writeln!(lines, "sentinel auth-pass {MASTER} {password}");
    }
    lines
}

/// The value after a name in a reply of names and values, one a line.
fn field<'a>(reply: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = reply.lines();
    while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
        if key == name {
            return Some(value);
        }
    }
    None
}
