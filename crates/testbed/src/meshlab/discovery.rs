//! Discovery of west as a pod with a sidecar, asked by a sidecar with the identity of east's controller.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::json;

use super::{ANYWHERE, MeshLab, capture, ip, pod, service, slice, wire, workload};
use crate::ControlPlane;
use crate::meshlab::proxy::Proxy;

impl MeshLab {
    /// Where west's discovery is in a network that both meshes share.
    pub const DISCOVERY: &'static str = "10.77.9.2:15080";
    /// An address that a listener in east may be known by, to callers and to east's controller.
    pub const CARRIER: &'static str = "10.77.8.8:15443";

    /// Puts discovery behind west's gateway. The server at one port of this machine's loopback becomes
    /// the pod of west's discovery Service, with a sidecar; the entrance, on loopback too, leads there
    /// from east, by a sidecar with the identity of east's controller.
    pub async fn discovery_through_gateway(
        &mut self,
        west: &ControlPlane,
        server: u16,
        entrance: SocketAddr,
    ) -> Result<()> {
        let (ask, tell, gate) = (self.netns("ask"), self.netns("tell"), self.netns("gate"));
        for netns in [&ask, &tell] {
            ip(&format!("netns add {netns}"))?;
            self.lab.ip(netns, &["link", "set", "lo", "up"])?;
        }
        wire(&self.lab, ("eth3", &gate, "10.77.5.1/24"), ("eth0", &tell, "10.77.5.2/24"))?;
        wire(&self.lab, ("eth4", &gate, "10.77.6.2/24"), ("eth0", &ask, "10.77.6.1/24"))?;
        self.lab.ip(&ask, &["route", "add", Self::GATEWAY, "via", "10.77.6.2"])?;
        self.lab.ip(&ask, &["route", "add", "240.240.0.0/16", "dev", "lo"])?;
        capture(&ask, "output", "ip daddr 240.240.0.0/16 ip protocol tcp redirect to :15001")?;
        capture(&tell, "prerouting", "tcp dport 15080 redirect to :15006")?;
        self.cable("tell", "0.0.0.0:15080".parse()?, server)?;
        let (kubectl, name) = (west.kubectl(), "federation-discovery-service-west");
        let labels = json!({ "app.kubernetes.io/name": "federation-controller" });
        kubectl.apply(&service("istio-system", name, "grpc-fds", labels.clone(), 15080, 15080)).await?;
        pod(&kubectl, "istio-system", "tell", name, "10.77.5.2", labels.clone()).await?;
        kubectl.apply(&slice("istio-system", name, "grpc-fds", "tell", "10.77.5.2", 15080)).await?;
        let mut asking = workload("sidecar", "ask", "istio-system", "east", "10.77.6.1");
        asking.account = "federation-discovery-service-east";
        let mut telling = workload("sidecar", "tell", "istio-system", "west", "10.77.5.2");
        (telling.account, telling.labels) = (name, labels);
        let proxies = tokio::try_join!(
            Proxy::start(&ask, &self.east, &self.authority, &asking),
            Proxy::start(&tell, &self.west, &self.authority, &telling),
        )?;
        self.discovery = Some(proxies);
        self.cable_out(entrance, "ask", (ANYWHERE, 15080).into()).await
    }

    /// Makes one network of both meshes: pods reach pods, also those of discovery, which must be there.
    pub fn one_network(&self) -> Result<()> {
        let [ask, tell, caller, pay] = ["ask", "tell", "caller", "pay"].map(|name| self.netns(name));
        wire(&self.lab, ("eth1", &ask, "10.77.9.1/24"), ("eth1", &tell, "10.77.9.2/24"))?;
        wire(&self.lab, ("eth3", &caller, "10.77.10.1/24"), ("eth1", &pay, "10.77.10.2/24"))?;
        self.lab.ip(&caller, &["route", "add", "10.77.2.2", "via", "10.77.10.2"])
    }

    /// A port on this machine's loopback is known as [`Self::CARRIER`] to callers in east and to the
    /// sidecar that asks for discovery, which must be there.
    pub fn carrier(&mut self, port: u16) -> Result<()> {
        let address: SocketAddr = Self::CARRIER.parse()?;
        for name in ["caller", "ask"] {
            let netns = self.netns(name);
            self.lab.ip(&netns, &["addr", "add", &format!("{}/32", address.ip()), "dev", "lo"])?;
            self.cable(name, address, port)?;
        }
        Ok(())
    }
}
