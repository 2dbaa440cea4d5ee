//! Our node before an API server of the original.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tarbet_cluster::{Connect, Source, connect};
use tarbet_pods::node::config::Accelerator;
use tarbet_pods::node::{NodeConfig, Parts, start};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tarbet_testbed::{ControlPlane, eventually, shared_pair};

use super::stand_in;
use crate::it::pods::PATIENCE;

/// What the original would say of a pod.
#[derive(Clone, Copy, PartialEq)]
enum Is {
    Running,
    Ended(i32),
    /// The plugin refuses every question that names it.
    Refused(StatusCode),
    /// The last answer was about another one: this one seems not to be there.
    Hidden,
}

#[derive(Default)]
struct Known {
    pods: BTreeMap<String, Is>,
    /// Creates and questions as they came.
    creates: Vec<Value>,
    asked: Vec<Value>,
}

#[derive(Clone, Default)]
struct Original(Arc<Mutex<Known>>);

impl Original {
    fn set(&self, name: &str, is: Is) {
        self.0.lock().unwrap().pods.insert(name.to_owned(), is);
    }

    fn creates(&self, name: &str) -> Vec<Value> {
        let known = self.0.lock().unwrap();
        known.creates.iter().filter(|create| create["pod"]["metadata"]["name"] == name).cloned().collect()
    }

    fn asked(&self, name: &str) -> Vec<Value> {
        let known = self.0.lock().unwrap();
        known.asked.iter().filter(|pod| pod["metadata"]["name"] == name).cloned().collect()
    }

    fn router(&self) -> Router {
        // Its mux knows no methods, its answers have no type.
        Router::new()
            .route("/pinglink", any(|| async { "null" }))
            .route("/create", any(create))
            .route("/status", any(status))
            .route("/delete", any(delete))
            .with_state(self.clone())
    }
}

async fn create(State(original): State<Original>, body: Bytes) -> Response {
    let create: Value = serde_json::from_slice(&body).unwrap();
    let name = create["pod"]["metadata"]["name"].as_str().unwrap().to_owned();
    let uid = create["pod"]["metadata"]["uid"].clone();
    let mut known = original.0.lock().unwrap();
    known.creates.push(create);
    match known.pods.get(&name) {
        // It was made, and the answer did not come.
        Some(Is::Hidden) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => json!({"PodUID": uid, "PodJID": "7"}).to_string().into_response(),
    }
}

async fn delete(State(original): State<Original>, body: Bytes) -> Response {
    let pod: Value = serde_json::from_slice(&body).unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    match original.0.lock().unwrap().pods.get_mut(&name) {
        Some(is @ (Is::Running | Is::Ended(_))) => {
            *is = Is::Hidden;
            "All containers for submitted Pods have been deleted".into_response()
        }
        // The plugin ended on a pod it does not know: the API server says nothing.
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn status(State(original): State<Original>, body: Bytes) -> Response {
    let pods: Vec<Value> = serde_json::from_slice(&body).unwrap();
    let mut known = original.0.lock().unwrap();
    known.asked.extend(pods.iter().cloned());
    let mut told = Vec::new();
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let state = match known.pods.get(name).copied().unwrap_or(Is::Running) {
            Is::Running => json!({"running": {"startedAt": "2026-11-15T07:37:56Z"}}),
            Is::Ended(code) => {
                json!({"terminated": {"exitCode": code, "startedAt": null, "finishedAt": null}})
            }
            Is::Refused(code) => {
                let words =
                    "HTTP InterLink session GetStatus#1:  call exit status: 500. Body: no such container";
                return (code, words).into_response();
            }
            Is::Hidden => continue,
        };
        told.push(
            json!({"name": name, "UID": pod["metadata"]["uid"], "namespace": pod["metadata"]["namespace"],
            "JID": "", "containers": [{"name": "main", "state": state, "lastState": {}, "ready": true,
            "restartCount": 0, "image": "", "imageID": ""}], "initContainers": null}),
        );
    }
    if told.is_empty() { "null".into_response() } else { json!(told).to_string().into_response() }
}

/// A node before an original.
struct Bed {
    plane: &'static ControlPlane,
    node: String,
    namespace: String,
    original: Original,
    supervisor: Supervisor,
}

impl Bed {
    async fn new(name: &str) -> Result<Self> {
        Self::with(name, |_| {}).await
    }

    async fn with(name: &str, change: impl FnOnce(&mut NodeConfig)) -> Result<Self> {
        tarbet_identity::tls::install_default_provider();
        let plane = &shared_pair().await?.public;
        let original = Original::default();
        let node = format!("before-original-{name}-{}", std::process::id());
        let mut config = NodeConfig {
            node_name: node.clone(),
            interlink_url: format!("http://{}", stand_in(original.router()).await),
            kubelet_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            disable_csr: true,
            ..Default::default()
        };
        change(&mut config);
        let supervisor = Supervisor::default();
        let parts = Parts {
            client: connect(&Source::file(plane.kubeconfig())).await?,
            source: Source::file(plane.kubeconfig()),
            carrier: Connect::network(),
            metrics: Metrics::new("node", "test"),
            health: Health::default(),
            supervisor: supervisor.clone(),
        };
        start(config, parts).await?;
        let run = supervisor.clone();
        tokio::spawn(async move { run.run(Duration::from_secs(20), std::future::pending::<()>).await });
        let namespace = plane.unique_namespace("original").await?;
        Ok(Self { plane, node, namespace, original, supervisor })
    }

    async fn pod(&self, name: &str, policy: &str) -> Result<()> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"nodeName": self.node, "restartPolicy": policy, "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "busybox:1",
                    "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}]},
        });
        self.plane.kubectl().apply(&pod).await.map(drop)
    }

    async fn phase(&self, name: &str, phase: &str) -> Result<()> {
        eventually(PATIENCE, &format!("{name} to be {phase}"), || async {
            let pod =
                self.plane.kubectl().json(&["--namespace", &self.namespace, "get", "pod", name]).await?;
            if pod["status"]["phase"] == phase { Ok(()) } else { bail!("{}", pod["status"]) }
        })
        .await
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

#[tokio::test]
async fn one_refused_pod_freezes_no_other_and_an_end_is_an_end() -> Result<()> {
    let bed = Bed::new("freeze").await?;
    for (name, is) in [
        ("well", Is::Running),
        ("lost", Is::Refused(StatusCode::NOT_FOUND)),
        ("broken", Is::Refused(StatusCode::INTERNAL_SERVER_ERROR)),
    ] {
        bed.original.set(name, is);
        bed.pod(name, "Always").await?;
    }
    bed.phase("well", "Running").await?;
    bed.original.set("well", Is::Ended(0));
    // The original restarts nothing: this is the end, whatever the policy.
    bed.phase("well", "Succeeded").await?;
    bed.original.set("broken", Is::Ended(3));
    bed.phase("broken", "Failed").await?;
    // Its plugins may read any field of a pod that is asked for, and addresses before it runs.
    let asked = bed.original.asked("well");
    let last = asked.last().unwrap();
    ensure!(last["spec"]["containers"][0]["image"] == "busybox:1" && last["status"].is_object(), "{last}");
    let created = &bed.original.creates("well")[0]["pod"];
    ensure!(created["status"]["podIP"] == "127.0.0.1", "{created}");
    ensure!(created["spec"]["containers"][0]["env"][0]["value"] == "127.0.0.1", "{created}");
    Ok(())
}

#[tokio::test]
async fn finished_pods_leave_the_cluster_where_that_is_wanted() -> Result<()> {
    let bed = Bed::with("finished", |config| config.remove_finished_pods = true).await?;
    for (name, is) in [("well", Is::Ended(0)), ("badly", Is::Ended(3)), ("going", Is::Running)] {
        bed.original.set(name, is);
        bed.pod(name, "Never").await?;
    }
    for name in ["well", "badly"] {
        eventually(PATIENCE, &format!("{name} to leave"), || async {
            let names = ["--namespace", &bed.namespace, "get", "pods", "-o", "name"];
            let names = bed.plane.kubectl().run(&names).await?;
            ensure!(!names.lines().any(|line| line == format!("pod/{name}")), "{names}");
            anyhow::Ok(())
        })
        .await?;
        ensure!(bed.original.creates(name).len() == 1, "it was never made");
    }
    bed.phase("going", "Running").await
}

#[tokio::test]
async fn what_a_node_offers_no_longer_leaves_its_object_and_what_others_added_stays() -> Result<()> {
    let gpus =
        Accelerator { resource_type: "nvidia.com/gpu".into(), available: "2".into(), ..Default::default() };
    let offered = |node: String, gpus: Value| async move {
        eventually(PATIENCE, "the offer", || async {
            let kubectl = shared_pair().await?.public.kubectl();
            let status = kubectl.json(&["get", "node", &node]).await?["status"].clone();
            for part in ["capacity", "allocatable"] {
                ensure!(status[part]["cpu"] == "100" && status[part]["nvidia.com/gpu"] == gpus, "{status}");
            }
            anyhow::Ok(status)
        })
        .await
    };
    let bed = Bed::with("gpus", |config| config.resources.accelerators = vec![gpus]).await?;
    offered(bed.node.clone(), "2".into()).await?;
    let added = r#"{"status": {"capacity": {"example.org/others": "7"}}}"#;
    let patch = ["patch", "node", &bed.node, "--subresource=status", "--type=merge", "--patch", added];
    bed.plane.kubectl().run(&patch).await?;
    drop(bed);
    let bed = Bed::with("gpus", |_| {}).await?;
    let status = offered(bed.node.clone(), Value::Null).await?;
    ensure!(status["capacity"]["example.org/others"] == "7", "{status}");
    Ok(())
}

#[tokio::test]
async fn a_delete_without_an_answer_is_over_once_the_pod_is_not_there() -> Result<()> {
    let bed = Bed::new("delete").await?;
    bed.pod("leaves", "Never").await?;
    bed.phase("leaves", "Running").await?;
    bed.original.set("leaves", Is::Refused(StatusCode::NOT_FOUND));
    let words = ["--namespace", &bed.namespace, "delete", "pod", "leaves", "--timeout=60s"];
    bed.plane.kubectl().run(&words).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_that_an_old_answer_hides_is_not_sent_again() -> Result<()> {
    let bed = Bed::new("twice").await?;
    bed.original.set("hidden", Is::Hidden);
    bed.pod("hidden", "Never").await?;
    // It is asked for, and the answer is of another one.
    eventually(PATIENCE, "a question", || async {
        ensure!(!bed.original.asked("hidden").is_empty(), "not asked for");
        anyhow::Ok(())
    })
    .await?;
    bed.original.set("hidden", Is::Running);
    bed.phase("hidden", "Running").await?;
    ensure!(bed.original.creates("hidden").len() == 1, "it was sent twice");
    Ok(())
}
