//! A site that leads back to its own gateway: the request ends, and nobody else is the worse for it.

use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::verified;

/// So long that only what never ends misses it.
const PATIENCE: Duration = Duration::from_mins(1);

struct World {
    product: Product,
    gateway: Gateway,
    http: reqwest::Client,
    admin: String,
}

impl World {
    async fn new() -> Self {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
        let gateway = product.gateway("gateway", "{kind: memory}", &[]).await.unwrap();
        let authority = std::fs::read(product.authority()).unwrap();
        let http = reqwest::Client::builder()
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(&authority).unwrap())
            .timeout(PATIENCE)
            .build()
            .unwrap();
        let admin = std::fs::read_to_string(product.admin_token()).unwrap().trim().to_owned();
        Self { product, gateway, http, admin }
    }

    /// A site whose API server, as its agent has it, is a site of this gateway.
    async fn site(&self, name: &str, leads_to: &str) -> tarbet_testbed::product::Agent {
        let said = self.product.run(&self.gateway, &["site", "add", name, "-o", "json"]).await.unwrap();
        let said: Value = serde_json::from_str(&said).unwrap();
        let server = format!("{}/sites/{leads_to}", self.gateway.kubernetes());
        let cluster = json!({ "server": server, "certificate-authority": self.product.authority() });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "c", "user": { "token": self.admin } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let kubeconfig =
            self.product.folder().write(&format!("{name}.kubeconfig"), &kubeconfig.to_string()).unwrap();
        let token = said["token"]["token"].as_str().unwrap();
        let extra = ["--kubeconfig", kubeconfig.to_str().unwrap()];
        self.product.agent(name, token, &[&self.gateway], &extra).await.unwrap()
    }

    async fn ask(&self, site: &str, passed: &[&str]) -> (u16, Value) {
        let url = format!("{}/sites/{site}/api/v1/pods", self.gateway.kubernetes());
        let mut request = self.http.get(url).bearer_auth(&self.admin);
        for value in passed {
            request = request.header("cdn-loop", *value);
        }
        let answer = request.send().await.expect("the request ends");
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_goes_round_ends_and_others_are_served() {
    let world = World::new().await;
    let _round = world.site("round", "round").await;
    let (_one, _two) = (world.site("one", "two").await, world.site("two", "one").await);
    let before = world.gateway.metric("tarbet_requests_total").await.unwrap();
    let tried = [("round", &[][..]), ("one", &[]), ("two", &[]), ("round", &["other", "tarbet-0, tarbet-1"])];
    for (site, passed) in tried {
        let (status, said) = world.ask(site, passed).await;
        assert_eq!(status, 508, "{site}: {said}");
        assert!(said.to_string().contains("TB-1107"), "{site}: {said}");
    }
    let made = world.gateway.metric("tarbet_requests_total").await.unwrap() - before;
    assert!(made <= 4.0 * tried.len() as f64, "{made} requests came of {}", tried.len());
    let listed = world.product.run(&world.gateway, &["site", "list", "-o", "json"]).await.unwrap();
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert!(listed.iter().all(|site| site["connected"] == true), "{listed:?}");
    verified("requests through sites that lead back to their own gateway: each ends", tried.len());
}
