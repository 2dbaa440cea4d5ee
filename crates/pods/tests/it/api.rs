//! The API server and a plugin behind it, called as each generation of the original calls them.

mod escapes;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tarbet_cluster::Connect;
use tarbet_pods::edge::{EdgeConfig, Environment, Part, Tls, start};
use tarbet_pods::node::interlink::{Endpoint, Interlink};
use tarbet_pods::wire::{ExecRequest, Frame};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tarbet_testbed::{Authority, Lease, Subject, eventually, shared_pair};

use super::pods::{PATIENCE, uid};

/// A part of ours in this process.
struct Running {
    address: String,
    supervisor: Supervisor,
    metrics: Metrics,
    health: Health,
}

impl Running {
    async fn start(part: Part, config: EdgeConfig) -> Self {
        let (supervisor, health) = (Supervisor::default(), Health::default());
        let metrics = Metrics::new("part", "test");
        let environment: Environment = std::env::vars().collect();
        let address = start(part, config, &environment, &supervisor, &metrics, &health).await.unwrap();
        Self { address, supervisor, metrics, health }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn end(self) {
        self.supervisor.stop();
        self.supervisor.run(Duration::from_secs(20), std::future::pending).await.unwrap();
    }
}

/// Settings with everything in one folder, on any port.
fn settings(folder: &Path) -> EdgeConfig {
    EdgeConfig {
        interlink_port: "0".into(),
        sidecar_port: "0".into(),
        data_root_folder: folder.join("data"),
        kill_wait_seconds: 2,
        status_seconds: 1,
        shared_fs: true,
        ..Default::default()
    }
}

/// A plugin for processes and an API server before it.
struct World {
    plugin: Running,
    api: Running,
    http: Client,
    folder: tempfile::TempDir,
}

impl World {
    async fn new(change: impl FnOnce(&mut EdgeConfig, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plugin = Running::start(Part::Process, settings(folder.path())).await;
        let mut config = settings(folder.path());
        config.sidecar_url = plugin.url();
        config.data_root_folder = folder.path().join("api");
        change(&mut config, folder.path());
        let api = Running::start(Part::Interlink, config).await;
        Self { plugin, api, http: Client::new(), folder }
    }

    async fn call(&self, method: &str, path: &str, body: impl Into<reqwest::Body>) -> (StatusCode, String) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer =
            self.http.request(method, format!("{}{path}", self.api.url())).body(body).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// The states of a pod once they please.
    async fn until(&self, pod: &Value, good: impl Fn(&Value) -> bool) -> Value {
        eventually(PATIENCE, "the state", || async {
            let (code, text) = self.call("GET", "/status", json!([pod]).to_string()).await;
            assert_eq!(code, StatusCode::OK, "{text}");
            let states: Value = serde_json::from_str(&text).unwrap();
            if good(&states[0]) { Ok(states[0].clone()) } else { Err(text) }
        })
        .await
        .unwrap()
    }

    async fn end(self) {
        self.api.end().await;
        self.plugin.end().await;
    }
}

fn pod(script: &str) -> Value {
    json!({
        "metadata": {"name": "vkpod", "namespace": "default", "uid": uid()},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}]}],
            "volumes": [{"name": "cfg", "configMap": {"name": "myconfigmap"}}],
        },
        "status": {"phase": "Pending"},
    })
}

fn create(pod: &Value) -> Value {
    let map =
        json!({"metadata": {"name": "myconfigmap", "creationTimestamp": null}, "data": {"key1": "value1\n"}});
    json!({"pod": pod, "configmaps": [map], "secrets": null, "projectedvolumesmaps": null, "jobscriptURL": ""})
}

fn log_request(pod: &Value) -> String {
    json!({"Namespace": "default", "PodUID": pod["metadata"]["uid"], "PodName": "vkpod", "ContainerName": "main",
        "Opts": {"Tail": 0, "SinceTime": "0001-01-01T00:00:00Z"}})
    .to_string()
}

#[tokio::test]
async fn todays_generation_from_create_to_delete() {
    let world = World::new(|_, _| {}).await;
    let (code, text) = world.call("POST", "/pinglink", "").await;
    assert_eq!((code, text.as_str()), (StatusCode::OK, r#"{"status":"ok"}"#));
    let pod = pod("cat /cfg/key1; exit 7");
    let (code, text) = world.call("POST", "/create", create(&pod).to_string()).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["PodUID"], pod["metadata"]["uid"]);
    assert!(!reply["PodJID"].as_str().unwrap().is_empty());
    let state = world.until(&pod, |state| state["containers"][0]["state"]["terminated"].is_object()).await;
    assert_eq!(state["containers"][0]["state"]["terminated"]["exitCode"], 7);
    assert_eq!((&state["UID"], &state["JID"]), (&pod["metadata"]["uid"], &reply["PodJID"]));
    // Methods are never looked at.
    for method in ["GET", "POST", "PUT"] {
        assert_eq!(
            world.call(method, "/getLogs", log_request(&pod)).await,
            (StatusCode::OK, "value1\n".into())
        );
    }
    let (code, _) = world.call("POST", "/updateCache", pod.to_string()).await;
    assert_eq!(code, StatusCode::OK);
    let (code, text) = world.call("DELETE", "/delete", pod.to_string()).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    assert_eq!(world.call("GET", "/status", json!([pod]).to_string()).await, (StatusCode::OK, "[]".into()));
    let (code, text) = world.call("POST", "/create", create(&pod).to_string()).await;
    assert_eq!(code, StatusCode::GONE, "{text}");
    world.end().await;
}

#[tokio::test]
async fn the_generation_of_2023_with_an_account_of_a_real_cluster() {
    let plane = &shared_pair().await.unwrap().public;
    let namespace = plane.unique_namespace("pods").await.unwrap();
    let kubectl = plane.kubectl();
    kubectl
        .run(&[
            "-n",
            &namespace,
            "create",
            "configmap",
            "myconfigmap",
            "--from-literal=key1=from the cluster",
        ])
        .await
        .unwrap();
    let world = World::new(|config, folder| {
        fs::write(folder.join("tokens"), "# people\nmy-bearer-token\n").unwrap();
        config.accepted_tokens_file = Some(folder.join("tokens"));
    })
    .await;
    let http = reqwest::ClientBuilder::new()
        .default_headers(
            [(http::header::AUTHORIZATION, "Bearer my-bearer-token".parse().unwrap())].into_iter().collect(),
        )
        .build()
        .unwrap();
    let (code, _) = world.call("POST", "/ping", "").await;
    assert_eq!(code, StatusCode::UNAUTHORIZED);
    let world = World { http, ..world };
    assert_eq!(world.call("POST", "/ping", "").await, (StatusCode::OK, String::new()));
    let mut pod = pod("cat /cfg/key1");
    pod["metadata"]["namespace"] = namespace.clone().into();
    let (code, text) = world.call("POST", "/create", json!([pod]).to_string()).await;
    assert_eq!(code, StatusCode::BAD_GATEWAY, "{text}");
    assert!(text.contains("TB-3304"), "{text}");
    for bad in [
        "users: [{name: a, user: {exec: {command: touch, apiVersion: client.authentication.k8s.io/v1}}}]",
        "users: [{name: a, user: {tokenFile: /etc/passwd}}]",
        "users: [{name: a, user: {client-key: /etc/shadow}}]",
        "clusters: [{name: l, cluster: {server: 'https://127.0.0.1:1', certificate-authority: /etc/passwd}}]",
        "[[[",
    ] {
        let (code, text) = world.call("POST", "/setKubeCFG", bad).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{bad}: {text}");
    }
    let token = plane.service_account_token(&namespace, "default").await.unwrap();
    let grant = [
        "create",
        "rolebinding",
        "view",
        "--clusterrole=view",
        &format!("--serviceaccount={namespace}:default"),
        "-n",
        &namespace,
    ];
    kubectl.run(&grant).await.unwrap();
    let kubeconfig = fs::read(plane.kubeconfig_with_token(&token).unwrap()).unwrap();
    assert_eq!(world.call("POST", "/setKubeCFG", kubeconfig).await, (StatusCode::OK, "OK".into()));
    let stored = world.folder.path().join("api/.kube/config");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&stored.metadata().unwrap().permissions()) & 0o777,
        0o600
    );
    let (code, text) = world.call("POST", "/create", json!([pod]).to_string()).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    let state = world.until(&pod, |state| state["containers"][0]["state"]["terminated"].is_object()).await;
    assert_eq!(state["name"], "vkpod");
    let request = log_request(&pod).replace("\"default\"", &format!("\"{namespace}\""));
    assert_eq!(world.call("GET", "/getLogs", request).await, (StatusCode::OK, "from the cluster".into()));
    let (code, text) = world.call("DELETE", "/delete", json!([pod]).to_string()).await;
    let gone: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, gone),
        (StatusCode::OK, json!([{"name": "vkpod", "namespace": namespace, "containers": null}]))
    );
    world.end().await;
}

#[tokio::test]
async fn bodies_that_make_no_sense_are_refused_and_nothing_else_happens() {
    let world = World::new(|_, _| {}).await;
    let deep = "[".repeat(100_000);
    let bodies = [
        "",
        "{",
        "nonsense",
        "[1]",
        "\"x\"",
        "{} {}",
        "{\"pod\": 7}",
        "[{\"metadata\": []}]",
        deep.as_str(),
        "\u{0}",
    ];
    for path in ["/create", "/delete", "/status", "/getLogs", "/tarbet/update"] {
        for body in bodies {
            let (code, text) = world.call("POST", path, body.to_owned()).await;
            let empty = path == "/status" && body.is_empty();
            assert!(code == StatusCode::BAD_REQUEST || empty, "{path} {body:.20}: {code} {text}");
        }
    }
    let mut tricky = log_request(&pod("true"));
    tricky = tricky.replace("\"default\"", "\"../..\"");
    let (code, text) = world.call("GET", "/getLogs", tricky).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    assert!(text.contains("invalid namespace: must be a valid DNS label"), "{text}");
    let (code, _) = world.call("POST", "/pinglink", "").await;
    assert_eq!(code, StatusCode::OK, "it is still there");
    world.end().await;
}

#[tokio::test]
async fn a_plugin_that_is_away_is_said() {
    let lease = Lease::block(1).unwrap();
    let world =
        World::new(|config, _| config.sidecar_url = format!("http://127.0.0.1:{}", lease.port(0))).await;
    let pod = pod("true");
    for (path, body) in [
        ("/create", create(&pod).to_string()),
        ("/status", json!([pod]).to_string()),
        ("/delete", pod.to_string()),
        ("/getLogs", log_request(&pod)),
        ("/pinglink", String::new()),
    ] {
        let (code, text) = world.call("POST", path, body).await;
        assert_eq!(code, StatusCode::BAD_GATEWAY, "{path}");
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(problem["code"], "TB-3301");
        assert!(problem["cause"].as_str().unwrap().contains("refused"), "{text}");
    }
    assert_eq!(world.call("POST", "/ping", "").await.0, StatusCode::OK);
    world.end().await;
}

/// The state of a part once it pleases.
async fn told(running: &Running, part: &str, ready: bool) {
    eventually(PATIENCE, part, || async {
        let parts = running.health.parts();
        let state = parts.get(part);
        if state.is_some_and(|state| state.is_ready() == ready) { Ok(()) } else { Err(format!("{parts:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn health_and_counts_tell_the_truth() {
    let lease = Lease::block(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut config = settings(folder.path());
    config.sidecar_port = lease.port(0).to_string();
    let plugin = Running::start(Part::Process, config.clone()).await;
    let world =
        World::new(|config, _| config.sidecar_url = format!("http://127.0.0.1:{}", lease.port(0))).await;
    for (running, part) in [
        (&plugin, "plugin process"),
        (&plugin, "plugin process runtime"),
        (&world.api, "interlink"),
        (&world.api, "plugin"),
    ] {
        told(running, part, true).await;
    }
    assert!(world.api.health.is_ready() && plugin.health.is_ready());
    let pod = pod("sleep 1000");
    assert_eq!(world.call("POST", "/create", create(&pod).to_string()).await.0, StatusCode::OK);
    assert_eq!(world.call("POST", "/create", "{").await.0, StatusCode::BAD_REQUEST);
    world.call("POST", "/what/ever", "").await;
    let counts = |running: &Running, lines: &[&str]| {
        let page = running.metrics.render().unwrap();
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "{line} is missing in\n{page}");
        }
        assert!(!page.contains("/what/ever"), "callers name no series");
    };
    let lines = [
        "tarbet_interlink_calls_total{call=\"/create\",code=\"200\"} 1",
        "tarbet_interlink_calls_total{call=\"/create\",code=\"400\"} 1",
        "tarbet_interlink_calls_open 0",
        "tarbet_interlink_plugin_up 1",
        "tarbet_interlink_call_seconds_count{call=\"/create\"} 2",
    ];
    counts(&world.api, &lines);
    counts(
        &plugin,
        &["tarbet_plugin_calls_total{call=\"/create\",code=\"200\"} 1", "tarbet_plugin_runtime_up 1"],
    );
    eventually(PATIENCE, "the pod to be counted", || async {
        plugin.metrics.render().unwrap().contains("tarbet_plugin_pods 1")
    })
    .await
    .unwrap();
    assert_eq!(world.call("POST", "/delete", pod.to_string()).await.0, StatusCode::OK);

    // Without its plugin the API server lives, and says that it cannot work.
    plugin.end().await;
    told(&world.api, "plugin", false).await;
    assert!(!world.api.health.is_ready());
    counts(&world.api, &["tarbet_interlink_plugin_up 0"]);
    let plugin = Running::start(Part::Process, config).await;
    told(&world.api, "plugin", true).await;
    plugin.end().await;
    world.end().await;
}

/// Serves a router on a port of its own.
async fn stand_in(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn plugins_that_want_lists_get_lists_and_questions_are_shared() {
    // As the published plugin for Docker answers.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let create_handler = |body: Bytes| async move {
        match serde_json::from_slice::<Vec<Value>>(&body) {
            Ok(pods) => {
                let uid = pods[0]["pod"]["metadata"]["uid"].as_str().unwrap().to_owned();
                let folder = pods[0]["container"][0]["emptyDirs"][0].as_str().unwrap_or_default();
                let wanted = format!("api/default-{uid}/emptyDirs/scratch");
                assert!(folder.ends_with(&wanted), "a folder for each emptyDir: {folder}");
                (StatusCode::OK, json!({"PodUID": uid, "PodJID": "x_dind"}).to_string())
            }
            Err(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Some errors occurred while creating container. Check Docker Sidecar's logs".into(),
            ),
        }
    };
    let status_handler = move |body: Bytes| {
        let count = Arc::clone(&count);
        async move {
            let pods: Vec<Value> = serde_json::from_slice(&body).unwrap();
            count.fetch_add(pods.len(), Ordering::Relaxed);
            let states: Vec<Value> = pods
                .iter()
                .map(|pod| {
                    json!({"name": pod["metadata"]["name"], "namespace": "default", "containers": [
                    {"name": "main", "state": {"running": {"startedAt": null}}, "ready": true}]})
                })
                .collect();
            serde_json::to_string(&states).unwrap()
        }
    };
    let plugin =
        stand_in(Router::new().route("/create", any(create_handler)).route("/status", any(status_handler)))
            .await;
    let world = World::new(|config, _| config.sidecar_url = plugin).await;
    for _ in 0..2 {
        let mut pod = pod("true");
        pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
        let (code, text) = world.call("POST", "/create", create(&pod).to_string()).await;
        assert_eq!(code, StatusCode::OK, "{text}");
        assert!(text.contains("x_dind"));
    }
    let pod = pod("true");
    let calls = (0..50).map(|_| world.call("GET", "/status", json!([pod]).to_string()));
    for (code, text) in futures::future::join_all(calls).await {
        assert_eq!(code, StatusCode::OK);
        assert!(
            text.contains(pod["metadata"]["uid"].as_str().unwrap()),
            "a state without a UID gets the one that was asked for"
        );
    }
    let (code, _) = world.call("GET", "/status", json!([pod]).to_string()).await;
    assert_eq!(code, StatusCode::OK);
    let (before, begun) = (asked.load(Ordering::Relaxed), std::time::Instant::now());
    for _ in 0..20 {
        world.call("GET", "/status", json!([pod]).to_string()).await;
    }
    // One question a second at most, and one for the state that was old when this began.
    let most = begun.elapsed().as_secs() + 2;
    assert!(
        asked.load(Ordering::Relaxed) as u64 - before as u64 <= most,
        "states are remembered for a moment"
    );
    world.end().await;
}

#[tokio::test]
async fn certificates_tokens_and_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("interLink tests").unwrap();
    let server = authority.issue_files(&Subject::loopback("interlink"), folder.path(), "server").unwrap();
    let client = authority.issue(&Subject::client("node", None)).unwrap();
    let tls = Tls {
        enabled: true,
        cert_file: Some(server.certificate.clone()),
        key_file: Some(server.key.clone()),
        ca_cert_file: Some(server.authority.clone()),
    };
    let world = World::new(|config, _| config.tls = tls).await;
    let trusting = || {
        let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
        reqwest::ClientBuilder::new().tls_certs_only([root])
    };
    let url = format!("https://{}/pinglink", world.api.address);
    let stranger = trusting().build().unwrap();
    assert!(stranger.post(&url).send().await.is_err(), "a caller without a certificate is not heard");
    let pair = format!("{}{}", client.certificate, client.key);
    let known = trusting().identity(reqwest::Identity::from_pem(pair.as_bytes()).unwrap()).build().unwrap();
    assert_eq!(known.post(&url).send().await.unwrap().status(), StatusCode::OK);
    world.end().await;

    // A socket that only its owner may use, on both legs.
    let folder = tempfile::tempdir().unwrap();
    let mut config = settings(folder.path());
    let (near, far) = (folder.path().join("api.sock"), folder.path().join("plugin.sock"));
    config.socket = format!("unix://{}", far.display());
    config.sidecar_url = format!("unix://{}", far.display());
    config.interlink_address = format!("unix://{}", near.display());
    let plugin = Running::start(Part::Process, config.clone()).await;
    config.data_root_folder = folder.path().join("api");
    let api = Running::start(Part::Interlink, config.clone()).await;
    let mode = std::os::unix::fs::PermissionsExt::mode(&near.metadata().unwrap().permissions()) & 0o777;
    assert_eq!(mode, 0o600);
    let interlink = caller(&config.interlink_address);
    assert_eq!(interlink.ping().await.unwrap().body, r#"{"status":"ok"}"#);
    api.end().await;
    plugin.end().await;
    assert!(!near.exists() && !far.exists());

    // Nobody may listen to the world without asking who calls.
    let open = EdgeConfig { interlink_address: "0.0.0.0".into(), ..settings(folder.path()) };
    let refused = start(
        Part::Interlink,
        open,
        &Environment::new(),
        &Supervisor::default(),
        &Metrics::new("api", "test"),
        &Health::default(),
    )
    .await;
    assert!(refused.unwrap_err().message.contains("open to everybody"));
}

fn caller(url: &str) -> Interlink {
    let endpoint = Endpoint::new(url, "").unwrap();
    let connect = endpoint.connect(Connect::network(), None);
    Interlink::new(endpoint, connect, None)
}

#[tokio::test]
async fn our_own_calls_pass_through_commands_changes_and_pushed_states() {
    use futures::StreamExt;
    let world = World::new(|_, _| {}).await;
    let interlink = caller(&world.api.url());
    let ping = interlink.ping().await.unwrap();
    assert!(ping.extensions.exec && ping.extensions.watch && ping.extensions.update);
    let mut pod = pod("until [ \"$(cat /cfg/key1)\" = changed ]; do sleep 0.1; done; exit 3");
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    let (code, text) = world.call("POST", "/create", create(&pod).to_string()).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    world.until(&pod, |state| state["containers"][0]["state"]["running"].is_object()).await;
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let command = ["sh", "-c", "cat; exit 9"].map(str::to_owned).to_vec();
    let wanted = ExecRequest { pod_uid: uid.clone(), command, stdin: true, ..Default::default() };
    let mut frames = interlink.exec(&wanted).await.unwrap();
    assert!(frames.input.send(&Frame::Stdin(Bytes::from_static(b"typed"))).await);
    assert!(frames.input.send(&Frame::Stdin(Bytes::new())).await);
    assert_eq!(frames.output.next().await, Frame::Stdout(Bytes::from_static(b"typed")));
    assert_eq!(frames.output.next().await, Frame::Exit(9));
    let changed = json!({"pod": pod, "container": [{"name": "main", "configMaps": [
        {"metadata": {"name": "myconfigmap"}, "data": {"key1": "changed"}}]}]});
    interlink.update(&serde_json::from_value(changed).unwrap()).await.unwrap();
    let mut states = interlink.watch().await.unwrap();
    let ended = async {
        while let Some(state) = states.next().await {
            let state = serde_json::to_value(state.unwrap()).unwrap();
            if state["UID"] == uid.as_str() && state["containers"][0]["state"]["terminated"]["exitCode"] == 3
            {
                return;
            }
        }
        panic!("the stream ended");
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
    // Once the change was pushed to the API server it needs no question either.
    world.until(&pod, |state| state["containers"][0]["state"]["terminated"]["exitCode"] == 3).await;
    let (code, _) = world.call("DELETE", "/delete", pod.to_string()).await;
    assert_eq!(code, StatusCode::OK);
    world.end().await;
}
