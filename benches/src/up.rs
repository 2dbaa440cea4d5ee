//! `tarbet up` as a person meets it: how long until it is ready, and how late a page hears of an event.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tarbet_testbed::{Folder, Lease, Netlab, Process, Program};

use crate::Bench;
use crate::figure::{Figure, Mark, Section};

/// How long one may take on a busy machine before it is given up.
const PATIENCE: Duration = Duration::from_mins(1);
/// Events in one round.
const EVENTS: usize = 20;

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let (mut ready, mut heard) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let begun = Instant::now();
        let mut up = Up::start(bench).await?;
        ready.push(up.ready(begun).await?);
        heard.push(up.slowest_event().await?);
        up.process.stop().await?;
    }
    let mut section = Section::new(
        "One command",
        "Everything that needs no cluster: gateway, console, the site `here`, pods, networks; a state folder of its own \
         each time. An event is a site that is added by the API; a page has it when the stream of events says its name.",
    );
    section.push(Figure::new("until all parts are ready", "s", ready).mark(Mark::AtMost(3.0)));
    let what = format!("from an event until a page has it, the slowest of {EVENTS}");
    section.push(Figure::new(what, "ms", heard).mark(Mark::AtMost(1000.0)));
    Ok(vec![section])
}

struct Up {
    process: Process,
    folder: Folder,
    ports: Lease,
    // Removes the networks at the end.
    _lab: Netlab,
}

impl Up {
    async fn start(bench: &Bench) -> Result<Self> {
        let (folder, ports, lab) = (Folder::new("up-bench")?, Lease::block(11)?, Netlab::start().await?);
        let listen = |index: u16| format!("{{listen: '127.0.0.1:{}'}}", ports.port(index));
        let config = format!(
            "console: {}\nobservability: {}\ngateway: {{agents: {}, api: {}, kubernetes: {}, private: {}}}\n\
             edge: {{InterlinkPort: {}, DockerHost: 'unix:///nowhere/docker.sock'}}\n\
             nets:\n  server: {{host: 127.0.0.1, port: {}, rpcPort: {}}}\n  tagService: {{host: 127.0.0.1, port: {}}}\n  \
             kvStore: {{host: 127.0.0.1, port: {}}}\n  \
             cloudPlugins: [{{name: local, local: {{prefix: {prefix}, wan: {prefix}-wan, folder: '{}'}}}}]\n",
            listen(0),
            listen(1),
            listen(2),
            listen(3),
            listen(4),
            listen(5),
            ports.port(6),
            ports.port(7),
            ports.port(8),
            ports.port(9),
            ports.port(10),
            lab.folder().display(),
            prefix = lab.prefix(),
        );
        let file = folder.write("up.yaml", &config)?;
        let program = Program::new(&bench.binary).args(["up", "--config"]).arg(file);
        let program = program.env("TARBET_STATE", folder.path().join("state")).env("DOCKER_HOST", "");
        let process = Process::start(&folder, "up", program)?;
        Ok(Self { process, folder, ports, _lab: lab })
    }

    /// Seconds since then, once it is ready.
    async fn ready(&mut self, begun: Instant) -> Result<f64> {
        let page = format!("http://127.0.0.1:{}/readyz", self.ports.port(1));
        let look = || async { reqwest::get(&page).await.and_then(reqwest::Response::error_for_status) };
        self.process.ready(PATIENCE, look).await?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Milliseconds until the stream told the event that took longest.
    async fn slowest_event(&self) -> Result<f64> {
        let console = format!("http://127.0.0.1:{}", self.ports.port(0));
        let token = std::fs::read_to_string(self.folder.path().join("state/admin.token"))?;
        let client = reqwest::Client::new();
        let mut stream = client.get(format!("{console}/api/events")).send().await?;
        let mut slowest = 0.0_f64;
        for number in 0..EVENTS {
            let name = format!("event-{number:02}");
            let begun = Instant::now();
            let added = client.post(format!("{console}/api/gateway/sites")).bearer_auth(token.trim());
            let added = added.json(&json!({ "name": name })).send().await?;
            ensure!(added.status().is_success(), "a site could not be added: {}", added.text().await?);
            tokio::time::timeout(PATIENCE, hear(&mut stream, &name)).await??;
            slowest = slowest.max(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(slowest)
    }
}

/// Reads the stream until it has said this.
async fn hear(stream: &mut reqwest::Response, wanted: &str) -> Result<()> {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(wanted) {
        heard.extend_from_slice(&stream.chunk().await?.context("the stream ended")?);
    }
    Ok(())
}
