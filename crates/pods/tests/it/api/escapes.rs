//! Callers who try to get at a pod that is not theirs, by what they show and by how they name it.

use std::collections::BTreeSet;
use std::fs;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tarbet_pods::edge::Part;
use tarbet_testbed::{eventually, verified};

use super::{Running, World, settings};
use crate::it::pods::{PATIENCE, effort, uid};

const TOKEN: &str = "Sesame-4bf92f3577b34da6";
const REMARK: &str = "a remark in the file of tokens";
/// What the victim says, and nobody else.
const CANARY: &str = "canary-of-the-victim";

fn victim() -> Value {
    json!({
        "metadata": {"name": "victim", "namespace": "theirs", "uid": uid()},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "none", "command": ["sh", "-c", format!("echo {CANARY}; sleep 1000")]},
        ]},
        "status": {"phase": "Running"},
    })
}

fn log_of(uid: &str, pod: &Value) -> Value {
    json!({"Namespace": pod["metadata"]["namespace"], "PodUID": uid, "PodName": pod["metadata"]["name"],
        "ContainerName": "main", "Opts": {}})
}

/// A server of interLink's, and somebody who calls it.
struct Door<'a> {
    server: &'a Running,
    http: Client,
}

impl Door<'_> {
    async fn ask(&self, method: &str, path: &str, shown: Option<&str>, body: &Value) -> (StatusCode, String) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut asked = self.http.request(method, format!("{}{path}", self.server.url()));
        if let Some(shown) = shown {
            asked = asked.header("authorization", shown);
        }
        let answer = asked.body(body.to_string()).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// Waits until the owner sees the pod run and reads its log.
    async fn is_well(&self, pod: &Value, shown: Option<&str>) {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        eventually(PATIENCE, "the victim to run", || async {
            let (_, state) = self.ask("POST", "/status", shown, &json!([pod])).await;
            let (_, log) = self.ask("POST", "/getLogs", shown, &log_of(uid, pod)).await;
            if state.contains("\"running\"") && log.contains(CANARY) { Ok(()) } else { Err(state + &log) }
        })
        .await
        .unwrap();
    }
}

/// What people show who do not have the token.
fn shown() -> Vec<Option<String>> {
    let some = [
        String::new(),
        "Bearer".into(),
        "Bearer ".into(),
        TOKEN.into(),
        format!("Basic {TOKEN}"),
        format!("Token {TOKEN}"),
        format!("Bearer{TOKEN}"),
        format!("Bearer\t{TOKEN}"),
        format!("Bearer {}", TOKEN.to_lowercase()),
        format!("Bearer {}", TOKEN.to_uppercase()),
        format!("Bearer {TOKEN}x"),
        format!("Bearer x{TOKEN}"),
        format!("Bearer {}", &TOKEN[..TOKEN.len() - 1]),
        format!("Bearer \"{TOKEN}\""),
        format!("Bearer {TOKEN},{TOKEN}"),
        format!("Bearer Bearer {TOKEN}"),
        format!("Bearer {}", TOKEN.replace('-', "%2d")),
        format!("Bearer # {REMARK}"),
        "Bearer *".into(),
        "Bearer null".into(),
    ];
    some.into_iter().map(Some).chain([None]).collect()
}

#[tokio::test]
async fn who_shows_no_accepted_token_learns_nothing_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, format!("# {REMARK}\n\n{TOKEN}\n")).unwrap();
    let world = World::new(|config, _| config.accepted_tokens_file = Some(tokens.clone())).await;
    let mut config = settings(folder.path());
    config.accepted_tokens_file = Some(tokens);
    let plugin = Running::start(Part::Process, config).await;
    let owner = format!("Bearer {TOKEN}");
    let mut tried = 0;
    for (server, listed) in [(&world.api, false), (&plugin, true)] {
        let door = Door { server, http: Client::new() };
        let pod = victim();
        // One takes a pod with what it mentions, the other a list of pods with what was found.
        let made = json!({"pod": pod, "container": []});
        let made = if listed { json!([made]) } else { made };
        let (code, text) = door.ask("POST", "/create", Some(&owner), &made).await;
        assert_eq!(code, StatusCode::OK, "{text}");
        door.is_well(&pod, Some(&owner)).await;
        let log = log_of(pod["metadata"]["uid"].as_str().unwrap(), &pod);
        let bodies = [
            ("/create", &made),
            ("/delete", &pod),
            ("/status", &json!([pod])),
            ("/getLogs", &log),
            ("/updateCache", &json!([pod])),
            ("/setKubeCFG", &json!({"body": "apiVersion: v1"})),
            ("/tarbet/update", &made),
            ("/tarbet/exec", &log),
            ("/ping", &json!({})),
            ("/pinglink", &json!({})),
            ("/system-info", &json!({})),
            ("/tarbet/list", &json!({})),
            ("/tarbet/usage", &json!({})),
            ("/tarbet/watch", &json!({})),
            ("//status", &json!([pod])),
            ("/status/", &json!([pod])),
            ("/%73tatus", &json!([pod])),
            ("/pinglink/../status", &json!([pod])),
            ("/nowhere", &json!({})),
        ];
        let mut answers = BTreeSet::new();
        for shown in shown() {
            for (path, body) in bodies {
                for method in ["GET", "POST", "PUT", "DELETE"] {
                    let by_query = format!("{path}?token={TOKEN}&access_token={TOKEN}");
                    let (code, text) = door.ask(method, &by_query, shown.as_deref(), body).await;
                    answers.insert((code.as_u16(), text));
                    tried += 1;
                }
            }
        }
        assert_eq!(answers.len(), 1, "what is there looks like what is not: {answers:?}");
        let (code, text) = answers.pop_first().unwrap();
        assert!(code == 401 && !text.contains(CANARY) && !text.contains(TOKEN), "{code} {text}");
        door.is_well(&pod, Some(&owner)).await;
        door.ask("POST", "/delete", Some(&owner), &pod).await;
    }
    verified(
        "calls to interLink or a plugin without an accepted token: none told or changed anything",
        tried,
    );
    plugin.end().await;
    world.end().await;
}

/// Names that are nearly the victim's: the UID in other forms, and everything else it is called by.
fn names(pod: &Value) -> Vec<String> {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let percent = uid.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
    let mut names = vec![
        String::new(),
        "*".into(),
        ".".into(),
        "..".into(),
        "victim".into(),
        "theirs/victim".into(),
        "theirs_victim".into(),
        "main".into(),
        percent,
        uid.to_uppercase(),
        uid.replace('-', ""),
        uid.replace('-', "\u{2010}"),
        uid.replace('-', "/"),
        uid[..8].to_owned(),
        uid[..35].to_owned(),
    ];
    let around = [
        "./",
        "../",
        "/",
        "..%2f",
        "%2e%2e%2f",
        "tarbet-",
        "docker://",
        "slurm://",
        "process://",
        "urn:uuid:",
        " ",
        "\t",
        "\n",
        "\u{0}",
        "{",
        "theirs/",
        "victim.",
        "0",
        "x/../",
    ];
    for piece in around {
        names.push(format!("{piece}{uid}"));
        names.push(format!("{uid}{piece}"));
    }
    names
}

#[tokio::test]
async fn a_pod_is_found_by_its_own_uid_and_by_nothing_else() {
    let world = World::new(|_, _| {}).await;
    let pod = victim();
    let mut tried = 0;
    let owner = Door { server: &world.api, http: Client::new() };
    let (code, text) = owner.ask("POST", "/create", None, &json!({"pod": pod})).await;
    assert_eq!(code, StatusCode::OK, "{text}");
    owner.is_well(&pod, None).await;
    let mut names = names(&pod);
    // Well formed, and nobody's: what is refused above says no more than this.
    names.extend((0..effort(8)).map(|_| uid()));
    for server in [&world.api, &world.plugin] {
        let door = Door { server, http: Client::new() };
        let mut absent = BTreeSet::new();
        for name in &names {
            let mut other = pod.clone();
            other["metadata"]["uid"] = json!(name);
            let changed = json!({"pod": other, "container": []});
            let calls = [
                ("/status", json!([other])),
                ("/status", other.clone()),
                ("/getLogs", log_of(name, &pod)),
                ("/delete", other.clone()),
                ("/tarbet/update", changed),
            ];
            for (path, body) in calls {
                for method in ["GET", "POST"] {
                    let (code, text) = door.ask(method, path, None, &body).await;
                    let told = [CANARY, "\"running\"", "\"terminated\""];
                    assert!(
                        told.iter().all(|word| !text.contains(word)),
                        "{method} {path} {name:?}: {code} {text}"
                    );
                    if tarbet_pods::wire::is_uid(name) && path != "/delete" {
                        absent.insert((path, code.as_u16(), text.replace(name.as_str(), "UID")));
                    }
                    tried += 1;
                }
            }
        }
        // One answer for each call, for all UIDs that are not there.
        let paths: BTreeSet<&str> = absent.iter().map(|(path, ..)| *path).collect();
        assert!(absent.len() <= paths.len() + 1, "{absent:#?}");
        owner.is_well(&pod, None).await;
    }
    verified("names that are nearly a pod's UID: none reached it", tried);
    owner.ask("POST", "/delete", None, &pod).await;
    world.end().await;
}
