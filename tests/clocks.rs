//! The clock on the wall jumps under running roles: what is alive goes on, and all is well once it is right again.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tarbet_identity::Secret;
use tarbet_link::{Body, Caller, Target};
use tarbet_reach::client::{Client, RemoteSite};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{Folder, eventually, faketime, verified};

const SOON: Duration = Duration::from_mins(1);
/// Requests after each jump, over a link that stood before it.
const ASKED: usize = 100;
/// As many as an agent keeps, also to a lone gateway.
const LINKS: f64 = 2.0;
/// How far a clock goes.
const JUMPS: [&str; 4] = ["+1h", "-1h", "+10y", "-10y"];

/// A binary whose gateways and agents look at clocks of their own; commands have the true one.
struct Clocks {
    folder: Folder,
}

impl Clocks {
    async fn new() -> Result<(Self, PathBuf)> {
        let (library, folder) = (faketime().await?, Folder::new("clocks")?);
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in gateway|agent)\n  \
             export LD_PRELOAD='{}' FAKETIME_TIMESTAMP_FILE='{}/'$1 FAKETIME_NO_CACHE=1\n  \
             export FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 ;;\nesac\nexec '{}' \"$@\"\n",
            library.display(),
            folder.path().display(),
            env!("CARGO_BIN_EXE_tarbet"),
        );
        let wrapper = folder.write("tarbet", &script)?;
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
        let clocks = Self { folder };
        for role in ["gateway", "agent"] {
            clocks.set(role, "+0")?;
        }
        Ok((clocks, wrapper))
    }

    /// Moved into place whole, since it is read at any moment.
    fn set(&self, role: &str, offset: &str) -> Result<()> {
        let next = self.folder.write(&format!("{role}.next"), &format!("{offset}\n"))?;
        Ok(std::fs::rename(next, self.folder.path().join(role))?)
    }
}

async fn ask(site: &RemoteSite) -> Result<()> {
    let mut request = http::Request::get("/").body(Body::empty())?;
    request.extensions_mut().insert(Target::service("info")?);
    Ok(site.call(request).await.map(drop)?)
}

struct World {
    product: Product,
    clocks: Clocks,
    gateway: Gateway,
    agent: Agent,
    /// Connected from before any jump, since certificates are of some time.
    http: reqwest::Client,
}

impl World {
    /// With a registry of this kind, `redb` or `memory`: what expires in either is judged by the gateway's clock.
    async fn start(store: &str) -> Result<Self> {
        let (clocks, binary) = Clocks::new().await?;
        let product = Product::new(binary)?;
        // Links that are asked to move after a day must not take a jump for one.
        let extra = ["--set", "gateway.max_connection_age=24h", "--set", "gateway.max_wait=5s"];
        let store = match store {
            "redb" => {
                format!("{{kind: redb, path: {}}}", product.folder().path().join("store.redb").display())
            }
            kind => format!("{{kind: {kind}}}"),
        };
        let gateway = product.gateway("gateway", &store, &extra).await?;
        let site: Value =
            serde_json::from_str(&product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await?)?;
        let token = site["token"]["token"].as_str().context("no token")?.to_owned();
        let agent = product.agent("lab", &token, &[&gateway], &[]).await?;
        for process in [&gateway.process, &agent.process] {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid()))?;
            ensure!(maps.contains("libfaketime"), "a role has the true clock");
        }
        let authority = reqwest::Certificate::from_pem(&std::fs::read(product.authority())?)?;
        let http = reqwest::Client::builder().add_root_certificate(authority).build()?;
        Ok(Self { product, clocks, gateway, agent, http })
    }

    /// How far the gateway's clock is off, by what it says of its links.
    async fn off(&self) -> Result<SignedDuration> {
        let admin = std::fs::read_to_string(self.product.admin_token())?;
        let links: Value = self
            .http
            .get(format!("{}/v1/links", self.gateway.api()))
            .bearer_auth(admin.trim())
            .send()
            .await?
            .json()
            .await?;
        let heard: Timestamp = links[0]["heard"].as_str().with_context(|| links.to_string())?.parse()?;
        Ok(heard.duration_since(Timestamp::now()))
    }

    /// A caller with a connection of its own.
    fn caller(&self) -> Result<RemoteSite> {
        let token = Secret::from_file(self.product.admin_token())?;
        let client = Client::new(&self.gateway.api(), token, Some(&self.product.authority()));
        Ok(client.map_err(|problem| anyhow::anyhow!("{problem:?}"))?.site("lab".parse()?))
    }

    async fn jump(&self, roles: &[&str], offset: &str) -> Result<()> {
        for role in roles {
            self.clocks.set(role, offset)?;
        }
        if !roles.contains(&"gateway") {
            return Ok(());
        }
        eventually(SOON, "the clock to be seen", || async {
            let off = self.off().await?;
            ensure!((off.abs() > SignedDuration::from_mins(30)) == (offset != "+0"), "{off}");
            Ok(())
        })
        .await
    }

    /// An agent is ready with its first link; the others come a little later.
    async fn linked(&self) -> Result<()> {
        eventually(SOON, "all links of the agent", || async {
            let links = self.gateway.metric("tarbet_links ").await?;
            ensure!(links >= LINKS, "{links}");
            Ok(())
        })
        .await
    }

    /// Whole numbers, written as others are.
    async fn links_opened(&self) -> Result<String> {
        Ok(self.gateway.metric("tarbet_links_opened_total").await?.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_jump_and_links_that_live_go_on() -> Result<()> {
    let mut world = World::start("redb").await?;
    let mut jumps = 0;
    for roles in [&["gateway"][..], &["agent"], &["gateway", "agent"]] {
        world.linked().await?;
        for offset in JUMPS {
            let (standing, opened) = (world.caller()?, world.links_opened().await?);
            ask(&standing).await.with_context(|| format!("before {offset} of {roles:?}"))?;
            world.jump(roles, offset).await?;
            for n in 0..ASKED {
                ask(&standing).await.with_context(|| format!("{n} after {offset} of {roles:?}"))?;
            }
            // Rechecks of tokens, heartbeats and retirement went on all the while, and ended nothing.
            let links = world.gateway.metric("tarbet_links ").await?;
            ensure!(
                world.links_opened().await? == opened && links >= LINKS,
                "{offset} of {roles:?}: links were lost"
            );

            world.jump(roles, "+0").await?;
            ask(&standing).await.with_context(|| format!("after {offset} of {roles:?} and back"))?;
            // Whoever comes anew is served again: certificates of another time have been replaced.
            eventually(SOON, &format!("new callers after {offset} of {roles:?}"), || async {
                ask(&world.caller()?).await?;
                anyhow::Ok(())
            })
            .await?;
            jumps += roles.len();
        }
        // And so are agents that come anew.
        world.agent.process.restart().await?;
        world.agent.ready().await?;
    }
    verified(
        "jumps of the clock by an hour or ten years under live links: none lost, all well afterwards",
        jumps,
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_by_the_clock_and_is_good_again_when_the_clock_is_right() -> Result<()> {
    let world = World::start("memory").await?;
    let http = &world.http;
    let admin = std::fs::read_to_string(world.product.admin_token())?;
    let url = format!("{}/v1/sites", world.gateway.api());
    let site: Value = http
        .post(&url)
        .bearer_auth(admin.trim())
        .json(&json!({ "name": "brief" }))
        .send()
        .await?
        .json()
        .await?;
    ensure!(site["id"].is_i64(), "{site}");
    let issued = http.post(format!("{url}/brief/tokens")).bearer_auth(admin.trim());
    let issued: Value = issued.json(&json!({ "expiresInSeconds": 7200 })).send().await?.json().await?;
    let token = issued["token"].as_str().context("no token")?;
    let mut brief = world.product.agent("brief", token, &[&world.gateway], &[]).await?;
    let connected = async |name: &str| -> Result<bool> {
        let sites: Value = http.get(&url).bearer_auth(admin.trim()).send().await?.json().await?;
        let found = sites.as_array().and_then(|all| all.iter().find(|site| site["name"] == name).cloned());
        Ok(found.is_some_and(|site| site["connected"] == true))
    };
    let is = async |name: &str, wanted: bool| {
        eventually(SOON, &format!("{name} connected: {wanted}"), || async {
            ensure!(connected(name).await? == wanted);
            anyhow::Ok(())
        })
        .await
    };
    is("brief", true).await?;
    // An hour is within its time, ten years are not; a token without an end does not mind.
    world.jump(&["gateway"], "+1h").await?;
    ask(&world.caller()?).await?;
    ensure!(connected("brief").await? && connected("lab").await?);
    world.jump(&["gateway"], "+10y").await?;
    is("brief", false).await?;
    ensure!(connected("lab").await?);
    world.jump(&["gateway"], "+0").await?;
    brief.ready().await?;
    is("brief", true).await?;
    ensure!(connected("lab").await?);
    Ok(())
}
