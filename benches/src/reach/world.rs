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
    product: Product,
    pub(crate) backend: SocketAddr,
    pub(crate) holder: Gateway,
    pub(crate) entry: Gateway,
    pub(crate) agent: Agent,
    ports: Lease,
    token: String,
    /// What its agents are given: a kubeconfig of the backend and a policy.
    flags: Vec<String>,
    _redis: Redis,
}

/// Another agent, with a site of its own.
pub(crate) struct Joined {
    pub(crate) site: String,
    pub(crate) agent: Agent,
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
        let token = add_site(&product, &holder, SITE).await?;
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
        let flags = flags.map(str::to_owned).to_vec();
        let token = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
        Ok(Self { product, backend, holder, entry, agent, ports, token, flags, _redis: redis })
    }

    /// A TCP port of a gateway that leads to the backend.
    pub(crate) fn port(&self, entry: bool) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports.port(u16::from(entry))))
    }

    /// An agent that joins the same gateway as an agent of kas would.
    pub(crate) async fn join_as_kas_agent(&self) -> Result<Joined> {
        let site = format!("{SITE}-kas");
        let token = add_site(&self.product, &self.holder, &site).await?;
        let url = self.holder.agents();
        let flags: Vec<&str> =
            self.flags.iter().map(String::as_str).chain(["--kas-address", url.as_str()]).collect();
        let agent = self.product.agent("kas-agent", &token, &[], &flags).await?;
        Ok(Joined { site, agent })
    }

    /// A request to the site's API server, at this gateway.
    pub(crate) fn kubernetes(&self, gateway: &Gateway, path: &str) -> Result<Aim> {
        self.kubernetes_of(SITE, gateway, path)
    }

    /// The same for another site.
    pub(crate) fn kubernetes_of(&self, site: &str, gateway: &Gateway, path: &str) -> Result<Aim> {
        let address: SocketAddr = gateway.kubernetes().trim_start_matches("https://").parse()?;
        let headers = format!("Authorization: Bearer {}\r\n", self.token);
        Ok(Aim::get(address, &format!("/sites/{site}{path}"), &headers))
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

/// Adds a site and gives its token.
async fn add_site(product: &Product, gateway: &Gateway, site: &str) -> Result<String> {
    let said = product.run(gateway, &["site", "add", site, "-o", "json"]).await?;
    let site: Value = serde_json::from_str(&said)?;
    Ok(site["token"]["token"].as_str().context("no token")?.to_owned())
}
