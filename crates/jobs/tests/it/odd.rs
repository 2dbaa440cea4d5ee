//! Any object that the remote API server takes harms only itself.

use super::rig::{Rig, SOON, clusters};
use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use tarbet_jobs::crd::InternalRequest;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::eventually;

/// A definition that admits nearly everything, as an older or hand-made one may.
fn lenient() -> Value {
    let mut definition = serde_json::to_value(&tarbet_jobs::crd::definitions()[0]).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    definition
}

#[tokio::test]
async fn odd_requests_are_told_why_and_the_others_go_on() {
    let pair = clusters().await;
    let public = pair.public.beside("lenient").await.unwrap();
    public.kubectl().apply(&lenient()).await.unwrap();
    let list = ["get", "internalrequests", "-A"];
    let kubectl = public.kubectl();
    eventually(SOON, "the kind", || kubectl.run(&list)).await.unwrap();
    let rig = Rig::on("odd", &pair.private, &public).await;
    // Here all namespaces are watched, as the original does.
    rig.configure(json!({ "allowList": [rig.tenant] })).await;
    rig.pipeline("build", &[]).await;

    let api: Api<DynamicObject> =
        Api::namespaced_with(rig.remote.clone(), &rig.tenant, &ApiResource::erase::<InternalRequest>(&()));
    let create = |name: String, mut object: Value| {
        let api = api.clone();
        object["apiVersion"] = json!("appstudio.redhat.com/v1alpha1");
        object["kind"] = json!("InternalRequest");
        object["metadata"]["name"] = json!(name);
        async move {
            api.create(&kube::api::PostParams::default(), &serde_json::from_value(object).unwrap())
                .await
                .unwrap()
        }
    };
    let reference = |resolver: Value, params: Value| json!({ "pipeline": { "pipelineRef": { "resolver": resolver, "params": params } } });
    let odd: Vec<Value> = vec![
        json!({}),
        json!({ "spec": null }),
        json!({ "spec": 7 }),
        json!({ "spec": [] }),
        json!({ "spec": {} }),
        json!({ "spec": { "request": 7 } }),
        json!({ "spec": { "request": "" } }),
        json!({ "spec": { "request": "x".repeat(300) } }),
        json!({ "spec": { "request": "../../etc" } }),
        json!({ "spec": { "request": "build", "params": ["a"] } }),
        json!({ "spec": { "request": "build", "params": { "a": 1 } } }),
        json!({ "spec": { "request": "build", "params": { "a": null } } }),
        json!({ "spec": { "request": "build", "params": { "": "x" } } }),
        json!({ "spec": { "request": "build", "timeouts": "abc" } }),
        json!({ "spec": { "request": "build", "timeouts": { "pipeline": "abc" } } }),
        json!({ "spec": { "request": "build", "timeouts": { "pipeline": -5 } } }),
        json!({ "spec": { "request": "build", "timeouts": { "tasks": "-1h" } } }),
        json!({ "spec": { "request": "build", "serviceAccount": { "a": 1 } } }),
        json!({ "spec": { "request": "build", "serviceAccount": "root" } }),
        json!({ "spec": { "pipeline": {} } }),
        json!({ "spec": { "pipeline": { "pipelineRef": {} } } }),
        json!({ "spec": reference(json!(null), json!([])) }),
        json!({ "spec": reference(json!("cluster"), json!([])) }),
        json!({ "spec": reference(json!("cluster"), json!([{ "name": "name", "value": ["a"] }])) }),
        json!({ "spec": reference(json!("cluster"), json!([{ "name": "name", "value": "build" }, { "name": "name", "value": "b" }])) }),
        json!({ "spec": { "request": "build", "pipeline": { "pipelineRef": { "resolver": "cluster", "params": [] } } } }),
        json!({ "status": { "conditions": [{ "type": "Succeeded", "status": "Maybe" }] } }),
        json!({ "status": { "conditions": "none", "queue": 7 }, "spec": { "request": "none" } }),
    ];
    let count = odd.len();
    for (index, object) in odd.iter().cloned().enumerate() {
        create(format!("odd-{index}"), object).await;
    }
    // There before the controller starts, and after.
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    for (index, object) in odd.into_iter().enumerate() {
        create(format!("again-{index}"), object).await;
    }
    let long = "n".repeat(200);
    for name in ["plain", "with.dots.in-it", &"n".repeat(70), &long] {
        create(name.to_owned(), json!({ "spec": { "request": "build" } })).await;
        assert_eq!(rig.ended(name).await.0, Phase::Succeeded, "{name}");
    }
    // Labels and annotations of all kinds, huge but legal.
    let labels: serde_json::Map<String, Value> =
        (0..50).map(|n| (format!("appstudio.openshift.io/l{n}"), json!("v".repeat(63)))).collect();
    let annotations = json!({ "note": "x".repeat(200_000) });
    create("heavy".into(), json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": { "request": "build" } })).await;
    assert_eq!(rig.ended("heavy").await.0, Phase::Succeeded);

    for prefix in ["odd", "again"] {
        for index in 0..count {
            let (phase, request) = ended_dynamic(&api, &format!("{prefix}-{index}")).await;
            assert_eq!(phase, "Rejected", "{request}");
            assert!(
                request["status"]["conditions"][0]["message"].as_str().is_some_and(|text| text.len() > 10),
                "{request}"
            );
        }
    }
    // A namespace that may not ask is told so in the words callers know.
    let stranger = public.unique_namespace("stranger").await.unwrap();
    rig.submit_in(&stranger, "hello", json!({ "request": "build" })).await.unwrap();
    let strange: Api<DynamicObject> =
        Api::namespaced_with(rig.remote.clone(), &stranger, &ApiResource::erase::<InternalRequest>(&()));
    let (phase, request) = ended_dynamic(&strange, "hello").await;
    assert_eq!(phase, "Rejected");
    let message = format!("the internal request namespace ({stranger}) is not in the allow list");
    assert_eq!(request["status"]["conditions"][0]["message"], message.as_str());
    controller.stop().await;
}

async fn ended_dynamic(api: &Api<DynamicObject>, name: &str) -> (String, Value) {
    let look = || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let reason = object.data["status"]["conditions"][0]["reason"].as_str().unwrap_or_default().to_owned();
        if ["Rejected", "Failed", "Succeeded"].contains(&reason.as_str()) {
            Ok((reason, object.data))
        } else {
            Err(object.data.to_string())
        }
    };
    eventually(SOON, &format!("the end of {name}"), look).await.unwrap()
}
