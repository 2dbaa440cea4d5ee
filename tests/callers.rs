//! Callers who prove to a site who they are, and connections that no gateway reads, with the product's own
//! commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use serde_json::Value;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Kubectl, Lease, eventually, shared_pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

const SOON: Duration = Duration::from_mins(1);

struct World {
    product: Product,
    gateway: Gateway,
    /// The key of one who vouches for callers.
    key: String,
    state: PathBuf,
}

impl World {
    async fn new(name: &str) -> Result<Self> {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
        let gateway = product.gateway(name, "{kind: memory}", &[]).await?;
        let place = |name: &str| product.folder().path().join(name);
        let (key, state) = (place("issuer.key").display().to_string(), place("state"));
        Ok(Self { product, gateway, key, state })
    }

    /// Starts a command that lasts, with a state folder of its own.
    fn start(&self, args: &[&str]) -> Result<Child> {
        let mut command = Command::new(self.product.binary());
        command.args(args).kill_on_drop(true).env("TARBET_STATE", &self.state);
        command.env("TARBET_SERVER", self.gateway.api()).env("TARBET_CA_FILE", self.product.authority());
        command.env("TARBET_TOKEN_FILE", self.product.admin_token());
        Ok(command.spawn()?)
    }

    fn called<'a>(&'a self, args: &[&'a str], caller: &'a str) -> Vec<&'a str> {
        [args, &["--caller-key", &self.key, "--caller", caller]].concat()
    }

    /// kubectl through `tarbet kube proxy`.
    async fn proxy(&self, site: &str, name: &str, caller: Option<&str>) -> Result<(Child, Kubectl)> {
        let file = self.product.folder().path().join(format!("{name}.kubeconfig"));
        let config = file.display().to_string();
        let args = ["kube", "proxy", site, "--kubeconfig", &config];
        let child = match caller {
            Some(caller) => self.start(&self.called(&args, caller))?,
            None => self.start(&args)?,
        };
        eventually(SOON, "the kubeconfig", || async { file.exists().then_some(()) }).await?;
        Ok((child, shared_pair().await?.private.kubectl_with(file)))
    }
}

/// A host behind the site that says everything back, louder.
async fn loud() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut word = [0; 5];
                while stream.read_exact(&mut word).await.is_ok() {
                    let _ = stream.write_all(&word.map(|byte| byte.to_ascii_uppercase())).await;
                }
            });
        }
    });
    Ok(port)
}

async fn hello(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"hello").await?;
    let mut word = [0; 5];
    stream.read_exact(&mut word).await?;
    Ok(String::from_utf8(word.to_vec())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_callers_is_met_by_whoever_proves_to_be_one() -> Result<()> {
    let world = World::new("callers").await?;
    let (product, gateway) = (&world.product, &world.gateway);
    let issuer = product.run(gateway, &["caller", "key", &world.key]).await?.trim().to_owned();
    ensure!(issuer.starts_with("ed25519:"), "{issuer}");
    ensure!(product.run(gateway, &["caller", "key", &world.key]).await?.trim() == issuer, "another key");

    // The command to run at the site says where to dial and whom to believe.
    let add = ["site", "add", "guarded", "--caller-key", &world.key, "--caller", "ann", "-o", "json"];
    let added: Value = serde_json::from_str(&product.run(gateway, &add).await?)?;
    let command = added["command"].as_str().unwrap();
    for part in [
        format!(" tarbet agent --gateway {} ", gateway.agents()),
        format!(" --ca-file {}", product.authority().display()),
        format!(" --site guarded --issuer {issuer}"),
    ] {
        ensure!(command.contains(&part), "{part} in {command}");
    }

    let pair = shared_pair().await?;
    let namespace = pair.private.unique_namespace("callers").await?;
    let port = loud().await?;
    let rules = format!(
        "kubernetes:
  - {{verbs: [get, list, create, delete], resources: [configmaps], namespaces: ['{namespace}'], callers: [ann]}}
  - {{paths: ['/api*', /version, '/openapi*']}}
tcp: [{{host: 127.0.0.1, ports: [{port}], callers: [ann]}}]
"
    );
    let policy = product.folder().write("callers.yaml", &rules)?.display().to_string();
    let kubeconfig = pair.private.kubeconfig().display().to_string();
    let token = added["token"]["token"].as_str().unwrap();
    let extra = ["--kubeconfig", &kubeconfig, "--policy", &policy, "--site", "guarded", "--issuer", &issuer];
    let _agent = product.agent("callers-agent", token, &[gateway], &extra).await?;

    // A forward.
    let ports = Lease::block(2)?;
    let target = format!("127.0.0.1:{port}");
    let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
    let (ann_at, bob_at) = (at(0), at(1));
    let _ann = world.start(&world.called(&["forward", "guarded", &target, "--listen", &ann_at], "ann"))?;
    eventually(SOON, "an answer to ann", || hello(ports.port(0))).await?;
    let _bob = world.start(&world.called(&["forward", "guarded", &target, "--listen", &bob_at], "bob"))?;
    let listens =
        || async { TcpStream::connect(bob_at.as_str()).await.map(drop).map_err(|error| error.to_string()) };
    eventually(SOON, "bob's port", listens).await?;
    ensure!(hello(ports.port(1)).await.is_err(), "bob is nobody to the rules");

    // kubectl: reads and writes.
    let create = ["create", "configmap", "proven", "-n", &namespace];
    let (_proxy, kubectl) = world.proxy("guarded", "ann", Some("ann")).await?;
    kubectl.run(&create).await?;
    kubectl.run(&["get", "configmap", "proven", "-n", &namespace]).await?;
    for (name, caller) in [("bob", Some("bob")), ("nobody", None)] {
        let (_proxy, kubectl) = world.proxy("guarded", name, caller).await?;
        let said = format!("{:#}", kubectl.run(&["get", "configmaps", "-n", &namespace]).await.unwrap_err());
        ensure!(said.contains("TB-1201"), "{name}: {said}");
    }

    // A token in a header, through a gateway that could read along.
    let authority = reqwest::Certificate::from_pem_bundle(&std::fs::read(product.authority())?)?;
    let client = reqwest::Client::builder().tls_certs_only(authority).build()?;
    let admin = std::fs::read_to_string(product.admin_token())?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/proven");
    let url = format!("{}/sites/guarded{path}", gateway.kubernetes());
    let mint = async |extra: &[&str]| {
        let args = ["caller", "token", "--site", "guarded", "--as", "ann", "--caller-key", &world.key];
        product.run(gateway, &[&args, extra].concat()).await.map(|said| said.trim().to_owned())
    };
    let send = async |request: reqwest::RequestBuilder, token: &str| {
        let request = request.bearer_auth(admin.trim()).header("tarbet-caller-token", token);
        request.send().await.map(|answer| answer.status().as_u16())
    };
    let reading = mint(&[]).await?;
    ensure!(send(client.get(&url), &reading).await? == 200);
    ensure!(send(client.get(&url), "x").await? == 403);
    // What changes something needs a token for that very request, once.
    ensure!(send(client.delete(&url), &reading).await? == 403);
    let deleting = mint(&["--for", &format!("DELETE {path}")]).await?;
    ensure!(send(client.delete(&url), &deleting).await? == 200);
    ensure!(send(client.delete(&url), &deleting).await? == 403);
    Ok(())
}

/// The configuration of an agent that believes these issuers.
fn believing(world: &World, token: &str, issuers: &[&str]) -> Result<PathBuf> {
    let text = format!(
        "agent:\n  gateways: ['{}']\n  token_file: {token}\n  ca_file: {}\n  policy_file: {}\n  site: turned\n  issuers: {}\n",
        world.gateway.agents(),
        world.product.authority().display(),
        world.product.folder().path().join("turned.policy.yaml").display(),
        serde_json::to_string(issuers)?,
    );
    world.product.folder().write("turned.yaml", &text)
}

/// Lets an agent believe other issuers than before.
async fn believe(world: &World, agent: &Agent, token: &str, issuers: &[&str]) -> Result<()> {
    believing(world, token, issuers)?;
    let applied = "tarbet_config_reloads_total{outcome=\"applied\"}";
    let before = agent.metric(applied).await?;
    agent.process.hangup()?;
    eventually(SOON, "the issuers to be believed", || async {
        ensure!(agent.metric(applied).await? > before, "{}", agent.process.log_tail());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_one_who_vouches_is_replaced_while_callers_ask() -> Result<()> {
    let world = World::new("turned").await?;
    let (product, gateway, folder) = (&world.product, &world.gateway, world.product.folder());
    let new_key = folder.path().join("new.key").display().to_string();
    let public = async |key: &str| product.run(gateway, &["caller", "key", key]).await;
    let (old, new) = (public(&world.key).await?, public(&new_key).await?);
    let (old, new) = (old.trim(), new.trim());
    let added: Value =
        serde_json::from_str(&product.run(gateway, &["site", "add", "turned", "-o", "json"]).await?)?;
    let token =
        folder.write("turned.token", added["token"]["token"].as_str().unwrap())?.display().to_string();
    let port = loud().await?;
    let rules = format!("tcp: [{{host: 127.0.0.1, ports: [{port}], callers: [ann]}}]\n");
    folder.write("turned.policy.yaml", &rules)?;
    let file = believing(&world, &token, &[old])?.display().to_string();
    let agent = product.role("turned-agent", &["agent", "--config", &file], &[]).await?;

    let (ports, target) = (Lease::block(2)?, format!("127.0.0.1:{port}"));
    let forward = |index: u16, key: &str| {
        let at = format!("127.0.0.1:{}", ports.port(index));
        let ann = ["--caller-key", key, "--caller", "ann"];
        world.start(&[&["forward", "turned", &target, "--listen", &at][..], &ann].concat())
    };
    let (_by_old, _by_new) = (forward(0, &world.key)?, forward(1, &new_key)?);
    let (by_old, by_new) = (ports.port(0), ports.port(1));
    eventually(SOON, "an answer by the old key", || hello(by_old)).await?;
    eventually(SOON, "the other port", || TcpStream::connect(("127.0.0.1", by_new))).await?;
    ensure!(hello(by_new).await.is_err(), "the new key is nobody's yet");

    // Somebody asks all the time, with the key that is in use.
    let (in_use, stop) = (Arc::new(AtomicU16::new(by_old)), Arc::new(AtomicBool::new(false)));
    let count = Arc::new(AtomicUsize::new(0));
    let asking = tokio::spawn({
        let (in_use, stop, count) = (Arc::clone(&in_use), Arc::clone(&stop), Arc::clone(&count));
        async move {
            while !stop.load(Ordering::SeqCst) {
                hello(in_use.load(Ordering::SeqCst)).await?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            anyhow::Ok(())
        }
    });
    let asked = async |more: usize| {
        let before = count.load(Ordering::SeqCst);
        let further = || count.load(Ordering::SeqCst) >= before + more;
        eventually(SOON, "further answers", || async { further() || asking.is_finished() }).await
    };
    let replaced = async {
        believe(&world, &agent, &token, &[old, new]).await?;
        hello(by_new).await.context("by the new key")?;
        in_use.store(by_new, Ordering::SeqCst);
        // By then the last one that used the old key has its answer.
        asked(2).await?;
        believe(&world, &agent, &token, &[new]).await?;
        ensure!(hello(by_old).await.is_err(), "the old key still counts");
        asked(2).await
    }
    .await;
    stop.store(true, Ordering::SeqCst);
    asking.await?.context("a call failed while the key was replaced")?;
    replaced
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_takes_nothing_plain_is_reached_with_kubectl_through_the_proxy() -> Result<()> {
    let world = World::new("vaulted").await?;
    let (product, gateway) = (&world.product, &world.gateway);
    let added = product.run(gateway, &["site", "add", "vault", "-o", "json"]).await?;
    let added: Value = serde_json::from_str(&added)?;
    let pair = shared_pair().await?;
    let kubeconfig = pair.private.kubeconfig().display().to_string();
    let rules = "accept_plain: false\nkubernetes: [{}]\n";
    let policy = product.folder().write("vault.yaml", rules)?.display().to_string();
    let extra = ["--kubeconfig", &kubeconfig, "--policy", &policy];
    let token = added["token"]["token"].as_str().unwrap();
    let _agent = product.agent("vault-agent", token, &[gateway], &extra).await?;

    let plain = product.folder().path().join("plain.kubeconfig");
    let login = ["kube", "login", "vault", "--kubeconfig", plain.to_str().unwrap()];
    product.run(gateway, &login).await?;
    let said =
        format!("{:#}", pair.private.kubectl_with(plain).run(&["get", "namespaces"]).await.unwrap_err());
    ensure!(said.contains("TB-1201") && said.contains("tarbet kube proxy"), "{said}");
    let (_proxy, kubectl) = world.proxy("vault", "sealed", None).await?;
    ensure!(kubectl.run(&["get", "namespaces"]).await?.contains("kube-system"));
    // `--raw` shows no path of the kubeconfig's, and needs none.
    ensure!(kubectl.run(&["get", "--raw", "/version"]).await?.contains("gitVersion"));

    // The port is for whoever has the kubeconfig.
    let file = product.folder().path().join("sealed.kubeconfig");
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap();
    let authority = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    let authority = base64::engine::general_purpose::STANDARD.decode(authority)?;
    let authority = reqwest::Certificate::from_pem_bundle(&authority)?;
    let stranger = reqwest::Client::builder().tls_certs_only(authority).build()?;
    ensure!(stranger.get(format!("{server}/version")).send().await?.status() == 401);
    let wrong = stranger.get(format!("{server}/version")).bearer_auth("x");
    ensure!(wrong.send().await?.status() == 401);
    Ok(())
}
