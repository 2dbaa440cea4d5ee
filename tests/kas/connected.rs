//! Which agents GitLab is told are connected.

use anyhow::{Result, ensure};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Redis, eventually};

use super::gitlab::token;
use super::{SOON, add_site, agentk, product};

/// The test bed's secret, in base64 in its file.
const SECRET: &[u8] = b"tarbet-test-bed-secret-012345678";

async fn gateway(product: &Product, name: &str, store: &str) -> Gateway {
    let secret = product.folder().path().join("gateways.secret").display().to_string();
    let set = format!("gateway.kas.api_secret_file={secret}");
    product.gateway(name, store, &["--set", &set]).await.unwrap()
}

/// How many processes of an agent are connected, and everything that was said of them.
async fn connected(product: &Product, gateway: &Gateway, agent: i64) -> Result<(usize, String)> {
    let authority = std::fs::read(product.authority())?;
    let client = reqwest::Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority)?)
        .build()?;
    // One frame with field 2, the number of the agent.
    let request = client
        .post(format!("{}/gitlab.agent.agent_tracker.rpc.AgentTracker/GetConnectedAgents", gateway.api()))
        .header("content-type", "application/grpc")
        .header("authorization", format!("bearer {}", token(SECRET, "gitlab")))
        .body(vec![0, 0, 0, 0, 2, 0x10, u8::try_from(agent)?]);
    let response = request.send().await?;
    ensure!(response.headers().get("grpc-status").is_none(), "{:?}", response.headers());
    let body = response.bytes().await?;
    ensure!(body.len() >= 5, "{body:?}");
    let (mut rest, mut count) = (&body[5..], 0);
    while let [0x0a, tail @ ..] = rest {
        // The length of one process, in as many bytes as it needs.
        let size = tail.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let length = tail[..size].iter().rev().fold(0, |sum, byte| (sum << 7) | usize::from(byte & 0x7f));
        rest = &tail[size + length..];
        count += 1;
    }
    ensure!(rest.is_empty(), "{body:?}");
    Ok((count, String::from_utf8_lossy(&body).into_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_listed_while_it_is_there_whatever_protocol_it_speaks() -> Result<()> {
    let (product, redis) = (product(), Redis::start().await?);
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let entry = gateway(&product, "connected-entry", &store).await;
    let mut holder = gateway(&product, "connected-holder", &store).await;
    let (number, secret) = add_site(&product, &entry, "listed").await;
    let expect = async |what: &str, right: fn(usize) -> bool| {
        let asked = async || {
            let (count, said) = connected(&product, &entry, number).await?;
            ensure!(right(count), "{count} processes: {said}");
            Ok(said)
        };
        eventually(SOON, what, asked).await
    };
    // One that is killed cannot say that it leaves.
    let mut agent = agentk(&product, "connected-kas", &secret, &holder.agents(), &[]).await;
    expect("the process to be listed", |count| count == 1).await?;
    agent.process.kill9()?;
    expect("the dead process to be forgotten", |count| count == 0).await?;

    // One of two at the same gateway, and one of two at different ones.
    let mut first = agentk(&product, "connected-first", &secret, &holder.agents(), &[]).await;
    let mut second = agentk(&product, "connected-second", &secret, &holder.agents(), &[]).await;
    let mut third = agentk(&product, "connected-third", &secret, &entry.agents(), &[]).await;
    expect("all three", |count| count == 3).await?;
    first.process.kill9()?;
    expect("the first to be forgotten", |count| count == 2).await?;
    second.process.kill9()?;
    expect("the second to be forgotten", |count| count == 1).await?;
    third.process.kill9()?;
    expect("all to be forgotten", |count| count == 0).await?;

    // One of our own protocol is as good, with each of its links.
    let mut native = product.agent("connected-native", &secret, &[&holder], &[]).await?;
    let said = expect("the agent of our own protocol", |count| count > 0).await?;
    ensure!(said.contains("connected-native"), "{said}");
    native.process.kill9()?;
    expect("its end", |count| count == 0).await?;

    // A gateway that stops takes along what it noted.
    let _agent = agentk(&product, "connected-again", &secret, &holder.agents(), &[]).await;
    expect("the process to be listed again", |count| count == 1).await?;
    holder.process.stop().await?;
    let (count, said) = connected(&product, &entry, number).await?;
    ensure!(count == 0, "{said}");
    Ok(())
}
