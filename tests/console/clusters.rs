//! Jobs and federation in a real browser: requests that a real Tekton serves, services that a real peer offers.

use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Chromium, Folder, Istiod, Lease, eventually, shared_pair};

use super::{SOON, Up, click, look, unlock};
use crate::jobs::{Flow, private_with_tekton};
use crate::mesh;

/// Long: a pipeline runs meanwhile.
const LATER: std::time::Duration = crate::jobs::SOON;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_shown_and_cancelled_only_with_the_right() {
    let plane = private_with_tekton().await;
    let flow = Flow::new(plane, plane).await;
    flow.configure(json!({ "allowList": [flow.tenant] })).await;
    flow.pipeline("greet", "#!/bin/sh\nprintf 'hello %s' \"$WHO\" > $(results.said.path)\n").await;
    flow.pipeline("linger", "#!/bin/sh\nsleep 600\n").await;
    let kubeconfig = plane.kubeconfig().display().to_string();
    let settings = format!("jobs: {{namespace: {}}}\n", flow.namespace);
    let up = Up::start_with(&settings, &["--kubeconfig", &kubeconfig]).await;
    let (console, browser) = (up.console(), Chromium::start().await.unwrap());
    let page = browser.open(&format!("{console}/#/jobs"), 1400, 900).await.unwrap();
    page.shows(SOON, "Jobs").await.unwrap();

    // One that succeeds, one that is refused, one that is still at it: each appears by itself.
    for (pipeline, name) in [("greet", "hello"), ("linger", "slow"), ("unknown", "odd")] {
        let (code, _, said) = flow.request(&["submit", pipeline, "-p", "who=world", "--name", name]).await;
        assert_eq!(code, 0, "{said}");
    }
    page.shows(LATER, "said=hello world").await.unwrap();
    page.shows(LATER, "Rejected").await.unwrap();
    page.shows(LATER, "Running").await.unwrap();
    look(&page, &console, "jobs", "said=hello world", "cluster-jobs").await;

    // Without a token, and with one that is nobody's, nothing is cancelled.
    let path = format!("/api/jobs/{}/slow", flow.tenant);
    let bare = format!("fetch('{path}', {{ method: 'DELETE' }}).then(answer => answer.status)");
    assert_eq!(page.eval(&bare).await.unwrap(), 401);
    let stranger = up.tarbet(&["user", "add", "stranger"]).await;
    unlock(&page, stranger.trim()).await;
    page.shows(SOON, "stranger · lock").await.unwrap();
    let cancel = async || {
        page.eval("document.querySelector('button[aria-label=\"Cancel slow\"]').click()").await.unwrap();
        page.shows(SOON, "Cancel slow?").await.unwrap();
        page.eval("document.querySelector('dialog button.danger').click()").await.unwrap();
    };
    cancel().await;
    page.until(SOON, "!!document.querySelector('main .problem')").await.unwrap();
    assert_eq!(flow.request(&["show", "slow"]).await.0, 0);
    click(&page, "stranger · lock").await;

    // With the right it goes, and its run with it; both attempts are on record.
    unlock(&page, &up.admin()).await;
    page.shows(SOON, "admin · lock").await.unwrap();
    cancel().await;
    page.until(LATER, "!document.body.innerText.includes('slow')").await.unwrap();
    eventually(LATER, "the run to be gone", || async {
        let runs = flow.private.json(&["get", "pipelineruns", "-n", &flow.namespace]).await.ok()?;
        let linger = |run: &Value| run.to_string().contains("linger");
        (!runs["items"].as_array()?.iter().any(linger)).then_some(())
    })
    .await
    .unwrap();
    let wants = format!("jobs DELETE /{}/slow", flow.tenant);
    // How it ended is written behind the answer.
    let recorded: Vec<Value> = eventually(LATER, "both attempts on record", || async {
        let log = std::fs::read_to_string(up.state().join("audit.log")).ok()?;
        let ended = |line: &&str| line.contains(&wants) && !line.contains(r#""outcome":"begun""#);
        let lines = log.lines().filter(ended);
        let found: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        (found.len() >= 2).then_some(found)
    })
    .await
    .unwrap();
    let outcomes: Vec<String> = recorded.iter().map(|entry| find(entry, "outcome")).collect();
    assert_eq!(outcomes, ["refused", "answered"], "{recorded:?}");
    flow.request(&["cancel", "hello"]).await;
    flow.request(&["cancel", "odd"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_nodes_are_shown_where_no_pods_run_and_a_cluster_that_is_away_hides_none() {
    let plane = &shared_pair().await.unwrap().public;
    let (kubectl, name) = (plane.kubectl(), plane.unique_namespace("shown-node").await.unwrap());
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "spec": { "unschedulable": true },
        "metadata": { "name": name, "labels": { "virtual-node.interlink/type": "virtual-kubelet" } },
    });
    kubectl.apply(&node).await.unwrap();
    let kubeconfig = plane.kubeconfig().display().to_string();
    // The same cluster as it would be told by somebody at whose address nobody is.
    let (gone, folder) = (Lease::block(1).unwrap(), Folder::new("gone").unwrap());
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let server = text.split_whitespace().find(|word| word.contains("https://")).unwrap();
    let nobody = format!("https://127.0.0.1:{}", gone.port(0));
    let away =
        folder.write("away.kubeconfig", &text.replace(server.trim_matches(['"', ',']), &nobody)).unwrap();
    let set = format!("console.clusters=[{kubeconfig}, {}]", away.display());
    let up = Up::start_with("", &["--set", &set]).await;
    let browser = Chromium::start().await.unwrap();
    let page = browser.open(&format!("{}/#/pods", up.console()), 1400, 900).await.unwrap();
    page.shows(SOON, "Virtual nodes").await.unwrap();
    page.shows(SOON, &name).await.unwrap();
    page.shows(SOON, "No pods are run from this process").await.unwrap();
    page.shows(SOON, "away.kubeconfig").await.unwrap();
    look(&page, &up.console(), "pods", &name, "cluster-nodes").await;
    page.go(&format!("{}/#/jobs", up.console())).await.unwrap();
    page.shows(SOON, "away.kubeconfig").await.unwrap();
    kubectl.run(&["delete", "node", &name]).await.unwrap();
    page.go(&format!("{}/#/pods", up.console())).await.unwrap();
    page.until(SOON, &format!("!document.body.innerText.includes('{name}')")).await.unwrap();
}

/// A field of a record, wherever in it.
fn find(entry: &Value, field: &str) -> String {
    let inner = entry.get(field).or_else(|| entry.get("event")?.get(field));
    inner.and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn catalogue(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "catalogue", "namespace": "shop", "labels": { "export": "true" } },
        "spec": { "selector": { "app": "catalogue" }, "ports": [{ "name": "http", "port": port }] },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn federation_is_shown_with_what_crosses_it_and_what_collides() {
    let (west, here, _turn) = mesh::planes().await;
    let south = &shared_pair().await.unwrap().public.beside("console-south").await.unwrap();
    mesh::install_kinds(south).await.unwrap();
    for plane in [here, south] {
        Istiod::install_kinds(plane).await.unwrap();
    }
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(3).unwrap();
    let (here_at, west_at, south_at) = (ports.port(0), ports.port(1), ports.port(2));
    for plane in [west, south, here] {
        for name in ["istio-system", "shop"] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            plane.kubectl().apply(&namespace).await.unwrap();
        }
    }
    let mut peers = Vec::new();
    for (plane, name, at) in [(west, "west", west_at), (south, "south", south_at)] {
        plane.kubectl().apply(&catalogue(80)).await.unwrap();
        plane.kubectl().apply(&mesh::federation(name, "east", &["192.0.2.2"])).await.unwrap();
        plane.kubectl().apply(&mesh::rules("east")).await.unwrap();
        peers.push(mesh::controller(&product, plane, name, at, "east", here_at).await);
    }
    let mut federation = mesh::federation("east", "west", &["192.0.2.3"]);
    let more = json!({ "id": "south", "network": "south", "identity": { "trustDomain": "south.local" },
        "ingress": { "addresses": ["192.0.2.4"], "port": 15443 } });
    federation["spec"]["remote"].as_array_mut().unwrap().push(more);
    let mut rules = mesh::rules("west");
    rules["spec"]["import"] = json!([{ "meshID": "west" }, { "meshID": "south" }]);
    here.kubectl().apply(&federation).await.unwrap();
    here.kubectl().apply(&rules).await.unwrap();

    let settings = format!(
        "mesh: {{listen: '127.0.0.1:{here_at}', leader_election: false, \
         discovery: {{west: '127.0.0.1:{west_at}', south: '127.0.0.1:{south_at}'}}}}\n"
    );
    let kubeconfig = here.kubeconfig().display().to_string();
    let up = Up::start_with(&settings, &["--kubeconfig", &kubeconfig]).await;
    let browser = Chromium::start().await.unwrap();
    let page = browser.open(&format!("{}/#/federation", up.console()), 1400, 900).await.unwrap();
    page.shows(LATER, "catalogue.shop").await.unwrap();
    page.shows(LATER, "connected").await.unwrap();
    page.shows(SOON, "services with export=true").await.unwrap();
    page.until(SOON, "!document.body.innerText.includes('collides')").await.unwrap();
    look(&page, &up.console(), "federation", "catalogue.shop", "cluster-federation").await;

    // The other mesh now means another port by the same name: told at the top, and in its row.
    south.kubectl().apply(&catalogue(8080)).await.unwrap();
    page.shows(LATER, "One imported name collides.").await.unwrap();
    page.shows(SOON, "south is not used").await.unwrap();
    look(&page, &up.console(), "federation", "south is not used", "cluster-conflict").await;
    south.kubectl().apply(&catalogue(80)).await.unwrap();
    page.until(LATER, "!document.body.innerText.includes('collides')").await.unwrap();

    // No longer exported there: gone from the page here.
    for plane in [west, south] {
        plane.kubectl().run(&["delete", "service", "catalogue", "-n", "shop"]).await.unwrap();
    }
    page.until(LATER, "!document.body.innerText.includes('catalogue.shop')").await.unwrap();
    let planned =
        product.command(&["mesh", "cleanup", "--plan", "--kubeconfig", &kubeconfig]).await.unwrap().1;
    assert!(
        planned.contains("delete 1 MeshFederation") && planned.contains("Nothing was changed"),
        "{planned}"
    );
    here.kubectl().run(&["get", "meshfederation", "default"]).await.unwrap();
    drop(up);
    for plane in [west, south, here] {
        mesh::clean(&product, plane).await;
    }
}
