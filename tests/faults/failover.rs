//! The store's master dies while people ask: Sentinels choose another, and gateways follow it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::Value;
use tarbet_testbed::product::Product;
use tarbet_testbed::{Sentinels, effort, eventually, verified};

use super::crowd::Crowd;
use super::rotation::links_at;
use super::{SOON, asking, name};

#[tokio::test(flavor = "multi_thread")]
async fn the_master_of_the_store_dies_under_load_and_gateways_follow_the_next() {
    let mut sentinels = Sentinels::start().await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let addresses: Vec<String> =
        sentinels.urls().iter().map(|url| format!("'{}'", url.split_once("://").unwrap().1)).collect();
    // What lasts is confirmed by the replica, so the death of the master cannot lose it.
    let store = format!(
        "{{kind: redis, deadline: 1s, replicas: 1, sentinel: {{master: {}, addresses: [{}]}}}}",
        sentinels.master_name(),
        addresses.join(", ")
    );
    let gateways = [
        product.gateway("one", &store, &[]).await.unwrap(),
        product.gateway("two", &store, &[]).await.unwrap(),
    ];
    // One site at both gateways, and one at each that the other knows of only by the store.
    let both = [&gateways[0], &gateways[1]];
    let sites = ["both", "near", "far"].map(str::to_owned);
    let mut agents = Vec::new();
    for (site, at) in sites.iter().zip([&both[..], &both[..1], &both[1..]]) {
        let token = asking::add_site(&product, &gateways[0], site).await.unwrap();
        agents.push(product.agent(site, &token, at, &[]).await.unwrap());
    }
    for gateway in &gateways {
        links_at(gateway, 2).await;
    }
    let crowd = Crowd::start(&product, &gateways, &sites);
    let (rounds, attempts) = (effort().min(5), AtomicUsize::new(0));
    for _ in 0..rounds {
        crowd.goes_on(100).await;
        sentinels.kill_master().await.unwrap();
        crowd.goes_on(100).await;
        for (gateway, site, holder) in [(&gateways[0], "far", "two"), (&gateways[1], "near", "one")] {
            let way = asking::client(&product, gateway).site(site.parse().unwrap());
            eventually(SOON, "a site of the other gateway", || async {
                let listed = product.run(gateway, &["site", "list", "-o", "json"]).await?;
                let listed: Vec<Value> = serde_json::from_str(&listed)?;
                let links =
                    listed.iter().find(|row| row["name"] == site).map(|row| &row["links"][0]["gateway"]);
                anyhow::ensure!(links.is_some_and(|held| held == holder), "{listed:?}");
                assert_eq!(name(&way).await?, site);
                Ok(())
            })
            .await
            .unwrap();
        }
        // With a replica again, what lasts is taken again. A name is used once: its fate may be uncertain.
        sentinels.revive().await.unwrap();
        eventually(SOON, "another site to be taken", || async {
            let site = format!("later-{}", attempts.fetch_add(1, SeqCst));
            asking::add_site(&product, &gateways[0], &site).await
        })
        .await
        .unwrap();
    }
    crowd.goes_on(100).await;
    let asked = crowd.end().await;
    verified(
        "kill -9 of the store's master under load, Sentinels choosing the next: all ways are back",
        rounds,
    );
    verified("requests around failovers of the store, none misrouted, none lost at both gateways", asked);
}
