//! The kas protocol in the whole product: our agent at our gateways, and kubectl through them.

mod beside;
mod calls;
mod connected;
mod gitlab;
mod rotation;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Kubectl, Lease, Process, Program, Redis, eventually, shared_pair};

const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

pub(crate) async fn add_site(product: &Product, gateway: &Gateway, name: &str) -> (i64, String) {
    let said = product.run(gateway, &["site", "add", name, "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    (site["id"].as_i64().unwrap(), site["token"]["token"].as_str().unwrap().to_owned())
}

pub(crate) async fn login(product: &Product, gateway: &Gateway, site: &str) -> Kubectl {
    let file = product.folder().path().join(format!("{site}-{}.kubeconfig", gateway.process.pid()));
    product.run(gateway, &["kube", "login", site, "--kubeconfig", file.to_str().unwrap()]).await.unwrap();
    shared_pair().await.unwrap().private.kubectl_with(file)
}

/// An agent that joins a gateway as it would join a kas.
pub(crate) async fn agentk(
    product: &Product,
    name: &str,
    token: &str,
    address: &str,
    extra: &[&str],
) -> Agent {
    let kubeconfig = shared_pair().await.unwrap().private.kubeconfig().display().to_string();
    let fixed = ["--kas-address", address, "--kubeconfig", &kubeconfig];
    product.agent(name, token, &[], &[&fixed, extra].concat()).await.unwrap()
}

async fn metric(gateway: &Gateway, line: &str) -> Result<(), String> {
    let page =
        reqwest::get(format!("{}/metrics", gateway.observability())).await.unwrap().text().await.unwrap();
    let name = line.split(' ').next().unwrap();
    match page.lines().find(|found| found.split(' ').next() == Some(name)) {
        Some(found) if found == line => Ok(()),
        found => Err(format!("{found:?}, not {line}")),
    }
}

/// A kubeconfig with a bare bearer token, as CI jobs have it.
fn bearer(product: &Product, gateway: &Gateway, name: &str, token: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": gateway.kubernetes(), "certificate-authority": product.authority()}}],
        "users": [{"name": "c", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    product.folder().write(&format!("{name}.kubeconfig"), &config.to_string()).unwrap()
}

async fn kubectl(file: PathBuf) -> Kubectl {
    shared_pair().await.unwrap().private.kubectl_with(file)
}

/// Reads, writes, and watches: a watch is a response without an end, and must arrive as it happens.
async fn exercise(kubectl: &Kubectl) {
    let namespace = shared_pair().await.unwrap().private.unique_namespace("kas").await.unwrap();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "greeting", "namespace": namespace}, "data": {"words": "carried across"},
    });
    kubectl.apply(&map).await.unwrap();
    let got = kubectl.json(&["get", "configmap", "greeting", "-n", &namespace]).await.unwrap();
    assert_eq!(got["data"]["words"], "carried across");
    let watch = tokio::spawn({
        let (kubectl, namespace) = (kubectl.clone(), namespace.clone());
        async move {
            let until = "--for=jsonpath={.data.words}=changed";
            let named = ["wait", "configmap/greeting", "-n", &namespace, until, "--timeout=60s"];
            kubectl.run(&named).await
        }
    });
    let patch = ["-p", r#"{"data":{"words":"changed"}}"#];
    kubectl.run(&[&["patch", "configmap", "greeting", "-n", &namespace], &patch[..]].concat()).await.unwrap();
    watch.await.unwrap().unwrap();
    kubectl.run(&["delete", "configmap", "greeting", "-n", &namespace]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_kas_protocol_is_a_site_like_any_other() {
    let product = product();
    // A request waits below for an agent that is started meanwhile.
    let patient = ["--set", "gateway.max_wait=5m"];
    let gateway = product.gateway("kas", "{kind: memory}", &patient).await.unwrap();
    let (number, token) = add_site(&product, &gateway, "lab").await;
    let mut agent = agentk(&product, "lab-agentk", &token, &gateway.agents(), &[]).await;
    exercise(&login(&product, &gateway, "lab").await).await;

    // By its number, as clients of kas name it, with a token of our own.
    let admin = std::fs::read_to_string(product.admin_token()).unwrap();
    for kind in ["pat", "ci"] {
        let file = bearer(&product, &gateway, kind, &format!("{kind}:{number}:{}", admin.trim()));
        assert!(kubectl(file).await.run(&["get", "namespaces"]).await.unwrap().contains("kube-system"));
    }
    for wrong in [format!("pat:{}:{}", number + 1, admin.trim()), format!("pat:{number}:tbu_wrong")] {
        let file = bearer(&product, &gateway, "wrong", &wrong);
        assert!(kubectl(file).await.run(&["get", "namespaces"]).await.is_err(), "{wrong}");
    }
    // Replaced while nobody waits: the next request waits for the new one.
    agent.process.stop().await.unwrap();
    eventually(SOON, "the way to be taken back", || metric(&gateway, "tarbet_links 0")).await.unwrap();
    let lab = login(&product, &gateway, "lab").await;
    let asked = tokio::spawn(async move { lab.run(&["get", "--raw", "/version"]).await });
    let waits = || metric(&gateway, "tarbet_requests_waiting 1");
    eventually(SOON, "the request to wait", waits).await.unwrap();
    let _agent = agentk(&product, "lab-agentk-2", &token, &gateway.agents(), &[]).await;
    assert!(asked.await.unwrap().unwrap().contains("gitVersion"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_the_site_holds_for_the_kas_protocol_over_a_websocket_too() {
    let product = product();
    let gateway = product.gateway("kas-ws", "{kind: memory}", &[]).await.unwrap();
    let (_, token) = add_site(&product, &gateway, "walled").await;
    let rules = "kubernetes:\n  - {verbs: [get, list], namespaces: [default]}\n  - {paths: ['/api*', /version, '/openapi*']}\n";
    let policy = product.folder().write("kas-policy.yaml", rules).unwrap();
    let extra = ["--policy", policy.to_str().unwrap()];
    let _agent = agentk(&product, "ws-agentk", &token, &gateway.agents_websocket(), &extra).await;
    let kubectl = login(&product, &gateway, "walled").await;
    kubectl.run(&["get", "pods", "-n", "default"]).await.unwrap();
    for refused in [
        &["get", "pods", "-n", "kube-system"][..],
        &["create", "configmap", "x", "-n", "default"],
        &["get", "pods", "-n", "default", "--as", "system:admin"],
        &["get", "pods", "-n", "default", "--as", "somebody"],
    ] {
        let said = format!("{:#}", kubectl.run(refused).await.unwrap_err());
        assert!(said.contains("TB-1201"), "{refused:?}: {said}");
    }
    // It carries the Kubernetes API and nothing else.
    let said = product.run(&gateway, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(listed[0]["links"][0]["services"], json!(["kubernetes"]), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn through_two_gateways_and_across_the_end_of_one() {
    let (product, redis) = (product(), Redis::start().await.unwrap());
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    // It waits for another gateway to start again, and for the agent to find it.
    let patient = ["--set", "gateway.max_wait=5m"];
    let entry = product.gateway("kas-entry", &store, &patient).await.unwrap();
    let mut holder = product.gateway("kas-holder", &store, &[]).await.unwrap();
    let (_, token) = add_site(&product, &entry, "far").await;
    let _agent = agentk(&product, "far-agentk", &token, &holder.agents(), &[]).await;
    let kubectl = login(&product, &entry, "far").await;
    exercise(&kubectl).await;

    // A gateway that is told to stop lets its tunnels end well, and takes its entries along.
    holder.process.stop().await.unwrap();
    let listed = product.run(&entry, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["connected"], false, "{listed}");
    // The agent comes back to it by itself, and requests at the other gateway go through again.
    let asked = tokio::spawn(async move { kubectl.run(&["get", "namespaces"]).await });
    holder.process.restart().await.unwrap();
    holder.ready().await.unwrap();
    assert!(asked.await.unwrap().unwrap().contains("kube-system"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_the_kas_protocol_count_against_the_links_of_a_site() {
    let product = product();
    let set = ["--set", "gateway.quotas.site.links=2"];
    let gateway = product.gateway("kas-counting", "{kind: memory}", &set).await.unwrap();
    let (_, token) = add_site(&product, &gateway, "crowded").await;
    let mut first = agentk(&product, "crowded-1", &token, &gateway.agents(), &[]).await;
    let _second = agentk(&product, "crowded-2", &token, &gateway.agents(), &[]).await;
    // Both are one way to the site, and two links of it: there is no room for a third, of either protocol.
    metric(&gateway, "tarbet_links 1").await.unwrap();
    let kubeconfig = shared_pair().await.unwrap().private.kubeconfig().display().to_string();
    let file = product.folder().write("crowded-3.token", &token).unwrap();
    let (authority, kas, native) = (product.authority(), gateway.agents(), gateway.agents());
    for (name, address) in [("--kas-address", &kas), ("--gateway", &native)] {
        let port = Lease::block(1).unwrap();
        let observe = format!("127.0.0.1:{}", port.port(0));
        let args = ["agent", name, address, "--observability-listen", &observe, "--kubeconfig", &kubeconfig];
        let program = Program::new(env!("CARGO_BIN_EXE_tarbet")).args(args);
        let program = program.arg("--token-file").arg(&file).arg("--ca-file").arg(&authority);
        let _third = Process::start(product.folder(), "crowded-3", program).unwrap();
        let told = || async {
            let page = reqwest::get(format!("http://{observe}/readyz")).await?.text().await?;
            anyhow::ensure!(page.contains("quotas.site.links is 2"), "{page}");
            Ok(())
        };
        eventually(SOON, "the refusal", told).await.unwrap();
    }
    let refused = "tarbet_quota_refusals_total{limit=\"site.links\"}";
    let page = reqwest::get(format!("{}/metrics", gateway.observability())).await.unwrap();
    assert!(page.text().await.unwrap().contains(refused));
    // One that leaves makes room.
    first.process.stop().await.unwrap();
    let _third = agentk(&product, "crowded-4", &token, &gateway.agents(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_the_tunnels() {
    let product = product();
    let gateway = product.gateway("kas-revoking", "{kind: memory}", &[]).await.unwrap();
    let (_, token) = add_site(&product, &gateway, "leaky").await;
    let _agent = agentk(&product, "leaky-agentk", &token, &gateway.agents(), &[]).await;
    eventually(SOON, "the way to be there", || metric(&gateway, "tarbet_links 1")).await.unwrap();
    let tokens = product.run(&gateway, &["site", "tokens", "leaky", "-o", "json"]).await.unwrap();
    let tokens: Value = serde_json::from_str(&tokens).unwrap();
    product.run(&gateway, &["site", "revoke", "leaky", tokens[0]["id"].as_str().unwrap()]).await.unwrap();
    eventually(SOON, "the tunnels to end", || metric(&gateway, "tarbet_links 0")).await.unwrap();
}
