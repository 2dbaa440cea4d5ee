//! Reach: kubectl at a cluster that nothing can reach, through two gateways, one of which dies.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::Value;
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{ControlPlane, Kubectl, Lease, Redis};

use crate::steps::{Tour, chapter, note, typed};

/// What the chapter leaves running.
pub(crate) struct Scene {
    _redis: Redis,
    pub(crate) plane: ControlPlane,
    pub(crate) product: Product,
    pub(crate) gateway: Gateway,
    _agent: Agent,
    shown: Lease,
}

pub(crate) async fn walk(tour: &mut Tour, binary: &Path) -> Result<Scene> {
    chapter("Reach: a cluster behind a firewall, through any of several gateways");
    let (redis, plane) = tour
        .step("A private Kubernetes cluster and a Redis, both real", "(the test bed starts them)", async {
            let (redis, plane) = tokio::try_join!(Redis::start(), ControlPlane::start("private"))?;
            let version = plane.kubectl().run(&["version"]).await?;
            let server =
                version.lines().find(|line| line.starts_with("Server")).unwrap_or_default().to_owned();
            Ok(((redis, plane), server))
        })
        .await?;

    let (product, shown) = (Product::new(binary)?.telling(typed), Lease::block(2)?);
    let showing = showing(&product, &shown);
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let (first, mut second) = tour
        .step("Two equal gateways that share the Redis; agents and callers may use either", "", async {
            let first = product.gateway("gateway-1", &store, &showing.each_ref().map(String::as_str)).await?;
            let second = product.gateway("gateway-2", &store, &[]).await?;
            let shown = format!("agents dial {} or {}", first.agents(), second.agents());
            Ok(((first, second), shown))
        })
        .await?;

    let token = tour
        .step("A site is a name and a token; the command to run there is printed", "", async {
            let said = product.run(&first, &["site", "add", "lab", "-o", "json"]).await?;
            let site: Value = serde_json::from_str(&said)?;
            let token = site["token"]["token"].as_str().unwrap_or_default().to_owned();
            ensure!(token.starts_with("tba_"), "no token in {said}");
            Ok((token, "site `lab`, token tba_… (shown once, only its hash is kept)".to_owned()))
        })
        .await?;

    let kubeconfig = plane.kubeconfig().display().to_string();
    let agent = tour
        .step("At the site an agent dials out to both gateways; it listens nowhere", "", async {
            let agent = product
                .agent("lab-agent", &token, &[&first, &second], &["--kubeconfig", &kubeconfig])
                .await?;
            let list = product.run(&first, &["site", "list"]).await?;
            Ok((agent, list))
        })
        .await?;

    let file = product.folder().path().join("lab.kubeconfig");
    let kubectl = login(tour, &product, &first, &plane, &file).await?;
    tour.step(
        "Plain kubectl works as if the cluster were next door",
        "kubectl --context lab get namespaces",
        async { Ok(((), kubectl.run(&["--context", "lab", "get", "namespaces"]).await?)) },
    )
    .await?;
    tour.step(
        "Changes go through as well",
        "kubectl --context lab create configmap hello --from-literal=from=afar",
        async {
            Ok((
                (),
                kubectl
                    .run(&["--context", "lab", "create", "configmap", "hello", "--from-literal=from=afar"])
                    .await?,
            ))
        },
    )
    .await?;
    tour.step(
        "One gateway dies without a word; the next request goes another way",
        "kill -9 (gateway-2)\nkubectl --context lab get configmap hello -o jsonpath={.data.from}",
        async {
            second.process.kill9()?;
            let get = ["--context", "lab", "get", "configmap", "hello", "-o", "jsonpath={.data.from}"];
            Ok(((), kubectl.run(&get).await?))
        },
    )
    .await?;
    tour.step(
        "A stranger sees nothing: absent and forbidden look alike, and the answer says what to try",
        "kubectl --context lab --token \"site:lab:$(cat stranger.token)\" get pods",
        async {
            let token = product.run(&first, &["user", "add", "stranger"]).await?;
            let token = format!("site:lab:{}", token.trim());
            let refused = kubectl.run(&["--context", "lab", "--token", &token, "get", "pods"]).await;
            let Err(refused) = refused else { anyhow::bail!("the stranger got in") };
            let said = format!("{refused:#}");
            ensure!(said.contains("TB-1101"), "{said}");
            Ok(((), said.lines().last().unwrap_or_default().to_owned()))
        },
    )
    .await?;
    tour.step(
        "The console, a page inside the gateway, shows what just happened, the refusal included",
        &format!("curl {}/api/requests        # or open it in a browser", first.console()),
        async {
            let page = first.console_page("/").await?;
            ensure!(page.contains("<html"), "not a page: {page}");
            let told: Vec<Value> = serde_json::from_str(&first.console_page("/api/requests").await?)?;
            let about_lab = told.iter().filter(|request| request["site"] == "lab").count();
            ensure!(about_lab > 2, "{told:?}");
            Ok(((), format!("{about_lab} requests to `lab` are told there, with who asked and every hop")))
        },
    )
    .await?;
    let scene = Scene { _redis: redis, plane, product, gateway: first, _agent: agent, shown };
    scene.show(PRIVATE, &scene.plane)?;
    Ok(scene)
}

/// What the console shows besides: what later chapters will start, at places that are known now.
fn showing(product: &Product, ports: &Lease) -> [String; 9] {
    let clusters = [PRIVATE, PUBLIC, EAST].map(|name| shown_at(product, name).display().to_string());
    let audit = product.folder().path().join("audit.log").display().to_string();
    [
        "--console".to_owned(),
        "--set".to_owned(),
        format!("console.clusters=[{}]", clusters.join(", ")),
        "--set".to_owned(),
        format!("console.interlink=http://127.0.0.1:{}", ports.port(0)),
        "--set".to_owned(),
        format!("console.nets=http://127.0.0.1:{}", ports.port(1)),
        "--set".to_owned(),
        format!("gateway.audit.file={audit}"),
    ]
}

/// Clusters that the console shows.
pub(crate) const PRIVATE: &str = "private";
pub(crate) const PUBLIC: &str = "public";
pub(crate) const EAST: &str = "east";

fn shown_at(product: &Product, cluster: &str) -> PathBuf {
    product.folder().path().join(format!("shown-{cluster}.kubeconfig"))
}

async fn login(
    tour: &mut Tour,
    product: &Product,
    gateway: &Gateway,
    plane: &ControlPlane,
    file: &Path,
) -> Result<Kubectl> {
    tour.step("A person gets a kubeconfig context named after the site", "", async {
        let said = product
            .run(gateway, &["kube", "login", "lab", "--kubeconfig", &file.display().to_string()])
            .await?;
        Ok((plane.kubectl_with(PathBuf::from(file)), said))
    })
    .await
}

impl Scene {
    /// Where interLink's API shall listen, so that the console finds it.
    pub(crate) fn interlink_port(&self) -> u16 {
        self.shown.port(0)
    }

    /// Where the orchestrator's REST shall listen.
    pub(crate) fn nets_port(&self) -> u16 {
        self.shown.port(1)
    }

    /// Lets the console see a cluster.
    pub(crate) fn show(&self, name: &str, plane: &ControlPlane) -> Result<()> {
        let (file, part) = (shown_at(&self.product, name), shown_at(&self.product, &format!("{name}-part")));
        std::fs::copy(plane.kubeconfig(), &part)?;
        // In one step: the console may look at any moment.
        Ok(std::fs::rename(part, file)?)
    }

    /// Keeps everything up until Ctrl-C.
    pub(crate) async fn stay(&self) -> Result<()> {
        chapter("Staying up until Ctrl-C");
        let (kubeconfig, token) =
            (self.product.folder().path().join("lab.kubeconfig"), self.product.admin_token());
        note(&format!("console: {}", self.gateway.console()));
        note(&format!("   its lock opens with the token in {}", token.display()));
        note("at a terminal:");
        note(&format!("   alias tarbet={}", self.product.binary().display()));
        note(&format!(
            "   export TARBET_SERVER={} TARBET_CA_FILE={} TARBET_TOKEN_FILE={}",
            self.gateway.api(),
            self.product.authority().display(),
            token.display()
        ));
        note("   tarbet site list");
        note(&format!("   kubectl --kubeconfig {} --context lab get all -A", kubeconfig.display()));
        tokio::signal::ctrl_c().await?;
        note("removing everything");
        Ok(())
    }
}
