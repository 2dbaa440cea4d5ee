//! Our plugins and API server as interLink's own parts call them: no token, no header of ours.

use std::path::Path;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tarbet_pods::edge::{EdgeConfig, Environment, Part, start};
use tarbet_pods::wire::extension::{EXTENSIONS, EXTENSIONS_HEADER};
use tarbet_telemetry::{Health, Metrics, Problem, Supervisor};
use tarbet_testbed::eventually;

use super::pods::{PATIENCE, pod, shell, uid_of};

fn settings(folder: &Path) -> EdgeConfig {
    EdgeConfig {
        interlink_port: "0".into(),
        sidecar_port: "0".into(),
        data_root_folder: folder.join("data"),
        kill_wait_seconds: 2,
        status_seconds: 1,
        ..Default::default()
    }
}

/// Starts a part and gives its address.
async fn part(part: Part, config: EdgeConfig, supervisor: &Supervisor) -> Result<String, Problem> {
    let environment: Environment = std::env::vars().collect();
    let (metrics, health) = (Metrics::new("part", "test"), Health::default());
    start(part, config, &environment, supervisor, &metrics, &health).await
}

async fn end(supervisor: Supervisor) {
    supervisor.stop();
    supervisor.run(Duration::from_secs(20), std::future::pending).await.unwrap();
}

#[tokio::test]
async fn a_sidecar_that_runs_is_no_init_container_to_others() {
    let (folder, supervisor) = (tempfile::tempdir().unwrap(), Supervisor::default());
    let plugin = part(Part::Process, settings(folder.path()), &supervisor).await.unwrap();
    let mut side = shell("side", "while :; do sleep 0.2; done");
    side["restartPolicy"] = json!("Always");
    let pod = pod(json!({"initContainers": [shell("first", "true"), side],
        "containers": [shell("main", "while :; do sleep 0.2; done")]}));
    let http = Client::new();
    let made = http.post(format!("http://{plugin}/create")).body(serde_json::to_string(&pod).unwrap());
    assert_eq!(made.send().await.unwrap().status(), StatusCode::OK);
    let asked = serde_json::to_string(&[&pod.pod]).unwrap();
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    let ask = |ours: bool| {
        let call = http.get(format!("http://{plugin}/status")).body(asked.clone());
        let call = if ours { call.header(EXTENSIONS_HEADER, EXTENSIONS) } else { call };
        async move { call.send().await.unwrap().json::<Value>().await.unwrap()[0].clone() }
    };
    let state = eventually(PATIENCE, "the main container", || async {
        let state = ask(false).await;
        state["containers"][0]["state"]["running"].is_object().then_some(state)
    });
    let state = state.await.unwrap();
    assert_eq!(names(&state["initContainers"]), ["first"], "{state}");
    assert_eq!(names(&ask(true).await["initContainers"]), ["first", "side"]);
    let gone = http.delete(format!("http://{plugin}/delete")).body(serde_json::to_string(&pod.pod).unwrap());
    assert_eq!(gone.send().await.unwrap().status(), StatusCode::OK, "{}", uid_of(&pod));
    end(supervisor).await;
}

#[tokio::test]
async fn job_scripts_made_elsewhere_are_refused_in_words() {
    let (folder, supervisor) = (tempfile::tempdir().unwrap(), Supervisor::default());
    let plugin = part(Part::Process, settings(folder.path()), &supervisor).await.unwrap();
    let config = EdgeConfig { sidecar_url: format!("http://{plugin}"), ..settings(folder.path()) };
    let api = part(Part::Interlink, config, &supervisor).await.unwrap();
    let (http, pod) = (Client::new(), pod(json!({"containers": [shell("main", "true")]})));
    let create = json!({"pod": pod.pod, "configmaps": null, "secrets": null, "projectedvolumesmaps": null,
        "jobscriptURL": "http://builder"});
    let mut retrieved = serde_json::to_value(&pod).unwrap();
    retrieved["jobScript"] = json!("#!/bin/sh\nid\n");
    for (place, body) in [(&api, create), (&plugin, retrieved)] {
        let answer = http.post(format!("http://{place}/create")).body(body.to_string()).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, StatusCode::NOT_IMPLEMENTED, "{text}");
        assert!(text.contains("TB-3106") && text.contains("ob script"), "{text}");
    }
    // With zero values, as API servers always send them, it runs.
    let mut plain = serde_json::to_value(&pod).unwrap();
    plain["jobConfig"] =
        json!({"SingularityHubProxy": {"server": ""}, "ApptainerOptions": {}, "Volumes": {}});
    let answer = http.post(format!("http://{plugin}/create")).body(plain.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    end(supervisor).await;
}

#[tokio::test]
async fn a_plugin_listens_to_others_only_where_the_administrator_names_them() {
    let (folder, supervisor) = (tempfile::tempdir().unwrap(), Supervisor::default());
    let wide = |callers: &[&str]| EdgeConfig {
        sidecar_address: "0.0.0.0".into(),
        allowed_callers: callers.iter().map(|&text| text.to_owned()).collect(),
        ..settings(folder.path())
    };
    let refused = part(Part::Process, wide(&[]), &supervisor).await.unwrap_err();
    assert!(refused.message.contains("open to everybody"), "{refused:?}");
    let odd = part(Part::Process, wide(&["anybody"]), &supervisor).await.unwrap_err();
    assert!(odd.message.contains("AllowedCallers"), "{odd:?}");
    let address = part(Part::Process, wide(&["192.0.2.7", "10.0.0.0/8"]), &supervisor).await.unwrap();
    let port = address.rsplit_once(':').unwrap().1;
    let answer =
        Client::new().get(format!("http://127.0.0.1:{port}/status")).body("[]").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    end(supervisor).await;
}
