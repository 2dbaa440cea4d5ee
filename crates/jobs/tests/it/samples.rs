//! The two sample objects of the specification, applied as they stand there, with real Tekton.

use std::path::PathBuf;

use super::pipelines::{LONG, with_tekton};
use super::rig::{Rig, clusters, install_kinds};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::tekton::Pipeline;
use tarbet_testbed::{Folder, eventually};

const CONFIG: &str = "
apiVersion: appstudio.redhat.com/v1alpha1
kind: InternalServicesConfig
metadata:
  name: config
  namespace: internal-services
spec:
  allowList:
    - managed-team-1-tenant
    - managed-team-2-tenant
  debug: false
  volumeClaim:
    name: pipeline
    size: 1Gi
";

const REQUEST: &str = "
apiVersion: appstudio.redhat.com/v1alpha1
kind: InternalRequest
metadata:
  name: example
  namespace: default
spec:
    request: \"internal-system-abc-pipeline\"
    params:
        foo: quay.io/redhat-isv/operator-pipelines-images:released
        bar: sha256:dd517544390c4c9636a555081205115a2fd3e83c326e64026f17f391e24bd2e5
";

#[tokio::test]
async fn the_samples_do_what_the_specification_says() {
    let (private, pair) = (with_tekton().await, clusters().await);
    let public = pair.public.beside("samples").await.unwrap();
    install_kinds(&public).await;
    let (here, there) = (private.kubectl(), public.kubectl());
    here.run(&["create", "namespace", "internal-services"]).await.unwrap();
    there.run(&["create", "namespace", "managed-team-1-tenant"]).await.unwrap();
    let rig = Rig::at("internal-services", "managed-team-1-tenant", private, &public).await;
    let folder = Folder::new("samples").unwrap();
    let write = |name: &str, text: &str| folder.write(name, text).unwrap().display().to_string();
    here.run(&["apply", "-f", &write("config.yaml", CONFIG)]).await.unwrap();

    // It keeps what it was given in the workspace until we have looked.
    let name = "internal-system-abc-pipeline";
    let script = "#!/bin/sh\nset -e\ncd $(workspaces.pipeline.path)\nprintf '%s %s' \"$FOO\" \"$BAR\" > given\nwhile [ ! -e seen ]; do sleep 0.1; done\ncat given > $(results.given.path)";
    let params = json!([{ "name": "foo" }, { "name": "bar" }]);
    let given =
        json!([{ "name": "foo", "value": "$(params.foo)" }, { "name": "bar", "value": "$(params.bar)" }]);
    let env =
        json!([{ "name": "FOO", "value": "$(params.foo)" }, { "name": "BAR", "value": "$(params.bar)" }]);
    let object = json!({
        "apiVersion": "tekton.dev/v1", "kind": "Pipeline", "metadata": { "name": name },
        "spec": {
            "params": params, "workspaces": [{ "name": "pipeline" }],
            "results": [{ "name": "given", "value": "$(tasks.work.results.given)" }],
            "tasks": [{ "name": "work", "params": given, "workspaces": [{ "name": "pipeline", "workspace": "pipeline" }],
                "taskSpec": { "params": params, "workspaces": [{ "name": "pipeline" }], "results": [{ "name": "given" }],
                              "steps": [{ "name": "keep", "image": "none", "env": env, "script": script }] } }],
        },
    });
    let pipelines: Api<Pipeline> = Api::namespaced(rig.local.clone(), "internal-services");
    tarbet_cluster::apply(&pipelines, name, "test", &object).await.unwrap();

    let controller = rig.start();
    // Where it stands, nobody may ask.
    there.run(&["apply", "-f", &write("request.yaml", REQUEST)]).await.unwrap();
    let refused = eventually(LONG, "the request in `default` to be refused", || async {
        let request = there.json(&["get", "internalrequest", "example", "-n", "default"]).await?;
        let condition = request["status"]["conditions"][0].clone();
        anyhow::ensure!(condition["reason"] == "Rejected", "{condition}");
        anyhow::Ok(condition)
    })
    .await
    .unwrap();
    assert_eq!(refused["message"], "the internal request namespace (default) is not in the allow list");

    let moved = REQUEST.replace("namespace: default", "namespace: managed-team-1-tenant");
    there.run(&["apply", "-f", &write("moved.yaml", &moved)]).await.unwrap();
    let run = rig.run_of("example").await;
    let bound = json!([{ "name": "pipeline", "volumeClaimTemplate": { "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } } }]);
    // What Tekton fills in besides is its own.
    assert_eq!(run.data["spec"]["workspaces"][0]["name"], bound[0]["name"]);
    let template = &run.data["spec"]["workspaces"][0]["volumeClaimTemplate"]["spec"];
    for field in ["accessModes", "resources"] {
        assert_eq!(template[field], bound[0]["volumeClaimTemplate"]["spec"][field]);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(rig.local.clone(), "internal-services");
    let claim = eventually(LONG, "the claim of the run", || async {
        claims.list(&ListParams::default()).await.unwrap().items.pop()
    })
    .await
    .unwrap();
    assert_eq!(claim.owner_references()[0].name, run.name_any());
    rig.until("example", Phase::Running).await;
    // The claim is the workspace: what a step leaves there lies in its volume.
    let uid = claim.uid().unwrap();
    let place = eventually(LONG, "the volume", || async {
        let volume = here.json(&["get", "persistentvolume", &format!("steps-{uid}")]).await?;
        anyhow::Ok(PathBuf::from(volume["spec"]["hostPath"]["path"].as_str().unwrap_or_default()))
    })
    .await
    .unwrap();
    std::fs::write(place.join("seen"), "").unwrap();
    let done = eventually(LONG, "the end of the request", || async {
        let status = rig.request("example").await.status.unwrap_or_default();
        if Phase::of(&status).is_final() { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(done.conditions[0].reason, "Succeeded", "{done:?}");
    let expected = "quay.io/redhat-isv/operator-pipelines-images:released sha256:dd517544390c4c9636a555081205115a2fd3e83c326e64026f17f391e24bd2e5";
    assert_eq!(done.results.unwrap()["given"], expected);
    rig.no_runs().await;
    eventually(LONG, "the claim to go with the run", || async {
        claims.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await
    .unwrap();
    controller.stop().await;
}
