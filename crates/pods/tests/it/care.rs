//! Probes, hooks, restarts and sidecars, on Docker and in jobs alike.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tarbet_pods::batch::Batch;
use tarbet_pods::care::Cared;
use tarbet_pods::docker::Docker;
use tarbet_pods::process::Processes;
use tarbet_pods::runner::Runner;
use tarbet_pods::wire::{Frame, RetrievedPod};
use tarbet_testbed::{Lease, eventually};
use tokio_util::sync::CancellationToken;

use super::docker::{config as docker_config, daemon};
use super::pods::{PATIENCE, ended, log, pod, shell, uid_of, until, words};
use super::slurm::config as batch_config;

struct Bed {
    runner: Arc<Cared>,
    stop: CancellationToken,
    _root: tempfile::TempDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn on_docker() -> Bed {
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let docker = Docker::open(docker_config(daemon().await.url(), root.path()), stop.clone()).unwrap();
    Bed { runner: Cared::new(docker, stop.clone()), stop, _root: root }
}

fn as_processes() -> Bed {
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let system = Processes::new(root.path().canonicalize().unwrap(), "/bin/bash".into());
    let batch = Batch::open(batch_config(root.path(), true), Arc::new(system), stop.clone()).unwrap();
    Bed { runner: Cared::new(batch, stop.clone()), stop, _root: root }
}

impl Bed {
    async fn start(&self, pod: &RetrievedPod) -> String {
        self.runner.start(pod.clone()).await.unwrap();
        uid_of(pod)
    }

    async fn ready(&self, uid: &str, wanted: bool) {
        eventually(PATIENCE, &format!("ready to be {wanted}"), || async {
            let state = self.runner.status(&[uid.to_owned()]).await.map_err(|error| error.to_string())?;
            let state = state.into_iter().next().ok_or("unknown")?;
            if state.containers[0].ready == wanted { Ok(()) } else { Err(words(&state)) }
        })
        .await
        .unwrap();
    }
}

fn more(mut container: Value, more: Value) -> Value {
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

/// A container that is ready while a file is there, and alive while another is not.
async fn probes(bed: &Bed, folder: &str) {
    let line = format!("mkdir -p {folder}; rm -f {folder}/dead; echo run; while :; do sleep 0.2; done");
    let probe = |line: String, failures: u32| json!({"exec": {"command": ["sh", "-c", line]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": failures});
    let container = more(
        shell("main", &line),
        json!({
            "startupProbe": probe(format!("test -d {folder}"), 30),
            "readinessProbe": probe(format!("test -e {folder}/ready"), 1),
            "livenessProbe": probe(format!("test ! -e {folder}/dead"), 1),
        }),
    );
    let uid = bed.start(&pod(json!({"restartPolicy": "Always", "containers": [container]}))).await;
    until(&bed.runner, &uid, "it to run", |text| text == "main=running").await;
    let run = |line: String| {
        let request = json!({"podUid": uid, "container": "main", "command": ["sh", "-c", line]});
        bed.runner.exec(serde_json::from_value(request).unwrap())
    };
    let finish = |mut session: tarbet_pods::runner::Session| async move {
        let mut code = None;
        while let Some(frame) = session.output.recv().await {
            if let Frame::Exit(exit) = frame {
                code = Some(exit);
            }
        }
        code
    };
    bed.ready(&uid, false).await;
    // It is called running before its shell has done anything.
    eventually(PATIENCE, "its folder", || async {
        let session = run(format!("test -d {folder}")).await.map_err(|error| error.to_string())?;
        if finish(session).await == Some(0) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    assert_eq!(finish(run(format!("touch {folder}/ready")).await.unwrap()).await, Some(0));
    bed.ready(&uid, true).await;
    // It may be ended before the command has told its code.
    finish(run(format!("touch {folder}/dead")).await.unwrap()).await;
    eventually(PATIENCE, "another run", || async {
        let state = bed.runner.status(std::slice::from_ref(&uid)).await.map_err(|error| error.to_string())?;
        let count = state[0].containers[0].restart_count;
        if count >= 1 { Ok(()) } else { Err(words(&state[0])) }
    })
    .await
    .unwrap();
    bed.ready(&uid, true).await;
    bed.runner.delete(&uid, Some(Duration::from_secs(1))).await.unwrap();
}

#[tokio::test]
async fn probes_decide_what_is_ready_and_what_begins_again() {
    probes(&on_docker().await, "/tmp/care").await;
    let folder = tempfile::tempdir().unwrap();
    probes(&as_processes(), &folder.path().join("care").display().to_string()).await;
}

#[tokio::test]
async fn pages_and_ports_are_asked_inside_the_pod() {
    let bed = on_docker().await;
    let line =
        "mkdir -p /tmp/page; (sleep 2; echo ok > /tmp/page/ok) & exec busybox httpd -f -p 8080 -h /tmp/page";
    let page = json!({"httpGet": {"port": "web", "path": "/ok"}, "periodSeconds": 1, "timeoutSeconds": 5});
    let port = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 20});
    let container = more(
        shell("main", line),
        json!({"ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": page, "livenessProbe": port}),
    );
    let uid = bed.start(&pod(json!({"containers": [container]}))).await;
    bed.ready(&uid, true).await;
    bed.runner.delete(&uid, Some(Duration::from_secs(1))).await.unwrap();
}

#[tokio::test]
async fn hooks_run_at_the_beginning_and_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("said").display().to_string();
    let bed = as_processes();
    let hook = |word: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {word} >> {file}")]}});
    let container = more(
        shell("main", "while :; do sleep 0.2; done"),
        json!({"lifecycle": {"postStart": hook("hello"), "preStop": hook("goodbye")}}),
    );
    let uid = bed.start(&pod(json!({"containers": [container]}))).await;
    let said = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually(PATIENCE, "the first word", || async {
        if said() == "hello\n" { Ok(()) } else { Err(said()) }
    })
    .await
    .unwrap();
    bed.runner.delete(&uid, Some(Duration::from_secs(5))).await.unwrap();
    assert_eq!(said(), "hello\ngoodbye\n");
}

/// A sidecar serves the container and goes when that has ended.
async fn sidecar(bed: &Bed, port: u16) {
    let side = more(
        shell("side", &format!("while true; do busybox nc -l -p {port} -e echo served; done")),
        json!({"restartPolicy": "Always"}),
    );
    let ask = format!(
        "until busybox nc 127.0.0.1 {port} 2>/dev/null > /tmp/said-{port} && [ -s /tmp/said-{port} ]; do sleep 0.1; done; cat /tmp/said-{port}; rm /tmp/said-{port}"
    );
    let uid = bed.start(&pod(json!({"initContainers": [side], "containers": [shell("main", &ask)]}))).await;
    let state = ended(&bed.runner, &uid).await;
    assert!(words(&state).ends_with("main=exit:0"), "{}", words(&state));
    assert_eq!(log(&bed.runner, &uid, "main", json!({})).await.trim(), "served");
    bed.runner.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn sidecars_begin_before_the_others_and_end_after_them() {
    sidecar(&on_docker().await, 7071).await;
    let port = Lease::block(1).unwrap();
    sidecar(&as_processes(), port.port(0)).await;
}

#[tokio::test]
async fn a_failing_container_of_a_job_begins_again_and_its_last_log_is_kept() {
    let bed = as_processes();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("second").display().to_string();
    let line = format!("if [ -e {file} ]; then echo second; exit 0; fi; touch {file}; echo first; exit 3");
    let uid =
        bed.start(&pod(json!({"restartPolicy": "OnFailure", "containers": [shell("main", &line)]}))).await;
    let state = ended(&bed.runner, &uid).await;
    let status = &state.containers[0];
    assert_eq!((words(&state).as_str(), status.restart_count), ("main=exit:0", 1));
    let before = status.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!(before.exit_code, 3);
    assert_eq!(log(&bed.runner, &uid, "main", json!({})).await, "second\n");
    assert_eq!(log(&bed.runner, &uid, "main", json!({"Previous": true})).await, "first\n");
    bed.runner.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn what_containers_use_is_told() {
    let bed = on_docker().await;
    let uid = bed.start(&pod(json!({"containers": [shell("main", "while :; do :; done")]}))).await;
    until(&bed.runner, &uid, "it to run", |text| text == "main=running").await;
    eventually(PATIENCE, "a reading", || async {
        let all = bed.runner.usage().await.map_err(|error| error.to_string())?;
        let own = all.iter().find(|pod| pod.uid == uid).ok_or("no reading")?;
        let used = &own.containers[0];
        if used.name == "main" && used.cpu_nanoseconds > 0 && used.memory_bytes > 0 {
            Ok(())
        } else {
            Err(format!("{used:?}"))
        }
    })
    .await
    .unwrap();
    bed.runner.delete(&uid, Some(Duration::ZERO)).await.unwrap();
}
