//! API servers die while requests are worked on: each request has one run and one end all the same.

use futures::future;
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::{Tekton, eventually, verified};

use super::rig::{Record, Rig, SOON, clusters, effort, install_kinds};

/// Requests that come with each death.
const REQUESTS: usize = 4;

/// Submits a request, however often the server has to be asked.
async fn submit(rig: &Rig, name: &str) {
    let tried = || async {
        match rig.submit_in(&rig.tenant, name, json!({ "request": "build" })).await {
            // Taken before, with nobody left to say so.
            Err(kube::Error::Api(said)) if said.code == 409 => Ok(()),
            other => other.map(drop),
        }
    };
    eventually(SOON, &format!("{name} to be taken"), tried).await.unwrap();
}

/// Waits for the moment of a death: at once, with a run begun, or with a request ended.
async fn moment(number: usize, record: &Record, request: &str) {
    let reached = || async {
        match number % 3 {
            0 => record.runs_of(request) > 0,
            1 => true,
            _ => record.phases_of(request).last().is_some_and(|phase| phase.is_final()),
        }
    };
    eventually(SOON, &format!("the moment of {request}"), reached).await.unwrap();
}

#[tokio::test]
async fn whichever_api_server_dies_while_requests_come_each_has_one_run_and_one_end() {
    let pair = clusters().await;
    let mut public = pair.public.beside("servers-public").await.unwrap();
    let mut private = pair.private.beside("servers-private").await.unwrap();
    for plane in [&public, &private] {
        install_kinds(plane).await;
    }
    Tekton::install_kinds(&private).await.unwrap();
    let rig = Rig::on("servers", &private, &public).await;
    rig.configure(json!({ "allowList": [rig.tenant], "watchScope": "allowed" })).await;
    rig.pipeline("build", &[]).await;
    let (record, _tekton) = (rig.record(), rig.play_tekton());
    let controller = rig.start();

    let rounds = 2 * effort().min(10);
    let mut all = Vec::new();
    for round in 0..rounds {
        let names: Vec<String> = (0..REQUESTS).map(|number| format!("r{round}-{number}")).collect();
        let dying = if round % 2 == 0 { &mut public } else { &mut private };
        let submitted = future::join_all(names.iter().map(|name| submit(&rig, name)));
        let death = async {
            moment(round / 2, &record, &names[0]).await;
            dying.apiserver().kill9().unwrap();
            dying.restart_apiserver().await.unwrap();
        };
        future::join(submitted, death).await;
        // One more that comes right after it is back.
        let late = format!("r{round}-late");
        submit(&rig, &late).await;
        for name in names.iter().chain([&late]) {
            let done = rig.until(name, Phase::Succeeded).await.status.unwrap();
            assert_eq!(done.results.unwrap()["digest"], "sha256:00");
        }
        all.extend(names.into_iter().chain([late]));
    }
    rig.no_runs().await;
    for name in &all {
        record.assert_once(name).await;
    }
    controller.stop().await;
    verified("kill -9 of an API server, public and private in turn, while requests are worked on", rounds);
    verified("requests around deaths of API servers: one run and one end each", all.len());
}
