//! What happens elsewhere appears by itself, also among a thousand sites.

use futures::StreamExt;
use serde_json::json;
use tarbet_testbed::Chromium;

use super::{SOON, Up, kept, sound};

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_elsewhere_appears_without_asking_again() {
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    let page = browser.open(&format!("{}/#/sites", up.console()), 1200, 800).await.unwrap();
    page.shows(SOON, "No site yet").await.unwrap();
    let token = up.add_site("lab").await;
    page.shows(SOON, "not connected").await.unwrap();
    let mut agent = up.agent("lab", &token, 1);
    page.shows(SOON, "link").await.unwrap();
    page.until(SOON, "!document.body.innerText.includes('not connected')").await.unwrap();
    agent.stop().await.unwrap();
    page.shows(SOON, "not connected").await.unwrap();
    up.tarbet(&["site", "remove", "lab"]).await;
    page.shows(SOON, "No site yet").await.unwrap();
}

/// Elements of the page.
const NODES: &str = "document.querySelectorAll('*').length";

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sites_cost_no_more_than_what_is_seen_of_them() {
    const CROWD: usize = 1000;
    let (up, browser) = (Up::start().await, Chromium::start().await.unwrap());
    let page = browser.open(&format!("{}/#/sites", up.console()), 1200, 800).await.unwrap();
    page.shows(SOON, "No site yet").await.unwrap();
    let api = format!("{}/api/gateway/sites", up.console());
    let (http, admin) = (reqwest::Client::new(), up.admin());
    let adding = (0..CROWD).map(|i| {
        let added = http.post(&api).bearer_auth(&admin).json(&json!({ "name": format!("site-{i}") }));
        async move { assert_eq!(added.send().await.unwrap().status(), 201) }
    });
    futures::stream::iter(adding).buffer_unordered(32).collect::<Vec<()>>().await;
    page.shows(SOON, &format!("Show more of {CROWD}")).await.unwrap();
    let nodes = page.eval(NODES).await.unwrap().as_u64().unwrap();
    assert!(nodes < 3000, "the list has {nodes} elements");
    sound(&page, "a list of a thousand").await;
    page.picture(&kept("crowd-list")).await.unwrap();

    // A filter finds those that are not drawn.
    page.eval("document.querySelector('input[type=search]').focus()").await.unwrap();
    page.write("site-987").await.unwrap();
    page.until(SOON, "document.querySelectorAll('tbody tr').length === 1").await.unwrap();

    page.go(&format!("{}/#/overview", up.console())).await.unwrap();
    page.until(SOON, &format!("document.querySelectorAll('.dots circle').length === {CROWD}")).await.unwrap();
    let nodes = page.eval(NODES).await.unwrap().as_u64().unwrap();
    assert!(nodes < 4 * CROWD as u64, "the picture has {nodes} elements");
    page.picture(&kept("crowd")).await.unwrap();

    // One more site touches one more dot and a few numbers, whatever the number of the others.
    page.eval(
        "window.touched = 0; new MutationObserver(all => window.touched += all.reduce((sum, one) => sum + 1 + one.addedNodes.length + one.removedNodes.length, 0))\
         .observe(document.querySelector('.dots'), { subtree: true, childList: true, attributes: true, characterData: true })",
    )
    .await
    .unwrap();
    up.add_site("zz-last").await;
    page.until(SOON, &format!("document.querySelectorAll('.dots circle').length === {}", CROWD + 1))
        .await
        .unwrap();
    let touched = page.eval("window.touched").await.unwrap().as_u64().unwrap();
    assert!((1..50).contains(&touched), "{touched} changes for one site");
    assert_eq!(page.complaints(), Vec::<String>::new());
}
