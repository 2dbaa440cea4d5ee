//! SIGHUP: limits, certificates, policies and gateways change under running streams, and what is wrong in a
//! file changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Authority, Lease, Redis, Subject, eventually};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const SOON: Duration = Duration::from_mins(1);

fn product() -> Product {
    Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap()
}

async fn add_site(product: &Product, gateway: &Gateway, name: &str) -> Result<String> {
    let said = product.run(gateway, &["site", "add", name, "-o", "json"]).await?;
    let site: Value = serde_json::from_str(&said)?;
    Ok(site["token"]["token"].as_str().context("no token")?.to_owned())
}

/// A host behind a site: says every five letters back in capitals.
pub(crate) async fn shouting() -> Result<u16> {
    let backend = TcpListener::bind("127.0.0.1:0").await?;
    let port = backend.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = backend.accept().await {
            tokio::spawn(async move {
                let mut word = [0; 5];
                while stream.read_exact(&mut word).await.is_ok() {
                    if stream.write_all(&word.map(|byte| byte.to_ascii_uppercase())).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(port)
}

pub(crate) async fn shout(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<()> {
    stream.write_all(b"hello").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    ensure!(&answer == b"HELLO", "{answer:?}");
    Ok(())
}

async fn shout_anew(port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    shout(&mut stream).await?;
    Ok(stream)
}

/// Whether a metrics page has these lines.
async fn tells(page: &str, lines: &[&str]) -> Result<()> {
    let page = reqwest::get(format!("{page}/metrics")).await?.text().await?;
    for line in lines {
        ensure!(page.lines().any(|found| found == *line), "no `{line}` in\n{page}");
    }
    Ok(())
}

/// Asks over TLS, trusting nobody but this authority.
async fn greets(gateway: &Gateway, authority: &str) -> Result<()> {
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(authority.as_bytes())?])
        .build()?;
    let answer = client.get(format!("{}/version", gateway.kubernetes())).send().await?;
    ensure!(answer.status() == 401, "{}", answer.status());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_takes_over_limits_and_certificates_and_keeps_its_streams() -> Result<()> {
    let (product, ports, backend) = (product(), Lease::block(1)?, shouting().await?);
    let port = ports.port(0);
    let set =
        format!("gateway.ports=[{{listen: '127.0.0.1:{port}', site: db, target: '127.0.0.1:{backend}'}}]");
    let gateway = product.gateway("reloading", "{kind: memory}", &["--set", &set]).await?;
    let token = add_site(&product, &gateway, "db").await?;
    let rules = format!("tcp: [{{host: 127.0.0.1, ports: [{backend}]}}]\n");
    let policy = product.folder().write("policy.yaml", &rules)?;
    let flags = ["--policy", policy.to_str().unwrap()];
    let _agent = product.agent("db-agent", &token, &[&gateway], &flags).await?;
    let file = product.folder().path().join("reloading.yaml");
    let before = std::fs::read_to_string(&file)?;
    let page = gateway.observability();
    let hangup = async |lines: &[&str]| {
        gateway.process.hangup()?;
        eventually(SOON, "the outcome", || tells(&page, lines)).await
    };
    let mut live = eventually(SOON, "the first stream", || shout_anew(port)).await?;

    // A limit, and a certificate of another authority for one of the listeners.
    let renewed = Authority::new("renewed")?;
    let issue = || renewed.issue_files(&Subject::loopback("gateway"), product.folder().path(), "renewed");
    let files = issue()?;
    let old = format!("tls: {{authority_folder: {}}}", product.authority().parent().unwrap().display());
    let new =
        format!("tls: {{cert_file: {}, key_file: {}}}", files.certificate.display(), files.key.display());
    let of_kubernetes = before.lines().find(|line| line.contains(" kubernetes:")).context("no listener")?;
    let changed = before.replace(of_kubernetes, &of_kubernetes.replace(&old, &new));
    ensure!(changed != before);
    let limited = format!("{changed}  quotas: {{site: {{streams: 1}}}}\n");
    let authority = std::fs::read_to_string(product.authority())?;
    greets(&gateway, &authority).await?;
    std::fs::write(&file, &limited)?;
    hangup(&["tarbet_config_reloads_total{outcome=\"applied\"} 1", "tarbet_config_is_current 1"]).await?;
    shout(&mut live).await.context("what was open stays open")?;
    greets(&gateway, renewed.pem()).await.context("the new certificate is shown")?;
    ensure!(greets(&gateway, &authority).await.is_err(), "and the old one is not");
    // What was open before there was a limit does not count against it.
    let mut second = eventually(SOON, "the one that is permitted", || shout_anew(port)).await?;
    ensure!(shout_anew(port).await.is_err(), "the limit counts");

    // A file with a mistake, then a certificate that is none: nothing changes, and it is told.
    std::fs::write(&file, format!("{before}  quotas: [\n"))?;
    let current = "tarbet_config_is_current 0";
    hangup(&["tarbet_config_reloads_total{outcome=\"refused\"} 1", current]).await?;
    std::fs::write(&file, &changed)?;
    let good = std::fs::read_to_string(&files.certificate)?;
    std::fs::write(&files.certificate, "no certificate")?;
    hangup(&["tarbet_config_reloads_total{outcome=\"refused\"} 2", current]).await?;
    let log = gateway.process.log_tail();
    ensure!(log.contains("stays as it was") && log.contains("TB-"), "{log}");
    ensure!(shout_anew(port).await.is_err(), "the limit is as it was");
    greets(&gateway, renewed.pem()).await?;
    for stream in [&mut live, &mut second] {
        shout(stream).await?;
    }

    // Well again, and without the limit.
    std::fs::write(&files.certificate, good)?;
    hangup(&["tarbet_config_reloads_total{outcome=\"applied\"} 2", "tarbet_config_is_current 1"]).await?;
    shout_anew(port).await.context("no limit")?;
    // What cannot change is named.
    std::fs::write(&file, changed.replace("recheck: 1s", "recheck: 2s"))?;
    hangup(&["tarbet_config_reloads_total{outcome=\"applied\"} 3"]).await?;
    let log = gateway.process.log_tail();
    ensure!(log.contains("gateway.recheck"), "{log}");
    for stream in [&mut live, &mut second] {
        shout(stream).await?;
    }
    Ok(())
}

/// The configuration of an agent in a file.
fn agent_config(folder: &Path, gateway: &str, authority: &Path) -> Result<PathBuf> {
    let at = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "agent:\n  gateways: ['{gateway}']\n  token_file: {}\n  ca_file: {}\n  policy_file: {}\n",
        at("moving.token"),
        authority.display(),
        at("moving.policy.yaml"),
    );
    let file = folder.join("moving.yaml");
    std::fs::write(&file, text)?;
    Ok(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_moves_to_another_gateway_and_what_runs_finishes_at_the_first() -> Result<()> {
    let (product, redis, ports) = (product(), Redis::start().await?, Lease::block(1)?);
    let (backend, port, folder) = (shouting().await?, ports.port(0), product.folder().path());
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let set =
        format!("gateway.ports=[{{listen: '127.0.0.1:{port}', site: db, target: '127.0.0.1:{backend}'}}]");
    let first = product.gateway("first", &store, &["--set", &set]).await?;
    let second = product.gateway("second", &store, &[]).await?;
    let token = add_site(&product, &first, "db").await?;
    product.folder().write("moving.token", &token)?;
    product.folder().write("moving.policy.yaml", "tcp: [{host: 127.0.0.1, ports: [1]}]\n")?;
    let file = agent_config(folder, &first.agents(), &product.authority())?;
    let agent = product.role("moving", &["agent", "--config", file.to_str().unwrap()], &[]).await?;
    let page = format!("http://127.0.0.1:{}", agent.probes());
    let hangup = async |lines: &[&str]| {
        agent.process.hangup()?;
        eventually(SOON, "the outcome", || tells(&page, lines)).await
    };
    ensure!(shout_anew(port).await.is_err(), "the policy permits another port only");
    product
        .folder()
        .write("moving.policy.yaml", &format!("tcp: [{{host: 127.0.0.1, ports: [{backend}]}}]\n"))?;
    hangup(&["tarbet_config_reloads_total{outcome=\"applied\"} 1"]).await?;
    let mut live = shout_anew(port).await.context("the policy was read again at once")?;

    // An authority that is none: refused, and everything goes on.
    let broken = product.folder().write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n")?;
    agent_config(folder, &second.agents(), &broken)?;
    hangup(&["tarbet_config_reloads_total{outcome=\"refused\"} 1", "tarbet_config_is_current 0"]).await?;
    shout(&mut live).await?;
    tells(&second.observability(), &["tarbet_links 0"]).await.context("nothing was dialled")?;

    agent_config(folder, &second.agents(), &product.authority())?;
    hangup(&["tarbet_config_reloads_total{outcome=\"applied\"} 2", "tarbet_config_is_current 1"]).await?;
    let (at_first, at_second) = (first.observability(), second.observability());
    eventually(SOON, "links at the second", || tells(&at_second, &["tarbet_links 2"])).await?;
    shout(&mut live).await.context("what runs at the first finishes there")?;
    // The first finds the site at the second now.
    let mut anew = eventually(SOON, "a stream through both", || shout_anew(port)).await?;
    shout(&mut anew).await?;
    drop(live);
    eventually(SOON, "the first to be left", || tells(&at_first, &["tarbet_links 0"])).await?;
    shout(&mut anew).await
}
