//! Real Tekton, with its pods on the virtual node.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tarbet_testbed::{Lease, Tekton, eventually, shell_root};
use tokio::sync::OnceCell;

use super::docker::daemon;
use super::node::Bed;
use super::pods::PATIENCE;

/// The image that stands for all of Tekton's own, and for steps.
const IMAGE: &str = "tarbet.dev/tekton:v1.0.0";

/// Tekton on the shared control plane, and its programs on the shared daemon.
async fn tekton(bed: &Bed) -> Result<()> {
    // A failed start is kept: a second one would fail for another reason and hide the first.
    static TEKTON: OnceCell<Result<Tekton, String>> = OnceCell::const_new();
    let start = || async { start(bed).await.map_err(|error| format!("{error:#}")) };
    match TEKTON.get_or_init(start).await {
        Ok(_) => Ok(()),
        Err(error) => bail!("start Tekton: {error}"),
    }
}

/// A folder of images for jobs: the same one, as files.
async fn images() -> Result<&'static Path> {
    static IMAGES: OnceCell<tempfile::TempDir> = OnceCell::const_new();
    let make = || async {
        let folder = tempfile::tempdir()?;
        for image in [IMAGE, "shell:1"] {
            shell_root(&folder.path().join(image)).await?;
        }
        copy(&Tekton::programs().await?, &folder.path().join(IMAGE).join("ko-app"))?;
        anyhow::Ok(folder)
    };
    Ok(IMAGES.get_or_try_init(make).await?.path())
}

async fn start(bed: &Bed) -> Result<Tekton> {
    let folder = tempfile::tempdir()?;
    copy(&Tekton::programs().await?, &folder.path().join("ko-app"))?;
    std::fs::write(folder.path().join("Dockerfile"), "FROM shell:1\nCOPY ko-app /ko-app\n")?;
    let path = folder.path().to_str().context("an odd path")?;
    daemon().await.docker(&["build", "--quiet", "--tag", IMAGE, path]).await?;
    Tekton::start(bed.plane).await
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn template(bed: &Bed) -> Value {
    json!({
        "nodeSelector": {"kubernetes.io/hostname": bed.node},
        "tolerations": [{"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}],
    })
}

async fn run(bed: &Bed, name: &str, task: Value) -> Result<()> {
    let template = template(bed);
    let object = json!({
        "apiVersion": "tekton.dev/v1", "kind": "TaskRun",
        "metadata": {"name": name, "namespace": bed.namespace},
        "spec": {"podTemplate": template, "taskSpec": task},
    });
    bed.kubectl().apply(&object).await.map(drop)
}

/// Waits until the run is decided, and returns it.
async fn decided(bed: &Bed, kind: &str, name: &str) -> Result<Value> {
    eventually(PATIENCE * 3, &format!("the run {name}"), || async {
        let run = bed.kubectl().json(&["--namespace", &bed.namespace, "get", kind, name]).await?;
        let conditions = run["status"]["conditions"].as_array().cloned().unwrap_or_default();
        match conditions.iter().find(|condition| condition["type"] == "Succeeded") {
            Some(condition) if condition["status"] != "Unknown" => Ok(run),
            _ => {
                let pods =
                    bed.run(&["get", "pods", "-o", "jsonpath={.items[*].status}"]).await.unwrap_or_default();
                bail!("{} {pods}", run["status"])
            }
        }
    })
    .await
}

fn step(name: &str, script: &str) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never", "script": format!("#!/bin/sh\nset -e\n{script}\n")})
}

#[tokio::test]
async fn a_task_of_two_steps_with_a_result_completes() -> Result<()> {
    let bed = Bed::new().await?;
    tekton(&bed).await?;
    let task = json!({
        "results": [{"name": "greeting"}],
        "workspaces": [],
        "steps": [
            step("write", "echo -n hello > /workspace/word; echo wrote"),
            step("tell", "echo -n \"$(cat /workspace/word) from $(hostname)\" > $(results.greeting.path)"),
        ],
    });
    run(&bed, "two", task).await?;
    let done = decided(&bed, "taskrun", "two").await?;
    let status = &done["status"];
    ensure!(status["conditions"][0]["status"] == "True", "{status}");
    ensure!(status["results"][0]["value"] == "hello from two-pod", "{status}");
    ensure!(bed.run(&["logs", "two-pod", "-c", "step-write"]).await? == "wrote");
    let pod = bed.get("two-pod").await?;
    ensure!(pod["spec"]["nodeName"] == bed.node.as_str());
    Ok(())
}

#[tokio::test]
async fn a_sidecar_is_waited_for_and_ended_and_a_failing_step_skips_the_rest() -> Result<()> {
    let bed = Bed::new().await?;
    tekton(&bed).await?;
    // Tekton ends a sidecar by another image; there the script has nothing to do.
    let sidecar = json!({"name": "helper", "image": "shell:1", "imagePullPolicy": "Never",
        "script": "#!/bin/sh\n[ -e /ko-app/nop ] && exit 0\nwhile true; do nc -l -p 7070 -e echo served; done\n"});
    let task = json!({
        "results": [{"name": "said"}],
        "sidecars": [sidecar],
        "steps": [step("ask", "until nc 127.0.0.1 7070 > /workspace/said; do sleep 0.1; done; tr -d '\\\n' < /workspace/said > $(results.said.path)")],
    });
    run(&bed, "helped", task).await?;
    let done = decided(&bed, "taskrun", "helped").await?;
    ensure!(done["status"]["conditions"][0]["status"] == "True", "{}", done["status"]);
    ensure!(done["status"]["results"][0]["value"] == "served", "{}", done["status"]);
    // The sidecar's image is swapped for one that ends; the pod ends with it.
    eventually(PATIENCE, "the pod to end", || async {
        let pod = bed.get("helped-pod").await?;
        match pod["status"]["phase"].as_str() {
            Some("Succeeded" | "Failed") => Ok(()),
            _ => bail!("{}", pod["status"]),
        }
    })
    .await?;
    let task = json!({"steps": [step("bad", "exit 3"), step("never", "echo no")]});
    run(&bed, "failing", task).await?;
    let done = decided(&bed, "taskrun", "failing").await?;
    let status = &done["status"];
    ensure!(status["conditions"][0]["status"] == "False", "{status}");
    ensure!(
        status["conditions"][0]["message"].as_str().is_some_and(|text| text.contains("exited with code 3")),
        "{status}"
    );
    ensure!(status["steps"][1]["terminationReason"] == "Skipped", "{status}");
    Ok(())
}

/// A volume of the cluster that is a folder, and a claim of it.
async fn claim(bed: &Bed) -> Result<()> {
    let volume = format!("shared-{}", bed.namespace);
    let size = json!({"storage": "1Gi"});
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": bed.claims()},
            "claimRef": {"name": "shared", "namespace": bed.namespace},
        },
    });
    bed.kubectl().apply(&object).await?;
    let spec = json!({
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume,
        "resources": {"requests": size},
    });
    bed.apply("PersistentVolumeClaim", "shared", json!({"spec": spec})).await?;
    Ok(())
}

/// Three tasks: one leaves a file and a word, one asks a sidecar, one puts all together.
async fn three_tasks(bed: &Bed) -> Result<()> {
    claim(bed).await?;
    let port = Lease::block(1)?;
    let port = port.port(0);
    let here = json!([{"name": "here", "workspace": "shared"}]);
    let sidecar = json!({"name": "helper", "image": "shell:1", "imagePullPolicy": "Never", "script": format!(
        "#!/bin/sh\n[ -e /ko-app/nop ] && exit 0\nwhile true; do nc -l -p {port} -e echo served; done\n"
    )});
    let tasks = json!([
        {"name": "write", "workspaces": here, "taskSpec": {
            "workspaces": [{"name": "here"}], "results": [{"name": "word"}],
            "steps": [
                step("file", "echo -n blue > $(workspaces.here.path)/colour"),
                step("word", "echo -n sky > $(results.word.path)"),
            ],
        }},
        {"name": "ask", "runAfter": ["write"], "params": [{"name": "word", "value": "$(tasks.write.results.word)"}],
         "taskSpec": {
            "params": [{"name": "word"}], "results": [{"name": "reply"}], "sidecars": [sidecar],
            "steps": [step("ask", &format!(
                "until nc 127.0.0.1 {port} > /tmp/said && [ -s /tmp/said ]; do sleep 0.1; done; \
                 echo -n \"$(params.word) $(cat /tmp/said)\" > $(results.reply.path)"
            ))],
        }},
        {"name": "check", "workspaces": here, "params": [{"name": "reply", "value": "$(tasks.ask.results.reply)"}],
         "taskSpec": {
            "params": [{"name": "reply"}], "workspaces": [{"name": "here"}], "results": [{"name": "all"}],
            "steps": [step("join", "echo -n \"$(cat $(workspaces.here.path)/colour) $(params.reply)\" > $(results.all.path)")],
        }},
    ]);
    let run = json!({
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
        "metadata": {"name": "three", "namespace": bed.namespace},
        "spec": {
            "taskRunTemplate": {"podTemplate": template(bed)},
            "workspaces": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
            "pipelineSpec": {
                "workspaces": [{"name": "shared"}], "tasks": tasks,
                "results": [{"name": "all", "value": "$(tasks.check.results.all)"}],
            },
        },
    });
    bed.kubectl().apply(&run).await?;
    let done = decided(bed, "pipelinerun", "three").await?;
    let status = &done["status"];
    ensure!(status["conditions"][0]["status"] == "True", "{status}");
    ensure!(status["results"][0]["value"] == "blue sky served", "{status}");
    let pods = bed.run(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]).await?;
    ensure!(
        pods.split_whitespace().count() == 3 && pods.split_whitespace().all(|node| node == bed.node),
        "{pods}"
    );
    // The sidecar is ended by another image, and its pod with it.
    eventually(PATIENCE, "the pods to end", || async {
        let phases = bed.run(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"]).await?;
        ensure!(!phases.contains("Running") && !phases.contains("Pending"), "{phases}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pipeline_of_three_tasks_completes_on_docker() -> Result<()> {
    let bed = Bed::new().await?;
    tekton(&bed).await?;
    three_tasks(&bed).await
}

#[tokio::test]
async fn a_pipeline_of_three_tasks_completes_as_jobs_of_slurm() -> Result<()> {
    let bed = Bed::on_slurm(images().await?).await?;
    tekton(&bed).await?;
    three_tasks(&bed).await
}
