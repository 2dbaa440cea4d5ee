//! What kubectl does with running pods at a real kubelet: over native links and over tunnels of the kas
//! protocol, through one gateway and through two.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Behind, Dockerd, Edge, Kubectl, Lease, Redis, eventually, shared_pair};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use crate::kas::{add_site, agentk, login};

const PATIENCE: Duration = Duration::from_mins(2);
const IMAGE: &str = "shell:kubelet";

/// A pod at the virtual node: says one line, another one when told to, and answers on a port.
async fn pod(kubectl: &Kubectl, namespace: &str, node: &str) -> Result<()> {
    let talker = "echo one; until [ -e /tmp/go ]; do sleep 0.1; done; echo two; \
                  until [ -e /tmp/end ]; do sleep 0.1; done; echo three";
    let server = "while true; do nc -l -p 8080 -e sh -c 'read line; echo heard $line'; done";
    let container = |name: &str, line: &str, stdin: bool| {
        json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never", "stdin": stdin,
               "command": ["/bin/sh", "-c", line]})
    };
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far", "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [
                container("talker", talker, false),
                container("teller", talker, false),
                container("server", server, false),
                container("listener", "read line; echo heard $line; read line; exit 5", true),
            ],
        },
    });
    kubectl.apply(&object).await?;
    eventually(PATIENCE, "the pod to run", || async {
        let pod = kubectl.json(&["get", "pod", "far", "-n", namespace]).await?;
        ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    })
    .await
}

/// A log that is followed, commands with their exit codes and input, and the end of the log.
async fn logs_and_commands(kubectl: &Kubectl, namespace: &str, other: &Kubectl) -> Result<()> {
    let exec = ["exec", "-n", namespace, "far", "-c", "talker", "--"];
    let follow = async { kubectl.run(&["logs", "-f", "-n", namespace, "far", "-c", "talker"]).await };
    let act = async {
        let words = [&exec[..], &["sh", "-c", "echo out; echo err >&2; touch /tmp/go"]].concat();
        let said = kubectl.run(&words).await?;
        ensure!(said == "out", "{said}");
        let failed = kubectl.run(&[&exec[..], &["sh", "-c", "echo oops >&2; exit 42"]].concat()).await;
        let failed = failed.unwrap_or_else(|error| error.to_string());
        ensure!(failed.contains("exit code 42") && failed.contains("oops"), "{failed}");
        let words = ["exec", "-i", "-n", namespace, "far", "-c", "talker", "--", "tr", "a-z", "A-Z"];
        let text = "x".repeat(200_000);
        let heard = kubectl.run_with_input(&words, &text).await?;
        ensure!(heard == text.to_uppercase(), "{} of {} bytes came back", heard.len(), text.len());
        // The last word comes through the gateway that does not hold the agent.
        other.run(&[&exec[..], &["touch", "/tmp/end"]].concat()).await
    };
    let (log, acted) = tokio::join!(follow, act);
    acted?;
    let log = log?;
    ensure!(log == "one\ntwo\nthree", "{log}");
    Ok(())
}

async fn attach(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    let words = ["attach", "-i", "-n", namespace, "far", "-c", "listener"];
    let heard = kubectl.run_with_input(&words, "hello\nend\n").await;
    // kubectl tells the end of the container, or leaves with its input.
    let heard = heard.unwrap_or_else(|error| error.to_string());
    eventually(PATIENCE, "the container to end", || async {
        let log = kubectl.run(&["logs", "-n", namespace, "far", "-c", "listener"]).await?;
        ensure!(log == "heard hello", "{log}; attached: {heard}");
        Ok(())
    })
    .await
}

async fn copy(kubectl: &Kubectl, namespace: &str, folder: &std::path::Path) -> Result<()> {
    let (local, back) = (folder.join("file"), folder.join("back"));
    let content = "a line of a file that is larger than any frame\n".repeat(10_000);
    std::fs::write(&local, &content)?;
    let far = format!("{namespace}/far:/tmp/file");
    kubectl.run(&["cp", local.to_str().unwrap(), &far, "-c", "server"]).await?;
    kubectl.run(&["cp", &far, back.to_str().unwrap(), "-c", "server"]).await?;
    ensure!(std::fs::read_to_string(&back)? == content, "the file came back otherwise");
    Ok(())
}

async fn forward(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    let lease = Lease::block(1)?;
    let port = lease.port(0);
    let ports = format!("{port}:8080");
    let words = ["port-forward", "-n", namespace, "far", &ports];
    let talk = eventually(PATIENCE, "an answer through the forward", || async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"hello\n").await?;
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await?;
        ensure!(heard == "heard hello\n", "heard {heard:?}");
        Ok(())
    });
    tokio::select! {
        ended = kubectl.run(&words) => bail!("kubectl port-forward ended: {ended:?}"),
        talked = talk => talked,
    }
}

/// A log is followed while the agent that carries it is replaced by another one.
async fn replaced(
    kubectl: &Kubectl,
    namespace: &str,
    mut old: Agent,
    new: impl Future<Output = Agent>,
) -> Result<Agent> {
    let mut follow = Command::new(kubectl.program());
    follow.args(["kubectl", "--kubeconfig"]).arg(kubectl.kubeconfig());
    follow.args(["logs", "-f", "-n", namespace, "far", "-c", "teller"]);
    let mut follow = follow.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(follow.stdout.take().context("no output")?).lines();
    let mut next = async || timeout(PATIENCE, lines.next_line()).await?.map_err(anyhow::Error::from);
    ensure!(next().await?.as_deref() == Some("one"));
    let new = new.await;
    let leaving = tokio::spawn(async move { old.process.stop().await });
    let exec = ["exec", "-n", namespace, "far", "-c", "teller", "--", "touch"];
    kubectl.run(&[&exec[..], &["/tmp/go"]].concat()).await?;
    ensure!(next().await?.as_deref() == Some("two"), "the log goes on");
    kubectl.run(&[&exec[..], &["/tmp/end"]].concat()).await?;
    ensure!(next().await?.as_deref() == Some("three"));
    ensure!(next().await?.is_none() && follow.wait().await?.success(), "to its own end");
    leaving.await??;
    Ok(new)
}

/// A deployment that becomes available, as kubectl follows it.
async fn rollout(kubectl: &Kubectl, namespace: &str, node: &str) -> Result<()> {
    let labels = json!({"app": "steady"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "steady", "namespace": namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
                "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never",
                                "command": ["/bin/sh", "-c", "while true; do sleep 1; done"]}],
            },
        }},
    });
    kubectl.apply(&deployment).await?;
    let status = ["rollout", "status", "deployment/steady", "-n", namespace, "--timeout=120s"];
    let said = kubectl.run(&status).await?;
    ensure!(said.contains("successfully rolled out"), "{said}");
    kubectl.run(&["delete", "deployment", "steady", "-n", namespace, "--wait=false"]).await.map(drop)
}

/// Everything through one gateway (`near`, which holds the agent) and through two (`far`, which does not).
async fn everything(
    product: &Product,
    node: &str,
    [near, far]: [&Kubectl; 2],
    old: Agent,
    new: impl Future<Output = Agent>,
) -> Result<()> {
    let namespace = shared_pair().await?.private.unique_namespace("kubelet").await?;
    pod(near, &namespace, node).await?;
    logs_and_commands(near, &namespace, far).await?;
    let _agent = replaced(near, &namespace, old, new).await?;
    attach(far, &namespace).await?;
    copy(near, &namespace, product.folder().path()).await?;
    forward(near, &namespace).await?;
    forward(far, &namespace).await?;
    rollout(far, &namespace, node).await?;
    far.run(&["delete", "pod", "far", "-n", &namespace, "--wait=true", "--timeout=60s"]).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_exec_attach_cp_port_forward_and_rollouts_work_over_links_and_over_tunnels() -> Result<()> {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let (redis, docker) = (Redis::start().await?, Dockerd::start().await?);
    docker.shell_image(IMAGE).await?;
    let plane = &shared_pair().await?.private;
    let node = format!("kubelet-{}", std::process::id());
    let _edge = Edge::start(&product, plane, &node, Behind::Docker(&docker)).await?;
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let entry = product.gateway("entry", &store, &[]).await?;
    let holder = product.gateway("holder", &store, &[]).await?;
    let ways = async |site: &str| (login(&product, &holder, site).await, login(&product, &entry, site).await);

    let (_, token) = add_site(&product, &entry, "linked").await;
    let kubeconfig = plane.kubeconfig().display().to_string();
    // Time to end what it carries, on a busy machine too.
    let flags = ["--kubeconfig", &kubeconfig, "--set", "shutdown.deadline=1m"];
    let agent = product.agent("linked-1", &token, &[&holder], &flags).await?;
    let another = async { product.agent("linked-2", &token, &[&holder], &flags).await.unwrap() };
    let (near, far) = ways("linked").await;
    Box::pin(everything(&product, &node, [&near, &far], agent, another))
        .await
        .context("over a native link")?;

    // Over a WebSocket, as most agents of the kas protocol come.
    let (_, token) = add_site(&product, &entry, "tunnelled").await;
    let address = holder.agents_websocket();
    let agent = agentk(&product, "tunnelled-1", &token, &address, &[]).await;
    let another = agentk(&product, "tunnelled-2", &token, &address, &[]);
    let (near, far) = ways("tunnelled").await;
    Box::pin(everything(&product, &node, [&near, &far], agent, another)).await.context("over tunnels of kas")
}
