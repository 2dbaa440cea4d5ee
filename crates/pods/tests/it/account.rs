//! The account that endpoints of 2023 are given: asked for by them, unknown to newer ones.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::extract::{Request, State};
use axum::routing::any;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tarbet_cluster::{Connect, Source, connect};
use tarbet_pods::edge::{self, EdgeConfig, Environment, Part};
use tarbet_pods::node::{NodeConfig, Parts, start};
use tarbet_telemetry::{Health, Metrics, Problem, Supervisor};
use tarbet_testbed::{ControlPlane, eventually, shared_pair};

use super::originals::stand_in;
use super::pods::PATIENCE;

/// The accounts that an endpoint was sent, in the order they came.
type Sent = Arc<Mutex<Vec<Bytes>>>;

/// An endpoint that answers an account with this code.
fn endpoint(code: StatusCode) -> (Router, Sent) {
    let sent = Sent::default();
    let kept = Arc::clone(&sent);
    let take = move |body: Bytes| {
        kept.lock().unwrap().push(body);
        async move { (code, "said so") }
    };
    let router = Router::new().route("/status", any(|| async { "null" })).route("/setKubeCFG", any(take));
    (router, sent)
}

/// The same as one of today, which knows this ping.
fn newer(code: StatusCode) -> (Router, Sent) {
    let (router, sent) = endpoint(code);
    (router.route("/pinglink", any(|| async { "null" })), sent)
}

/// The same as one of 2023.
fn old(code: StatusCode) -> (Router, Sent) {
    let (router, sent) = endpoint(code);
    (router.route("/ping", any(|| async { StatusCode::OK })), sent)
}

/// The account `reader` in a namespace, which may read what is there.
async fn reader(plane: &ControlPlane, namespace: &str) -> Result<()> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "reader", "namespace": namespace},
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "reader", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    });
    for object in [account, binding] {
        // Tests beside this one make the same at the same moment.
        let made = || async { plane.kubectl().apply(&object).await };
        eventually(PATIENCE, "the account of a reader", made).await?;
    }
    Ok(())
}

/// A node before an endpoint, with the account `reader` of the namespace `default` unless it is changed.
async fn node(name: &str, url: String, change: impl FnOnce(&mut NodeConfig)) -> Result<Supervisor> {
    tarbet_identity::tls::install_default_provider();
    let plane = &shared_pair().await?.public;
    reader(plane, "default").await?;
    let mut config = NodeConfig {
        node_name: name.to_owned(),
        interlink_url: url,
        kubelet_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        disable_csr: true,
        service_account: "reader".into(),
        namespace: "default".into(),
        ..Default::default()
    };
    change(&mut config);
    let supervisor = Supervisor::default();
    let source = Source::file(plane.kubeconfig());
    let parts = Parts {
        client: connect(&source).await?,
        source,
        carrier: Connect::network(),
        metrics: Metrics::new("node", "test"),
        health: Health::default(),
        supervisor: supervisor.clone(),
    };
    start(config, parts).await?;
    Ok(supervisor)
}

async fn before(name: &str, router: Router, change: impl FnOnce(&mut NodeConfig)) -> Result<Supervisor> {
    node(name, format!("http://{}", stand_in(router).await), change).await
}

async fn run(supervisor: Supervisor) -> Result<(), Problem> {
    supervisor.run(Duration::from_secs(20), std::future::pending::<()>).await
}

/// The problem that a node ends with.
async fn end(supervisor: Supervisor) -> Result<Problem> {
    match tokio::time::timeout(PATIENCE, run(supervisor)).await? {
        Ok(()) => bail!("the node went on"),
        Err(problem) => Ok(problem),
    }
}

async fn ready(name: &str) -> Result<()> {
    let kubectl = shared_pair().await?.public.kubectl();
    eventually(PATIENCE, "the node to be ready", || async {
        let node = kubectl.json(&["get", "node", name]).await?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        ensure!(ready.is_some_and(|ready| ready["status"] == "True"), "{conditions:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_endpoint_that_refuses_the_account_ends_the_node_with_a_reason() -> Result<()> {
    let (router, sent) = newer(StatusCode::INTERNAL_SERVER_ERROR);
    let problem = end(before("refused-account", router, |_| {}).await?).await?;
    ensure!(problem.code.starts_with("TB-"), "{problem:?}");
    ensure!(format!("{problem:?}").contains("said so"), "{problem:?}");
    ensure!(!sent.lock().unwrap().is_empty());
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_knows_no_accounts_is_a_newer_one() -> Result<()> {
    goes_on("newer-endpoint", StatusCode::NOT_FOUND).await
}

/// As our own API server answers when it was given no tokens to know callers by.
#[tokio::test]
async fn a_newer_endpoint_that_takes_accounts_from_nobody_needs_none() -> Result<()> {
    goes_on("closed-endpoint", StatusCode::UNAUTHORIZED).await
}

async fn goes_on(name: &str, code: StatusCode) -> Result<()> {
    let (router, sent) = newer(code);
    let supervisor = before(name, router, |_| {}).await?;
    let going = tokio::spawn(run(supervisor.clone()));
    ready(name).await?;
    let offered = || async {
        ensure!(!sent.lock().unwrap().is_empty(), "no account was offered");
        Ok(())
    };
    eventually(PATIENCE, "an account to be offered", offered).await?;
    supervisor.stop();
    ensure!(going.await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn an_account_that_is_not_there_ends_a_node_whose_endpoint_cannot_do_without() -> Result<()> {
    let (router, sent) = old(StatusCode::OK);
    let nobody = |config: &mut NodeConfig| config.service_account = "nobody".into();
    let problem = end(before("no-account", router, nobody).await?).await?;
    ensure!(problem.code == "TB-0953" && problem.message.contains("default/nobody"), "{problem:?}");
    ensure!(sent.lock().unwrap().is_empty());

    let (router, sent) = newer(StatusCode::OK);
    let supervisor = before("no-account-needed", router, nobody).await?;
    let going = tokio::spawn(run(supervisor.clone()));
    ready("no-account-needed").await?;
    ensure!(sent.lock().unwrap().is_empty());
    supervisor.stop();
    ensure!(going.await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn a_ready_kubeconfig_is_sent_as_it_is_and_must_be_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("account.kubeconfig");
    let missing = |config: &mut NodeConfig| config.custom_kubeconf = Some(file.clone());
    let problem = end(before("no-file", old(StatusCode::OK).0, missing).await?).await?;
    ensure!(problem.message.contains("account.kubeconfig"), "{problem:?}");

    std::fs::write(&file, "apiVersion: v1 # by the administrator\n")?;
    let (router, sent) = old(StatusCode::OK);
    let supervisor = before("own-account", router, missing).await?;
    let going = tokio::spawn(run(supervisor.clone()));
    ready("own-account").await?;
    ensure!(sent.lock().unwrap()[0] == "apiVersion: v1 # by the administrator\n");
    supervisor.stop();
    ensure!(going.await?.is_ok());
    Ok(())
}

/// Parts of ours that run beside a test.
struct Edge {
    supervisor: Supervisor,
    folder: tempfile::TempDir,
    api: String,
}

impl Edge {
    /// A plugin for processes and an API server before it, which takes accounts from those who show `token`.
    async fn start(change: impl FnOnce(&mut EdgeConfig, &Path)) -> Result<Self, Problem> {
        tarbet_identity::tls::install_default_provider();
        let (supervisor, folder) = (Supervisor::default(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("token"), "my-bearer-token").unwrap();
        let mut config = EdgeConfig {
            interlink_port: "0".into(),
            sidecar_port: "0".into(),
            data_root_folder: folder.path().join("pods"),
            status_seconds: 1,
            shared_fs: true,
            ..Default::default()
        };
        let begin = async |part, config: EdgeConfig| {
            let (metrics, health) = (Metrics::new("part", "test"), Health::default());
            let environment: Environment = std::env::vars().collect();
            edge::start(part, config, &environment, &supervisor, &metrics, &health).await
        };
        let plugin = begin(Part::Process, config.clone()).await?;
        config.sidecar_url = format!("http://{plugin}");
        config.data_root_folder = folder.path().join("api");
        config.accepted_tokens_file = Some(folder.path().join("token"));
        change(&mut config, folder.path());
        let api = begin(Part::Interlink, config).await?;
        Ok(Self { supervisor, folder, api: format!("http://{api}") })
    }

    async fn call(&self, path: &str, body: impl Into<reqwest::Body>) -> Result<(StatusCode, String)> {
        let request = reqwest::Client::new().post(format!("{}{path}", self.api)).body(body);
        let answer = request.bearer_auth("my-bearer-token").send().await?;
        Ok((answer.status(), answer.text().await?))
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

/// Passes everything on but the ping of today, so that what is behind is taken for one of 2023.
async fn aged(State(api): State<String>, request: Request) -> Result<(StatusCode, Bytes), StatusCode> {
    let away = |_| StatusCode::BAD_GATEWAY;
    let (head, body) = request.into_parts();
    if head.uri.path() == "/pinglink" {
        return Err(StatusCode::NOT_FOUND);
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.map_err(|_| StatusCode::BAD_REQUEST)?;
    let mut on = reqwest::Client::new().request(head.method, format!("{api}{}", head.uri.path())).body(body);
    if let Some(token) = head.headers.get(http::header::AUTHORIZATION) {
        on = on.header(http::header::AUTHORIZATION, token);
    }
    let answer = on.send().await.map_err(away)?;
    Ok((answer.status(), answer.bytes().await.map_err(away)?))
}

/// A pod that ends well if its ConfigMap came with it.
fn checking(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reading", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "none", "volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}],
                "command": ["/bin/sh", "-c", "test \"$(cat /cfg/key1)\" = 'from the cluster'"]}],
            "volumes": [{"name": "cfg", "configMap": {"name": "myconfigmap"}}],
        },
    })
}

/// A namespace with what the pod reads.
async fn furnished(plane: &ControlPlane) -> Result<String> {
    let namespace = plane.unique_namespace("account").await?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "myconfigmap", "namespace": namespace},
        "data": {"key1": "from the cluster"},
    });
    plane.kubectl().apply(&map).await?;
    reader(plane, &namespace).await?;
    Ok(namespace)
}

/// Nothing but the name of the account is set.
#[tokio::test]
async fn the_account_that_a_node_makes_reads_what_a_pod_names() -> Result<()> {
    let plane = &shared_pair().await?.public;
    let namespace = furnished(plane).await?;
    let edge = Edge::start(|_, _| {}).await.map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
    let front = stand_in(Router::new().fallback(aged).with_state(edge.api.clone())).await;
    let (name, token) = (format!("aged-{}", std::process::id()), edge.folder.path().join("token"));
    let supervisor = node(&name, format!("http://{front}"), |config| {
        config.namespace.clone_from(&namespace);
        config.vk_token_file = Some(token);
    })
    .await?;
    let going = tokio::spawn(run(supervisor.clone()));
    ready(&name).await?;
    let stored = edge.folder.path().join("api/.kube/config");
    let who = plane.kubectl_with(stored).run(&["auth", "whoami"]).await?;
    ensure!(who.contains(&format!("system:serviceaccount:{namespace}:reader")), "{who}");

    let mut pod = checking(&namespace);
    pod["spec"]["nodeName"] = name.clone().into();
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    plane.kubectl().apply(&pod).await?;
    eventually(PATIENCE, "the pod to end well", || async {
        let pod = plane.kubectl().json(&["-n", &namespace, "get", "pod", "reading"]).await?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
        Ok(())
    })
    .await?;
    supervisor.stop();
    ensure!(going.await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn the_administrators_account_is_used_and_no_other_takes_its_place() -> Result<()> {
    let missing = Edge::start(|config, folder| config.custom_kubeconf = Some(folder.join("nowhere"))).await;
    let problem = missing.err().context("it started without its account")?;
    ensure!(problem.message.contains("/nowhere") && problem.code == "TB-0101", "{problem:?}");

    let plane = &shared_pair().await?.public;
    let namespace = furnished(plane).await?;
    let token = plane.service_account_token(&namespace, "reader").await?;
    let given = plane.kubeconfig_with_token(&token)?;
    let edge = Edge::start(|config, _| config.custom_kubeconf = Some(given)).await;
    let edge = edge.map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
    // Whatever a node sends is acknowledged, or it would end itself.
    let said =
        edge.call("/setKubeCFG", "clusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]").await?;
    ensure!(said == (StatusCode::OK, "OK".into()), "{said:?}");
    ensure!(!edge.folder.path().join("api/.kube").exists(), "it was stored");
    let mut pod = checking(&namespace);
    pod["metadata"]["uid"] = super::pods::uid().into();
    let (code, text) = edge.call("/create", json!([pod]).to_string()).await?;
    ensure!(code == StatusCode::OK, "{code} {text}");
    eventually(PATIENCE, "the pod to end well", || async {
        let (_, text) = edge.call("/status", json!([pod]).to_string()).await?;
        let state: Value = serde_json::from_str(&text)?;
        ensure!(state[0]["containers"][0]["state"]["terminated"]["exitCode"] == 0, "{text}");
        Ok(())
    })
    .await
}
