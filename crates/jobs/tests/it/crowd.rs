//! Many requests at once.

use std::sync::atomic::Ordering;

use super::faults::orders;
use super::rig::{Rig, SOON, effort};
use futures::{StreamExt, stream};
use serde_json::json;
use tarbet_jobs::machine::Phase;
use tarbet_testbed::{Folder, eventually, verified};

/// What a controller may hold beyond what it holds without requests, and for each request besides.
const ROOM_KIB: usize = 32 * 1024;
const EACH_KIB: usize = 8;

/// The most memory that a process ever held.
fn peak_kib(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn submit_all(rig: &Rig, names: &[String]) {
    stream::iter(names)
        .for_each_concurrent(16, |name| async { drop(rig.submit(name, json!({ "request": "build" })).await) })
        .await;
}

#[tokio::test]
async fn many_requests_at_once_have_one_run_and_one_end_each() {
    let count = 200;
    let rig = Rig::new("crowd").await;
    let record = rig.record();
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    let names: Vec<String> = (0..count).map(|n| format!("r{n}")).collect();
    submit_all(&rig, &names).await;
    for name in &names {
        let done = rig.until(name, Phase::Succeeded).await.status.unwrap();
        assert_eq!(done.results.unwrap()["digest"], "sha256:00");
    }
    rig.no_runs().await;
    for name in &names {
        record.assert_once(name).await;
    }
    let writes = rig.writes.load(Ordering::Relaxed);
    assert!(writes <= count * 3, "{writes} writes for {count} requests");
    let page = rig.metrics.render().unwrap();
    let labels =
        format!(r#"{{request="build",namespace="{}",reason="Succeeded",succeeded="true"}}"#, rig.tenant);
    for line in [
        format!("internal_request_attempt_total{labels} {count}"),
        format!("internal_request_attempt_duration_seconds_count{labels} {count}"),
        "internal_request_attempt_concurrent_requests 0".to_owned(),
        "tarbet_jobs_waiting_requests 0".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} is missing in\n{page}");
    }
    controller.stop().await;
}

#[tokio::test]
async fn however_many_requests_come_each_runs_once_and_the_controller_stays_small() {
    let count = if effort() == 1 { 250 } else { 1_000 * effort().min(10) };
    let (rig, folder) = (Rig::new("throng").await, Folder::new("throng").unwrap());
    let record = rig.record();
    let mut controller = orders(&rig, None).start(&folder, "controller");
    let _tekton = rig.play_tekton();
    // With one request behind it, it has all that it needs for any.
    rig.submit("first", json!({ "request": "build" })).await;
    rig.until("first", Phase::Succeeded).await;
    let alone = peak_kib(controller.pid());

    let names: Vec<String> = (0..count).map(|n| format!("r{n}")).collect();
    submit_all(&rig, &names).await;
    // However long all of them take: another one ends before long.
    let ended =
        || names.iter().filter(|name| record.phases_of(name).last() == Some(&Phase::Succeeded)).count();
    let mut done = ended();
    while done < count {
        eventually(SOON, "more requests to end", || async { ended() > done }).await.unwrap();
        done = ended();
    }
    rig.no_runs().await;
    for name in &names {
        record.assert_once(name).await;
    }
    let most = peak_kib(controller.pid());
    assert!(most <= alone + ROOM_KIB + EACH_KIB * count, "{most} KiB for {count} requests, {alone} for one");
    controller.kill9().unwrap();
    verified("InternalRequests at once, each with one run and one end", count);
}
