//! A virtual node that a test has for itself, on the shared control plane.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tarbet_cluster::{Connect, Source, connect};
use tarbet_pods::batch::Batch;
use tarbet_pods::docker::Docker;
use tarbet_pods::interlink::{InterlinkConfig, PluginBody, Upstream};
use tarbet_pods::node::{NodeConfig, Parts, start};
use tarbet_pods::runner::Runner;
use tarbet_pods::serve::{Bind, Guard, Listener, serve};
use tarbet_pods::slurm::Slurm;
use tarbet_pods::{interlink, plugin};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tarbet_testbed::{ControlPlane, Dockerd, Kubectl, Lease, Subject, eventually, shared_pair};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::it::docker::{config as docker_config, daemon};
use crate::it::pods::PATIENCE;
use crate::it::slurm::{cluster, config as slurm_config, programs};

/// A node, what it stands on, and a namespace of its own.
pub(crate) struct Bed {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) node: String,
    pub(crate) namespace: String,
    pub(super) endpoint: SocketAddr,
    pub(super) endpoint_stop: CancellationToken,
    pub(super) runner: Arc<dyn Runner>,
    stands_on: Option<&'static Dockerd>,
    runner_stop: CancellationToken,
    pub(super) health: Health,
    pub(super) running: Option<(Supervisor, JoinHandle<()>)>,
    pub(super) kubelet: SocketAddr,
    pub(super) kubeconfig: PathBuf,
    pub(super) own_certificate: bool,
    pub(super) root: tempfile::TempDir,
    // Both are bound again by some tests: nobody else may have them meanwhile.
    _ports: Lease,
}

fn claims(root: &Path) -> Result<PathBuf> {
    let folder = root.join("claims");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// An API server at `address` in front of a plugin at a socket.
pub(super) async fn endpoint(
    runner: Arc<dyn Runner>,
    root: &Path,
    address: SocketAddr,
    stop: CancellationToken,
) -> Result<SocketAddr> {
    let socket = root.join("plugin.sock");
    let listener = Listener::bind(&Bind::Unix(socket.clone())).await?;
    tokio::spawn(serve(listener, None, Guard::open(), plugin::router(runner, true), stop.clone()));
    let upstream = Upstream::new(&format!("unix://{}", socket.display()), "")?;
    let config =
        InterlinkConfig { root: root.join("api"), export: true, kubeconfig: None, body: PluginBody::Auto };
    let router = interlink::router(config, upstream, stop.clone()).await?;
    let bind = &Bind::Tcp(address);
    let listener = eventually(PATIENCE, "the address", || Listener::bind(bind)).await?;
    let port = listener.port().context("no port")?;
    tokio::spawn(serve(listener, None, Guard::open(), router, stop));
    Ok(SocketAddr::new(address.ip(), port))
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let plane = &shared_pair().await?.public;
        Self::with(plane.kubeconfig()).await
    }

    /// A node that uses the cluster by this kubeconfig.
    pub(super) async fn with(kubeconfig: PathBuf) -> Result<Self> {
        let (root, stop) = (tempfile::tempdir()?, CancellationToken::new());
        let daemon = daemon().await;
        let mut config = docker_config(daemon.url(), &root.path().join("pods"));
        config.policy.allowed_host_paths = vec![claims(root.path())?];
        let docker = Docker::open(config, stop.clone())?;
        let mut bed = Self::on(docker, kubeconfig, root, stop).await?;
        bed.stands_on = Some(daemon);
        Ok(bed)
    }

    /// A node whose pods are jobs of Slurm, run as processes, with images below `images`.
    pub(crate) async fn on_slurm(images: &Path) -> Result<Self> {
        let (root, stop) = (tempfile::tempdir()?, CancellationToken::new());
        let mut config = slurm_config(&root.path().join("pods"), true);
        config.script.image_prefix = images.display().to_string();
        config.policy.allowed_host_paths = vec![claims(root.path())?];
        let slurm = Slurm::new(programs(cluster().await.config()));
        let batch = Batch::open(config, Arc::new(slurm), stop.clone())?;
        Self::on(batch, shared_pair().await?.public.kubeconfig(), root, stop).await
    }

    /// The folder that volumes of the cluster may be in.
    pub(crate) fn claims(&self) -> PathBuf {
        self.root.path().join("claims")
    }

    async fn on(
        runner: Arc<dyn Runner>,
        kubeconfig: PathBuf,
        root: tempfile::TempDir,
        runner_stop: CancellationToken,
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        tarbet_identity::tls::install_default_provider();
        let plane = &shared_pair().await?.public;
        let node = format!("virtual-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = plane.unique_namespace("node").await?;
        let endpoint_stop = CancellationToken::new();
        let ports = Lease::block(2)?;
        let at = |index| SocketAddr::from(([127, 0, 0, 1], ports.port(index)));
        let kubelet = at(1);
        let endpoint = endpoint(Arc::clone(&runner), root.path(), at(0), endpoint_stop.clone()).await?;
        let mut bed = Self {
            plane,
            node,
            namespace,
            endpoint,
            endpoint_stop,
            runner,
            stands_on: None,
            runner_stop,
            health: Health::default(),
            running: None,
            kubelet,
            kubeconfig,
            own_certificate: true,
            root,
            _ports: ports,
        };
        bed.start_node().await?;
        Ok(bed)
    }

    pub(crate) async fn start_node(&mut self) -> Result<()> {
        let serving = Subject::loopback(&format!("system:node:{}", self.node));
        let files = self.plane.authority().issue_files(&serving, self.root.path(), "kubelet")?;
        let config = NodeConfig {
            node_name: self.node.clone(),
            interlink_url: format!("http://{}", self.endpoint),
            kubelet_listen: self.kubelet,
            kubelet_cert_file: self.own_certificate.then_some(files.certificate),
            kubelet_key_file: self.own_certificate.then_some(files.key),
            refresh_seconds: 1,
            ..Default::default()
        };
        let supervisor = Supervisor::default();
        self.health = Health::default();
        let parts = Parts {
            client: connect(&Source::file(&self.kubeconfig)).await?,
            source: Source::file(&self.kubeconfig),
            carrier: Connect::network(),
            metrics: Metrics::new("node", "test"),
            health: self.health.clone(),
            supervisor: supervisor.clone(),
        };
        self.kubelet = start(config, parts).await?;
        let run = supervisor.clone();
        let task = tokio::spawn(async move {
            // How it ends is seen by what becomes of its pods.
            let _ = run.run(Duration::from_secs(30), std::future::pending::<()>).await;
        });
        self.running = Some((supervisor, task));
        Ok(())
    }

    pub(crate) async fn stop_node(&mut self) {
        if let Some((supervisor, task)) = self.running.take() {
            supervisor.stop();
            task.await.unwrap();
        }
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        self.plane.kubectl()
    }

    /// kubectl in the namespace of the test.
    pub(crate) async fn run(&self, words: &[&str]) -> Result<String> {
        self.kubectl().run(&[&["--namespace", &self.namespace], words].concat()).await
    }

    pub(crate) async fn apply(&self, kind: &str, name: &str, rest: Value) -> Result<()> {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": self.namespace}});
        for (key, value) in rest.as_object().unwrap() {
            if key == "metadata" {
                object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            } else {
                object[key] = value.clone();
            }
        }
        self.kubectl().apply(&object).await.map(drop)
    }

    /// Makes a pod for the node, by way of the scheduler.
    pub(crate) async fn pod(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": self.node});
        spec["tolerations"] = json!([{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}]);
        for (key, value) in [("restartPolicy", json!("Never")), ("terminationGracePeriodSeconds", json!(1))] {
            if spec.get(key).is_none() {
                spec[key] = value;
            }
        }
        self.apply("Pod", name, json!({"spec": spec})).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Value> {
        self.kubectl().json(&["--namespace", &self.namespace, "get", "pod", name]).await
    }

    /// Waits until the pod has this phase.
    pub(crate) async fn phase(&self, name: &str, phase: &str) -> Result<Value> {
        eventually(PATIENCE, &format!("{name} to be {phase}"), || async {
            let pod = self.get(name).await?;
            let seen = pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
            if seen == phase {
                return Ok(pod);
            }
            bail!("{}", pod["status"])
        })
        .await
        .with_context(|| self.stands_on.map_or_else(String::new, Dockerd::log_tail))
    }

    pub(super) async fn containers(&self, uid: &str) -> Result<String> {
        let filter = format!("label=dev.tarbet.pod.uid={uid}");
        daemon().await.docker(&["ps", "-aq", "--no-trunc", "--filter", &filter]).await
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some((supervisor, _)) = &self.running {
            supervisor.stop();
        }
        self.endpoint_stop.cancel();
        self.runner_stop.cancel();
    }
}

pub(crate) fn shell(name: &str, line: &str) -> Value {
    json!({"name": name, "image": "shell:1", "imagePullPolicy": "Never", "command": ["sh", "-c", line]})
}
