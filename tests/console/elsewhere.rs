//! The console of a gateway, in front of what other processes run: an orchestrator, interLink's API, clusters.

use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{eventually, shared_pair};

use super::SOON;
use crate::up::Machine;

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_shows_pods_networks_and_clusters_of_other_processes() {
    let elsewhere = Machine::new().await;
    let _up = elsewhere.start();
    elsewhere.ready().await;
    let endpoint = std::fs::read(elsewhere.state().join("endpoint.json")).unwrap();
    let endpoint: Value = serde_json::from_slice(&endpoint).unwrap();
    let at = |part: &str| endpoint[part].as_str().unwrap().to_owned();

    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let kubeconfig = product.folder().path().join("later.kubeconfig");
    let settings = [
        format!("console.nets={}", at("nets")),
        format!("console.interlink={}", at("interlink")),
        format!("console.clusters=[{}]", kubeconfig.display()),
    ];
    let extra = ["--console", "--set", &settings[0], "--set", &settings[1], "--set", &settings[2]];
    let gateway = product.gateway("shows", "{kind: memory}", &extra).await.unwrap();
    let panel = async |name: &str| -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&gateway.console_page(&format!("/api/{name}")).await?)?)
    };

    // A cluster is shown once its kubeconfig is there; before, nothing is wrong.
    assert_eq!(panel("nodes").await.unwrap(), json!({ "nodes": [], "away": [] }));
    let plane = &shared_pair().await.unwrap().private;
    let node = format!("shown-{}", std::process::id());
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": {
        "name": node, "labels": { "virtual-node.interlink/type": "virtual-kubelet" } } });
    plane.kubectl().apply(&object).await.unwrap();
    std::fs::copy(plane.kubeconfig(), &kubeconfig).unwrap();
    let shown = eventually(SOON, "the node on the page", || async {
        let nodes = panel("nodes").await?;
        anyhow::ensure!(
            nodes["nodes"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == node)),
            "{nodes}"
        );
        Ok(())
    });
    let shown = shown.await;
    plane.kubectl().run(&["delete", "node", &node]).await.unwrap();
    shown.unwrap();

    // Networks and pods, as they are there.
    let description = elsewhere.folder.write("machine.json", "{}").unwrap().display().to_string();
    elsewhere.say(&["glide", "resource", "create", "local", "web", &description]).await;
    let nets = panel("nets").await.unwrap();
    assert_eq!(nets["resources"][0]["name"], "default.local.web", "{nets}");
    let rules = panel("nets/namespaces/default/clouds/local/resources/web/rules").await.unwrap();
    assert_eq!(rules, Value::Null, "the original's word for none");
    elsewhere.say(&["pods", "run", "--detach", "--name", "quick", "none", "--", "echo", "hello"]).await;
    let pods = panel("pods").await.unwrap();
    assert_eq!(pods["pods"][0]["name"], "quick", "{pods}");

    // Changes need the right, here as there.
    let client = reqwest::Client::new();
    let path = format!("{}/api/nets/namespaces/default/clouds/local/resources/web", gateway.console());
    let remove = async |token: Option<String>| {
        let request = client.delete(&path).header("sec-fetch-site", "same-origin");
        let request = match token {
            Some(token) => request.bearer_auth(token.trim()),
            None => request,
        };
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(remove(None).await, 401);
    let stranger = product.run(&gateway, &["user", "add", "stranger"]).await.unwrap();
    assert_eq!(remove(Some(stranger)).await, 403);
    let admin = std::fs::read_to_string(product.admin_token()).unwrap();
    assert_eq!(remove(Some(admin)).await, 200);
    assert_eq!(panel("nets").await.unwrap()["resources"], json!([]));
    elsewhere.say(&["down"]).await;
}
