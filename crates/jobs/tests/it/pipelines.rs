//! End to end with real Tekton on the private side: steps truly run, and what they say comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::inputs::injections;
use super::rig::{Rig, clusters, install_kinds};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tarbet_jobs::machine::Phase;
use tarbet_jobs::names::{log_name, run_name};
use tarbet_jobs::tekton::Pipeline;
use tarbet_testbed::{ControlPlane, Tekton, eventually};
use tokio::sync::OnceCell;

/// Tekton takes seconds for each task.
pub const LONG: Duration = Duration::from_mins(3);

/// A private cluster with real Tekton, started by the first test that asks.
pub async fn with_tekton() -> &'static ControlPlane {
    static PLANE: OnceCell<(ControlPlane, Tekton)> = OnceCell::const_new();
    let start = || async {
        let plane = clusters().await.private.beside("with-tekton").await.unwrap();
        install_kinds(&plane).await;
        let tekton = Tekton::start(&plane).await.unwrap();
        (plane, tekton)
    };
    &PLANE.get_or_init(start).await.0
}

fn pipeline(name: &str, steps: Value, params: &[String]) -> Value {
    let declared: Vec<Value> = params.iter().map(|name| json!({ "name": name })).collect();
    let given: Vec<Value> =
        params.iter().map(|name| json!({ "name": name, "value": format!("$(params.{name})") })).collect();
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "Pipeline", "metadata": { "name": name },
        "spec": {
            "params": declared,
            "results": [{ "name": "said", "value": "$(tasks.work.results.said)" }],
            "tasks": [{ "name": "work", "params": given, "taskSpec": {
                "params": declared, "results": [{ "name": "said" }], "steps": steps,
            } }],
        },
    })
}

async fn install(rig: &Rig, object: &Value) {
    let api: Api<Pipeline> = Api::namespaced(rig.local.clone(), &rig.namespace);
    tarbet_cluster::apply(&api, object["metadata"]["name"].as_str().unwrap(), "test", object).await.unwrap();
}

async fn kept_log(rig: &Rig, request: &str) -> String {
    let uid = rig.request(request).await.uid().unwrap();
    let api: Api<ConfigMap> = Api::namespaced(rig.local.clone(), &rig.namespace);
    api.get(&log_name(&run_name(&rig.namespace, &uid))).await.unwrap().data.unwrap()["log"].clone()
}

#[tokio::test]
async fn a_request_runs_on_real_tekton_with_results_and_logs() {
    let pair = clusters().await;
    let private = with_tekton().await;
    let rig = Rig::on("tekton", private, &pair.public).await;
    rig.configure(json!({ "allowList": [rig.tenant], "watchScope": "allowed" })).await;
    let record = rig.record();

    let steps = json!([
        { "name": "greet", "image": "none", "env": [{ "name": "WHO", "value": "$(params.who)" }],
          "script": "#!/bin/sh\nset -e\necho password=hunter2\necho \"greeting $WHO\"\nprintf 'hello %s' \"$WHO\" > $(results.said.path)\n[ \"$WHO\" != nobody ]" },
        { "name": "after", "image": "none", "command": ["echo", "second step"] },
    ]);
    install(&rig, &pipeline("greet", steps, &["who".to_owned()])).await;
    let echo = json!([{ "name": "sleep", "image": "none", "script": "#!/bin/sh\nsleep 600" }]);
    install(&rig, &pipeline("slow", echo, &[])).await;

    // Every value that may pass, through environment and arguments of a real step.
    let mut values: Vec<String> =
        injections().into_iter().filter(|value| tarbet_jobs::params::refusal(value).is_none()).collect();
    values.retain(|value| value.len() < 2000);
    let names: Vec<String> = (0..values.len()).map(|n| format!("p{n}")).collect();
    let env: Vec<Value> = names
        .iter()
        .map(|name| json!({ "name": format!("V_{name}"), "value": format!("$(params.{name})") }))
        .collect();
    let mut args = vec![
        json!("-c"),
        json!(
            "for value in \"$@\"; do printf %s \"$value\" | sha256sum; done; printf done > $(results.said.path)"
        ),
        json!("sh"),
    ];
    args.extend(names.iter().map(|name| json!(format!("$(params.{name})"))));
    let lines = names.iter().map(|name| format!("printf %s \"$V_{name}\" | sha256sum"));
    let list = lines.collect::<Vec<_>>().join("\n");
    let hash = json!([
        { "name": "env", "image": "none", "env": env, "script": format!("#!/bin/sh\n{list}") },
        { "name": "args", "image": "none", "command": ["sh"], "args": args },
    ]);
    install(&rig, &pipeline("hash", hash, &names)).await;

    let controller = rig.start();
    rig.submit("good", json!({ "request": "greet", "params": { "who": "world" } })).await;
    let by_resolver = json!({ "pipeline": { "pipelineRef": { "resolver": "cluster", "params": [
        { "name": "name", "value": "greet" }, { "name": "namespace", "value": "kube-system" },
    ] } }, "params": { "who": "resolver" } });
    rig.submit("resolved", by_resolver).await;
    rig.submit("bad", json!({ "request": "greet", "params": { "who": "nobody" } })).await;
    let params: BTreeMap<&String, &String> = names.iter().zip(&values).collect();
    rig.submit("hash", json!({ "request": "hash", "params": params })).await;
    rig.submit("slow", json!({ "request": "slow" })).await;

    let api = rig.requests();
    let until = |name: &'static str, phase: Phase| {
        let api = api.clone();
        async move {
            let look = || async {
                let status =
                    api.get(name).await.map_err(|error| error.to_string())?.status.unwrap_or_default();
                if Phase::of(&status) == phase { Ok(status) } else { Err(format!("{status:?}")) }
            };
            eventually(LONG, &format!("{name} to be {phase:?}"), look).await.unwrap()
        }
    };
    let good = until("good", Phase::Succeeded).await;
    assert_eq!(good.results.unwrap()["said"], "hello world");
    let logs = good.logs.unwrap();
    assert_eq!(
        logs.iter().map(|log| (log.task.as_str(), log.step.as_str())).collect::<Vec<_>>(),
        [("work", "greet"), ("work", "after")]
    );
    assert_eq!(logs[0].tail, "password=[redacted]\ngreeting world\n");
    assert_eq!(logs[1].tail, "second step\n");
    let log = kept_log(&rig, "good").await;
    assert_eq!(log, "=== work / greet\npassword=[redacted]\ngreeting world\n=== work / after\nsecond step\n");

    assert_eq!(until("resolved", Phase::Succeeded).await.results.unwrap()["said"], "hello resolver");
    let bad = until("bad", Phase::Failed).await;
    assert!(!bad.conditions[0].message.is_empty());
    assert!(bad.logs.unwrap()[0].tail.contains("greeting nobody"));

    until("hash", Phase::Succeeded).await;
    let log = kept_log(&rig, "hash").await;
    let arrived: Vec<&str> = log
        .lines()
        .filter(|line| !line.starts_with("==="))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let expected: Vec<String> = values.iter().map(|value| hex::encode(Sha256::digest(value))).collect();
    assert_eq!(arrived.len(), expected.len() * 2, "{log}");
    for (index, value) in values.iter().enumerate() {
        assert_eq!(arrived[index], expected[index], "environment: {value:?}");
        assert_eq!(arrived[values.len() + index], expected[index], "arguments: {value:?}");
    }

    // Deleting a request ends its processes too.
    until("slow", Phase::Running).await;
    rig.requests().delete("slow", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(LONG, "the request to go", || async {
        api.get_opt("slow").await.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
    rig.no_runs().await;
    let kubectl = private.kubectl();
    let left = ["get", "taskrun,pod", "-n", &rig.namespace, "-o", "name"];
    eventually(LONG, "nothing to be left", || async {
        kubectl.run(&left).await.is_ok_and(|names| names.is_empty())
    })
    .await
    .unwrap();
    for name in ["good", "resolved", "bad", "hash"] {
        record.assert_once(name).await;
    }
    controller.stop().await;
}
