//! The recorded calls of the original programs are read, and written again with the same meaning.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tarbet_pods::wire::{
    CreateReply, LogRequest, PingReply, PodCreate, PodRef, PodStatus, RetrievedPod, read, read_items,
};

fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name);
    fs::read_to_string(path).unwrap()
}

/// The JSON texts in a recorded file, in order: headers, request, response.
fn texts(name: &str) -> Vec<String> {
    let text = sample(name);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(start) = rest
        .find("\n[")
        .into_iter()
        .chain(rest.find("\n{"))
        .min()
        .map(|at| at + 1)
        .or_else(|| (rest.starts_with('{') || rest.starts_with('[')).then_some(0))
    {
        let start = if rest.starts_with('{') || rest.starts_with('[') { 0 } else { start };
        let mut stream = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(_)) => {
                let end = start + stream.byte_offset();
                found.push(rest[start..end].to_owned());
                rest = &rest[end..];
            }
            _ => rest = &rest[start + 1..],
        }
    }
    found
}

/// Without what means nothing: nulls, empty lists, objects, texts, zeros and false.
fn bare(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, bare(value)))
                .filter(|(_, value)| !value.is_null())
                .collect(),
        ),
        Value::Array(list) if list.is_empty() => Value::Null,
        Value::Array(list) => Value::Array(list.into_iter().map(bare).collect()),
        Value::String(text) if text.is_empty() || text == "0001-01-01T00:00:00Z" => Value::Null,
        Value::Bool(false) => Value::Null,
        Value::Number(number) if number.as_i64() == Some(0) => Value::Null,
        other => other,
    }
    .normal()
}

trait Normal {
    fn normal(self) -> Self;
}

impl Normal for Value {
    fn normal(self) -> Self {
        match self {
            Value::Object(map) if map.is_empty() => Value::Null,
            other => other,
        }
    }
}

/// `kind` and `apiVersion` say nothing between these parties: informers drop them, we write them.
fn without_kind(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            if map.contains_key("metadata") {
                map.remove("kind");
                map.remove("apiVersion");
            }
            let inner = std::mem::take(map);
            *map = inner.into_iter().map(|(key, value)| (key, without_kind(value))).collect();
        }
        Value::Array(list) => *list = std::mem::take(list).into_iter().map(without_kind).collect(),
        _ => {}
    }
    value
}

fn same<T: Serialize + DeserializeOwned>(text: &str) {
    let items = read_items::<T>(text.as_bytes(), "a sample").unwrap();
    let written = if items.list {
        serde_json::to_value(&items.items).unwrap()
    } else {
        serde_json::to_value(&items.items[0]).unwrap()
    };
    let recorded: Value = serde_json::from_str(text).unwrap();
    assert_eq!(without_kind(bare(written)), without_kind(bare(recorded)));
}

/// Every key of interLink's own objects in another case.
fn shouted(text: &str, keys: &[&str]) -> String {
    keys.iter().fold(text.to_owned(), |text, key| {
        text.replace(&format!("\"{key}\":"), &format!("\"{}\":", key.to_ascii_uppercase()))
    })
}

#[test]
fn creates_of_both_generations() {
    same::<RetrievedPod>(&texts("api-to-plugin-create.json")[1]);
    same::<RetrievedPod>(&texts("docker-03-create-array.request.txt")[0]);
    same::<PodCreate>(&texts("slurm-02-create.request.txt")[0]);
    same::<PodCreate>(&texts("vk-to-api-create-0.txt")[1]);
    same::<k8s_openapi::api::core::v1::Pod>(&texts("seed-03-create.txt")[0]);
    for reply in ["docker-03-create-array.response.txt", "slurm-02-create.response.txt"] {
        same::<CreateReply>(&texts(reply)[0]);
    }
}

#[test]
fn states_of_both_generations() {
    for (name, place) in [
        ("docker-04-status-1.response.txt", 0),
        ("slurm-03-status-running.response.txt", 0),
        ("slurm-04-status-terminated.response.txt", 0),
        ("vk-to-api-status-0.txt", 2),
        ("seed-04-status-running.txt", 1),
        ("seed-06-delete.txt", 1),
    ] {
        same::<PodStatus>(&texts(name)[place]);
    }
    let refs = read_items::<PodRef>(texts("vk-to-api-status-0.txt")[1].as_bytes(), "pods").unwrap();
    let pod = &refs.items[0];
    assert_eq!(pod.metadata.uid, "4e819a99-6605-43b4-ac8f-cde3990633f5");
    assert_eq!((pod.status.phase.as_str(), pod.grace_seconds()), ("Pending", Some(30)));
    assert_eq!(pod.spec.init_containers[0].name, "prep");
}

#[test]
fn logs_and_pings() {
    same::<LogRequest>(&texts("seed-05-getLogs.txt")[0]);
    same::<PingReply>(&texts("slurm-01-pinglink.response.txt")[0]);
    same::<PingReply>(&texts("vk-to-api-pinglink-0.txt")[1]);
}

#[test]
fn keys_in_any_case_and_nulls_mean_the_same() {
    let text = &texts("vk-to-api-create-0.txt")[1];
    let plain: PodCreate = read(text.as_bytes(), "a create").unwrap();
    let loud = shouted(text, &["pod", "configmaps", "secrets", "projectedvolumesmaps", "jobscriptURL"]);
    assert_ne!(&loud, text);
    assert_eq!(read::<PodCreate>(loud.as_bytes(), "a create").unwrap(), plain);
    let empty: PodCreate = read(br#"{"Pod":null,"SECRETS":null,"more":1}"#, "a create").unwrap();
    assert_eq!(empty, PodCreate::default());
    assert_eq!(read_items::<PodStatus>(b"null", "states").unwrap().items, []);
    assert_eq!(read_items::<PodStatus>(b" ", "states").unwrap().items, []);
    assert!(read::<PodCreate>(b"{} x", "a create").is_err());
    assert!(read::<PodCreate>(b"[]", "a create").is_err());
}
