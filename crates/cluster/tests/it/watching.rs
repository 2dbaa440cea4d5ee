//! A mirror follows a real watch through changes, ends and restarts of the API.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tarbet_cluster::{Change, Mirror, Newer, Source, Watch, connect, watch};
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
    let seen = || mirror.get(&namespace, "after").is_some() && mirror.get(&namespace, "doomed").is_none();
    wait_for(SOON, "what happened meanwhile", seen).await.unwrap();
    assert!(!failing());
    stop.cancel();
    watching.await.unwrap();
    plane.stop().await.unwrap();
}
