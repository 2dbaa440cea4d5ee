//! A kubeconfig that is replaced while the controller works is taken up by it.

use std::path::Path;

use super::rig::{Rig, Running, clusters};
use kube::Client;
use serde_json::json;
use tarbet_cluster::Source;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::{Controller, JobMetrics, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{ControlPlane, Folder};

/// An account of the public cluster that may do all, and the kubeconfig with its token.
async fn account(public: &ControlPlane, namespace: &str, name: &str) -> String {
    let kubectl = public.kubectl();
    kubectl.run(&["create", "serviceaccount", name, "-n", namespace]).await.unwrap();
    let binding = format!("{namespace}-{name}");
    let subject = format!("--serviceaccount={namespace}:{name}");
    let bind = ["create", "clusterrolebinding", &binding, "--clusterrole=cluster-admin", &subject];
    kubectl.run(&bind).await.unwrap();
    let token = public.service_account_token(namespace, name).await.unwrap();
    std::fs::read_to_string(public.kubeconfig_with_token(&token).unwrap()).unwrap()
}

/// As the kubelet does with a Secret: the new file takes the place of the old one at once.
fn put(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, file).unwrap();
}

#[tokio::test]
async fn a_rotated_kubeconfig_is_taken_up_and_the_old_one_may_be_revoked() {
    let pair = clusters().await;
    let rig = Rig::new("rotate").await;
    let folder = Folder::new("rotation").unwrap();
    let file = folder.write("kubeconfig", &account(&pair.public, &rig.tenant, "first").await).unwrap();
    let remote: Client = tarbet_cluster::connect(&Source::file(&file)).await.unwrap();
    let metrics = JobMetrics::register(&Metrics::new("jobs", "test"));
    let remotes = vec![Remote { name: rig.namespace.clone(), client: remote }];
    let controller =
        Controller::new(rig.config(), rig.local.clone(), remotes, metrics, Health::default(), "rotating");
    let (controller, _tekton) = (Running::start(controller), rig.play_tekton());
    rig.submit("before", json!({ "request": "build" })).await;
    rig.until("before", Phase::Succeeded).await;

    put(&file, &account(&pair.public, &rig.tenant, "second").await);
    // Its token dies with it.
    let kubectl = pair.public.kubectl();
    kubectl.run(&["delete", "serviceaccount", "first", "-n", &rig.tenant]).await.unwrap();
    rig.submit("after", json!({ "request": "build" })).await;
    rig.until("after", Phase::Succeeded).await;
    controller.stop().await;
}
