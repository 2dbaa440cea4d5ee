//! The same forms at listeners that answer themselves: the API and the console. There the request in the body is
//! one that would be carried out, by a caller with the right.

use anyhow::{Result, ensure};
use serde_json::Value;
use tarbet_testbed::product::{Gateway, Product};
use tarbet_testbed::verified;

use super::forms::{self, Form};
use super::send;

/// Forms whose bytes have one meaning: after a trailer the body is over, and what follows is a request of its own.
const PLAIN: &str = "a trailer that is";

/// A listener and where it has what the API has.
struct End<'a> {
    name: &'a str,
    url: String,
    prefix: &'a str,
}

struct World {
    _product: Product,
    gateway: Gateway,
    bearer: String,
}

impl World {
    async fn start() -> Result<Self> {
        let product = Product::new(env!("CARGO_BIN_EXE_tarbet"))?;
        let extra = ["--console", "--set", "gateway.api.tls=null"];
        let gateway = product.gateway("gateway", "{kind: memory}", &extra).await?;
        let admin = std::fs::read_to_string(product.admin_token())?;
        let bearer = format!("Bearer {}", admin.trim());
        Ok(Self { _product: product, gateway, bearer })
    }

    /// The sites there are.
    async fn sites(&self, end: &End<'_>) -> Result<Vec<String>> {
        let sites: Vec<Value> = reqwest::Client::new()
            .get(format!("{}{}/sites", end.url, end.prefix))
            .header("authorization", &self.bearer)
            .send()
            .await?
            .error_for_status()?
            .json()
            .await?;
        Ok(sites.iter().filter_map(|site| site["name"].as_str().map(str::to_owned)).collect())
    }

    /// A request that adds a site.
    fn adding(&self, end: &End<'_>, site: &str) -> String {
        let body = format!("{{\"name\":\"{site}\"}}");
        format!(
            "POST {}/sites HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            end.prefix,
            self.bearer,
            body.len()
        )
    }

    fn form<'a>(&'a self, path: &'a str, inner: &'a str) -> Form<'a> {
        Form { host: "127.0.0.1", path, bearer: &self.bearer, inner }
    }

    async fn holds(&self, end: &End<'_>) -> Result<()> {
        let (path, name) = (format!("{}/whoami", end.prefix), end.name);
        let last = format!(
            "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {}\r\nconnection: close\r\n\r\n",
            self.bearer
        );
        // What is well formed is carried out, one request after the other.
        let inner = self.adding(end, &format!("good-{name}"));
        let good = forms::good(&self.form(&path, &inner));
        let said = send(&end.url, format!("{good}{inner}{last}").as_bytes()).await?;
        ensure!(said.matches("HTTP/1.1 20").count() == 3, "{name}: {said}");
        let before = self.sites(end).await?;
        ensure!(before.contains(&format!("good-{name}")), "{name}: {before:?}");

        let count = forms::all(&self.form(&path, &inner)).len();
        let mut tried = 0;
        for n in 0..count {
            let site = format!("smuggled-{n}");
            let inner = self.adding(end, &site);
            let (what, bytes) = forms::all(&self.form(&path, &inner)).swap_remove(n);
            if what.starts_with(PLAIN) {
                continue;
            }
            let said = send(&end.url, format!("{bytes}{last}").as_bytes()).await?;
            ensure!(!said.contains("mallory"), "{name}, {what}: {said}");
            let now = self.sites(end).await?;
            ensure!(now == before, "{name}, {what}: {now:?} after {bytes:?}, and it said {said}");
            tried += 1;
        }
        ensure!(tried >= 80, "{tried}");
        let said = send(&end.url, last.as_bytes()).await?;
        ensure!(said.starts_with("HTTP/1.1 200"), "{name}: {said}");
        verified(
            &format!("forms of requests that can be read in two ways, at {name}: none carries out another"),
            tried,
        );
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_a_body_is_not_carried_out_by_the_api_or_the_console() -> Result<()> {
    let world = World::start().await?;
    let api = world.gateway.api().replace("https:", "http:");
    world.holds(&End { name: "api", url: api, prefix: "/v1" }).await?;
    world.holds(&End { name: "console", url: world.gateway.console(), prefix: "/api/gateway" }).await?;
    Ok(())
}
