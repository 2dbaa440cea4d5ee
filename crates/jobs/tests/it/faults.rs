//! Whatever dies, each request has exactly one run and one end.

use super::child::{Orders, path};
use super::rig::{Rig, SOON, clusters, effort, install_kinds};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::{Folder, eventually, verified, wait_for};

/// The boundaries of a life from new to done.
const LIFE: [&str; 17] = [
    "before read config",
    "after read config",
    "before read pipeline",
    "after read pipeline",
    "before ask turn",
    "after ask turn",
    "before hold",
    "after hold",
    "before create",
    "after create",
    "before mark running",
    "after mark running",
    "before end",
    "after end",
    "before dismiss",
    "dismiss: run deleted",
    "after dismiss",
];
/// The boundaries of a life that is cut short by its requester.
const CUT_SHORT: [&str; 6] = [
    "before cancel",
    "cancel: run cancelled",
    "dismiss: run deleted",
    "after cancel",
    "before let go",
    "after let go",
];
/// The boundaries of other lives: refused, in line, kept for the administrators, taken over, lost.
const OTHERS: [&str; 10] = [
    "before reject",
    "after reject",
    "before mark queued",
    "after mark queued",
    "before leave",
    "after leave",
    "before adopt",
    "after adopt",
    "before read run",
    "after read run",
];

pub(super) fn orders(rig: &Rig, die_at: Option<&str>) -> Orders {
    Orders {
        private: rig.private_kubeconfig(),
        public: rig.public_kubeconfig(),
        namespace: rig.namespace.clone(),
        die_at: die_at.map(str::to_owned),
    }
}

#[tokio::test]
async fn killed_at_any_boundary_it_continues_with_one_run_and_one_end() {
    let one = |point: &'static str| async move {
        let rig = Rig::new("kill").await;
        let (record, _tekton) = (rig.record(), rig.play_tekton());
        let folder = Folder::new("jobs-child").unwrap();
        let mut child = orders(&rig, Some(point)).start(&folder, "doomed");
        rig.submit("r", json!({ "request": "build" })).await;
        wait_for(SOON, &format!("death {point}"), || child.exited().unwrap().is_some()).await.unwrap();
        let status = child.exited().unwrap().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{point}: {}",
            child.log_tail()
        );

        let mut child = orders(&rig, None).start(&folder, "next");
        rig.until("r", Phase::Succeeded).await;
        rig.no_runs().await;
        eventually(SOON, "the record to catch up", || async {
            record.phases_of("r").last() == Some(&Phase::Succeeded)
        })
        .await
        .unwrap();
        record.assert_once("r").await;
        child.kill9().unwrap();
    };
    let ended = stream::iter(LIFE).map(one).buffer_unordered(3).collect::<Vec<()>>().await;
    verified("kill -9 of the jobs controller at a step: one run, one end", ended.len());
}

#[tokio::test]
async fn killed_on_any_other_way_it_comes_to_the_same_end() {
    let one = |point: &'static str| async move {
        let rig = Rig::new("kill-other").await;
        let record = rig.record();
        let folder = Folder::new("jobs-child").unwrap();
        let start = |point: Option<&str>, name: &str| orders(&rig, point).start(&folder, name);
        let allowed = |more: serde_json::Value| {
            let mut spec = json!({ "allowList": [rig.tenant], "watchScope": "allowed" });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let (mut doomed, expected, runs) = match point {
            "before reject" | "after reject" => {
                let doomed = start(Some(point), "doomed");
                rig.submit("r", json!({ "request": "nothing" })).await;
                (doomed, Phase::Rejected, 0)
            }
            "before mark queued" | "after mark queued" => {
                let offers = json!([{ "pipeline": "build", "concurrency": 1 }]);
                rig.configure(allowed(json!({ "offers": offers }))).await;
                let doomed = start(Some(point), "doomed");
                rig.submit("first", json!({ "request": "build" })).await;
                rig.run_of("first").await;
                rig.submit("r", json!({ "request": "build" })).await;
                (doomed, Phase::Succeeded, 1)
            }
            "before leave" | "after leave" => {
                rig.configure(allowed(json!({ "debug": true }))).await;
                let doomed = start(Some(point), "doomed");
                rig.submit("r", json!({ "request": "build" })).await;
                let run = rig.run_of("r").await.name_any();
                rig.finish(&run, true, &[]).await;
                (doomed, Phase::Succeeded, 1)
            }
            "before adopt" | "after adopt" => {
                super::adoption::in_flight(&rig, "r", true, &[]).await;
                (start(Some(point), "doomed"), Phase::Succeeded, 1)
            }
            _ => {
                let mut before = start(None, "before");
                rig.submit("r", json!({ "request": "build" })).await;
                rig.until("r", Phase::Running).await;
                before.kill9().unwrap();
                // By force, so that not even our finalizer keeps it.
                let run = rig.run_of("r").await.name_any();
                let none = json!({ "metadata": { "finalizers": [] } });
                let params = kube::api::PatchParams::default();
                rig.runs().patch(&run, &params, &kube::api::Patch::Merge(&none)).await.unwrap();
                rig.runs().delete(&run, &DeleteParams::default()).await.unwrap();
                (start(Some(point), "doomed"), Phase::Failed, 1)
            }
        };
        wait_for(SOON, &format!("death {point}"), || doomed.exited().unwrap().is_some()).await.unwrap();
        let mut next = start(None, "next");
        let _tekton = rig.play_tekton();
        rig.until("r", expected).await;
        // Runs and requests are watched apart.
        eventually(SOON, "the record to catch up", || async {
            record.phases_of("r").last().is_some_and(|phase| phase.is_final()) && record.runs_of("r") >= runs
        })
        .await
        .unwrap();
        assert_eq!(record.runs_of("r"), runs, "{point}");
        let ends = record.phases_of("r").iter().filter(|phase| phase.is_final()).count();
        assert_eq!(ends, 1, "{point}");
        next.kill9().unwrap();
    };
    let ended = stream::iter(OTHERS).map(one).buffer_unordered(3).collect::<Vec<()>>().await;
    verified("kill -9 of the jobs controller on other ways: the same end", ended.len());
}

#[tokio::test]
async fn killed_while_a_request_is_deleted_it_leaves_nothing_behind() {
    let one = |point: &'static str| async move {
        let rig = Rig::new("kill-cut").await;
        let record = rig.record();
        let folder = Folder::new("jobs-child").unwrap();
        let mut child = orders(&rig, Some(point)).start(&folder, "doomed");
        rig.submit("r", json!({ "request": "build" })).await;
        rig.until("r", Phase::Running).await;
        rig.requests().delete("r", &DeleteParams::default()).await.unwrap();
        wait_for(SOON, &format!("death {point}"), || child.exited().unwrap().is_some()).await.unwrap();

        let mut child = orders(&rig, None).start(&folder, "next");
        let api = rig.requests();
        eventually(SOON, "the request to go", || async {
            api.get_opt("r").await.is_ok_and(|found| found.is_none())
        })
        .await
        .unwrap();
        rig.no_runs().await;
        wait_for(SOON, "the record to catch up", || record.runs_of("r") >= 1).await.unwrap();
        assert_eq!(record.runs_of("r"), 1, "{point}");
        child.kill9().unwrap();
    };
    let ended = stream::iter(CUT_SHORT).map(one).buffer_unordered(3).collect::<Vec<()>>().await;
    verified("kill -9 of the jobs controller while a request is deleted: nothing is left", ended.len());
}

#[tokio::test]
async fn restarted_at_random_with_many_requests_nothing_is_doubled_or_lost() {
    let rig = Rig::new("restart").await;
    let (record, _tekton) = (rig.record(), rig.play_tekton());
    let names: Vec<String> = (0..10 * effort()).map(|n| format!("r{n}")).collect();
    let mut controller = rig.start();
    for (index, name) in names.iter().enumerate() {
        rig.submit(name, json!({ "request": "build" })).await;
        if index % 3 == 2 {
            controller.crash().await;
            controller = rig.start();
        }
    }
    for name in &names {
        rig.until(name, Phase::Succeeded).await;
    }
    rig.no_runs().await;
    for name in &names {
        record.assert_once(name).await;
    }
    controller.stop().await;
    verified("requests around crashes of the jobs controller: one run and one end each", names.len());
}

#[tokio::test]
async fn while_the_remote_is_gone_runs_go_on_and_results_are_delivered_after() {
    let pair = clusters().await;
    let mut public = pair.public.beside("absent").await.unwrap();
    install_kinds(&public).await;
    let rig = Rig::on("absent", &pair.private, &public).await;
    rig.configure(json!({ "allowList": [rig.tenant] })).await;
    rig.pipeline("build", &[]).await;
    let controller = rig.start();
    rig.submit("before", json!({ "request": "build" })).await;
    rig.until("before", Phase::Running).await;
    let run = rig.run_of("before").await;

    public.apiserver().kill9().unwrap();
    rig.finish(&run.name_any(), true, &[("digest", "while away")]).await;
    // The run stays until its end could be told.
    assert_eq!(rig.run_count().await, 1);
    public.restart_apiserver().await.unwrap();
    let done = rig.until("before", Phase::Succeeded).await.status.unwrap();
    assert_eq!(done.results.unwrap()["digest"], "while away");
    rig.no_runs().await;

    // A controller that starts while the remote is away waits for it.
    controller.crash().await;
    public.apiserver().kill9().unwrap();
    let controller = rig.start();
    public.restart_apiserver().await.unwrap();
    let _tekton = rig.play_tekton();
    rig.submit("after", json!({ "request": "build" })).await;
    rig.until("after", Phase::Succeeded).await;
    controller.stop().await;
    verified("the public cluster dies while runs go on or a controller starts: their ends are told after", 2);
}

#[tokio::test]
async fn it_is_not_ready_before_the_requests_were_seen() {
    let rig = Rig::new("unready").await;
    let nowhere = tarbet_cluster::connect_by(|_| async {
        Err::<http::Response<kube::client::Body>, _>("nothing answers there".into())
    });
    let (health, remotes) = (
        tarbet_telemetry::Health::default(),
        vec![tarbet_jobs::Remote { name: "nowhere".into(), client: nowhere }],
    );
    let metrics = tarbet_jobs::JobMetrics::register(&tarbet_telemetry::Metrics::new("jobs", "test"));
    let controller = tarbet_jobs::Controller::new(
        rig.config(),
        rig.local.clone(),
        remotes,
        metrics,
        health.clone(),
        "unready",
    );
    let controller = super::rig::Running::start(controller);
    eventually(SOON, "the word about the remote", || async {
        let said = format!("{:?}", health.parts());
        // Before it began there is nothing that could be ready.
        assert!(!health.is_ready() || !said.contains("private"), "{said}");
        if said.contains("nothing answers there") { Ok(()) } else { Err(said) }
    })
    .await
    .unwrap();
    controller.stop().await;
}

impl Rig {
    fn private_kubeconfig(&self) -> String {
        path(&self.kubeconfigs.0)
    }

    fn public_kubeconfig(&self) -> String {
        path(&self.kubeconfigs.1)
    }
}
