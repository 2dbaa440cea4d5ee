//! Tokens in files and the keys of an identity provider are replaced while they are used: first both count, then
//! callers change over, then the old one ends.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::json;
use tarbet_identity::PrivateKey;
use tarbet_identity::jwt::{Claims, Signer};
use tarbet_nets::cloud::{Cloud as _, Remote};
use tarbet_nets::trust::DialTrust;
use tarbet_telemetry::Coded as _;
use tarbet_testbed::{Folder, Lease};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use super::rotation::{Ways, ask, links_at};
use super::*;

/// A file with a secret, for its owner alone, replaced as a whole.
pub(crate) fn secret(folder: &Folder, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let fresh = folder.write(&format!("{name}.fresh"), text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = folder.path().join(name);
    std::fs::rename(fresh, &path).unwrap();
    path
}

/// Sends what `ask` makes, again and again.
pub(crate) fn keep_asking<F, Fut>(tally: &Arc<Tally>, ask: F) -> JoinHandle<()>
where
    F: Fn() -> Fut + Send + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let tally = Arc::clone(tally);
    tokio::spawn(async move {
        while !tally.over.load(SeqCst) {
            let answer = ask().await;
            tally.asked.fetch_add(1, SeqCst);
            if let Err(error) = answer {
                eprintln!("refused: {error:#}");
                tally.failed.fetch_add(1, SeqCst);
            }
        }
    })
}

async fn answered(request: reqwest::RequestBuilder) -> Result<()> {
    let answer = request.send().await?;
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    Ok(())
}

async fn until(what: &str, ask: impl AsyncFn() -> bool) {
    eventually(SOON, what, || async { ask().await }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_networks_and_their_tags_are_replaced_under_load() {
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Lease::block(6).unwrap());
    let folder = product.folder();
    let accepted = secret(folder, "tags.tokens", "inner-old\n");
    let shown = secret(folder, "tags.token", "inner-old\n");
    let people = secret(folder, "people.tokens", "outer-old\n");
    let at = |index| format!("127.0.0.1:{}", ports.port(index));
    let trust = format!("nets.security.tokensFile={}", accepted.display());
    let (listen, values) = (at(4), at(5));
    let args =
        ["tags", "--listen", &listen, "--kv-listen", &values, "--set", "store.kind=memory", "--set", &trust];
    let _tags = product.role("tags", &args, &[]).await.unwrap();
    let place = |index| json!({ "host": "127.0.0.1", "port": ports.port(index) });
    let config = json!({
        "store": { "kind": "memory" },
        "nets": {
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": place(2), "kvStore": place(3), "security": { "tokensFile": people },
            "remoteTags": { "host": "127.0.0.1", "port": ports.port(4), "trust": { "tokenFile": shown } },
        },
    });
    let config = folder.write("nets.yaml", &config.to_string()).unwrap().display().to_string();
    let _nets = product.role("nets", &["nets", "--config", &config], &[]).await.unwrap();

    let (http, url) = (reqwest::Client::new(), format!("http://{}/tags/crew/applyMembers", at(0)));
    let set = move |token: &str| {
        let body = json!({ "name": "crew", "child_tags": ["10.0.0.7"] });
        answered(http.post(&url).bearer_auth(token).json(&body))
    };
    let (tally, token) = (Arc::new(Tally::default()), Arc::new(RwLock::new("outer-old")));
    let load = keep_asking(&tally, {
        let (set, token) = (set.clone(), Arc::clone(&token));
        move || {
            let (set, token) = (set.clone(), Arc::clone(&token));
            async move {
                let token = *token.read().await;
                set(token).await
            }
        }
    });
    tally.unnoticed("the start").await;

    // Those who ask the orchestrator.
    secret(folder, "people.tokens", "outer-old\nouter-new\n");
    until("the new token to count", async || set("outer-new").await.is_ok()).await;
    *token.write().await = "outer-new";
    tally.unnoticed("another token of those who ask").await;
    secret(folder, "people.tokens", "outer-new\n");
    until("the old token to be refused", async || set("outer-old").await.is_err()).await;
    tally.unnoticed("the end of their old token").await;

    // The orchestrator itself, as the tag service knows it.
    secret(folder, "tags.tokens", "inner-old\ninner-new\n");
    // A call that it does not have: those whom it does not know are told so first.
    let knows = async |token: &str| {
        let token_file = Some(secret(folder, "probe.token", token));
        let trust = DialTrust { token_file, ..DialTrust::default() };
        let probe = Remote::trusting("probe", "127.0.0.1", ports.port(4), &trust).unwrap();
        probe.permit_list("default", "x").await.unwrap_err().problem().code != "TB-4207"
    };
    assert!(!knows("inner-none").await, "nobody's token is refused");
    until("the tag service to know the new token", async || knows("inner-new").await).await;
    secret(folder, "tags.token", "inner-new\n");
    let log = folder.path().join("nets.log");
    let changed = || std::fs::read_to_string(&log).unwrap().contains("Another token is shown");
    until("the orchestrator to show its new token", async || changed()).await;
    secret(folder, "tags.tokens", "inner-new\n");
    until("the tag service to refuse the old token", async || !knows("inner-old").await).await;
    tally.unnoticed("another token of the orchestrator").await;
    tally.over.store(true, SeqCst);
    load.await.unwrap();
    tally.verified("requests while tokens of networks and tags are replaced, none lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_interlink_are_replaced_under_load() {
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Lease::block(2).unwrap());
    let folder = product.folder();
    let accepted = secret(folder, "accepted", "old\n");
    let [at_plugin, at_api] = [0, 1].map(|index| format!("127.0.0.1:{}", ports.port(index)));
    let [data, own] = ["data", "own"].map(|name| folder.path().join(name).display().to_string());
    let plugin = ["plugin", "process", "--listen", &at_plugin, "--data-root", &data];
    let _plugin = product.role("plugin", &plugin, &[]).await.unwrap();
    let (sidecar, tokens) = (
        format!("edge.SidecarPort={}", ports.port(0)),
        format!("edge.AcceptedTokensFile={}", accepted.display()),
    );
    let api =
        ["interlink", "--listen", &at_api, "--data-root", &own, "--set", "edge.SidecarURL=http://127.0.0.1"];
    let _api =
        product.role("api", &[&api[..], &["--set", &sidecar, "--set", &tokens]].concat(), &[]).await.unwrap();

    // A node reads its token before each call, and so do these.
    let mine = secret(folder, "mine", "old\n");
    let (http, url) = (reqwest::Client::new(), format!("http://{at_api}/status"));
    let status = move |token: &str| answered(http.get(&url).bearer_auth(token).json(&json!([])));
    let tally = Arc::new(Tally::default());
    let load = keep_asking(&tally, {
        let status = status.clone();
        move || status(std::fs::read_to_string(&mine).unwrap().trim())
    });
    tally.unnoticed("the start").await;
    secret(folder, "accepted", "old\nnew\n");
    until("the new token to count", async || status("new").await.is_ok()).await;
    secret(folder, "mine", "new\n");
    tally.unnoticed("another token of nodes").await;
    secret(folder, "accepted", "new\n");
    until("the old token to be refused", async || status("old").await.is_err()).await;
    tally.unnoticed("the end of the old token").await;
    tally.over.store(true, SeqCst);
    load.await.unwrap();
    tally.verified("requests while tokens of interLink are replaced, none lost");
}

/// The keys of an identity provider as it would publish them.
fn publish(file: &Path, keys: &[&PrivateKey]) {
    let keys = keys.iter().map(|key| {
        let text = key.public().to_string();
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": key.public().id(), "x": text.strip_prefix("ed25519:") })
    });
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, json!({ "keys": keys.collect::<Vec<_>>() }).to_string()).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_identity_provider_are_replaced_under_load() {
    const ISSUER: &str = "https://id.example.org";
    let world = World::new().await;
    let file = world.product.folder().path().join("keys.json");
    let (old, new) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    publish(&file, &[&old]);
    let provider = json!([{
        "issuer": ISSUER, "audience": "tarbet", "algorithms": ["EdDSA"], "jwks_file": file,
        "grants": [{ "group": "dev", "roles": { "lab": "user" } }],
    }]);
    let extra = ["--set", &format!("gateway.oidc={provider}")];
    let gateways = [world.gateway("one", &extra).await, world.gateway("two", &extra).await];
    let _agent = world.site("lab", &gateways[0], &[&gateways[0], &gateways[1]], &[]).await;
    for gateway in &gateways {
        links_at(gateway, 1).await;
    }
    let signed = |key: &PrivateKey| -> [Client; 2] {
        let mut claims = Claims::expiring(jiff::Timestamp::now() + Duration::from_hours(1));
        claims.issuer = Some(ISSUER.into());
        claims.audience = vec!["tarbet".into()];
        claims.subject = Some("ann".into());
        claims.extra.insert("groups".into(), json!(["dev"]));
        let token = Signer::ed25519(key.clone()).sign(&claims);
        gateways.each_ref().map(|gateway| {
            Client::new(&gateway.api(), token.clone(), Some(&world.product.authority())).unwrap()
        })
    };
    let taken = async |clients: &[Client; 2]| {
        let [one, two] = clients.each_ref().map(|client| client.site("lab".parse().unwrap()));
        [name(&one).await.is_ok(), name(&two).await.is_ok()]
    };
    let (before, after) = (signed(&old), signed(&new));
    // Gateways read the keys in the background.
    until("the first key to count", async || taken(&before).await == [true; 2]).await;
    let tally = Arc::new(Tally::default());
    let ways: Ways = Arc::new(RwLock::new(before.clone()));
    let callers: Vec<_> = (0..4)
        .map(|offset| tokio::spawn(ask(Arc::clone(&ways), &["lab"], Arc::clone(&tally), offset)))
        .collect();
    tally.unnoticed("the start").await;
    publish(&file, &[&old, &new]);
    until("the new key to count", async || taken(&after).await == [true; 2]).await;
    *ways.write().await = after;
    tally.unnoticed("tokens of another key").await;
    publish(&file, &[&new]);
    until("the old key to be dead", async || taken(&before).await == [false; 2]).await;
    tally.unnoticed("the end of the old key").await;
    tally.over.store(true, SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    tally.verified("requests while keys of an identity provider are replaced, none lost");
}
