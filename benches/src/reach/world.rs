//! What reach is measured on: two gateways that share a Redis, an agent at one of them, a backend.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::Value;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Lease, Redis};

use crate::figure::{Figure, Mark, Section};
use crate::load::{self, Aim};
use crate::{Bench, cpu};

/// The site that is measured.
const SITE: &str = "bench";

pub(crate) struct World {
    _product: Product,
    pub(crate) backend: SocketAddr,
    pub(crate) holder: Gateway,
    pub(crate) entry: Gateway,
    pub(crate) agent: Agent,
    ports: Lease,
    token: String,
    _redis: Redis,
}

impl World {
    pub(crate) async fn start(bench: &Bench) -> Result<Self> {
        let backend = load::backend().await?;
        let redis = Redis::start().await?;
        let product = Product::new(&bench.binary)?;
        let store = format!("{{kind: redis, url: '{}'}}", redis.url());
        let ports = Lease::block(2)?;
        let expose = |index: u16| {
            let listen = format!("127.0.0.1:{}", ports.port(index));
            format!("gateway.ports=[{{listen: '{listen}', site: {SITE}, target: '{backend}'}}]")
        };
        // Users speak plain text to every row, as they do to the peers; links have TLS.
        let plain = ["--set", "gateway.kubernetes.tls=null", "--set", "log.filter=warn", "--set"];
        let gateway = async |name: &str, index: u16| {
            let expose = expose(index);
            let extra: Vec<&str> = plain.into_iter().chain([expose.as_str()]).collect();
            product.gateway(name, &store, &extra).await
        };
        let (holder, entry) = (gateway("holder", 0).await?, gateway("entry", 1).await?);
        let said = product.run(&holder, &["site", "add", SITE, "-o", "json"]).await?;
        let site: Value = serde_json::from_str(&said)?;
        let token = site["token"]["token"].as_str().context("no token")?.to_owned();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: b\n\
             clusters: [{{name: b, cluster: {{server: 'http://{backend}'}}}}]\n\
             users: [{{name: b, user: {{}}}}]\ncontexts: [{{name: b, context: {{cluster: b, user: b}}}}]\n"
        );
        let kubeconfig = product.folder().write("backend.kubeconfig", &kubeconfig)?;
        let policy = format!(
            "kubernetes: [{{}}, {{paths: ['/*']}}]\ntcp: [{{host: '{}', ports: [{}]}}]\n",
            backend.ip(),
            backend.port()
        );
        let policy = product.folder().write("policy.yaml", &policy)?;
        let (kubeconfig, policy) = (kubeconfig.display().to_string(), policy.display().to_string());
        let flags = ["--kubeconfig", &kubeconfig, "--policy", &policy, "--set", "log.filter=warn"];
        let agent = product.agent("bench-agent", &token, &[&holder], &flags).await?;
        let token = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
        Ok(Self { _product: product, backend, holder, entry, agent, ports, token, _redis: redis })
    }

    /// A TCP port of a gateway that leads to the backend.
    pub(crate) fn port(&self, entry: bool) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports.port(u16::from(entry))))
    }

    /// A request to the site's API server, at this gateway.
    pub(crate) fn kubernetes(&self, gateway: &Gateway, path: &str) -> Result<Aim> {
        let address: SocketAddr = gateway.kubernetes().trim_start_matches("https://").parse()?;
        let headers = format!("Authorization: Bearer {}\r\n", self.token);
        Ok(Aim::get(address, &format!("/sites/{SITE}{path}"), &headers))
    }

    /// Memory before any work is done.
    pub(crate) fn idle(&self) -> Result<Section> {
        let mut section =
            Section::new("Idle", "Resident memory of a gateway and an agent that have one link each.");
        for (what, process, mark) in
            [("gateway", &self.holder.process, 25.0), ("agent", &self.agent.process, 15.0)]
        {
            let mib = cpu::resident_mib(process.pid())?;
            section.push(Figure::new(what, "MiB", [mib]).mark(Mark::AtMost(mark)));
        }
        Ok(section)
    }
}
