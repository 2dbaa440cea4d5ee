//! A plugin that is killed at any moment loses no pod and runs none twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng;
use serde_json::{Value, json};
use tarbet_pods::edge::EdgeConfig;
use tarbet_testbed::{Lease, eventually, verified};

use super::part::{Part, Running};
use super::pods::{PATIENCE, effort, shell, uid_of};

pub(crate) struct Bed {
    pub(crate) url: String,
    pub(crate) http: reqwest::Client,
    pub(crate) plugin: Running,
}

impl Bed {
    pub(crate) fn new(part: Part, port: u16) -> Self {
        let url = format!("http://127.0.0.1:{port}");
        Self { url, http: reqwest::Client::new(), plugin: Running::start(part) }
    }

    /// Calls until there is an answer; a call that was cut off is made again, as a node does.
    pub(crate) async fn call(&self, path: &str, body: &Value) -> Value {
        eventually(PATIENCE, path, || async {
            let answer = self.http.post(format!("{}{path}", self.url)).json(body).send().await?;
            let (status, text) = (answer.status(), answer.text().await?);
            anyhow::ensure!(status.is_success() || status.as_u16() == 410, "{status} {text}");
            Ok::<_, anyhow::Error>(serde_json::from_str(&text).unwrap_or(Value::Null))
        })
        .await
        .unwrap()
    }

    pub(crate) async fn ended(&self, pod: &Value) -> Value {
        eventually(PATIENCE, "the end of the pod", || async {
            let states = self.call("/status", &json!([pod])).await;
            let end = states[0]["containers"][0]["state"]["terminated"].clone();
            if end.is_object() { Ok(end) } else { Err(states.to_string()) }
        })
        .await
        .unwrap()
    }
}

/// Pods whose every run leaves one line, while the plugin is killed again and again.
async fn storm(mut bed: Bed, lines: &dyn Fn(&str) -> Vec<String>, make: &dyn Fn(&str) -> Value, rounds: u32) {
    let mut pods = Vec::new();
    for round in 0..rounds {
        let pod = super::pods::pod(json!({}));
        let uid = uid_of(&pod);
        let mut body = serde_json::to_value(&pod).unwrap();
        body["pod"]["spec"] = make(&uid);
        let wait = Duration::from_millis(rand::rng().random_range(0..400));
        let create = bed.call("/create", &body);
        // The kill falls before, into or after the call; the call is then made again.
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => {}
            _ = create => {}
        }
        bed.plugin.replace().await;
        bed.call("/create", &body).await;
        pods.push((uid, body["pod"].clone(), round % 3));
    }
    for (uid, pod, _) in &pods {
        assert_eq!(bed.ended(pod).await["exitCode"], 0);
        assert_eq!(lines(uid), ["ran"], "{uid} ran exactly once");
    }
    for (_, pod, _) in &pods {
        bed.call("/delete", pod).await;
        assert_eq!(bed.call("/status", &json!([pod])).await, json!([]));
    }
    bed.plugin.kill().await;
}

pub(crate) fn config(folder: &Path, port: u16) -> EdgeConfig {
    EdgeConfig {
        sidecar_port: port.to_string(),
        data_root_folder: folder.join("data"),
        policy: tarbet_pods::plan::Policy {
            allowed_host_paths: vec![folder.join("out")],
            ..Default::default()
        },
        docker_network: "none".into(),
        status_seconds: 1,
        ..Default::default()
    }
}

fn spec(folder: &Path, uid: &str) -> Value {
    let out: PathBuf = folder.join("out");
    let mut main = shell("main", &format!("echo ran >> /out/{uid}; sleep 0.3"));
    main["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "out", "hostPath": {"path": out}}],
        "initContainers": [shell("init", "sleep 0.1")],
        "containers": [main],
    })
}

async fn check(docker: Option<String>, rounds: u32) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    let lease = Lease::block(1).unwrap();
    let mut config = config(folder.path(), lease.port(0));
    let part = match docker {
        Some(host) => {
            config.docker_host = host;
            Part::Docker(Box::new(config))
        }
        None => Part::Process(Box::new(config)),
    };
    let bed = Bed::new(part, lease.port(0));
    let lines = |uid: &str| {
        let text = fs::read_to_string(folder.path().join("out").join(uid)).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    storm(bed, &lines, &|uid| spec(folder.path(), uid), rounds).await;
    verified("kill -9 of a plugin with live pods: each ran once", rounds as usize);
}

#[tokio::test]
async fn docker_pods_run_once_whenever_the_plugin_is_killed() {
    check(Some(super::docker::daemon().await.url()), effort(5)).await;
}

#[tokio::test]
async fn processes_run_once_whenever_the_plugin_is_killed() {
    check(None, effort(5)).await;
}
