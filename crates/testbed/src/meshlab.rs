//! Two meshes with real traffic: istiod and Envoys on both sides, a common root of trust, and
//! network namespaces between which there is no other way than through the gateway.
//!
//! ```text
//!   east                                   west
//!   caller ── 10.77.1.1 ─── 10.77.1.2 ── gate ── 10.77.2.1 ─── 10.77.2.2 ── pay
//!     └─ 10.77.3.1 ─── 10.77.3.2 ── egress ── 10.77.4.1 ─── 10.77.4.2 ─┤
//!                ask ── 10.77.6.1 ─── 10.77.6.2 ───────────────────────┴─ 10.77.5.1 ─── 10.77.5.2 ── tell
//! ```
//!
//! Where the meshes share a network there are two ways more, `ask` to `tell` and `caller` to `pay`; where
//! east runs the service too, its pod `home` is beside `caller`.
//!
//! `caller` has a sidecar that takes every connection to 240.240.0.0/16, where Istio puts names
//! that have no address; `pay` has one that takes every connection to its port. What is federated
//! is none of the lab's business: it makes no object that a controller of ours would make.

mod discovery;
mod joined;
mod proxy;
mod vault;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use self::proxy::{Proxy, Workload};
use crate::{Authority, ControlPlane, Folder, Istiod, Kubectl, Netlab, http, netlab::dial};

/// How long a call may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Any address that the caller's sidecar takes over; the name in the request chooses the service.
const ANYWHERE: Ipv4Addr = Ipv4Addr::new(240, 240, 0, 1);
/// The address of the Service in west, which its gateway resolves; no pod has it.
const PAY_ADDRESS: &str = "10.96.77.1 pay.shop.svc.cluster.local\n";
/// The label by which Istio knows that a pod has a proxy.
const TLS_MODE: (&str, &str) = ("security.istio.io/tlsMode", "istio");

/// Two meshes, `east` and `west`; all of it goes when dropped.
#[derive(Debug)]
pub struct MeshLab {
    // Proxies end before their control planes, namespaces last.
    caller: Proxy,
    egress: Option<Proxy>,
    discovery: Option<(Proxy, Proxy)>,
    gate: Proxy,
    pay: Proxy,
    home: Option<Proxy>,
    cables: Vec<JoinHandle<()>>,
    authority: Authority,
    east: Istiod,
    west: Istiod,
    lab: Netlab,
}

impl Drop for MeshLab {
    fn drop(&mut self) {
        self.cables.iter().for_each(JoinHandle::abort);
    }
}

impl MeshLab {
    /// Where the gateway of west is reached from east.
    pub const GATEWAY: &'static str = "10.77.1.2";
    /// The caller's address towards west's gateway.
    pub const CALLER: &'static str = "10.77.1.1";
    /// The caller's address on its other side, which a cable can begin at.
    pub const EGRESS_SIDE: &'static str = "10.77.3.1";
    /// The labels of west's gateway.
    pub const GATE_LABEL: (&'static str, &'static str) = ("app", "federation-ingress-gateway");
    /// The labels of east's egress gateway.
    pub const EGRESS_LABEL: (&'static str, &'static str) = ("app", "federation-egress-gateway");
    /// The name of the service in west.
    pub const PAY: &'static str = "pay.shop.svc.cluster.local";

    /// Starts it on two planes that have the kinds of Istio. In west it makes the Service `shop/pay`,
    /// without labels, and its pod; everything is under strict mutual TLS.
    pub async fn start(east: &ControlPlane, west: &ControlPlane) -> Result<Self> {
        let lab = Netlab::start().await?;
        let at = |name: &str| format!("{}-{name}", lab.prefix());
        let (caller, egress, gate, pay) = (at("caller"), at("egress"), at("gate"), at("pay"));
        for netns in [&caller, &egress, &gate, &pay] {
            ip(&format!("netns add {netns}"))?;
            lab.ip(netns, &["link", "set", "lo", "up"])?;
        }
        wire(&lab, ("eth0", &caller, "10.77.1.1/24"), ("eth0", &gate, "10.77.1.2/24"))?;
        wire(&lab, ("eth1", &gate, "10.77.2.1/24"), ("eth0", &pay, "10.77.2.2/24"))?;
        wire(&lab, ("eth1", &caller, "10.77.3.1/24"), ("eth0", &egress, "10.77.3.2/24"))?;
        wire(&lab, ("eth1", &egress, "10.77.4.1/24"), ("eth2", &gate, "10.77.4.2/24"))?;
        lab.ip(&egress, &["route", "add", Self::GATEWAY, "via", "10.77.4.2"])?;
        lab.ip(&caller, &["route", "add", "240.240.0.0/16", "dev", "lo"])?;
        capture(&caller, "output", "ip daddr 240.240.0.0/16 ip protocol tcp redirect to :15001")?;
        capture(&pay, "prerouting", "tcp dport 8080 redirect to :15006")?;
        // What a cluster does for the address of a Service.
        lab.ip(&gate, &["route", "add", "10.96.77.1", "via", "10.77.2.2"])?;
        capture(&gate, "output", "ip daddr 10.96.77.1 tcp dport 80 dnat to 10.77.2.2:8080")?;

        let authority = Authority::new("Root of both meshes")?;
        for (plane, network) in [(east, "east"), (west, "west")] {
            prepare(&plane.kubectl(), network).await?;
        }
        joined::leave(&east.kubectl()).await?;
        serve_pay(&west.kubectl()).await?;
        let serving = answer(lab.listen(&pay, "10.77.2.2:8080".parse()?)?, "west")?;
        let (east, west) = tokio::try_join!(
            Istiod::start_trusting(east, "east.local", &["west.local"]),
            Istiod::start_trusting(west, "west.local", &["east.local"]),
        )?;
        let calling = workload("sidecar", "caller", "shop", "east", Self::CALLER);
        let opening = workload("router", "gate", "istio-system", "west", "10.77.2.1");
        let paying = workload("sidecar", "pay", "shop", "west", "10.77.2.2");
        let (caller, gate, pay) = tokio::try_join!(
            Proxy::start(&caller, &east, &authority, &calling),
            Proxy::start(&gate, &west, &authority, &opening),
            Proxy::start(&pay, &west, &authority, &paying),
        )?;
        Ok(Self {
            caller,
            egress: None,
            discovery: None,
            gate,
            pay,
            home: None,
            cables: vec![serving],
            authority,
            east,
            west,
            lab,
        })
    }

    /// Calls a service of this name from the caller's pod, through its sidecar: status and body.
    /// The service answers with its own name and the identity of whoever called it.
    pub async fn call(&self, host: &str) -> Result<(u16, String)> {
        self.call_at(host, 80).await
    }

    /// The same at another port.
    pub async fn call_at(&self, host: &str, port: u16) -> Result<(u16, String)> {
        let stream = dial(&self.netns("caller"), (ANYWHERE, port).into(), ANSWER).await?;
        timeout(ANSWER, http::ask(stream, host, "/")).await.context("no answer in time")?
    }

    /// Whether the caller's pod can reach the pod of the service by itself.
    pub async fn reaches_pod(&self) -> Result<bool> {
        let netns = self.netns("caller");
        self.lab.reaches(&netns, "10.77.2.2:8080".parse()?, Duration::from_millis(500)).await
    }

    /// Takes away the way from the caller to west's gateway; through the egress gateway there is one.
    pub fn cut_direct_way(&self) -> Result<()> {
        self.lab.ip(&self.netns("caller"), &["link", "set", "eth0", "down"])
    }

    /// Starts the egress gateway of east, with its Service `federation-egress-gateway` on port 15443.
    pub async fn start_egress(&mut self, east: &ControlPlane) -> Result<()> {
        let kubectl = east.kubectl();
        let (namespace, name) = ("istio-system", "federation-egress-gateway");
        let service = service(
            namespace,
            name,
            "http",
            json!({ Self::EGRESS_LABEL.0: Self::EGRESS_LABEL.1 }),
            15443,
            15443,
        );
        kubectl.apply(&service).await?;
        pod(
            &kubectl,
            namespace,
            "egress",
            name,
            "10.77.3.2",
            json!({ Self::EGRESS_LABEL.0: Self::EGRESS_LABEL.1 }),
        )
        .await?;
        kubectl.apply(&slice(namespace, name, "http", "egress", "10.77.3.2", 15443)).await?;
        let mut workload = workload("router", "egress", namespace, "east", "10.77.3.2");
        // The gateway of the way out sees the other network: it is there to send to it.
        workload.network = "";
        workload.account = name;
        workload.labels = json!({ Self::EGRESS_LABEL.0: Self::EGRESS_LABEL.1 });
        self.egress =
            Some(Proxy::start(&self.netns("egress"), &self.east, &self.authority, &workload).await?);
        Ok(())
    }

    /// A number of one of the proxies (`caller`, `egress`, `gate`, `pay`), by the end of its name.
    pub async fn count(&self, proxy: &str, ending: &str) -> Result<u64> {
        let proxy = match proxy {
            "caller" => &self.caller,
            "gate" => &self.gate,
            "pay" => &self.pay,
            _ => self.egress.as_ref().context("no egress gateway runs")?,
        };
        let page = proxy.envoy.admin("/stats").await?;
        let values =
            page.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| name.ends_with(ending));
        Ok(values.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum())
    }

    /// The certificate of the caller in a folder, as Istio's agent would write it.
    pub fn callers_identity(&self, folder: &Folder) -> Result<()> {
        let issued = self.authority.issue_workload("spiffe://east.local/ns/shop/sa/caller")?;
        folder.write("cert-chain.pem", &issued.certificate)?;
        folder.write("key.pem", &issued.key)?;
        folder.write("root-cert.pem", self.authority.pem())?;
        Ok(())
    }

    /// A cable from an address in the caller's network to a port on this machine's loopback.
    pub fn cable_in(&mut self, address: SocketAddr, port: u16) -> Result<()> {
        self.cable("caller", address, port)
    }

    fn cable(&mut self, from: &str, address: SocketAddr, port: u16) -> Result<()> {
        let listener = shared(self.lab.listen(&self.netns(from), address)?)?;
        self.cables.push(tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(
                    async move { join(near, TcpStream::connect(("127.0.0.1", port)).await.ok()).await },
                );
            }
        }));
        Ok(())
    }

    /// A cable from a port on this machine's loopback to west's gateway, from within west's network.
    pub async fn cable_to_gate(&mut self, port: u16) -> Result<()> {
        self.cable_out((Ipv4Addr::LOCALHOST, port).into(), "pay", "10.77.2.1:15443".parse()?).await
    }

    async fn cable_out(&mut self, from: SocketAddr, to: &str, address: SocketAddr) -> Result<()> {
        let listener = TcpListener::bind(from).await.context("listen on loopback")?;
        let netns = self.netns(to);
        self.cables.push(tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let netns = netns.clone();
                tokio::spawn(async move { join(near, dial(&netns, address, ANSWER).await.ok()).await });
            }
        }));
        Ok(())
    }

    fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.lab.prefix())
    }
}

async fn join(mut near: TcpStream, far: Option<TcpStream>) {
    if let Some(mut far) = far {
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
}

fn workload<'a>(
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
    mesh: &'a str,
    address: &'a str,
) -> Workload<'a> {
    let labels = match name {
        "gate" => json!({ MeshLab::GATE_LABEL.0: MeshLab::GATE_LABEL.1 }),
        name => json!({ "app": name, TLS_MODE.0: TLS_MODE.1 }),
    };
    let trust_domain = if mesh == "east" { "east.local" } else { "west.local" };
    let names = if name == "gate" { PAY_ADDRESS } else { "" };
    Workload { kind, name, namespace, account: name, trust_domain, network: mesh, address, labels, names }
}

/// The namespaces of a mesh, its network, and mutual TLS everywhere.
async fn prepare(kubectl: &Kubectl, network: &str) -> Result<()> {
    for (name, labels) in
        [("istio-system", json!({ "topology.istio.io/network": network })), ("shop", json!({}))]
    {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        kubectl.apply(&namespace).await?;
    }
    let strict = json!({ "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": { "name": "everywhere", "namespace": "istio-system" }, "spec": { "mtls": { "mode": "STRICT" } } });
    kubectl.apply(&strict).await?;
    Ok(())
}

async fn serve_pay(kubectl: &Kubectl) -> Result<()> {
    kubectl.apply(&service("shop", "pay", "http", json!({ "app": "pay" }), 80, 8080)).await?;
    pod(kubectl, "shop", "pay", "pay", "10.77.2.2", json!({ "app": "pay" })).await?;
    kubectl.apply(&slice("shop", "pay", "http", "pay", "10.77.2.2", 8080)).await?;
    Ok(())
}

fn service(namespace: &str, name: &str, named: &str, selector: Value, port: u16, target: u16) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace },
        "spec": { "selector": selector, "ports": [{ "name": named, "port": port, "targetPort": target }] } })
}

/// A pod that no kubelet runs, but that has an address.
async fn pod(
    kubectl: &Kubectl,
    namespace: &str,
    name: &str,
    account: &str,
    address: &str,
    mut labels: Value,
) -> Result<()> {
    labels[TLS_MODE.0] = json!(TLS_MODE.1);
    let user = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": namespace } });
    kubectl.apply(&user).await?;
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "serviceAccountName": account, "schedulerName": "nobody",
            "containers": [{ "name": "app", "image": "none" }] } });
    kubectl.apply(&pod).await?;
    let status = json!({ "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [{ "type": "Ready", "status": "True" }] } });
    let patch = status.to_string();
    kubectl
        .run(&["patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", &patch])
        .await?;
    Ok(())
}

/// The address behind a Service, since no kubelet tells it.
fn slice(namespace: &str, service: &str, named: &str, pod: &str, address: &str, port: u16) -> Value {
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("{service}-lab"), "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "lab" } },
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": pod, "namespace": namespace } }],
        "ports": [{ "name": named, "port": port }] })
}

/// The program of the service: says who called.
fn answer(listener: std::net::TcpListener, mesh: &'static str) -> Result<JoinHandle<()>> {
    let listener = shared(listener)?;
    Ok(tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && head.len() < 16_384 {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                // Each proxy on the way adds whom it saw; the last is the one who spoke to ours.
                let from = head
                    .rsplit_once("URI=")
                    .map_or("nobody", |(_, rest)| rest.split(['\r', ';', ',']).next().unwrap_or_default());
                let body = format!("pay of {mesh}, called by {from}");
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    }))
}

fn shared(listener: std::net::TcpListener) -> Result<TcpListener> {
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

fn wire(lab: &Netlab, a: (&str, &str, &str), b: (&str, &str, &str)) -> Result<()> {
    ip(&format!("-n {} link add {} type veth peer name {} netns {}", a.1, a.0, b.0, b.1))?;
    for (link, netns, address) in [a, b] {
        lab.ip(netns, &["addr", "add", address, "dev", link])?;
        lab.ip(netns, &["link", "set", link, "up"])?;
    }
    Ok(())
}

/// What Istio's own set-up of a pod does: connections are led to the proxy.
fn capture(netns: &str, hook: &str, rule: &str) -> Result<()> {
    let table = format!(
        "add table ip mesh; add chain ip mesh {hook} {{ type nat hook {hook} priority -100; }}; add rule ip mesh {hook} {rule}"
    );
    let status =
        Command::new("ip").args(["netns", "exec", netns, "nft", &table]).status().context("run nft")?;
    ensure!(status.success(), "nft in {netns}: {table}");
    Ok(())
}

fn ip(words: &str) -> Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status().context("run ip")?;
    ensure!(status.success(), "ip {words} failed");
    Ok(())
}
