//! Tekton is whole: a pipeline runs its steps, hands results on, fails as it should and has logs.

use std::time::Duration;

use serde_json::{Value, json};
use tarbet_testbed::{ControlPlane, Kubectl, Tekton, eventually};

const SOON: Duration = Duration::from_mins(2);

fn pipeline(namespace: &str) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
        "metadata": { "name": "greet", "namespace": namespace },
        "spec": {
            "params": [{ "name": "who" }],
            "workspaces": [{ "name": "shared" }],
            "results": [{ "name": "greeting", "value": "$(tasks.second.results.greeting)" }],
            "tasks": [
                { "name": "first", "params": [{ "name": "who", "value": "$(params.who)" }],
                  "workspaces": [{ "name": "shared", "workspace": "shared" }],
                  "taskSpec": { "params": [{ "name": "who" }], "workspaces": [{ "name": "shared" }], "steps": [
                    { "name": "write", "image": "none", "env": [{ "name": "WHO", "value": "$(params.who)" }],
                      "script": "#!/bin/sh\nset -e\nprintf %s \"$WHO\" > $(workspaces.shared.path)/who\necho wrote" },
                    { "name": "look", "image": "none", "command": ["ls"], "args": ["$(workspaces.shared.path)"] },
                ] } },
                { "name": "second", "runAfter": ["first"], "workspaces": [{ "name": "shared", "workspace": "shared" }],
                  "taskSpec": { "workspaces": [{ "name": "shared" }], "results": [{ "name": "greeting" }], "steps": [
                    { "name": "read", "image": "none",
                      "script": "#!/bin/sh\nset -e\nread who < $(workspaces.shared.path)/who || true\n[ \"$who\" != nobody ]\nprintf 'hello %s' \"$who\" | tee $(results.greeting.path)" },
                ] } },
            ],
        },
    })
}

fn run(namespace: &str, name: &str, who: &str, reference: &Value) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "pipelineRef": reference,
            "params": [{ "name": "who", "value": who }],
            "workspaces": [{ "name": "shared", "volumeClaimTemplate": { "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } },
            } } }],
        },
    })
}

async fn ended(kubectl: &Kubectl, namespace: &str, name: &str) -> Value {
    let look = || async {
        let run = kubectl.json(&["get", "pipelinerun", name, "-n", namespace]).await?;
        let condition = run["status"]["conditions"][0].clone();
        anyhow::ensure!(condition["status"] == "True" || condition["status"] == "False", "{condition}");
        anyhow::Ok(run)
    };
    eventually(SOON, &format!("the end of {name}"), look).await.unwrap()
}

#[tokio::test]
async fn a_pipeline_truly_runs() {
    let plane = ControlPlane::start("tekton").await.unwrap();
    let _tekton = Tekton::start(&plane).await.unwrap();
    let namespace = plane.unique_namespace("greet").await.unwrap();
    let kubectl = plane.kubectl();
    kubectl.apply(&pipeline(&namespace)).await.unwrap();

    kubectl.apply(&run(&namespace, "good", "world", &json!({ "name": "greet" }))).await.unwrap();
    let by_resolver = json!({ "resolver": "cluster", "params": [
        { "name": "name", "value": "greet" }, { "name": "namespace", "value": namespace }, { "name": "kind", "value": "pipeline" },
    ] });
    kubectl.apply(&run(&namespace, "resolved", "resolver", &by_resolver)).await.unwrap();
    kubectl.apply(&run(&namespace, "bad", "nobody", &json!({ "name": "greet" }))).await.unwrap();

    let good = ended(&kubectl, &namespace, "good").await;
    assert_eq!(good["status"]["conditions"][0]["status"], "True", "{good}");
    assert_eq!(good["status"]["results"][0]["value"], "hello world", "{good}");
    let log = ["logs", "good-first-pod", "-c", "step-write", "-n", &namespace];
    assert_eq!(kubectl.run(&log).await.unwrap(), "wrote");
    let log = ["logs", "good-first-pod", "-c", "step-look", "-n", &namespace];
    assert_eq!(kubectl.run(&log).await.unwrap(), "who");

    let resolved = ended(&kubectl, &namespace, "resolved").await;
    assert_eq!(resolved["status"]["results"][0]["value"], "hello resolver", "{resolved}");

    let bad = ended(&kubectl, &namespace, "bad").await;
    assert_eq!(bad["status"]["conditions"][0]["status"], "False", "{bad}");
    let pod = kubectl.json(&["get", "pod", "bad-second-pod", "-n", &namespace]).await.unwrap();
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 1, "{pod}");

    kubectl.run(&["delete", "pipelinerun", "good", "-n", &namespace]).await.unwrap();
    let gone = || async {
        let made =
            ["get", "taskrun,pod,pvc", "-l", "tekton.dev/pipelineRun=good", "-n", &namespace, "-o", "name"];
        let left = kubectl.run(&made).await?;
        anyhow::ensure!(left.is_empty(), "{left}");
        anyhow::Ok(())
    };
    eventually(SOON, "the end of all that was made for it", gone).await.unwrap();
}
