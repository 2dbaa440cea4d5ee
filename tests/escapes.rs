//! Callers who try to get at what is another tenant's: none does, and what is forbidden looks like what is absent.

mod attempts;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Lease, eventually, verified};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use attempts::{Attempt, Door, Names, Victim};
use wire::Wire;

/// What the server at the site of others says, and nobody else.
const SECRET: &str = "vault-server-speaks";
const SOON: Duration = Duration::from_mins(1);

/// An API server at a site that counts whoever gets to it.
struct Server {
    port: u16,
    met: Arc<AtomicUsize>,
}

impl Server {
    async fn start(words: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, met) = (listener.local_addr()?.port(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&met);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let length = words.len();
                    let head =
                        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                    let _gone = stream.write_all(format!("{head}{words}").as_bytes()).await;
                });
            }
        });
        Ok(Self { port, met })
    }

    fn met(&self) -> usize {
        self.met.load(SeqCst)
    }
}

/// A gateway with two sites, and people of the first one.
struct World {
    product: Product,
    ports: Lease,
    admin: String,
    _gateway: Agent,
    agents: Vec<Agent>,
    lab: Server,
    vault: Server,
    victim: Victim,
    /// Credentials that give no right to the second site.
    callers: Vec<String>,
}

impl World {
    async fn start() -> Result<Self> {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
        let ports = Lease::block(5)?;
        let listen = |n: u16| format!("{{listen: '127.0.0.1:{}'}}", ports.port(n));
        let config = format!(
            "store: {{kind: memory}}\nconsole: {}\nshutdown: {{deadline: 5s}}\ngateway:\n  name: one\n  \
             admin_token_file: {}\n  max_wait: 1s\n  agents: {}\n  api: {}\n  kubernetes: {}\n  private: {}\n",
            listen(0),
            product.admin_token().display(),
            listen(1),
            listen(2),
            listen(3),
            listen(4),
        );
        let config = product.folder().write("gateway.yaml", &config)?.display().to_string();
        let gateway = product.role("gateway", &["gateway", "--console", "--config", &config], &[]).await?;
        let admin = std::fs::read_to_string(product.admin_token())?.trim().to_owned();
        let (lab, vault) = (Server::start("lab-server-speaks").await?, Server::start(SECRET).await?);
        let mut world = Self {
            product,
            ports,
            admin,
            _gateway: gateway,
            agents: Vec::new(),
            lab,
            vault,
            victim: Victim::default(),
            callers: Vec::new(),
        };
        world.people().await?;
        Ok(world)
    }

    async fn people(&mut self) -> Result<()> {
        let mut tokens = BTreeMap::new();
        for (site, port) in [("lab", self.lab.port), ("vault", self.vault.port)] {
            let made = self.api("POST", "/v1/sites", &json!({ "name": site })).await?;
            let token = made["token"]["token"].as_str().context("no token")?.to_owned();
            if site == "vault" {
                self.victim.number = made["id"].as_i64().context("no number")?;
                self.victim.token = made["token"]["id"].as_str().context("no id")?.to_owned();
            }
            self.agents.push(self.agent(site, &token, port).await?);
            tokens.insert(site, token);
        }
        let roles = [json!({}), json!({"lab": "viewer"}), json!({"lab": "user"}), json!({"lab": "operator"})];
        for (n, roles) in roles.into_iter().enumerate() {
            let user = json!({ "name": format!("caller-{n}"), "roles": roles });
            let made = self.api("POST", "/v1/users", &user).await?;
            self.callers.push(made["token"].as_str().context("no token")?.to_owned());
        }
        // A token of the wrong kind, even the victim's own, and none at all.
        self.callers.extend([
            tokens["lab"].clone(),
            tokens["vault"].clone(),
            "tbu_nobody".into(),
            String::new(),
        ]);
        let ann = json!({ "name": "ann-of-vault", "roles": {"vault": "operator"} });
        let ann = self.api("POST", "/v1/users", &ann).await?;
        // What ann does leaves a story; the id of it is known to its own people only.
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let trace = format!("traceparent: 00-{id}-00f067aa0ba902b7-01\r\n");
        let bearer =
            format!("authorization: Bearer {}\r\n{trace}", ann["token"].as_str().unwrap_or_default());
        let said = self.wire(Door::Kubernetes).say("GET", "/sites/vault/api/v1/pods", &bearer, "").await?;
        ensure!(said.status == 200 && said.body == SECRET, "{said:?}");
        self.victim.request = id.into();
        Ok(())
    }

    async fn agent(&self, site: &str, token: &str, server: u16) -> Result<Agent> {
        let name = |what: &str| format!("{site}-{what}");
        let token: PathBuf = self.product.folder().write(&name("token"), token)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{server}") } }],
            "users": [{ "name": "c", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let kubeconfig = self.product.folder().write(&name("kubeconfig"), &kubeconfig.to_string())?;
        let (token, kubeconfig) = (token.display().to_string(), kubeconfig.display().to_string());
        let gateway = format!("grpc://127.0.0.1:{}", self.ports.port(1));
        let host = name("agent-host");
        let args = ["agent", "--name", &host, "--gateway", &gateway, "--token-file", &token];
        let args = [&args[..], &["--kubeconfig", &kubeconfig]].concat();
        self.product.role(&host, &args, &[]).await
    }

    fn wire(&self, door: Door) -> Wire {
        let port = match door {
            Door::Console => 0,
            Door::Api => 2,
            Door::Kubernetes => 3,
        };
        Wire::to(self.ports.port(port))
    }

    /// Asks the API as the administrator.
    async fn api(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let bearer = format!("authorization: Bearer {}\r\n", self.admin);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let said = self.wire(Door::Api).say(method, path, &bearer, &body).await?;
        ensure!((200..300).contains(&said.status), "{method} {path}: {said:?}");
        Ok(serde_json::from_str(&said.body).unwrap_or_default())
    }

    /// Everything of the second site that its administrator can see, but for what changes by itself.
    async fn picture(&self) -> Result<Value> {
        let sites = self.api("GET", "/v1/sites", &Value::Null).await?;
        let users = self.api("GET", "/v1/users", &Value::Null).await?;
        let tokens = self.api("GET", "/v1/sites/vault/tokens", &Value::Null).await?;
        let vault = sites.as_array().and_then(|all| all.iter().find(|site| site["name"] == "vault")).cloned();
        Ok(json!([vault, users, tokens]))
    }
}

/// Makes each attempt twice, at the second site and at one that is not there, and compares.
async fn attempt_all(world: &World, attempts: &[Attempt], marks: &[String]) -> Result<usize> {
    let mut wires = BTreeMap::new();
    let (there, absent) = (Names::of(&world.victim), Names::absent(&world.victim));
    for (n, attempt) in attempts.iter().enumerate() {
        let wire = wires.entry(attempt.door).or_insert_with(|| world.wire(attempt.door));
        let mut told = Vec::new();
        for names in [&there, &absent] {
            let (method, path, headers, body) = attempt.spell(names, &world.callers);
            let said = wire.say(&method, &path, &headers, &body).await?;
            for mark in marks {
                ensure!(!said.body.contains(mark), "{n}: {method} {path} tells {mark}: {said:?}");
            }
            // How a link of one's own is changes from one moment to the next.
            let still =
                |text: String| if attempt.counts() { text.replace(char::is_numeric, "") } else { text };
            let blurred = |text: &str| still(absent.blur(&there.blur(text)));
            told.push((said.status, blurred(&said.body), said.kind));
        }
        ensure!(told[0] == told[1], "{n}: {attempt:?}\nthere:  {:?}\nabsent: {:?}", told[0], told[1]);
        ensure!(world.vault.met() == 1, "{n}: {attempt:?} came through");
    }
    Ok(attempts.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_crosses_to_another_site_and_forbidden_looks_like_absent() -> Result<()> {
    let world = World::start().await?;
    // An agent is ready with its first link; the second one must not come while attempts are made.
    let before = eventually(SOON, "both links of the second site", || async {
        let picture = world.picture().await?;
        let links = picture[0]["links"].as_array().map_or(0, Vec::len);
        if links == 2 { Ok(picture) } else { Err(anyhow!("{picture}")) }
    })
    .await?;
    ensure!(before[0]["links"][0]["id"].is_string(), "{before}");
    // What only the people of the second site may read.
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut marks = vec![SECRET.to_owned(), "vault-agent-host".into(), "ann-of-vault".into()];
    marks.extend([
        text(&before[0]["links"][0]["id"]),
        text(&before[0]["created"]),
        text(&before[2][0]["created"]),
    ]);
    ensure!(marks.iter().all(|mark| mark.len() > 8), "{marks:?}");

    let attempts = attempts::generate(0x7a2b, 5_000 * tarbet_testbed::effort(), world.callers.len());
    let tried = attempt_all(&world, &attempts, &marks).await?;

    // Nobody fell over any of it, nothing changed, and the same ways work for whom they are open, so that the servers could have been met.
    ensure!(world.picture().await? == before, "{}\n{before}", world.picture().await?);
    ensure!(world.agents.iter().all(|agent| agent.process.is_running()), "an agent is gone");
    let lab = world.lab.met();
    for (caller, site, status) in [(2, "lab", 200), (3, "lab", 200), (1, "lab", 403), (2, "vault", 403)] {
        let bearer = format!("authorization: Bearer {}\r\n", world.callers[caller]);
        let path = format!("/sites/{site}/api/v1/pods");
        let said = world.wire(Door::Kubernetes).say("GET", &path, &bearer, "").await?;
        ensure!(said.status == status, "{caller} {site}: {said:?}");
    }
    ensure!(world.lab.met() == lab + 2 && world.vault.met() == 1);
    let visible = format!("authorization: Bearer {}\r\n", world.callers[3]);
    let said = world.wire(Door::Console).say("GET", "/api/gateway/sites", &visible, "").await?;
    ensure!(said.status == 200 && said.body.contains("lab") && !said.body.contains("vault"), "{said:?}");
    verified("attempts to reach another tenant's site: none crosses, absent and forbidden look alike", tried);
    Ok(())
}
