//! What the tests have in common: two control planes with the kinds of ours, of Istio and of
//! OpenShift, and controllers that can be started, killed and counted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};
use tarbet_cluster::{Source, Timings, connect};
use tarbet_mesh::fds::proto::discovery::DiscoveryRequest;
use tarbet_mesh::fds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tarbet_mesh::fds::{TYPE_URL, decode};
use tarbet_mesh::plan::Kind;
use tarbet_mesh::{Controller, MeshConfig, MeshMetrics, crd};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{ControlPlane, Istiod, Kubectl, Lease, eventually, shared_pair, wait_for};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Long enough for a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// Installs our definitions and waits until they are served.
pub(crate) async fn install_definitions(plane: &ControlPlane) -> Result<()> {
    // Two tests that install at once would only slow each other.
    static TURN: Mutex<()> = Mutex::const_new(());
    let _turn = TURN.lock().await;
    let mut definitions: Vec<Value> =
        crd::definitions().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    definitions.extend([routes(), multicluster("ServiceExport"), multicluster("ServiceImport")]);
    let kubectl = plane.kubectl();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    kubectl
        .run_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list.to_string())
        .await?;
    for kind in [
        "meshfederations",
        "federationservicerules",
        "importedservices",
        "routes.route.openshift.io",
        "serviceexports.multicluster.x-k8s.io",
        "serviceimports.multicluster.x-k8s.io",
    ] {
        let look = || async { kubectl.run(&["get", kind, "--all-namespaces"]).await };
        eventually(SOON, "the definitions to be served", look).await?;
    }
    Ok(())
}

/// OpenShift's Route as far as it matters: with the defaults that its server fills in.
fn routes() -> Value {
    let text = json!({ "type": "string" });
    let spec = json!({ "type": "object", "properties": {
        "host": text,
        "wildcardPolicy": { "type": "string", "default": "None" },
        "to": { "type": "object", "properties": {
            "kind": text, "name": text, "weight": { "type": "integer", "default": 100 },
        } },
        "port": { "type": "object", "properties": { "targetPort": text } },
        "tls": { "type": "object", "properties": { "termination": text } },
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "routes.route.openshift.io" },
        "spec": {
            "group": "route.openshift.io", "scope": "Namespaced",
            "names": { "kind": "Route", "plural": "routes", "singular": "route", "listKind": "RouteList" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } } }],
        },
    })
}

/// The two kinds of the Multi-Cluster Services API as far as they matter.
fn multicluster(kind: &str) -> Value {
    let text = json!({ "type": "string" });
    let port = json!({ "type": "object", "required": ["port"], "properties": {
        "name": text, "protocol": { "type": "string", "default": "TCP" }, "appProtocol": text,
        "port": { "type": "integer" },
    } });
    let condition = json!({ "type": "object", "properties": {
        "type": text, "status": text, "reason": text, "message": text,
        "observedGeneration": { "type": "integer" }, "lastTransitionTime": text,
    } });
    let mut properties = json!({ "status": { "type": "object", "properties": {
        "conditions": { "type": "array", "items": condition },
        "clusters": { "type": "array", "items": { "type": "object", "properties": { "cluster": text } } },
    } } });
    if kind == "ServiceImport" {
        properties["spec"] = json!({ "type": "object", "required": ["type", "ports"], "properties": {
            "type": { "type": "string", "enum": ["ClusterSetIP", "Headless"] },
            "ips": { "type": "array", "items": text },
            "ports": { "type": "array", "items": port },
        } });
    }
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.multicluster.x-k8s.io"),
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1646" } },
        "spec": {
            "group": "multicluster.x-k8s.io", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
            "versions": [{ "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } } }],
        },
    })
}

/// Two empty meshes, for one test at a time.
pub(crate) async fn two_meshes() -> Result<(Mesh, Mesh, MutexGuard<'static, ()>)> {
    static READY: OnceCell<Result<(), String>> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let pair = shared_pair().await?;
    let prepare = || async {
        for plane in [&pair.public, &pair.private] {
            prepare(plane).await.map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    };
    READY.get_or_init(prepare).await.clone().map_err(|error| anyhow::anyhow!(error))?;
    let east = Mesh::new("east", &pair.public).await?;
    let west = Mesh::new("west", &pair.private).await?;
    for mesh in [&east, &west] {
        mesh.empty().await?;
    }
    Ok((east, west, turn))
}

/// A third mesh, empty.
pub(crate) async fn third_mesh(name: &str) -> Result<Mesh> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = || async {
        let plane = ControlPlane::start("third").await?;
        prepare(&plane).await?;
        anyhow::Ok(plane)
    };
    let mesh = Mesh::new(name, PLANE.get_or_try_init(start).await?).await?;
    mesh.empty().await?;
    Ok(mesh)
}

/// A mesh on a control plane that nobody else has.
pub(crate) async fn breakable_mesh(name: &str) -> Result<(Mesh, ControlPlane)> {
    let plane = shared_pair().await?.public.beside(name).await?;
    prepare(&plane).await?;
    Ok((Mesh::on(name, &plane).await?, plane))
}

async fn prepare(plane: &ControlPlane) -> Result<()> {
    install_definitions(plane).await?;
    Istiod::install_kinds(plane).await?;
    for namespace in ["istio-system", "shop"] {
        plane.kubectl().run(&["create", "namespace", namespace]).await?;
    }
    Ok(())
}

/// How a controller is started.
#[derive(Default)]
pub(crate) struct Settings {
    /// The id of the peer and the port of its discovery.
    pub(crate) peer: Option<(&'static str, u16)>,
    /// The same of another peer.
    pub(crate) other: Option<(&'static str, u16)>,
    /// How long a silent peer is kept; a minute unless told.
    pub(crate) hold_down: Duration,
    /// The identity and times of a replica; alone unless told.
    pub(crate) election: Option<(String, Timings)>,
}

/// A mesh: a control plane and at most one controller on it.
pub(crate) struct Mesh {
    pub(crate) name: String,
    pub(crate) client: Client,
    kubectl: Kubectl,
    /// None where a test has one of its own, to break.
    plane: Option<&'static ControlPlane>,
    lease: Lease,
    metrics: Option<(MeshMetrics, Metrics)>,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Mesh {
    async fn new(name: &str, plane: &'static ControlPlane) -> Result<Self> {
        let mut mesh = Self::on(name, plane).await?;
        mesh.plane = Some(plane);
        Ok(mesh)
    }

    async fn on(name: &str, plane: &ControlPlane) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            client: connect(&Source::file(plane.kubeconfig())).await?,
            kubectl: plane.kubectl(),
            plane: None,
            lease: Lease::block(1)?,
            metrics: None,
            running: None,
        })
    }

    /// Another replica of the same mesh, not started.
    pub(crate) fn replica(&self) -> Result<Self> {
        let (name, client, kubectl) = (self.name.clone(), self.client.clone(), self.kubectl.clone());
        let lease = Lease::block(1)?;
        Ok(Self { name, client, kubectl, plane: self.plane, lease, metrics: None, running: None })
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        self.kubectl.clone()
    }

    /// Its control plane, which others share.
    pub(crate) fn plane(&self) -> &'static ControlPlane {
        self.plane.unwrap()
    }

    /// The port of its discovery.
    pub(crate) fn port(&self) -> u16 {
        self.lease.port(0)
    }

    /// A pod of a service in `shop`, with an account of the same name, as far as the API server knows.
    pub(crate) async fn run_pod(&self, service: &str) -> Result<()> {
        let labels = json!({ "app": service, "security.istio.io/tlsMode": "istio" });
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": service, "namespace": "shop" } });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": service, "namespace": "shop", "labels": labels },
            "spec": { "serviceAccountName": service, "schedulerName": "nobody",
                "containers": [{ "name": "app", "image": "none" }] } });
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": format!("{service}-ours"), "namespace": "shop",
                "labels": { "kubernetes.io/service-name": service } },
            "endpoints": [{ "addresses": ["10.1.0.5"], "conditions": { "ready": true },
                "targetRef": { "kind": "Pod", "name": service, "namespace": "shop" } }],
            "ports": [{ "name": "http", "port": 8080 }] });
        for object in [account, pod, slice] {
            self.kubectl().apply(&object).await?;
        }
        Ok(())
    }

    /// Starts its controller.
    pub(crate) async fn start(&mut self, settings: Settings) {
        let Settings { peer, other, hold_down, election } = settings;
        let config = MeshConfig {
            hold_down: if hold_down.is_zero() { Duration::from_mins(1) } else { hold_down },
            discovery: peer
                .into_iter()
                .chain(other)
                .map(|(mesh, port)| (mesh.to_owned(), format!("127.0.0.1:{port}")))
                .collect(),
            leader_election: election.is_some(),
            ..MeshConfig::default()
        };
        let page = Metrics::new("mesh", "0");
        let metrics = MeshMetrics::register(&page);
        let address = ("127.0.0.1", self.port());
        let listener =
            eventually(SOON, "the port of discovery", || TcpListener::bind(address)).await.unwrap();
        let (identity, timings) = election.unwrap_or_default();
        let controller = Controller::new(
            config,
            "istio-system",
            self.client.clone(),
            metrics.clone(),
            Health::default(),
            identity,
        )
        .timings(timings);
        let stop = CancellationToken::new();
        let running = controller.run(listener, stop.clone());
        self.metrics = Some((metrics, page));
        self.running = Some((stop, tokio::spawn(async move { running.await.unwrap() })));
    }

    /// Ends its controller at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
        }
    }

    /// Ends its controller in good order.
    pub(crate) async fn stop(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            stop.cancel();
            task.await.unwrap();
        }
    }

    /// Writes of the running controller so far.
    pub(crate) fn writes(&self) -> u64 {
        self.metrics.as_ref().map_or(0, |(metrics, _)| metrics.writes())
    }

    /// How often the running controller has looked at everything.
    pub(crate) fn reconciles(&self) -> u64 {
        let page = self.metrics.as_ref().and_then(|(_, page)| page.render().ok()).unwrap_or_default();
        let line = page.lines().find_map(|line| line.strip_prefix("tarbet_mesh_reconcile_seconds_count "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until it has looked this often and hears its peer.
    pub(crate) async fn reconciled(&self, times: u64) {
        let page = || self.metrics.as_ref().and_then(|(_, page)| page.render().ok()).unwrap_or_default();
        let hears = || {
            page().lines().any(|line| line.starts_with("tarbet_mesh_peer_connected{") && line.ends_with(" 1"))
        };
        wait_for(SOON, "the controller to look around", || self.reconciles() >= times && hears())
            .await
            .unwrap();
    }

    /// The hosts its discovery tells.
    pub(crate) async fn exported(&self) -> Result<Vec<String>> {
        let address = format!("http://127.0.0.1:{}", self.port());
        let mut client =
            eventually(SOON, "discovery", || AggregatedDiscoveryServiceClient::connect(address.clone()))
                .await?;
        let first = DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() };
        // The stream stays open on our side until the answer is here.
        let requests = futures::StreamExt::chain(futures::stream::iter([first]), futures::stream::pending());
        let mut answers = client.stream_aggregated_resources(requests).await?.into_inner();
        let answer = answers.message().await?.context("no answer")?;
        answer.resources.iter().map(|any| Ok(decode(&any.value)?.hostname)).collect()
    }

    /// The resource versions of everything that federation made or reads.
    pub(crate) async fn versions(&self) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for kind in kinds() {
            let list = self.kubectl().json(&["get", &kind, "--all-namespaces"]).await?;
            for object in list["items"].as_array().into_iter().flatten() {
                let meta = &object["metadata"];
                all.insert(
                    format!("{kind} {} {}", meta["namespace"], meta["name"]),
                    meta["resourceVersion"].to_string(),
                );
            }
        }
        Ok(all)
    }

    /// Everything that federation made, one line each.
    pub(crate) async fn everything(&self) -> Result<String> {
        self.kubectl().run(&["get", &kinds().join(","), "--all-namespaces", "-o", "name"]).await
    }

    /// Removes what an earlier test left.
    async fn empty(&self) -> Result<()> {
        tarbet_mesh::cleanup(&self.client, "istio-system").await?;
        let left =
            ["delete", "service,endpointslice,pod", "--all", "-n", "shop", "--force", "--grace-period=0"];
        self.kubectl().run(&left).await?;
        self.kubectl().run(&["delete", "lease", "--all", "-n", "istio-system"]).await?;
        self.kubectl()
            .run(&["delete", "serviceexports.multicluster.x-k8s.io", "--all", "-n", "shop"])
            .await?;
        let left = || async {
            let text = self.everything().await?;
            if text.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("{text}")) }
        };
        eventually(SOON, "an empty mesh", left).await
    }
}

pub(crate) fn kinds() -> Vec<String> {
    let made = Kind::ALL.iter().map(|kind| {
        let resource = kind.resource();
        format!("{}.{}", resource.plural, resource.group)
    });
    made.chain(["meshfederations", "federationservicerules"].map(str::to_owned)).collect()
}
