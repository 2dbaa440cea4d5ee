use super::*;
use crate::names::REQUEST_FINALIZER;
use crate::policy::judge;
use proptest::prelude::*;

fn object(name: &str, labels: &[(&str, &str)], spec: Value) -> Request {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    let object = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "team-a", "uid": "7d1f0a52-0000-4000-8000-000000000000",
                      "labels": labels, "finalizers": ["a", REQUEST_FINALIZER] },
        "spec": spec,
    }))
    .unwrap();
    Request::keep(&"public".into(), object)
}

fn config() -> InternalServicesConfigSpec {
    InternalServicesConfigSpec { allow_list: vec!["team-a".into()], ..Default::default() }
}

fn built(request: &Request, declared: Option<&[String]>) -> Value {
    let order = judge("public", "team-a", request.spec.as_ref().unwrap(), &config()).unwrap();
    build(request, &order, declared, &config(), "service")
}

#[test]
fn the_run_of_a_request_in_the_first_form() {
    let labels = [("app", "vault"), ("internal-services.appstudio.openshift.io/pipelinerun-uid", "u")];
    let request =
        object("example", &labels, json!({ "request": "build", "params": { "b": "2", "a": "$x `id`" } }));
    let run = built(&request, Some(&["workspace".to_owned()]));
    assert_eq!(
        run,
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
            "metadata": {
                "name": run_name("public", "7d1f0a52-0000-4000-8000-000000000000"), "namespace": "service",
                "labels": {
                    "internal-services.appstudio.openshift.io/name": "example",
                    "internal-services.appstudio.openshift.io/namespace": "team-a",
                    "internal-services.appstudio.openshift.io/pipelinerun-uid": "u",
                    "pipelines.appstudio.openshift.io/type": "release",
                    "tarbet.dev/remote": "public",
                    "tarbet.dev/request-uid": "7d1f0a52-0000-4000-8000-000000000000",
                },
                "annotations": {
                    "operator-sdk/primary-resource": "team-a/example",
                    "operator-sdk/primary-resource-type": "InternalRequest.appstudio.redhat.com",
                    "tarbet.dev/offer": "build",
                },
                "finalizers": ["tarbet.dev/report"],
            },
            "spec": {
                "pipelineRef": { "name": "build" },
                "params": [{ "name": "a", "value": "$x `id`" }, { "name": "b", "value": "2" }],
                "workspaces": [{ "name": "workspace", "volumeClaimTemplate": { "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
                } } }],
            },
        })
    );
}

#[test]
fn the_workspace_is_called_and_sized_as_configured() {
    let request = object("example", &[], json!({ "request": "build" }));
    let order = judge("public", "team-a", request.spec.as_ref().unwrap(), &config()).unwrap();
    let volume_claim = crate::crd::VolumeClaim { name: "pipeline".into(), size: "5Gi".into() };
    let config = InternalServicesConfigSpec { volume_claim, ..config() };
    let bound = |declared: &str| build(&request, &order, Some(&[declared.to_owned()]), &config, "service");
    let run = bound("pipeline");
    let workspace = &run["spec"]["workspaces"][0];
    assert_eq!(workspace["name"], "pipeline");
    let storage = &workspace["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"];
    assert_eq!(storage, "5Gi");
    assert!(bound("workspace")["spec"].get("workspaces").is_none());
}

#[test]
fn a_workspace_is_bound_only_if_the_pipeline_declares_it() {
    let request = object("example", &[], json!({ "request": "build" }));
    assert!(built(&request, Some(&["other".to_owned()]))["spec"].get("workspaces").is_none());
    assert!(built(&request, Some(&[]))["spec"].get("workspaces").is_none());
}

#[test]
fn the_cluster_resolver_is_held_to_our_namespace() {
    let spec = json!({ "pipeline": { "pipelineRef": { "resolver": "cluster", "params": [
        { "name": "kind", "value": "task" }, { "name": "name", "value": "build" }, { "name": "namespace", "value": "kube-system" },
    ] } }, "timeouts": { "pipeline": "1h0m0s" } });
    let run = built(&object("example", &[], spec), Some(&[]));
    assert_eq!(
        run["spec"],
        json!({
            "pipelineRef": { "resolver": "cluster", "params": [
                { "name": "name", "value": "build" }, { "name": "namespace", "value": "service" }, { "name": "kind", "value": "pipeline" },
            ] },
            "timeouts": { "pipeline": "1h0m0s" },
        })
    );
}

#[test]
fn a_name_of_seventy_characters_makes_a_valid_label() {
    let name = "n".repeat(70);
    let run = built(&object(&name, &[], json!({ "request": "build" })), None);
    let label = run["metadata"]["labels"][LABEL_NAME].as_str().unwrap();
    assert!(label.len() <= 63 && label.starts_with("nnn"), "{label}");
    assert_eq!(run["metadata"]["annotations"][ANNOTATION_OWNER], format!("team-a/{name}"));
}

fn kept(status: Value) -> Run {
    let request = object("example", &[], json!({ "request": "build" }));
    let mut run = built(&request, None);
    run["metadata"]["resourceVersion"] = json!("41");
    run["status"] = status;
    Run::keep(&serde_json::from_value(run).unwrap())
}

#[test]
fn what_is_kept_says_whose_it_is_and_how_it_ended() {
    let running =
        kept(json!({ "conditions": [{ "type": "Succeeded", "status": "Unknown", "reason": "Running" }] }));
    assert_eq!(running.serves, Some(Key::new("public", "team-a", "example")));
    assert_eq!((running.version, running.kept, running.ending.is_some()), (41, true, false));

    let done = kept(json!({
        "conditions": [{ "type": "Succeeded", "status": "True" }],
        "results": [{ "name": "a", "value": "text" }, { "name": "b", "value": ["x", "y"] }, { "name": "c", "value": { "k": "v" } }],
        "childReferences": [{ "name": "t" }],
    }));
    let ending = done.ending.unwrap();
    assert!(ending.succeeded && done.children);
    let results: Vec<(&str, &str)> = ending.results.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(results, [("a", "text"), ("b", r#"["x","y"]"#), ("c", r#"{"k":"v"}"#)]);

    let failed = kept(
        json!({ "conditions": [{ "type": "Succeeded", "status": "False", "reason": "PipelineRunTimeout", "message": "" }] }),
    );
    assert_eq!(failed.ending.unwrap().message, "PipelineRunTimeout");
}

#[test]
fn a_run_we_cannot_read_counts_as_running() {
    let odd = kept(json!({ "conditions": "none", "results": 7 }));
    assert!(odd.ending.is_none());
    assert_eq!(odd.request_uid, "7d1f0a52-0000-4000-8000-000000000000");
}

proptest! {
    #[test]
    fn parameters_are_passed_on_byte_for_byte(params in proptest::collection::btree_map("[a-z][a-z0-9._-]{0,8}", any::<String>(), 0..5)) {
        let request = object("example", &[], json!({ "request": "build", "params": params }));
        match judge("public", "team-a", request.spec.as_ref().unwrap(), &config()) {
            Err(why) => prop_assert!(why.contains("parameter"), "{}", why),
            Ok(order) => {
                let run = build(&request, &order, None, &config(), "service");
                let passed: BTreeMap<String, String> = run["spec"]["params"].as_array().into_iter().flatten()
                    .map(|param| (param["name"].as_str().unwrap().to_owned(), param["value"].as_str().unwrap().to_owned()))
                    .collect();
                prop_assert_eq!(passed, params);
            }
        }
    }
}

#[test]
fn where_pods_go_is_said_by_the_offer_alone() {
    let template = json!({ "nodeSelector": { "kubernetes.io/hostname": "hpc" } });
    let offer = json!({ "pipeline": "build", "serviceAccount": "builder", "podTemplate": template });
    let config = json!({ "allowList": ["team-a"], "offers": [offer] });
    let config: InternalServicesConfigSpec = serde_json::from_value(config).unwrap();
    let spec = json!({ "request": "build", "podTemplate": { "nodeSelector": { "mine": "yes" } } });
    let request = object("example", &[], spec);
    let order = judge("public", "team-a", request.spec.as_ref().unwrap(), &config).unwrap();
    let run = build(&request, &order, None, &config, "service");
    let expected = json!({ "serviceAccountName": "builder", "podTemplate": template });
    assert_eq!(run["spec"]["taskRunTemplate"], expected);
}
