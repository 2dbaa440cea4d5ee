//! The definitions and rights in deploy/ are those the controller needs, and no more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::rig::{Rig, Running, SOON, clusters, effort};
use kube::Client;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tarbet_cluster::Source;
use tarbet_jobs::client::{Requests, verdict};
use tarbet_jobs::machine::Phase;
use tarbet_jobs::{Config, Controller, JobMetrics, LeaderElection, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{ControlPlane, Folder, Helm, eventually};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

#[test]
fn the_files_in_deploy_are_the_definitions_of_the_code() {
    for definition in tarbet_jobs::crd::definitions() {
        let name = format!("{}.yaml", definition.metadata.name.clone().unwrap());
        let value = serde_json::to_value(&definition).unwrap();
        // A chart carries what it installs; the public side needs the requests alone.
        let folders = ["crds", "helm/tarbet-jobs/crds", "helm/tarbet-jobs-remote/crds"];
        let wanted = if name.starts_with("internalrequests") { &folders[..] } else { &folders[..2] };
        for file in wanted.iter().map(|folder| deploy().join(folder).join(&name)) {
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&file, serde_saphyr::to_string(&value).unwrap()).unwrap();
            }
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let kept: Value = serde_saphyr::from_str(&text).unwrap_or_default();
            assert_eq!(kept, value, "{} is out of date: run this test with UPDATE_GOLDEN=1", file.display());
        }
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
    let folder = |name: &str| deploy().join("jobs").join(name).display().to_string();
    let rights = deploy().join("jobs/private/rights.yaml").display().to_string();
    private.run(&["apply", "-n", &rig.namespace, "-f", &rights]).await.unwrap();
    public.run(&["apply", "-k", &folder("remote")]).await.unwrap();
    let account = "--serviceaccount=tarbet-jobs:tarbet-jobs";
    let bind = ["create", "rolebinding", "tarbet-jobs-events", "-n", &rig.tenant];
    public.run(&[&bind[..], &["--clusterrole=tarbet-jobs-events", account]].concat()).await.unwrap();
    let local = as_account(&pair.private, &rig.namespace, "tarbet-jobs").await;
    let remote = as_account(&pair.public, "tarbet-jobs", "tarbet-jobs").await;
    // Who asks is refused by the public cluster until somebody there lets them.
    public.run(&["create", "serviceaccount", "asker", "-n", &rig.tenant]).await.unwrap();
    let asker = Requests::new(as_account(&pair.public, &rig.tenant, "asker").await, Some(&rig.tenant));
    let refused = asker.submit("build", BTreeMap::new(), Some("asked")).await.unwrap_err();
    assert!(refused.cause.contains("cannot create resource"), "{refused:?}");
    let account = format!("--serviceaccount={}:asker", rig.tenant);
    let bind =
        ["create", "rolebinding", "requesters", "-n", &rig.tenant, "--clusterrole=tarbet-jobs-requester"];
    public.run(&[&bind[..], &[&account]].concat()).await.unwrap();
    whole_life(&rig, local, remote, &asker).await;

    // The rest of the private side is at least what an API server takes.
    private.run(&["create", "namespace", "internal-services"]).await.unwrap();
    private.run(&["apply", "-k", &folder("private")]).await.unwrap();
    let shown = private.json(&["get", "deployment", "tarbet-jobs", "-n", "internal-services"]).await.unwrap();
    assert_eq!(shown["spec"]["replicas"], 2);
}

#[tokio::test]
async fn the_charts_of_both_sides_give_what_the_controller_needs() {
    let pair = clusters().await;
    let rig = Rig::new("charts").await;
    let chart = |name: &str| deploy().join("helm").join(name).display().to_string();
    let (here, there) = (Helm::on(&pair.private).await.unwrap(), Helm::on(&pair.public).await.unwrap());
    // The public side: its own release name, so that two may stand side by side.
    let (far, namespaces) = (chart("tarbet-jobs-remote"), format!("namespaces={{{}}}", rig.tenant));
    let at = ["-n", &rig.tenant, "--skip-crds", "--set", &namespaces, "--set", "events=true"];
    let asker = format!("requesters[0].namespace={},requesters[0].serviceAccount=asker", rig.tenant);
    let values = [&at[..], &["--set", &asker]].concat();
    there.run(&[&["install", &rig.namespace, &far][..], &values].concat()).await.unwrap();
    pair.public.kubectl().run(&["create", "serviceaccount", "asker", "-n", &rig.tenant]).await.unwrap();
    let asker = Requests::new(as_account(&pair.public, &rig.tenant, "asker").await, Some(&rig.tenant));
    let near = chart("tarbet-jobs");
    let values = json!({
        "remotes": [{ "name": "public", "kubeconfigSecret": "public-kubeconfig" }],
        "config": { "allowList": [rig.tenant], "watchScope": "allowed" },
        "settings": { "workers": 4 },
    });
    let folder = Folder::new("charts").unwrap();
    let file = folder.write("values.yaml", &values.to_string()).unwrap().display().to_string();
    // The object that the test made is in the way of the chart's.
    let kubectl = pair.private.kubectl();
    kubectl.run(&["delete", "internalservicesconfig", "config", "-n", &rig.namespace]).await.unwrap();
    let at = ["-n", &rig.namespace, "--skip-crds", "-f", &file];
    here.run(&[&["install", "jobs", &near][..], &at].concat()).await.unwrap();
    let map = kubectl.json(&["get", "configmap", "jobs", "-n", &rig.namespace]).await.unwrap();
    let settings: Value = serde_saphyr::from_str(map["data"]["tarbet.yaml"].as_str().unwrap()).unwrap();
    let settings: Config = serde_json::from_value(settings["jobs"].clone()).unwrap();
    assert_eq!((settings.mistakes(), settings.workers, settings.leader_election.enabled), (vec![], 4, true));

    let local = as_account(&pair.private, &rig.namespace, "jobs").await;
    let remote = as_account(&pair.public, &rig.tenant, &rig.namespace).await;
    whole_life(&rig, local, remote, &asker).await;
    there.run(&["uninstall", &rig.namespace, "-n", &rig.tenant]).await.unwrap();
    here.run(&["uninstall", "jobs", "-n", &rig.namespace]).await.unwrap();

    // What the schema of the values does not know is refused before anything is made.
    for wrong in [
        json!({}),
        json!({ "remotes": [{ "name": "x" }] }),
        json!({ "remotes": [{ "name": "x", "site": "s", "kubeconfigSecret": "k" }] }),
        by_site(json!({ "replica": 3 })),
        by_site(json!({ "gateway": {} })),
        by_site(json!({ "gateway": { "secret": "s" } })),
        by_site(json!({ "gateway": { "url": "https://g" } })),
    ] {
        let file = folder.write("wrong.yaml", &wrong.to_string()).unwrap().display().to_string();
        assert!(here.run(&["template", "jobs", &near, "-f", &file]).await.is_err(), "{wrong}");
    }
    // The authority of the gateway's certificate may be one that everybody knows.
    for (ca, named) in [(json!({}), true), (json!({ "ca": true }), true), (json!({ "ca": false }), false)] {
        let mut gateway = json!({ "url": "https://g", "secret": "s" });
        gateway.as_object_mut().unwrap().extend(ca.as_object().unwrap().clone());
        let values = by_site(json!({ "gateway": gateway }));
        let file = folder.write("site.yaml", &values.to_string()).unwrap().display().to_string();
        let made = here.run(&["template", "jobs", &near, "-f", &file]).await.unwrap();
        assert!(made.contains("TARBET_TOKEN_FILE"), "{made}");
        assert_eq!(made.contains("TARBET_CA_FILE"), named, "{ca}");
    }
}

/// Values of the chart with a remote that is a site, and these besides.
fn by_site(more: Value) -> Value {
    let mut values = json!({
        "remotes": [{ "name": "x", "site": "s" }], "gateway": { "url": "https://g", "secret": "s" },
    });
    for (name, value) in more.as_object().unwrap() {
        values[name] = value.clone();
    }
    values
}

/// An account with the rights of those who ask makes a request and follows it to its end.
async fn asks(asker: &Requests) {
    // The API server notices new rights a moment later.
    let submit = || asker.submit("build", BTreeMap::new(), Some("asked"));
    eventually(SOON, "the rights of the one who asks", submit).await.unwrap();
    let ended = asker.follow("asked", Some(SOON), |_| {}).await.unwrap();
    assert!(verdict(&ended).is_none(), "{ended:?}");
}

/// A request that succeeds, one that is refused, one that is deleted, and events on both sides,
/// with two accounts that may do nothing else.
async fn whole_life(rig: &Rig, local: Client, remote: Client, asker: &Requests) {
    let pair = clusters().await;
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

    asks(asker).await;
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
    let ready = || async { if health.is_ready() { Ok(()) } else { Err(format!("{:?}", health.parts())) } };
    eventually(SOON, "all parts to be well", ready).await.unwrap();

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
        let here = told(pair.private.kubectl(), rig.namespace.clone()).await?;
        let there = told(pair.public.kubectl(), rig.tenant.clone()).await?;
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
