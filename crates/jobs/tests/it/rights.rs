//! The definitions and rights in deploy/ are those the controller needs, and no more.

use std::path::{Path, PathBuf};

use super::rig::{Rig, Running, SOON, clusters, effort};
use kube::Client;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tarbet_cluster::Source;
use tarbet_jobs::machine::Phase;
use tarbet_jobs::{Config, Controller, JobMetrics, LeaderElection, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{ControlPlane, eventually};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

#[test]
fn the_files_in_deploy_are_the_definitions_of_the_code() {
    for definition in tarbet_jobs::crd::definitions() {
        let file = deploy().join(format!("crds/{}.yaml", definition.metadata.name.clone().unwrap()));
        let value = serde_json::to_value(&definition).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, serde_saphyr::to_string(&value).unwrap()).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let kept: Value = serde_saphyr::from_str(&text).unwrap_or_default();
        assert_eq!(kept, value, "{} is out of date: run this test with UPDATE_GOLDEN=1", file.display());
    }
}

async fn as_account(plane: &ControlPlane, namespace: &str, account: &str) -> Client {
    let token = plane.service_account_token(namespace, account).await.unwrap();
    let file = plane.kubeconfig_with_token(&token).unwrap();
    tarbet_cluster::connect(&Source::file(file)).await.unwrap()
}

#[tokio::test]
async fn the_whole_life_fits_into_the_least_rights() {
    let pair = clusters().await;
    let rig = Rig::new("rights").await;
    let (private, public) = (pair.private.kubectl(), pair.public.kubectl());
    let file = |name: &str| deploy().join("jobs").join(name).display().to_string();
    private.run(&["apply", "-n", &rig.namespace, "-f", &file("private.yaml")]).await.unwrap();
    public.run(&["apply", "-f", &file("remote.yaml")]).await.unwrap();
    public.run(&["create", "serviceaccount", "tarbet-jobs", "-n", &rig.tenant]).await.unwrap();
    let account = format!("--serviceaccount={}:tarbet-jobs", rig.tenant);
    for role in ["tarbet-jobs-requests", "tarbet-jobs-events"] {
        let role_flag = format!("--clusterrole={role}");
        public.run(&["create", "rolebinding", role, "-n", &rig.tenant, &role_flag, &account]).await.unwrap();
    }
    let local = as_account(&pair.private, &rig.namespace, "tarbet-jobs").await;
    let remote = as_account(&pair.public, &rig.tenant, "tarbet-jobs").await;
    let config = Config {
        leader_election: LeaderElection { enabled: true, ..LeaderElection::default() },
        remote_events: true,
        ..rig.config()
    };
    let metrics = JobMetrics::register(&Metrics::new("jobs", "test"));
    let health = Health::default();
    let remotes = vec![Remote { name: rig.namespace.clone(), client: remote }];
    let controller = Controller::new(config, local, remotes, metrics, health.clone(), "least");
    let controller = Running::start(controller);
    let _tekton = rig.play_tekton();

    rig.submit("good", json!({ "request": "build" })).await;
    rig.until("good", Phase::Succeeded).await;
    rig.submit("bad", json!({ "request": "none" })).await;
    rig.until("bad", Phase::Rejected).await;
    rig.requests().delete("good", &DeleteParams::default()).await.unwrap();
    let api = rig.requests();
    eventually(SOON, "the request to go", || async {
        api.get_opt("good").await.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
    rig.no_runs().await;
    assert!(health.is_ready(), "{:?}", health.parts());

    let told = |kubectl: tarbet_testbed::Kubectl, namespace: String| async move {
        let events = kubectl.json(&["get", "events.events.k8s.io", "-n", &namespace]).await?;
        let reasons: Vec<String> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|event| event["reason"].as_str().map(str::to_owned))
            .collect();
        anyhow::Ok(reasons)
    };
    let look = || async {
        let here = told(private.clone(), rig.namespace.clone()).await?;
        let there = told(public.clone(), rig.tenant.clone()).await?;
        anyhow::ensure!(here.contains(&"Created".to_owned()), "{here:?}");
        anyhow::ensure!(
            ["Running", "Succeeded", "Rejected"].iter().all(|reason| there.iter().any(|told| told == reason)),
            "{there:?}"
        );
        anyhow::Ok(())
    };
    eventually(SOON, "the events", look).await.unwrap();
    controller.stop().await;
}

#[tokio::test]
async fn two_remotes_are_served_by_one_controller_and_kept_apart() {
    let pair = clusters().await;
    // The private cluster plays a second public one: its requests live in another namespace there.
    let (one, two) =
        (Rig::new("remote-one").await, Rig::on("remote-two", &pair.private, &pair.private).await);
    one.configure(json!({ "allowList": [one.tenant, two.tenant], "watchScope": "allowed" })).await;
    let remotes = vec![
        Remote { name: "first".into(), client: one.remote.clone() },
        Remote { name: "second".into(), client: two.remote.clone() },
    ];
    // Both remotes must have every allowed namespace, or the watch of the missing one just stays empty.
    let metrics = JobMetrics::register(&Metrics::new("jobs", "test"));
    let controller =
        Controller::new(one.config(), one.local.clone(), remotes, metrics, Health::default(), "two");
    let controller = Running::start(controller);
    let _tekton = one.play_tekton();
    for n in 0..3 * effort() {
        // The same name on both sides is two requests.
        one.submit(&format!("r{n}"), json!({ "request": "build" })).await;
        two.submit(&format!("r{n}"), json!({ "request": "build" })).await;
    }
    for n in 0..3 * effort() {
        let first = one.until(&format!("r{n}"), Phase::Succeeded).await.status.unwrap();
        let second = two.until(&format!("r{n}"), Phase::Succeeded).await.status.unwrap();
        assert_ne!(first.pipeline_run, second.pipeline_run);
    }
    one.no_runs().await;
    controller.stop().await;
}
