//! Replicas that know each other only as replicas of a kas do: by its keys in Redis and its private API.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Redis, eventually};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use super::gitlab::{AGENT, Gitlab, RULES, asking};
use super::{SOON, agentk, bearer, exercise, kubectl, metric, product};

/// Asks about the key of the agent 7 as a kas was seen to write it: the number is eight raw bytes, which only
/// a script can spell.
async fn ask(redis: &Redis, question: &str) -> Result<String> {
    let key = "'gitlab-kas:tunnel_tracker2:kas_by_agent_id:' .. string.char(7, 0, 0, 0, 0, 0, 0, 0)";
    let said = redis.command(&["EVAL", &format!("local key = {key}; return {question}"), "0"]).await?;
    Ok(said.trim().to_owned())
}

/// A gateway with a store of its own: it shares nothing with others but what a kas shares.
async fn replica(product: &Product, name: &str, gitlab: &str, redis: &Redis) -> Result<Gateway> {
    let mut flags = asking(product, gitlab);
    // Requests wait here for processes that are started meanwhile.
    for set in [format!("gateway.kas.beside.redis.url={}", redis.url()), "gateway.max_wait=5m".to_owned()] {
        flags.extend(["--set".to_owned(), set]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    product.gateway(name, "{kind: memory}", &flags).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_at_one_replica_is_reached_through_the_other_and_back() -> Result<()> {
    let (product, redis) = (product(), Redis::start().await?);
    let (_gitlab, url) = Gitlab::start().await;
    let mut one = replica(&product, "kas-one", &url, &redis).await?;
    let two = replica(&product, "kas-two", &url, &redis).await?;
    let policy = product.folder().write("beside-policy.yaml", RULES)?;
    let extra = ["--policy", policy.to_str().unwrap()];
    let job = async |gateway: &Gateway, name: &str| {
        kubectl(bearer(&product, gateway, name, &format!("ci:{AGENT}:job-as-agent"))).await
    };

    // Nobody has the agent yet: the request waits at the one, and the agent comes to the other.
    let (at_one, at_two) = (job(&one, "at-one").await, job(&two, "at-two").await);
    let waiting = tokio::spawn({
        let kubectl = at_one.clone();
        async move { kubectl.run(&["get", "--raw", "/version"]).await }
    });
    eventually(SOON, "the request to wait", || metric(&one, "tarbet_requests_waiting 1")).await?;
    let mut agent = agentk(&product, "beside-agentk", "glagent-secret", &two.agents(), &extra).await;
    ensure!(waiting.await??.contains("gitVersion"));
    // Reads, writes and a watch, entering where the agent is not.
    exercise(&at_one).await;
    exercise(&at_two).await;
    // Names that GitLab gives go along.
    let ada = kubectl(bearer(&product, &one, "ada", &format!("pat:{AGENT}:glpat-ada"))).await;
    let said = format!("{:#}", ada.run(&["get", "namespaces"]).await.unwrap_err());
    ensure!(said.contains("gitlab:user:ada") && said.contains("forbidden"), "{said}");

    // What stands in Redis is what a kas writes: its private URL, and six bytes that hold only an expiry.
    let fields = ask(&redis, "redis.call('HKEYS', key)").await?;
    ensure!(fields.lines().count() == 1 && fields.starts_with("grpc://127.0.0.1:"), "{fields}");
    ensure!(ask(&redis, "#redis.call('HVALS', key)[1]").await? == "6");
    let lives: i64 = ask(&redis, "redis.call('PTTL', key)").await?.parse()?;
    ensure!((1..=300_000).contains(&lives), "{lives}");
    let connected = "gitlab-kas:agent_tracker2:connected_agents";
    ensure!(redis.command(&["HKEYS", connected]).await?.trim() == AGENT.to_string());

    // The agent dies without a word, and comes back at the other one; requests go the other way round.
    agent.process.kill9()?;
    let gone = async || {
        let left = ask(&redis, "redis.call('HLEN', key)").await?;
        ensure!(left == "0", "{left}");
        Ok(())
    };
    eventually(SOON, "the entry to be removed", gone).await?;
    let forgotten = async || {
        let left = redis.command(&["HLEN", connected]).await?;
        ensure!(left.trim() == "0", "{left}");
        Ok(())
    };
    eventually(SOON, "the dead process to be removed", forgotten).await?;
    let _agent = agentk(&product, "beside-agentk-2", "glagent-secret", &one.agents(), &extra).await;
    exercise(&at_two).await;

    // One that is told to stop takes its entry along, and what it noted of the agent.
    one.process.stop().await?;
    gone().await?;
    forgotten().await
}

/// One gRPC call to a private listener, as a kas makes it: the head of what it answers at once.
pub(super) async fn knock(address: &str, token: &str) -> Result<String> {
    let path = "gitlab.agent.kubernetes_api.rpc.KubernetesApi/MakeRequest";
    let (url, bearer) = (format!("{address}/{path}"), format!("authorization: Bearer {token}"));
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["-s", "-D", "-", "-o", "/dev/null", "--http2-prior-knowledge", "-X", "POST", &url]);
    curl.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", &bearer]);
    curl.args(["-H", "kas-hop-routing-agent-id: 8"]);
    // Somebody who is let in waits for a tunnel: the head is read, not the end.
    let mut curl = curl.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(curl.stdout.take().context("no output")?).lines();
    let mut said = String::new();
    while let Some(line) = timeout(SOON, lines.next_line()).await??.filter(|line| !line.trim().is_empty()) {
        said += &(line + "\n");
    }
    ensure!(said.starts_with("HTTP/2 200"), "{said}");
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_private_listener_takes_nobody_without_the_secret() -> Result<()> {
    let (product, redis) = (product(), Redis::start().await?);
    let (_gitlab, url) = Gitlab::start().await;
    let gateway = replica(&product, "kas-closed", &url, &redis).await?;
    let address = gateway.private();
    // The test bed's secret, in base64 in its file.
    let secret = SecretBytes::new(b"tarbet-test-bed-secret-012345678".to_vec());
    let sign = |secret: SecretBytes| KasSigner::private_api(secret).token(jiff::Timestamp::now());
    let good = sign(secret.clone());
    // In: it is told whether there is a tunnel by frames, not by a status.
    let said = knock(&address, good.expose()).await?;
    ensure!(!said.contains("grpc-status"), "{said}");
    let foreign = sign(SecretBytes::new(vec![9; 32]));
    let for_gitlab = KasSigner::gitlab(secret).token(jiff::Timestamp::now());
    for wrong in [foreign.expose(), for_gitlab.expose(), "", "x"] {
        let said = knock(&address, wrong).await?;
        ensure!(said.contains("grpc-status: 16"), "{wrong}: {said}");
    }
    Ok(())
}
