//! The interLink API server and a plugin: tokens, accounts, and what pods are given.

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, eventually, verified};

use super::{Canaries, LOUD, SOON, abort, secret_file};

struct Bed {
    canaries: Canaries,
    http: reqwest::Client,
    urls: [String; 2],
}

impl Bed {
    /// Asks both parts, and searches what they answer.
    async fn ask(&self, method: Method, part: usize, path: &str, token: &str, body: &Value) -> Result<Value> {
        let url = format!("{}{path}", self.urls[part]);
        let answer = self.http.request(method, &url).bearer_auth(token).json(body).send().await?;
        let head = format!("{} {:?}", answer.status(), answer.headers());
        let text = answer.text().await?;
        self.canaries.search(&url, &format!("{head} {text}"))?;
        Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

/// A pod whose command, if it is given one, exists, with secrets in every place.
fn pod(canaries: &Canaries, command: &[&str]) -> (Value, Value, Value) {
    let plain = canaries.hatch("variable of a pod");
    let kept = canaries.hatch("Secret of a pod");
    let argument = canaries.hatch("argument of a pod");
    let uid = uuid::Uuid::new_v4().to_string();
    let container = json!({
        "name": "main", "image": "none", "command": command, "args": ["sleep 60", argument],
        "env": [{ "name": "PLAIN", "value": plain }],
        "volumeMounts": [{ "name": "kept", "mountPath": "/kept" }],
    });
    let pod = json!({
        "metadata": { "name": "pod", "namespace": "tests", "uid": uid },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
            "volumes": [{ "name": "kept", "secret": { "secretName": "kept" } }],
        },
    });
    let secret = json!({ "metadata": { "name": "kept", "namespace": "tests" }, "data": { "key": STANDARD.encode(kept) } });
    let retrieved = json!({ "pod": pod, "container": [{ "name": "main", "secrets": [secret] }] });
    (pod.clone(), json!({ "pod": pod, "secrets": [secret] }), retrieved)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_pods_and_of_those_who_ask_for_them_are_told_nowhere() -> Result<()> {
    let (canaries, product, ports) =
        (Canaries::default(), Product::new(env!("CARGO_BIN_EXE_tarbet"))?, Lease::block(2)?);
    let token = canaries.hatch("token of interLink");
    let wrong = canaries.hatch("token that is wrong");
    let tokens = secret_file(product.folder(), "tokens", &format!("{token}\n"))?.display().to_string();
    let [at_plugin, at_api] = [ports.port(0), ports.port(1)].map(|port| format!("127.0.0.1:{port}"));
    let data = product.folder().path().join("data").display().to_string();
    let own = product.folder().path().join("api").display().to_string();
    let accepted = format!("edge.AcceptedTokensFile={tokens}");
    let sidecar = format!("edge.SidecarPort={}", ports.port(0));
    let plugin = [
        "plugin",
        "process",
        "--listen",
        &at_plugin,
        "--data-root",
        &data,
        "--set",
        "edge.ExportPodData=true",
    ];
    let mut plugin = product.role("plugin", &[&plugin[..], &LOUD].concat(), &[]).await?;
    let api = ["interlink", "--listen", &at_api, "--data-root", &own, "--set", &sidecar, "--set", &accepted];
    let api_args =
        [&api[..], &["--set", "edge.SidecarURL=http://127.0.0.1", "--set", "log.format=text"], &LOUD]
            .concat();
    let mut api = product.role("interlink", &api_args, &[]).await?;
    let bed = Bed {
        canaries,
        http: reqwest::Client::new(),
        urls: [at_plugin, at_api].map(|at| format!("http://{at}")),
    };

    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "users": [{ "name": "u", "user": { "token": bed.canaries.hatch("token of a node") } }],
    });
    for shown in [&token, &wrong] {
        bed.ask(Method::POST, 1, "/setKubeCFG", shown, &kubeconfig).await?;
        for command in [&["sh", "-c"][..], &["/nothing/here"]] {
            let (pod, by_node, by_api) = pod(&bed.canaries, command);
            bed.ask(Method::POST, 1, "/create", shown, &json!([by_node])).await?;
            // The same straight to the plugin, and broken in the middle.
            bed.ask(Method::POST, 0, "/create", shown, &by_api).await?;
            let mut broken = by_api.clone();
            broken["container"][0]["secrets"][0]["data"]["key"] = json!("not base64 !");
            broken["pod"]["metadata"]["uid"] = json!("../../etc");
            bed.ask(Method::POST, 0, "/create", shown, &broken).await?;
            bed.ask(Method::POST, 0, "/create", shown, &json!({ "pod": by_api.to_string() })).await?;
            for part in [0, 1] {
                bed.ask(Method::GET, part, "/status", shown, &json!([pod])).await?;
                let log = json!({ "Namespace": "tests", "PodUID": pod["metadata"]["uid"], "PodName": "pod", "ContainerName": "main", "Opts": {} });
                bed.ask(Method::GET, part, "/getLogs", shown, &log).await?;
            }
            if command.len() == 2 && shown == &token {
                let runs = || async {
                    let states = bed.ask(Method::GET, 0, "/status", &token, &json!([pod])).await?;
                    ensure!(states[0]["containers"][0]["state"]["running"].is_object(), "{states}");
                    Ok::<_, anyhow::Error>(())
                };
                eventually(SOON, "the pod to run", runs).await?;
            }
        }
    }
    for role in [&plugin, &api] {
        let page = reqwest::get(format!("http://127.0.0.1:{}/metrics", role.probes())).await?.text().await?;
        bed.canaries.search("the metrics", &page)?;
    }
    abort(&mut api.process).await?;
    // The plugin comes back to pods that it has on record, and ends in good order.
    abort(&mut plugin.process).await?;
    plugin.process.restart().await?;
    plugin.ready().await?;
    for state in
        bed.ask(Method::GET, 0, "/tarbet/list", &token, &Value::Null).await?.as_array().into_iter().flatten()
    {
        let pod = json!({ "metadata": { "name": state["name"], "namespace": state["namespace"], "uid": state["UID"] } });
        bed.ask(Method::POST, 0, "/delete", &token, &pod).await?;
    }
    plugin.process.stop().await?;
    let logs = bed.canaries.search_logs(product.folder().path())?;
    ensure!(logs == 2, "{logs} logs");
    verified("secrets of pods and of interLink's callers, none told anywhere", bed.canaries.count());
    Ok(())
}
