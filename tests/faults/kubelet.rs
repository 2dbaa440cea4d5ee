//! The certificate of a virtual node's kubelet API is replaced while its logs are read.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tarbet_testbed::{Behind, Edge, Subject, shared_pair};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use super::tokens::keep_asking;
use super::*;

/// The text of certificates without the shape of their lines.
fn bare(pem: &str) -> String {
    pem.split_whitespace().collect()
}

/// Whether the listener shows this certificate.
async fn shows(url: &str, certificate: &str) -> Result<()> {
    let said = Command::new("curl").args(["-sk", "-o", "/dev/null", "-w", "%{certs}", url]).output().await?;
    let said = String::from_utf8(said.stdout)?;
    ensure!(bare(&said).contains(&bare(certificate)), "{url} shows {said}");
    Ok(())
}

/// Lines that are written from here on.
async fn goes_on(log: &mut Lines<BufReader<ChildStdout>>) -> Result<()> {
    for _ in 0..20 {
        let line = timeout(SOON, log.next_line()).await??.context("the log ended")?;
        ensure!(line == "tick", "{line}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_a_kubelet_is_replaced_under_load() -> Result<()> {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let plane = &shared_pair().await?.public;
    let node = format!("renewed-{}", std::process::id());
    let edge = Edge::start(&product, plane, &node, Behind::Processes).await?;
    let (kubectl, namespace) = (plane.kubectl(), plane.unique_namespace("renewed").await?);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "clock", "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none", "command":
                ["/bin/sh", "-c", "while true; do echo tick; sleep 0.02; done"]}],
        },
    });
    kubectl.apply(&pod).await?;
    let words = ["logs", "-n", &namespace, "clock"];
    eventually(SOON, "the pod to say something", || async {
        ensure!(kubectl.run(&words).await?.contains("tick"));
        Ok(())
    })
    .await?;
    let mut follow = Command::new(kubectl.program())
        .args(["kubectl".as_ref(), "--kubeconfig".as_ref(), kubectl.kubeconfig().as_os_str()])
        .args(["logs", "-f", "--tail=1", "-n", &namespace, "clock"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut log = BufReader::new(follow.stdout.take().context("no output")?).lines();
    goes_on(&mut log).await?;

    // Each of these shakes hands anew, and takes only certificates of the cluster's authority.
    let health = format!("{}/healthz", edge.kubelet());
    let files = &edge.kubelet_files;
    let authority = reqwest::Certificate::from_pem(&std::fs::read(&files.authority)?)?;
    let http = reqwest::Client::builder().tls_certs_only([authority]).pool_max_idle_per_host(0).build()?;
    let tally = Arc::new(Tally::default());
    let load = keep_asking(&tally, {
        let (http, health) = (http.clone(), health.clone());
        move || {
            let request = http.get(&health);
            async move { Ok(request.send().await?.error_for_status().map(drop)?) }
        }
    });
    tally.unnoticed("the start").await;

    let before = std::fs::read_to_string(&files.certificate)?;
    let folder = product.folder().path().join("renewed");
    std::fs::create_dir(&folder)?;
    let fresh = plane.authority().issue_files(
        &Subject::loopback(&format!("system:node:{node}")),
        &folder,
        "kubelet",
    )?;
    let after = std::fs::read_to_string(&fresh.certificate)?;
    shows(&health, &before).await?;
    std::fs::rename(&fresh.certificate, &files.certificate)?;
    std::fs::rename(&fresh.key, &files.key)?;
    eventually(SOON, "the new certificate", || shows(&health, &after)).await?;
    tally.unnoticed("another certificate of the kubelet").await;
    ensure!(kubectl.run(&words).await?.contains("tick"), "the cluster takes the new one");
    goes_on(&mut log).await.context("what was followed goes on")?;
    tally.over.store(true, SeqCst);
    load.await?;
    kubectl.run(&["delete", "pod", "clock", "-n", &namespace, "--wait=true", "--timeout=60s"]).await?;
    tally.verified("requests while the certificate of a kubelet is replaced, none lost");
    Ok(())
}
