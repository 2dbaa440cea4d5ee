//! The meshes that are measured: real control planes, real controllers, and peers of many.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::{DynamicObject, ObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_cluster::{Source, connect};
use tarbet_link::{Address, NetDialer, Target};
use tarbet_mesh::crd;
use tarbet_mesh::fds::{Discovery, Heard, Limits, Snapshot, Subscription, Way, serve, subscribe};
use tarbet_mesh::model::{Offer, OfferedPort};
use tarbet_mesh::plan::Kind;
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{ControlPlane, Istiod, Lease, Pair, eventually};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Writers at once, as many as the controller has.
const WRITERS: usize = 16;
const LONG: Duration = Duration::from_mins(10);

/// Two control planes with controllers: `west` exports, `east` imports.
pub(super) struct Meshes {
    east: Agent,
    _west: Option<Agent>,
    ports: Lease,
    _product: Product,
    clients: (Client, Client),
    stop: CancellationToken,
    _pair: Pair,
}

impl Drop for Meshes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Meshes {
    /// Two meshes that hear each other and export nothing yet.
    pub(super) async fn start(binary: &Path) -> Result<Self> {
        let (pair, clients) = planes().await?;
        let ports = Lease::block(2)?;
        declare(&pair.public, "east", &["west".to_owned()], true).await?;
        declare(&pair.private, "west", &["east".to_owned()], true).await?;
        let product = Product::new(binary)?;
        let west =
            controller(&product, &pair.private, "west", ports.port(1), &[("east".to_owned(), ports.port(0))])
                .await?;
        let east =
            controller(&product, &pair.public, "east", ports.port(0), &[("west".to_owned(), ports.port(1))])
                .await?;
        let stop = CancellationToken::new();
        Ok(Self { east, _west: Some(west), ports, _product: product, clients, stop, _pair: pair })
    }

    /// One mesh with many peers in its own network, all of which offer the same services.
    pub(super) async fn with_peers(
        binary: &Path,
        peers: usize,
        services: usize,
        endpoints: usize,
    ) -> Result<Self> {
        let (pair, clients) = planes().await?;
        let (ports, stop) = (Lease::block(1)?, CancellationToken::new());
        let names: Vec<String> = (0..peers).map(|peer| format!("peer-{peer}")).collect();
        let mut known = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let offers: Vec<Offer> = (0..services).map(|service| offer(service, number, endpoints)).collect();
            let snapshot = Snapshot::after(None, name, &offers, 1000).map(Arc::new);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            known.push((name.clone(), listener.local_addr()?.port()));
            let (sender, stop) = (watch::Sender::new(snapshot), stop.clone());
            tokio::spawn(async move {
                let served = serve(listener, Discovery::new(sender.subscribe(), stop.clone()), stop).await;
                drop((served, sender));
            });
        }
        declare(&pair.public, "east", &names, false).await?;
        let product = Product::new(binary)?;
        let east = controller(&product, &pair.public, "east", ports.port(0), &known).await?;
        let clients = (clients.0.clone(), clients.0);
        Ok(Self { east, _west: None, ports, _product: product, clients, stop, _pair: pair })
    }

    /// The process of the importing controller.
    pub(super) fn pid(&self) -> u32 {
        self.east.process.pid()
    }

    /// The port of the importing mesh's own discovery.
    pub(super) fn discovery(&self) -> u16 {
        self.ports.port(0)
    }

    /// Makes Services in a namespace of the exporting mesh.
    pub(super) async fn make_services(&self, namespace: &str, count: usize) -> Result<()> {
        apply(&self.clients.1, &core("namespaces", "Namespace"), "", namespace, json!({})).await?;
        let make = |number: usize| async move {
            let body =
                json!({ "spec": { "selector": { "app": "x" }, "ports": [{ "name": "http", "port": 80 }] } });
            apply(&self.clients.1, &core("services", "Service"), namespace, &format!("s{number}"), body).await
        };
        futures::stream::iter(0..count).map(make).buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Adds a namespace to what the exporting mesh exports.
    pub(super) async fn export(&self, namespace: &str) -> Result<()> {
        let rules = Api::<crd::FederationServiceRules>::namespaced(self.clients.1.clone(), "istio-system");
        let export = rules.get("default").await?.spec.export;
        let mut list = export.map(|export| export.service_list).unwrap_or_default();
        if namespace == "nothing" {
            list.clear();
        } else {
            list.push(format!("{namespace}/*"));
        }
        let patch = json!({ "spec": { "export": { "serviceList": list } } });
        rules.patch("default", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until this many are imported and written.
    pub(super) async fn imported(&self, count: usize) -> Result<()> {
        let look = || async {
            let so_far = self.east.metric("tarbet_mesh_imported_services").await?;
            ensure!((so_far - count as f64).abs() < 0.5, "{so_far} of {count}");
            Ok(())
        };
        eventually(LONG, "the imports", look).await
    }

    /// Writes of the importing controller so far.
    pub(super) async fn writes(&self) -> Result<f64> {
        self.east.metric("tarbet_mesh_writes_total").await
    }

    /// Gives an exported service another port.
    pub(super) async fn change_port(&self, namespace: &str, name: &str, port: usize) -> Result<()> {
        let body =
            json!({ "spec": { "selector": { "app": "x" }, "ports": [{ "name": "http", "port": port }] } });
        let services = objects(&self.clients.1, &core("services", "Service"), namespace);
        services.patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        Ok(())
    }

    /// The changes of entries in the importing mesh from now on.
    pub(super) async fn watch_entries(&self) -> Result<Changes> {
        Changes::start(objects(&self.clients.0, &Kind::ServiceEntry.resource(), "istio-system")).await
    }

    /// How long the API server takes to write one object and to tell a watcher.
    pub(super) async fn writes_and_watches(&self, times: usize) -> Result<Vec<Duration>> {
        let api = objects(&self.clients.0, &Kind::ServiceEntry.resource(), "istio-system");
        apply(
            &self.clients.0,
            &Kind::ServiceEntry.resource(),
            "istio-system",
            "alone",
            entry("alone.example", 80),
        )
        .await?;
        let (mut watch, mut all) = (Changes::start(api).await?, Vec::new());
        for number in 0..times {
            let begun = Instant::now();
            let body = entry("alone.example", 3000 + number);
            apply(&self.clients.0, &Kind::ServiceEntry.resource(), "istio-system", "alone", body).await?;
            watch.until("alone", 3000 + number).await?;
            all.push(begun.elapsed());
        }
        Ok(all)
    }

    /// Writes a second that the API server takes from as many writers as the controller has.
    pub(super) async fn raw_writes(&self, count: usize) -> Result<f64> {
        let client = &self.clients.0;
        apply(client, &core("namespaces", "Namespace"), "", "raw", json!({})).await?;
        let begun = Instant::now();
        let write = |number: usize| async move {
            let body = entry(&format!("raw-{number}.example"), 80);
            apply(client, &Kind::ServiceEntry.resource(), "raw", &format!("raw-{number}"), body).await
        };
        futures::stream::iter(0..count).map(write).buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    /// Kills the importing controller, starts it again, waits until all is known: its writes since.
    pub(super) async fn restart_importer(&mut self, count: usize) -> Result<f64> {
        self.east.process.kill9()?;
        self.east.process.restart().await?;
        self.east.ready().await?;
        self.imported(count).await?;
        let heard = || async {
            ensure!(self.east.metric("tarbet_mesh_peer_connected").await? > 0.5, "not connected");
            Ok(())
        };
        eventually(LONG, "the peer", heard).await?;
        self.writes().await
    }
}

/// Changes of objects of one kind, as a watcher is told them.
pub(super) struct Changes(Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>);

impl Changes {
    async fn start(api: Api<DynamicObject>) -> Result<Self> {
        let now = api.list_metadata(&kube::api::ListParams::default().limit(1)).await?;
        let version = now.metadata.resource_version.context("no version")?;
        Ok(Self(api.watch(&WatchParams::default().timeout(290), &version).await?.boxed()))
    }

    /// Waits until the object of this name has this port.
    pub(super) async fn until(&mut self, name: &str, port: usize) -> Result<()> {
        while let Some(event) = self.0.try_next().await? {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && object.metadata.name.as_deref() == Some(name)
                && object.data["spec"]["ports"][0]["number"] == port
            {
                return Ok(());
            }
        }
        anyhow::bail!("the watch ended before {name} had port {port}")
    }
}

/// A subscriber of the controller's discovery.
pub(super) struct Ear {
    heard: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ear {
    /// Listens as another peer, and has heard something.
    pub(super) async fn listen(port: u16, number: usize) -> Result<Self> {
        let (sender, heard) = watch::channel(usize::MAX);
        let subscription = Subscription {
            local: format!("ear-{number}"),
            mesh: "east".to_owned(),
            way: Way {
                dialer: Arc::new(NetDialer { timeout: Duration::from_secs(10) }),
                target: Target::tcp(Address::new("127.0.0.1", port)?),
                authority: "east:15080".to_owned(),
            },
            limits: Limits::default(),
            known: None,
            restart: Arc::new(Notify::new()),
        };
        let hear = move |heard: Heard| {
            if let Heard::State(taken) = heard
                && let Some(offers) = taken.offers
            {
                sender.send_replace(offers.len());
            }
        };
        let ear = Self { heard, task: tokio::spawn(subscribe(subscription, hear)) };
        ear.count(0).await?;
        Ok(ear)
    }

    /// Waits until it knows of this many services.
    pub(super) async fn count(&self, count: usize) -> Result<()> {
        self.heard.clone().wait_for(|heard| *heard == count).await?;
        Ok(())
    }
}

/// The value that this share of a hundred does not exceed.
pub(super) fn percentile(times: &[Duration], share: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() * share).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default()
}

async fn planes() -> Result<(Pair, (Client, Client))> {
    let pair = Pair::start().await?;
    for plane in [&pair.public, &pair.private] {
        let kinds: Vec<Value> =
            crd::definitions().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        plane.kubectl().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": kinds })).await?;
        Istiod::install_kinds(plane).await?;
        plane.kubectl().run(&["create", "namespace", "istio-system"]).await?;
        for kind in ["meshfederations", "federationservicerules", "importedservices"] {
            eventually(LONG, kind, || async { plane.kubectl().run(&["get", kind, "-A"]).await }).await?;
        }
    }
    let clients = (
        connect(&Source::file(pair.public.kubeconfig())).await?,
        connect(&Source::file(pair.private.kubeconfig())).await?,
    );
    Ok((pair, clients))
}

async fn declare(plane: &ControlPlane, local: &str, remotes: &[String], ingress: bool) -> Result<()> {
    let group = "federation.openshift-service-mesh.io/v1alpha1";
    let remote = |name: &String| {
        let ingress = if ingress { json!({ "addresses": ["192.0.2.1"] }) } else { json!({}) };
        json!({ "id": name, "network": name, "ingress": ingress })
    };
    let mut own = json!({ "id": local, "network": local });
    if ingress {
        own["ingress"] = json!({ "gateway": { "selector": { "app": "gateway" } } });
    }
    let remote: Vec<Value> = remotes.iter().map(remote).collect();
    let imports: Vec<Value> = remotes.iter().map(|name| json!({ "meshID": name })).collect();
    let federation = json!({ "apiVersion": group, "kind": "MeshFederation", "metadata": { "name": "default" },
        "spec": { "local": own, "remote": remote } });
    let rules = json!({ "apiVersion": group, "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" }, "spec": { "import": imports } });
    plane.kubectl().apply(&federation).await?;
    plane.kubectl().apply(&rules).await?;
    Ok(())
}

async fn controller(
    product: &Product,
    plane: &ControlPlane,
    mesh: &str,
    at: u16,
    peers: &[(String, u16)],
) -> Result<Agent> {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let listen = format!("127.0.0.1:{at}");
    let peers: Vec<String> = peers.iter().map(|(peer, port)| format!("{peer}=127.0.0.1:{port}")).collect();
    let mut words = vec!["mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--leader-elect=false"];
    for peer in &peers {
        words.extend(["--discovery", peer]);
    }
    product.role(&format!("mesh-{mesh}"), &words, &[("POD_NAMESPACE", "istio-system")]).await
}

fn offer(service: usize, peer: usize, endpoints: usize) -> Offer {
    let address = |number: usize| {
        format!(
            "10.{}.{}.{}",
            peer + 1,
            (service * endpoints + number) / 250,
            (service * endpoints + number) % 250 + 1
        )
    };
    Offer {
        hostname: format!("s{service}.shop.svc.cluster.local"),
        ports: vec![OfferedPort {
            name: "http".into(),
            number: 80,
            protocol: "HTTP".into(),
            target_port: 8080,
        }],
        endpoints: (0..endpoints).map(address).collect(),
        ..Offer::default()
    }
}

fn entry(host: &str, port: usize) -> Value {
    json!({ "spec": { "hosts": [host], "location": "MESH_INTERNAL", "resolution": "STATIC",
        "ports": [{ "name": "http", "number": port, "protocol": "HTTP" }],
        "endpoints": [{ "address": "192.0.2.1", "network": "west", "ports": { "http": 15443 },
            "labels": { "security.istio.io/tlsMode": "istio" } }] } })
}

fn core(plural: &str, kind: &str) -> kube::core::ApiResource {
    kube::core::ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

fn objects(client: &Client, kind: &kube::core::ApiResource, namespace: &str) -> Api<DynamicObject> {
    if namespace.is_empty() {
        Api::all_with(client.clone(), kind)
    } else {
        Api::namespaced_with(client.clone(), namespace, kind)
    }
}

async fn apply(
    client: &Client,
    kind: &kube::core::ApiResource,
    namespace: &str,
    name: &str,
    body: Value,
) -> Result<()> {
    let mut object = DynamicObject::new(name, kind).data(body);
    object.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let how = PatchParams::apply("bench").force();
    objects(client, kind, namespace).patch(name, &how, &Patch::Apply(&object)).await?;
    Ok(())
}
