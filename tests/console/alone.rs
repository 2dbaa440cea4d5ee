//! The console of a gateway that runs by itself.

use serde_json::Value;
use tarbet_testbed::product::Product;
use tarbet_testbed::{Chromium, Lease};

use super::{SOON, click, echo, kept, sound, unlock};

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_alone_shows_its_sites_and_takes_changes() {
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let port = Lease::block(1).unwrap();
    let (listen, audit) = (
        format!("console.listen=127.0.0.1:{}", port.port(0)),
        format!("gateway.audit.file={}", product.folder().path().join("audit.log").display()),
    );
    let extra = ["--console", "--set", &listen, "--set", &audit];
    let gateway = product.gateway("edge-1", "{kind: memory}", &extra).await.unwrap();
    let said = product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    let policy = product
        .folder()
        .write("policy.yaml", &format!("tcp: [{{host: 127.0.0.1, ports: [{}]}}]\n", echo().await));
    let policy = policy.unwrap().display().to_string();
    let token = site["token"]["token"].as_str().unwrap();
    let _agent = product.agent("lab-agent", token, &[&gateway], &["--policy", &policy]).await.unwrap();

    let console = format!("http://127.0.0.1:{}", port.port(0));
    let browser = Chromium::start().await.unwrap();
    let page = browser.open(&console, 1400, 900).await.unwrap();
    page.until(SOON, "document.querySelectorAll('.map .site.on').length === 1").await.unwrap();
    page.shows(SOON, "edge-1").await.unwrap();
    sound(&page, "the console of a gateway").await;
    page.picture(&kept("gateway-alone")).await.unwrap();
    // What does not run in this process says how it is started.
    for (view, shows) in [
        ("networks", "tarbet nets"),
        ("pods", "tarbet"),
        ("jobs", "tarbet up --kubeconfig"),
        ("audit", "chain whole"),
    ] {
        page.go(&format!("{console}/#/{view}")).await.unwrap();
        page.shows(SOON, shows).await.unwrap();
        sound(&page, view).await;
    }

    page.go(&format!("{console}/#/sites/lab")).await.unwrap();
    unlock(&page, std::fs::read_to_string(product.admin_token()).unwrap().trim()).await;
    page.shows(SOON, "admin · lock").await.unwrap();
    click(&page, "Remove the site").await;
    page.eval("document.querySelector('dialog button.danger').click()").await.unwrap();
    page.shows(SOON, "No site yet").await.unwrap();
    page.go(&format!("{console}/#/audit")).await.unwrap();
    page.shows(SOON, "DELETE /v1/sites/lab").await.unwrap();
}
