//! A mirror follows a real watch through changes, ends and restarts of the API.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::client::Body;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tarbet_cluster::{Change, Mirror, Newer, Source, Watch, connect, connect_by, watch};
use tarbet_testbed::{ControlPlane, shared_pair, wait_for};
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(90);

#[derive(Debug)]
struct Kept {
    uid: String,
    version: u64,
    value: String,
}

impl Newer for Kept {
    fn uid(&self) -> &str {
        &self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
}

fn keep(map: DeserializeGuard<ConfigMap>) -> Option<Kept> {
    let map = map.0.ok()?;
    Some(Kept {
        uid: map.uid()?,
        version: map.resource_version()?.parse().ok()?,
        value: map.data?.get("value")?.clone(),
    })
}

fn everything(client: Client, namespace: &str) -> Watch<DeserializeGuard<ConfigMap>> {
    Watch { api: Api::namespaced(client, namespace), config: watcher::Config::default(), namespace: None }
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({ "metadata": { "name": name }, "data": { "value": value } }))
        .unwrap()
}

#[tokio::test]
async fn objects_come_change_and_go() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("mirror").await.unwrap();
    let client = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    api.create(&PostParams::default(), &map("early", "1")).await.unwrap();

    let (mirror, stop, changes) =
        (Mirror::<Kept>::default(), CancellationToken::new(), Arc::new(Mutex::new(vec![])));
    let told = Arc::clone(&changes);
    let watching = tokio::spawn(watch(
        everything(client, &namespace),
        mirror.clone(),
        keep,
        move |change| told.lock().unwrap().push(change),
        stop.clone(),
    ));
    mirror.listed().await;
    let value = |name: &str| mirror.get(&namespace, name).map(|kept| kept.value.clone());
    assert_eq!(value("early").as_deref(), Some("1"));
    api.create(&PostParams::default(), &map("late", "2")).await.unwrap();
    wait_for(SOON, "the late one", || value("late").as_deref() == Some("2")).await.unwrap();
    tarbet_cluster::merge(&api, "late", &map("late", "3")).await.unwrap();
    wait_for(SOON, "its change", || value("late").as_deref() == Some("3")).await.unwrap();
    api.delete("early", &DeleteParams::default()).await.unwrap();
    wait_for(SOON, "the end of the early one", || value("early").is_none()).await.unwrap();
    stop.cancel();
    watching.await.unwrap();
    let changes = changes.lock().unwrap();
    assert!(changes.iter().any(|change| matches!(change, Change::Listed)));
    assert!(changes.iter().any(|change| matches!(change, Change::Deleted(was) if was.value == "1")));
}

#[tokio::test]
async fn the_watch_says_that_it_fails_and_finds_its_way_back() {
    let mut plane = ControlPlane::start("flaky").await.unwrap();
    let namespace = plane.unique_namespace("mirror").await.unwrap();
    let client = connect(&Source::file(plane.kubeconfig())).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    api.create(&PostParams::default(), &map("doomed", "1")).await.unwrap();
    let (mirror, stop, state) =
        (Mirror::<Kept>::default(), CancellationToken::new(), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&state);
    let watching = tokio::spawn(watch(
        everything(client, &namespace),
        mirror.clone(),
        keep,
        move |now| *told.lock().unwrap() = Some(now),
        stop.clone(),
    ));
    mirror.listed().await;
    plane.apiserver().kill9().unwrap();
    let failing = || matches!(*state.lock().unwrap(), Some(Change::Failing(_)));
    wait_for(SOON, "the watch to fail", failing).await.unwrap();
    plane.restart_apiserver().await.unwrap();
    api.delete("doomed", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &map("after", "2")).await.unwrap();
    // A server that is not through with its start may fail the watch once more.
    let seen = || mirror.get(&namespace, "after").is_some() && mirror.get(&namespace, "doomed").is_none();
    wait_for(SOON, "what happened meanwhile", || seen() && !failing()).await.unwrap();
    stop.cancel();
    watching.await.unwrap();
    plane.stop().await.unwrap();
}

#[tokio::test]
async fn a_watch_that_failed_is_known_to_be_well_though_nothing_changes() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("quiet").await.unwrap();
    let real = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    // As an API server does that has just been told of the kind: it lists, and does not watch yet.
    let first = Arc::new(AtomicBool::new(true));
    let client = connect_by(move |request: http::Request<Body>| {
        let (real, first) = (real.clone(), Arc::clone(&first));
        async move {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if watches && first.swap(false, Ordering::SeqCst) {
                let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","message":"storage is (re)initializing","code":429}"#;
                let refused =
                    http::Response::builder().status(429).body(Body::from(status.as_bytes().to_vec()))?;
                return Ok(refused);
            }
            Ok(real.send(request).await?)
        }
    });
    let (stop, changes) = (CancellationToken::new(), Arc::new(Mutex::new(vec![])));
    let told = Arc::clone(&changes);
    let watching = tokio::spawn(watch(
        everything(client, &namespace),
        Mirror::<Kept>::default(),
        keep,
        move |change| told.lock().unwrap().push(change),
        stop.clone(),
    ));
    let said = |what: fn(&Change<Kept>) -> bool| changes.lock().unwrap().iter().any(what);
    wait_for(SOON, "the failure", || said(|change| matches!(change, Change::Failing(_)))).await.unwrap();
    wait_for(SOON, "its end", || said(|change| matches!(change, Change::Back))).await.unwrap();
    stop.cancel();
    watching.await.unwrap();
}
