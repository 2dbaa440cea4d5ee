//! gRPC calls of services that no part of the tunnel knows, from the API listener of one gateway to an agent
//! at another.

use anyhow::{Result, ensure};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{GrpcEcho, GrpcEchoClient, Redis, eventually};

use super::gitlab::{AGENT, Gitlab, asking, token};
use super::{SOON, add_site, metric, product};

/// What the API listener and GitLab have in common.
const SECRET: [u8; 32] = [5; 32];

// gRPC's own numbers.
const NOT_FOUND: i32 = 5;
const FAILED_PRECONDITION: i32 = 9;
const ABORTED: i32 = 10;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The flags of a gateway that GitLab calls without TLS.
fn called(product: &Product) -> Result<Vec<String>> {
    let secret = product.folder().write("gitlab-api.secret", &base64(&SECRET))?;
    let settings = [
        "gateway.api.tls=~".to_owned(),
        // On a busy machine an agent may take long to start.
        "gateway.max_wait=5m".to_owned(),
        format!("gateway.kas.api_secret_file={}", secret.display()),
    ];
    Ok(settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect())
}

fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// A caller at a gateway's API listener with this token.
fn caller(gateway: &Gateway, token: &str, agent: i64) -> Result<GrpcEchoClient> {
    let (bearer, agent) = (format!("Bearer {token}"), agent.to_string());
    let metadata = [("authorization", bearer.as_str()), ("kas-hop-routing-agent-id", agent.as_str())];
    GrpcEchoClient::new(&gateway.api().replace("https:", "http:"), &metadata)
}

/// One call that is there before anybody can answer it.
async fn waiting(
    gateway: &Gateway,
    client: &GrpcEchoClient,
) -> Result<tokio::task::JoinHandle<Result<String>>> {
    let client = client.clone();
    let early = tokio::spawn(async move { Ok(client.say("early").await?.0) });
    eventually(SOON, "the call to wait", || metric(gateway, "tarbet_requests_waiting 1")).await?;
    Ok(early)
}

/// The flags of an agent that offers the service; those of a kas are told its methods, too.
fn offering(echo: &GrpcEcho) -> [String; 4] {
    let methods = GrpcEcho::METHODS.join(", ");
    [
        "--offer".to_owned(),
        format!("{}={}", GrpcEcho::SERVICE, echo.address()),
        "--set".to_owned(),
        format!("agent.kas.methods={{{}: [{methods}]}}", GrpcEcho::SERVICE),
    ]
}

/// Everything that gRPC can say, both ways.
async fn converse(client: &GrpcEchoClient) -> Result<()> {
    let client = client.with("x-word", "plover")?;
    let is = |metadata: Option<&_>, word: &str| metadata.is_some_and(|value| value == word);
    let (answer, begin) = client.say("hello").await?;
    ensure!(answer == "you said hello" && is(begin.get("x-begin"), "plover"), "{answer} {begin:?}");
    let large = "x".repeat(1_000_000);
    ensure!(client.say(&large).await?.0.len() == large.len() + "you said ".len());

    let failure = client.say("fail there is no such thing").await.unwrap_err();
    ensure!(failure.code() as i32 == FAILED_PRECONDITION && failure.message() == "there is no such thing");
    ensure!(is(failure.metadata().get("x-end"), "plover"), "{failure:?}");

    // Each answer comes before the next question, and the conversation before either.
    let mut chat = client.chat().await?;
    ensure!(is(chat.begin().get("x-begin"), "plover"), "{:?}", chat.begin());
    for word in ["one", "two", "three"] {
        ensure!(chat.say(word).await? == Some(format!("you said {word}")));
    }
    let end = chat.end().await?;
    ensure!(is(end.get("x-end"), "plover"), "{end:?}");

    let mut chat = client.chat().await?;
    ensure!(chat.say("one").await?.is_some());
    let failure = chat.say("fail").await.unwrap_err();
    ensure!(failure.code() as i32 == ABORTED && failure.message() == "as you wish", "{failure:?}");

    // What the agent lacks is no page that was not found.
    for method in ["/tarbet.test.Echo/Sing", "/tarbet.test.Other/Say"] {
        let lacks = client.call(method, "x").await.unwrap_err();
        ensure!(lacks.code() as i32 == UNIMPLEMENTED, "{method}: {lacks:?}");
    }
    Ok(())
}

/// Who may not call, and what is nobody's.
async fn refusals(product: &Product, home: &Gateway, entry: &Gateway, number: i64) -> Result<()> {
    let good = token(&SECRET, "gitlab");
    for wrong in [token(&[6; 32], "gitlab"), token(&SECRET, "gitlab-kas"), "tbu_nobody".into(), "x".into()] {
        let refused = caller(entry, &wrong, number)?.say("x").await.unwrap_err();
        ensure!(refused.code() as i32 == UNAUTHENTICATED, "{wrong}: {refused:?}");
    }
    let absent = caller(entry, &good, 4711)?.say("x").await.unwrap_err();
    ensure!(absent.code() as i32 == NOT_FOUND, "{absent:?}");
    // Our own users have their roles.
    let user = async |name: &str, site: &str| -> Result<String> {
        let said = product.run(home, &["user", "add", name, "--site", site, "-o", "json"]).await?;
        let made: serde_json::Value = serde_json::from_str(&said)?;
        Ok(made["token"].as_str().unwrap_or_default().to_owned())
    };
    product.run(home, &["site", "add", "elsewhere"]).await?;
    let (ann, bob) = (user("ann", "over-link").await?, user("bob", "elsewhere").await?);
    ensure!(caller(entry, &ann, number)?.say("as ann").await?.0 == "you said as ann");
    let hidden = caller(entry, &bob, number)?.say("as bob").await.unwrap_err();
    ensure!(hidden.code() as i32 == NOT_FOUND, "{hidden:?}");
    ensure!(hidden.message().replace(&number.to_string(), "4711") == absent.message(), "{hidden:?}");

    // Without an agent the method is the gateway's, and it has none of this name.
    let url = entry.api().replace("https:", "http:");
    let nobody = GrpcEchoClient::new(&url, &[("authorization", &format!("Bearer {good}"))])?;
    let lacks = nobody.say("x").await.unwrap_err();
    ensure!(lacks.code() as i32 == UNIMPLEMENTED, "{lacks:?}");
    let answer = reqwest::Client::new()
        .post(format!("{url}/tarbet.test.Echo/Say"))
        .header("content-type", "application/grpc")
        .send()
        .await?;
    ensure!(answer.status() == 200 && answer.headers()["grpc-status"] == "12", "{answer:?}");
    let page = reqwest::get(format!("{url}/tarbet.test.Echo/Say")).await?;
    ensure!(page.status() == 404, "{page:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_an_agent_is_called_through_the_gateway_that_does_not_hold_it() -> Result<()> {
    let (product, redis, echo) = (product(), Redis::start().await?, GrpcEcho::start().await?);
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let flags = called(&product)?;
    let holder = product.gateway("calls-holder", &store, &[]).await?;
    let entry = product.gateway("calls-entry", &store, &strs(&flags)).await?;
    let offers = offering(&echo);

    let (over_kas, kas_token) = add_site(&product, &holder, "over-kas").await;
    let client = caller(&entry, &token(&SECRET, "gitlab"), over_kas)?;
    let early = waiting(&entry, &client).await?;
    let address = holder.agents();
    let extra = [&["--kas-address", address.as_str()][..], &strs(&offers)].concat();
    let _joined: Agent = product.agent("calls-agentk", &kas_token, &[], &extra).await?;
    ensure!(early.await?? == "you said early");
    converse(&client).await?;

    let (over_link, link_token) = add_site(&product, &holder, "over-link").await;
    let client = caller(&entry, &token(&SECRET, "gitlab"), over_link)?;
    let early = waiting(&entry, &client).await?;
    let _linked = product.agent("calls-agent", &link_token, &[&holder], &strs(&offers)).await?;
    ensure!(early.await?? == "you said early");
    converse(&client).await?;

    refusals(&product, &holder, &entry, over_link).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_an_agent_is_called_through_replicas_of_a_kas() -> Result<()> {
    let (product, redis, echo) = (product(), Redis::start().await?, GrpcEcho::start().await?);
    let (_gitlab, url) = Gitlab::start().await;
    // Each has a store of its own: they share nothing but what a kas shares.
    let mut flags = asking(&product, &url);
    flags.extend(["--set".to_owned(), format!("gateway.kas.beside.redis.url={}", redis.url())]);
    let holder = product.gateway("calls-there", "{kind: memory}", &strs(&flags)).await?;
    flags.extend(called(&product)?);
    let entry = product.gateway("calls-here", "{kind: memory}", &strs(&flags)).await?;

    let client = caller(&entry, &token(&SECRET, "gitlab.example.org"), AGENT)?;
    let early = waiting(&entry, &client).await?;
    let (address, offers) = (holder.agents(), offering(&echo));
    let extra = [&["--kas-address", address.as_str()][..], &strs(&offers)].concat();
    let _joined = product.agent("calls-beside", "glagent-secret", &[], &extra).await?;
    ensure!(early.await?? == "you said early");
    converse(&client).await
}
