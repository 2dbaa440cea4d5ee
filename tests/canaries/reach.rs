//! Gateway and agent: tokens, keys, passwords and what callers send.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Program, Redis, RedisOptions, eventually, verified};

use super::{Canaries, Collector, LOUD, SOON, abort, complains, secret_file, signal};

const BINARY: &str = env!("CARGO_BIN_EXE_tarbet");

/// An API server that says no in many words, and yes to some.
async fn api_server() -> Result<u16> {
    use axum::http::StatusCode;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let answer = async |request: axum::extract::Request| match request.uri().path() {
        path if path.ends_with("/fails") => (StatusCode::INTERNAL_SERVER_ERROR, "it fails"),
        path if path.ends_with("/refused") => (StatusCode::UNAUTHORIZED, "who are you"),
        _ => (StatusCode::OK, "{}"),
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    Ok(port)
}

fn kubeconfig(port: u16, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "users": [{ "name": "c", "user": { "token": token } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    })
    .to_string()
}

struct World {
    canaries: Canaries,
    product: Product,
    collector: Collector,
    redis: Redis,
    password: std::path::PathBuf,
}

impl World {
    async fn new() -> Result<Self> {
        let canaries = Canaries::default();
        let product = Product::new(BINARY)?;
        let folder = product.folder();
        let password = canaries.hatch("Redis password");
        let redis =
            Redis::start_with(RedisOptions { password: Some(password.clone()), ..RedisOptions::default() })
                .await?;
        let password = secret_file(folder, "redis.password", &password)?;
        let shared = canaries.hatch("secret among gateways");
        let shared: String = shared.chars().rev().take(32).collect();
        canaries.watch("secret among gateways", &shared);
        folder.write("gateways.secret", &STANDARD.encode(&shared))?;
        Ok(Self { canaries, collector: Collector::start().await?, product, redis, password })
    }

    fn store(&self) -> String {
        let (port, file) = (self.redis.port(), self.password.display());
        format!("{{kind: redis, url: 'redis://127.0.0.1:{port}', password_file: {file}}}")
    }

    fn file(&self, name: &str, text: &str) -> Result<String> {
        Ok(secret_file(self.product.folder(), name, text)?.display().to_string())
    }

    /// A gateway that is loud, traced, recorded and asks a GitLab that is not there.
    async fn gateway(&self, name: &str, format: &str) -> Result<Gateway> {
        let gitlab = STANDARD.encode(self.canaries.hatch("secret of GitLab"));
        let api = STANDARD.encode(self.canaries.hatch("secret of the kas API"));
        self.canaries.watch("secret of GitLab as written", &gitlab);
        let settings = [
            format!("log.format={format}"),
            format!("observability.otlp_endpoint={}", self.collector.url),
            format!(
                "gateway.audit.file={}",
                self.product.folder().path().join(format!("{name}.audit")).display()
            ),
            format!("gateway.kas.api_secret_file={}", self.file(&format!("{name}.kas"), &api)?),
            "gateway.kas.gitlab.address=http://127.0.0.1:9".into(),
            format!("gateway.kas.gitlab.secret_file={}", self.file(&format!("{name}.gitlab"), &gitlab)?),
            "gateway.max_wait=1s".into(),
        ];
        let mut extra = LOUD.to_vec();
        for setting in &settings {
            extra.extend(["--set", setting]);
        }
        self.product.gateway(name, &self.store(), &extra).await
    }

    /// A credential in every place a caller might put one, good or bad.
    async fn ask(&self, gateway: &Gateway, http: &reqwest::Client, token: &str) -> Result<()> {
        let cookie = self.canaries.hatch("cookie");
        let body = self.canaries.hatch("body of a request");
        let header = self.canaries.hatch("header of a request");
        let (api, kubernetes) = (gateway.api(), gateway.kubernetes());
        for credential in [
            format!("Bearer {token}"),
            format!("Bearer site:lab:{token}"),
            format!("Bearer ci:7:{token}"),
            format!("Bearer pat:7:{token}"),
            format!("Basic {}", STANDARD.encode(format!("user:{token}"))),
            format!("bearer{token}"),
        ] {
            for url in [
                format!("{api}/v1/sites"),
                format!("{api}/v1/whoami"),
                format!("{api}/v1/requests/nothing"),
                format!("{kubernetes}/sites/lab/api/v1/secrets"),
                format!("{kubernetes}/sites/lab/api/v1/fails"),
                format!("{kubernetes}/sites/lab/api/v1/refused"),
                format!("{kubernetes}/sites/nowhere/api"),
                format!("{kubernetes}/api/v1/pods?gitlab-agent-id=7"),
            ] {
                // Of these GitLab is asked, several times each since it is not there.
                let slow = ["Bearer ci:", "Bearer pat:"].iter().any(|form| credential.starts_with(form));
                if slow && !url.ends_with("/secrets") {
                    continue;
                }
                for method in [reqwest::Method::GET, reqwest::Method::POST] {
                    let asked = http
                        .request(method, &url)
                        .header("authorization", &credential)
                        .header("cookie", format!("_gitlab_kas={cookie}; session={cookie}"))
                        .header("x-csrf-token", &header)
                        .header("x-secret", &header)
                        .body(json!({ "password": body }).to_string());
                    let answer = asked.send().await?;
                    let told = format!("{:?} {:?}", answer.status(), answer.headers());
                    let text = answer.text().await?;
                    self.canaries.search(&format!("the answer of {url}"), &format!("{told} {text}"))?;
                }
            }
        }
        Ok(())
    }

    /// What people look at while it runs.
    async fn look(&self, gateway: &Gateway, admin: &str) -> Result<()> {
        for args in
            [&["status"][..], &["status", "-o", "json"], &["site", "list", "-o", "json"], &["user", "list"]]
        {
            let said = self.product.run(gateway, args).await?;
            self.canaries.search(&args.join(" "), &said)?;
        }
        let http = client(&self.product)?;
        let requests: Value = http
            .get(format!("{}/v1/requests", gateway.api()))
            .bearer_auth(admin)
            .send()
            .await?
            .json()
            .await?;
        ensure!(requests.as_array().is_some_and(|all| all.len() > 10), "{requests}");
        self.canaries.search("the stories of requests", &requests.to_string())?;
        let id = requests[0]["id"].as_str().context("no id")?;
        self.canaries.search("why", &self.product.run(gateway, &["why", id]).await?)?;
        for page in ["metrics", "readyz", "livez"] {
            let text = reqwest::get(format!("{}/{page}", gateway.observability())).await?.text().await?;
            self.canaries.search(page, &text)?;
        }
        Ok(())
    }

    /// Starts that fail over a secret.
    async fn misled(&self, gateway: &Gateway) -> Result<()> {
        let folder = self.product.folder();
        let agent = |name: &str| {
            Program::new(BINARY)
                .args(["agent", "--name", name, "--observability-listen", "127.0.0.1:0"])
                .args(["--set", "log.filter=trace", "--ca-file"])
                .arg(self.product.authority())
                .args(["--gateway", &gateway.agents(), "--token-file"])
        };
        let wrong = format!("tba_{}", self.canaries.hatch("agent token that is wrong"));
        let wrong = self.file("wrong.token", &wrong)?;
        complains(folder, "wrong-token", agent("wrong").arg(&wrong), "refused").await?;
        let proxy = self.canaries.hatch("password of a proxy");
        let header = format!("X-Api-Key: {}", self.canaries.hatch("extra header"));
        let proxied = agent("proxied")
            .arg(&wrong)
            .args(["--gateway", "wss://gateway.invalid", "--header", &header])
            .env("HTTPS_PROXY", format!("http://user:{proxy}@127.0.0.1:9"));
        complains(folder, "proxied", proxied, "127.0.0.1:9").await?;

        let password = self.file("wrong.password", &self.canaries.hatch("wrong Redis password"))?;
        let store = format!(
            "{{kind: redis, url: 'redis://127.0.0.1:{}', password_file: {password}}}",
            self.redis.port()
        );
        let config =
            format!("store: {store}\nlog: {{filter: trace}}\nobservability: {{listen: '127.0.0.1:0'}}\n");
        let config = folder.write("wrong-redis.yaml", &config)?;
        let gateway = Program::new(BINARY).args(["gateway", "--config"]).arg(config);
        complains(folder, "wrong-redis", gateway, "TB-").await?;

        // Read wrongly: a secret where a key, a token, base64 or a kubeconfig belongs.
        let odd = self.file("odd", &format!("{}\n{{", self.canaries.hatch("file of the wrong kind")))?;
        let certificate = self.product.authority().display().to_string();
        let settings = [
            format!("gateway.private.secret_file={odd}"),
            format!("gateway.kas.api_secret_file={odd}"),
            format!("gateway.admin_token_file={odd}"),
            format!("gateway.api.tls={{cert_file: {certificate}, key_file: {odd}}}"),
        ];
        for setting in &settings {
            let args = [
                "gateway",
                "--set",
                "store.kind=memory",
                "--set",
                setting,
                "--observability-listen",
                "127.0.0.1:0",
            ];
            self.canaries.run(&args, &[], false).await?;
        }
        for flags in [["--kubeconfig", &odd], ["--policy", &odd], ["--key-file", &odd]] {
            let fixed = ["agent", "--gateway", "grpc://127.0.0.1:9", "--token-file", &wrong];
            let probes = ["--observability-listen", "127.0.0.1:0"];
            self.canaries.run(&[&fixed[..], &probes, &flags].concat(), &[], false).await?;
        }
        // Written where no secret belongs: the complaint names the setting only.
        let misplaced = self.canaries.hatch("secret in a setting of the wrong name");
        let config = format!(
            "store: {{kind: redis, url: 'redis://127.0.0.1:1', password: {misplaced}}}\ngateway: {{admin_token: {misplaced}}}\n"
        );
        let config = folder.write("misplaced.yaml", &config)?.display().to_string();
        self.canaries.run(&["config", "check", "--config", &config], &[], false).await?;
        let variable = [("TARBET__STORE__PASSWORD", misplaced.as_str()), ("TARBET__STORE__KIND", "redis")];
        self.canaries.run(&["config", "check"], &variable, false).await?;
        let typed = self.canaries.hatch("password in a URL");
        let config = format!("store: {{kind: redis, url: 'redis://:{typed}@127.0.0.1:1'}}\n");
        let config = folder.write("typed.yaml", &config)?.display().to_string();
        for args in [&["config", "show"][..], &["config", "show", "-o", "json"]] {
            let output =
                tokio::process::Command::new(BINARY).args(args).args(["--config", &config]).output().await?;
            let said = [output.stdout, output.stderr].concat();
            self.canaries.search(&args.join(" "), &String::from_utf8_lossy(&said))?;
        }
        Ok(())
    }
}

fn client(product: &Product) -> Result<reqwest::Client> {
    let authority = reqwest::Certificate::from_pem(&std::fs::read(product.authority())?)?;
    Ok(reqwest::Client::builder().add_root_certificate(authority).build()?)
}

/// The body of each key that the product made itself.
fn watch_keys(canaries: &Canaries, folder: &std::path::Path) -> Result<usize> {
    let mut found = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found += watch_keys(canaries, &path)?;
            continue;
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        if let Some((_, key)) = text.split_once("PRIVATE KEY-----") {
            let line = key.lines().find(|line| line.len() > 40).unwrap_or_default();
            ensure!(!line.is_empty(), "{} holds no key", path.display());
            canaries.watch(&format!("key {}", path.display()), line);
            found += 1;
        }
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_gateways_agents_and_callers_are_told_nowhere() -> Result<()> {
    let world = World::new().await?;
    let (mut one, mut two) = (world.gateway("one", "json").await?, world.gateway("two", "text").await?);
    let (canaries, product) = (&world.canaries, &world.product);
    let admin = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
    canaries.watch("token of the administrator", &admin);
    let site: Value = serde_json::from_str(&product.run(&one, &["site", "add", "lab", "-o", "json"]).await?)?;
    let token = site["token"]["token"].as_str().context("no token")?.to_owned();
    canaries.watch("token of the site", &token);
    let user = product.run(&one, &["user", "add", "ann", "--role", "user", "--site", "lab"]).await?;
    let user = user.lines().find(|line| line.starts_with("tbu_")).context("no token")?.trim().to_owned();
    canaries.watch("token of a user", &user);
    let server = api_server().await?;
    let kubeconfig =
        world.file("kubeconfig", &kubeconfig(server, &canaries.hatch("token of a kubeconfig")))?;
    let extra = [&LOUD[..], &["--kubeconfig", &kubeconfig]].concat();
    // One gateway holds the link, so that the other goes through it.
    let mut agent = product.agent("lab-agent", &token, &[&two], &extra).await?;
    let keys = watch_keys(canaries, product.folder().path())?;
    ensure!(keys >= 2, "an authority and an agent have keys, not {keys}");

    let http = client(product)?;
    let wrong = format!("tbu_{}", canaries.hatch("user token that is wrong"));
    for gateway in [&one, &two] {
        for token in [&user, &token, &wrong] {
            world.ask(gateway, &http, token).await?;
        }
    }
    let wrong = world.file("wrong.user", &wrong)?;
    let (api, ca) = (one.api(), product.authority().display().to_string());
    let environment = [("TARBET_SERVER", &*api), ("TARBET_TOKEN_FILE", &*wrong), ("TARBET_CA_FILE", &*ca)];
    canaries.run(&["site", "list"], &environment, false).await?;
    world.misled(&two).await?;
    world.look(&one, &admin).await?;
    world.look(&two, &admin).await?;
    eventually(SOON, "traces to be sent", || std::future::ready(world.collector.text().len() > 1_000))
        .await?;

    // Their ends: by a second signal, and in the way of a crash.
    signal(&agent.process, "TERM")?;
    signal(&agent.process, "TERM")?;
    eventually(SOON, "the end of the agent", || std::future::ready(!agent.process.is_running())).await?;
    let _ended = agent.process.exited()?;
    abort(&mut one.process).await?;
    abort(&mut two.process).await?;
    canaries.search("the traces", &world.collector.text())?;
    for name in ["one.audit", "two.audit"] {
        let record = std::fs::read_to_string(product.folder().path().join(name))?;
        ensure!(record.lines().count() > 20, "{name} has {} lines", record.lines().count());
        canaries.search(name, &record)?;
    }
    let logs = canaries.search_logs(product.folder().path())?;
    ensure!(logs >= 6, "{logs} logs");
    let log = std::fs::read_to_string(product.folder().path().join("one.log"))?;
    ensure!(log.contains("TRACE"), "the gateway was not loud");
    verified("secrets of gateways, agents and callers, none told anywhere", canaries.count());
    Ok(())
}
