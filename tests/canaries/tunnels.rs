//! Two clouds connected by a VPN: the key they share is in no log and no answer.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, Netlab, verified};

use super::{Canaries, LOUD, abort};

/// The keys in the files of the daemons, which are their owner's alone.
fn keys(folder: &std::path::Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path().join("swanctl.conf");
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let key = text.lines().find_map(|line| line.trim().strip_prefix("secret = \"")).context("no key")?;
        found.push(key.trim_end_matches('"').to_owned());
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_vpn_is_told_nowhere() -> Result<()> {
    let (canaries, lab) = (Canaries::default(), Netlab::start().await?);
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet"))?, Lease::block(4)?);
    let at = |index| json!({ "host": "127.0.0.1", "port": ports.port(index) });
    let local =
        json!({ "prefix": lab.prefix(), "wan": format!("{}-wan", lab.prefix()), "folder": lab.folder() });
    let config = json!({
        "store": { "kind": "redb", "path": product.folder().path().join("nets.redb") },
        "nets": {
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": at(2), "kvStore": at(3),
            "cloudPlugins": [{ "name": "east", "local": local }, { "name": "west", "local": local }],
            "namespaces": { "default": [{ "name": "east", "deployment": "e" }, { "name": "west", "deployment": "w" }] },
        },
    });
    let config = product.folder().write("nets.yaml", &config.to_string())?.display().to_string();
    let mut nets = product.role("nets", &[&["nets", "--config", &config][..], &LOUD].concat(), &[]).await?;
    let rest = format!("http://127.0.0.1:{}", ports.port(0));
    let http = reqwest::Client::new();
    let mut answers = Vec::new();
    let mut ask = async |method: Method, path: &str, body: Value| -> Result<()> {
        let answer = http.request(method.clone(), format!("{rest}/{path}")).json(&body).send().await?;
        let (status, head) = (answer.status(), format!("{:?}", answer.headers()));
        let said = format!("{method} {path}: {status} {head} {}", answer.text().await?);
        ensure!(status.is_success(), "{said}");
        answers.push(said);
        Ok(())
    };
    let machine = |cloud: &str| format!("namespaces/default/clouds/{cloud}/resources/vm");
    let described = json!({ "description": json!({ "region": "main" }).to_string() });
    for cloud in ["east", "west"] {
        ask(Method::PUT, &machine(cloud), described.clone()).await?;
    }
    let rule = json!([{ "name": "out", "direction": 1, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.west.vm"] }]);
    ask(Method::POST, &format!("{}/applyRules?plan=true", machine("east")), rule.clone()).await?;
    ask(Method::POST, &format!("{}/applyRules", machine("east")), rule).await?;
    for path in ["topology", "operations", "drift", "namespaces/default/resources"] {
        ask(Method::GET, path, Value::Null).await?;
    }
    let keys = keys(lab.folder())?;
    ensure!(keys.len() == 4, "two tunnels with two ends each, not {}", keys.len());
    ensure!(keys.iter().all(|key| key == &keys[0] && key.len() >= 32), "one strong key for the pair");
    canaries.watch("key of a VPN", &keys[0]);
    for said in &answers {
        canaries.search("an answer", said)?;
    }
    let page = reqwest::get(format!("http://127.0.0.1:{}/metrics", nets.probes())).await?.text().await?;
    canaries.search("the metrics", &page)?;
    // It dies in a bad way and finds its tunnels again.
    abort(&mut nets.process).await?;
    nets.process.restart().await?;
    nets.ready().await?;
    let topology = reqwest::get(format!("{rest}/topology")).await?.text().await?;
    canaries.search("the topology", &topology)?;
    nets.process.stop().await?;
    let logs = canaries.search_logs(product.folder().path())?;
    ensure!(logs == 1, "{logs} logs");
    verified("keys of VPNs, none told anywhere", canaries.count());
    Ok(())
}
