//! The disk under a plugin's pods is full or fails: new ones are refused by its name, those there are go on, and
//! how they ended is known once it takes it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tarbet_testbed::{Disk, Lease, effort, eventually, verified};

use super::crash::{Bed, config};
use super::part::Part;
use super::pods::{PATIENCE, pod, shell};

/// How a fault begins and ends, and what the kernel may say of it.
struct Fault {
    begin: fn(&Disk) -> anyhow::Result<()>,
    end: fn(&Disk) -> anyhow::Result<()>,
    causes: &'static [&'static str],
}

/// It takes nothing more; it takes all and loses it, which is told as what the device said or as an error of it.
const FAULTS: [Fault; 2] = [
    Fault { begin: Disk::fill, end: Disk::empty, causes: &["No space left on device"] },
    Fault { begin: Disk::fail, end: Disk::mend, causes: &["No space left on device", "Input/output error"] },
];

/// A pod that ends with 3 when it is told, each run leaving a line.
fn body(out: &Path) -> (String, Value) {
    let mut body = serde_json::to_value(pod(json!({"containers": []}))).unwrap();
    let uid = body["pod"]["metadata"]["uid"].as_str().unwrap().to_owned();
    let place = out.join(&uid).display().to_string();
    let line = format!("until [ -e {place}.go ]; do sleep 0.1; done; echo ran >> {place}; exit 3");
    body["pod"]["spec"]["containers"] = json!([shell("main", &line)]);
    (uid, body)
}

#[tokio::test]
async fn a_disk_that_takes_nothing_refuses_new_pods_and_loses_no_end() {
    let (disk, out, lease) = (Disk::new().unwrap(), tempfile::tempdir().unwrap(), Lease::block(1).unwrap());
    let mut bed = Bed::new(Part::Process(Box::new(config(disk.path(), lease.port(0)))), lease.port(0));
    let go = |uid: &str| fs::write(out.path().join(format!("{uid}.go")), "").unwrap();
    let ran = |uid: &str| fs::read_to_string(out.path().join(uid)).unwrap_or_default();
    let rounds = effort().min(10);
    for Fault { begin, end, causes } in (0..rounds).flat_map(|_| FAULTS) {
        let ((runs, running), (comes, coming)) = (body(out.path()), body(out.path()));
        bed.call("/create", &running).await;
        eventually(PATIENCE, "the first pod to run", || async {
            let states = bed.call("/status", &json!([running["pod"]])).await;
            if states[0]["containers"][0]["state"]["running"].is_object() { Ok(()) } else { Err(states) }
        })
        .await
        .unwrap();

        begin(&disk).unwrap();
        let refusal = bed.http.post(format!("{}/create", bed.url)).json(&coming).send().await.unwrap();
        let (status, said) = (refusal.status(), refusal.text().await.unwrap());
        assert!(status.is_server_error(), "{status} {said}");
        let place = disk.path().to_str().unwrap();
        assert!(said.contains("TB-") && said.contains(place), "{said}");
        assert!(causes.iter().any(|cause| said.contains(cause)), "{said}");
        // It ends while nothing can be written.
        go(&runs);
        eventually(PATIENCE, "the first pod to have run", || async { ran(&runs) == "ran\n" }).await.unwrap();
        end(&disk).unwrap();

        assert_eq!(bed.ended(&running["pod"]).await["exitCode"], 3);
        bed.call("/create", &coming).await;
        go(&comes);
        assert_eq!(bed.ended(&coming["pod"]).await["exitCode"], 3);
        bed.plugin.replace().await;
        for (uid, body) in [(&runs, &running), (&comes, &coming)] {
            assert_eq!(bed.ended(&body["pod"]).await["exitCode"], 3, "known after a restart, too");
            bed.call("/delete", &body["pod"]).await;
            assert_eq!(ran(uid), "ran\n");
        }
    }
    bed.plugin.kill().await;
    verified("failures of the disk under a plugin's pods: refused, nothing lost or doubled", 2 * rounds);
}
