//! Pods through the link: jobs of a Slurm cluster that nobody can reach, as pods of ours.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::Agent;
use tarbet_testbed::{Lease, Slurm, Subject, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::reach::Scene;
use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(3);

/// What the chapter leaves running.
pub(crate) struct Far {
    _node: Agent,
    _login: Agent,
    _slurm: Slurm,
    _ports: Lease,
}

pub(crate) async fn walk(tour: &mut Tour, scene: &Scene) -> Result<Far> {
    chapter("Pods through the link: jobs of a Slurm cluster that nobody can reach");
    let (plane, product) = (&scene.plane, &scene.product);
    let slurm = tour
        .step("A Slurm cluster of its own", "(the test bed starts it)", async {
            let slurm = Slurm::start().await?;
            let machines = slurm.run("sinfo", &[]).await?;
            Ok((slurm, machines))
        })
        .await?;
    let login = tour
        .step("An ordinary user of its login node dials out; nothing listens there", "", async {
            let added = product.run(&scene.gateway, &["site", "add", "hpc", "-o", "json"]).await?;
            let added: Value = serde_json::from_str(&added)?;
            let token = added["token"]["token"].as_str().context("no token")?;
            let settings = "ContainerRuntime: process\nSharedFS: true\nStatusSeconds: 1\n";
            let flags = |home: &Path| login_flags(home, settings);
            let config = slurm.config().display().to_string();
            let variables = [("SLURM_CONF", config.as_str())];
            let login =
                product.agent_as_ordinary_user("login", token, &scene.gateway, flags, &variables).await?;
            Ok((login, "the agent of site `hpc`, as user nobody".to_owned()))
        })
        .await?;

    let ports = Lease::block(3)?;
    let node = tour
        .step("A node of the cluster whose pods run there; it knows only the site's name", "", async {
            let files = plane.authority().issue_files(
                &Subject::loopback("system:node:hpc"),
                product.folder().path(),
                "kubelet-hpc",
            )?;
            let (kubeconfig, listen) =
                (plane.kubeconfig().display().to_string(), format!("127.0.0.1:{}", ports.port(0)));
            let cert = format!("node.KubeletCertFile={}", files.certificate.display());
            let key = format!("node.KubeletKeyFile={}", files.key.display());
            let node = [
                "node",
                "--nodename",
                "hpc",
                "--site",
                "hpc",
                "--kubeconfig",
                &kubeconfig,
                "--kubelet-listen",
                &listen,
                "--set",
                &cert,
                "--set",
                &key,
            ];
            let (server, token) = (scene.gateway.api(), product.admin_token().display().to_string());
            let authority = product.authority().display().to_string();
            let variables = [
                ("TARBET_SERVER", &*server),
                ("TARBET_TOKEN_FILE", &*token),
                ("TARBET_CA_FILE", &*authority),
            ];
            let node = product.role("node-hpc", &node, &variables).await?;
            Ok((node, plane.kubectl().run(&["get", "nodes"]).await?))
        })
        .await?;

    let kubectl = plane.kubectl();
    tour.step(
        "An ordinary pod becomes a job of Slurm",
        "kubectl apply -f pod.yaml\nkubectl get pods -o wide\nsqueue",
        async {
            kubectl.apply(&pod(ports.port(1))).await?;
            eventually(SOON, "the pod to run", || async {
                let phase = kubectl.run(&["get", "pod", "far", "-o", "jsonpath={.status.phase}"]).await?;
                ensure!(phase == "Running", "it is {phase}");
                Ok(())
            })
            .await?;
            let pods = kubectl.run(&["get", "pods", "-o", "wide"]).await?;
            let jobs = slurm.run("squeue", &["--format=%.6i %.9u %.2t %j"]).await?;
            Ok(((), format!("{pods}\n{jobs}")))
        },
    )
    .await?;
    tour.step(
        "Its log and commands in it cross the link",
        "kubectl logs far\nkubectl exec far -- id",
        async {
            let log = eventually(SOON, "the log", || async {
                let log = kubectl.run(&["logs", "far"]).await?;
                ensure!(log.contains("job"), "{log}");
                Ok(log)
            })
            .await?;
            let said = kubectl.run(&["exec", "far", "--", "id"]).await?;
            Ok(((), format!("{log}\n{said}")))
        },
    )
    .await?;
    let (far, near) = (ports.port(1), ports.port(2));
    let pair = format!("{near}:{far}");
    tour.step(
        "So do connections to its ports",
        &format!("kubectl port-forward far {pair} &\ncurl http://127.0.0.1:{near}/\nkubectl delete pod far --wait=true --grace-period=1"),
        async {
            let forward = ["port-forward", "far", &pair];
            let page = tokio::select! {
                ended = kubectl.run(&forward) => bail!("kubectl port-forward ended: {ended:?}"),
                page = eventually(SOON, "the page", || page(near)) => page?,
            };
            kubectl.run(&["delete", "pod", "far", "--wait=true", "--grace-period=1"]).await?;
            Ok(((), page))
        },
    )
    .await?;
    Ok(Far { _node: node, _login: login, _slurm: slurm, _ports: ports })
}

fn login_flags(home: &Path, settings: &str) -> Vec<String> {
    let (config, root) = (home.join("SlurmConfig.yaml"), home.join("pods").display().to_string());
    // A folder that cannot be written makes the agent say so.
    let _ = fs::write(&config, settings);
    let words = ["--plugin", "slurm", "--interlink-config"].map(str::to_owned);
    words.into_iter().chain([config.display().to_string(), "--data-root".to_owned(), root]).collect()
}

/// What is served at this port.
async fn page(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let page = answer.split_once("\r\n\r\n").map(|(_, page)| page.trim().to_owned());
    page.filter(|page| page.contains("a page of")).with_context(|| format!("no page: {answer}"))
}

fn pod(port: u16) -> Value {
    let line = format!(
        "echo a job of $(id -un); cd $(mktemp -d) && echo a page of $(id -un) > index.html && \
         exec busybox httpd -f -p 127.0.0.1:{port} -h ."
    );
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far", "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "hpc"},
            "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "none",
                "command": ["/bin/sh", "-c", line],
            }],
        },
    })
}
