//! The account that endpoints of 2023 are given: asked for by them, unknown to newer ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use axum::Router;
use axum::routing::any;
use http::StatusCode;
use serde_json::json;
use tarbet_cluster::{Connect, Source, connect};
use tarbet_pods::node::{NodeConfig, Parts, start};
use tarbet_telemetry::{Health, Metrics, Problem, Supervisor};
use tarbet_testbed::{eventually, shared_pair};
use tokio::net::TcpListener;

use super::pods::PATIENCE;

/// A node before an endpoint that answers the account with this code; how often it was asked.
async fn node(name: &str, code: StatusCode) -> Result<(Supervisor, Arc<AtomicU32>)> {
    tarbet_identity::tls::install_default_provider();
    let plane = &shared_pair().await?.public;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": "default"},
    });
    plane.kubectl().apply(&account).await?;
    let asked = Arc::<AtomicU32>::default();
    let counted = Arc::clone(&asked);
    let router = Router::new()
        .route("/pinglink", any(|| async { "null" }))
        .route("/status", any(|| async { "null" }))
        .route(
            "/setKubeCFG",
            any(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                async move { (code, "said so") }
            }),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = NodeConfig {
        node_name: name.to_owned(),
        interlink_url: format!("http://{address}"),
        kubelet_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        disable_csr: true,
        service_account: "reader".into(),
        namespace: "default".into(),
        kubernetes_api_addr: "127.0.0.1".into(),
        kubernetes_api_port: "6443".into(),
        ..Default::default()
    };
    let supervisor = Supervisor::default();
    let parts = Parts {
        client: connect(&Source::file(plane.kubeconfig())).await?,
        carrier: Connect::network(),
        metrics: Metrics::new("node", "test"),
        health: Health::default(),
        supervisor: supervisor.clone(),
    };
    start(config, parts).await?;
    Ok((supervisor, asked))
}

async fn run(supervisor: Supervisor) -> Result<(), Problem> {
    supervisor.run(Duration::from_secs(20), std::future::pending::<()>).await
}

#[tokio::test]
async fn an_endpoint_that_refuses_the_account_ends_the_node_with_a_reason() -> Result<()> {
    let (supervisor, asked) = node("refused-account", StatusCode::INTERNAL_SERVER_ERROR).await?;
    let ended = tokio::time::timeout(PATIENCE, run(supervisor)).await?;
    let Err(problem) = ended else { bail!("the node went on") };
    ensure!(problem.code.starts_with("TB-"), "{problem:?}");
    ensure!(format!("{problem:?}").contains("said so"), "{problem:?}");
    ensure!(asked.load(Ordering::SeqCst) >= 1);
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
    let (supervisor, asked) = node(name, code).await?;
    let going = tokio::spawn(run(supervisor.clone()));
    let kubectl = shared_pair().await?.public.kubectl();
    eventually(PATIENCE, "the node to be ready", || async {
        let node = kubectl.json(&["get", "node", name]).await?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        ensure!(ready.is_some_and(|ready| ready["status"] == "True"), "{conditions:?}");
        Ok(())
    })
    .await?;
    ensure!(asked.load(Ordering::SeqCst) == 1, "asked once, and never again while it answers");
    supervisor.stop();
    ensure!(going.await?.is_ok());
    Ok(())
}
