//! The meshes that are measured: real control planes, real controllers, and peers of many.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_cluster::{Source, connect};
use tarbet_mesh::crd;
use tarbet_mesh::plan::Kind;
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{ControlPlane, Istiod, Lease, Pair, eventually};
use tokio_util::sync::CancellationToken;

use super::declare::{self, apply, core, entry, objects};
use super::listen::{Changes, offering};

/// Writers at once, as many as the controller has.
const WRITERS: usize = 32;
const LONG: Duration = Duration::from_mins(10);

/// Two control planes with controllers: `west` exports, `east` imports. With many peers only east.
pub(super) struct Meshes {
    east: Option<Agent>,
    west: Option<Agent>,
    ports: Lease,
    product: Product,
    importing: Client,
    exporting: Client,
    stop: CancellationToken,
    pair: Pair,
}

impl Drop for Meshes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Meshes {
    /// Two clusters without controllers.
    pub(super) async fn prepare(binary: &Path) -> Result<Self> {
        let pair = Pair::start().await?;
        for plane in [&pair.public, &pair.private] {
            install_kinds(plane).await?;
        }
        Ok(Self {
            east: None,
            west: None,
            ports: Lease::block(2)?,
            product: Product::new(binary)?,
            importing: connect(&Source::file(pair.public.kubeconfig())).await?,
            exporting: connect(&Source::file(pair.private.kubeconfig())).await?,
            stop: CancellationToken::new(),
            pair,
        })
    }

    /// Controllers that hear each other and export nothing yet.
    pub(super) async fn start(&mut self) -> Result<()> {
        declare::mesh(&self.pair.public, "east", &["west".to_owned()], true).await?;
        declare::mesh(&self.pair.private, "west", &["east".to_owned()], true).await?;
        let at = (self.ports.port(0), self.ports.port(1));
        let (east, west) = ([("west".to_owned(), at.1)], [("east".to_owned(), at.0)]);
        self.west = Some(controller(&self.product, &self.pair.private, "west", at.1, &west).await?);
        self.east = Some(controller(&self.product, &self.pair.public, "east", at.0, &east).await?);
        Ok(())
    }

    /// One mesh with many peers in its own network, all of which offer the same services.
    pub(super) async fn with_peers(
        binary: &Path,
        peers: usize,
        services: usize,
        endpoints: usize,
    ) -> Result<Self> {
        let mut meshes = Self::prepare(binary).await?;
        // What it exports it exports from its own cluster.
        meshes.exporting = meshes.importing.clone();
        let known = offering(peers, services, endpoints, &meshes.stop).await?;
        let names: Vec<String> = known.iter().map(|(name, _)| name.clone()).collect();
        declare::mesh(&meshes.pair.public, "east", &names, false).await?;
        let at = meshes.ports.port(0);
        meshes.east = Some(controller(&meshes.product, &meshes.pair.public, "east", at, &known).await?);
        Ok(meshes)
    }

    fn east(&self) -> Result<&Agent> {
        self.east.as_ref().context("the controller was not started")
    }

    /// The process of the importing controller.
    pub(super) fn importer(&self) -> u32 {
        self.east.as_ref().map_or(0, |east| east.process.pid())
    }

    /// The port of the importing mesh's own discovery.
    pub(super) fn discovery(&self) -> u16 {
        self.ports.port(0)
    }

    /// Makes Services in a namespace of the exporting mesh. They select nothing: for those that do,
    /// Kubernetes makes endpoints, which for thousands of them takes it minutes and half of a core that is
    /// neither ours nor the API server's that is measured.
    pub(super) async fn make_services(&self, namespace: &str, count: usize) -> Result<()> {
        apply(&self.exporting, &core("namespaces", "Namespace"), "", namespace, json!({})).await?;
        let make = |number: usize| async move {
            let body = json!({ "spec": { "ports": [{ "name": "http", "port": 80 }] } });
            apply(&self.exporting, &core("services", "Service"), namespace, &format!("s{number}"), body).await
        };
        futures::stream::iter(0..count).map(make).buffer_unordered(WRITERS).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Adds a namespace to what the exporting mesh exports.
    pub(super) async fn export(&self, namespace: &str) -> Result<()> {
        let rules = Api::<crd::FederationServiceRules>::namespaced(self.exporting.clone(), "istio-system");
        let export = rules.get("default").await?.spec.export;
        let mut list = export.map(|export| export.service_list).unwrap_or_default();
        list.push(format!("{namespace}/*"));
        self.export_list(&list).await
    }

    /// Takes everything out of what the exporting mesh exports.
    pub(super) async fn export_nothing(&self) -> Result<()> {
        self.export_list(&[]).await
    }

    async fn export_list(&self, list: &[String]) -> Result<()> {
        let rules = Api::<crd::FederationServiceRules>::namespaced(self.exporting.clone(), "istio-system");
        let patch = json!({ "spec": { "export": { "serviceList": list } } });
        rules.patch("default", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until this many are imported and written.
    pub(super) async fn imported(&self, count: usize) -> Result<()> {
        let east = self.east()?;
        let look = || async {
            let so_far = east.metric("tarbet_mesh_imported_services").await?;
            ensure!((so_far - count as f64).abs() < 0.5, "{so_far} of {count}");
            Ok(())
        };
        eventually(LONG, "the imports", look).await
    }

    /// Writes of the importing controller so far.
    pub(super) async fn writes(&self) -> Result<f64> {
        self.east()?.metric("tarbet_mesh_writes_total").await
    }

    /// Gives an exported service another port.
    pub(super) async fn change_port(&self, namespace: &str, name: &str, port: usize) -> Result<()> {
        let body = json!({ "spec": { "ports": [{ "name": "http", "port": port }] } });
        let services = objects(&self.exporting, &core("services", "Service"), namespace);
        services.patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
        Ok(())
    }

    /// The changes of entries in the importing mesh from now on.
    pub(super) async fn watch_entries(&self) -> Result<Changes> {
        Changes::start(objects(&self.importing, &Kind::ServiceEntry.resource(), "istio-system")).await
    }

    /// How long the API server takes to write one object and to tell a watcher.
    pub(super) async fn writes_and_watches(&self, times: usize) -> Result<Vec<Duration>> {
        let kind = Kind::ServiceEntry.resource();
        let write =
            |port| apply(&self.importing, &kind, "istio-system", "alone", entry("alone.example", port));
        write(80).await?;
        let api = objects(&self.importing, &kind, "istio-system");
        let (mut watch, mut all) = (Changes::start(api.clone()).await?, Vec::new());
        for number in 0..times {
            let begun = Instant::now();
            write(3000 + number).await?;
            watch.until("alone", 3000 + number).await?;
            all.push(begun.elapsed());
        }
        api.delete("alone", &DeleteParams::default()).await?;
        Ok(all)
    }

    /// Writes a second that the API server takes from as many writers as the controller has.
    pub(super) async fn raw_writes(&self, imports: usize) -> Result<f64> {
        const EACH: usize = 3;
        let client = &self.importing;
        apply(client, &core("namespaces", "Namespace"), "", "raw", json!({})).await?;
        let begun = Instant::now();
        let write = |number: usize| declare::import(client, "raw", number);
        futures::stream::iter(0..imports)
            .map(write)
            .buffer_unordered(WRITERS)
            .try_collect::<Vec<()>>()
            .await?;
        let rate = (imports * EACH) as f64 / begun.elapsed().as_secs_f64();
        for kind in [Kind::ServiceEntry, Kind::ImportedService] {
            let api = objects(client, &kind.resource(), "raw");
            api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        }
        Ok(rate)
    }

    /// Kills the importing controller, starts it again, waits until all is known: its writes since.
    pub(super) async fn restart_importer(&mut self, count: usize) -> Result<f64> {
        let east = self.east.as_mut().context("the controller was not started")?;
        east.process.kill9()?;
        east.process.restart().await?;
        east.ready().await?;
        self.imported(count).await?;
        let east = self.east()?;
        let heard = || async {
            ensure!(east.metric("tarbet_mesh_peer_connected").await? > 0.5, "not connected");
            ensure!(east.metric("tarbet_mesh_reconcile_seconds_count").await? >= 2.0, "not looked twice");
            Ok(())
        };
        eventually(LONG, "the peer", heard).await?;
        self.writes().await
    }
}

async fn install_kinds(plane: &ControlPlane) -> Result<()> {
    let kinds: Vec<Value> = crd::definitions().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    plane.kubectl().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": kinds })).await?;
    Istiod::install_kinds(plane).await?;
    plane.kubectl().run(&["create", "namespace", "istio-system"]).await?;
    for kind in ["meshfederations", "federationservicerules", "importedservices"] {
        eventually(LONG, kind, || async { plane.kubectl().run(&["get", kind, "-A"]).await }).await?;
    }
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
