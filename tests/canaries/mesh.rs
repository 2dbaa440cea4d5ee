//! The federation of meshes: keys of clusters, the token for a gateway, the key of a caller, and what is not exported.

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Folder, Kubectl, Lease, eventually, verified};
use tokio::net::TcpListener;

use super::{Canaries, LOUD, SOON, abort, secret_file};
use crate::mesh::{clean, connected, federation, planes, rules};

/// A gateway that refuses everybody, and repeats what it was shown while it does.
async fn echoing_gateway() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let refuse =
        async |request: Request| (StatusCode::FORBIDDEN, format!("not you: {:?}", request.headers()));
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(refuse)).await });
    Ok(url)
}

/// The state of this condition of a mesh.
async fn condition(kubectl: &Kubectl, name: &str) -> Result<String> {
    let federation = kubectl.json(&["get", "meshfederation", "default"]).await?;
    let all = federation["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|condition| condition["type"] == name);
    found.and_then(|found| found["status"].as_str()).map(str::to_owned).context("it is not told yet")
}

fn service(namespace: &str, name: &str, labels: &Value, annotation: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace, "labels": labels, "annotations": { "note": annotation } },
        "spec": { "ports": [{ "name": "http", "port": 80 }] },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_tokens_and_what_is_not_exported_are_told_by_no_mesh() -> Result<()> {
    let (canaries, (east, west, _turn)) = (Canaries::default(), planes().await);
    let (here, there) = (east.kubectl(), west.kubectl());
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
    let shop = west.unique_namespace("canary").await?;
    for kubectl in [&here, &there] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "istio-system" } });
        kubectl.apply(&namespace).await?;
    }
    // East is reached with a token, west with a certificate and its key.
    let token = east.client_config().token;
    canaries.watch("token of a cluster", &token);
    let east_config = east.kubeconfig_with_token(&token)?.display().to_string();
    let west_config = west.kubeconfig().display().to_string();
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&west_config)?)?;
    let key = known["users"][0]["user"]["client-key-data"].as_str().context("the administrator has a key")?;
    canaries.watch("key for a cluster", key);
    // What is exported is told with its labels, and with nothing else that its owner noted on it.
    let (own, hidden) = (canaries.hatch("annotation"), canaries.hatch("hidden annotation"));
    there.apply(&service(&shop, "pay", &json!({ "export": "true" }), &own)).await?;
    let label = json!({ "owner": canaries.hatch("label") });
    there.apply(&service(&shop, "hidden", &label, &hidden)).await?;

    here.apply(&federation("east", "west", &["192.0.2.1"])).await?;
    here.apply(&rules("west")).await?;
    there.apply(&federation("west", "east", &["192.0.2.2"])).await?;
    there.apply(&rules("east")).await?;
    let ports = Lease::block(2)?;
    let at = |index| format!("127.0.0.1:{}", ports.port(index));
    let state = product.folder().path().join("state").display().to_string();
    let environment = [("POD_NAMESPACE", "istio-system"), ("TARBET_STATE", state.as_str())];
    let peer = format!("west={}", at(1));
    let words = ["mesh", "--kubeconfig", &east_config, "--listen", &at(0), "--discovery", &peer];
    let mut hears = product.role("mesh-east", &[&words[..], &LOUD].concat(), &environment).await?;
    // West goes through a gateway that does not let it.
    let gateway = echoing_gateway().await?;
    let mine = canaries.hatch("token for a gateway");
    let mine = secret_file(product.folder(), "gateway.token", &mine)?.display().to_string();
    let words = ["mesh", "--kubeconfig", &west_config, "--listen", &at(1), "--via-site", "east=lab"];
    let way = ["--server", &gateway, "--token-file", &mine];
    let mut refused = product.role("mesh-west", &[&words[..], &way, &LOUD].concat(), &environment).await?;

    connected(&here).await;
    let imported = format!("importedservice/pay-{shop}-svc-cluster-local");
    let ready = ["wait", &imported, "-n", "istio-system", "--for=condition=Ready", "--timeout=5s"];
    eventually(SOON, "the import", || here.run(&ready)).await?;
    eventually(SOON, "west to say that it does not hear", || async {
        let so = condition(&there, "RemotesConnected").await?;
        ensure!(so == "False", "{so}");
        Ok(())
    })
    .await?;

    // A person looks, and tries a call with a key that is no key.
    let folder = Folder::new("identity")?;
    for file in ["cert-chain.pem", "key.pem", "root-cert.pem"] {
        let text = canaries.hatch("key of a caller");
        folder.write(file, &format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"))?;
    }
    let identity = folder.path().display().to_string();
    let to = format!("pay.{shop}");
    let trial = ["mesh", "test", "--to", &to, "--kubeconfig", &east_config, "--identity", &identity];
    canaries.run(&trial, &environment, false).await?;
    for config in [&east_config, &west_config] {
        canaries.run(&["mesh", "status", "--kubeconfig", config], &environment, true).await?;
    }

    let made = "meshfederations,federationservicerules,importedservices,gateways.networking.istio.io,\
        serviceentries.networking.istio.io,peerauthentications.security.istio.io,\
        authorizationpolicies.security.istio.io,events";
    for (mesh, kubectl) in [("east", &here), ("west", &there)] {
        let all = kubectl.run(&["get", made, "-A", "-o", "json"]).await?;
        ensure!(all.contains("MeshFederation"), "{all}");
        canaries.search(&format!("what was made in {mesh}"), &all)?;
    }
    for role in [&mut hears, &mut refused] {
        let page = reqwest::get(format!("http://127.0.0.1:{}/metrics", role.probes())).await?.text().await?;
        canaries.search("the metrics", &page)?;
        abort(&mut role.process).await?;
    }
    let logs = canaries.search_logs(product.folder().path())?;
    ensure!(logs == 2, "{logs} logs");
    for plane in [east, west] {
        clean(&product, plane).await;
    }
    there.run(&["delete", "namespace", &shop, "--wait=false"]).await?;
    verified("keys, tokens and what meshes do not export, none told anywhere", canaries.count());
    Ok(())
}
