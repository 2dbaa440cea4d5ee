//! Real Istio: its kinds on a control plane, `istioctl` as a judge, and istiod on loopback.
//!
//! No images and no sidecars: istiod reads the cluster and tells any client of its discovery what
//! a proxy would be told. Certificates and webhooks are off.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{ControlPlane, Folder, Lease, Process, Program, eventually, http, tools};

/// Generous: compilers may share the cores.
const READY: Duration = Duration::from_mins(2);
/// One answer, or one run of istioctl.
const ANSWER: Duration = Duration::from_mins(1);

/// `istioctl`, without a cluster.
#[derive(Clone, Debug)]
pub struct Istioctl {
    program: PathBuf,
}

impl Istioctl {
    /// Finds it.
    pub async fn find() -> Result<Self> {
        Ok(Self { program: tools::istio().await?.join("istioctl") })
    }

    /// Lets it validate objects one by one: fields, enumerations and what belongs together.
    /// Returns what it prints, which may hold warnings.
    pub async fn validate(&self, objects: &[Value]) -> Result<String> {
        self.judge(&["validate", "-f"], objects).await
    }

    /// Lets it analyze objects together. Returns what it prints.
    pub async fn analyze(&self, objects: &[Value]) -> Result<String> {
        self.judge(&["analyze", "--use-kube=false", "--failure-threshold", "Error"], objects).await
    }

    async fn judge(&self, args: &[&str], objects: &[Value]) -> Result<String> {
        let folder = Folder::new("istioctl")?;
        // JSON is YAML, and `---` parts documents in both.
        let text: Vec<String> = objects.iter().map(ToString::to_string).collect();
        let file = folder.write("objects.yaml", &text.join("\n---\n"))?;
        let mut command = Command::new(&self.program);
        command.args(args).arg(&file).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(ANSWER, command.output()).await.context("istioctl took too long")??;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim_end().to_owned();
        if !output.status.success() {
            bail!("istioctl {}: {said}", args.join(" "));
        }
        Ok(said)
    }
}

/// A running istiod; it goes when dropped.
#[derive(Debug)]
pub struct Istiod {
    process: Process,
    lease: Lease,
    _folder: Folder,
}

impl Istiod {
    /// Installs the kinds of Istio on a plane and waits until they are served.
    pub async fn install_kinds(plane: &ControlPlane) -> Result<()> {
        let file = tools::istio().await?.join("crds.yaml").display().to_string();
        let kubectl = plane.kubectl();
        kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", &file]).await?;
        let kinds = [
            "gateways.networking.istio.io",
            "serviceentries.networking.istio.io",
            "workloadentries.networking.istio.io",
            "destinationrules.networking.istio.io",
            "virtualservices.networking.istio.io",
            "envoyfilters.networking.istio.io",
            "peerauthentications.security.istio.io",
            "authorizationpolicies.security.istio.io",
        ];
        for kind in kinds {
            let list = ["get", kind, "--all-namespaces"];
            eventually(READY, kind, || kubectl.run(&list)).await?;
        }
        Ok(())
    }

    /// Starts it on a plane that has the kinds and the namespace `istio-system`.
    pub async fn start(plane: &ControlPlane, trust_domain: &str) -> Result<Self> {
        Self::start_trusting(plane, trust_domain, &[]).await
    }

    /// The same, with other trust domains whose identities are as good as its own.
    pub async fn start_trusting(plane: &ControlPlane, trust_domain: &str, others: &[&str]) -> Result<Self> {
        let (lease, folder) = (Lease::block(3)?, Folder::new("istiod")?);
        let mesh = format!(
            "trustDomain: {trust_domain}\ntrustDomainAliases: [{}]\nrootNamespace: istio-system\n\
             outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\n",
            others.join(", "),
        );
        let mesh = folder.write("mesh.yaml", &mesh)?;
        let at = |port: u16| format!("127.0.0.1:{}", lease.port(port));
        let mut program = Program::new(tools::istio().await?.join("pilot-discovery"))
            .args(["discovery", "--httpsAddr", "", "--secureGRPCAddr", "", "--ctrlz_port", "0"])
            .arg("--kubeconfig")
            .arg(plane.kubeconfig())
            .arg("--meshConfig")
            .arg(mesh)
            .args(["--httpAddr", &at(0), "--grpcAddr", &at(1), "--monitoringAddr", &at(2)])
            .grace(Duration::from_secs(1));
        for (name, value) in [
            ("POD_NAME", "istiod"),
            ("POD_NAMESPACE", "istio-system"),
            ("CLUSTER_ID", "Kubernetes"),
            ("REVISION", "default"),
            ("ENABLE_CA_SERVER", "false"),
            ("PILOT_CERT_PROVIDER", "none"),
            ("PILOT_ENABLE_GATEWAY_API", "false"),
            // A stock Envoy does not have Istio's own filters.
            ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
            ("PILOT_ENABLE_ALPN_FILTER", "false"),
            ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
            ("INJECTION_WEBHOOK_CONFIG_NAME", ""),
        ] {
            program = program.env(name, value);
        }
        let process = Process::start(&folder, "istiod", program)?;
        let mut istiod = Self { process, lease, _folder: folder };
        let port = istiod.lease.port(0);
        istiod.process.ready(READY, || http::get(port, "/ready")).await?;
        Ok(istiod)
    }

    /// The port of its discovery, in clear text.
    pub fn discovery_port(&self) -> u16 {
        self.lease.port(1)
    }

    /// What a connected proxy, named `NAME.NAMESPACE`, has been told.
    pub async fn config_dump(&self, proxy: &str) -> Result<Value> {
        let path = format!("/debug/config_dump?proxyID={proxy}&include_eds=true");
        serde_json::from_str(&http::get(self.lease.port(0), &path).await?).context("read istiod's dump")
    }
}
