//! Two local clouds that rules connect, beside strongSwan and BIRD alone with the very files that were made for them.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use reqwest::Method;
use serde_json::json;
use tarbet_testbed::Netlab;
use tarbet_testbed::product::Product;
use tokio::process::Command;

use super::world::World;
use crate::Bench;
use crate::figure::{Figure, Section};

const PEER: &str = "strongSwan and BIRD alone";
const CHARON: &str = "/usr/lib/ipsec/charon";
const LIMIT: Duration = Duration::from_mins(1);
/// How long one attempt waits, and so about how exact the figures are.
const ATTEMPT: Duration = Duration::from_millis(50);

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let pair = Pair::start(bench).await?;
        ours.push(pair.connect().await?);
        bare.push(pair.alone().await?);
    }
    let note = "A rule at each end permits a flow between two local clouds. From the first of the two requests until a \
                connection is answered at the other end: two gateways, two tunnels with IKEv2, BGP over both, and \
                permit lists. The peer is what is left without anybody who decides: the namespaces are there, and the \
                four charons and two BIRDs are started at once with the same files.";
    let mut section = Section::new("Two local clouds become connected", note);
    section.push(Figure::new("until the first answer", "s", ours).beside(PEER, bare));
    Ok(section)
}

struct Pair {
    lab: Netlab,
    world: World,
    from: String,
    to: SocketAddr,
}

impl Pair {
    /// A machine in each cloud, one of which answers; nothing is permitted.
    async fn start(bench: &Bench) -> Result<Self> {
        let (lab, product) = (Netlab::start().await?, Product::new(&bench.binary)?);
        let local =
            json!({ "prefix": lab.prefix(), "wan": format!("{}-wan", lab.prefix()), "folder": lab.folder() });
        let clouds = ["east", "west"].map(|name| json!({ "name": name, "local": local }));
        let store = json!({ "kind": "memory" });
        let world = World::with_clouds(&product, "vpn", &store, &json!(clouds)).await?;
        let path = "/namespaces/default/clouds/east/resources/web";
        let made = world.rest(Method::PUT, path, Some(&json!({ "description": "" }))).await?;
        let to = format!("{}:443", made["ip"].as_str().context("the machine has no address")?).parse()?;
        world.create("west", "worker").await?;
        lab.answer(&format!("{}-east.default.main.web", lab.prefix()), to)?;
        let from = format!("{}-west.default.main.worker", lab.prefix());
        Ok(Self { lab, world, from, to })
    }

    async fn connect(&self) -> Result<f64> {
        let begun = Instant::now();
        self.world.permit("east", "web", "web", "default.west.worker").await?;
        let rule = json!({
            "name": "web", "direction": 1, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.east.web"],
        });
        let path = "/namespaces/default/clouds/west/resources/worker/rules";
        self.world.rest(Method::POST, path, Some(&rule)).await?;
        self.answered(begun).await
    }

    async fn answered(&self, begun: Instant) -> Result<f64> {
        while begun.elapsed() < LIMIT {
            if self.lab.reaches(&self.from, self.to, ATTEMPT).await? {
                return Ok(begun.elapsed().as_secs_f64());
            }
        }
        bail!("{} does not reach {}", self.from, self.to)
    }

    /// Ends all that carries the VPN, and starts it again by hand.
    async fn alone(&self) -> Result<f64> {
        let hubs = ["east", "west"].map(|cloud| format!("{}-{cloud}.default._vpn", self.lab.prefix()));
        let tunnels: Vec<String> =
            hubs.iter().flat_map(|hub| ["t0", "t1"].map(|tunnel| format!("{hub}.{tunnel}"))).collect();
        for netns in hubs.iter().chain(&tunnels) {
            ensure!(self.lab.kill_inside(netns)? > 0, "nothing ran in {netns}");
        }
        for hub in &hubs {
            run("ip", &["-n", hub, "route", "flush", "proto", "bird"]).await?;
        }
        ensure!(!self.lab.reaches(&self.from, self.to, ATTEMPT).await?, "the flow passes without a VPN");
        let begun = Instant::now();
        try_join_all(tunnels.iter().map(|netns| self.charon(netns))).await?;
        for hub in &hubs {
            let file = |name: &str| self.folder(hub).join(name).display().to_string();
            let (config, control, pid) = (file("bird.conf"), file("bird.ctl"), file("bird.pid"));
            run("ip", &["netns", "exec", hub, "bird", "-c", &config, "-s", &control, "-P", &pid]).await?;
        }
        self.answered(begun).await
    }

    fn folder(&self, netns: &str) -> PathBuf {
        self.lab.folder().join(netns)
    }

    /// One end of one tunnel.
    async fn charon(&self, netns: &str) -> Result<()> {
        let folder = self.folder(netns);
        // It ends with its namespace.
        drop(
            Command::new("ip")
                .args([
                    "netns",
                    "exec",
                    netns,
                    "sh",
                    "-c",
                    "mount -t tmpfs tmpfs /run && exec \"$0\"",
                    CHARON,
                ])
                .env("STRONGSWAN_CONF", folder.join("strongswan.conf"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        let (socket, begun) = (folder.join("vici"), Instant::now());
        while UnixStream::connect(&socket).is_err() {
            ensure!(begun.elapsed() < LIMIT, "charon in {netns} does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Not every version makes this rule, by which IPsec would swallow its own packets.
        let _ = run("ip", &["-n", netns, "rule", "del", "pref", "220"]).await;
        run("ip", &["-n", netns, "route", "replace", "default", "dev", "ipsec0", "table", "100"]).await?;
        let (file, uri) = (folder.join("swanctl.conf"), format!("unix://{}", socket.display()));
        let file = file.display().to_string();
        run("swanctl", &["--load-all", "--noprompt", "--file", &file, "--uri", &uri]).await
    }
}

async fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {said}", args.join(" "));
    Ok(())
}
