//! Our API server before plugins of the original.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tarbet_pods::interlink::{InterlinkConfig, PluginBody, Upstream, router};
use tarbet_pods::serve::{Bind, Guard, Listener, serve};
use tokio_util::sync::CancellationToken;
use tokio_util::sync::DropGuard;

use super::stand_in;
use crate::it::pods::uid;

/// An API server of ours before a plugin.
struct Api {
    url: String,
    _stop: DropGuard,
    _folder: tempfile::TempDir,
}

impl Api {
    async fn before(plugin: Router) -> Self {
        let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let upstream = Upstream::new(&format!("http://{}", stand_in(plugin).await), "").unwrap();
        let config = InterlinkConfig {
            root: folder.path().join("api"),
            export: true,
            kubeconfig: None,
            body: PluginBody::Auto,
        };
        let router = router(config, upstream, stop.clone()).await.unwrap();
        let listener = Listener::bind(&Bind::Tcp(([127, 0, 0, 1], 0).into())).await.unwrap();
        let url = format!("http://127.0.0.1:{}", listener.port().unwrap());
        tokio::spawn(serve(listener, None, Guard::open(), router, stop.clone()));
        Self { url, _stop: stop.drop_guard(), _folder: folder }
    }

    async fn call(&self, path: &str, body: &Value) -> (StatusCode, String) {
        let sent = reqwest::Client::new().post(format!("{}{path}", self.url)).body(body.to_string());
        let answer = sent.send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid()},
        "spec": {"containers": [{"name": "main", "image": "i", "volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "variables", "key": "a"}}}]}],
            "volumes": [{"name": "cfg", "configMap": {"name": "mounted"}}]},
        "status": {"phase": "Pending"},
    })
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn running(pods: &[Value]) -> Response {
    let state = |pod: &Value| {
        json!({"name": pod["metadata"]["name"], "UID": pod["metadata"]["uid"], "namespace": "default", "JID": "",
            "containers": [{"name": "main", "state": {"running": {"startedAt": null}}, "lastState": {},
                "ready": true, "restartCount": 0, "image": "", "imageID": ""}], "initContainers": null})
    };
    json!(pods.iter().map(state).collect::<Vec<_>>()).to_string().into_response()
}

fn read(body: &Bytes) -> Vec<Value> {
    serde_json::from_slice(body).unwrap()
}

#[tokio::test]
async fn a_sentence_becomes_an_answer_and_only_mounted_objects_are_sent() {
    // A plugin of 0.2: objects were lists then, and answers words.
    let got = Arc::new(Mutex::new(Value::Null));
    let keep = Arc::clone(&got);
    let made = move |body: Bytes| async move {
        match serde_json::from_slice::<Vec<Value>>(&body) {
            Ok(pods) => {
                *keep.lock().unwrap() = pods[0].clone();
                (StatusCode::OK, "Containers created")
            }
            Err(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Some errors occurred while creating container. Check Docker Sidecar's logs",
            ),
        }
    };
    let router = Router::new().route("/create", any(made)).route("/status", any(|| async { "null" }));
    let api = Api::before(router).await;
    let pod = pod("a");
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "b"}});
    let create = json!({"pod": pod, "configmaps": [map("mounted"), map("variables")]});
    let (code, text) = api.call("/create", &create).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    let uid = &pod["metadata"]["uid"];
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"PodUID": uid, "PodJID": uid}));
    let got = got.lock().unwrap().clone();
    let maps = got["container"][0]["configMaps"].as_array().unwrap();
    assert_eq!(maps.len(), 1, "{got}");
    assert_eq!(maps[0]["metadata"]["name"], "mounted");
}

#[tokio::test]
async fn a_create_that_is_answered_with_nothing_did_not_work() {
    let router = Router::new()
        .route("/create", any(|| async { StatusCode::OK }))
        .route("/status", any(|| async { "null" }));
    let api = Api::before(router).await;
    let (code, text) = api.call("/create", &json!({"pod": pod("a")})).await;
    assert_eq!(code, StatusCode::BAD_GATEWAY, "{text}");
}

#[tokio::test]
async fn a_delete_is_sent_in_the_form_the_plugin_reads() {
    let gone = |body: Bytes| async move {
        match serde_json::from_slice::<Vec<Value>>(&body) {
            Ok(_) => (StatusCode::OK, "All containers for submitted Pods have been deleted"),
            Err(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Some errors occurred deleting containers. Check Docker Sidecar's logs",
            ),
        }
    };
    let router = Router::new().route("/delete", any(gone)).route("/status", any(|| async { "null" }));
    let api = Api::before(router).await;
    let pod = pod("a");
    assert_eq!(api.call("/delete", &pod).await.0, StatusCode::OK);
    assert_eq!(api.call("/delete", &json!([pod])).await.0, StatusCode::OK);
}

#[tokio::test]
async fn one_pod_that_cannot_be_told_does_not_hide_the_others() {
    // As the plugin for Docker says that a pod's daemon is not there.
    let status = |body: Bytes| async move {
        let pods = read(&body);
        if names(&pods).contains(&"lost".to_owned()) {
            return (StatusCode::NOT_FOUND, "Error inspecting DIND container").into_response();
        }
        if names(&pods).contains(&"broken".to_owned()) {
            let words = "open run-main.status: no such file or directory";
            return (StatusCode::INTERNAL_SERVER_ERROR, words).into_response();
        }
        running(&pods)
    };
    let api = Api::before(Router::new().route("/status", any(status))).await;
    let (code, text) = api.call("/status", &json!([pod("a"), pod("lost"), pod("b")])).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    let told: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(told.iter().map(|told| told["name"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    // What was never told must not look as if it were gone.
    let (code, text) = api.call("/status", &json!([pod("a"), pod("broken")])).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
}
