//! Metrics and probes over TLS: by our own settings, by a kas file, and by agentk's flags.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tarbet_testbed::{Authority, CertificateFiles, Folder, Lease, Process, Program, Subject, eventually};

const SOON: Duration = Duration::from_mins(1);

/// What a page says to one who trusts nobody but this authority.
async fn page(port: u16, path: &str, authority: &Authority) -> Result<String> {
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(authority.pem().as_bytes())?])
        .build()?;
    let answer = client.get(format!("https://127.0.0.1:{port}{path}")).send().await?;
    ensure!(answer.status().is_success(), "{path} answers {}", answer.status());
    Ok(answer.text().await?)
}

async fn is_ready(port: u16, authority: &Authority) -> Result<()> {
    page(port, "/readyz", authority).await.map(drop)
}

async fn tells(port: u16, authority: &Authority, line: &str) -> Result<()> {
    let found = page(port, "/metrics", authority).await?;
    ensure!(found.lines().any(|found| found == line), "no `{line}` in\n{found}");
    Ok(())
}

fn issue(authority: &Authority, folder: &Folder, name: &str) -> Result<CertificateFiles> {
    authority.issue_files(&Subject::loopback("probes"), folder.path(), name)
}

fn start(folder: &Folder, name: &str, args: &[&str]) -> Result<Process> {
    let program = Program::new(env!("CARGO_BIN_EXE_tarbet")).args(args);
    Process::start(folder, name, program.env("TARBET_STATE", folder.path()))
}

/// Text that is YAML and JSON alike.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_observed_over_tls_and_renews_its_certificate() -> Result<()> {
    let (folder, ports) = (Folder::new("probes")?, Lease::block(5)?);
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let (first, second) = (issue(&old, &folder, "first")?, issue(&new, &folder, "second")?);
    let settings = |files: &CertificateFiles| {
        let at = |index| format!("'127.0.0.1:{}'", ports.port(index));
        let (certificate, key) = (quoted(&files.certificate), quoted(&files.key));
        format!(
            "store: {{kind: memory}}\n\
             observability: {{listen: {}, tls: {{cert_file: {certificate}, key_file: {key}}}}}\n\
             gateway:\n  agents: {{listen: {}}}\n  api: {{listen: {}}}\n  kubernetes: {{listen: {}}}\n  \
             private: {{listen: {}}}\n",
            at(0),
            at(1),
            at(2),
            at(3),
            at(4),
        )
    };
    let file = folder.write("gateway.yaml", &settings(&first))?;
    let mut gateway = start(&folder, "gateway", &["gateway", "--config", file.to_str().context("a path")?])?;
    let port = ports.port(0);
    gateway.ready(SOON, || is_ready(port, &old)).await?;
    page(port, "/livez", &old).await?;
    tells(port, &old, "tarbet_config_is_current 1").await?;
    ensure!(reqwest::get(format!("http://127.0.0.1:{port}/livez")).await.is_err(), "no longer plain");
    ensure!(page(port, "/livez", &new).await.is_err(), "the authority is the one that was named");

    // Another certificate, in other files.
    std::fs::write(&file, settings(&second))?;
    gateway.hangup()?;
    eventually(SOON, "the new certificate", || is_ready(port, &new)).await?;
    ensure!(page(port, "/livez", &old).await.is_err(), "the old one is shown no more");

    // One that is none changes nothing.
    std::fs::write(&second.certificate, "no certificate")?;
    gateway.hangup()?;
    eventually(SOON, "the refusal", || tells(port, &new, "tarbet_config_is_current 0")).await?;
    page(port, "/livez", &new).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kas_file_and_the_flags_of_agentk_name_a_certificate() -> Result<()> {
    let (folder, ports) = (Folder::new("probes-kas")?, Lease::block(5)?);
    let authority = Authority::new("probes")?;
    let files = issue(&authority, &folder, "probes")?;
    let at = |index| format!("127.0.0.1:{}", ports.port(index));
    let kas = format!(
        "agent: {{listen: {{address: '{}'}}}}\n\
         observability: {{listen: {{address: '{}', certificate_file: {}, key_file: {}}}}}\n",
        at(1),
        at(0),
        quoted(&files.certificate),
        quoted(&files.key),
    );
    let kas = folder.write("kas.yaml", &kas)?.display().to_string();
    let others =
        [format!("gateway.api={{listen: '{}'}}", at(2)), format!("gateway.private={{listen: '{}'}}", at(3))];
    let args = ["gateway", "--kas-config", &kas, "--set", &others[0], "--set", &others[1]];
    let mut gateway = start(&folder, "kas", &args)?;
    let port = ports.port(0);
    gateway.ready(SOON, || is_ready(port, &authority)).await?;
    let log = gateway.log_tail();
    ensure!(!log.contains("certificate_file"), "nothing to warn of: {log}");

    let (kas_address, probes) = (format!("grpc://{}", at(1)), at(4));
    let token = folder.write("agent.token", "tba_nobody")?.display().to_string();
    let (certificate, key) = (files.certificate.display().to_string(), files.key.display().to_string());
    // A cluster that nobody asks.
    let cluster = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], \
                   clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}";
    let kubeconfig = folder.write("kubeconfig", cluster)?.display().to_string();
    let mut args =
        vec!["agent", "--kas-address", &kas_address, "--token-file", &token, "--kubeconfig", &kubeconfig];
    args.extend(["--observability-listen-address", &probes]);
    args.extend(["--observability-cert-file", &certificate, "--observability-key-file", &key]);
    // Its token is none, so that it never is ready; it lives all the same.
    let mut agent = start(&folder, "agentk", &args)?;
    let port = ports.port(4);
    agent.ready(SOON, || async { page(port, "/liveness", &authority).await.map(drop) }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_listeners_of_a_controller_speak_tls() -> Result<()> {
    let (folder, ports) = (Folder::new("probes-jobs")?, Lease::block(2)?);
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let files = issue(&old, &folder, "probes")?;
    let settings = format!(
        "observability: {{tls: {{cert_file: {}, key_file: {}}}}}\n",
        quoted(&files.certificate),
        quoted(&files.key)
    );
    let file = folder.write("jobs.yaml", &settings)?.display().to_string();
    // A cluster that does not answer: the controller is not ready, and lives.
    let cluster = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], \
                   clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}";
    let kubeconfig = folder.write("kubeconfig", cluster)?.display().to_string();
    let (metrics, probes) = (format!("127.0.0.1:{}", ports.port(0)), format!("127.0.0.1:{}", ports.port(1)));
    let args = [
        "jobs",
        "--config",
        &file,
        "--kubeconfig",
        &kubeconfig,
        "--remote-kubeconfig",
        &kubeconfig,
        "--metrics-bind-address",
        &metrics,
        "--health-probe-bind-address",
        &probes,
    ];
    let mut jobs = start(&folder, "jobs", &args)?;
    for port in ports.ports() {
        jobs.ready(SOON, || async { page(port, "/livez", &old).await.map(drop) }).await?;
        ensure!(
            reqwest::get(format!("http://127.0.0.1:{port}/livez")).await.is_err(),
            "plain text is spoken"
        );
    }
    ensure!(page(ports.port(1), "/metrics", &old).await.is_err(), "probes only");
    // Another certificate in the same files.
    let next = issue(&new, &folder, "next")?;
    std::fs::rename(&next.key, &files.key)?;
    std::fs::rename(&next.certificate, &files.certificate)?;
    for port in ports.ports() {
        eventually(SOON, "the new certificate", || async { page(port, "/livez", &new).await.map(drop) })
            .await?;
    }
    Ok(())
}
