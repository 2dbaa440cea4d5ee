//! A virtual node of a control plane, and everything behind it, as the product's own roles.

use std::path::Path;

use anyhow::{Context, Result};

use crate::product::{Agent, Product};
use crate::{CertificateFiles, ControlPlane, Dockerd, Lease, Slurm, Subject};

/// Where the pods of a virtual node run.
#[derive(Clone, Copy, Debug)]
pub enum Behind<'a> {
    /// As containers of a Docker daemon.
    Docker(&'a Dockerd),
    /// As jobs of Slurm; images are folders below the second.
    Slurm(&'a Slurm, &'a Path),
    /// As processes of this machine, without containers.
    Processes,
}

/// Node, API server and plugin; they go in this order when dropped.
pub struct Edge {
    /// `tarbet node`.
    pub node: Agent,
    /// `tarbet interlink`.
    pub api: Agent,
    /// `tarbet plugin …`.
    pub plugin: Agent,
    /// The certificate of the node's kubelet API and its key, which may be replaced.
    pub kubelet_files: CertificateFiles,
    ports: Lease,
}

impl Edge {
    /// Starts all three and waits until the node has joined the plane under this name.
    pub async fn start(
        product: &Product,
        plane: &ControlPlane,
        name: &str,
        behind: Behind<'_>,
    ) -> Result<Self> {
        let ports = Lease::block(3)?;
        let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
        let (plugin_at, api_at, kubelet_at) = (at(0), at(1), at(2));
        let root = product.folder().path().join(format!("edge-{name}"));
        let (plugin_root, api_root) =
            (root.join("plugin").display().to_string(), root.join("api").display().to_string());
        let role = |part: &str| format!("{name}-{part}");

        let plugin = match behind {
            Behind::Docker(docker) => {
                let args = ["plugin", "docker", "--listen", &plugin_at, "--data-root", &plugin_root];
                product.role(&role("docker"), &args, &[("DOCKER_HOST", &docker.url())]).await?
            }
            Behind::Slurm(slurm, images) => {
                let settings = format!(
                    "ContainerRuntime: process\nImagePrefix: {}\nSharedFS: true\nStatusSeconds: 1\n",
                    images.display()
                );
                let file = product.folder().write(&format!("{name}.yaml"), &settings)?;
                let file = file.display().to_string();
                let args = ["plugin", "slurm", "--listen", &plugin_at, "--data-root", &plugin_root];
                let args = [&args[..], &["--interlink-config", &file]].concat();
                let config = slurm.config().display().to_string();
                product.role(&role("slurm"), &args, &[("SLURM_CONF", &config)]).await?
            }
            Behind::Processes => {
                let args = ["plugin", "process", "--listen", &plugin_at, "--data-root", &plugin_root];
                product.role(&role("process"), &args, &[]).await?
            }
        };
        let port = ports.port(0).to_string();
        let sidecar = [("SIDECARURL", "http://127.0.0.1"), ("SIDECARPORT", port.as_str())];
        let args = ["interlink", "--listen", &api_at, "--data-root", &api_root];
        let api = product.role(&role("interlink"), &args, &sidecar).await?;

        let serving = Subject::loopback(&format!("system:node:{name}"));
        let files = plane.authority().issue_files(&serving, product.folder().path(), name)?;
        let cert = format!("node.KubeletCertFile={}", files.certificate.display());
        let key = format!("node.KubeletKeyFile={}", files.key.display());
        let (url, kubeconfig) = (format!("http://{api_at}"), plane.kubeconfig().display().to_string());
        let args = ["node", "--nodename", name, "--interlink-url", &url, "--kubeconfig", &kubeconfig];
        let more = ["--kubelet-listen", &kubelet_at, "--set", &cert, "--set", &key];
        let node = product.role(&role("node"), &[&args[..], &more].concat(), &[]).await;
        let node = node.with_context(|| format!("the virtual node {name} did not start"))?;
        Ok(Self { node, api, plugin, kubelet_files: files, ports })
    }

    /// Where the node's kubelet API listens.
    pub fn kubelet(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.port(2))
    }

    /// What leads the pods of a pipeline to the node of this name, as a Tekton pod template.
    pub fn pod_template(name: &str) -> serde_json::Value {
        serde_json::json!({
            "nodeSelector": { "kubernetes.io/hostname": name },
            "tolerations": [{ "key": "virtual-node.interlink/no-schedule", "operator": "Exists" }],
        })
    }
}
