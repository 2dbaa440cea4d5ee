//! Pods through the link: a virtual node of the public cluster whose pods are jobs of a Slurm cluster
//! that nobody can reach. An ordinary user of its login node dials out; nothing listens there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{ControlPlane, Kubectl, Lease, Slurm, Subject, eventually, shared_pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

const SOON: Duration = Duration::from_mins(2);

struct Crossing {
    /// The node's name: tests run beside each other on one cluster.
    node: String,
    plane: &'static ControlPlane,
    namespace: String,
    product: Product,
    gateway: Gateway,
    slurm: Slurm,
    login: Agent,
    _kubelet: Lease,
    _process: Agent,
}

impl Crossing {
    /// A gateway, a login node that dials it, and a node of the cluster that knows only the site's name.
    async fn new(name: &str, settings: &[(&str, String)]) -> Result<Self> {
        let node = format!("{name}-{}", std::process::id());
        let plane = &shared_pair().await?.public;
        let namespace = plane.unique_namespace("crossing").await?;
        let slurm = Slurm::start().await?;
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
        let gateway = product.gateway("crossing", "{kind: memory}", &[]).await?;
        let added = product.run(&gateway, &["site", "add", "hpc", "-o", "json"]).await?;
        let added: Value = serde_json::from_str(&added)?;
        let token = added["token"]["token"].as_str().context("no token")?.to_owned();
        let config = slurm.config().display().to_string();
        let login = product
            .agent_as_ordinary_user("login", &token, &gateway, login_flags, &[("SLURM_CONF", &config)])
            .await?;
        // The node's own account at the gateway: this site and no other.
        let caller =
            product.run(&gateway, &["user", "add", "node", "--role", "user", "--site", "hpc"]).await?;
        let caller = product.folder().write("node.token", caller.trim())?;
        let kubelet = Lease::block(1)?;
        let files = plane.authority().issue_files(
            &Subject::loopback(&format!("system:node:{node}")),
            product.folder().path(),
            "kubelet",
        )?;
        let mut words: Vec<String> =
            ["node", "--nodename", &node, "--site", "hpc", "--kubelet-listen"].map(str::to_owned).to_vec();
        words.push(format!("127.0.0.1:{}", kubelet.port(0)));
        words.extend(["--kubeconfig".to_owned(), plane.kubeconfig().display().to_string()]);
        let own = [
            ("KubeletCertFile", files.certificate.display().to_string()),
            ("KubeletKeyFile", files.key.display().to_string()),
        ];
        for (key, value) in own.iter().chain(settings) {
            words.extend(["--set".to_owned(), format!("node.{key}={value}")]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (server, caller) = (gateway.api(), caller.display().to_string());
        let authority = product.authority().display().to_string();
        let environment =
            [("TARBET_SERVER", &*server), ("TARBET_TOKEN_FILE", &*caller), ("TARBET_CA_FILE", &*authority)];
        let process = product.role("node", &words, &environment).await?;
        Ok(Self {
            node,
            plane,
            namespace,
            product,
            gateway,
            slurm,
            login,
            _kubelet: kubelet,
            _process: process,
        })
    }

    fn kubectl(&self) -> Kubectl {
        self.plane.kubectl()
    }

    async fn run(&self, words: &[&str]) -> Result<String> {
        self.kubectl().run(&[&["--namespace", &self.namespace], words].concat()).await
    }

    async fn pod(&self, name: &str, line: &str) -> Result<()> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "none", "command": ["/bin/sh", "-c", line]}],
            },
        });
        self.kubectl().apply(&pod).await.map(drop)
    }

    async fn phase(&self, name: &str, phase: &str) -> Result<()> {
        eventually(SOON, &format!("{name} to be {phase}"), || async {
            let pod = self.kubectl().json(&["-n", &self.namespace, "get", "pod", name]).await?;
            ensure!(pod["status"]["phase"] == phase, "{}", pod["status"]);
            Ok(())
        })
        .await
    }

    fn home(&self) -> PathBuf {
        self.product.folder().path().join("login")
    }
}

/// The one command of the site's side.
fn login_flags(home: &Path) -> Vec<String> {
    let config = home.join("SlurmConfig.yaml");
    fs::write(&config, "ContainerRuntime: process\nSharedFS: true\nStatusSeconds: 1\n").unwrap();
    let words = ["--plugin", "slurm", "--interlink-config"].map(str::to_owned);
    let root = home.join("pods").display().to_string();
    words.into_iter().chain([config.display().to_string(), "--data-root".to_owned(), root]).collect()
}

/// The TCP ports that a process listens on.
fn listening(pid: u32) -> Result<BTreeSet<u16>> {
    let mut sockets = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = fs::read_link(entry?.path()).unwrap_or_default();
        if let Some(inode) = link.to_str().and_then(|text| text.strip_prefix("socket:[")) {
            sockets.insert(inode.trim_end_matches(']').to_owned());
        }
    }
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, "0A", ..] = words[..] else { continue };
            if sockets.contains(words[9]) {
                let port = local.rsplit(':').next().context("no port")?;
                ports.insert(u16::from_str_radix(port, 16)?);
            }
        }
    }
    Ok(ports)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_on_slurm_behind_a_link_with_its_log_commands_and_ports() -> Result<()> {
    let crossing = Crossing::new("hpc", &[]).await?;
    ensure!(
        listening(crossing.login.process.pid())? == BTreeSet::from([crossing.login.probes()]),
        "only the probe port may listen at the site"
    );
    let port = Lease::block(1)?;
    let folder = crossing.home().join("page").display().to_string();
    let page = format!("mkdir -p {folder} && echo 'carried across' > {folder}/index.html");
    let serve = format!("exec busybox httpd -f -p 127.0.0.1:{} -h {folder}", port.port(0));
    crossing.pod("far", &format!("echo I am $(id -u); {page}; {serve}")).await?;
    crossing.phase("far", "Running").await?;

    let log = eventually(SOON, "the log", || async {
        let log = crossing.run(&["logs", "far"]).await?;
        ensure!(log == "I am 65534", "{log}");
        Ok(log)
    });
    log.await?;
    let said = crossing.run(&["exec", "far", "--", "/bin/sh", "-c", "id -u; echo $SLURM_JOB_NAME"]).await?;
    ensure!(said.starts_with("65534"), "{said}");
    forwarded(&crossing, port.port(0)).await?;

    let jobs = crossing.slurm.run("squeue", &["--noheader", "--format=%u %T"]).await?;
    ensure!(jobs == "nobody RUNNING", "{jobs}");
    crossing.run(&["delete", "pod", "far", "--wait=true", "--timeout=60s"]).await?;
    eventually(SOON, "the job to go", || async {
        let jobs = crossing.slurm.run("squeue", &["--noheader", "--states=R,PD", "--format=%T"]).await?;
        ensure!(jobs.is_empty(), "{jobs}");
        Ok(())
    })
    .await
}

/// Speaks to the pod's page through kubectl port-forward.
async fn forwarded(crossing: &Crossing, port: u16) -> Result<()> {
    let local = Lease::block(1)?;
    let _forward = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(crossing.plane.kubeconfig())
        .args(["-n", &crossing.namespace, "port-forward", "pod/far"])
        .arg(format!("{}:{port}", local.port(0)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    eventually(SOON, "the page", || async {
        let mut stream = TcpStream::connect(("127.0.0.1", local.port(0))).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        ensure!(page.contains("carried across"), "{page}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_comes_back_is_given_its_account_and_its_pods_again() -> Result<()> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "interlink-reader", "namespace": "default"},
    });
    shared_pair().await?.public.kubectl().apply(&account).await?;
    let settings = [("ServiceAccount", "interlink-reader".to_owned()), ("Namespace", "default".to_owned())];
    let mut crossing = Crossing::new("back", &settings).await?;
    let stored = crossing.home().join("pods/.kube/config");
    let read = || async {
        let text = fs::read_to_string(&stored)?;
        ensure!(text.contains("interlink-reader"), "{text}");
        Ok(text)
    };
    let first = eventually(SOON, "the account", read).await?;
    let who = crossing.plane.kubectl_with(stored.clone()).run(&["auth", "whoami"]).await?;
    ensure!(who.contains("system:serviceaccount:default:interlink-reader"), "{who}");
    crossing.pod("lasting", "echo begun; while :; do sleep 1; done").await?;
    crossing.phase("lasting", "Running").await?;

    crossing.login.process.kill9()?;
    fs::remove_file(&stored)?;
    eventually(SOON, "the node to notice", || async {
        let node = crossing.kubectl().json(&["get", "node", &crossing.node]).await?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let link = conditions.iter().find(|condition| condition["type"] == "InterlinkConnectivity");
        ensure!(link.is_some_and(|link| link["status"] == "False"), "{conditions:?}");
        Ok(())
    })
    .await?;
    crossing.login.process.restart().await?;
    let second = eventually(SOON, "the account again", read).await?;
    ensure!(first != second, "a new token is made after each time away");
    crossing.phase("lasting", "Running").await?;
    let said = crossing.run(&["exec", "lasting", "--", "/bin/echo", "still here"]).await?;
    ensure!(said == "still here", "{said}");
    let jobs = crossing.slurm.run("squeue", &["--noheader", "--format=%T"]).await?;
    ensure!(jobs == "RUNNING", "one job, and the same: {jobs}");
    crossing.run(&["delete", "pod", "lasting", "--wait=true", "--timeout=60s"]).await?;

    // Another caller, without a right to this site, gets nothing.
    let product = &crossing.product;
    let other = product
        .run(&crossing.gateway, &["user", "add", "other", "--role", "viewer", "--site", "hpc"])
        .await?;
    let other = product.folder().write("other.token", other.trim())?;
    let words = ["pods", "list", "--site", "hpc"];
    ensure!(product.run_as(&crossing.gateway, &other, &words).await.is_err());
    Ok(())
}
