//! The secrets that a kas's file names are replaced while everybody uses them: among replicas, of GitLab, of
//! those who call the API, and of the Redis.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_testbed::Lease;

use super::beside::knock;
use super::gitlab::{AGENT, Gitlab, RULES, connected_agents, token};
use super::*;
use crate::faults::certificates::taken_over;
use crate::faults::tokens::{keep_asking, secret};
use crate::faults::{Tally, over};

/// Secrets by a letter, one a line, as the file has them.
fn lines(letters: &[u8]) -> String {
    letters.iter().map(|letter| STANDARD.encode([*letter; 32]) + "\n").collect()
}

/// Two gateways in the places of two kas: they share a Redis and secrets, and nothing of our own.
struct Replicas {
    product: Product,
    ports: [Lease; 2],
    gateways: Vec<Agent>,
}

impl Replicas {
    async fn start(gitlab: &str, redis: &Redis) -> Result<Self> {
        let mut replicas =
            Self { product: product(), ports: [Lease::block(4)?, Lease::block(4)?], gateways: Vec::new() };
        for (name, letter) in [("private.secret", b'a'), ("api.secret", b'b')] {
            replicas.holds(name, &[letter]);
        }
        let folder = replicas.product.folder();
        let password = secret(folder, "redis.password", "first");
        let file = |name: &str| folder.path().join(name);
        for (index, name) in ["one", "two"].into_iter().enumerate() {
            let at = |port: u16| format!("127.0.0.1:{}", replicas.ports[index].port(port));
            let config = json!({
                "gitlab": {"address": gitlab, "authentication_secret_file": file("api.secret")},
                "agent": {
                    "listen": {"address": at(0)}, "kubernetes_api": {"listen": {"address": at(1)}},
                },
                "api": {"listen": {"address": at(2), "authentication_secret_file": file("api.secret")}},
                "private_api": {"listen": {"address": at(3), "authentication_secret_file": file("private.secret")}},
                "redis": {
                    "server": {"address": redis.url().trim_start_matches("redis://").trim_end_matches('/')},
                    "username": "replicas", "password_file": password,
                },
            });
            let file = folder.write(&format!("{name}.yaml"), &config.to_string())?.display().to_string();
            let args = ["gateway", "--kas-config", &file, "--set", "store.kind=memory"];
            let own = ("OWN_PRIVATE_API_URL", &*format!("grpc://{}", at(3)));
            replicas.gateways.push(replicas.product.role(name, &args, &[own]).await?);
        }
        Ok(replicas)
    }

    /// What a file of secrets holds from now on.
    fn holds(&self, file: &str, letters: &[u8]) -> PathBuf {
        secret(self.product.folder(), file, &lines(letters))
    }

    async fn read_again(&self) -> Result<()> {
        for gateway in &self.gateways {
            taken_over(&gateway.process, &format!("http://127.0.0.1:{}", gateway.probes())).await?;
        }
        Ok(())
    }

    fn at(&self, replica: usize, port: u16) -> String {
        format!("http://127.0.0.1:{}", self.ports[replica].port(port))
    }

    /// Whether another replica with this secret is let in at both.
    async fn knows_replica(&self, letter: u8) -> Result<bool> {
        let mut known = 0;
        for replica in [0, 1] {
            let token =
                KasSigner::private_api(SecretBytes::new(vec![letter; 32])).token(jiff::Timestamp::now());
            known +=
                usize::from(!knock(&self.at(replica, 3), token.expose()).await?.contains("grpc-status: 16"));
        }
        ensure!(known != 1, "one of the two only");
        Ok(known == 2)
    }

    /// Whether a GitLab with this secret is let in at this one.
    async fn knows_caller(&self, replica: usize, letter: u8) -> bool {
        connected_agents(&self.at(replica, 2), &token(&[letter; 32], "gitlab")).await.0.is_none()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_secret_of_a_kas_file_is_replaced_under_load() -> Result<()> {
    let redis = Redis::start().await?;
    redis.command(&["ACL", "SETUSER", "replicas", "on", ">first", "~*", "&*", "+@all"]).await?;
    let (gitlab, url) = Gitlab::start().await;
    gitlab.expects(&[b'b'; 32]);
    let replicas = Replicas::start(&url, &redis).await?;
    let policy = replicas.product.folder().write("policy.yaml", RULES)?.display().to_string();
    let address = replicas.at(1, 0).replace("http:", "grpc:");
    let _agent =
        agentk(&replicas.product, "agentk", "glagent-secret", &address, &["--policy", &policy]).await;

    // Each request enters where the agent is not, and shows the other replica a token of its own.
    let (http, version) = (reqwest::Client::new(), format!("{}/version", replicas.at(0, 1)));
    let tally = Arc::new(Tally::default());
    let load = keep_asking(&tally, move || {
        let request = http.get(&version).bearer_auth(format!("ci:{AGENT}:job-as-agent"));
        async move {
            let answer = request.send().await?;
            let (status, text) = (answer.status(), answer.text().await?);
            ensure!(status == 200 && text.contains("gitVersion"), "{status}: {text}");
            Ok(())
        }
    });
    tally.unnoticed("the start").await;

    // Among replicas: first both know the new one, then they sign with it, then the old one goes.
    for letters in [&b"ac"[..], b"ca", b"c"] {
        replicas.holds("private.secret", letters);
        replicas.read_again().await?;
        tally.unnoticed("a step of the secret among replicas").await;
    }
    ensure!(replicas.knows_replica(b'c').await? && !replicas.knows_replica(b'a').await?);

    // GitLab's: it calls with it, and it is called with it. Nobody says a word: the files are looked at.
    ensure!(replicas.knows_caller(0, b'b').await && !replicas.knows_caller(0, b'd').await);
    replicas.holds("api.secret", b"bd");
    replicas.read_again().await?;
    ensure!(replicas.knows_caller(0, b'd').await && replicas.knows_caller(1, b'b').await);
    gitlab.expects(&[b'd'; 32]);
    replicas.holds("api.secret", b"d");
    eventually(SOON, "the old secret to be refused", || async {
        if replicas.knows_caller(0, b'b').await || replicas.knows_caller(1, b'b').await {
            bail!("it still counts");
        }
        Ok(())
    })
    .await?;
    ensure!(replicas.knows_caller(1, b'd').await);
    // Somebody whom the gateway has not asked GitLab about before.
    let ask = reqwest::Client::new().get(format!("{}/version", replicas.at(0, 1)));
    let answer = ask.bearer_auth(format!("pat:{AGENT}:glpat-ada")).send().await?;
    ensure!(answer.status() != 401 && answer.status() != 502, "{}", answer.text().await?);
    tally.unnoticed("another secret of GitLab's").await;

    // The Redis: both passwords count for a while, and then connections with the old one end.
    redis.command(&["ACL", "SETUSER", "replicas", ">second"]).await?;
    secret(replicas.product.folder(), "redis.password", "second");
    redis.command(&["ACL", "SETUSER", "replicas", "<first"]).await?;
    let ended = redis.command(&["CLIENT", "KILL", "USER", "replicas"]).await?;
    ensure!(ended.trim().parse::<u32>()? >= 2, "no connection of a replica was ended: {ended}");
    tally.unnoticed("another password of the Redis").await;

    // A file that is none leaves everything as it is, and nothing of any secret is in a log.
    replicas.product.folder().write("api.secret", "no secret")?;
    for gateway in &replicas.gateways {
        gateway.process.hangup()?;
    }
    eventually(SOON, "the refusal", || async {
        for name in ["one.log", "two.log"] {
            let log = std::fs::read_to_string(replicas.product.folder().path().join(name))?;
            ensure!(log.contains("stays as it was") && log.contains("not base64"), "{log}");
        }
        Ok(())
    })
    .await?;
    ensure!(replicas.knows_caller(0, b'd').await);
    tally.unnoticed("a secret that is none").await;
    for name in ["one.log", "two.log"] {
        let log = std::fs::read_to_string(replicas.product.folder().path().join(name))?;
        for letter in *b"abcd" {
            ensure!(!log.contains(lines(&[letter]).trim()), "a secret is in {name}");
        }
    }
    over(&tally);
    load.await.context("the load")?;
    tally.verified("requests while secrets of a kas file are replaced, none lost");
    Ok(())
}
