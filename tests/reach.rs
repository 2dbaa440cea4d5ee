//! kubectl at a site that nothing can reach: through one gateway, through two, through failures.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Kubectl, Redis, eventually, shared_pair};

const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

/// Adds a site and gives its agent's token.
async fn add_site(product: &Product, gateway: &Gateway, name: &str) -> String {
    let said = product.run(gateway, &["site", "add", name, "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    site["token"]["token"].as_str().unwrap().to_owned()
}

/// kubectl as `tarbet kube login` sets it up.
async fn login(product: &Product, gateway: &Gateway, site: &str) -> Kubectl {
    let file = product.folder().path().join(format!("{site}-{}.kubeconfig", gateway.process.pid()));
    product.run(gateway, &["kube", "login", site, "--kubeconfig", file.to_str().unwrap()]).await.unwrap();
    shared_pair().await.unwrap().private.kubectl_with(file)
}

async fn kubeconfig() -> String {
    shared_pair().await.unwrap().private.kubeconfig().display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_through_one_gateway() {
    let product = product();
    let gateway = product.gateway("alone", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "lab").await;
    let kubeconfig = kubeconfig().await;
    let _agent =
        product.agent("lab-agent", &token, &[&gateway], &["--kubeconfig", &kubeconfig]).await.unwrap();
    let kubectl = login(&product, &gateway, "lab").await;

    let namespace = shared_pair().await.unwrap().private.unique_namespace("reach").await.unwrap();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "greeting", "namespace": namespace}, "data": {"words": "carried across"},
    });
    kubectl.apply(&map).await.unwrap();
    let got = kubectl.json(&["get", "configmap", "greeting", "-n", &namespace]).await.unwrap();
    assert_eq!(got["data"]["words"], "carried across");

    // A watch is a response without an end: it must arrive as it happens.
    let watch = tokio::spawn({
        let (kubectl, namespace) = (kubectl.clone(), namespace.clone());
        async move {
            kubectl
                .run(&[
                    "wait",
                    "configmap/greeting",
                    "-n",
                    &namespace,
                    "--for=jsonpath={.data.words}=changed",
                    "--timeout=60s",
                ])
                .await
        }
    });
    kubectl
        .run(&["patch", "configmap", "greeting", "-n", &namespace, "-p", r#"{"data":{"words":"changed"}}"#])
        .await
        .unwrap();
    watch.await.unwrap().unwrap();

    kubectl.run(&["delete", "configmap", "greeting", "-n", &namespace]).await.unwrap();
    assert!(kubectl.run(&["get", "configmap", "greeting", "-n", &namespace]).await.is_err());

    let listed = product.run(&gateway, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["connected"], true, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_through_a_websocket_serves_the_same() {
    let product = product();
    let gateway = product.gateway("ws", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "webbed").await;
    let (kubeconfig, url) = (kubeconfig().await, gateway.agents_websocket());
    let extra = ["--kubeconfig", &kubeconfig, "--gateway", &url];
    let _agent = product.agent("ws-agent", &token, &[], &extra).await.unwrap();
    let kubectl = login(&product, &gateway, "webbed").await;
    assert!(kubectl.run(&["get", "namespaces"]).await.unwrap().contains("kube-system"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_that_does_not_hold_the_agent_finds_it_and_survives_its_loss() {
    let (product, redis) = (product(), Redis::start().await.unwrap());
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let entry = product.gateway("entry", &store, &[]).await.unwrap();
    let mut holder = product.gateway("holder", &store, &[]).await.unwrap();
    let token = add_site(&product, &entry, "far").await;
    let kubeconfig = kubeconfig().await;
    // First to the holder alone: the entry gateway must find it there.
    let mut agent =
        product.agent("far-agent", &token, &[&holder], &["--kubeconfig", &kubeconfig]).await.unwrap();
    let kubectl = login(&product, &entry, "far").await;
    assert!(kubectl.run(&["get", "namespaces"]).await.unwrap().contains("kube-system"));
    agent.process.stop().await.unwrap();

    // Then to both. One of them dies without a word; the request that follows must get through.
    let _agent = product
        .agent("far-agent-2", &token, &[&entry, &holder], &["--kubeconfig", &kubeconfig])
        .await
        .unwrap();
    assert!(kubectl.run(&["get", "namespaces"]).await.is_ok());
    holder.process.kill9().unwrap();
    for _ in 0..5 {
        assert!(kubectl.run(&["get", "namespaces"]).await.unwrap().contains("kube-system"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_site_that_is_not_there_waits_for_it() {
    let product = product();
    let patient = ["--set", "gateway.max_wait=5m"];
    let gateway = product.gateway("patient", "{kind: memory}", &patient).await.unwrap();
    let token = add_site(&product, &gateway, "late").await;
    let kubectl = login(&product, &gateway, "late").await;
    let asked = tokio::spawn(async move { kubectl.run(&["get", "--raw", "/version"]).await });
    eventually(SOON, "the request to wait", || async {
        let page = metrics(&gateway).await;
        let waiting =
            page.lines().find_map(|line| line.strip_prefix("tarbet_requests_waiting ")).map(str::to_owned);
        if waiting.as_deref() == Some("1") { Ok(()) } else { Err(format!("{waiting:?} requests wait")) }
    })
    .await
    .unwrap();
    let kubeconfig = kubeconfig().await;
    let _agent =
        product.agent("late-agent", &token, &[&gateway], &["--kubeconfig", &kubeconfig]).await.unwrap();
    assert!(asked.await.unwrap().unwrap().contains("v1.33"));
}

async fn metrics(gateway: &Gateway) -> String {
    reqwest::get(format!("{}/metrics", gateway.observability())).await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_hop_and_the_code() {
    let product = product();
    let gateway =
        product.gateway("strict", "{kind: memory}", &["--set", "gateway.max_wait=1s"]).await.unwrap();
    let token = add_site(&product, &gateway, "walled").await;
    let kubectl = login(&product, &gateway, "walled").await;
    let said = |result: anyhow::Result<String>| format!("{:#}", result.unwrap_err());

    // Nobody is there.
    let absent = said(kubectl.run(&["get", "pods"]).await);
    assert!(absent.contains("TB-1102"), "{absent}");

    // A site with a policy of its own.
    let policy = product
        .folder()
        .write("policy.yaml", "kubernetes:\n  - {verbs: [get, list], namespaces: [default]}\n  - {paths: ['/api*', /version, '/openapi*']}\n")
        .unwrap();
    let kubeconfig = kubeconfig().await;
    let extra = ["--kubeconfig", &kubeconfig, "--policy", policy.to_str().unwrap()];
    let _agent = product.agent("walled-agent", &token, &[&gateway], &extra).await.unwrap();
    kubectl.run(&["get", "pods", "-n", "default"]).await.unwrap();
    assert!(said(kubectl.run(&["get", "pods", "-n", "kube-system"]).await).contains("TB-1201"));
    assert!(said(kubectl.run(&["create", "configmap", "x", "-n", "default"]).await).contains("TB-1201"));
    assert!(
        said(kubectl.run(&["get", "pods", "-n", "default", "--as", "system:admin"]).await)
            .contains("TB-1201")
    );

    // Somebody without a role on it: absent and forbidden look alike.
    let stranger = product.run(&gateway, &["user", "add", "stranger"]).await.unwrap();
    let stranger: PathBuf = product.folder().write("stranger.token", &stranger).unwrap();
    let file = product.folder().path().join("stranger.kubeconfig");
    for site in ["walled", "nowhere"] {
        let login = ["kube", "login", site, "--kubeconfig", file.to_str().unwrap()];
        let refused = product.run_as(&gateway, &stranger, &login).await;
        assert!(said(refused).contains("TB-1101"), "{site}");
        assert!(!file.exists(), "a context was written that cannot work");
        // Nor does one that somebody wrote by hand.
        let context = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": site,
            "clusters": [{"name": site, "cluster": {
                "server": format!("{}/sites/{site}", gateway.kubernetes()),
                "certificate-authority": product.authority(),
            }}],
            "users": [{"name": "stranger", "user": {
                "token": format!("site:{site}:{}", std::fs::read_to_string(&stranger).unwrap().trim()),
            }}],
            "contexts": [{"name": site, "context": {"cluster": site, "user": "stranger"}}],
        });
        let by_hand =
            product.folder().write(&format!("{site}-by-hand.kubeconfig"), &context.to_string()).unwrap();
        let theirs = shared_pair().await.unwrap().private.kubectl_with(by_hand);
        assert!(said(theirs.run(&["get", "pods"]).await).contains("TB-1101"), "{site}");
    }
    // A token of another listener, and none at all.
    let agents_token = product.folder().write("agents.token", &token).unwrap();
    assert!(said(product.run_as(&gateway, &agents_token, &["site", "list"]).await).contains("TB-1303"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_promised_that_cannot_work() {
    let product = product();
    let gateway = product.gateway("promising", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "bare").await;
    let file = product.folder().write("mine.kubeconfig", MINE).unwrap();
    let login = |site: &'static str| ["kube", "login", site, "--kubeconfig", file.to_str().unwrap()];

    let said = |result: anyhow::Result<String>| format!("{:#}", result.unwrap_err());
    // Without an agent there is no key: nothing is forwarded that gateways could read, unless somebody says so.
    let forward = said(product.run(&gateway, &["forward", "bare", "127.0.0.1:1"]).await);
    assert!(forward.contains("has shown no key") && forward.contains("--plain"), "{forward}");
    let proxy = ["kube", "proxy", "bare", "--kubeconfig", file.to_str().unwrap()];
    assert!(said(product.run(&gateway, &proxy).await).contains("has shown no key"));
    for command in [&["forward", "nosuch", "127.0.0.1:1"][..], &["pods", "list", "--site", "nosuch"]] {
        assert!(said(product.run(&gateway, command).await).contains("TB-1101"), "{command:?}");
    }
    assert!(said(product.run(&gateway, &login("nosuch")).await).contains("TB-1101"));

    // An agent that leads to no cluster.
    let _agent = product.agent("bare-agent", &token, &[&gateway], &[]).await.unwrap();
    let refused = said(product.run(&gateway, &login("bare")).await);
    assert!(refused.contains("TB-1203") && refused.contains("--kubeconfig"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), MINE, "a refusal has changed the file");

    // A context of somebody else.
    add_site(&product, &gateway, "lab").await;
    let refused = said(product.run(&gateway, &login("lab")).await);
    assert!(refused.contains("leads elsewhere") && refused.contains("--force"), "{refused}");
    let plan: Vec<&str> = login("lab").into_iter().chain(["--plan"]).collect();
    let planned = product.run(&gateway, &plan).await.unwrap();
    assert!(planned.contains("replaces one that leads to the cluster `mine`"), "{planned}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), MINE);
    let beside: Vec<&str> = login("lab").into_iter().chain(["--context", "through", "-o", "json"]).collect();
    let told: Value = serde_json::from_str(&product.run(&gateway, &beside).await.unwrap()).unwrap();
    assert_eq!(told["context"], "through");
    let both = std::fs::read_to_string(&file).unwrap();
    assert!(both.contains("https://mine:6443") && both.contains("tarbet-lab"), "{both}");
    let forced: Vec<&str> = login("lab").into_iter().chain(["--force"]).collect();
    product.run(&gateway, &forced).await.unwrap();
}

/// A kubeconfig with a context that is called like a site.
const MINE: &str = "{apiVersion: v1, kind: Config, current-context: lab, \
    clusters: [{name: mine, cluster: {server: 'https://mine:6443'}}], users: [{name: me, user: {}}], \
    contexts: [{name: lab, context: {cluster: mine, user: me}}]}";

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_the_link_and_a_new_one_brings_it_back() {
    let product = product();
    let gateway = product.gateway("revoking", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "leaky").await;
    let _agent = product.agent("leaky-agent", &token, &[&gateway], &[]).await.unwrap();
    let tokens: Value = serde_json::from_str(
        &product.run(&gateway, &["site", "tokens", "leaky", "-o", "json"]).await.unwrap(),
    )
    .unwrap();
    let id = tokens[0]["id"].as_str().unwrap();
    product.run(&gateway, &["site", "revoke", "leaky", id]).await.unwrap();
    eventually(SOON, "the links to end", || async {
        metrics(&gateway).await.lines().any(|line| line == "tarbet_links 0").then_some(())
    })
    .await
    .unwrap();
    let fresh = product.run(&gateway, &["site", "token", "leaky"]).await.unwrap();
    let _agent = product.agent("leaky-agent-2", fresh.trim(), &[&gateway], &[]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permitted_tcp_host_is_reached_and_no_other() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let product = product();
    let gateway = product.gateway("tcp", "{kind: memory}", &[]).await.unwrap();
    let token = add_site(&product, &gateway, "db").await;
    let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = backend.local_addr().unwrap().port();
    let rules = format!("tcp:\n  - {{host: 127.0.0.1, ports: [{port}]}}\n");
    let policy = product.folder().write("tcp-policy.yaml", &rules).unwrap();
    let _agent = product
        .agent("db-agent", &token, &[&gateway], &["--policy", policy.to_str().unwrap()])
        .await
        .unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = backend.accept().await {
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.unwrap();
            stream.write_all(&word.map(|byte| byte.to_ascii_uppercase())).await.unwrap();
        }
    });

    let token = tarbet_identity_secret(&product);
    let client =
        tarbet_reach::client::Client::new(&gateway.api(), token, Some(&product.authority())).unwrap();
    let site = client.site("db".parse().unwrap());
    let open = async |port: u16| {
        let address = tarbet_link::Address::new("127.0.0.1", port).unwrap();
        tarbet_link::Dialer::open(&site, tarbet_link::Target::tcp(address)).await
    };
    let mut stream = open(port).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HELLO");
    let refused = open(port.wrapping_add(1)).await.unwrap_err();
    assert!(refused.to_string().contains("TB-1201"), "{refused}");
}

fn tarbet_identity_secret(product: &Product) -> tarbet_identity::Secret {
    tarbet_identity::Secret::from_file(product.admin_token()).unwrap()
}
