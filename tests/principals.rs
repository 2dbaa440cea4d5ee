//! Callers without a token of ours: a certificate says who they are, on the command line as well.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::{Authority, CertificateFiles, Subject, shared_pair};
use tokio::process::Command;

/// What somebody with this certificate, and no token, gets from a command.
async fn run(
    product: &Product,
    gateway: &Gateway,
    own: &CertificateFiles,
    args: &[&str],
) -> Result<(bool, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_tarbet"))
        .args(args)
        .env("TARBET_CLIENT_CERTIFICATE", &own.certificate)
        .env("TARBET_CLIENT_KEY", &own.key)
        .env("TARBET_SERVER", gateway.api())
        .env("TARBET_KUBERNETES", gateway.kubernetes())
        .env("TARBET_CA_FILE", product.authority())
        .env_remove("TARBET_TOKEN_FILE")
        .kill_on_drop(true)
        .output()
        .await?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_a_credential_on_the_command_line_and_for_kubectl() -> Result<()> {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let (people, strangers) = (Authority::new("people")?, Authority::new("strangers")?);
    let ca: PathBuf = product.folder().write("people.pem", people.pem())?;
    let ca = |listener: &str| format!("gateway.{listener}.tls.client_ca_file={}", ca.display());
    let grants = "gateway.certificates.grants=[{group: ops, roles: {'*': user}}, {group: boss, admin: true}]";
    let (kubernetes, api) = (ca("kubernetes"), ca("api"));
    let extra = ["--set", &kubernetes, "--set", &api, "--set", grants];
    let gateway = product.gateway("known", "{kind: memory}", &extra).await?;
    let issue = |authority: &Authority, name: &str, group: &str| {
        authority.issue_files(&Subject::client(name, Some(group)), product.folder().path(), name)
    };
    let (ann, root, eve) =
        (issue(&people, "ann", "ops")?, issue(&people, "root", "boss")?, issue(&strangers, "eve", "boss")?);

    let (ok, said) = run(&product, &gateway, &root, &["site", "add", "lab", "-o", "json"]).await?;
    ensure!(ok, "{said}");
    let site: Value = serde_json::from_str(&said)?;
    let token = site["token"]["token"].as_str().context("no token")?.to_owned();
    let (ok, said) = run(&product, &gateway, &ann, &["site", "add", "den"]).await?;
    ensure!(!ok && said.contains("TB-"), "a user administers nothing: {said}");
    let (ok, said) = run(&product, &gateway, &ann, &["site", "list"]).await?;
    ensure!(ok && said.contains("lab"), "{said}");
    ensure!(!run(&product, &gateway, &eve, &["site", "list"]).await?.0, "an authority nobody named");

    // kubectl shows the same certificate.
    let kubeconfig = shared_pair().await?.private.kubeconfig().display().to_string();
    let _agent = product.agent("lab-agent", &token, &[&gateway], &["--kubeconfig", &kubeconfig]).await?;
    let file = product.folder().path().join("ann.kubeconfig");
    let login = ["kube", "login", "lab", "--kubeconfig", file.to_str().unwrap()];
    let (ok, said) = run(&product, &gateway, &ann, &login).await?;
    ensure!(ok, "{said}");
    let written = std::fs::read_to_string(&file)?;
    ensure!(written.contains("client-certificate") && !written.contains("token"), "{written}");
    let kubectl = shared_pair().await?.private.kubectl_with(file);
    ensure!(kubectl.run(&["get", "namespaces"]).await?.contains("kube-system"));
    // The key goes with its certificate.
    let (code, said) = product.command(&["site", "--client-certificate", "x.pem", "list"]).await?;
    ensure!(code == Some(2) && said.contains("--client-key"), "{code:?} {said}");
    // What names the gateway stands at either word.
    let (api, authority) = (gateway.api(), product.authority().display().to_string());
    let admin = product.admin_token().display().to_string();
    let named = ["site", "--ca-file", &authority, "add", "late", "--server", &api, "--token-file", &admin];
    let (code, said) = product.command(&named).await?;
    ensure!(code == Some(0) && said.contains("late"), "{code:?} {said}");
    Ok(())
}
