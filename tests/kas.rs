//! The kas protocol in the whole product: our agent at our gateways, kubectl through them, and a GitLab
//! that says who may.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Kubectl, Redis, eventually, shared_pair};

const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

async fn add_site(product: &Product, gateway: &Gateway, name: &str) -> (i64, String) {
    let said = product.run(gateway, &["site", "add", name, "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    (site["id"].as_i64().unwrap(), site["token"]["token"].as_str().unwrap().to_owned())
}

async fn login(product: &Product, gateway: &Gateway, site: &str) -> Kubectl {
    let file = product.folder().path().join(format!("{site}-{}.kubeconfig", gateway.process.pid()));
    product.run(gateway, &["kube", "login", site, "--kubeconfig", file.to_str().unwrap()]).await.unwrap();
    shared_pair().await.unwrap().private.kubectl_with(file)
}

/// An agent that joins a gateway as it would join a kas.
async fn agentk(product: &Product, name: &str, token: &str, address: &str, extra: &[&str]) -> Agent {
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
    let gateway = product.gateway("kas", "{kind: memory}", &[]).await.unwrap();
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
    let entry = product.gateway("kas-entry", &store, &[]).await.unwrap();
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

/// GitLab, as far as a kas asks it: answers shaped as its own are.
#[derive(Clone, Default)]
struct Gitlab(Arc<Mutex<HashMap<&'static str, usize>>>);

const AGENT: i64 = 7;

impl Gitlab {
    async fn start() -> (Self, String) {
        let gitlab = Self::default();
        let router = Router::new()
            .route("/api/v4/internal/kubernetes/agent_info", get(agent_info))
            .route("/api/v4/job/allowed_agents", get(allowed_agents))
            .route("/api/v4/internal/kubernetes/authorize_proxy_user", post(authorize))
            .with_state(gitlab.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (gitlab, url)
    }

    fn count(&self, what: &'static str) -> usize {
        let mut counts = self.0.lock().unwrap();
        *counts.entry(what).and_modify(|count| *count += 1).or_insert(1)
    }

    fn revoke(&self) {
        self.0.lock().unwrap().insert("revoked", 1);
    }
}

fn of_kas(headers: &HeaderMap) -> bool {
    headers.get("gitlab-kas-api-request").is_some_and(|token| token.to_str().unwrap().split('.').count() == 3)
}

async fn agent_info(State(gitlab): State<Gitlab>, headers: HeaderMap) -> Response {
    gitlab.count("agent_info");
    let revoked = gitlab.0.lock().unwrap().contains_key("revoked");
    if !of_kas(&headers) || headers["authorization"] != "Bearer glagent-secret" || revoked {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({
        "project_id": 70, "agent_id": AGENT, "agent_name": "prod",
        "gitaly_info": {"address": "unix:/x", "token": "t", "features": {}},
        "gitaly_repository": {"storage_name": "default", "relative_path": "a.git", "gl_repository": "project-70", "gl_project_path": "g/p"},
        "default_branch": "main",
    }))
    .into_response()
}

async fn allowed_agents(State(gitlab): State<Gitlab>, headers: HeaderMap) -> Response {
    gitlab.count("allowed_agents");
    let access = match headers.get("job-token").map(|token| token.to_str().unwrap()) {
        Some("job-as-agent") => json!({"agent": {}}),
        Some("job-as-itself") => json!({"ci_job": {}}),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    Json(json!({
        "allowed_agents": [{"id": AGENT, "config_project": {"id": 70}, "configuration": {"default_namespace": "x", "access_as": access}}],
        "job": {"id": 1}, "pipeline": {"id": 2}, "project": {"id": 3, "groups": [{"id": 4}]},
        "user": {"id": 6, "username": "ada"}, "environment": {"slug": "prod", "tier": "production"},
    }))
    .into_response()
}

async fn authorize(State(gitlab): State<Gitlab>, headers: HeaderMap, Json(asked): Json<Value>) -> Response {
    gitlab.count("authorize");
    let expected = match asked["access_type"].as_str() {
        Some("personal_access_token") => asked["access_key"] == "glpat-ada",
        Some("session_cookie") => asked["access_key"] == "session+1" && asked["csrf_token"] == "csrf",
        _ => false,
    };
    if !of_kas(&headers) || !expected || asked["agent_id"] != AGENT {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({
        "agent": {"id": AGENT, "config_project": {"id": 70}}, "user": {"id": 6, "username": "ada"},
        "access_as": {"user": {"projects": [{"id": 70, "roles": ["developer"]}], "groups": []}},
    }))
    .into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn gitlab_says_who_the_agent_is_and_who_may_use_it() {
    let product = product();
    let (gitlab, url) = Gitlab::start().await;
    let secret = product.folder().path().join("gateways.secret").display().to_string();
    let settings = [
        format!("gateway.kas.gitlab.address={url}"),
        format!("gateway.kas.gitlab.secret_file={secret}"),
        "gateway.kas.gitlab.cache=1s".to_owned(),
        "gateway.kas.gitlab.external_url=https://gitlab.example.org".to_owned(),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let gateway = product.gateway("kas-gitlab", "{kind: memory}", &flags).await.unwrap();
    // Everybody whom GitLab names may read, as far as the site itself is concerned.
    let rules = "kubernetes: [{}]\nimpersonate: ['gitlab:*', '7', '70', '1', '2', '3', 'ada', 'prod', 'production', 'session_cookie', 'personal_access_token']\n";
    let policy = product.folder().write("gitlab-policy.yaml", rules).unwrap();
    let extra = ["--policy", policy.to_str().unwrap()];
    let _agent = agentk(&product, "gitlab-agentk", "glagent-secret", &gateway.agents(), &extra).await;

    let file = bearer(&product, &gateway, "job", &format!("ci:{AGENT}:job-as-agent"));
    exercise(&kubectl(file).await).await;
    // Under names of their own, RBAC of the site decides: nobody gave these any rights.
    for (name, token, user) in [
        ("itself", format!("ci:{AGENT}:job-as-itself"), "gitlab:ci_job:1"),
        ("ada", format!("pat:{AGENT}:glpat-ada"), "gitlab:user:ada"),
    ] {
        let kubectl = kubectl(bearer(&product, &gateway, name, &token)).await;
        let said = format!("{:#}", kubectl.run(&["get", "namespaces"]).await.unwrap_err());
        assert!(said.contains(user) && said.contains("forbidden"), "{said}");
        // Whoever is somebody by GitLab's word cannot ask to be yet another one.
        let said = format!("{:#}", kubectl.run(&["get", "namespaces", "--as", "x"]).await.unwrap_err());
        assert!(said.contains("TB-1301"), "{said}");
    }
    for wrong in [format!("ci:{AGENT}:other"), "ci:8:job-as-agent".into(), format!("pat:{AGENT}:x")] {
        let file = bearer(&product, &gateway, "wrong", &wrong);
        assert!(kubectl(file).await.run(&["get", "namespaces"]).await.is_err(), "{wrong}");
    }

    // A browser: cookie, proof against forgery, and the origin of GitLab's pages.
    let authority = std::fs::read(product.authority()).unwrap();
    let browser = reqwest::Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority).unwrap())
        .build()
        .unwrap();
    let page = |origin: &'static str, csrf: &'static str| {
        let request = browser.get(format!("{}/version?gitlab-csrf-token={csrf}", gateway.kubernetes()));
        let request = request.header("cookie", "_gitlab_kas=session%2B1").header("gitlab-agent-id", "7");
        request.header("origin", origin).send()
    };
    let answer = page("https://gitlab.example.org", "csrf").await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://gitlab.example.org");
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    assert_eq!(page("https://evil.example.org", "csrf").await.unwrap().status(), 403);
    let forged = page("https://gitlab.example.org", "guess").await.unwrap();
    assert_eq!(
        (forged.status().as_u16(), &forged.headers()["gitlab-unauthorized"]),
        (401, &"true".parse().unwrap())
    );

    gitlab.revoke();
    eventually(SOON, "the tunnels to end", || metric(&gateway, "tarbet_links 0")).await.unwrap();
}
