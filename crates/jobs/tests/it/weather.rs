//! A line to the public cluster that is slow and breaks: each request has one run and one end all the same.

use super::faults::orders;
use super::rig::{Rig, SOON, effort};
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::{Folder, Relay, eventually, verified};

#[tokio::test]
async fn a_line_that_is_slow_and_breaks_starts_nothing_twice() {
    let (rig, folder) = (Rig::new("weather").await, Folder::new("weather").unwrap());
    let (record, _tekton) = (rig.record(), rig.play_tekton());
    let kubeconfig = std::fs::read_to_string(&rig.kubeconfigs.1).unwrap();
    let server = kubeconfig.split("https://").nth(1).unwrap();
    let server = server.split(['"', '\'', '\n', '/']).next().unwrap().trim().to_owned();
    let line = Relay::to(server.parse().unwrap()).await.unwrap();
    let far =
        folder.write("far.kubeconfig", &kubeconfig.replace(&server, &line.address().to_string())).unwrap();
    let mut orders = orders(&rig, None);
    orders.public = far.display().to_string();
    let mut controller = orders.start(&folder, "controller");

    line.rain(true);
    let (mut names, cuts) = (Vec::new(), 15 * effort().min(10));
    while line.cuts() < cuts {
        let before = line.cuts();
        names.push(format!("r{}", names.len()));
        rig.submit(&names[names.len() - 1], json!({ "request": "build" })).await;
        eventually(SOON, "the line to break again", || async { line.cuts() > before }).await.unwrap();
    }
    line.rain(false);
    for name in &names {
        let done = rig.until(name, Phase::Succeeded).await.status.unwrap();
        assert_eq!(done.results.unwrap()["digest"], "sha256:00");
    }
    rig.no_runs().await;
    for name in &names {
        record.assert_once(name).await;
    }
    controller.kill9().unwrap();
    verified(
        "connections that break on a slow line to the public cluster: one run and one end each",
        line.cuts(),
    );
}
