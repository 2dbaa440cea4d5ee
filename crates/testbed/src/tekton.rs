//! Real Tekton on a control plane: its controllers, its resolvers, and a node that runs the pods.
//!
//! The node runs each container as a process of this machine, with the pod's volumes where they
//! belong and Tekton's own entrypoint in charge, so scripts, results, failures and logs are real.
//! Images are not used: a step sees the programs of the machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{ControlPlane, Folder, Lease, Process, Program, Subject, eventually, image, tools};

/// Generous: compilers may share the cores.
const READY: Duration = Duration::from_mins(2);

/// Running Tekton; it goes when dropped.
#[derive(Debug)]
pub struct Tekton {
    // In the order they must go.
    controller: Process,
    resolvers: Process,
    node: Process,
    _lease: Lease,
    _folder: Folder,
}

impl Tekton {
    /// Installs only the kinds, for tests that play Tekton themselves.
    pub async fn install_kinds(plane: &ControlPlane) -> Result<()> {
        let home = tools::tekton().await?;
        let kubectl = plane.kubectl();
        let kinds = home.join("config/300-crds").display().to_string();
        kubectl.run(&["apply", "--server-side", "-f", &kinds]).await?;
        // Their conversion calls a webhook that does not run here; all objects are of the stored version.
        let plain = json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } }).to_string();
        for kind in ["pipelines", "pipelineruns", "tasks", "taskruns"] {
            let name = format!("{kind}.tekton.dev");
            kubectl.run(&["patch", "crd", &name, "--type=merge", "-p", &plain]).await?;
        }
        let established = ["wait", "crd", "--all", "--for=condition=Established", "--timeout=60s"];
        kubectl.run(&established).await?;
        // Established, but the new paths may take a moment to be served.
        for kind in ["pipelines.tekton.dev", "pipelineruns.tekton.dev"] {
            let list = ["get", kind, "--all-namespaces"];
            eventually(READY, kind, || kubectl.run(&list)).await?;
        }
        Ok(())
    }

    /// The folder with the programs of Tekton's images, for those who make images of them.
    pub async fn programs() -> Result<PathBuf> {
        Ok(tools::tekton().await?.join("programs"))
    }

    /// The image that stands for all of Tekton's own, and that steps may name.
    pub const IMAGE: &str = "tarbet.dev/tekton:v1.0.0";

    /// Puts the files of [`Tekton::IMAGE`] below `root`: Tekton's programs and a shell.
    pub async fn image_root(root: &Path) -> Result<()> {
        image::shell(root).await?;
        let (from, to) = (Self::programs().await?, root.join("ko-app"));
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        // Where it mounts things; a read-only root has no room to make them.
        for folder in ["tekton", "workspace", "dev", "proc"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        Ok(())
    }

    /// Installs it on the plane and starts it.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let home = tools::tekton().await?;
        Self::install_kinds(plane).await?;
        install(plane, &home.join("config")).await?;
        let (lease, folder) = (Lease::block(5)?, Folder::new("tekton")?);
        let kubeconfig = plane.kubeconfig();
        let program = |part: &str| {
            let program = Program::new(home.join("tekton")).arg(part).grace(Duration::from_secs(1));
            program.arg("-kubeconfig").arg(&kubeconfig)
        };

        let files =
            plane.authority().issue_files(&Subject::loopback("system:node:steps"), folder.path(), "node")?;
        let node = program("node")
            .args(["-name", "steps", "-port", &lease.port(0).to_string()])
            .arg("-root")
            .arg(folder.path().join("pods"))
            .arg("-programs")
            .arg(home.join("programs"))
            .arg("-tls-certificate")
            .arg(&files.certificate)
            .arg("-tls-key")
            .arg(&files.key);
        let mut node = Process::start(&folder, "node", node)?;
        let kubectl = plane.kubectl();
        node.ready(READY, || kubectl.run(&["get", "node", "steps"])).await?;

        let knative = |part: &str, namespace: &str, ports: [u16; 2]| {
            program(part)
                .env("SYSTEM_NAMESPACE", namespace)
                .env("KUBERNETES_MIN_VERSION", "v1.28.0")
                .env("CONFIG_DEFAULTS_NAME", "config-defaults")
                .env("CONFIG_LOGGING_NAME", "config-logging")
                .env("CONFIG_OBSERVABILITY_NAME", "config-observability")
                .env("CONFIG_FEATURE_FLAGS_NAME", "feature-flags")
                .env("CONFIG_LEADERELECTION_NAME", "config-leader-election-controller")
                .env("CONFIG_SPIRE", "config-spire")
                .env("METRICS_DOMAIN", "tekton.dev/pipeline")
                .env("METRICS_PROMETHEUS_HOST", "127.0.0.1")
                .env("METRICS_PROMETHEUS_PORT", ports[0].to_string())
                .env("PROFILING_PORT", ports[1].to_string())
        };
        let controller = knative("controller", "tekton-pipelines", [lease.port(1), lease.port(2)]);
        let mut controller = Process::start(&folder, "controller", controller)?;
        let resolvers = knative("resolvers", "tekton-pipelines-resolvers", [lease.port(3), lease.port(4)])
            .env("CONFIG_LEADERELECTION_NAME", "config-leader-election-resolvers")
            .env("CONFIG_FEATURE_FLAGS_NAME", "resolvers-feature-flags");
        let mut resolvers = Process::start(&folder, "resolvers", resolvers)?;
        let answers = |port: u16| move || tokio::net::TcpStream::connect(("127.0.0.1", port));
        controller.ready(READY, answers(lease.port(1))).await?;
        resolvers.ready(READY, answers(lease.port(3))).await?;
        Ok(Self { controller, resolvers, node, _lease: lease, _folder: folder })
    }

    /// The process of the controllers, to pause or kill.
    pub fn controller(&mut self) -> &mut Process {
        &mut self.controller
    }

    /// The process of the resolvers, to pause or kill.
    pub fn resolvers(&mut self) -> &mut Process {
        &mut self.resolvers
    }

    /// The process of the node, to pause or kill.
    pub fn node(&mut self) -> &mut Process {
        &mut self.node
    }
}

/// Namespaces, rights and settings, as Tekton's own manifests have them.
async fn install(plane: &ControlPlane, config: &Path) -> Result<()> {
    let kubectl = plane.kubectl();
    let wanted = |name: &str| {
        name.starts_with("100-")
            || name.starts_with("200-")
            || name.starts_with("201-")
            || name.contains("config")
    };
    for folder in [config.join("100-namespace"), config.to_owned(), config.join("resolvers")] {
        let mut files: Vec<String> = std::fs::read_dir(&folder)
            .with_context(|| format!("read {}", folder.display()))?
            .flatten()
            .filter(|entry| entry.path().is_file())
            .filter(|entry| entry.file_name().to_str().is_some_and(wanted))
            .map(|entry| entry.path().display().to_string())
            .collect();
        files.sort();
        let mut args = vec!["apply", "--server-side"];
        for file in &files {
            args.extend(["-f", file]);
        }
        kubectl.run(&args).await?;
    }
    // One node: nothing has to be placed together, and nothing injects sidecars to wait for.
    let flags = json!({ "data": {
        "coschedule": "disabled", "disable-affinity-assistant": "true",
        "running-in-environment-with-injected-sidecars": "false",
    } });
    let patch = ["patch", "configmap", "feature-flags", "-n", "tekton-pipelines", "--type=merge", "-p"];
    kubectl.run(&[&patch[..], &[&flags.to_string()]].concat()).await?;
    Ok(())
}
