//! Pods for tests, and what they look like.

use std::time::Duration;

use serde_json::{Value, json};
use tarbet_pods::runner::Runner;
use tarbet_pods::wire::{PodStatus, RetrievedPod};
use tarbet_testbed::eventually;

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// How often repeated checks run: a small number, times EFFORT.
pub(crate) fn effort(least: u32) -> u32 {
    least * u32::try_from(tarbet_testbed::effort()).unwrap()
}

pub(crate) fn uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// A pod of this spec, with a fresh UID.
pub(crate) fn pod(spec: Value) -> RetrievedPod {
    with(spec, json!([]), json!({}))
}

/// A pod with contents and metadata.
pub(crate) fn with(mut spec: Value, containers: Value, metadata: Value) -> RetrievedPod {
    if spec.get("restartPolicy").is_none() {
        spec["restartPolicy"] = json!("Never");
    }
    if spec.get("terminationGracePeriodSeconds").is_none() {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    let mut meta = json!({"name": "pod", "namespace": "tests", "uid": uid()});
    for (key, value) in metadata.as_object().unwrap() {
        meta[key] = value.clone();
    }
    serde_json::from_value(json!({"pod": {"metadata": meta, "spec": spec}, "container": containers})).unwrap()
}

pub(crate) fn uid_of(pod: &RetrievedPod) -> String {
    pod.pod.metadata.uid.clone().unwrap()
}

/// A container that runs a line of shell.
pub(crate) fn shell(name: &str, line: &str) -> Value {
    json!({"name": name, "image": "shell:1", "imagePullPolicy": "Never", "command": ["sh", "-c", line]})
}

/// One word for the state of a container.
pub(crate) fn word(status: &k8s_openapi::api::core::v1::ContainerStatus) -> String {
    let state = status.state.clone().unwrap_or_default();
    match (state.waiting, state.running, state.terminated) {
        (Some(waiting), _, _) => format!("waiting:{}", waiting.reason.unwrap_or_default()),
        (_, Some(_), _) => "running".into(),
        (_, _, Some(end)) => format!("exit:{}", end.exit_code),
        _ => "none".into(),
    }
}

pub(crate) fn words(status: &PodStatus) -> String {
    let all = status.init_containers.iter().chain(&status.containers);
    all.map(|container| format!("{}={}", container.name, word(container))).collect::<Vec<_>>().join(" ")
}

/// The state once `good` finds it so.
pub(crate) async fn until<R: Runner + ?Sized>(
    runner: &R,
    uid: &str,
    what: &str,
    good: impl Fn(&str) -> bool,
) -> PodStatus {
    let asked = [uid.to_owned()];
    eventually(PATIENCE, what, || async {
        let states = runner.status(&asked).await.map_err(|error| error.to_string())?;
        let state = states.into_iter().next().ok_or("the pod is not known")?;
        if good(&words(&state)) { Ok(state) } else { Err(words(&state)) }
    })
    .await
    .unwrap()
}

/// The state once all containers have ended.
pub(crate) async fn ended<R: Runner + ?Sized>(runner: &R, uid: &str) -> PodStatus {
    until(runner, uid, "the end of the pod", |text| text.split(' ').all(|part| part.contains("=exit:"))).await
}

pub(crate) async fn log<R: Runner + ?Sized>(
    runner: &R,
    uid: &str,
    container: &str,
    options: Value,
) -> String {
    use futures::TryStreamExt;
    let request = json!({"Namespace": "tests", "PodUID": uid, "ContainerName": container, "Opts": options});
    let stream = runner.logs(serde_json::from_value(request).unwrap()).await.unwrap();
    let pieces: Vec<bytes::Bytes> = stream.try_collect().await.unwrap();
    String::from_utf8(pieces.concat()).unwrap()
}
