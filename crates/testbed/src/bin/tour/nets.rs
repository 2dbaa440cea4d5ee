//! Nets: two clouds on this machine, closed until a tag opens exactly one flow, and a VPN between them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Lease, Netlab, eventually};

use crate::follow;
use crate::reach::Scene;
use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(1);
const PORT: u16 = 8000;
/// A connection that is denied is given up after this.
pub(crate) const DENIED: Duration = Duration::from_secs(1);

pub(crate) struct World<'a> {
    pub(crate) product: &'a Product,
    lab: Netlab,
    server: String,
    _clouds: [Agent; 2],
    _nets: Agent,
    _ports: Lease,
}

/// With a scene, whose cluster has the virtual node `edge`, tags follow its pods as well. The machines stay until
/// [`World::leave`].
pub(crate) async fn walk<'a>(
    tour: &mut Tour,
    product: &'a Product,
    scene: Option<&Scene>,
) -> Result<World<'a>> {
    chapter("Nets: who may talk to whom, across two clouds, by name");
    let world = tour
        .step("Two local clouds, made of network namespaces, and one orchestrator for both", "", async {
            let world = World::start(product, scene.map(Scene::nets_port)).await?;
            let list = world.glide(&["namespace", "list"]).await?;
            Ok((world, list))
        })
        .await?;
    let (web, worker) = tour
        .step("A machine in each; their networks, addresses and filters are made with them", "", async {
            let web = world.machine("east", "web").await?;
            let worker = world.machine("west", "worker").await?;
            Ok(((web, worker), world.glide(&["resource", "list"]).await?))
        })
        .await?;
    tour.step("Nothing passes: every machine begins with all traffic denied", "", async {
        ensure!(!world.reaches("west", "worker", web, DENIED).await?, "a packet passed");
        ensure!(!world.reaches("east", "web", worker, DENIED).await?, "a packet passed");
        let (code, said) = world.ask(&["can", "default.west.worker", "default.east.web:8000"]).await?;
        ensure!(code == Some(4), "it ended with {code:?}: {said}");
        Ok(((), said.lines().take(3).collect::<Vec<_>>().join("\n")))
    })
    .await?;
    tour.step("A plan says which calls would be made, and makes none", "", async {
        world.glide(&["tag", "set", "workers", "--children", "default.west.worker"]).await?;
        let rules = world.rules("web-rules", "inbound", "workers")?;
        Ok(((), world.glide(&["rule", "add", "east", "web", "--rulefile", &rules, "--plan"]).await?))
    })
    .await?;
    tour.step(
        "A rule by tag at each end opens exactly that flow; the VPN between the clouds follows",
        "",
        async {
            let inward = world.rules("web-rules", "inbound", "workers")?;
            let outward = world.rules("worker-rules", "outbound", "default.east.web")?;
            world.glide(&["rule", "add", "east", "web", "--rulefile", &inward]).await?;
            world.glide(&["rule", "add", "west", "worker", "--rulefile", &outward]).await?;
            eventually(SOON, "the flow to pass", || async {
                ensure!(
                    world.reaches("west", "worker", web, Duration::from_secs(2)).await?,
                    "it does not pass yet"
                );
                Ok(())
            })
            .await?;
            ensure!(!world.reaches("east", "web", worker, DENIED).await?, "the other way is open too");
            let said = world.glide(&["can", "default.west.worker", "default.east.web:8000"]).await?;
            Ok(((), format!("a connection from worker to web:8000 was answered through the VPN\n{said}")))
        },
    )
    .await?;
    tour.step("The picture: clouds, the VPN between them, and what may pass", "", async {
        let drawn = world.topology(&["-o", "text"]).await?;
        ensure!(drawn.contains("VPN") && drawn.contains("tcp/8000"), "{drawn}");
        let svg = world.topology(&["-o", "svg"]).await?;
        ensure!(svg.starts_with("<svg") && svg.contains("default.east.web"), "{svg}");
        let file = std::env::temp_dir().join("tarbet-networks.svg");
        std::fs::write(&file, svg)?;
        Ok(((), format!("{drawn}\nfor a slide: {}", file.display())))
    })
    .await?;
    tour.step("Taking the member out of the tag closes the flow again", "", async {
        world.glide(&["tag", "delete", "workers", "--member", "default.west.worker"]).await?;
        eventually(SOON, "the flow to be closed", || async {
            ensure!(!world.reaches("west", "worker", web, DENIED).await?, "it still passes");
            Ok(())
        })
        .await?;
        Ok(((), "worker no longer reaches web".to_owned()))
    })
    .await?;
    if let Some(scene) = scene {
        follow::walk(tour, &world, &scene.plane, (web, worker)).await?;
    }
    Ok(world)
}

impl<'a> World<'a> {
    /// Removes the machines.
    pub(crate) async fn leave(self, tour: &mut Tour) -> Result<()> {
        tour.step("Removing the machines and what nothing needs any more leaves nothing behind", "", async {
            self.glide(&["resource", "delete", "east", "web"]).await?;
            self.glide(&["resource", "delete", "west", "worker"]).await?;
            self.glide(&["prune"]).await?;
            let left = self.lab.namespaces();
            ensure!(left.is_empty(), "namespaces are left: {left:?}");
            Ok(((), "network namespaces left: 0".to_owned()))
        })
        .await
    }

    async fn start(product: &'a Product, rest: Option<u16>) -> Result<Self> {
        let (lab, ports) = (Netlab::start().await?, Lease::block(6)?);
        let rest = rest.unwrap_or_else(|| ports.port(0));
        let folder = product.folder();
        let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
        let local =
            json!({ "prefix": lab.prefix(), "wan": format!("{}-wan", lab.prefix()), "folder": lab.folder() });
        let orchestrator = json!({ "host": "127.0.0.1", "port": ports.port(1) });
        let store =
            |name: &str| json!({ "kind": "redb", "path": folder.path().join(format!("{name}.redb")) });
        let nets = json!({
            "store": store("nets"),
            "nets": {
                "server": { "host": "127.0.0.1", "port": rest, "rpcPort": ports.port(1) },
                "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
                "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
                "cloudPlugins": [
                    { "name": "east", "host": "127.0.0.1", "port": ports.port(4) },
                    { "name": "west", "host": "127.0.0.1", "port": ports.port(5) },
                ],
                "namespaces": { "default": [
                    { "name": "east", "deployment": "e" }, { "name": "west", "deployment": "w" },
                ] },
            },
        });
        let nets_file = folder.write("nets.yaml", &nets.to_string())?.display().to_string();
        let cloud = |name: &'static str, index: u16| {
            let config =
                json!({ "store": store(name), "cloud": { "orchestrator": orchestrator, "local": local } });
            let listen = at(index);
            async move {
                let file = folder.write(&format!("{name}.yaml"), &config.to_string())?.display().to_string();
                let args = ["cloud", "local", "--name", name, "--listen", &listen, "-c", &file];
                product.role(&format!("cloud-{name}"), &args, &[]).await
            }
        };
        let (east, west) = (cloud("east", 4).await?, cloud("west", 5).await?);
        let nets = product.role("nets", &["nets", "-c", &nets_file], &[]).await?;
        let server = format!("http://127.0.0.1:{rest}");
        Ok(Self { product, lab, server, _clouds: [east, west], _nets: nets, _ports: ports })
    }

    async fn ask(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        let whole = [&["glide", "--server", &self.server, "--namespace", "default"], args].concat();
        self.product.command(&whole).await
    }

    pub(crate) async fn glide(&self, args: &[&str]) -> Result<String> {
        let (code, said) = self.ask(args).await?;
        ensure!(code == Some(0), "tarbet glide {} ended with {code:?}: {said}", args.join(" "));
        Ok(said)
    }

    async fn topology(&self, args: &[&str]) -> Result<String> {
        let whole = [&["topology", "--nets", "--nets-server", &self.server], args].concat();
        let (code, said) = self.product.command(&whole).await?;
        ensure!(code == Some(0), "tarbet topology ended with {code:?}: {said}");
        Ok(said)
    }

    fn netns(&self, cloud: &str, name: &str) -> String {
        format!("{}-{cloud}.default.main.{name}", self.lab.prefix())
    }

    /// Makes a machine that answers on a port, and says under which address.
    async fn machine(&self, cloud: &str, name: &str) -> Result<SocketAddr> {
        let description = self.product.folder().write(&format!("{name}.json"), r#"{"region": "main"}"#)?;
        let description = description.display().to_string();
        let said = self.glide(&["-o", "json", "resource", "create", cloud, name, &description]).await?;
        let made: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let address =
            format!("{}:{PORT}", made["ip"].as_str().context("a machine has an address")?).parse()?;
        self.lab.answer(&self.netns(cloud, name), address)?;
        Ok(address)
    }

    pub(crate) async fn reaches(
        &self,
        cloud: &str,
        name: &str,
        to: SocketAddr,
        patience: Duration,
    ) -> Result<bool> {
        self.lab.reaches(&self.netns(cloud, name), to, patience).await
    }

    fn rules(&self, file: &str, direction: &str, tag: &str) -> Result<String> {
        let rules = json!([{
            "name": "work", "direction": direction, "src_port": -1, "dst_port": PORT, "protocol": 6, "tags": [tag],
        }]);
        Ok(self.product.folder().write(&format!("{file}.json"), &rules.to_string())?.display().to_string())
    }
}
