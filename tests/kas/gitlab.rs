//! A GitLab that says who an agent is and who may use it, and a gateway in the place of its kas.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::{Algorithm, Claims, Signer, Verifier, VerifierPolicy, VerifyingKey};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, Redis, eventually, shared_pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{SOON, agentk, bearer, exercise, kubectl, metric, product};

/// GitLab, as far as a kas asks it: answers shaped as its own are.
#[derive(Clone, Default)]
pub(super) struct Gitlab(Arc<Mutex<HashMap<&'static str, usize>>>, Arc<Mutex<Option<SecretBytes>>>);

pub(super) const AGENT: i64 = 7;
/// Everybody whom GitLab names may ask, as far as the site itself is concerned.
pub(super) const RULES: &str = "kubernetes: [{}]\nimpersonate: ['gitlab:*', 'extra:agent.gitlab.com/*']\n";

impl Gitlab {
    pub(super) async fn start() -> (Self, String) {
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

    /// Listens only to a kas with this secret from now on.
    pub(super) fn expects(&self, secret: &[u8]) {
        *self.1.lock().unwrap() = Some(SecretBytes::new(secret.to_vec()));
    }

    /// Whether the caller shows what a kas shows.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = headers.get("gitlab-kas-api-request").map(|token| token.to_str().unwrap()) else {
            return false;
        };
        let Some(secret) = self.1.lock().unwrap().clone() else { return token.split('.').count() == 3 };
        let policy = VerifierPolicy {
            issuer: Some("gitlab-kas".to_owned()),
            ..VerifierPolicy::new("gitlab", [Algorithm::Hs256])
        };
        let verifier = Verifier::new(policy, VerifyingKey::shared(secret).unwrap()).unwrap();
        verifier.verify(token, jiff::Timestamp::now()).is_ok()
    }

    fn revoke(&self) {
        self.0.lock().unwrap().insert("revoked", 1);
    }
}

async fn agent_info(State(gitlab): State<Gitlab>, headers: HeaderMap) -> Response {
    gitlab.count("agent_info");
    let revoked = gitlab.0.lock().unwrap().contains_key("revoked");
    if !gitlab.knows(&headers) || headers["authorization"] != "Bearer glagent-secret" || revoked {
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
    if !gitlab.knows(&headers) || !expected || asked["agent_id"] != AGENT {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({
        "agent": {"id": AGENT, "config_project": {"id": 70}}, "user": {"id": 6, "username": "ada"},
        "access_as": {"user": {"projects": [{"id": 70, "roles": ["developer"]}], "groups": []}},
    }))
    .into_response()
}

/// The flags of a gateway that asks this GitLab.
pub(super) fn asking(product: &Product, url: &str) -> Vec<String> {
    let secret = product.folder().path().join("gateways.secret").display().to_string();
    let settings = [
        format!("gateway.kas.gitlab.address={url}"),
        format!("gateway.kas.gitlab.secret_file={secret}"),
        "gateway.kas.gitlab.cache=1s".to_owned(),
        "gateway.kas.gitlab.external_url=https://gitlab.example.org".to_owned(),
    ];
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn gitlab_says_who_the_agent_is_and_who_may_use_it() {
    let product = product();
    let (gitlab, url) = Gitlab::start().await;
    let flags = asking(&product, &url);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let gateway = product.gateway("kas-gitlab", "{kind: memory}", &flags).await.unwrap();
    // With the flags of an agentk and nothing else.
    let _agent = agentk(&product, "gitlab-agentk", "glagent-secret", &gateway.agents(), &[]).await;

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
    // Panels that were made for a kas go on showing something.
    metric(&gateway, "connected_agents_count 1").await.unwrap();
    let page =
        reqwest::get(format!("{}/metrics", gateway.observability())).await.unwrap().text().await.unwrap();
    for name in [
        "k8s_api_proxy_routing_duration_seconds_bucket{",
        "k8s_api_proxy_routing_timeout_total ",
        "agent_server_rate_exceeded_total ",
        "gitlab_build_info{",
    ] {
        assert!(page.contains(name), "{name} in {page}");
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

async fn until_blank_line(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// The kubeconfig of an API server that changes to a protocol in which it says everything back, louder.
async fn echo() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let head = until_blank_line(&mut stream).await.to_lowercase();
                if head.starts_with("get /api/v1/secrets ") {
                    let answer =
                        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    return stream.write_all(answer.as_bytes()).await.unwrap();
                }
                if !head.contains("upgrade: spdy/3.1") {
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                    return stream.write_all(answer.as_bytes()).await.unwrap();
                }
                let answer =
                    "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    stream.write_all(&bytes[..count].to_ascii_uppercase()).await.unwrap();
                }
            });
        }
    });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    config.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_gitlabs_holds_across_gateways() {
    let (product, redis) = (product(), Redis::start().await.unwrap());
    let (_gitlab, url) = Gitlab::start().await;
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let flags = asking(&product, &url);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let entry = product.gateway("gitlab-entry", &store, &flags).await.unwrap();
    let holder = product.gateway("gitlab-holder", &store, &flags).await.unwrap();
    let policy = product.folder().write("gitlab-policy.yaml", RULES).unwrap();
    let extra = ["--policy", policy.to_str().unwrap()];
    let _agent = agentk(&product, "gitlab-far", "glagent-secret", &holder.agents(), &extra).await;
    let job = kubectl(bearer(&product, &entry, "job", &format!("ci:{AGENT}:job-as-agent"))).await;
    assert!(job.run(&["get", "namespaces"]).await.unwrap().contains("kube-system"));
    let ada = kubectl(bearer(&product, &entry, "ada", &format!("pat:{AGENT}:glpat-ada"))).await;
    let said = format!("{:#}", ada.run(&["get", "namespaces"]).await.unwrap_err());
    assert!(said.contains("gitlab:user:ada") && said.contains("forbidden"), "{said}");
}

/// A token of somebody who calls the gRPC services of the API listener.
pub(super) fn token(secret: &[u8], issuer: &str) -> String {
    let expires = jiff::Timestamp::now() + Duration::from_mins(10);
    let claims = Claims {
        issuer: Some(issuer.to_owned()),
        audience: vec!["gitlab-kas".to_owned()],
        ..Claims::expiring(expires)
    };
    Signer::shared(SecretBytes::new(secret.to_vec())).sign(&claims).expose().to_owned()
}

/// `GetConnectedAgents` for an agent: the status, if it comes before any answer, and the answer.
pub(super) async fn connected_agents(api: &str, token: &str) -> (Option<String>, Vec<u8>) {
    let client = reqwest::Client::new();
    // One frame: not packed, two bytes long, field 2 with the number of the agent.
    let request = client
        .post(format!("{api}/gitlab.agent.agent_tracker.rpc.AgentTracker/GetConnectedAgents"))
        .header("content-type", "application/grpc")
        .header("authorization", format!("bearer {token}"))
        .body(vec![0, 0, 0, 0, 2, 0x10, 7]);
    let response = request.send().await.unwrap();
    let status = response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
    (status, response.bytes().await.unwrap().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_in_the_place_of_a_kas_with_its_file() {
    let product = product();
    let (_gitlab, url) = Gitlab::start().await;
    let ports = Lease::block(4).unwrap();
    let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
    let (shared, private) = ([7u8; 32], [8u8; 32]);
    let folder = product.folder();
    let base64 = |bytes: &[u8]| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(bytes)
    };
    let api_secret = folder.write("api.secret", &base64(&shared)).unwrap();
    let private_secret = folder.write("private.secret", &base64(&private)).unwrap();
    let config = json!({
        "gitlab": {"address": url, "authentication_secret_file": api_secret, "api_rate_limit": {"bucket_size": 250}},
        "agent": {
            "listen": {"network": "tcp", "address": at(0), "websocket": true},
            "kubernetes_api": {"listen": {"address": at(1)}, "url_path_prefix": "/-/k8s-proxy/"},
            "configuration": {"poll_period": "20s"},
        },
        "observability": {
            "liveness_probe": {"url_path": "/-/live"}, "readiness_probe": {"url_path": "/-/ready"},
            "prometheus": {"url_path": "/-/prometheus"},
        },
        "gitaly": {},
        "api": {"listen": {"address": at(2), "authentication_secret_file": api_secret}},
        "private_api": {"listen": {"address": at(3), "authentication_secret_file": private_secret}},
    });
    let file = folder.write("kas.yaml", &config.to_string()).unwrap();
    let state = folder.path().join("kas-state").display().to_string();
    std::fs::create_dir_all(&state).unwrap();
    let args = ["gateway", "--kas-config", file.to_str().unwrap()];
    let gateway = product.role("in-place", &args, &[("TARBET_STATE", &state)]).await.unwrap();

    let token_file = folder.write("glagent.token", "glagent-secret").unwrap();
    let kubeconfig = shared_pair().await.unwrap().private.kubeconfig().display().to_string();
    for (name, address) in
        [("plain", format!("grpc://{}", at(0))), ("webbed", format!("ws://{}/-/agent/", at(0)))]
    {
        let args = [
            "agent",
            "--kas-address",
            &address,
            "--token-file",
            token_file.to_str().unwrap(),
            "--kubeconfig",
            &kubeconfig,
            "--observability-listen-network",
            "tcp4",
            "--observability-listen-address",
            "127.0.0.1:0",
            "--request-timeout",
            "30s",
        ];
        let pod = [("POD_NAMESPACE", "agents"), ("POD_NAME", name)];
        let mut agent = product.role(name, &args, &pod).await.unwrap();
        let get = reqwest::Client::new().get(format!("http://{}/-/k8s-proxy/version", at(1)));
        let answer = get.bearer_auth(format!("ci:{AGENT}:job-as-agent")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.text().await.unwrap().contains("gitVersion"));

        // The process is listed by its name, to GitLab and to nobody else.
        let api = format!("http://{}", at(2));
        let listed = || async {
            let (status, body) = connected_agents(&api, &token(&shared, "gitlab")).await;
            let named = body.windows(name.len()).any(|part| part == name.as_bytes());
            if named { Ok(()) } else { Err(format!("{status:?} {}", String::from_utf8_lossy(&body))) }
        };
        eventually(SOON, "the agent to be listed", listed).await.unwrap();
        // A GitLab behind another name is a GitLab all the same.
        for name in ["gitlab.internal", "gitlab-webservice.default.svc"] {
            assert_eq!(connected_agents(&api, &token(&shared, name)).await.0, None, "{name}");
        }
        for wrong in [token(&private, "gitlab"), token(&shared, "gitlab-kas"), "x".to_owned()] {
            assert_eq!(connected_agents(&api, &wrong).await.0.as_deref(), Some("16"));
        }
        agent.process.stop().await.unwrap();
    }
    for page in ["live", "ready", "prometheus"] {
        let answer = reqwest::get(format!("http://127.0.0.1:{}/-/{page}", gateway.probes())).await.unwrap();
        assert_eq!(answer.status(), 200, "{page}");
    }
    // The other services that GitLab calls: one is told what was pushed, one has nothing to list.
    for path in [
        "notifications.rpc.Notifications/GitPushEvent",
        "configuration_project.rpc.ConfigurationProject/ListAgentConfigFiles",
    ] {
        let call = async |token: String| {
            // The first field: what was pushed to, or the repository that is meant.
            let body = vec![0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 8, 5];
            let request = reqwest::Client::new()
                .post(format!("http://{}/gitlab.agent.{path}", at(2)))
                .header("content-type", "application/grpc")
                .header("authorization", format!("bearer {token}"));
            let answer = request.body(body).send().await.unwrap();
            let status =
                answer.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
            (status, answer.bytes().await.unwrap().to_vec())
        };
        assert_eq!(call(token(&shared, "gitlab.internal")).await, (None, vec![0; 5]), "{path}");
        assert_eq!(call(token(&private, "gitlab")).await.0.as_deref(), Some("16"), "{path}");
    }
    // What `exec` does: the request changes its protocol, and bytes go both ways.
    let kubeconfig = folder.write("echo.kubeconfig", &echo().await).unwrap();
    let address = format!("grpc://{}", at(0));
    let args =
        ["agent", "--kas-address", &address, "--token-file", token_file.to_str().unwrap(), "--kubeconfig"];
    let args = [&args[..], &[kubeconfig.to_str().unwrap()]].concat();
    let _agent = product.role("echoing", &args, &[]).await.unwrap();
    // A refusal of the API server's is not said to be GitLab's.
    let get = reqwest::Client::new().get(format!("http://{}/-/k8s-proxy/api/v1/secrets", at(1)));
    let answer = get.bearer_auth(format!("ci:{AGENT}:job-as-agent")).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("gitlab-unauthorized")), (401, None));
    let mut stream = TcpStream::connect(at(1)).await.unwrap();
    let request = format!(
        "POST /-/k8s-proxy/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true HTTP/1.1\r\nHost: x\r\n\
         Authorization: Bearer ci:{AGENT}:job-as-agent\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = until_blank_line(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for word in [&b"first"[..], b"second"] {
        stream.write_all(word).await.unwrap();
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.to_ascii_uppercase());
    }
    let refused = product.command(&["gateway", "--kas-config", "/nowhere/kas.yaml"]).await.unwrap();
    assert!(refused.0 == Some(2) || refused.0 == Some(1), "{refused:?}");
    assert!(refused.1.contains("TB-0102"), "{refused:?}");
}
