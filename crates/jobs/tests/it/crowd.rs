//! Many requests at once.

use std::sync::atomic::Ordering;

use super::rig::{Rig, effort};
use futures::{StreamExt, stream};
use serde_json::json;
use tarbet_jobs::machine::Phase;

#[tokio::test]
async fn many_requests_at_once_have_one_run_and_one_end_each() {
    let count = 200 * effort().div_ceil(10);
    let rig = Rig::new("crowd").await;
    let record = rig.record();
    let controller = rig.start();
    let _tekton = rig.play_tekton();
    let names: Vec<String> = (0..count).map(|n| format!("r{n}")).collect();
    stream::iter(&names)
        .for_each_concurrent(16, |name| async { drop(rig.submit(name, json!({ "request": "build" })).await) })
        .await;
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
