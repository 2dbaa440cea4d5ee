//! Every object of a varied corpus passes `istioctl validate` and `istioctl analyze`, and is what
//! the kept output says.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tarbet_mesh::offline::{Rendered, render_folder, render_legacy};
use tarbet_testbed::Istioctl;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The folders of the corpus, and in each either `legacy.json` or our custom resources.
fn corpus() -> Vec<(String, Rendered)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(cases()).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let legacy = folder.join("legacy.json");
        let rendered =
            if legacy.exists() { render_legacy(&legacy) } else { render_folder(&folder.join("input")) };
        found.push((name, rendered.unwrap()));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 6, "the corpus is gone");
    found
}

#[test]
fn the_output_is_what_was_kept() {
    for (name, rendered) in corpus() {
        let file = cases().join(&name).join("expected.json");
        let findings: Vec<Value> = rendered
            .plan
            .findings
            .iter()
            .map(|finding| json!({ "reason": finding.reason.word(), "message": finding.message }))
            .collect();
        let output = json!({ "objects": rendered.manifests, "findings": findings });
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&output).unwrap())).unwrap();
        }
        let kept: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap_or_default()).unwrap_or_default();
        assert_eq!(
            output, kept,
            "{name} is rendered otherwise: look at it, then run this with UPDATE_GOLDEN=1"
        );
    }
}

#[tokio::test]
async fn istioctl_finds_nothing_wrong() {
    let istioctl = Istioctl::find().await.unwrap();
    for (name, rendered) in corpus() {
        let istio = |object: &&Value| {
            object["apiVersion"].as_str().is_some_and(|version| version.contains("istio.io"))
        };
        let mut objects: Vec<Value> = rendered.manifests.iter().filter(istio).cloned().collect();
        let said = istioctl.validate(&objects).await.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let filters_only = |line: &str| !line.contains("Warning") || line.contains("EnvoyFilter");
        assert!(said.lines().all(filters_only), "{name}: {said}");
        // What the analysis would miss otherwise: the pods of the gateways.
        let labels = objects
            .iter()
            .filter(|object| object["kind"] == "Gateway")
            .map(|object| object["spec"]["selector"].clone());
        let pods: Vec<Value> = labels
            .enumerate()
            .map(|(number, labels)| {
                json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("gw{number}"), "namespace": "istio-system", "labels": labels },
                    "spec": { "containers": [{ "name": "istio-proxy", "image": "none" }] } })
            })
            .collect();
        objects.extend(pods);
        let said = istioctl.analyze(&objects).await.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(!said.contains("Error ["), "{name}: {said}");
    }
}
