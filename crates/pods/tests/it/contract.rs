//! What is written for people who bring a plugin of their own, and what is shipped: each is tried.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tarbet_pods::batch::states::{JobState, exit_code, job_state};
use tarbet_pods::edge::{EdgeConfig, Environment, Part, start};
use tarbet_pods::wire::{
    CreateReply, LogRequest, PingReply, PodStatus, Resources, RetrievedContainer, RetrievedPod, Taint,
};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tarbet_testbed::{Folder, Lease, Process, Program, eventually};

use super::pods::{PATIENCE, uid};

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&std::fs::read_to_string(shipped(path)).unwrap()).unwrap()
}

/// The keys that a value of ours has on the wire.
fn keys(value: &impl serde::Serialize) -> Vec<String> {
    serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_written_contract_names_what_is_really_sent() {
    let contract = yaml("docs/reference/plugin-openapi.yaml");
    let paths: Vec<&String> = contract["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths.len(), 4);
    for path in ["/create", "/delete", "/getLogs", "/status"] {
        assert!(contract["paths"].get(path).is_some(), "{path}");
    }
    let schemas = &contract["components"]["schemas"];
    let stale = PodStatus { stale_seconds: 1, pod_ip: "10.0.0.1".into(), ..Default::default() };
    let ping = PingReply {
        status: "ok".into(),
        resources: Some(Resources::default()),
        taints: Some(vec![Taint::default()]),
    };
    for (schema, sent) in [
        ("RetrievedPodData", keys(&RetrievedPod::default())),
        ("RetrievedContainer", keys(&RetrievedContainer::default())),
        ("CreateStruct", keys(&CreateReply::default())),
        ("PodStatus", keys(&stale)),
        ("LogStruct", keys(&LogRequest::default())),
        ("PingResponse", keys(&ping)),
    ] {
        let named = schemas[schema]["properties"].as_object().unwrap();
        for key in sent {
            assert!(named.contains_key(&key), "{schema} does not name `{key}`");
        }
        for key in schemas[schema]["required"].as_array().into_iter().flatten() {
            assert!(named.contains_key(key.as_str().unwrap()), "{schema} requires {key} without naming it");
        }
    }
    let options = keys(&LogRequest::default().options);
    let named = schemas["LogStruct"]["properties"]["Opts"]["properties"].as_object().unwrap();
    assert!(options.iter().all(|key| named.contains_key(key)), "{options:?}");
    // Every reference leads somewhere.
    let text = contract.to_string();
    for name in text.split("#/components/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(contract.pointer(&format!("/components/{name}")).is_some(), "{name}");
    }
}

#[tokio::test]
async fn the_sample_plugin_runs_pods_behind_our_api() {
    let (folder, ports) = (Folder::new("sample-plugin").unwrap(), Lease::block(1).unwrap());
    let program = Program::new("python3")
        .arg(shipped("deploy/examples/plugin/plugin.py"))
        .arg(ports.port(0).to_string());
    let mut plugin = Process::start(&folder, "plugin", program).unwrap();
    let answers = || tokio::net::TcpStream::connect(("127.0.0.1", ports.port(0)));
    plugin.ready(PATIENCE, answers).await.unwrap();
    let config = EdgeConfig {
        interlink_port: "0".into(),
        sidecar_url: "http://127.0.0.1".into(),
        sidecar_port: ports.port(0).to_string(),
        data_root_folder: folder.path().join("api"),
        ..Default::default()
    };
    let supervisor = Supervisor::default();
    let address = start(
        Part::Interlink,
        config,
        &Environment::new(),
        &supervisor,
        &Metrics::new("api", "test"),
        &Health::default(),
    )
    .await
    .unwrap();
    let http = reqwest::Client::new();
    let call = |path: &str, body: Value| {
        let request = http.post(format!("http://{address}{path}")).body(body.to_string());
        async move {
            let answer = request.send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        }
    };
    let (code, pong) = call("/pinglink", json!([])).await;
    assert_eq!(code, 200);
    assert!(pong.contains("\"ok\""), "{pong}");

    let make = |command: Value| {
        json!({"pod": {
            "metadata": {"name": "mine", "namespace": "default", "uid": uid()},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "none", "command": command, "env": [{"name": "WHO", "value": "a b'c"}]},
            ]},
        }})
    };
    let pod = make(json!(["sh", "-c", "echo \"hello $WHO\"; exit 3"]));
    let (code, reply) = call("/create", pod.clone()).await;
    assert_eq!(code, 200, "{reply}");
    assert_eq!(serde_json::from_str::<Value>(&reply).unwrap()["PodUID"], pod["pod"]["metadata"]["uid"]);
    let state = eventually(PATIENCE, "the end", || async {
        let (_, text) = call("/status", json!([pod["pod"]])).await;
        let state: Value = serde_json::from_str(&text).unwrap();
        if state[0]["containers"][0]["state"]["terminated"].is_object() { Ok(state) } else { Err(text) }
    })
    .await
    .unwrap();
    assert_eq!(state[0]["containers"][0]["state"]["terminated"]["exitCode"], 3);
    let asked = json!({"Namespace": "default", "PodUID": pod["pod"]["metadata"]["uid"], "PodName": "mine", "ContainerName": "main", "Opts": {}});
    assert_eq!(call("/getLogs", asked).await, (200, "hello a b'c\n".to_owned()));
    assert_eq!(call("/delete", pod["pod"].clone()).await.0, 200);
    let (code, text) = call("/create", make(json!([]))).await;
    assert!(code != 200 && text.contains("no command"), "{code} {text}");
    supervisor.stop();
}

#[test]
fn the_shipped_files_fit_together() {
    let compose = yaml("examples/docker-compose.yaml");
    let services = compose["services"].as_object().unwrap();
    let roles: Vec<&str> = services.values().map(|service| service["command"][0].as_str().unwrap()).collect();
    for role in ["node", "interlink", "plugin"] {
        assert!(roles.contains(&role), "no service runs `{role}`");
    }
    let busy = yaml("examples/busyecho_k8s.yaml");
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(busy).unwrap();
    let selector = pod.spec.unwrap().node_selector.unwrap();
    let node = services.values().find(|service| service["command"][0] == "node").unwrap();
    let words: Vec<&str> =
        node["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let at = words.iter().position(|word| *word == "--nodename").unwrap();
    assert_eq!(
        selector["kubernetes.io/hostname"],
        words[at + 1],
        "the example runs on the node of the compose file"
    );
    let limits: Value =
        serde_json::from_str(&std::fs::read_to_string(shipped("kustomizations/vk-cfg.json")).unwrap())
            .unwrap();
    let deployment = yaml("kustomizations/deployment.yaml");
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let name = variables.iter().find(|variable| variable["name"] == "NODENAME").unwrap();
    assert!(limits.get(name["value"].as_str().unwrap()).is_some(), "vk-cfg.json does not know the node");
    assert_eq!(name["value"], words[at + 1], "one name in all files");
}

/// The cells of the table whose head begins so, row by row.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let rows = page.lines().skip_while(|line| !line.starts_with(&format!("| {head}"))).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn the_published_states_are_those_of_the_code() {
    let page = std::fs::read_to_string(shipped("docs/reference/slurm-states.md")).unwrap();
    let states = table(&page, "Slurm's compact states");
    let mut named = Vec::new();
    for row in &states {
        let [words, container, code, reason] = row.as_slice() else { panic!("{row:?}") };
        for word in words.split(' ') {
            let said = match job_state(word, 1792, "Resources") {
                JobState::Pending(_) => ("waiting", String::new(), "JobPending"),
                JobState::Running => ("running", String::new(), ""),
                JobState::Ended(1792) => ("ended", "of the wait status".to_owned(), ""),
                JobState::Killed(code, reason) => ("ended", code.to_string(), reason),
                other => panic!("{word}: {other:?}"),
            };
            assert_eq!(said, (container.as_str(), code.clone(), reason.as_str()), "{word}");
            named.push(word.to_owned());
        }
    }
    // Whatever else Slurm may say is not taken for anything.
    for first in b'A'..=b'Z' {
        for second in b'A'..=b'Z' {
            let word = String::from_utf8(vec![first, second]).unwrap();
            let odd = matches!(job_state(&word, 0, ""), JobState::Odd(_));
            assert_eq!(odd, !named.contains(&word), "{word}");
        }
    }
    let statuses = table(&page, "wait status");
    assert!(statuses.len() > 5);
    for row in statuses {
        assert_eq!(exit_code(row[0].parse().unwrap()), row[1].parse::<i32>().unwrap(), "{row:?}");
    }
}
